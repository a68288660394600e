"""Load one image as a model takes it: `fmapviz.load_image`."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fmapviz.core.config import explain_arguments
from fmapviz.core.errors import InputError, RequestError, quote, suggest_file
from fmapviz.core.types import ImageFile, Model
from fmapviz.core.words import counted
from fmapviz.images.clips import read_clip, read_fitting
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import is_candidate
from fmapviz.images.frames import frames_of, is_film
from fmapviz.images.memory.image import MemoryImage, memory_image
from fmapviz.images.memory.inputs import is_all_prepared, resolve_inputs
from fmapviz.images.memory.pixels import read_memory_image

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.core.types import Input, Preparation


@explain_arguments
def load_image(path: Input, model: Model) -> Tensor:
    """Read an image and preprocess it for a model, as a run does.

    Args:
        path: A file, an address such as `s3://bucket/photo.jpg`, or a frame of a film such as `clip.mp4/000042`; or a Pillow
            picture, a NumPy array or a uint8 tensor `(C, H, W)`.
        model: What `load_model` returns; its weights define the preprocessing.

    Returns:
        A batch of one, float32 `(1, C, H, W)`, on the device of the model. Join several with `torch.cat`. Where the
        preprocessing of the model is an assumption, a warning says so.

    Raises:
        InputError: The image cannot be read or preprocessed; `code` is the reason.
        RequestError: The model has no preprocessing, because `load_model` did not load it.

    Example:
        >>> from fmapviz import load_model
        >>> load_image("sample_images/shapes/star.jpg", load_model("shapesnet")).shape
        torch.Size([1, 3, 96, 96])
    """
    if not isinstance(model, Model):
        raise RequestError(f"no loaded model: {quote(type(model).__name__)}", hint="fmapviz.load_model returns one")
    device = next(model.module.parameters(), torch.empty(0)).device
    images = [path] if isinstance(path, str | Path) else list(resolve_inputs(path, volumes=model.preparation.volume))
    if model.assumption and not is_all_prepared(images):
        warnings.warn(model.assumption, stacklevel=3)
    if isinstance(path, str | Path):
        return read_prepared(path, model.preparation)[None].to(device)
    if len(images) != 1 or not isinstance(images[0], MemoryImage):
        raise RequestError(
            f"{counted(len(images), 'image')}, where one is expected",
            hint="call once for each, and join them with torch.cat",
        )
    return read_memory_image(images[0], model.preparation).values[None].to(device)


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
    file = ImageFile(name, unit="", size=0, mtime_ns=0)
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
