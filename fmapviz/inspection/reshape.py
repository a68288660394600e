"""Reshape a layer's output to feature maps `(N, C, H, W)` or a vector `(N, K)`, or explain why it is neither."""

from __future__ import annotations

from math import prod, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmapviz.core.types import FeatureMap


class NotAMapError(ValueError):
    """The output cannot be drawn as maps; the message is the reason."""


def picture_size(pixels: Tensor) -> tuple[int, int] | None:
    """Return height and width of a network's input, pixels; None if it is not a picture."""
    return (pixels.shape[-2], pixels.shape[-1]) if pixels.ndim > 2 else None


def frames_of(feature_map: FeatureMap, values: Tensor, pixels: Tensor, *, ordered: bool = True) -> dict[str, Tensor]:
    """Reshape values of a layer to `(N, C, H, W)`, or to `(N, K)` if they have no rows and columns.

    Args:
        feature_map: The feature map they belong to. The class of its module distinguishes channels-last from channels-first,
            and some names show that it is no map of the picture.
        values: Its own, or others of the same shape, such as their gradient: `(N, C, H, W)`; channels-last `(N, H, W, C)`; a
            clip `(N, C, T, H, W)`; tokens `(N, L, D)` whose L, less up to five prefix tokens, are patches in the proportions
            of the picture, or a square; a vector `(N, K)`, or `(N, K, 1, 1)` of anything but a convolution.
        pixels: The network's input, `(N, ...)`. With another N the values are several for each image, of windows or regions.
        ordered: Whether tokens are in the order of rows and columns, see `is_unrolled`.

    Returns:
        Views of `values`, one per frame, by the suffix of the layer's name: `""`, or `.t00`, `.t01`, ... for a clip.

    Raises:
        NotAMapError: They are not a map or a vector, with the reason.

    Example:
        >>> from fmapviz.core.types import FeatureMap, Layer
        >>> tokens = torch.zeros(1, 197, 768)  # a class token and 14 x 14 patches
        >>> feature_map = FeatureMap(Layer("encoder", "Identity", nn.Identity()), "encoder", 1, 0, tokens)
        >>> frames_of(feature_map, tokens, torch.zeros(1, 3, 224, 224))[""].shape
        torch.Size([1, 768, 14, 14])
    """
    module, picture = feature_map.layer.module, picture_size(pixels)
    if values.is_nested:
        raise NotAMapError("a nested tensor, of images that differ in size")
    portions, first = values.shape[:1] != pixels.shape[:1], isinstance(module, CHANNELS_FIRST)
    last = not first and values.ndim > 3 and is_channels_last(values.shape, module)
    _check(values, feature_map, first=first, last=last, picture=picture, portions=portions, ordered=ordered)
    if values.is_quantized:
        values = values.dequantize()
    if values.ndim == 2:
        return {"": values}
    if values.ndim == 3:
        return {"": _tokens(values, picture)}
    if values.shape[2:] == (1, 1) and not isinstance(module, nn.modules.conv._ConvNd):
        return {"": values.flatten(1)}
    maps = values.movedim(-1, 1) if last else values
    if maps.ndim == 4:
        return {"": maps}
    frames = maps.unbind(2)
    return {f".t{time:0{len(str(len(frames) - 1))}d}": frame for time, frame in enumerate(frames)}


def _check(
    values: Tensor,
    feature_map: FeatureMap,
    *,
    first: bool,
    last: bool,
    picture: tuple[int, int] | None,
    portions: bool,
    ordered: bool,
) -> None:
    """Raise NotAMapError unless values are maps of the picture, or a vector.

    Args:
        values: Of the feature map, or of its shape.
        feature_map: Its module and name show what the values are.
        first: Whether the module works on `(N, C, H, W)` and never on the last axis.
        last: Whether the last axis holds the channels.
        picture: Height and width of the input.
        portions: Whether there are several values for each image.
        ordered: Whether tokens are in the order of rows and columns.
    """
    module, name, shape = feature_map.layer.module, feature_map.name, f"({', '.join(map(str, values.shape))})"
    if values.layout is not torch.strided:
        raise NotAMapError(f"a sparse tensor {shape}")
    if values.is_complex():
        raise NotAMapError(f"complex values {shape}")
    if values.numel() == 0:
        raise NotAMapError(f"empty: {shape}")
    if values.ndim < 2:
        raise NotAMapError(f"shape {shape} has no batch axis: not a map of the image")
    if values.ndim > 5 or (values.ndim == 3 and first):
        raise NotAMapError(f"{values.ndim} dimensions {shape}: not a map of the image")
    if not first and _is_attention(values, module, name):
        raise NotAMapError(f"attention weights {shape} between tokens: not a map of the image")
    if "cpb_mlp" in name:  # Swin V2
        raise NotAMapError(f"{shape}: position biases, the same for every image")
    if portions and (values.ndim < 4 or last):
        raise NotAMapError(f"{shape}: one for each window or region: not a map of the image")
    if values.ndim == 3 and not ordered:
        raise NotAMapError(f"tokens {shape} grouped by the units of a mask: not a map of the image")
    in_attention = "attn" in name.lower() and not first and not list(module.children())
    sides = values.shape[1:3] if last else values.shape[2:]
    if values.ndim == 4 and picture and (last or in_attention) and not _fits(sides, picture):
        raise NotAMapError(f"{shape} split by window or head: not a map of the image")


def is_unrolled(modules: Iterable[nn.Module]) -> bool:
    """Return True for the modules of a network such as Hiera, whose tokens are ordered by the units of its mask."""
    return any(type(module).__name__ in {"Unroll", "HieraEncoder"} for module in modules)  # of timm, of transformers


def is_channels_last(shape: torch.Size, module: nn.Module) -> bool:
    """Return True for `(N, H, W, C)`, not `(N, C, H, W)`, and for a clip `(N, T, H, W, C)`, not `(N, C, T, H, W)`.

    `Linear` and `LayerNorm` work on the last axis; convolutions, poolings and BatchNorm never do. For other modules the
    square axes decide (Swin Transformer's blocks and activations); if none or all are, the parts of the module do.
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
    if isinstance(module, CHANNELS_FIRST):
        return False
    if isinstance(module, nn.LayerNorm):
        # torchvision's LayerNorm2d is a LayerNorm that permutes: channels-first outside.
        own_forward = type(module).forward is nn.LayerNorm.forward
        return True if len(module.normalized_shape) == 1 and own_forward else None
    return True if isinstance(module, nn.Linear) else None


# What works on (N, C, H, W) and never on the last axis.
CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.GroupNorm,
    nn.Upsample,
)


def _is_attention(values: Tensor, module: nn.Module, name: str) -> bool:
    """Recognize attention weights `(N, heads, L, L)` or `(N, L, L)`: of its softmax or dropout, or a part of its output."""
    if values.ndim not in {3, 4} or values.shape[-1] != values.shape[-2]:
        return False
    if isinstance(module, nn.MultiheadAttention):
        return name.endswith("[1]")
    if isinstance(module, nn.Softmax):
        return module.dim in {-1, values.ndim - 1}
    says_so = "attn" in name.lower() or "attention" in name.lower() or "attention" in type(module).__name__.lower()
    return says_so and (name.endswith(("]", "attn_drop")) or isinstance(module, nn.Dropout))


def _fits(sides: Sequence[int], picture: tuple[int, int]) -> bool:
    """Return True if rows and columns fit the picture: one for every whole number of pixels, perhaps padded to windows."""
    for own, whole in zip(sides, picture, strict=True):
        step = max(1, round(whole / own))
        if not whole / step - 1 <= own <= 1.2 * whole / step + 1:
            return False
    return 1 / 1.2 <= (sides[0] / sides[1]) / (picture[0] / picture[1]) <= 1.2


def _tokens(values: Tensor, picture: tuple[int, int] | None) -> Tensor:
    grid = token_grid(values.shape[1], picture)
    if grid is None:
        raise NotAMapError(f"{values.shape[1]} tokens {tuple(values.shape)} do not form a grid of patches")
    prefix, height, width = grid
    return values[:, prefix:].reshape(-1, height, width, values.shape[2]).permute(0, 3, 1, 2)


def token_grid(length: int, picture: tuple[int, int] | None) -> tuple[int, int, int] | None:
    """Return how tokens form a grid in the proportions of a picture, or a square.

    Returns:
        The number of prefix tokens, at most five, and the rows and columns of patches behind them; None if they form none.

    Example:
        >>> token_grid(197, (224, 224)), token_grid(150, (160, 240))
        ((1, 14, 14), (0, 10, 15))
    """
    for height, width in filter(None, (picture, (1, 1))):
        for prefix in range(min(6, length)):
            step = sqrt(height * width / (length - prefix))
            grid = round(height / step), round(width / step)
            if prod(grid) == length - prefix > 1:
                return prefix, *grid
    return None
