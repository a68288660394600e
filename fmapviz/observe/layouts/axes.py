"""Represent the axes of a tensor by name, and cut, join and reorder them as operators do.

A dimension is a product of digits, the outermost first. A digit belongs to a *base*: an axis, or several flattened to one
sequence, whose positions have coordinates: the number of the image, the channel, the frame, and row and column in pixels of
the picture. The windows of a Swin transformer are two digits of one base each for rows and columns: which row a position has
follows from both digits together, also where windows were shifted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

SPACE = ("T", "H", "W")
_CLOSE = 1e-3  # of a pixel


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A sequence of positions.

    Attributes:
        size: Their number.
        coords: Float64 `(size,)` by the name of an axis; NaN for positions that have none, such as class tokens. Of these,
            `class` is 1.
        reason: Why coordinates are unknown, if they are lost: an operator; empty if there were none.
        bounds: Smallest and largest coordinate without padding.
        begun: Whether it is an axis of the network's input.
        spread: Whether only the name of the axis is known, and its positions are assumed to span the picture.
        enlarged: How many times more positions there are than in a coarser map that was enlarged; 1 if none was.
    """

    size: int
    coords: dict[str, Numbers]
    reason: str = ""
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    begun: bool = False
    spread: bool = False
    enlarged: float = 1.0

    @property
    def kind(self) -> str:
        """The kind of the axis: `N`, `C`, `P` of positions, or empty."""
        coords = self.coords
        if "C" in coords:
            return "C"
        if "N" in coords:
            return "N"
        return "P" if "H" in coords or "W" in coords or "T" in coords else ""


class Digit(NamedTuple):
    """A part of a dimension.

    Attributes:
        base: None if it is unknown.
        stride: Distance of neighbours in the base.
        size: Number of positions.
    """

    base: Base | None
    stride: int
    size: int


Dim = tuple[Digit, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """The axes of a tensor that depends on the picture.

    Attributes:
        dims: The digits of each dimension.
        pair: Of the products of queries with keys, the axes of both.
        frame: The frame of the clip that was taken, if it is a single one.
    """

    dims: tuple[Dim, ...]
    pair: tuple[Axes, Axes] | None = None
    frame: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return tuple(prod([digit.size for digit in dim]) for dim in self.dims)


def whole(base: Base) -> Dim:
    """Return a dimension that is a base."""
    return (Digit(base, 1, base.size),)


def unnamed(size: int, reason: str = "") -> Dim:
    """Return an unknown dimension."""
    return (Digit(Base(size, {}, reason) if reason else None, 1, size),)


def axis(name: str, size: int, *, start: float = 0.0, step: float = 1.0, begun: bool = False) -> Base:
    """Return an axis of equally distant positions."""
    return Base(size, {name: start + step * np.arange(size, dtype=np.float64)}, begun=begun)


def regroup(axes: Axes, shape: Sequence[int]) -> Axes:
    """Return the axes after a reshape, which keeps the order of all elements.

    Example:
        >>> axes = Axes((whole(axis("H", 6)), whole(axis("W", 4))))
        >>> [len(dim) for dim in regroup(axes, (24,)).dims], [digit.stride for (digit,) in regroup(axes, (3, 2, 4)).dims]
        ([2], [2, 1, 1])
    """
    digits = [digit for dim in axes.dims for digit in dim]
    counts, at = [], 0
    for length in shape:
        begin, have = at, 1
        if length == 1 and at < len(digits) and digits[at].size == 1:
            at += 1
        while have < length:
            need = length // have
            size = digits[at].size
            if need % size == 0:
                have *= size
                at += 1
            elif size % need == 0:
                digits[at : at + 1] = _cut(digits[at], size // need)
                have = length
                at += 1
            else:
                digits = _join(digits, at, at + 2)
        counts.append(at - begin)
    dims, at = [], 0
    for count, length in zip(counts, shape, strict=True):
        dims.append(_merged(digits[at : at + count], length))
        at += count
    if at < len(digits) and dims:  # of length 1
        rest = [digit for digit in digits[at:] if digit.base is not None]
        dims[-1] = (*dims[-1], *rest)
    return separated(Axes(tuple(dims), axes.pair))


def without_single(dim: Dim) -> Dim:
    """Return a dimension without the axis of a single image, which `einsum` joins with any other."""
    return tuple(digit for digit in dim if digit.size > 1 or digit.base is None or digit.base.kind != "N") or dim


def separated(axes: Axes) -> Axes:
    """Separate rows and columns of one sequence that are in different digits again."""
    parts: dict[int, dict[Digit, None]] = {}
    for dim in axes.dims:
        for digit in dim:
            if digit.base is not None and digit.size < digit.base.size and len(digit.base.coords) > 1:
                parts.setdefault(id(digit.base), {})[digit] = None
    new: dict[Digit, Digit] = {}
    for found in parts.values():
        ordered = sorted(found, key=lambda digit: -digit.stride)
        base, sizes = ordered[0].base, [digit.size for digit in ordered]
        assert base is not None
        if prod(sizes) != base.size:
            continue
        owners: dict[int, dict[str, Numbers]] = {}
        for name, values in base.coords.items():
            grid = values.reshape(sizes)
            on = [at for at in range(len(sizes)) if not np.array_equal(grid, grid.take([0], at).repeat(sizes[at], at))]
            if len(on) != 1:
                break
            owners.setdefault(on[0], {})[name] = grid.reshape(-1)[np.arange(sizes[on[0]]) * ordered[on[0]].stride]
        else:
            for at, digit in enumerate(ordered):
                coords = owners.get(at, {})
                bounds = {name: pair for name, pair in base.bounds.items() if name in coords}
                own = Base(digit.size, coords, base.reason, bounds, spread=base.spread) if coords else None
                new[digit] = Digit(own, 1, digit.size)
    if not new:
        return axes
    return Axes(tuple(tuple(new.get(digit, digit) for digit in dim) for dim in axes.dims), axes.pair)


def _merged(digits: Sequence[Digit], length: int) -> Dim:
    """Return the digits of a dimension; neighbours that belong together become one."""
    merged: list[Digit] = []
    for digit in digits:
        last = merged[-1] if merged else None
        if last and last.base is digit.base and (digit.base is None or last.stride == digit.stride * digit.size):
            merged[-1] = Digit(digit.base, digit.stride, last.size * digit.size)
        else:
            merged.append(digit)
    kept = [digit for digit in merged if digit.size > 1 or digit.base is not None]
    return tuple(kept) or (Digit(None, 1, length),)


def _cut(digit: Digit, inner: int) -> list[Digit]:
    base, stride, size = digit
    return [Digit(base, stride * inner, size // inner), Digit(base, stride, inner)]


def _join(digits: Sequence[Digit], start: int, stop: int) -> list[Digit]:
    """Make one digit of several, of a base that has the coordinates of all of theirs."""
    parts = digits[start:stop]
    bases = list({id(each.base): each.base for each in parts if each.base is not None}.values())
    size = prod([each.size for each in parts])
    if not bases:
        return [*digits[:start], Digit(None, 1, size), *digits[stop:]]
    others = [
        number
        for number, each in enumerate(digits)
        if not start <= number < stop and any(each.base is base for base in bases)
    ]
    ordered = [*parts, *(digits[number] for number in others)]
    sizes, index = [each.size for each in ordered], _positions(ordered)
    coords: dict[str, Numbers] = {}
    bounds: dict[str, tuple[float, float]] = {}
    for base in bases:
        for name, values in base.coords.items():
            found = np.broadcast_to(values[index[id(base)]], sizes).reshape(-1)
            if name in coords:  # of two bases of channels, each pair is one
                found = found + coords[name] * (np.nanmax(values, initial=0) + 1)
            coords[name] = found
        bounds |= base.bounds
    reason = next((base.reason for base in bases if base.reason), "")
    joint, rest = Base(prod(sizes), coords, reason, bounds, spread=any(base.spread for base in bases)), list(digits)
    stride = prod(sizes[len(parts) :])
    outer = Digit(joint, stride, size)
    for number in others:
        stride //= digits[number].size
        rest[number] = Digit(joint, stride, digits[number].size)
    rest[start:stop] = [outer]
    return rest


def _single(axes: Axes, dim: int) -> tuple[list[Digit], list[int], int]:
    """Return all digits, with one for a dimension that is the outermost of its base; how many there are; and its number."""
    digits = [digit for own in axes.dims for digit in own]
    counts = [len(own) for own in axes.dims]
    start = sum(counts[:dim])
    first = digits[start]
    if counts[dim] > 1 or (first.base is not None and first.base.size != first.size):
        digits = _join(digits, start, start + counts[dim])
        counts[dim] = 1
    return digits, counts, start


def _grouped(digits: Sequence[Digit], counts: Sequence[int]) -> tuple[Dim, ...]:
    dims, at = [], 0
    for count in counts:
        dims.append(tuple(digits[at : at + count]))
        at += count
    return tuple(dims)


def blended(axes: Axes, dim: int) -> Axes:
    """Return the axes of a tensor whose values along a dimension are computed of several: padding may see the picture."""
    seen = {
        id(each.base): replace(each.base, bounds={}) for each in axes.dims[dim] if each.base is not None and each.base.bounds
    }
    if not seen:
        return axes
    dims = (tuple(each._replace(base=seen.get(id(each.base), each.base)) for each in own) for own in axes.dims)
    return Axes(tuple(dims), axes.pair)


def resample(axes: Axes, dim: int, places: NDArray[np.float64 | np.int64], *, padded: bool = False) -> Axes:
    """Return the axes of a tensor that has, along a dimension, these positions of another one.

    Args:
        axes: Of the other one.
        dim: The dimension.
        places: Position of each new one, possibly between two, or outside.
        padded: Whether what is outside is no part of the picture.
    """
    digits, counts, at = _single(axes, dim)
    base, _, size = digits[at]
    if base is None:
        digits[at] = Digit(None, 1, len(places))
        return Axes(_grouped(digits, counts), axes.pair)
    rest = base.size // size
    whole_numbers = places.dtype.kind == "i" or bool((places == np.round(places)).all())
    low = np.clip(np.floor(places).astype(np.int64), 0, size - 1)
    outside = np.where(places < 0, places, np.where(places > size - 1, places - (size - 1), 0.0))
    coords, bounds = {}, dict(base.bounds)
    for name, values in base.coords.items():
        grid = values.reshape(size, rest)
        new = grid[low]
        if not whole_numbers:
            high = np.clip(low + 1, 0, size - 1)
            part = np.clip(places - low, 0, 1)[:, None]
            new = new + np.where(part > 0, part * (grid[high] - new), 0.0)
        if outside.any():
            new = _beyond(new, grid, outside)
            if padded and name in SPACE and name not in bounds:
                bounds[name] = float(np.nanmin(values)), float(np.nanmax(values))
        if name != "class" or not np.isnan(new).all():
            coords[name] = new.reshape(-1)
    if not padded and outside.any():
        bounds = {}
    enlarged = base.enlarged if padded else max(1.0, base.enlarged * len(places) / size)
    new_base = Base(len(places) * rest, coords, base.reason, bounds, spread=base.spread, enlarged=enlarged)
    digits = [Digit(new_base, each.stride, each.size) if each.base is base else each for each in digits]
    digits[at] = Digit(new_base, rest, len(places))
    found = Axes(_grouped(digits, counts), axes.pair)
    return separated(found) if rest > 1 else found


def _beyond(new: Numbers, grid: Numbers, outside: Numbers) -> Numbers:
    """Continue coordinates beyond the ends, where they increase or decrease; else beyond all that there are.

    Args:
        new: Those of the last positions at the ends, `(n, rest)`, and others.
        grid: All, `(size, rest)`.
        outside: Distance beyond an end, negative before the first, `(n,)`.
    """
    steps = np.diff(grid, axis=0) if len(grid) > 1 else np.ones((1, grid.shape[1]))
    if (steps >= 0).all() or (steps <= 0).all() or np.isnan(steps).any():
        linear: Numbers = new + np.where((outside < 0)[:, None], outside[:, None] * steps[0], outside[:, None] * steps[-1])
        return linear
    step = float(np.median(np.abs(steps)))
    ends = np.where(outside < 0, np.nanmin(grid) + outside * step, np.nanmax(grid) + outside * step)
    continued: Numbers = np.where((outside != 0)[:, None], ends[:, None], new)
    return continued


def without(axes: Axes, dim: int, *, kept: bool = False) -> Axes:
    """Return the axes of a tensor whose elements were united along a dimension.

    Args:
        axes: Of the operand.
        dim: The dimension.
        kept: Whether the result has it with length 1.
    """
    dims, waiting = list(axes.dims), list(axes.dims[dim])
    dims[dim : dim + 1] = [unnamed(1)] if kept else []
    while waiting:
        base, stride, size = waiting.pop()
        if base is None or base.size == size:
            continue
        coords = {name: _mean(values.reshape(-1, size, stride)) for name, values in base.coords.items()}
        new = Base(base.size // size, coords, base.reason, base.bounds, spread=base.spread)
        dims = [tuple(_united(own, Digit(base, stride, size), new) for own in each) for each in dims]
        waiting = [_united(own, Digit(base, stride, size), new) for own in waiting]
    return Axes(tuple(dims), axes.pair)


def _united(digit: Digit, gone: Digit, new: Base) -> Digit:
    """Return a digit of the base in which another one was united."""
    if digit.base is not gone.base:
        return digit
    return Digit(new, digit.stride // gone.size if digit.stride > gone.stride else digit.stride, digit.size)


def _mean(values: Numbers) -> Numbers:
    """Return the mean over the middle one of three dimensions, without NaN."""
    known = ~np.isnan(values)
    count = known.sum(1)
    total = np.where(known, values, 0.0).sum(1)
    mean: Numbers = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean.reshape(-1)


def place(axes: Axes, dim: int, new: Dim) -> Axes:
    """Replace a dimension by another one; positions of it that lie in other dimensions become their means."""
    rest = without(axes, dim, kept=True).dims
    return Axes((*rest[:dim], new, *rest[dim + 1 :]), axes.pair)


def concatenate(parts: Sequence[tuple[Axes | None, int]], dim: int, marks: Sequence[bool]) -> Axes:
    """Return the axes of a concatenation.

    Args:
        parts: Of each operand the axes, None if it does not depend on the picture, and its length.
        dim: Along which they are concatenated.
        marks: Of each whether it is a class token.
    """
    main = max((axes for axes, _ in parts if axes), key=named)
    found: list[Base | None] = []
    reason = ""
    for axes, length in parts:
        base = None
        if axes is not None:
            digits, _, at = _single(axes, dim)
            base = digits[at].base
            if base is not None and base.size != length:
                reason = "aten.cat"
            if base is not None and base.reason:
                reason = base.reason
        found.append(base)
    known = [axes for axes, _ in parts if axes]
    for axes in known:
        main = mixed(main, axes, "aten.cat", but=dim)
    main = _between(main, known, but=dim)
    names = {name for base in found if base for name in base.coords}
    total = sum(length for _, length in parts)
    if reason or not (names or any(marks)):
        return place(main, dim, unnamed(total, reason))
    if "C" in names:
        return place(main, dim, whole(axis("C", total)))
    coords = {}
    for name in names | ({"class"} if any(marks) else set()):
        arrays = [
            base.coords[name]
            if base and name in base.coords
            else np.full(length, 1.0 if name == "class" and mark else np.nan)
            for base, (_, length), mark in zip(found, parts, marks, strict=True)
        ]
        coords[name] = np.concatenate(arrays)
    bounds = {name: pair for base in found if base for name, pair in base.bounds.items()}
    return place(main, dim, whole(Base(total, coords, "", bounds, spread=any(base.spread for base in found if base))))


def _between(main: Axes, parts: Sequence[Axes], *, but: int) -> Axes:
    """Return axes whose positions are in the middle between those of several tensors, such as every second row each.

    A coarse map that was enlarged is left out, and an average of the whole picture that was spread over it: the finer ones
    beside it have the positions.
    """
    dims = list(main.dims)
    for dim, own in enumerate(main.dims):
        names = names_of(own)
        all_of = [each.dims[dim] for each in parts]
        if dim == but or not (names & {*SPACE}) or not all(len(each) == 1 and _is_whole(each) for each in all_of):
            continue
        if any(names_of(each) != names or each[0].size != own[0].size for each in all_of):
            continue
        all_of = finest(all_of)
        means = {name: np.mean([coords_of(each, name) for each in all_of], 0) for name in names}
        base = all_of[0][0].base
        if base is not None and not all(np.array_equal(values, coords_of(own, name)) for name, values in means.items()):
            dims[dim] = whole(replace(base, coords={**base.coords, **means}))
    return Axes(tuple(dims), main.pair)


def finest(dims: Sequence[Dim]) -> list[Dim]:
    """Return the dimensions whose positions were enlarged least; those with assumed positions if there are no others."""
    known = [own for own in dims if not any(digit.base is not None and digit.base.spread for digit in own)]
    dims = known or dims
    factors = [max((digit.base.enlarged for digit in own if digit.base is not None), default=1.0) for own in dims]
    return [own for own, factor in zip(dims, factors, strict=True) if factor == min(factors)]


def parted(parts: Sequence[Axes | None]) -> tuple[Digit, Axes] | None:
    """Return the digit that counts parts of a picture, such as tiles, and the axes of each of them; None if they are none.

    Args:
        parts: Tensors of the same shape, of which the rows or columns of some lie in quite another place. A mirrored picture
            is another one, whose columns would lie between those of the first.
    """
    axes = [each for each in parts if each is not None]
    main = axes[0]
    if len(axes) < len(parts) or any(each.pair or each.shape != main.shape for each in axes):
        return None
    places: dict[int, tuple[str, list[Numbers]]] = {}
    for dim, names in enumerate(names_of(own) for own in main.dims):
        if any(names_of(each.dims[dim]) != names for each in axes):
            return None
        if len(names) != 1 or not names <= {*SPACE}:
            continue
        (name,) = names
        found = [coords_of(each.dims[dim], name) for each in axes]
        if len({bool(one[-1] < one[0]) for one in found}) > 1:
            return None
        if any(not np.array_equal(one, found[0]) for one in found):
            places[dim] = name, found
    apart = any(disagree(main.dims[dim], each.dims[dim]) for dim in places for each in axes)
    if not apart or any(len(each.dims[dim]) > 1 or not _is_whole(each.dims[dim]) for each in axes for dim in places):
        return None
    sizes = [len(parts), *(main.shape[dim] for dim in places)]
    coords = {
        name: np.broadcast_to(
            np.stack(found).reshape([len(parts), *(sizes[number] if at == number else 1 for at in range(1, len(sizes)))]),
            sizes,
        ).reshape(-1)
        for number, (name, found) in enumerate(places.values(), 1)
    }
    bases = [base for each in axes for dim in places if (base := each.dims[dim][0].base) is not None]
    bounds = {name: pair for base in bases for name, pair in base.bounds.items()}
    joint = Base(prod(sizes), coords, "", bounds, spread=any(base.spread for base in bases))
    dims = list(main.dims)
    for number, dim in enumerate(places, 1):
        dims[dim] = (Digit(joint, prod(sizes[number + 1 :]), sizes[number]),)
    return Digit(joint, prod(sizes[1:]), len(parts)), Axes(tuple(dims))


def coords_of(digits: Sequence[Digit], name: str) -> Numbers:
    """Return the coordinate of each element of a product of digits, row-major; NaN where there is none."""
    sizes = [digit.size for digit in digits]
    base = next((digit.base for digit in digits if digit.base is not None and name in digit.base.coords), None)
    if base is None:
        return np.full(prod(sizes), np.nan)
    return np.broadcast_to(base.coords[name][_positions(digits)[id(base)]], sizes).reshape(-1)


def _positions(digits: Sequence[Digit]) -> dict[int, NDArray[np.int64]]:
    """Return the position in each base, by its identity, of the elements of a product of digits; it can be broadcast."""
    found: dict[int, NDArray[np.int64]] = {}
    for number, (base, stride, size) in enumerate(digits):
        if base is not None:
            own = (np.arange(size) * stride).reshape([-1 if at == number else 1 for at in range(len(digits))])
            found[id(base)] = found[id(base)] + own if id(base) in found else own
    return found


def mixed(axes: Axes, others: Axes, reason: str, *, but: int | None = None) -> Axes:
    """Return the axes of a tensor that holds values of two others, each in a part of the dimension `but`."""
    for dim, (own, other) in enumerate(zip(axes.dims, others.dims, strict=True)):
        if dim != but and (_are_of_others(own, other) or disagree(own, other)):
            axes = place(axes, dim, unnamed(axes.shape[dim], reason))
    return axes


def _are_of_others(one: Dim, other: Dim) -> bool:
    return bool(names_of(one) and names_of(other) and names_of(one) != names_of(other))


def _is_whole(dim: Dim) -> bool:
    """Return True if a dimension is of bases alone, and all their digits are in it."""
    if any(digit.base is None and digit.size > 1 for digit in dim):
        return False
    bases = {id(digit.base): digit.base for digit in dim if digit.base is not None}
    return all(prod(digit.size for digit in dim if digit.base is base) == base.size for base in bases.values())


def disagree(one: Dim, other: Dim) -> bool:
    """Return True if two dimensions are of the same axis, but their positions lie far apart.

    They may differ a little, as those of two resolutions or of neighbours do: by a quarter of the axis on average, or by
    less than what is between two positions.
    """
    if one == other or names_of(one) != names_of(other) or not (_is_whole(one) and _is_whole(other)):
        return False
    for name in names_of(one) & {*SPACE}:
        first, second = coords_of(one, name), coords_of(other, name)
        known = np.isfinite(first) & np.isfinite(second)
        places, apart = np.unique(first[known]), np.abs(first - second)[known]
        if len(places) < 2 or apart.max() < np.diff(places).min() * 0.75:
            continue
        if apart.mean() > np.ptp(np.concatenate([places, second[known]])) / 4 + _CLOSE:
            return True
    return False


def frame_of(axes: Axes) -> float | None:
    """Return which frame of a clip a tensor is of; None if of several, or if it is not known."""
    times = [digit for dim in axes.dims for digit in dim if digit.base is not None and "T" in digit.base.coords]
    if not times:
        return axes.frame
    found = np.unique(coords_of(times, "T"))
    return float(found[0]) if len(found) == 1 and np.isfinite(found[0]) else None


def named(axes: Axes) -> int:
    """Return how many dimensions of some length have known axes."""
    return sum(any(digit.base is not None and digit.base.coords for digit in dim) for dim in axes.dims)


def kinds_of(dim: Dim) -> set[str]:
    """Return the kinds of axes in a dimension: `N`, `C`, or `P` of positions."""
    return {digit.base.kind for digit in dim if digit.base is not None and digit.size > 1} - {""}


def names_of(dim: Dim) -> frozenset[str]:
    """Return the names of the axes of a dimension; of channels only these."""
    names = {name for digit in dim if digit.base is not None and digit.size > 1 for name in digit.base.coords} - {"class"}
    return frozenset({"C"}) if "C" in names else frozenset(names)


def reason_of(dim: Dim) -> str:
    """Return why the positions of a dimension are unknown; empty if they are not, or there never were any."""
    return next((digit.base.reason for digit in dim if digit.base is not None and digit.base.reason), "")
