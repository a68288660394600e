"""Derive the axes of an operator's result from those of its operands. Results of other operators are unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

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
    finest,
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
from fmapviz.observe.operators.call import Call, broadcast, pointwise, tensors_of
from fmapviz.observe.operators.indices import means
from fmapviz.observe.operators.table import rule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fmapviz.observe.layouts.axes import Dim
    from fmapviz.observe.operators.call import Operand, Operator, Place, Rule


@dataclass(frozen=True, slots=True, eq=False)
class LayoutCall(Call):
    """One call of an operator.

    Attributes:
        name: Of the operator.
        axes: Returns the axes of a tensor; None if it does not depend on the picture.
        is_class: Returns True if a tensor that does not depend on the picture is a class token.
        picture: Number of images, height and width of the network's input.
    """

    name: str = ""
    axes: Callable[[Tensor], Axes | None] = lambda _: None
    is_class: Callable[[Tensor], bool] = lambda _: False
    picture: tuple[int, int, int] = (1, 1, 1)

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


class UnknownError(Exception):
    """The axes of a result are unknown."""


# --- operators with a rule in `fmapviz.observe.operators`


def follow(call: LayoutCall, rule: Rule) -> Axes:
    """Return the axes of a result from the places of the operands' dimensions."""
    operands = rule(call)
    if rule is pointwise:
        return _united(call, operands)
    axes, name = call.of(operands[0].tensor), call.name
    if "conv" in name or "pixel_" in name:
        channels = 1 if "conv" in name else call.operand.ndim - 3
        axes = features(call, axes, channels, call.result.shape[channels])
    axes = _placed(axes, operands[0], call.result)
    is_2d = ("2d" in name and "pad" not in name) or "conv" in name or "batch_norm" in name
    return _anchored(call, axes) if is_2d else axes


def _placed(axes: Axes, operand: Operand, result: Tensor) -> Axes:
    """Return the axes of a result whose dimensions are those of an operand, in other places.

    Raises:
        UnknownError: Several of its dimensions are mixed.
    """
    more, places = result.ndim - operand.tensor.ndim, dict(enumerate(operand.places))
    moved = {dim: to for dim, to in places.items() if to is not None}
    if sum(to.mixed for to in moved.values()) > 1:
        raise UnknownError
    for dim, to in moved.items():
        if to.index is not None:
            axes = _resampled(axes, dim, to)
    frame = frame_of(axes) if any(to.dim is None for to in moved.values()) else None
    for dim, to in moved.items():
        if to.united or (to.dim is None and to.index is not None):
            axes = without(axes, dim, kept=True)
    dims, lengths = list(map(unnamed, result.shape)), axes.shape
    for dim in places:
        new = moved[dim].dim if dim in moved else dim + more
        # Statistics, which a normalization returns too, have fewer dimensions.
        if new is not None and new < result.ndim and lengths[dim] == result.shape[new]:
            dims[new] = axes.dims[dim]
    return axes if tuple(dims) == axes.dims else Axes(tuple(dims), axes.pair, frame)


def _resampled(axes: Axes, dim: int, to: Place) -> Axes:
    """Return axes with other positions along a dimension, each of which may be computed from several."""
    assert to.index is not None
    at, before = means(to.index) if to.at is None else to.at, axes.shape[dim]
    if len(np.unique(at)) < len(at):  # bins of adaptive pooling to more positions than there are
        at = (np.arange(len(at)) + 0.5) * before / len(at) - 0.5
    blends = to.index.shape[1] > 1 or (to.at is not None and not to.padded)
    axes = blended(axes, dim) if blends else axes
    if np.array_equal(at, np.arange(before)):
        return axes
    return resample(axes, dim, at, padded=to.padded)


def _united(call: LayoutCall, operands: Sequence[Operand]) -> Axes:
    """Return the axes of a result each of whose elements is computed from one element of each operand."""
    pairs = [(axes, each) for each in operands if (axes := call.axes(each.tensor))]
    if not pairs:
        raise UnknownError
    shape = tuple(call.result.shape)
    found = [axes if tuple(each.tensor.shape) == shape else _placed(axes, each, call.result) for axes, each in pairs]
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
            dims[dim] = finest(options)[0]
    pair = next((each.pair for each in found if each.pair), None)
    return main if pair is main.pair and tuple(dims) == main.dims else Axes(tuple(dims), pair)


# --- operators that keep positions


def _same(call: LayoutCall) -> Axes:
    return call.own


def _layer_norm(call: LayoutCall) -> Axes:
    axes = call.own
    if len(call.given["normalized_shape"]) == 1 and not names_of(axes.dims[-1]) and not reason_of(axes.dims[-1]):
        return Axes((*axes.dims[:-1], whole(axis("C", call.operand.shape[-1]))), axes.pair)
    return axes


# --- operators that move positions


def _view(call: LayoutCall) -> Axes:
    return regroup(call.own, tuple(call.result.shape))


def _restride(call: LayoutCall) -> Axes:
    if call.operand.numel() != call.result.numel() or not call.result.is_contiguous():
        raise UnknownError
    return regroup(call.own, tuple(call.result.shape))


def _repeat(call: LayoutCall) -> Axes:
    axes, shape = call.own, tuple(call.result.shape)
    more = len(shape) - len(axes.dims)
    dims: list[Dim] = [unnamed(length) for length in shape[:more]]
    for own, old, new in zip(axes.dims, call.operand.shape, shape[more:], strict=True):
        dims.append(own if old == new else unnamed(new) if old == 1 else (Digit(None, 1, new // old), *own))
    return Axes(tuple(dims))


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


def _copy(call: LayoutCall) -> Axes:
    source = call.given["src"]
    axes = call.axes(source)
    if axes is None:  # it had axes before
        return call.own
    return _placed(axes, broadcast(source, call.result), call.result)


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
    """Return the axes of a tensor after a write, whose positions are known only for a constant index."""
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
        return _united(call, pointwise(call))  # of a bias that depends on the picture
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


def _anchored(call: LayoutCall, axes: Axes) -> Axes:
    """Name the unknown axes of a 2-D operator's result: it works on `(N, C, H, W)`."""
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


RULES: dict[str, Callable[[LayoutCall], Axes]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy"), _view),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"), _scatter),
    **dict.fromkeys(("topk", "sort", "argsort"), _sorted),
    "linear": _linear,
    "native_layer_norm": _layer_norm,
    "renorm": _same,
    "as_strided": _restride,
    "repeat": _repeat,
    "cat": _concatenate,
    "stack": _stack,
    "copy": _copy,
    "unfold": _unfold,
    "im2col": _columns,
    "col2im": _folded,
    "index_select": _index_select,
    "gather": _gather,
    "index": _index,
    "embedding": _embedding,
    "glu": _halved,
}


def layout_rule(operator: Operator) -> Callable[[LayoutCall], Axes] | None:
    """Return the rule of an operator, None if there is none."""
    namespace, name = operator.label.split(".", 1)[0], operator.name
    if namespace not in {"aten", "prims", "quantized", "mkldnn"}:
        return None
    if name.startswith("_scaled_dot_product"):
        return _attention
    shared = rule_of(operator)
    return RULES.get(name) or (partial(follow, rule=shared) if shared else None)
