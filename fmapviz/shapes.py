"""Read a layer's output as feature maps `(N, C, H, W)` or a vector `(N, K)`, or say why it is neither."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


def as_maps(
    values: Tensor, module: nn.Module, *, picture: tuple[int, int] | None = None, name: str = ""
) -> dict[str, Tensor]:
    """Bring a layer's output into the form `(N, C, H, W)`, or `(N, K)` where it has no rows and columns.

    Args:
        values: What the module returned: `(N, C, H, W)`; channels-last `(N, H, W, C)`; a clip `(N, C, T, H, W)`; tokens
            `(N, L, D)` whose L, less up to five prefix tokens, are patches in the proportions of the picture, or a square; a
            vector `(N, K)`, or `(N, K, 1, 1)` of anything but a convolution.
        module: Who returned it; its class tells channels-last from channels-first.
        picture: Height and width of what the network was given, pixels; None if the values are not one for each picture.
        name: Of the feature map: some names say that its values are no map of the picture.

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
    if _is_attention(values, module, name):
        raise NotAMapError(f"attention {_written(values)}, how tokens look at each other, no map of the picture")
    if values.ndim == 2:
        return {"": values}
    if values.ndim == 4 and values.shape[2:] == (1, 1) and not isinstance(module, nn.modules.conv._ConvNd):
        return {"": values.flatten(1)}
    if values.ndim == 5:
        frames = _channels_first(values, module).unbind(2)
        return {f".t{time:0{len(str(len(frames) - 1))}d}": frame for time, frame in enumerate(frames)}
    if values.ndim == 4:
        if is_channels_last(values.shape, module) and picture and not _is_alike(values.shape[1:3], picture):
            raise NotAMapError(f"{_written(values)}: tokens by windows or heads, no rows and columns of the picture")
        return {"": _channels_first(values, module)}
    if values.ndim == 3 and not isinstance(module, _CHANNELS_FIRST):
        return {"": _tokens(values, picture)}
    kind = "no batch of anything" if values.ndim <= 1 else f"{values.ndim} dimensions"
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


def _is_attention(values: Tensor, module: nn.Module, name: str) -> bool:
    """Recognise weights `(N, heads, L, L)` or `(N, L, L)`: of a softmax or a dropout in it, or a part of what it returns."""
    if values.ndim not in {3, 4} or values.shape[-1] != values.shape[-2]:
        return False
    if isinstance(module, nn.MultiheadAttention):
        return name.endswith("[1]")
    says_so = "attn" in name.lower() or "attention" in name.lower() or "attention" in type(module).__name__.lower()
    return says_so and (name.endswith("]") or isinstance(module, nn.Softmax | nn.Dropout | nn.Identity))


def _is_alike(sides: Sequence[int], picture: tuple[int, int]) -> bool:
    """Tell whether rows and columns have nearly the proportions of the picture; windows are padded."""
    return 1 / 1.2 <= (sides[0] / sides[1]) / (picture[0] / picture[1]) <= 1.2


def _tokens(values: Tensor, picture: tuple[int, int] | None) -> Tensor:
    length = values.shape[1]
    for height, width in filter(None, (picture, (1, 1))):
        for prefix in range(min(6, length)):
            step = sqrt(height * width / (length - prefix))
            grid = round(height / step), round(width / step)
            if prod(grid) == length - prefix > 1:
                return values[:, prefix:].reshape(-1, *grid, values.shape[2]).permute(0, 3, 1, 2)
    raise NotAMapError(f"{length} tokens {_written(values)} are no rows and columns of patches")


def _written(values: Tensor) -> str:
    return f"({', '.join(map(str, values.shape))})"
