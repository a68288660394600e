"""Read inputs: paths, Pillow pictures, arrays, tensors, or lists of these."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from functools import cache, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from fmapviz.errors import RequestError, quote
from fmapviz.images.memory.image import MemoryImage, load_picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmapviz.data import Inputs
    from fmapviz.images.memory.image import Kind

    Listed = str | Path | MemoryImage

_PATH = "a file or a folder"
_TAKEN = (
    "a Pillow picture, a NumPy array (H, W, C), a uint8 tensor (C, H, W), prepared floats (N, C, H, W), a batch or a data "
    "set of these, or a list"
)
_LISTS = (list, tuple, set, frozenset)
# Under these keys data sets and image processors hold pictures, the likeliest one first.
_KEYS = ("pixel_values", "image", "images", "img", "imgs", "input", "inputs", "x", "picture", "pixels", "jpg", "jpeg", "png")


def resolve_inputs(
    inputs: Inputs, notify: Callable[[str], object] | None = None, *, volumes: bool = False
) -> Iterable[Listed]:
    """Return the inputs of a run one by one, with a name for each image in memory.

    A picture that Pillow has opened from a file has the name of that file, any other image `image_0`, `image_1`, ... by its
    position among the inputs; a batch of N images takes N positions. Of a batch, or of an item of a data set, with labels
    `(images, labels)` or in a dictionary, the images are taken.

    Args:
        inputs: A path, a picture, an array, a tensor, or an iterable or a data set of these. Of a list, nothing is copied.
            What is not a list, tuple or set is read as it yields, and copied then: the images may be in one buffer that is
            used again.
        notify: Called with a remark on what is left out, each once; None: it is a warning.
        volumes: Whether the network takes volumes, so that a tensor of floats `(C, D, H, W)` is one of them, and no batch.

    Returns:
        Paths as they are, and a `MemoryImage` for each other image; a list, if the inputs can be listed twice.

    Raises:
        RequestError: An input is something else; of an iterator when it is reached.
    """
    values, is_list = _values_in(inputs, notify)
    return list(_named(values, volumes=volumes)) if is_list else _named(values, volumes=volumes, copied=True)


def values_in(inputs: Inputs) -> list[Any]:  # Any: see `MemoryImage`
    """Return the images, batches and paths of inputs in a list, without labels and the like.

    Raises:
        RequestError: See `resolve_inputs`.
    """
    values = [*_values_in(inputs, None)[0]]
    for value in values:
        if not isinstance(value, str | Path):
            kind_of(value)
    return values


def is_all_prepared(inputs: object) -> bool:
    """Return True for a list of inputs that are all prepared tensors, to which no preprocessing is applied."""
    return isinstance(inputs, list) and all(isinstance(item, MemoryImage) and item.kind == "prepared" for item in inputs)


def only_files(inputs: Iterable[Listed]) -> Iterable[str | Path]:
    """Return the inputs of a run on a cluster, or of a dry run, which read only files; a list if the inputs are one.

    Raises:
        RequestError: One is in memory; of an iterator when it is reached.
    """

    def check(item: Listed) -> str | Path:
        if isinstance(item, MemoryImage):
            hint = "save it as a file that every worker can read, or leave out engine="
            raise RequestError(f"only this process can read an image in memory: {quote(item.name)}", hint=hint)
        return item

    return [check(item) for item in inputs] if isinstance(inputs, list) else map(check, inputs)


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
        if value.dtype.kind in "buif" and 2 <= value.ndim <= 4 + (value.shape[:1] == (1,)) and value.size:
            return "array"
        shown = f"array of {value.dtype} {value.shape}"
        raise RequestError(f"no image: {quote(shown)}", hint="real numbers (H, W), (H, W, C) or (C, H, W)")
    if isinstance(value, Tensor):
        is_dense = value.layout == torch.strided and not (value.is_quantized or value.is_nested or value.is_meta)
        if is_dense and value.numel():
            if value.dtype == torch.uint8 and value.ndim in {3, 4}:
                return "pixels"
            if value.is_floating_point() and value.ndim in {3, 4, 5}:
                return "prepared"
        shown = f"{value.dtype} {tuple(value.shape)}"
        hint = "uint8 pixels (C, H, W), or prepared floats (C, H, W) or (N, C, H, W), dense and with values"
        if value.is_floating_point() and value.ndim < 3:
            hint += "; of signals, `with fmapviz.capture(model) as maps: model(signals)` has the feature maps"
        raise RequestError(f"no image: {quote(shown)}", hint=hint)
    raise _refusal(value)


def images_in(value: Any, kind: Kind, *, volumes: bool = False) -> list[Any]:  # Any: see `MemoryImage`
    """Return the images in a batch: tensors of more than three axes are N images, of five N clips; all else is one image.

    For a network of volumes a tensor of floats with four axes is one of them.
    """
    axes = 4 if volumes and kind == "prepared" else 3
    return list(value.detach()) if kind in {"pixels", "prepared"} and value.ndim > axes else [value]


def _is_value(inputs: object) -> bool:
    """Return True for one image or a batch; an array may also hold paths."""
    return isinstance(inputs, PillowImage.Image | Tensor) or (
        isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "OU"
    )


def _values_in(inputs: object, notify: Callable[[str], object] | None) -> tuple[Iterable[Any], bool]:  # Any: of the user
    """Return the images, batches and paths of inputs one by one, and whether the inputs can be listed twice."""
    remark = cache(notify or partial(warnings.warn, stacklevel=2))
    if isinstance(inputs, str | Path | MemoryImage) or _is_value(inputs):
        return [inputs], True
    if isinstance(inputs, Mapping) or (isinstance(inputs, list | tuple) and _is_batch(inputs)):
        return _images_of(inputs, remark), True
    items: Iterable[Any]
    if isinstance(inputs, Iterable) and not isinstance(inputs, bytes):
        items = inputs
    elif isinstance(inputs, Sized) and hasattr(inputs, "__getitem__") and not isinstance(inputs, bytes):
        items = (inputs[position] for position in range(len(inputs)))  # a data set of PyTorch need not be iterable
    else:
        raise _refusal(inputs)
    is_list = isinstance(inputs, _LISTS) or (isinstance(inputs, Sized) and len(inputs) == 0)
    return (value for item in items for value in _images_in_item(item, remark)), is_list


def _named(values: Iterable[Any], *, volumes: bool, copied: bool = False) -> Iterator[Listed]:  # Any: of the user
    position = 0
    for value in values:
        if isinstance(value, str | Path | MemoryImage):
            yield value
            position += 1
            continue
        kind = kind_of(value)
        for image in images_in(value, kind, volumes=volumes):
            yield MemoryImage(_name_of(image) or f"image_{position}", kind, _copy(image, kind) if copied else image)
            position += 1


def _images_in_item(item: object, remark: Callable[[str], object]) -> list[object]:
    """Return the images of a batch or of an item of a data set; an image itself otherwise."""
    if isinstance(item, Mapping) or (isinstance(item, list | tuple) and item):
        return _images_of(item, remark)
    return [item]


def _images_of(item: Mapping[Any, Any] | Sequence[Any], remark: Callable[[str], object]) -> list[object]:
    """Return the images of a dictionary, of a pair with labels, or of a list of either.

    Raises:
        RequestError: There is none.
    """
    if isinstance(item, Mapping):
        keys = [key for key in _KEYS if key in item and item[key] is not None]
        if not keys:
            shown = ", ".join(map(str, item)) or "none"
            raise RequestError(
                f"no image in a dictionary of the keys {quote(shown)}", hint=f"the keys of images are {', '.join(_KEYS)}"
            )
        if left := [str(key) for key in item if key != keys[0]]:
            remark(f"of each dictionary the images under {quote(keys[0])} are drawn, not {', '.join(map(quote, left))}")
        return _images_in_item(item[keys[0]], remark)
    first, rest = item[0], item[1:]
    if isinstance(item, list) and all(isinstance(part, Mapping | tuple) or _is_image(part) for part in item):
        alike = len({tuple(part.shape[1:]) if isinstance(part, Tensor) else None for part in item}) == 1
        if alike or not isinstance(first, Tensor):
            return [image for part in item for image in _images_in_item(part, remark)]
    if rest:
        remark("of each batch or item with several parts the first one is drawn: labels and the like are left out")
    return _images_in_item(first, remark)


def _is_batch(given: Sequence[Any]) -> bool:
    """Return True for a batch `(images, labels)`: images in memory, followed by values that are no images."""
    return len(given) > 1 and (_is_value(given[0]) or isinstance(given[0], Mapping)) and not any(map(_is_image, given[1:]))


def _is_image(value: object) -> bool:
    if isinstance(value, str | Path | MemoryImage | Mapping):
        return True
    with suppress(RequestError):
        kind_of(value)
        return True
    return False


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
