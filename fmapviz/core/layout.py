"""Which axes of a tensor are images, channels, time, rows and columns: the value that everything that reshapes takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import log, prod
from typing import TYPE_CHECKING

from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

AXES = "NCTHW"

SAY_IT = "a `layout` beside the network says it"

_FACTOR = rf"[{AXES}](?:=\d+)?"
_DIM = re.compile(rf"(?:(\d+)\+)?({_FACTOR}(?:\*{_FACTOR})*)(?:\+(\d+))?")
_HINT = "axes are separated by blanks, such as 'N H W C' or 'N 1+H*W C': N images, C channels, T time, H rows, W columns"


class LayoutError(Exception):
    """A layout does not fit a tensor; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How a tensor is cut into axes, and which of them are rows and columns.

    Each dimension is a product of *digits*, the outermost first: one for most tensors; `(N, H/7, W/7)` and `(H%7, W%7)` for
    the dimensions of windows of 7 x 7.

    Attributes:
        text: The axes in words, such as `N 1+H*W C`; empty if they are not known.
        dims: Sizes of the digits of each dimension; 0 for that of the images.
        order: The digits of images, of channels, and of positions, as numbers in the order of the tensor.
        counts: Numbers of these for images and for channels.
        grid: T, H and W: numbers of frames, rows and columns; T is 0 without a time; None for a vector.
        places: Positions of the grid, row by row, among the flattened digits of positions; None if these are the grid.
        refused: Why the tensor is no map of the picture and no vector; empty if it is one.
        assumed: The assumptions that are not derived from the network; empty if there are none.
        by_type: Whether the layer's type decides it.
        unlike: The axes in words if what the layer's type calls rows and columns are not those of the picture; empty if they
            are, or that is not known.
        unfollowed: Likewise, with `?`, if these could not be followed from the picture.
        lines: Where rows and columns of the grid were found in the picture, ascending, pixels from the edge, if axes were
            followed.
        frames: Which frames of the clip those of the grid are, from 0, ascending, likewise; of a map without a time the one
            that the network has taken.
    """

    text: str = ""
    dims: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()
    counts: tuple[int, int] = (1, 1)
    grid: tuple[int, int, int] | None = None
    places: slice | NDArray[np.int64] | None = None
    refused: str = ""
    assumed: str = ""
    by_type: bool = False
    unlike: str = ""
    unfollowed: str = ""
    lines: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    frames: NDArray[np.float64] | None = None

    @property
    def of_images(self) -> bool:
        """True if the layout has an axis of images."""
        return not self.text or "N" in self.text

    def frame(self, number: int, *, count: int) -> float | None:
        """Return which frame of the clip one of several maps lies at; None of a picture, of several frames, or unknown."""
        return float(self.frames[number]) if self.frames is not None and len(self.frames) == count else None

    def of_one(self, shape: Sequence[int], *, images: int) -> tuple[int, ...]:
        """Return the shape of one image's values: without the axis of images, at any position.

        Example:
            >>> tokens, alone = Layout("H*W N C"), Layout("C H W")
            >>> tokens.of_one((196, 8, 64), images=8), alone.of_one((64, 14, 14), images=1)
            ((196, 64), (64, 14, 14))
            >>> Layout("N*H/7*W/7 H%7*W%7 C").of_one((512, 49, 96), images=8)
            (64, 49, 96)
        """
        return _of_one(self.text, tuple(shape), images)

    def sizes(self, shape: Sequence[int]) -> list[int]:
        """Return the sizes of the digits of a tensor, for any number of images.

        Raises:
            LayoutError: The tensor has another shape.
        """
        return [*_filled(self.dims, tuple(shape))]


# Both are called repeatedly for the same few layouts and shapes.


@lru_cache(maxsize=4096)
def _of_one(text: str, shape: tuple[int, ...], images: int) -> tuple[int, ...]:
    dims = text.split()
    if len(dims) != len(shape):  # unknown
        return shape[1:]
    lengths = (size // images if "N" in dim.split("*") else size for dim, size in zip(dims, shape, strict=True))
    return tuple(length for dim, length in zip(dims, lengths, strict=True) if dim != "N")


@lru_cache(maxsize=4096)
def _filled(dims: tuple[tuple[int, ...], ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    known = prod(size for dim in dims for size in dim if size)
    images = prod(shape) // known if known else 1
    filled = [[size or images for size in dim] for dim in dims]
    if tuple(map(prod, filled)) != shape:
        raise LayoutError(f"({', '.join(map(str, shape))}): the shape of this layer changes from image to image")
    return tuple(size for dim in filled for size in dim)


def check_layout(text: str) -> str:
    """Return a layout as the user wrote it if it is one.

    Raises:
        RequestError: It is not.

    Example:
        >>> check_layout("N 1+H*W C")
        'N 1+H*W C'
    """
    parts = str(text).split()
    matches = [_DIM.fullmatch(part) for part in parts]
    names = [factor[0] for match in matches if match for factor in match[2].split("*")]
    if not parts or not all(matches) or len(set(names)) < len(names):
        raise RequestError(f"no such layout: {quote(text)}", hint=_HINT)
    return " ".join(parts)


def layout_from(
    text: str, shape: Sequence[int], *, images: int, picture: tuple[int, int] | None, assumed: str = ""
) -> Layout:
    """Return the layout of a tensor whose axes are given by name.

    Args:
        text: See `check_layout`. Two unknown lengths in a product, of rows and columns, are in the picture's proportions.
        shape: Of the tensor.
        images: N.
        picture: Height and width of the input, pixels; None if it is no picture.
        assumed: See `Layout`.

    Raises:
        LayoutError: The tensor has another number of dimensions, or their lengths do not fit.

    Example:
        >>> layout_from("N 1+H*W C", (2, 97, 8), images=2, picture=(128, 192)).grid
        (0, 8, 12)
    """
    shown = f"the layout {quote(text)} does not fit ({', '.join(map(str, shape))})"
    matches = [_DIM.fullmatch(part) for part in text.split()]
    if len(matches) != len(shape):
        raise LayoutError(f"{shown}: {len(shape)} axes")
    named: list[tuple[str, int]] = []  # all digits
    dims: list[tuple[int, ...]] = []
    where: dict[str, int] = {}
    extra = None
    for length, match in zip(shape, matches, strict=True):
        assert match
        first, last = int(match[1] or 0), int(match[3] or 0)
        factors = match[2].split("*")
        if (first or last) and (extra or any(factor[0] in "NC" for factor in factors)):
            raise LayoutError(f"{shown}: only positions have others before and behind them")
        sizes = _sizes(factors, length - first - last, images=images, picture=picture, shown=shown)
        begin = len(named)
        if first or last:
            extra = (first, length, [factor[0] for factor in factors], sizes)
            named.append(("P", length))
            dims.append((length,))
        else:
            named += [(factor[0], size) for factor, size in zip(factors, sizes, strict=True)]
            dims.append(tuple(0 if factor[0] == "N" else size for factor, size in zip(factors, sizes, strict=True)))
        where |= {name: number for number, (name, _) in enumerate(named[begin:], begin)}
    sizes_of = dict(named)
    counts = (int("N" in where), int("C" in where))
    inner = extra[2] if extra else []
    spatial = [name for name in "THWP" if name in where]
    if extra:
        if spatial != ["P"] or [name for name in "THW" if name in inner] != inner:
            raise LayoutError(f"{shown}: time, rows and columns of tokens are in one axis, in this order")
        first, _, _, sizes = extra
        sizes_of |= dict(zip(inner, sizes, strict=True))
        spatial = ["P"]
    order = tuple(where[name] for name in [*"NC", *spatial] if name in where)
    if not spatial:
        return Layout(text, tuple(dims), order, counts, None, assumed=assumed)
    grid = (sizes_of.get("T", 0), sizes_of.get("H", 1), sizes_of.get("W", 1))
    places = slice(first, first + prod(extra[3])) if extra else None
    return Layout(text, tuple(dims), order, counts, grid, places, assumed=assumed)


def _sizes(factors: Sequence[str], length: int, *, images: int, picture: tuple[int, int] | None, shown: str) -> list[int]:
    """Return the lengths of the factors of a dimension."""
    given: Mapping[str, int] = {factor[0]: int(factor[2:]) for factor in factors if "=" in factor}
    known = {"N": images} | dict(given) if len(factors) > 1 else dict(given)
    names = [factor[0] for factor in factors]
    unknown = [name for name in names if name not in known]
    rest = prod(known[name] for name in names if name in known)
    if rest <= 0 or length <= 0 or length % rest:
        raise LayoutError(shown)
    if unknown == ["H", "W"]:
        ratio = picture[0] / picture[1] if picture else 1.0
        count = length // rest
        pairs = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
        known["H"], known["W"] = min(pairs, key=lambda pair: abs(log(pair[0] / pair[1] / ratio)))
        if abs(log(known["H"] / known["W"] / ratio)) > log(1.5):
            raise LayoutError(
                f"{shown}: {count} positions are no grid in the picture's aspect ratio; declare H=ROWS*W=COLUMNS"
            )
    elif len(unknown) == 1:
        known[unknown[0]] = length // rest
    elif unknown:
        raise LayoutError(f"{shown}: say the lengths of all but one, such as T=8*H=14*W=14")
    if prod(known[name] for name in names) != length:
        raise LayoutError(shown)
    return [known[name] for name in names]
