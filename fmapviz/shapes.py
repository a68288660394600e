"""Read a layer's output as feature maps `(N, C, H, W)`, or say why it is none."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator


def tensors(output: object, part: str = "") -> Iterator[tuple[str, Tensor]]:
    """Find the tensors in whatever a module returned, with the path to each.

    Example:
        >>> [part for part, _ in tensors({"out": torch.zeros(1), "aux": [torch.zeros(1), torch.zeros(1)]})]
        ["['out']", "['aux'][0]", "['aux'][1]"]
    """
    if isinstance(output, Tensor):
        yield part, output
        return
    for key, value in _items(output):
        yield from tensors(value, f"{part}{key}")


def _items(output: object) -> Iterator[tuple[str, Any]]:
    # Any: a module may return whatever it likes.
    if isinstance(output, dict):
        yield from ((f"[{key!r}]", value) for key, value in output.items())
    elif isinstance(output, list | tuple):
        yield from ((f"[{position}]", value) for position, value in enumerate(output))
    elif is_dataclass(output):
        yield from ((f".{entry.name}", getattr(output, entry.name)) for entry in fields(output))
    elif hasattr(output, "tensors") and isinstance(output.tensors, Tensor):  # torchvision's ImageList
        yield ".tensors", output.tensors


class NotAMapError(ValueError):
    """The output has no rows and columns to draw; the message is the reason."""


def as_maps(values: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Bring a layer's output into the form `(N, C, H, W)`.

    Args:
        values: What the module returned: `(N, C, H, W)`; channels-last `(N, H, W, C)`; a clip `(N, C, T, H, W)`; tokens
            `(N, L, D)` whose L, less up to five prefix tokens, is a square.
        module: Who returned it; its class tells channels-last from channels-first.

    Returns:
        Views of `values`, one per frame, keyed by what to add to the layer's name: `""`, or `.t00`, `.t01`, ... for a clip.

    Raises:
        NotAMapError: It cannot be seen as maps, with the reason.

    Example:
        >>> tokens = torch.zeros(1, 197, 768)  # a class token and 14 x 14 patches
        >>> as_maps(tokens, nn.Identity())[""].shape
        torch.Size([1, 768, 14, 14])
    """
    if values.is_nested:
        raise NotAMapError("a nested tensor, of images that differ in size")
    if values.layout is not torch.strided:
        raise NotAMapError(f"a sparse tensor {_written(values)}")
    if values.is_complex():
        raise NotAMapError(f"complex values {_written(values)}")
    if values.is_quantized:
        values = values.dequantize()
    if values.numel() == 0:
        raise NotAMapError(f"empty: {_written(values)}, no region to look at")
    if values.ndim == 5:
        frames = _channels_first(values, module).unbind(2)
        return {f".t{time:0{len(str(len(frames) - 1))}d}": frame for time, frame in enumerate(frames)}
    if values.ndim == 4:
        return {"": _channels_first(values, module)}
    if values.ndim == 3 and not isinstance(module, _CHANNELS_FIRST):
        return {"": _tokens(values)}
    kind = "a vector" if values.ndim <= 2 else f"{values.ndim} dimensions"
    raise NotAMapError(f"{kind} {_written(values)}, no rows and columns")


def _channels_first(values: Tensor, module: nn.Module) -> Tensor:
    if not is_channels_last(values.shape, module):
        return values
    return values.movedim(-1, 1)


def is_channels_last(shape: torch.Size, module: nn.Module) -> bool:
    """Tell `(N, H, W, C)` from `(N, C, H, W)`, and a clip `(N, T, H, W, C)` from `(N, C, T, H, W)`.

    `Linear` and `LayerNorm` work on the last axis; convolutions, poolings and BatchNorm never do. Of anything else, the axes
    that are a square tell (Swin Transformer's blocks and activations); where this leaves it open, its parts do.
    """
    own = _works_on_last_axis(module)
    if own is not None:
        return own
    parts = {_works_on_last_axis(part) for part in module.modules()} - {None}
    if shape[-3] != shape[-2] == shape[-1]:
        return False
    if shape[-3] == shape[-2] != shape[-1]:
        return parts != {False}
    return parts == {True}


def _works_on_last_axis(module: nn.Module) -> bool | None:
    if isinstance(module, _CHANNELS_FIRST):
        return False
    if isinstance(module, nn.LayerNorm):
        return True if len(module.normalized_shape) == 1 and _own_forward(module, nn.LayerNorm) else None
    return True if isinstance(module, nn.Linear) else None


_CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.GroupNorm,
    nn.Upsample,
)


def _own_forward(module: nn.Module, base: type[nn.Module]) -> bool:
    # torchvision's LayerNorm2d is a LayerNorm that permutes: channels-first outside.
    return type(module).forward is base.forward


def _tokens(values: Tensor) -> Tensor:
    length = values.shape[1]
    for prefix in range(6):
        side = isqrt(length - prefix) if length > prefix else 0
        if side > 1 and side * side == length - prefix:
            return values[:, prefix:].reshape(-1, side, side, values.shape[2]).permute(0, 3, 1, 2)
    raise NotAMapError(f"{length} tokens {_written(values)} are no square of patches")


def _written(values: Tensor) -> str:
    return f"({', '.join(map(str, values.shape))})"
