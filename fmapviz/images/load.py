"""Read an image, from a file, a film or memory, as a network takes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage

from fmapviz.core.samples import Samples
from fmapviz.data import ImageFile
from fmapviz.errors import InputError, suggest_file
from fmapviz.images.arrays import Declared, compose, fits, format_shape, is_about_scaling, read_array, require_size
from fmapviz.images.decode import Image, decode_picture
from fmapviz.images.decode_pool import read_image
from fmapviz.images.errors import explain, wrong_channels
from fmapviz.images.films import read_frames
from fmapviz.images.find import is_candidate
from fmapviz.images.frames import Frames, frames_of, is_film
from fmapviz.images.memory.image import as_array, memory_image
from fmapviz.images.notices import of_repeated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.data import Preparation
    from fmapviz.images.memory.image import MemoryImage

    _Pixels = PillowImage.Image | Samples

_TRANSPARENT = {2: "LA", 4: "RGBA"}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """An image as a network gets it.

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


def read_input(
    file: ImageFile,
    preparation: Preparation,
    *,
    read: Callable[..., Image] = read_image,
    apply: Callable[[_Pixels], Tensor] | None = None,
) -> PreparedImage:
    """Read a listed input, and preprocess it.

    Args:
        file: A file, a frame or a clip of a film, or an image in memory.
        preparation: The preprocessing of a network. A function of the user may make channels that no picture has; it then
            gets the picture in red, green and blue.
        read: Decodes a file, as `read_image` does.
        apply: Preprocesses the pixels of a file, in place of `preparation.apply`.

    Raises:
        InputError: It cannot be read or preprocessed, or the network takes another number of channels.
    """
    if given := memory_image(file):
        return read_memory_image(given, preparation)
    if frames := frames_of(file.path):
        return _read_clip(frames, preparation)
    try:
        image = read(file, channels=preparation.channels, volume=preparation.volume)
    except InputError as error:
        if not preparation.own or error.code != "E_CHANNELS":
            raise
        try:
            image = read(file, channels=3)
        except InputError:
            raise error from None
    return _prepare(image, preparation, apply)


def read_prepared(path: str | Path, preparation: Preparation) -> PreparedImage:
    """Read an image and preprocess it.

    Args:
        path: See `load_image`.
        preparation: The preprocessing of a network.

    Raises:
        InputError: The image cannot be read or preprocessed; the hint describes one image.
    """
    name = os.fspath(path)
    try:
        return read_input(ImageFile(name, unit=""), preparation)
    except InputError as error:
        one_file = "one image is a file such as .jpg, .png, .tif or .npy"
        if is_film(name):
            one_file = f"one image is a frame of the film, such as {name}/000000"
        error.advise(error.hint or (suggest_file(name, is_candidate) if error.code == "E_MISSING" else one_file))
        raise


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
        decoded = _decode_given(image.kind, image.value, preparation.channels, volume=preparation.volume)
    except Exception as error:
        refusal = explain(error, image.name)
        if refusal.code == "E_CHANNELS":
            batch = "list(array) passes each of a batch; " if image.kind == "array" and image.value.ndim == 4 else ""
            refusal.advise(
                f"{batch}an array (H, W, C) or (C, H, W) with as many; a tensor of floats (C, H, W) is used as it is"
            )
        raise refusal from error
    return _prepare(decoded, preparation)


def remark_on_values(prepared: Tensor, preparation: Preparation) -> str:
    """Return a notice if a prepared tensor looks like pixels that were not normalised, as a network expects; else nothing.

    Args:
        prepared: Any shape.
        preparation: The preprocessing of the network, whose mean is known, or nothing can be declared.
    """
    if not any(preparation.mean) or not prepared.numel():
        return ""
    low, high = (float(end) for end in prepared.detach().float().aminmax())
    if not (low >= 0 and (0.5 < high <= 1 or 10 < high <= 255)):
        return ""
    return f"values of {low:.3g} to {high:.3g}: floats are used as they are, and only uint8 pixels are normalised"


def _read_clip(frames: Frames, preparation: Preparation) -> PreparedImage:
    """Read the frames of an image, and preprocess each as soon as it is decoded.

    A network that takes clips takes a single frame as it takes a picture.
    """
    images = read_frames(frames, channels=preparation.channels, count=preparation.frames)
    first = next(images)
    if preparation.frame is None or frames.first == frames.last:
        return _prepare(first, preparation)
    prepared, notices = [preparation.frame(first.pixels)], [*first.notices]
    for image in images:
        prepared.append(preparation.frame(image.pixels))
        notices += image.notices
    values = torch.stack(prepared, dim=0 if preparation.time_first else 1)
    size = first.pixels.width, first.pixels.height
    return PreparedImage(values, size, first.orientation, tuple(dict.fromkeys(notices)))


def _prepare(image: Image, preparation: Preparation, apply: Callable[[_Pixels], Tensor] | None = None) -> PreparedImage:
    """Preprocess a decoded image, and complete the notices on its decoding."""
    pixels, notices, orientation = image
    if preparation.own and isinstance(pixels, Samples):  # which it gets as they are stored
        notices = tuple(notice for notice in notices if not is_about_scaling(notice))
    is_volume = isinstance(pixels, Samples) and pixels.values.ndim == 4
    if preparation.frame is not None and not is_volume:
        notices = (*notices, of_repeated(preparation.frames))
    return PreparedImage((apply or preparation.apply)(pixels), (pixels.width, pixels.height), orientation, notices)


def _decode_given(kind: str, value: Any, channels: int, *, volume: bool) -> Image:  # Any: see `MemoryImage`
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
        return Image(*compose(np.moveaxis(value, -1, 0), channels, Declared(alpha=True)))
    return Image(*read_array(value, channels=channels, volume=volume and value.ndim > 2))


def _decode_planes(planes: NDArray[np.uint8], channels: int) -> Image:
    """Decode uint8 `(C, H, W)`, as `torchvision.io` reads a file: grey, RGB, or one of these with transparency."""
    require_size(planes.shape, channels=len(planes))
    if fits(len(planes), channels):
        return Image(*compose(planes, channels))
    mode = _TRANSPARENT.get(len(planes))
    if mode is None or channels not in {1, 3}:
        raise wrong_channels(format_shape(planes.shape), channels=channels)
    return decode_picture(PillowImage.fromarray(np.ascontiguousarray(np.moveaxis(planes, 0, -1)), mode), channels=channels)
