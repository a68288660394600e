"""Decode and preprocess an image in memory as a file of its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage

from fmapviz.core.samples import Samples
from fmapviz.images.arrays import Said, compose, fits, format_shape, is_about_scaling, read_array, require_size
from fmapviz.images.clips import remarks_on_repeating
from fmapviz.images.decode import decode_picture
from fmapviz.images.errors import explain, wrong_channels
from fmapviz.images.memory.image import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.images.memory.image import MemoryImage
    from fmapviz.types import Preparation

    _Decoded = tuple[PillowImage.Image | Samples, tuple[str, ...], int]  # pixels, notices, orientation

_TRANSPARENT = {2: "LA", 4: "RGBA"}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """An image in memory as a network gets it.

    Attributes:
        values: float32 `(C, H, W)`, or `(C, T, H, W)`, on the CPU.
        size: Width and height of the upright picture, before it was prepared.
        orientation: Its EXIF orientation, 1 to 8.
        notices: Remarks on its decoding, for the user.
    """

    values: Tensor
    size: tuple[int, int]
    orientation: int = 1
    notices: tuple[str, ...] = ()


def read_memory_image(image: MemoryImage, preparation: Preparation) -> PreparedImage:
    """Read an image in memory.

    Args:
        image: A prepared tensor is not changed, only converted to float32 on the CPU.
        preparation: The preprocessing of a network.

    Raises:
        InputError: It cannot be decoded or preprocessed, or the network takes another number of channels.
    """
    if image.kind == "prepared":
        values = image.value.detach().as_subclass(torch.Tensor).to("cpu", torch.float32)
        remark = remark_on_values(values, preparation)
        return PreparedImage(values, (values.shape[-1], values.shape[-2]), notices=(remark,) if remark else ())
    try:
        pixels, notices, orientation = _decode(image.kind, image.value, preparation.channels, volume=preparation.volume)
    except Exception as error:
        refusal = explain(error, image.name)
        if refusal.code == "E_CHANNELS":
            batch = "list(array) passes each of a batch; " if image.kind == "array" and image.value.ndim == 4 else ""
            refusal.advise(
                f"{batch}an array (H, W, C) or (C, H, W) with as many; a tensor of floats (C, H, W) is used as it is"
            )
        raise refusal from error
    if preparation.own and isinstance(pixels, Samples):
        notices = tuple(notice for notice in notices if not is_about_scaling(notice))
    notices = (*notices, *remarks_on_repeating(pixels, preparation))
    return PreparedImage(preparation.apply(pixels), (pixels.width, pixels.height), orientation, notices)


def remark_on_values(prepared: Tensor, preparation: Preparation) -> str:
    """Return a notice if a prepared tensor looks like pixels that were not normalised, as a network expects; else nothing.

    Args:
        prepared: Any shape.
        preparation: The preprocessing of the network, whose mean is known, or nothing can be said.
    """
    if not any(preparation.mean) or not prepared.numel():
        return ""
    low, high = (float(end) for end in prepared.detach().float().aminmax())
    if not (low >= 0 and (0.5 < high <= 1 or 10 < high <= 255)):
        return ""
    return f"values of {low:.3g} to {high:.3g}: floats are used as they are, and only uint8 pixels are normalised"


def _decode(kind: str, value: Any, channels: int, *, volume: bool) -> _Decoded:  # Any: see `MemoryImage`
    if kind == "picture":
        return decode_picture(value, channels=channels)
    if kind == "pixels":
        return _decode_planes(as_array(value), channels)
    if value.dtype == np.uint8 and value.ndim == 3 and not volume and value.shape[-1] == 4 and channels in {1, 3}:
        return decode_picture(PillowImage.fromarray(np.ascontiguousarray(value), "RGBA"), channels=channels)
    is_transparent = (
        value.ndim == 3 and not volume and value.shape[-1] in _TRANSPARENT and not fits(value.shape[0], channels)
    )
    if is_transparent and channels in {1, 3} and value.dtype.kind in "uif":
        require_size(value.shape, channels=value.shape[-1])
        return *compose(np.moveaxis(value, -1, 0), channels, Said(alpha=True)), 1
    return *read_array(value, channels=channels, volume=volume and value.ndim > 2), 1


def _decode_planes(planes: NDArray[np.uint8], channels: int) -> _Decoded:
    """Decode uint8 `(C, H, W)`, as `torchvision.io` reads a file: grey, RGB, or one of these with transparency."""
    require_size(planes.shape, channels=len(planes))
    if fits(len(planes), channels):
        return *compose(planes, channels), 1
    mode = _TRANSPARENT.get(len(planes))
    if mode is None or channels not in {1, 3}:
        raise wrong_channels(format_shape(planes.shape), channels=channels)
    return decode_picture(PillowImage.fromarray(np.ascontiguousarray(np.moveaxis(planes, 0, -1)), mode), channels=channels)
