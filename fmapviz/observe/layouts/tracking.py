"""Follow the axes of every tensor through a forward pass, operator by operator."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from fmapviz.observe.layouts.axes import Axes, axis, frame_of, mixed, unnamed, whole
from fmapviz.observe.layouts.rules import LayoutCall, layout_rule
from fmapviz.observe.memory_table import MemoryTable
from fmapviz.observe.operators.call import operator_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from fmapviz.observe.operators.call import Operator

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
        # By geometry: a view of a tensor may be a new Python object on each access.
        self._known = MemoryTable[dict[object, Axes]]()
        self._classes: set[int] | None = None
        self._network = network
        self._is_clip = pixels.ndim == 5 and pixels.shape[1] != pixels.shape[2]  # else frames may be channels
        self._set(pixels, axes_of_input(pixels, network))

    def axes(self, tensor: Tensor) -> Axes | None:
        """Return the axes of a tensor, None if it does not depend on the picture."""
        with suppress(RuntimeError, NotImplementedError):  # it has no storage
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
        """Run an operator, and record the axes of its results."""
        kwargs = kwargs or {}
        if self.paused or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        operator = operator_of(func)
        given = operator.bind(args, kwargs)
        # Before it runs: it may change the geometry of its operand.
        known = {id(each): axes for each in tensors_of(given.values()) if (axes := self.axes(each))}
        result = func(*args, **kwargs)
        if not known or operator.is_factory:
            return result
        for position, tensor in enumerate(tensors_of([result])):
            if tensor.is_nested:  # it has no shape
                continue
            axes = self._follow(operator, given, tensor, position=position, known=known)
            self._set(tensor, axes)
            if operator.name == "copy" and tensor._base is not None:
                written, before = _axes_of_base(tensor, axes), self.axes(tensor._base)
                self._set(tensor._base, written if before is None else mixed(before, written, "aten.copy"))
        return result

    def _follow(
        self, operator: Operator, given: Mapping[str, Any], result: Tensor, *, position: int, known: Mapping[int, Axes]
    ) -> Axes:
        """Return the axes of one result of an operator."""
        found, name, rule = None, f"aten.{operator.name}", layout_rule(operator)

        def axes_of(tensor: Tensor) -> Axes | None:
            return known.get(id(tensor))

        with suppress(Exception):  # a rule may not support some arguments; the forward pass continues
            if rule:
                found = rule(LayoutCall(given, result, position, name, axes_of, self._is_class, self._picture))
        shape = tuple(result.shape)
        axes = found if found is not None and found.shape == shape else Axes(tuple(map(unnamed, shape)))
        if self._is_clip and axes.frame is None:
            frames = {frame_of(each) for each in known.values()}
            return replace(axes, frame=frames.pop() if len(frames) == 1 else None)
        return replace(axes, frame=None) if axes.frame is not None and not self._is_clip else axes

    def _is_class(self, tensor: Tensor) -> bool:
        """Return True if a tensor shares its memory with a parameter that is a class token."""
        if self._classes is None:
            named = self._network.named_parameters() if self._network else ()
            tokens = (values for name, values in named if CLASS_TOKEN.fullmatch(name.rpartition(".")[2]))
            self._classes = {values.untyped_storage()._cdata for values in tokens}
        return tensor.untyped_storage()._cdata in self._classes


def axes_of_input(pixels: Tensor, network: nn.Module | None = None) -> Axes:
    """Return the axes of a network's input; the first convolution shows which axis of a clip is time, if it can."""
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
