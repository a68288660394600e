"""Read what is given as inputs: paths, Pillow pictures, arrays, tensors, or lists of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from fmapviz.core.errors import RequestError, quote
from fmapviz.images.memory.image import MemoryImage, load_picture

if TYPE_CHECKING:
    from fmapviz.core.types import Inputs
    from fmapviz.images.memory.image import Kind

    Listed = str | Path | MemoryImage

_PATH = "a file or a folder"
_TAKEN = (
    "a Pillow picture, a NumPy array (H, W, C), a uint8 tensor (C, H, W), prepared floats (N, C, H, W), or a list of these"
)
_LISTS = (list, tuple, set, frozenset)


def resolve_inputs(inputs: Inputs) -> Iterable[Listed]:
    """Return the inputs of a run one by one, with a name for each image in memory.

    A picture that Pillow has opened from a file has the name of that file, any other image `image_0`, `image_1`, ... by its
    position among the inputs; a batch of N images takes N positions.

    Args:
        inputs: A path, a picture, an array, a tensor, or an iterable of these. Of a list, nothing is copied. What is not a
            list, tuple or set is read as it yields, and copied then: the images may be in one buffer that is used again.

    Returns:
        Paths as they are, and a `MemoryImage` for each other image; a list, if the inputs can be listed twice.

    Raises:
        RequestError: An input is something else; of an iterator when it is reached.
    """
    given: object = inputs
    if isinstance(given, str | Path | MemoryImage) or _is_value(given):
        return list(_resolve([given]))
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise _refusal(given)
    if isinstance(given, _LISTS) or (isinstance(given, Sized) and len(given) == 0):
        return list(_resolve(given))
    return _resolve(given, copied=True)


def only_files(inputs: Iterable[Listed]) -> Iterable[str | Path]:
    """Return the inputs of what reads files only: a run on a cluster, and a dry run; a list, if they are one.

    Raises:
        RequestError: One is in memory; of an iterator when it is reached.
    """

    def check(each: Listed) -> str | Path:
        if isinstance(each, MemoryImage):
            hint = "save it as a file that every worker can read, or leave out engine="
            raise RequestError(f"only this process can read an image in memory: {quote(each.name)}", hint=hint)
        return each

    return [check(each) for each in inputs] if isinstance(inputs, list) else map(check, inputs)


def kind_of(value: object) -> Kind:
    """Return how the image or images in a picture, an array or a tensor are stored; see `MemoryImage`.

    Raises:
        RequestError: It is something else, or has another shape or type than an image.

    Example:
        >>> kind_of(torch.rand(2, 3, 8, 8)), kind_of(np.zeros((8, 8, 3)))
        ('prepared', 'array')
    """
    if isinstance(value, PillowImage.Image):
        return "picture"
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "buif" and 2 <= value.ndim <= 4 and value.size:
            return "array"
        shown = f"array of {value.dtype} {value.shape}"
        raise RequestError(f"no image: {quote(shown)}", hint="real numbers (H, W), (H, W, C) or (C, H, W)")
    if isinstance(value, Tensor):
        if _is_dense(value) and value.numel():
            if value.dtype == torch.uint8 and value.ndim in {3, 4}:
                return "pixels"
            if value.is_floating_point() and value.ndim in {3, 4, 5}:
                return "prepared"
        shown = f"{value.dtype} {tuple(value.shape)}"
        hint = "uint8 pixels (C, H, W), or prepared floats (C, H, W) or (N, C, H, W), dense and with values"
        raise RequestError(f"no image: {quote(shown)}", hint=hint)
    raise _refusal(value)


def images_in(value: Any, kind: Kind) -> list[Any]:  # Any: see `MemoryImage`
    """Return the images in a batch: tensors of more than three axes are N images, of five N clips; all else is one image."""
    return list(value.detach()) if kind in {"pixels", "prepared"} and value.ndim > 3 else [value]


def _is_value(inputs: object) -> bool:
    """Return True for one image or a batch; an array may also hold paths."""
    return isinstance(inputs, PillowImage.Image | Tensor) or (
        isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "OU"
    )


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)


def _resolve(inputs: Iterable[Any], *, copied: bool = False) -> Iterator[Listed]:  # Any: of the user
    position = 0
    for value in inputs:
        if isinstance(value, str | Path | MemoryImage):
            yield value
            position += 1
            continue
        kind = kind_of(value)
        for image in images_in(value, kind):
            yield MemoryImage(_name_of(image) or f"image_{position}", kind, _copy(image, kind) if copied else image)
            position += 1


def _name_of(image: object) -> str:
    """Return the name of the file that Pillow has opened; empty if there is none."""
    path = getattr(image, "filename", "") if isinstance(image, PillowImage.Image) else ""
    return PurePath(path).name if isinstance(path, str | PurePath) and "\0" not in str(path) else ""


def _copy(image: Any, kind: Kind) -> Any:  # Any: see `MemoryImage`
    if kind in {"pixels", "prepared"}:
        return image.clone()
    if kind == "picture":
        with suppress(Exception):  # a damaged file is reported when it is read
            load_picture(image)
            return image.copy()
        return image
    return image.copy()


def _refusal(value: object) -> RequestError:
    return RequestError(f"no input for a network: {quote(type(value).__name__)}", hint=f"{_PATH}, {_TAKEN}")
