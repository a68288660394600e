"""The boxes that a detector finds in an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log10
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """The B boxes that a detector finds in one image, the highest score first.

    Attributes:
        labels: The class of each, int64 `(B)`.
        scores: From 0 to 1, `(B)`, outside the graph.
        values: The differentiated score of each, `(B)`: the logit of its class, if there is one.
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

    def why_none(self) -> str:
        """Return why there are none, and the threshold that would show one; empty if there are some.

        Example:
            >>> Boxes(*torch.empty(3, 0), least=0.25, highest=torch.tensor([0.01, 0.0317])).why_none()
            'no box has a score above 0.25: the highest is 0.0317; confidence=0.031 shows it'
        """
        if len(self.scores):
            return ""
        if self.least is None or self.highest is None:
            return "the network finds no box"
        return f"no box {self._too_low(self.highest)}"

    def why_not(self, label: int) -> str:
        """Return why there is no box of a class, and the threshold that would show one.

        Example:
            >>> Boxes(*torch.empty(3, 0), least=0.25, highest=torch.tensor([0.01, 0.0317])).why_not(0)
            'no box of the class has a score above 0.25: the highest is 0.01; confidence=0.0099 shows it'
        """
        if self.least is None or self.highest is None or label >= len(self.highest):
            return "the network finds no such box in the image"
        return f"no box of the class {self._too_low(self.highest[label])}"

    def _too_low(self, scores: Tensor) -> str:
        best = float(scores.max()) if scores.numel() else 0.0
        found = f"has a score above {self.least:.3g}: the highest is {best:.3g}"
        if not best > 0:  # also NaN
            return found
        unit = 10.0 ** (floor(log10(best)) - 1)
        lower = float(f"{floor(best / unit) * unit:.2g}")
        lower = lower if lower < best else float(f"{lower - unit:.2g}")  # scores have to be above it
        return f"{found}; confidence={lower:g} shows it" if self.least and 0 < lower < self.least else found

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


def nearest(scores: Tensor, labels: Tensor, table: Tensor) -> Tensor:
    """Return the row of a table that each box comes from: the one with its score in the column of its class.

    Args:
        scores: Of the boxes, `(B)`.
        labels: Columns, `(B)`.
        table: Scores of all candidates for all classes, `(A, K)`, of which post-processing has selected the boxes.

    Returns:
        int64 `(B)`; of equal rows the first that no box before has.

    Example:
        >>> table = torch.tensor([[0.1, 0.9], [0.5, 0.9], [0.7, 0.2]])
        >>> nearest(torch.tensor([0.9, 0.9, 0.7]), torch.tensor([1, 1, 0]), table)
        tensor([0, 1, 2])
    """
    rows = torch.empty_like(labels)
    taken: dict[int, Tensor] = {}
    for number, (score, label) in enumerate(zip(scores, labels.tolist(), strict=True)):
        distances = (table[:, label] - score).abs() + taken.get(label, torch.zeros_like(table[:, label]))
        rows[number] = row = distances.argmin()
        taken.setdefault(label, torch.zeros_like(table[:, label]))[row] = torch.inf
    return rows
