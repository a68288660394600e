"""The boxes that a detector finds in an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log10
from typing import TYPE_CHECKING

import torch

from fmapviz.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    Decode = Callable[[Tensor, int], Tensor]

_ROUNDING = 1e-6  # relative error of scores that were computed from the same logits in slices of another length


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """The B boxes that a detector finds in one image, the highest score first.

    Attributes:
        labels: The class of each, int64 `(B)`.
        scores: From 0 to 1, `(B)`, outside the graph.
        values: The differentiated score of each, `(B)`: the logit of its class, if there is one; NaN if it is unknown which.
        corners: Left, top, right and bottom of each in pixels of the preprocessed input, `(B, 4)`, outside the graph; None
            if they are unknown.
        logits: Whether `values` are logits.
        least: The lowest score of a box that counts; None if it is unknown.
        highest: The highest score of each class, also of boxes that do not count, `(K)`; None if it is unknown.
    """

    labels: Tensor
    scores: Tensor
    values: Tensor
    corners: Tensor | None = None
    logits: bool = False
    least: float | None = None
    highest: Tensor | None = None

    @property
    def best(self) -> float | None:
        """The highest score of any box; None if it is unknown."""
        return float(self.highest.max()) if self.highest is not None and self.highest.numel() else None

    def are_known(self, places: Sequence[int]) -> bool:
        """Return True if the differentiated score is known of each of some of them, by their positions."""
        return not bool(self.values.detach()[[*places]].isnan().any())

    def why_none(self) -> str:
        """Return why there are none, and the threshold that would show one; empty if there are some.

        Example:
            >>> Boxes(*torch.empty(3, 0), least=0.25, highest=torch.tensor([0.01, 0.0317])).why_none()
            'no box has a score above 0.25: the highest is 0.0317; confidence=0.031 shows it'
            >>> Boxes(*torch.empty(3, 0), least=0.9999, highest=torch.tensor([0.8])).why_none()
            'no box has a score above 0.9999: the highest is 0.8; confidence=0.79 shows it'
        """
        if len(self.scores):
            return ""
        if self.least is None or self.highest is None:
            return "the network finds no box"
        return self._why_none("no box", self.highest)

    def why_not(self, label: int) -> str:
        """Return why there is no box of a class, and the threshold that would show one.

        Example:
            >>> Boxes(*torch.empty(3, 0), least=0.25, highest=torch.tensor([0.01, 0.0317])).why_not(0)
            'no box of the class has a score above 0.25: the highest is 0.01; confidence=0.0099 shows it'
            >>> Boxes(*torch.empty(3, 0), least=0.25, highest=torch.tensor([0.6])).why_not(0)  # doctest: +ELLIPSIS
            'the network keeps no box of the class, although the highest score is 0.6: it leaves out ...'
            >>> Boxes(*torch.empty(3, 0), least=0.25, highest=torch.tensor([0.6, 0.1])).why_not(2)
            'the network has only 2 classes'
        """
        if self.least is None or self.highest is None:
            return "the network finds no such box in the image"
        if label >= len(self.highest):
            return f"the network has only {counted(len(self.highest), 'class')}"
        return self._why_none("no box of the class", self.highest[label])

    def _why_none(self, subject: str, scores: Tensor) -> str:
        best, least = float(scores.max()) if scores.numel() else 0.0, self.least or 0.0
        if best > least:
            left_out = "it leaves out empty boxes, and those beyond its greatest number"
            return f"the network keeps {subject}, although the highest score is {best:.3g}: {left_out}"
        found = f"{subject} has a score above {least:g}: the highest is {best:.3g}"
        if not best > 0:  # also NaN
            return found
        unit = 10.0 ** (floor(log10(best)) - 1)
        lower = float(f"{floor(best / unit) * unit:.2g}")
        above = bool(scores.max() > lower)  # in the type of the scores, in which 0.8 is no more than 0.8
        lower = lower if above else float(f"{lower - unit:.2g}")
        return f"{found}; confidence={lower:g} shows it" if 0 < lower < least else found

    def take(self, rows: Tensor) -> Boxes:
        """Return some of them, by their positions."""
        corners = None if self.corners is None else self.corners[rows]
        return replace(self, labels=self.labels[rows], scores=self.scores[rows], values=self.values[rows], corners=corners)

    def sorted(self) -> Boxes:
        """Return them by their scores; of equal ones, the first comes first, and those that are not finite last."""
        return self.take(self.scores.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True))

    def above(self, least: float | None) -> Boxes:
        """Return those whose score is above a threshold; None: all."""
        if least is None:
            return self
        return replace(self.take((self.scores > least).nonzero().view(-1)), least=max(least, self.least or 0.0))


def boxes_in(found: Mapping[str, Tensor]) -> Boxes:
    """Return the boxes in a dict of `labels`, `scores` and perhaps `boxes`, as networks of torchvision's form return them.

    Example:
        >>> boxes_in({"labels": torch.tensor([3, 1]), "scores": torch.tensor([0.2, 0.7])}).labels
        tensor([1, 3])
    """
    scores, corners = found["scores"].float(), found.get("boxes")
    known = corners is not None and corners.shape == (*scores.shape, 4)
    return Boxes(
        found["labels"].long(), scores.detach(), scores, corners.detach().float() if known and corners is not None else None
    ).sorted()


def highest_of(table: Tensor) -> Tensor:
    """Return the highest score of each class, `(K)`, among the candidates `(A, K)` of which it is the best class; else 0.

    Example:
        >>> highest_of(torch.tensor([[0.1, 0.9], [0.5, 0.4], [0.3, 0.7]])).tolist()
        [0.5, 0.8999999761581421]
    """
    if not len(table):
        return table.new_zeros(table.shape[1])
    return table.where(table == table.amax(1, keepdim=True), 0).amax(0)


def highest_among(labels: Tensor, scores: Tensor, classes: int) -> Tensor:
    """Return the highest score of each class, `(K)`, among selected boxes `(B)`, whatever their scores; 0 of other classes.

    Example:
        >>> highest_among(torch.tensor([2, 0, 2]), torch.tensor([0.5, 0.25, 0.125]), 3).tolist()
        [0.25, 0.0, 0.5]
    """
    return scores.new_zeros(classes).scatter_reduce(0, labels, scores, "amax")


def sources(boxes: Boxes, table: Tensor, decode: Decode | None = None) -> Tensor:
    """Return the candidate that each box comes from: the one with its score for its class and, of several, its corners.

    Args:
        boxes: Those that post-processing has selected.
        table: Scores of all candidates for all classes, `(A, K)`.
        decode: Returns the corners of candidates for a class, `(R, 4)`, as of `Boxes`; None if they are unknown.

    Returns:
        Rows of the table, int64 `(B)`; -1 where several have that score, and none or several of these the box's corners.

    Example:
        >>> table = torch.tensor([[0.1, 1.0], [0.5, 1.0], [0.7, 0.2]])
        >>> corners = torch.tensor([[0.0, 0.0, 8.0, 8.0], [4.0, 4.0, 9.0, 9.0], [0.0, 0.0, 8.0, 8.0]])
        >>> scores = torch.tensor([1.0, 0.7])
        >>> boxes = Boxes(torch.tensor([1, 0]), scores, scores, corners[1:])
        >>> sources(boxes, table, lambda rows, label: corners[rows])
        tensor([1, 2])
        >>> sources(boxes, table)
        tensor([-1,  2])
    """
    rows = torch.empty_like(boxes.labels)
    for number, (score, label) in enumerate(zip(boxes.scores, boxes.labels.tolist(), strict=True)):
        distances = (table[:, label].float() - score).abs()
        alike = (distances <= distances.min() + _ROUNDING * score.abs()).nonzero().view(-1)
        if len(alike) > 1 and decode is not None and boxes.corners is not None:
            alike = alike[_same_corners(decode(alike, label), boxes.corners[number])]
            alike = alike[distances[alike] == distances[alike].amin()] if len(alike) else alike
        rows[number] = alike[0] if len(alike) == 1 else -1
    return rows


def _same_corners(found: Tensor, wanted: Tensor) -> Tensor:
    """Return which of some boxes `(R, 4)` are a given one up to rounding, bool `(R)`: of several, the nearest."""
    slack = 16 * torch.finfo(found.dtype).eps * wanted.abs().amax().clamp(min=1)
    distances = (found - wanted).abs().amax(1)
    return distances <= slack.clamp(max=distances.amin())


def repeated(values: Tensor) -> Tensor:
    """Return which rows of `(A, D)` are equal to an earlier one, bool `(A)`.

    Example:
        >>> repeated(torch.tensor([[1, 2], [3, 4], [1, 2]])).tolist()
        [False, False, True]
    """
    _, numbers = torch.unique(values.detach(), dim=0, return_inverse=True)
    places = torch.arange(len(values), device=values.device)
    first = torch.full_like(places, len(values)).scatter_reduce(0, numbers, places, "amin")
    return first[numbers] != places


def logits_at(logits: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each box's class at its candidate, `(B)`; NaN, without a gradient, where that is unknown.

    Args:
        logits: Of all candidates for all classes, `(A, K)`.
        rows: As `sources` returns them.
        labels: Columns, `(B)`.

    Example:
        >>> logits_at(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, -1]), torch.tensor([0, 1]))
        tensor([3., nan])
    """
    return logits[rows.clamp(min=0), labels].where(rows >= 0, torch.nan)
