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
        best: The highest score of any box, also of one that does not count; None if it is unknown.
    """

    labels: Tensor
    scores: Tensor
    values: Tensor
    corners: Tensor | None = None
    logits: bool = False
    least: float | None = None
    best: float | None = None

    def why_none(self) -> str:
        """Return why there are none, and the threshold that would show one; empty if there are some.

        Example:
            >>> Boxes(*torch.empty(3, 0), least=0.25, best=0.0317).why_none()
            'no box has a score above 0.25: the highest is 0.0317; confidence=0.031 shows it'
        """
        if len(self.scores):
            return ""
        if self.least is None or self.best is None:
            return "the network finds no box"
        found = f"no box has a score above {self.least:.3g}: the highest is {self.best:.3g}"
        lower = floor(self.best * 10 ** (digits := 1 - floor(log10(self.best)))) / 10**digits if self.best > 0 else 0
        return f"{found}; confidence={lower:g} shows it" if 0 < lower < self.least else found

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
