"""Reshape a layer's output to feature maps `(N, C, H, W)` or a vector `(N, K)`, or explain why it is neither."""

from __future__ import annotations

import warnings
from math import prod
from typing import TYPE_CHECKING

import torch

from fmapviz.core.layout import LayoutError
from fmapviz.errors import RequestError
from fmapviz.observe.layouts.find import usual_layout

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.core.layout import Layout
    from fmapviz.data import FeatureMap


class NotAMapError(ValueError):
    """The output cannot be drawn as maps; the message is the reason."""


def picture_size(pixels: Tensor) -> tuple[int, int] | None:
    """Return height and width of a network's input, pixels; None if it is not a picture."""
    return (pixels.shape[-2], pixels.shape[-1]) if pixels.ndim > 2 else None


def frames_of(feature_map: FeatureMap, values: Tensor) -> dict[str, Tensor]:
    """Reshape values of a layer to `(N, C, H, W)`, or to `(N, K)` if they have no rows and columns.

    Args:
        feature_map: The feature map they belong to; its layout names the axes. Without one, its layer's type does,
            and otherwise `(N, C, H, W)` is assumed.
        values: Its values, or others of the same shape, such as their gradient.

    Returns:
        Views of `values` where that is possible, one per frame, by the suffix of the layer's name: `""`, or `.t00`, `.t01`,
        ... for a clip. A map of one pixel is a vector, unless a convolution returned it.

    Raises:
        NotAMapError: They are not a map or a vector, with the reason.

    Example:
        >>> from torch import nn
        >>> from fmapviz.core.layout import layout_from
        >>> from fmapviz.data import FeatureMap, Layer
        >>> tokens = torch.zeros(1, 197, 768)  # a class token and 14 x 14 patches
        >>> layout = layout_from("N 1+H*W C", tokens.shape, images=1, picture=(224, 224))
        >>> feature_map = FeatureMap(Layer("encoder", "Identity", nn.Identity()), "encoder", 1, 0, tokens, layout=layout)
        >>> frames_of(feature_map, tokens)[""].shape
        torch.Size([1, 768, 14, 14])
    """
    _check(values)
    module = feature_map.layer.module
    layout = feature_map.layout or usual_layout(module, values)
    if layout.refused:
        raise NotAMapError(layout.refused)
    if values.is_quantized:
        values = values.dequantize()
    if layout.text == "N C H W" and _is_as_shown(layout, values):  # as most are
        return {"": values}
    try:
        sizes = layout.sizes(values.shape)
    except LayoutError as reason:
        raise NotAMapError(str(reason)) from reason
    digits = _reshaped(values, tuple(sizes))
    digits = digits if layout.order == (*range(digits.ndim),) else digits.permute(layout.order)
    of_images, of_channels = layout.counts
    shape = tuple(digits.shape)
    images, channels = prod(shape[:of_images]), prod(shape[of_images : of_images + of_channels])
    if layout.grid is None:
        return {"": _reshaped(digits, (images, channels))}
    frames, height, width = layout.grid
    if layout.places is not None:
        flat = digits.reshape(images, channels, -1)
        digits = flat[:, :, layout.places] if isinstance(layout.places, slice) else flat[:, :, layout.places.tolist()]
    if not frames:
        if height == width == 1 and not isinstance(module, torch.nn.modules.conv._ConvNd):
            return {"": digits.reshape(images, channels)}
        return {"": _reshaped(digits, (images, channels, height, width))}
    clip = digits.reshape(images, channels, frames, height, width).unbind(2)
    return {f".t{time:0{len(str(len(clip) - 1))}d}": frame for time, frame in enumerate(clip)}


def _is_as_shown(layout: Layout, values: Tensor) -> bool:
    """Return True if `(N, C, H, W)` is shown as it is; a map of one pixel may be a vector."""
    plain = layout.order == (0, 1, 2, 3) and layout.places is None and values.shape[2:] != (1, 1)
    return plain and layout.dims[1:] == tuple((size,) for size in values.shape[1:])


def own_frames(feature_map: FeatureMap) -> dict[str, Tensor]:
    """Return the values of a captured feature map as `frames_of` does; warn if its axes are assumed.

    Raises:
        RequestError: They are not a map or a vector.
    """
    layout = feature_map.layout
    if layout and layout.assumed:
        warnings.warn(
            f"the axes of {feature_map.name} could not be followed through the network: assumed to be {layout.assumed}",
            stacklevel=4,
        )
    try:
        return frames_of(feature_map, feature_map.values.detach())
    except NotAMapError as error:
        message = f"{feature_map.name} is no map and no vector: {error}"
        raise RequestError(message, hint="its attribute values has them") from error


def _reshaped(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return values if tuple(values.shape) == shape else values.reshape(shape)


def _listed(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _check(values: Tensor) -> None:
    """Raise NotAMapError unless values are an array with a batch axis."""
    if values.is_nested:
        raise NotAMapError("a nested tensor, of images that differ in size")
    shape = tuple(values.shape)
    if values.layout is not torch.strided:
        raise NotAMapError(f"a sparse tensor {_listed(shape)}")
    if values.is_complex():
        raise NotAMapError(f"complex values {_listed(shape)}")
    if 0 in shape:
        raise NotAMapError(f"empty: {_listed(shape)}")
    if len(shape) < 2:
        raise NotAMapError(f"shape {_listed(shape)} has no batch axis: not a map of the image")
