"""The input pixels that the positions of a tensor depend on, as one interval per position and image axis."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.operators.call import HOLE
from fmapviz.observe.operators.indices import means

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from fmapviz.observe.operators.call import Indices, Operand, Place

    Numbers = NDArray[np.float64]

FAR = 2**40  # further than any pixel: an empty interval runs from FAR to -FAR


class InseparableError(Exception):
    """Rows and columns of the image cannot be followed through an operator."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The intervals of one image axis.

    A position in the padding of a layer has no pixels. If it is left out, fields at the border are smaller than inside. If
    the picture is continued there, all have the size that is usually quoted. Both are followed.

    Attributes:
        ends: int64 `(2, 2, n)`: without and with the extension; first and last pixel, inclusive; position.
        dim: Dimension of the tensor that has the positions; None if all elements depend on the same pixels (n is 1).
        inner: Distance of neighbouring positions in that dimension: more than 1 if it was merged with others behind it.
        step: Mean distance of neighbouring positions, pixels.
        centres: Where the positions lie, as if the picture were continued: float64 `(n,)`, pixels from the edge; NaN for a
            position without pixels.
        before: Number of elements of that dimension before the positions, such as class tokens.
        length: Number of its elements that are positions of the picture; 0 for all.
    """

    ends: Indices
    dim: int | None
    inner: int = 1
    step: Fraction = Fraction(1)
    centres: Numbers = field(default_factory=lambda: np.array([np.nan]))
    before: int = 0
    length: int = 0

    @classmethod
    def of_picture(cls, pixels: int, dim: int) -> Axis:
        """Return the axis of a picture, each of whose pixels depends on itself."""
        return cls(np.tile(np.arange(pixels), (2, 2, 1)), dim, centres=np.arange(pixels, dtype=np.float64) + 0.5)

    @property
    def positions(self) -> int:
        """Number of positions."""
        return int(self.ends.shape[2])

    @property
    def place(self) -> tuple[int | None, int, int, int]:
        """Where in a tensor the positions are, and how many."""
        return self.dim, self.inner, self.positions, self.before

    @property
    def is_spread(self) -> bool:
        """True if there are several positions."""
        return self.dim is not None and self.positions > 1

    def everywhere(self) -> Axis:
        """Return the union over all positions."""
        if self.dim is None:
            return self
        ends = np.stack([self.ends[:, 0].min(-1, keepdims=True), self.ends[:, 1].max(-1, keepdims=True)], axis=1)
        return Axis(ends, None, 1, self.step, self.centres.mean(keepdims=True))

    def nowhere(self) -> Axis:
        """Return the axis of a tensor that depends on nothing."""
        return Axis(np.tile(np.array([[FAR], [-FAR]]), (2, 1, 1)), None, 1, self.step)

    def take(self, index: Indices, dim: int | None, step: Fraction = Fraction(1), at: Numbers | None = None) -> Axis:
        """Return the union over some positions, for each new position.

        Args:
            index: `(n, k)`: k positions for each new one. Those outside are padding; HOLE is none at all.
            dim: Dimension of the new positions.
            step: Their distance in old positions.
            at: Where each new position lies between old ones; None: in the middle of those that it takes.
        """
        near = index.clip(0, self.positions - 1)
        ends = self.ends[:, :, near]
        ends[1] += (index - near) * self.step.numerator // self.step.denominator
        outside, hole = index != near, index == HOLE
        ends[0, 0][outside], ends[0, 1][outside] = FAR, -FAR
        ends[1, 0][hole], ends[1, 1][hole] = FAR, -FAR
        centres = self._centres_at(means(index) if at is None else at)
        return Axis(np.stack([ends[:, 0].min(-1), ends[:, 1].max(-1)], axis=1), dim, 1, self.step * step, centres)

    def shifted(self, index: Indices, dim: int | None, length: int) -> Axis:
        """Return the axis in a dimension that was extended or cut, such as by class tokens before the patches.

        Args:
            index: See `take`, of a dimension that has the positions of both axes of the picture.
            dim: The dimension in the result.
            length: Of the dimension before.

        Raises:
            InseparableError: Not all positions are there, in their order.
        """
        there = np.flatnonzero((index[:, 0] >= 0) & (index[:, 0] < length))
        moved = set((index[there, 0] - there).tolist())
        if index.shape[1] != 1 or len(moved) != 1:
            raise InseparableError
        before, count = self.before - moved.pop(), self.length or length
        if before < 0 or before + count > len(index):
            raise InseparableError
        return replace(self, dim=dim, before=before, length=0 if count == len(index) else count)

    def _centres_at(self, at: Numbers) -> Numbers:
        """Return where positions between others lie; beyond the first and the last they go on at the mean distance."""
        last = self.positions - 1
        low = np.clip(np.floor(np.nan_to_num(at)), 0, last).astype(np.int64)
        high = np.minimum(low + 1, last)
        inner = np.clip(at, 0, last)
        centres: Numbers = self.centres[low] + np.where(
            inner > low, (inner - low) * (self.centres[high] - self.centres[low]), 0
        )
        return centres + (at - inner) * float(self.step)

    def visible(self, pixels: int) -> Indices:
        """Return `(2, n)`: the extended intervals where they reveal the same pixels of a picture, else the exact ones."""
        exact, extended = self.ends
        low = np.where(extended[0].clip(0, None) == exact[0], extended[0], exact[0])
        high = np.where(extended[1].clip(None, pixels - 1) == exact[1], extended[1], exact[1])
        outside = (extended[1] < 0) | (extended[0] >= pixels)
        empty = exact[0] > exact[1]
        low, high = np.where(empty, extended[0], low), np.where(empty, np.where(outside, extended[1], extended[0] - 1), high)
        nothing = extended[0] > extended[1]
        return np.stack([np.where(nothing, 0, low), np.where(nothing, -1, high)])


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """The pixels that the elements of a tensor depend on.

    Attributes:
        rows: The rows of the picture.
        columns: The columns of the picture.
        reason: Operator because of which it is taken to be the whole picture; empty if it is exact.
        ungated: The field without what is the same at all positions, such as squeeze-and-excitation gates; None if there is
            nothing of the kind.
        parts: Fields of parts of the channels, if it was concatenated of them; `rows` and `columns` are those of all.
    """

    rows: Axis
    columns: Axis
    reason: str = ""
    ungated: Field | None = None
    parts: tuple[ChannelPart, ...] = ()

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def is_turned(self) -> bool:
        """True if the tensor has the picture's columns before its rows, or both as one."""
        (rows, outer), (columns, inner) = ((axis.dim or 0, axis.inner) for axis in self.axes)
        return self.rows.is_spread and self.columns.is_spread and (rows, -outer) >= (columns, -inner)

    @property
    def without_gates(self) -> Field:
        """The field without gates, itself if there were none."""
        return self.ungated or self


@dataclass(frozen=True, slots=True, eq=False)
class ChannelPart:
    """Some channels of a tensor.

    Attributes:
        dim: The dimension of the channels.
        start: The first of them.
        stop: The first one behind them.
    """

    dim: int
    start: int
    stop: int
    field: Field


def field_of_picture(height: int, width: int, *, dims: tuple[int, int]) -> Field:
    """Return the field of a picture: each pixel depends on itself.

    Example:
        >>> field_of_picture(2, 3, dims=(2, 3)).columns.ends[0].tolist()
        [[0, 1, 2], [0, 1, 2]]
    """
    return Field(Axis.of_picture(height, dims[0]), Axis.of_picture(width, dims[1]))


def whole_picture(height: int, width: int, *, reason: str) -> Field:
    """Return the field of a tensor each of whose elements may depend on every pixel."""
    rows, columns = (Axis(np.tile(np.array([[0], [side - 1]]), (2, 1, 1)), None) for side in (height, width))
    return Field(rows, columns, reason)


def moved(axis: Axis, operand: Operand) -> Axis:
    """Return an axis of an operand as an operator's result has it.

    Raises:
        InseparableError: See `move`.
    """
    changed: Axis = operand.change(axis) if operand.change else move(axis, operand.places, operand.tensor.shape)
    return changed


def move(axis: Axis, places: Sequence[Place | None], shape: Sequence[int]) -> Axis:
    """Return an axis as an operator's result has it.

    Args:
        axis: As an operand has it.
        places: For each dimension of the operand; None: each element of the result depends on all of it.
        shape: Of the operand.

    Raises:
        InseparableError: The result does not have the positions of the axis in one dimension.
    """
    if axis.dim is None:
        return axis
    place = places[axis.dim]
    if place is None:
        return axis.everywhere()
    if place.united:
        return replace(axis.everywhere(), dim=place.dim)
    if place.mixed and axis.is_spread:
        raise InseparableError
    if place.index is None:
        return replace(axis, dim=place.dim)
    if axis.positions != shape[axis.dim]:  # merged with another dimension
        return axis.shifted(place.index, place.dim, shape[axis.dim])
    return axis.take(place.index, place.dim, place.step, place.at)


def unite(axes: Iterable[Axis]) -> Axis:
    """Return the union of what several operands depend on, position by position.

    Raises:
        InseparableError: They have the positions in different dimensions.
    """
    axes = list(axes)
    if len(axes) == 1:
        return axes[0]
    placed = [axis for axis in axes if axis.dim is not None] or axes
    if len({axis.place for axis in placed}) > 1:
        raise InseparableError
    shape = placed[0].ends.shape
    low = np.minimum.reduce([np.broadcast_to(axis.ends, shape)[:, 0] for axis in axes])
    high = np.maximum.reduce([np.broadcast_to(axis.ends, shape)[:, 1] for axis in axes])
    step = max(axis.step for axis in placed)
    centres = _centres_of([axis for axis in placed if axis.positions == placed[0].positions], abs(float(step)))
    return replace(placed[0], ends=np.stack([low, high], axis=1), step=step, centres=centres)


def _centres_of(axes: Sequence[Axis], step: float) -> Numbers:
    """Return the centres of the operands that depend on the fewest pixels, the mean of several such ones.

    In a feature pyramid, or a U-Net, a coarse map is enlarged and joined with a finer one, which has the positions; those of
    the coarse one are half of its own larger step off. NaN where no centre is known, or where another operand depends on
    other pixels, and its centre is more than a step apart.
    """
    known = [axis for axis in axes if np.isfinite(axis.centres).all()] or axes
    widths = [int((axis.ends[1, 1] - axis.ends[1, 0]).max()) for axis in known]
    finest = [axis for axis, width in zip(known, widths, strict=True) if width == min(widths)]
    centres: Numbers = np.mean([axis.centres for axis in finest], 0)
    for axis in known:
        (low, high), (first, last) = axis.ends[1], finest[0].ends[1]
        covers = (low <= first) & (last <= high)
        centres = np.where((abs(axis.centres - centres) > step) & ~covers, np.nan, centres)
    return centres
