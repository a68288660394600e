"""How the axes of a tensor follow from those of an operator's operands. Of other operators nothing is assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fmapviz.observe.layouts.axes import (
    Axes,
    Base,
    Digit,
    axis,
    blended,
    concatenate,
    disagree,
    frame_of,
    mixed,
    named,
    names_of,
    parted,
    place,
    reason_of,
    regroup,
    resample,
    unnamed,
    whole,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.observe.layouts.axes import Dim


@dataclass(frozen=True, slots=True, eq=False)
class LayoutCall:
    """One call of an operator.

    Attributes:
        name: Of the operator.
        given: Its arguments by name, with the defaults.
        result: The tensor that it returned, or one of several.
        position: Of that tensor among those returned.
        axes: Returns the axes of a tensor; None if it does not depend on the picture.
        is_class: Whether a tensor that does not depend on the picture is a class token.
        picture: Number of images, height and width of the network's input.
    """

    name: str
    given: Mapping[str, Any]  # Any: numbers, tensors and lists of both
    result: Tensor
    position: int
    axes: Callable[[Tensor], Axes | None]
    is_class: Callable[[Tensor], bool]
    picture: tuple[int, int, int]

    @property
    def operand(self) -> Tensor:
        """The first argument."""
        first: Tensor = next(iter(self.given.values()))
        return first

    @property
    def own(self) -> Axes:
        """The axes of the first argument.

        Raises:
            UnknownError: It does not depend on the picture.
        """
        return self.of(self.operand)

    def of(self, tensor: Tensor) -> Axes:
        """Return the axes of a tensor that depends on the picture.

        Raises:
            UnknownError: It does not.
        """
        axes = self.axes(tensor)
        if axes is None:
            raise UnknownError
        return axes

    def dims(self, name: str) -> list[int]:
        """Return the dimensions of the operand that an argument names, all if it names none."""
        value, count = self.given.get(name), self.operand.ndim
        if value is None or value == []:
            return list(range(count))
        return [dim % max(count, 1) for dim in (value if isinstance(value, list | tuple) else [value])]


Rule = "Callable[[Call], Axes]"


class UnknownError(Exception):
    """The axes of a result are unknown."""


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:  # Any: as above
    """Yield the tensors among arguments and in their lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            for each in value:
                if isinstance(each, Tensor):
                    yield each


# --- operators that keep positions


def _same(call: LayoutCall) -> Axes:
    return call.own


def pointwise(call: LayoutCall) -> Axes:
    """Return the axes of a result each of whose elements is computed of one element of each operand."""
    shape = tuple(call.result.shape)
    found: list[Axes] = []
    for tensor in tensors_of(call.given.values()):
        axes = call.axes(tensor)
        if axes is not None:
            found.append(axes if tuple(tensor.shape) == shape else _expanded(axes, tuple(tensor.shape), shape))
    if not found:
        raise UnknownError
    main = max(found, key=named)
    others = [each for each in found if each is not main]
    if not others:
        return main
    dims = list(main.dims)
    for dim, length in enumerate(shape):
        options = [own for own in (main.dims[dim], *(each.dims[dim] for each in others)) if names_of(own)]
        if length == 1 or not options:
            continue
        if len({names_of(own) for own in options}) > 1 or any(disagree(options[0], own) for own in options[1:]):
            dims[dim] = unnamed(length, call.name)
        else:
            dims[dim] = options[0]
    pair = next((each.pair for each in found if each.pair), None)
    return main if pair is main.pair and tuple(dims) == main.dims else Axes(tuple(dims), pair)


def _expanded(axes: Axes, before: Sequence[int], after: Sequence[int]) -> Axes:
    """Return the axes after a broadcast."""
    more = len(after) - len(before)
    dims = [unnamed(length) for length in after[:more]]
    for own, old, new in zip(axes.dims, before, after[more:], strict=True):
        dims.append(own if old == new else unnamed(new))
    return Axes(tuple(dims), axes.pair)


def _expand(call: LayoutCall) -> Axes:
    return _expanded(call.own, tuple(call.operand.shape), tuple(call.result.shape))


def _layer_norm(call: LayoutCall) -> Axes:
    axes = call.own
    if len(call.given["normalized_shape"]) == 1 and not names_of(axes.dims[-1]) and not reason_of(axes.dims[-1]):
        return Axes((*axes.dims[:-1], whole(axis("C", call.operand.shape[-1]))), axes.pair)
    return axes


def _norm_of_channels(call: LayoutCall) -> Axes:
    return _anchored(call, call.own) if call.operand.ndim == 4 else call.own


# --- operators that move positions


def _view(call: LayoutCall) -> Axes:
    return regroup(call.own, tuple(call.result.shape))


def _restride(call: LayoutCall) -> Axes:
    if call.operand.numel() != call.result.numel() or not call.result.is_contiguous():
        raise UnknownError
    return regroup(call.own, tuple(call.result.shape))


def _permute(call: LayoutCall) -> Axes:
    axes = call.own
    return Axes(tuple(axes.dims[dim] for dim in call.dims("dims")), axes.pair)


def _transpose(call: LayoutCall) -> Axes:
    axes, count = call.own, max(call.operand.ndim, 1)
    dims = list(axes.dims)
    if count > 1:
        first, second = call.given.get("dim0", 0) % count, call.given.get("dim1", -1) % count
        dims[first], dims[second] = dims[second], dims[first]
    return Axes(tuple(dims), axes.pair)


def _squeeze(call: LayoutCall) -> Axes:
    gone = {dim for dim in call.dims("dim") if call.operand.shape[dim] == 1}
    axes = call.own
    return Axes(tuple(own for dim, own in enumerate(axes.dims) if dim not in gone), axes.pair)


def _unsqueeze(call: LayoutCall) -> Axes:
    axes, new = call.own, call.given["dim"] % call.result.ndim
    return Axes((*axes.dims[:new], unnamed(1), *axes.dims[new:]), axes.pair)


def _repeat(call: LayoutCall) -> Axes:
    axes, shape = call.own, tuple(call.result.shape)
    more = len(shape) - len(axes.dims)
    dims: list[Dim] = [unnamed(length) for length in shape[:more]]
    for own, old, new in zip(axes.dims, call.operand.shape, shape[more:], strict=True):
        dims.append(own if old == new else unnamed(new) if old == 1 else (Digit(None, 1, new // old), *own))
    return Axes(tuple(dims))


def _slice(call: LayoutCall) -> Axes:
    dim = call.dims("dim")[0]
    length = call.operand.shape[dim]
    taken = np.arange(length)[slice(call.given["start"], call.given["end"], call.given["step"])]
    return call.own if len(taken) == length else resample(call.own, dim, taken)


def _split(call: LayoutCall) -> Axes:
    dim, sizes = call.dims("dim")[0], call.given.get("split_sizes", call.given.get("split_size"))
    start = sum(sizes[: call.position]) if isinstance(sizes, list | tuple) else (sizes or 0) * call.position
    return resample(call.own, dim, start + np.arange(call.result.shape[dim]))


def _chunk(call: LayoutCall) -> Axes:
    dim = call.dims("dim")[0]
    size = -(-call.operand.shape[dim] // call.given["chunks"])
    return resample(call.own, dim, size * call.position + np.arange(call.result.shape[dim]))


def _select(call: LayoutCall) -> Axes:
    (dim,) = call.dims("dim")
    index = call.given.get("index", call.position) % call.operand.shape[dim]
    taken = resample(call.own, dim, np.array([index]))
    return replace(without(taken, dim), frame=frame_of(taken))


def _roll(call: LayoutCall) -> Axes:
    if not call.given["dims"]:
        raise UnknownError
    axes = call.own
    for dim, shift in zip(call.dims("dims"), call.given["shifts"], strict=True):
        length = call.operand.shape[dim]
        axes = resample(axes, dim, (np.arange(length) - shift) % length)
    return axes


def _flip(call: LayoutCall) -> Axes:
    axes = call.own
    for dim in call.dims("dims"):
        axes = resample(axes, dim, np.arange(call.operand.shape[dim])[::-1])
    return axes


def _rotate(call: LayoutCall) -> Axes:
    axes, (first, second), quarters = call.own, call.dims("dims"), call.given["k"] % 4
    for dim in {1: (second,), 2: (first, second), 3: (first,)}.get(quarters, ()):
        axes = resample(axes, dim, np.arange(call.operand.shape[dim])[::-1])
    dims = list(axes.dims)
    if quarters % 2:
        dims[first], dims[second] = dims[second], dims[first]
    return Axes(tuple(dims), axes.pair)


def _concatenate(call: LayoutCall) -> Axes:
    tensors = [each for each in call.given["tensors"] if each.ndim == call.result.ndim]
    dim = call.given["dim"] % call.result.ndim
    parts = [(call.axes(each), each.shape[dim]) for each in tensors]
    if not any(axes for axes, _ in parts):
        raise UnknownError
    if (axes := parts[0][0]) and all(digit.base is not None and digit.base.kind == "N" for digit in axes.dims[dim]):
        found = parted([each for each, _ in parts])
        if found:
            return Axes((*found[1].dims[:dim], (found[0], *found[1].dims[dim]), *found[1].dims[dim + 1 :]))
    marks = [axes is None and call.is_class(each) for (axes, _), each in zip(parts, tensors, strict=True)]
    return concatenate(parts, dim, marks)


def _stack(call: LayoutCall) -> Axes:
    new = call.given["dim"] % call.result.ndim
    found = [axes for each in call.given["tensors"] if (axes := call.axes(each))]
    if not found:
        raise UnknownError
    if parts := parted(list(map(call.axes, call.given["tensors"]))):
        return Axes((*parts[1].dims[:new], (parts[0],), *parts[1].dims[new:]))
    main, times = max(found, key=named), [frame for each in found if (frame := frame_of(each)) is not None]
    if len(times) == call.result.shape[new] == len(set(times)):
        return Axes((*main.dims[:new], whole(Base(len(times), {"T": np.array(times)})), *main.dims[new:]))
    for each in found:
        main = mixed(main, each, call.name)
    return Axes((*main.dims[:new], unnamed(call.result.shape[new]), *main.dims[new:]))


def _pad(call: LayoutCall) -> Axes:
    amounts = call.given["pad"] if "pad" in call.given else call.given["padding"]
    axes, last = call.own, call.operand.ndim - 1
    for number, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if before or after:
            length = call.operand.shape[last - number]
            axes = resample(axes, last - number, np.arange(-before, length + after), padded=True)
    return axes


def _copy(call: LayoutCall) -> Axes:
    source = call.given["src"]
    axes = call.axes(source)
    if axes is None:  # it had axes before
        return call.own
    return _expanded(axes, tuple(source.shape), tuple(call.result.shape))


def _unfold(call: LayoutCall) -> Axes:
    given = call.given
    dim, size, step = given["dimension"] % call.operand.ndim, given["size"], given["step"]
    windows = call.result.shape[dim]
    axes = resample(call.own, dim, (np.arange(windows)[:, None] * step + np.arange(size)).reshape(-1))
    shape = list(axes.shape)
    shape[dim : dim + 1] = [windows, size]
    cut = regroup(axes, shape).dims
    return Axes((*cut[: dim + 1], *cut[dim + 2 :], cut[dim + 1]))


def _columns(call: LayoutCall) -> Axes:
    """Return the axes of `F.unfold`: each patch of the picture is a vector."""
    given, axes, shape = call.given, call.own, [*call.operand.shape[:2]]
    for number, dim in enumerate((2, 3)):
        kernel, stride = given["kernel_size"][number], given["stride"][number]
        padding, dilation = given["padding"][number], given["dilation"][number]
        count = (call.operand.shape[dim] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        places = np.arange(count)[:, None] * stride - padding + dilation * np.arange(kernel)
        axes = resample(axes, dim, places.reshape(-1))
        shape += [count, kernel]
    images, channels, rows, inner_rows, columns, inner_columns = regroup(axes, shape).dims
    return Axes((images, (*channels, *inner_rows, *inner_columns), (*rows, *columns)))


def _folded(call: LayoutCall) -> Axes:
    axes = call.own
    channels = whole(axis("C", call.result.shape[1]))
    return _anchored(call, Axes((axes.dims[0], channels, *map(unnamed, call.result.shape[2:]))))


# --- operators that choose


def _constant(call: LayoutCall, index: Tensor) -> NDArray[np.int64]:
    """Return the values of an index that does not depend on the picture.

    Raises:
        UnknownError: It does, or is on the meta device.
    """
    if call.axes(index) is not None or index.is_meta:
        raise UnknownError
    return index.detach().cpu().numpy().astype(np.int64)


def _chosen(call: LayoutCall, axes: Axes, dim: int, length: int) -> Axes:
    return place(axes, dim, unnamed(length, call.name))


def _index_select(call: LayoutCall) -> Axes:
    dim, index = call.dims("dim")[0], call.given["index"]
    try:
        return resample(call.own, dim, _constant(call, index).reshape(-1))
    except UnknownError:
        return _chosen(call, call.own, dim, call.result.shape[dim])


def _gather(call: LayoutCall) -> Axes:
    dim, index, axes = call.dims("dim")[0], call.given["index"], call.own
    for other, length in enumerate(call.result.shape):
        if other != dim and length != call.operand.shape[other]:
            axes = resample(axes, other, np.arange(length))
    try:
        rows = np.moveaxis(_constant(call, index), dim, -1).reshape(-1, index.shape[dim])
    except UnknownError:
        rows = np.empty((0, 0), np.int64)
    if not len(rows) or (rows != rows[0]).any():
        return _chosen(call, axes, dim, call.result.shape[dim])
    return resample(axes, dim, rows[0])


def _index(call: LayoutCall) -> Axes:
    indices, axes = call.given["indices"], call.own
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    dim, index = used[0]
    rest = [own for number, own in enumerate(axes.dims) if number >= len(indices) or indices[number] is None]
    new = call.result.ndim - len(rest)
    if len(used) > 1:
        is_last = [number for number, _ in used] != list(range(dim, dim + len(used)))
        begin = 0 if is_last else dim
        chosen = [unnamed(length, call.name) for length in call.result.shape[begin : begin + new]]
        return Axes((*rest[:begin], *chosen, *rest[begin:]))
    try:
        numbers = _constant(call, index.nonzero()[:, 0] if index.dtype in {torch.bool, torch.uint8} else index)
    except (UnknownError, RuntimeError, NotImplementedError):
        axes = place(axes, dim, unnamed(1))
        chosen = [unnamed(length, call.name) for length in call.result.shape[dim : dim + new]]
        return Axes((*axes.dims[:dim], *chosen, *axes.dims[dim + 1 :]))
    length = call.operand.shape[dim]
    axes = resample(axes, dim, np.where(numbers < 0, numbers + length, numbers).reshape(-1))
    return regroup(axes, tuple(call.result.shape)) if numbers.ndim != 1 else axes


def _embedding(call: LayoutCall) -> Axes:
    axes = call.of(call.given["indices"])
    return Axes((*axes.dims, whole(axis("C", call.result.shape[-1]))))


def _sorted(call: LayoutCall) -> Axes:
    dim = call.dims("dim")[0] if call.operand.ndim else 0
    return _chosen(call, call.own, dim, call.result.shape[dim])


def _scatter(call: LayoutCall) -> Axes:
    """Return the axes of what something was written into: where it was written is known only of a constant index."""
    source = next(
        (call.given[name] for name in ("src", "value", "source") if isinstance(call.given.get(name), Tensor)), None
    )
    dim, index = call.dims("dim")[0], call.axes(call.given["index"])
    if source is None and call.axes(call.operand) is None and index is not None:  # one_hot: each index is a class
        return place(index, dim, whole(axis("C", call.result.shape[dim])))
    axes = call.axes(call.operand) or (call.axes(source) if source is not None else None)
    if axes is None or len(axes.dims) != call.result.ndim:
        raise UnknownError
    if index is None and call.axes(call.operand) is not None:
        return axes
    return _chosen(call, axes, dim, call.result.shape[dim])


# --- operators that unite positions or channels


def _reduce(call: LayoutCall) -> Axes:
    axes, dims = call.own, call.dims("dim")
    kept = bool(call.given.get("keepdim"))
    for dim in sorted(dims, reverse=True):
        axes = without(axes, dim, kept=kept)
    return axes


def _along(call: LayoutCall) -> Axes:
    return call.own


def _halved(call: LayoutCall) -> Axes:
    dim = call.dims("dim")[0]
    return resample(call.own, dim, np.arange(call.result.shape[dim]))


def features(call: LayoutCall, axes: Axes, dim: int, length: int) -> Axes:
    """Return the axes of a result whose dimension has numbers that were computed of all those of an operand's."""
    own, reason = axes.dims[dim], reason_of(axes.dims[dim])
    names = names_of(own)
    if not names and any(digit.base and digit.base.begun and "T" in digit.base.coords for digit in own):
        names = frozenset("T")  # of a single one
    if names == {"T"}:  # what seemed to be frames are channels, and the other way round
        axes = Axes(tuple(_as_time(each) if number != dim else each for number, each in enumerate(axes.dims)), axes.pair)
    if reason or (names and "C" not in names and names != {"T"}):
        return place(axes, dim, unnamed(length, reason or call.name))
    alone = tuple(digit for digit in own if digit.size == 1 and digit.base is not None and digit.base.kind == "N")
    return place(axes, dim, (*(alone if len(own) > 1 else ()), *whole(axis("C", length))))


def _as_time(dim: Dim) -> Dim:
    """Rename the channels of the input, which has time in their place, as `(N, T, C, H, W)` has."""
    return tuple(
        digit._replace(base=Base(digit.base.size, {"T": digit.base.coords["C"]}))
        if digit.base is not None and digit.base.begun and digit.base.kind == "C"
        else digit
        for digit in dim
    )


def _linear(call: LayoutCall) -> Axes:
    return features(call, call.own, call.operand.ndim - 1, call.result.shape[-1])


def _product(call: LayoutCall) -> Axes:
    *_, left, right = tensors_of(call.given.values())
    first, second = call.axes(left), call.axes(right)
    last = call.result.ndim - 1
    if first is not None and second is not None:
        return _multiplied(first, second)
    if first is not None:
        return features(call, first, last, call.result.shape[last])
    if second is None:
        return pointwise(call)  # of a bias that depends on the picture
    if last == 1:
        return features(call, second, 0, call.result.shape[0])
    # Learnt queries look at positions: more samples of one weight are multiplied by `mm`.
    queries = Axes(tuple(map(unnamed, left.shape)))
    rows = place(second, last - 1, unnamed(call.result.shape[last - 1]))
    return Axes(rows.dims, (queries, _swapped(second)) if "C" not in names_of(second.dims[-1]) else None)


def _swapped(axes: Axes) -> Axes:
    return Axes((*axes.dims[:-2], axes.dims[-1], axes.dims[-2]))


def _multiplied(first: Axes, second: Axes) -> Axes:
    """Return the axes of a product: the rows of the first, the columns of the second."""
    last = len(first.dims) - 1
    rows = without(first, last).dims
    columns = without(second, last - 1).dims[-1]
    here, there = names_of(rows[-1]), names_of(columns)
    of_channels = "C" in there
    batch = [_of_both(*pair) if of_channels else pair[0] for pair in zip(rows[:-1], second.dims[:-2], strict=True)]
    if second.pair and "C" in here and not of_channels:  # values times transposed weights: the positions are the second's
        batch = [_of_both(other, own) for own, other in zip(rows[:-1], second.dims[:-2], strict=True)]
    if first.pair or second.pair or not there or (of_channels and "C" not in here):
        return Axes((*batch, rows[-1], columns))
    if not of_channels:  # of queries with positions
        columns = unnamed(Axes((columns,)).shape[0])
    return Axes((*batch, rows[-1], columns), (first, _swapped(second)))


def _of_both(first: Dim, second: Dim) -> Dim:
    """Return a dimension with the positions of the first, and the channels of the second."""
    if [digit.size for digit in first] != [digit.size for digit in second]:
        return first
    return tuple(
        other if other.base is not None and other.base.kind == "C" else own for own, other in zip(first, second, strict=True)
    )


def _attention(call: LayoutCall) -> Axes:
    if call.position:
        raise UnknownError
    query, value = call.axes(call.given["query"]), call.axes(call.given["value"])
    if query is None and value is None:
        raise UnknownError
    if query is None or value is None:
        found = query or value
        assert found
        dims = list(found.dims)
        if query is None:
            dims[-2] = unnamed(call.result.shape[-2])
        return Axes(tuple(dims))
    batch = [_of_both(*pair) for pair in zip(query.dims[:-2], value.dims[:-2], strict=True)]
    return Axes((*batch, query.dims[-2], value.dims[-1]))


# --- operators that look at neighbours


def _convolution(call: LayoutCall) -> Axes:
    given, kernel = call.given, call.given["weight"].shape[2:]
    axes = features(call, call.own, 1, call.result.shape[1])
    stride, padding, dilation = (_each(given[name], len(kernel)) for name in ("stride", "padding", "dilation"))
    for number, size in enumerate(kernel):
        dim, middle = 2 + number, dilation[number] * (size - 1) / 2
        before, after = call.operand.shape[dim], call.result.shape[dim]
        if given.get("transposed"):  # which mkldnn_convolution has not
            places = (np.arange(after) + padding[number] - middle) / stride[number]
        else:
            places = np.arange(after) * stride[number] - padding[number] + middle
        axes = _moved(axes, dim, places, before, blends=size > 1)
    return _anchored(call, axes)


def _moved(axes: Axes, dim: int, places: NDArray[np.float64], before: int, *, blends: bool = True) -> Axes:
    """Return the axes of a result whose positions lie at places of an operand, and may each be computed of several."""
    axes = blended(axes, dim) if blends else axes
    if len(places) == before and (places == np.arange(before)).all():
        return axes
    return resample(axes, dim, places)


def _pool(call: LayoutCall, *, count: int) -> Axes:
    given, axes = call.given, call.own
    kernel = _each(given["kernel_size"], count)
    stride = _each(given["stride"] or kernel, count)
    padding, dilation = _each(given["padding"], count), _each(given.get("dilation", 1), count)
    first = call.operand.ndim - count
    for number in range(count):
        middle = dilation[number] * (kernel[number] - 1) / 2 - padding[number]
        places = np.arange(call.result.shape[first + number], dtype=np.float64) * stride[number] + middle
        axes = _moved(axes, first + number, places, call.operand.shape[first + number])
    return axes if count != 2 or call.operand.ndim != 4 else _anchored(call, axes)


def _resized(call: LayoutCall, *, count: int) -> Axes:
    """Return the axes after adaptive pooling or interpolation: every position covers an equal part."""
    axes, first = call.own, call.operand.ndim - count
    for dim in range(first, call.operand.ndim):
        before, after = call.operand.shape[dim], call.result.shape[dim]
        axes = _moved(axes, dim, (np.arange(after) + 0.5) * before / max(after, 1) - 0.5, before)
    return axes if count != 2 or call.operand.ndim != 4 else _anchored(call, axes)


def _shuffled_pixels(call: LayoutCall) -> Axes:
    axes = features(call, call.own, call.operand.ndim - 3, call.result.shape[-3])
    for dim in (call.operand.ndim - 2, call.operand.ndim - 1):
        before, after = call.operand.shape[dim], call.result.shape[dim]
        axes = _moved(axes, dim, (np.arange(after) + 0.5) * before / after - 0.5, before)
    return axes


def _anchored(call: LayoutCall, axes: Axes) -> Axes:
    """Name those axes of a 2-D operator's result that nothing is known of: it works on `(N, C, H, W)`."""
    if call.result.ndim != 4:
        return axes
    images, *picture = call.picture
    present = {name for own in axes.dims for name in names_of(own)}
    dims = list(axes.dims)
    lengths = tuple(call.result.shape)
    for dim, name in enumerate("NCHW"):
        length = lengths[dim]
        if names_of(dims[dim]) or reason_of(dims[dim]) or name in present:
            continue
        if name == "N" and length == images:
            dims[dim] = whole(axis("N", length))
        elif name == "C":
            dims[dim] = whole(axis("C", length))
        elif name in "HW" and length > 1:
            step = picture[dim - 2] / length
            dims[dim] = whole(replace(axis(name, length, start=step / 2 - 0.5, step=step), spread=True))
    return Axes(tuple(dims), axes.pair)


def _each(value: Any, count: int) -> list[int]:  # Any: a number or a list of them
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values


_SAME = (
    "clone detach alias lift_fresh _to_copy to contiguous _softmax _log_softmax _safe_softmax cumsum cumprod "
    "native_group_norm native_dropout quantize_per_tensor quantize_per_channel dequantize int_repr channel_shuffle "
    "native_channel_shuffle _conj view_as native_instance_norm tril triu renorm logcumsumexp"
)
_REDUCTIONS = (
    "mean sum amax amin max min prod var std var_mean std_mean argmax argmin logsumexp any all linalg_vector_norm norm "
    "nansum median"
)
_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm "
    "_batch_norm_no_update _batch_norm_with_update"
)
_ATTENTIONS = (
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_attention_math_for_mps _scaled_dot_product_fused_attention_overrideable"
)

RULES: dict[str, Callable[[LayoutCall], Axes]] = {
    **dict.fromkeys(_SAME.split(), _same),
    **dict.fromkeys(_REDUCTIONS.split(), _reduce),
    **dict.fromkeys(_BATCH_NORMS.split(), _norm_of_channels),
    **dict.fromkeys(_ATTENTIONS.split(), _attention),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy"), _view),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"), _scatter),
    **dict.fromkeys(("topk", "sort", "argsort"), _sorted),
    "linear": _linear,
    "native_layer_norm": _layer_norm,
    "as_strided": _restride,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "repeat": _repeat,
    "slice": _slice,
    "chunk": _chunk,
    "select": _select,
    "unbind": _select,
    "roll": _roll,
    "flip": _flip,
    "rot90": _rotate,
    "cat": _concatenate,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "copy": _copy,
    "unfold": _unfold,
    "im2col": _columns,
    "col2im": _folded,
    "index_select": _index_select,
    "gather": _gather,
    "index": _index,
    "embedding": _embedding,
    "glu": _halved,
    "pixel_shuffle": _shuffled_pixels,
    "pixel_unshuffle": _shuffled_pixels,
    "upsample_linear1d": partial(_resized, count=1),
    "upsample_bilinear2d": partial(_resized, count=2),
    "_upsample_bilinear2d_aa": partial(_resized, count=2),
    "upsample_trilinear3d": partial(_resized, count=3),
    "upsample_bicubic2d": partial(_resized, count=2),
    "_upsample_bicubic2d_aa": partial(_resized, count=2),
}
# Those whose rules read values too: of an index, or of a class token.
BY_VALUE = {"index", "index_select", "gather", "cat"}

for _count in (1, 2, 3):
    RULES |= {
        f"avg_pool{_count}d": partial(_pool, count=_count),
        f"max_pool{_count}d": partial(_pool, count=_count),
        f"max_pool{_count}d_with_indices": partial(_pool, count=_count),
        f"adaptive_avg_pool{_count}d": partial(_resized, count=_count),
        f"_adaptive_avg_pool{_count}d": partial(_resized, count=_count),
        f"adaptive_max_pool{_count}d": partial(_resized, count=_count),
        f"upsample_nearest{_count}d": partial(_resized, count=_count),
        f"_upsample_nearest_exact{_count}d": partial(_resized, count=_count),
        f"reflection_pad{_count}d": _pad,
        f"replication_pad{_count}d": _pad,
    }
