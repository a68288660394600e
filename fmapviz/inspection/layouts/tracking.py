"""Follow the axes of every tensor through a forward pass, operator by operator."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fmapviz.inspection.layouts.axes import Axes, axis, unnamed, whole
from fmapviz.inspection.layouts.rules import RULES, Call, pointwise, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

# Names of parameters that are a class token: `cls_token` (timm), `class_token` (torchvision), `class_embedding` (CLIP).
CLASS_TOKEN = re.compile(r"cls(_tokens?|_pos)?|class_(tokens?|embedding|embed|emb)")

# Operators that take only the shape of their operand.
_FACTORIES = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_empty_strided", "empty_strided", "_local_scalar_dense", "is_same_size", "equal",
    "_fused_sdp_choice", "sym_size", "sym_stride",
}  # fmt: skip

# Those that PyTorch does not tag.
_POINTWISE = {
    "hardswish", "_prelu_kernel", "log_sigmoid_forward", "rrelu_with_noise", "rsub", "masked_fill", "clamp_max", "add_relu",
    "floor_divide", "where", "mul", "add", "sub", "div", "relu", "fill", "lerp", "addcmul", "addcdiv",
}  # fmt: skip


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
        # By address and geometry. A view of a tensor may be another Python object each time that it is asked for. The weak
        # references keep the addresses from being used again.
        self._known: dict[object, Axes] = {}
        self._storages: dict[int, Any] = {}  # Any: it has no types
        self._classes: set[int] | None = None
        self._network = network
        self._set(pixels, axes_of_input(pixels))

    def axes(self, tensor: Tensor) -> Axes | None:
        """Return the axes of a tensor, None if it does not depend on the picture."""
        try:
            return self._known.get(_key(tensor))
        except (RuntimeError, NotImplementedError):  # it has no memory of its own
            return None

    def _set(self, tensor: Tensor, axes: Axes) -> None:
        try:
            key = _key(tensor)
        except (RuntimeError, NotImplementedError):
            return
        if key[0] not in self._storages:
            self._storages[key[0]] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # PyTorch's
        self._known[key] = axes

    def __torch_dispatch__(
        self,
        func: Any,  # torch._ops.OpOverload has no public name
        _types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: an operator takes and returns anything
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and record the axes of what it returns."""
        if self.paused or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **(kwargs or {}))
        # Before it runs: it may change the geometry of its operand.
        known = {id(each): axes for each in tensors_of(args) if (axes := self.axes(each)) is not None}
        result = func(*args, **(kwargs or {}))
        if known:
            self._record(func, args, kwargs or {}, result, known=known)
        return result

    def _record(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, *, known: Mapping[int, Axes]
    ) -> None:
        name, rule, names, defaults = _operator(func)
        if name in _FACTORIES:
            return
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        for position, tensor in enumerate(tensors_of([result])):
            axes = None
            call = Call(
                f"aten.{name}", given, tensor, position, lambda each: known.get(id(each)), self._is_class, self._picture
            )
            with suppress(Exception):  # of arguments that a rule does not know; the model's own pass goes on
                axes = rule(call) if rule else None
            try:
                if axes is None or axes.shape != tuple(tensor.shape):
                    axes = Axes(tuple(map(unnamed, tensor.shape)))
            except RuntimeError:  # a nested tensor has no shape
                continue
            self._set(tensor, axes)
            if name == "copy" and tensor._base is not None and self.axes(tensor._base) is None:
                self._set(tensor._base, _axes_of_base(tensor, axes))

    def _is_class(self, tensor: Tensor) -> bool:
        """Return True if a tensor shares its memory with a parameter that is a class token."""
        if self._classes is None:
            named = self._network.named_parameters() if self._network else ()
            tokens = (values for name, values in named if CLASS_TOKEN.fullmatch(name.rpartition(".")[2]))
            self._classes = {values.untyped_storage()._cdata for values in tokens}
        return tensor.untyped_storage()._cdata in self._classes


# At its first call PyTorch would import its compiler, for some seconds, in order not to compile this method.
_method = vars(AxisTracking)["__torch_dispatch__"]
vars(_method.__wrapped__).setdefault("__dynamo_disable", _method.__wrapped__)


def axes_of_input(pixels: Tensor) -> Axes:
    """Return the axes of a network's input."""
    middle = {3: "C", 4: "C", 5: "CT"}.get(pixels.ndim, "")
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


def _key(tensor: Tensor) -> tuple[int, object, object, int]:
    return tensor.untyped_storage()._cdata, tensor.shape, tensor.stride(), tensor.storage_offset()  # type: ignore[return-value]


@cache
def _operator(func: Any) -> tuple[str, Callable[[Call], Axes] | None, list[str], dict[str, Any]]:
    """Return an operator's name, its rule, and the names and defaults of its parameters."""
    name: str = func.overloadpacket.__name__
    schema = func._schema
    if name.endswith("_") and schema.is_mutable:
        name = name.removesuffix("_")
    arguments = schema.arguments
    defaults = {each.name: each.default_value for each in arguments}
    rule = None
    if func.namespace in {"aten", "prims", "quantized", "mkldnn"}:
        rule = RULES.get(name)
        if rule is None and (torch.Tag.pointwise in func.tags or name in _POINTWISE):
            rule = pointwise
    return name, rule, [each.name for each in arguments], defaults
