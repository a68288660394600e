"""Read a layer's output as feature maps `(N, C, H, W)` or a vector `(N, K)`, or say why it is neither."""

from __future__ import annotations

from copy import copy
from dataclasses import fields, is_dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


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


def exchange(value: Any, change: Callable[[str, Tensor], Tensor], part: str = "") -> Any:
    """Put other tensors in the place of those in tuples, lists and dicts; what does not change is not copied.

    Example:
        >>> exchange((1, {"x": torch.ones(2)}), lambda part, values: values + 1)
        (1, {'x': tensor([2., 2.])})
    """
    # Any: a module may be given whatever its author likes.
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
    """Copy a dict or list of any kind, with other entries."""
    # Any: a module may be given whatever its author likes.
    own = copy(container)
    for key, value in entries.items():
        own[key] = value
    return own


class NotAMapError(ValueError):
    """The output has no rows and columns to draw; the message is the reason."""


def as_maps(
    values: Tensor,
    module: nn.Module,
    *,
    picture: tuple[int, int] | None = None,
    portions: bool = False,
    ordered: bool = True,
    name: str = "",
) -> dict[str, Tensor]:
    """Bring a layer's output into the form `(N, C, H, W)`, or `(N, K)` where it has no rows and columns.

    Args:
        values: What the module returned: `(N, C, H, W)`; channels-last `(N, H, W, C)`; a clip `(N, C, T, H, W)`; tokens
            `(N, L, D)` whose L, less up to five prefix tokens, are patches in the proportions of the picture, or a square; a
            vector `(N, K)`, or `(N, K, 1, 1)` of anything but a convolution.
        module: Who returned it; its class tells channels-last from channels-first.
        picture: Height and width of what the network was given, pixels.
        portions: Whether the values are several for each picture, such as those of windows or regions.
        ordered: Whether tokens lie in the order of rows and columns, see `is_unrolled`.
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
    """Say which tensors are never drawn."""
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
    """Say why values are no map of the picture; `last` means that the last axis holds the channels."""
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
    """Tell the modules of a network such as Hiera, whose tokens lie by the units of its mask."""
    return any(type(module).__name__ == "Unroll" for module in modules)


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
    if isinstance(module, CHANNELS_FIRST):
        return False
    if isinstance(module, nn.LayerNorm):
        return True if len(module.normalized_shape) == 1 and _own_forward(module, nn.LayerNorm) else None
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


def _own_forward(module: nn.Module, base: type[nn.Module]) -> bool:
    # torchvision's LayerNorm2d is a LayerNorm that permutes: channels-first outside.
    return type(module).forward is base.forward


def _is_attention(values: Tensor, module: nn.Module, name: str) -> bool:
    """Recognise weights `(N, heads, L, L)` or `(N, L, L)`: of a softmax or a dropout in it, or a part of what it returns."""
    if values.ndim not in {3, 4} or values.shape[-1] != values.shape[-2]:
        return False
    if isinstance(module, nn.MultiheadAttention):
        return name.endswith("[1]")
    if isinstance(module, nn.Softmax):
        return module.dim in {-1, values.ndim - 1}
    says_so = "attn" in name.lower() or "attention" in name.lower() or "attention" in type(module).__name__.lower()
    return says_so and (name.endswith(("]", "attn_drop")) or isinstance(module, nn.Dropout))


def _is_of(sides: Sequence[int], picture: tuple[int, int]) -> bool:
    """Tell whether rows and columns can be the picture's: one for every so many pixels, perhaps padded to whole windows."""
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
