"""Follow the axes of every tensor through a forward pass, operator by operator."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from fmapviz.observe.layouts.axes import Axes, axis, frame_of, mixed, unnamed, whole
from fmapviz.observe.layouts.rules import BY_VALUE, LayoutCall, layout_rule
from fmapviz.observe.memory_table import MemoryTable
from fmapviz.observe.operators.call import operator_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn

# Names of parameters that are a class token: `cls_token` (timm), `class_token` (torchvision), `class_embedding` (CLIP).
CLASS_TOKEN = re.compile(r"cls(_tokens?|_pos)?|class_(tokens?|embedding|embed|emb)")


class AxisTracking(TorchDispatchMode):
    """Follow the axes of every tensor that depends on a picture, within a `with` block.

    What the network computes is not changed. It can run on any device, also on the meta device.

    Args:
        pixels: The network's input, `(N, C, H, W)`, or `(N, C, T, H, W)` or `(N, T, C, H, W)` of clips.
        network: Its parameters may be class tokens.

    Attributes:
        paused: Ignore everything while this is true.

    Example:
        >>> pixels = torch.zeros(2, 3, 8, 12)
        >>> with AxisTracking(pixels) as tracking:
        ...     tokens = torch.nn.functional.conv2d(pixels, torch.zeros(5, 3, 4, 4), stride=4).flatten(2).mT
        >>> tracking.axes(tokens).shape
        (2, 6, 5)
    """

    supports_higher_order_operators = True

    def __init__(self, pixels: Tensor, network: nn.Module | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's
        self.paused = False
        self.images = len(pixels)
        self._picture = (self.images, *pixels.shape[-2:]) if pixels.ndim > 2 else (self.images, 1, 1)
        # By geometry. A view of a tensor may be another Python object each time that it is asked for.
        self._known = MemoryTable[dict[object, Axes]]()
        self._calls: defaultdict[object, _Calls] = defaultdict(_Calls)
        self._classes: set[int] | None = None
        self._network = network
        self._is_clip = pixels.ndim == 5 and pixels.shape[1] != pixels.shape[2]  # else frames may be channels
        self._set(pixels, axes_of_input(pixels, network))

    def axes(self, tensor: Tensor) -> Axes | None:
        """Return the axes of a tensor, None if it does not depend on the picture."""
        with suppress(RuntimeError, NotImplementedError):  # it has no memory of its own
            own = self._known.get(tensor)
            return own.get(_geometry(tensor)) if own else None
        return None

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Ignore everything within the block."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def _set(self, tensor: Tensor, axes: Axes) -> None:
        with suppress(RuntimeError, NotImplementedError):
            self._known.setdefault(tensor, dict)[_geometry(tensor)] = axes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would otherwise import its compiler, for some seconds, to keep this out of compiled code."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # torch._ops.OpOverload has no public name
        _types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: an operator takes and returns anything
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and record the axes of what it returns."""
        kwargs = kwargs or {}
        if self.paused or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        known: list[tuple[Tensor, Axes]] = []
        read = self._read(args, known)  # before it runs: it may change the geometry of its operand
        result = func(*args, **kwargs)
        operator = operator_of(func)
        if not known or operator.is_factory:
            return result
        outputs = [each for each in tensors_of([result]) if not each.is_nested]  # a nested tensor has no shape
        rule = layout_rule(operator)
        # Otherwise axes and shapes of its operands decide those of its result.
        differs = rule is None or operator.name in BY_VALUE
        calls = _Calls() if differs else self._calls[func, read, self._read(kwargs.items(), [])]
        number = calls.count(known[0][0])
        if number == len(calls.results):
            given, by_id = operator.bind(args, kwargs), {id(tensor): axes for tensor, axes in known}
            calls.results.append(self._follow(rule, f"aten.{operator.name}", given, outputs, known=by_id))
        for tensor, axes in zip(outputs, calls.results[number], strict=True):
            self._set(tensor, axes)
            if operator.name == "copy" and tensor._base is not None:
                written, before = _axes_of_base(tensor, axes), self.axes(tensor._base)
                self._set(tensor._base, written if before is None else mixed(before, written, "aten.copy"))
        return result

    def _read(self, values: Iterable[Any], known: list[tuple[Tensor, Axes]]) -> tuple[object, ...]:
        """Return what rules read of arguments, of tensors the axes or else the shape, and note those that have axes."""
        read: list[object] = []
        for each in values:
            if isinstance(each, Tensor):
                axes = self.axes(each)
                if axes is not None:
                    known.append((each, axes))
                read.append(axes or (None if each.is_nested else each.shape))
            else:
                read.append(self._read(each, known) if isinstance(each, list | tuple) else each)
        return tuple(read)

    def _follow(
        self,
        rule: Callable[[LayoutCall], Axes] | None,
        name: str,
        given: Mapping[str, Any],
        outputs: Sequence[Tensor],
        *,
        known: Mapping[int, Axes],
    ) -> list[Axes]:
        """Return the axes of what an operator returned."""
        found = []
        for position, tensor in enumerate(outputs):
            axes = None
            call = LayoutCall(given, tensor, position, name, lambda each: known.get(id(each)), self._is_class, self._picture)
            with suppress(Exception):  # of arguments that a rule does not know; the model's own pass goes on
                axes = rule(call) if rule else None
            shape = tuple(tensor.shape)
            axes = axes if axes is not None and axes.shape == shape else Axes(tuple(map(unnamed, shape)))
            if self._is_clip and axes.frame is None:
                frames = {frame_of(each) for each in known.values()}
                axes = replace(axes, frame=frames.pop() if len(frames) == 1 else None)
            elif not self._is_clip and axes.frame is not None:
                axes = replace(axes, frame=None)
            found.append(axes)
        return found

    def _is_class(self, tensor: Tensor) -> bool:
        """Return True if a tensor shares its memory with a parameter that is a class token."""
        if self._classes is None:
            named = self._network.named_parameters() if self._network else ()
            tokens = (values for name, values in named if CLASS_TOKEN.fullmatch(name.rpartition(".")[2]))
            self._classes = {values.untyped_storage()._cdata for values in tokens}
        return tensor.untyped_storage()._cdata in self._classes


@dataclass(slots=True, eq=False)
class _Calls:
    """Calls of an operator with operands of the same axes and shapes, as the blocks of a network repeat them.

    Attributes:
        results: What the first, second, ... call with one operand returned. They are apart: queries and keys have channels
            of their own, and those of the next block are like those of this one.
        counts: How many calls there were, by the operand's memory.
    """

    results: list[list[Axes]] = field(default_factory=list)
    counts: MemoryTable[Iterator[int]] = field(default_factory=MemoryTable)

    def count(self, operand: Tensor) -> int:
        """Return how many calls with an operand were before this one."""
        return next(self.counts.setdefault(operand, count))


def axes_of_input(pixels: Tensor, network: nn.Module | None = None) -> Axes:
    """Return the axes of a network's input; of a clip the first convolution tells which one is time, if it can."""
    middle = {3: "C", 4: "C", 5: "CT"}.get(pixels.ndim, "")
    first = next((each for each in network.modules() if isinstance(each, _ConvNd)), None) if network else None
    if len(middle) > 1 and first and pixels.shape[1] != first.in_channels == pixels.shape[2]:
        middle = "TC"
    names = ["N", *middle, *("HW" if pixels.ndim > 3 else "W" if pixels.ndim == 3 else "")]
    if len(names) != pixels.ndim:
        return Axes((whole(axis("N", len(pixels))), *map(unnamed, pixels.shape[1:])))
    return Axes(tuple(whole(axis(name, size, begun=True)) for name, size in zip(names, pixels.shape, strict=True)))


def _axes_of_base(view: Tensor, axes: Axes) -> Axes:
    """Return the axes of a tensor into a view of which something was written: those of dimensions of the same stride."""
    base = view._base
    assert base is not None
    own = {stride: dim for dim, stride in zip(axes.dims, view.stride(), strict=True)}
    lengths = {stride: length for length, stride in zip(view.shape, view.stride(), strict=True)}
    return Axes(
        tuple(
            own[stride] if lengths.get(stride) == length else unnamed(length)
            for length, stride in zip(base.shape, base.stride(), strict=True)
        )
    )


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()
