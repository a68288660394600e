"""Reshape a layer's output to feature maps `(N, C, H, W)` or a vector `(N, K)`, or explain why it is neither."""

from __future__ import annotations

from copy import copy
from dataclasses import fields, is_dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fmapviz.core.types import FeatureMap


def tensors(output: object, part: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a module's output, each after its path.

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
    # Any: a module may return anything.
    if isinstance(output, dict):
        yield from ((f"[{key!r}]", value) for key, value in output.items())
    elif isinstance(output, list | tuple):
        yield from ((f"[{position}]", value) for position, value in enumerate(output))
    elif is_dataclass(output):
        yield from ((f".{entry.name}", getattr(output, entry.name)) for entry in fields(output))
    elif hasattr(output, "tensors") and isinstance(output.tensors, Tensor):  # torchvision's ImageList
        yield ".tensors", output.tensors


def exchange(value: Any, change: Callable[[str, Tensor], Tensor], part: str = "") -> Any:
    """Replace the tensors in tuples, lists and dicts; unchanged containers are not copied.

    Example:
        >>> exchange((1, {"x": torch.ones(2)}), lambda part, values: values + 1)
        (1, {'x': tensor([2., 2.])})
    """
    # Any: a module may take anything.
    if isinstance(value, Tensor):
        return change(part, value)
    if isinstance(value, dict):
        new = {key: exchange(each, change, f"{part}[{key!r}]") for key, each in value.items()}
        return value if all(new[key] is each for key, each in value.items()) else _refilled(value, new)
    if isinstance(value, list | tuple):
        parts = [exchange(each, change, f"{part}[{position}]") for position, each in enumerate(value)]
        if all(one is other for one, other in zip(parts, value, strict=True)):
            return value
        if isinstance(value, list):
            return _refilled(value, dict(enumerate(parts)))
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _refilled(container: Any, entries: dict[Any, Any]) -> Any:
    """Copy a dict or list of any class, with other entries."""
    # Any: a module may take anything.
    own = copy(container)
    for key, value in entries.items():
        own[key] = value
    return own


class NotAMapError(ValueError):
    """The output cannot be drawn as maps; the message is the reason."""


def picture_size(pixels: Tensor) -> tuple[int, int] | None:
    """Return height and width of a network's input, pixels; None if it is not a picture."""
    return (pixels.shape[-2], pixels.shape[-1]) if pixels.ndim > 2 else None


def frames_of(feature_map: FeatureMap, values: Tensor, pixels: Tensor, *, ordered: bool) -> dict[str, Tensor]:
    """Reshape values of a layer to maps or a vector, those of a clip frame by frame; see `as_maps`.

    Args:
        feature_map: The feature map they belong to.
        values: Its own, or others of the same shape, such as their gradient.
        pixels: The network's input, `(N, ...)`.
        ordered: Whether tokens are in the order of rows and columns.
    """
    return as_maps(
        values,
        feature_map.layer.module,
        picture=picture_size(pixels),
        portions=not values.is_nested and values.shape[:1] != pixels.shape[:1],
        ordered=ordered,
        name=feature_map.name,
    )


def as_maps(
    values: Tensor,
    module: nn.Module,
    *,
    picture: tuple[int, int] | None = None,
    portions: bool = False,
    ordered: bool = True,
    name: str = "",
) -> dict[str, Tensor]:
    """Reshape a layer's output to `(N, C, H, W)`, or to `(N, K)` if it has no rows and columns.

    Args:
        values: The module's output: `(N, C, H, W)`; channels-last `(N, H, W, C)`; a clip `(N, C, T, H, W)`; tokens
            `(N, L, D)` whose L, less up to five prefix tokens, are patches in the proportions of the picture, or a square; a
            vector `(N, K)`, or `(N, K, 1, 1)` of anything but a convolution.
        module: Its class distinguishes channels-last from channels-first.
        picture: Height and width of the network's input, pixels.
        portions: Whether the values are several for each picture, such as those of windows or regions.
        ordered: Whether tokens are in the order of rows and columns, see `is_unrolled`.
        name: Of the feature map: some names show that its values are no map of the picture.

    Returns:
        Views of `values`, one per frame, by the suffix of the layer's name: `""`, or `.t00`, `.t01`, ... for a clip.

    Raises:
        NotAMapError: It is not a map or a vector, with the reason.

    Example:
        >>> tokens = torch.zeros(1, 197, 768)  # a class token and 14 x 14 patches
        >>> as_maps(tokens, nn.Identity())[""].shape
        torch.Size([1, 768, 14, 14])
    """
    if unusual := _unusual(values):
        raise NotAMapError(unusual)
    if values.is_quantized:
        values = values.dequantize()
    last = values.ndim > 3 and is_channels_last(values.shape, module)
    for reason in _reasons(values, module, name, last=last, picture=picture, portions=portions, ordered=ordered):
        raise NotAMapError(reason)
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


def _unusual(values: Tensor) -> str | None:
    """Return why a tensor of this kind is never drawn, None if it may be."""
    if values.is_nested:
        return "a nested tensor, of images that differ in size"
    if values.layout is not torch.strided:
        return f"a sparse tensor {_written(values)}"
    if values.is_complex():
        return f"complex values {_written(values)}"
    return f"empty: {_written(values)}, no region to look at" if values.numel() == 0 else None


def _reasons(
    values: Tensor,
    module: nn.Module,
    name: str,
    *,
    last: bool,
    picture: tuple[int, int] | None,
    portions: bool,
    ordered: bool,
) -> Iterator[str]:
    """Yield reasons why values are no map of the picture; `last` means that the last axis holds the channels."""
    shape, maps_only = _written(values), isinstance(module, CHANNELS_FIRST)
    if values.ndim in {0, 1}:
        yield f"no batch of anything {shape}, no rows and columns"
    if values.ndim > 5 or (values.ndim == 3 and maps_only):
        yield f"{values.ndim} dimensions {shape}, no rows and columns"
    if _is_attention(values, module, name):
        yield f"attention {shape}, how tokens look at each other, no map of the picture"
    if "cpb_mlp" in name:  # Swin V2
        yield f"{shape}: a bias for every two positions, the same for every picture"
    if portions and (values.ndim < 4 or last):
        yield f"{shape}: several for each picture, of windows or regions, no map of all of it"
    if values.ndim == 3 and not ordered:
        yield f"tokens {shape} by the units of a mask, not by rows and columns"
    in_attention = "attn" in name.lower() and not maps_only and not list(module.children())
    sides = values.shape[1:3] if last else values.shape[2:]
    if values.ndim == 4 and picture and (last or in_attention) and not _is_of(sides, picture):
        yield f"{shape}: by windows or heads, no rows and columns of the picture"


def is_unrolled(modules: Iterable[nn.Module]) -> bool:
    """Return True for the modules of a network such as Hiera, whose tokens are ordered by the units of its mask."""
    return any(type(module).__name__ == "Unroll" for module in modules)


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


def _is_of(sides: Sequence[int], picture: tuple[int, int]) -> bool:
    """Return True if rows and columns fit the picture: one for every whole number of pixels, perhaps padded to windows."""
    steps = all(_is_whole_step(own, whole) for own, whole in zip(sides, picture, strict=True))
    return steps and 1 / 1.2 <= (sides[0] / sides[1]) / (picture[0] / picture[1]) <= 1.2


def _is_whole_step(own: int, whole: int) -> bool:
    step = max(1, round(whole / own))
    return whole / step - 1 <= own <= 1.2 * whole / step + 1


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
