"""Read a frame or a clip of a film as a network takes it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fmapviz.core.samples import Samples
from fmapviz.errors import InputError
from fmapviz.images.arrays import is_about_scaling
from fmapviz.images.films import read_frames
from fmapviz.images.notices import of_repeated

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image as PillowImage
    from torch import Tensor

    from fmapviz.images.frames import Frames
    from fmapviz.types import Image, ImageFile, Preparation


def read_fitting(preparation: Preparation, read: Callable[..., Image]) -> Image:
    """Read an image with the channels that a network takes.

    A function of the user may make channels that no picture has; it then gets the picture in red, green and blue.

    Args:
        preparation: Preprocesses it.
        read: Takes the number of channels as `channels`, and whether the network takes volumes as `volume`.

    Raises:
        InputError: It cannot be read, or has another number of channels.
    """
    try:
        image = read(channels=preparation.channels, volume=preparation.volume)
    except InputError as error:
        if not preparation.own or error.code != "E_CHANNELS":
            raise
        image = _read_rgb(read, error)
    notices = image.notices
    if preparation.own and isinstance(image.pixels, Samples):  # which it gets as they are stored
        notices = tuple(notice for notice in notices if not is_about_scaling(notice))
    return replace(image, notices=(*notices, *remarks_on_repeating(image.pixels, preparation)))


def remarks_on_repeating(pixels: PillowImage.Image | Samples, preparation: Preparation) -> tuple[str, ...]:
    """Return a notice if a picture is repeated, for a network that takes clips."""
    is_volume = isinstance(pixels, Samples) and pixels.values.ndim == 4
    return () if preparation.frame is None or is_volume else (of_repeated(preparation.frames),)


def _read_rgb(read: Callable[..., Image], refusal: InputError) -> Image:
    with suppress(InputError):
        return read(channels=3, volume=False)
    raise refusal


def read_clip(file: ImageFile, frames: Frames, preparation: Preparation) -> tuple[Image, Tensor]:
    """Read the frames of an image, and preprocess each as soon as it is decoded.

    Args:
        file: The image.
        frames: What its path names. A network that takes clips takes a single frame as it takes a picture.
        preparation: Preprocesses them.

    Returns:
        The first frame, and what the network takes: float32 `(C, H, W)`, `(C, T, H, W)` or `(T, C, H, W)`.

    Raises:
        InputError: A frame cannot be read or preprocessed.
    """
    images = read_frames(file, frames, channels=preparation.channels, count=preparation.frames)
    first = next(images)
    if preparation.frame is None or frames.first == frames.last:
        remarks = (*first.notices, *remarks_on_repeating(first.pixels, preparation))
        return replace(first, notices=remarks), preparation.apply(first.pixels)
    prepared, notices = [preparation.frame(first.pixels)], [*first.notices]
    for image in images:
        prepared.append(preparation.frame(image.pixels))
        notices += image.notices
    return replace(first, notices=tuple(dict.fromkeys(notices))), torch.stack(
        prepared, dim=0 if preparation.time_first else 1
    )
