"""Read a frame or a clip of a film as a network takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.images.films import read_frames

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.core.types import Image, ImageFile, Preparation
    from fmapviz.images.frames import Frames


def read_clip(file: ImageFile, frames: Frames, preparation: Preparation) -> tuple[Image, Tensor]:
    """Read the frames of an image, and preprocess each as soon as it is decoded.

    Args:
        file: The image.
        frames: What its path names. A network that takes clips takes a single frame as it takes a picture.
        preparation: Preprocesses them.

    Returns:
        The first frame, and what the network takes: float32 `(C, H, W)`, or `(C, T, H, W)`.

    Raises:
        InputError: A frame cannot be read or preprocessed.
    """
    images = read_frames(file, frames, channels=preparation.channels, count=preparation.frames)
    first = next(images)
    if preparation.frame is None or frames.first == frames.last:
        return first, preparation.apply(first.pixels)
    prepared = [preparation.frame(first.pixels), *(preparation.frame(image.pixels) for image in images)]
    return first, torch.stack(prepared, dim=1)
