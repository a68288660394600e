"""Read the images in which `off=` looks up what replaces a channel."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from fmapviz.config.changes import Changes, Off
from fmapviz.core.urls import is_url
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import RequestError, quote
from fmapviz.images.find import find_images
from fmapviz.images.load import read_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from fmapviz.data import Preparation


@dataclass(frozen=True, kw_only=True)
class OffImages(Changes):
    """Changes by which a channel is replaced by what it is in other images.

    Attributes:
        images: Those images, in natural order.
        averaged: Whether it is the mean over all of them; else it is what the channel is in the only one.
        preparation: Their preprocessing, that of the network.
        sha256: Of their prepared values, hexadecimal.
    """

    images: tuple[ImageFile, ...]
    averaged: bool
    preparation: Preparation
    sha256: str

    def read(self) -> Iterator[Tensor]:
        """Yield the prepared images, float32 `(1, C, H, W)` on the CPU.

        Raises:
            InputError: One cannot be read any more.
        """
        for image in self.images:
            yield read_input(image, self.preparation).values[None]


def read_off_images(changes: Changes, preparation: Preparation) -> Changes:
    """Return the changes with the images that `off` names; the same changes if it is a word.

    Args:
        changes: As requested.
        preparation: Of the network.

    Raises:
        InputError: An image cannot be read or preprocessed.
        RequestError: `off` is neither a word, nor a file or a folder with an image.
    """
    if changes.off in get_args(Off):
        return changes
    images = list[ImageFile]()
    for found in find_images([changes.off]):
        if isinstance(found, Failure):
            is_missing = found.code == "E_MISSING"
            raise RequestError(f"no such off: {quote(changes.off)}" if is_missing else found.message, hint=_WORDS)
        images.append(found)
    if not images:
        raise RequestError(f"no image in {quote(changes.off)}", hint=_WORDS)
    averaged = os.path.isdir(changes.off) or (is_url(changes.off) and images[0].path != changes.off)
    read = OffImages(**vars(changes), images=tuple(images), averaged=averaged, preparation=preparation, sha256="")
    digest = hashlib.sha256()
    for values in read.read():
        digest.update(f"{tuple(values.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return OffImages(**vars(read) | {"sha256": digest.hexdigest()})


_WORDS = f"one of {', '.join(get_args(Off))}, an image, or a folder of images"
