"""Read one image as a network takes it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from fmapviz.errors import InputError, suggest_file
from fmapviz.images.clips import read_clip, read_fitting
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import is_candidate
from fmapviz.images.frames import frames_of, is_film
from fmapviz.images.memory.image import memory_image
from fmapviz.images.memory.pixels import read_memory_image
from fmapviz.types import ImageFile

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from fmapviz.types import Preparation


def read_prepared(path: str | Path, preparation: Preparation) -> Tensor:
    """Read an image and preprocess it.

    Args:
        path: See `load_image`.
        preparation: The preprocessing of a network.

    Returns:
        float32 `(C, H, W)`, or `(C, T, H, W)` for a clip, on the CPU.

    Raises:
        InputError: The image cannot be read or preprocessed; the hint says what is one image.
    """
    name = os.fspath(path)
    file = ImageFile(name, unit="")
    try:
        if frames := frames_of(name):
            return read_clip(file, frames, preparation)[1]
        return preparation.apply(read_fitting(preparation, partial(read_image, file)).pixels)
    except InputError as error:
        one_file = "one image is a file such as .jpg, .png, .tif or .npy"
        if is_film(name):
            one_file = f"one image is a frame of the film, such as {name}/000000"
        error.advise(error.hint or (suggest_file(name, is_candidate) if error.code == "E_MISSING" else one_file))
        raise


def read_values(file: ImageFile, preparation: Preparation) -> Tensor:
    """Return a listed input, a file or an image in memory, as a network gets it, float32 `(C, ...)`.

    Raises:
        InputError: It cannot be read.
    """
    in_memory = memory_image(file)
    return read_memory_image(in_memory, preparation).values if in_memory else read_prepared(file.path, preparation)
