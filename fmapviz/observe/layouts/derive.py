"""Return the layout of a tensor whose axes were followed."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.layout import SAY_IT, Layout
from fmapviz.observe.layouts.axes import (
    SPACE,
    Axes,
    Base,
    Digit,
    axis,
    coords_of,
    frame_of,
    kinds_of,
    named,
    names_of,
    place,
    reason_of,
    whole,
    without_single,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.observe.layouts.axes import Dim, Numbers

_CLOSE = 1e-3  # of a pixel


def layout_of(axes: Axes) -> Layout:  # noqa: PLR0911  one for each kind of tensor
    """Return where images, channels, time, rows and columns are, or why the tensor is no map.

    Example:
        >>> from fmapviz.observe.layouts.axes import axis, whole
        >>> layout_of(Axes(tuple(whole(axis(name, 4)) for name in "NHWC"))).text
        'N H W C'
    """
    if sum(digit.base is not None and digit.base.kind == "N" for dim in axes.dims for digit in dim) > 1:
        axes = Axes(tuple(map(without_single, axes.dims)), axes.pair)
    text, frame = describe(axes), frame_of(axes)
    shape = axes.shape
    shown = f"({', '.join(map(str, shape))})"
    if axes.pair and not named(axes.pair[0]):  # weights, or learnt queries, times positions: each row of them has a map
        rows = [number for number, dim in enumerate(axes.dims) if not names_of(dim) and axes.shape[number] > 1]
        if len(rows) == 1:
            axes = Axes(place(axes, rows[0], whole(axis("C", shape[rows[0]]))).dims)
            text = describe(axes)
    if axes.pair:
        return Layout(text, refused=f"attention weights {shown} between tokens: not a map of the image")
    for number, dim in enumerate(axes.dims):  # neighbours, or all positions, that became channels
        if kinds_of(dim) >= {"C", "P"}:
            axes = place(axes, number, whole(axis("C", shape[number])))
    digits = [digit for dim in axes.dims for digit in dim]
    images, channels, space, others = _sorted(digits)
    dims = tuple(tuple(0 if at in images else digit.size for at, digit in part) for part in _numbered(axes.dims))
    counts = (len(images), len(channels) + len(others))
    if reason := next((found for dim in axes.dims if (found := reason_of(dim))), ""):
        return Layout(text, dims, refused=f"{shown}: {_why(reason)}")
    # A reshape may join the axis of a single image with another one, and create it again.
    is_single = any(digit.size == 1 and (at == 0 or digit.base is None) for at, digit in enumerate(digits))
    if not images and not (named(axes) and is_single):
        return Layout(text, dims, refused=f"{shown}: its axes were lost in an operator that cannot be followed; {SAY_IT}")
    if len(images) > 1:
        return Layout(text, dims, refused=f"{shown}: its axes of images cannot be distinguished")
    if not space:
        if len(axes.dims) > 2 and prod(digits[at].size for at in others) > 1:
            return Layout(text, dims, refused=f"{shown}: an axis is neither channels nor positions of the picture")
        return Layout(text, dims, (*images, *sorted([*channels, *others])), counts)
    if channels and prod(digits[at].size for at in others) > 1 and len(axes.dims) < 4:
        return Layout(text, dims, refused=f"{shown}: an axis is neither channels nor positions of the picture")
    layout = _of_space(text, digits, dims, shown=shown, parts=(images, sorted([*others, *channels]), space))
    return layout if frame is None or layout.frames is not None else replace(layout, frames=np.array([frame]))


def _sorted(digits: Sequence[Digit]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the numbers of the digits of images, channels and positions, and of the others.

    Channels stay in the order of the tensor: a network may have repeated or shuffled those that it was given.
    """
    found: dict[str, list[int]] = {"N": [], "C": [], "P": [], "": []}
    for at, digit in enumerate(digits):
        found[digit.base.kind if digit.base is not None else ""].append(at)
    return found["N"], found["C"], found["P"], found[""]


def _numbered(dims: Sequence[Dim]) -> list[list[tuple[int, Digit]]]:
    numbered, at = [], 0
    for dim in dims:
        numbered.append(list(enumerate(dim, at)))
        at += len(dim)
    return numbered


def _of_space(  # noqa: PLR0911  one for each kind of positions
    text: str,
    digits: Sequence[Digit],
    dims: tuple[tuple[int, ...], ...],
    *,
    shown: str,
    parts: tuple[list[int], list[int], list[int]],
) -> Layout:
    """Return the layout of a tensor that has positions of the picture."""
    images, channels, space = parts
    coords_of_space = [base.coords for at in space if (base := digits[at].base)]
    names = [name for name in SPACE if any(name in each for each in coords_of_space)]
    if names == ["T"]:
        return Layout(text, dims, refused=f"{shown}: time without rows and columns: not a map of the image")
    if all(len(names_of((digits[at],))) <= 1 for at in space):  # rows before columns, in any order in the tensor
        space = sorted(space, key=lambda at: (_rank(digits[at]), -digits[at].stride))
    own = [digits[at] for at in space]
    counts = len(images), len(channels)
    if len(own) == len(names) and all(map(_is_plain, own)):
        sides = {name: digit.size for name, digit in zip(names, own, strict=True)}
        plain = {name: digit.base.coords[name] for name, digit in zip(names, own, strict=True) if digit.base}
        found = Layout(text, dims, (*images, *channels, *space), counts, _grid(sides))
        return _placed(found, plain, own)
    coords = {name: coords_of(own, name) for name in names}
    inside = np.ones(prod(digit.size for digit in own), bool)
    for name, values in coords.items():
        inside &= np.isfinite(values)
        for digit in own:
            if digit.base is not None and name in digit.base.bounds:
                low, high = digit.base.bounds[name]
                inside &= (values >= low - _CLOSE) & (values <= high + _CLOSE)
    number = int(inside.sum())
    keys = [np.round(values[inside] / _CLOSE).astype(np.int64) for values in coords.values()]
    lengths = [len(np.unique(key)) for key in keys]
    cells = len(np.unique(np.stack(keys, 1), axis=0)) if number else 0
    others = len(inside) - number
    if cells < number:
        return Layout(text, dims, refused=f"{shown}: several values for each of {cells} positions of the picture")
    if cells < prod(lengths):
        what = f"{number} of {len(inside)}" if others else str(number)
        size = " x ".join(map(str, lengths))
        return Layout(text, dims, refused=f"{shown}: {what} positions of the picture, not a whole grid of {size}")
    if not number and len(inside) == 1:  # a class token
        return Layout(text, dims, (*images, *channels, *space), (len(images), len(channels) + len(space)))
    if not number:
        return Layout(text, dims, refused=f"{shown}: no positions of the picture")
    order = np.flatnonzero(inside)[np.lexsort(keys[::-1])]
    grid = _grid(dict(zip(names, lengths, strict=True)))
    places: slice | NDArray[np.int64] | None = order
    if (order == np.arange(order[0], order[0] + number)).all():
        places = slice(int(order[0]), int(order[0]) + number) if others else None
    found = Layout(text, dims, (*images, *channels, *space), counts, grid, places)
    return _placed(found, {name: values[inside] for name, values in coords.items()}, own)


def _placed(layout: Layout, coords: Mapping[str, Numbers], digits: Sequence[Digit]) -> Layout:
    """Return a layout with where its frames, rows and columns lie, unless that is an assumption."""
    if any(digit.base is not None and digit.base.spread for digit in digits):
        return layout
    lines = (_unique(coords["H"]) + 0.5, _unique(coords["W"]) + 0.5) if {"H", "W"} <= coords.keys() else None
    return replace(layout, lines=lines, frames=_unique(coords["T"]) if "T" in coords else None)


def _unique(values: Numbers) -> Numbers:
    """Return the different ones among coordinates."""
    different: Numbers = np.unique(np.round(values / _CLOSE)).astype(np.float64)
    return different * _CLOSE


def _grid(sides: Mapping[str, int]) -> tuple[int, int, int]:
    return sides.get("T", 0), sides.get("H", 1), sides.get("W", 1)


def _is_plain(digit: Digit) -> bool:
    """Return True if a digit is a whole axis whose coordinates increase."""
    base, _, size = digit
    if base is None or size != base.size or len(base.coords) != 1:
        return False
    (values,) = base.coords.values()
    return bool((np.diff(values) > 0).all())


def _rank(digit: Digit) -> int:
    (name,) = names_of((digit,)) or {"W"}
    return "THW".index(name)


def _why(reason: str) -> str:
    if reason in {"aten.gather", "aten.index", "aten.index_select", "aten.topk", "aten.sort", "aten.argsort"}:
        return f"tokens that the network chooses by their values ({reason}): their patches are unknown"
    if reason.startswith("aten.scatter") or reason == "aten.index_add":
        return f"tokens that the network merges ({reason}): their patches are unknown"
    return f"its positions are mixed ({reason}), so that they are no positions of the picture"


def describe(axes: Axes) -> str:
    """Format the axes: `N 1+H*W C`; `H/7` and `H%7` are the number of a window, and a row in it.

    Example:
        >>> from fmapviz.observe.layouts.axes import axis, regroup, whole
        >>> describe(regroup(Axes((whole(axis("H", 14)), whole(axis("W", 4)))), (2, 7, 4)))
        'H/7 H%7 W'
    """
    words = [_describe(dim) for dim in axes.dims]
    if "1" in words:  # a single image, which a reshape has joined with another axis
        words = [
            _describe(without_single(dim)) if len(dim) > 1 else word for dim, word in zip(axes.dims, words, strict=True)
        ]
    has_images = "N" in "".join(words)
    if "1" in words and not has_images:  # a single image
        words[words.index("1")] = "N"
    return " ".join(words)


def _describe(dim: Dim) -> str:
    parts = [_word(digit) for digit in dim if digit.size > 1 or digit.base is not None]
    return "*".join(parts) or "1"


def _word(digit: Digit) -> str:
    base, stride, size = digit
    if base is None or not base.kind:
        return "?" if size > 1 else "1"
    names = [name for name in ("N", *SPACE, "C") if name in base.coords]
    word = "C" if base.kind == "C" else "*".join(names)
    each = {name: np.isfinite(base.coords[name]) for name in names}
    known = np.logical_and.reduce([*each.values()])
    if not known.any():
        one_behind_the_other = "+".join(name for name, one in each.items() if one.any())
        return one_behind_the_other or ("1" if size == 1 else f"{size} others")
    if size == base.size and not known.all() and base.kind == "P":
        first, last = int(known.argmax()), int(known[::-1].argmax())
        inner = size - first - last
        word = f"{first}+{word}" if first else word
        word = f"{word}+{last}" if last else word
        return word if inner == known.sum() else f"{word} with others between"
    if size == base.size:
        return word
    return _word_of_parts(base, names, stride, size) or _word_of_digit(base, names, stride, size, is_known=known.all())


def _word_of_digit(base: Base, names: Sequence[str], stride: int, size: int, *, is_known: bool) -> str:
    """Return the word for a part of a base, as `H/7` and `H%7`."""
    word = "C" if base.kind == "C" else f"({'*'.join(names)})" if len(names) > 1 else names[0]
    if size > 1 and len(names) == 1 and is_known and names[0] in SPACE:
        values = base.coords[names[0]]  # the base may have another order than the picture
        steps = np.diff(np.unique(values))
        stride = round(abs(values[stride] - values[0]) / steps.min()) if len(steps) else stride
    if stride > 1 and stride * size < base.size:
        return f"{word}%{stride * size}/{stride}"
    return f"{word}/{stride}" if stride > 1 else f"{word}%{size}"


def _word_of_parts(base: Base, names: Sequence[str], stride: int, size: int) -> str:
    """Return the word for a digit of parts of the picture that were stacked or concatenated; empty if it is none."""
    if base.kind != "P" or len(names) < 2:
        return ""
    along = np.arange(size) * stride
    varying = [name for name in names if len(np.unique(base.coords[name][along])) > 1]
    if len(varying) == 1:
        return f"{varying[0]}%{size}"
    return "parts" if len(varying) > 1 and stride * size == base.size else ""
