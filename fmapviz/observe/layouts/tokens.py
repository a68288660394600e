"""Find which tokens of an attention are patches, and where they lie, from the axes of its queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.centres import Centres
from fmapviz.core.layout import LayoutError, layout_from
from fmapviz.observe.layouts.axes import Axes, Base, Digit, coords_of, names_of, reason_of, without_single
from fmapviz.observe.layouts.derive import layout_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNKNOWN = "which tokens are patches is not known: they could not be followed through the network"


@dataclass(frozen=True, slots=True, eq=False)
class TokenGrid:
    """The queries, or the keys, of an attention.

    Attributes:
        length: Number of tokens, in each part.
        parts: Number of parts of an image, such as windows, within which there is attention.
        order: For each position of the grid, row by row, the part times `length` plus the token; None if there is no grid.
        grid: Rows and columns.
        others: Tokens that are no patches, if there is one part.
        classes: Those of them that are class tokens.
        refused: Why the positions of the tokens are unknown; empty if they are known, or if the tokens have none.
        lines: Where the rows and columns lie in the picture, see `Layout`; None if only their grid is known.
    """

    length: int
    parts: int = 1
    order: NDArray[np.int64] | None = None
    grid: tuple[int, int] = (0, 0)
    others: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()
    refused: str = ""
    lines: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def cell(self, at: tuple[int, int], picture: tuple[int, int]) -> tuple[int, int]:
        """Return row and column of the patch at a pixel of the input, by the height and width of the input.

        Raises:
            PositionError: The pixel is outside the picture.
        """
        centres = Centres(*self.lines, picture) if self.lines else Centres.spread(self.grid, picture)
        return centres.cell(at)


def grid_of(axes: Axes | None, *, images: int) -> TokenGrid:  # noqa: PLR0911  one for each kind of tokens
    """Return where the tokens of queries or keys are.

    Args:
        axes: `(..., L, d)`, followed to them; None if they do not depend on the picture.
        images: N.
    """
    if axes is None or len(axes.dims) < 3:
        return TokenGrid(0, refused="" if axes is None else _UNKNOWN)
    tokens = without_single(axes.dims[-2])
    length = prod(digit.size for digit in tokens)
    if all(digit.base is None for dim in axes.dims for digit in dim):
        return TokenGrid(length, refused=f"between {length} tokens: {_UNKNOWN}")
    if reason_of(tokens) or "C" in names_of(tokens):
        if "C" in names_of(tokens):
            return TokenGrid(length, refused=f"between {length} channels, not between patches")
        refused = layout_of(Axes(((Digit(_ONE, 1, 1),), tokens))).refused.partition(": ")[2]
        return TokenGrid(length, refused=f"between {length} tokens: {refused}")
    outer = [digit for dim in axes.dims[:-2] for digit in dim if _kind(digit) == "P"]
    whole = [digit for dim in axes.dims[:-2] for digit in dim if _kind(digit) in {"N", "P"} and digit.size > 1]
    if images > 1 and whole and _kind(whole[0]) != "N":
        return TokenGrid(length, refused=_UNKNOWN)
    parts = prod(digit.size for digit in outer)
    classes = coords_of(tokens, "class")
    known = TokenGrid(length, parts, classes=tuple(np.flatnonzero(classes == 1).tolist()))
    if not names_of(tokens) and not outer:
        return replace(known, others=tuple(range(length)))
    found = layout_of(Axes(((Digit(_ONE, 1, 1),), (*outer, *tokens))))
    if found.refused or found.grid is None:
        return replace(known, refused=f"between {length} tokens: {found.refused.partition(': ')[2]}")
    if found.grid[0]:
        return replace(known, refused=f"tokens of {found.grid[0]} frames, not of one picture")
    order = _numbers(found.places, parts * length)
    if found.places is None:
        order = np.arange(parts * length).reshape([digit.size for digit in (*outer, *tokens)])
        order = order.transpose([at - 1 for at in found.order[1:]]).reshape(-1)
    elif found.order != tuple(range(len(found.order))):
        sizes = [digit.size for digit in (*outer, *tokens)]
        flat = np.arange(parts * length).reshape(sizes).transpose([at - 1 for at in found.order[1:]]).reshape(-1)
        order = flat[order]
    others = tuple(sorted({*range(length)} - {*order.tolist()})) if parts == 1 else ()
    return replace(known, order=order, grid=found.grid[1:], others=others, lines=found.lines)


_ONE = Base(1, {"N": np.zeros(1)})


def _kind(digit: Digit) -> str:
    return digit.base.kind if digit.base is not None else ""


def _numbers(places: slice | NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    numbers = np.arange(count)
    return numbers if places is None else numbers[places]


def grid_as_said(text: str, length: int, *, images: int, picture: tuple[int, int]) -> TokenGrid | None:
    """Return the grid of tokens that a layout of the user defines, such as `N 1+H*W C`; None if it defines none."""
    try:
        found = layout_from(text, (images, length, 1), images=images, picture=picture)
    except LayoutError:
        return None
    if found.grid is None or found.grid[0] or prod(found.grid[1:]) < 2:
        return None
    order = _numbers(found.places, length)
    return TokenGrid(length, order=order, grid=found.grid[1:], others=tuple(sorted({*range(length)} - {*order.tolist()})))
