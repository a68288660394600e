"""Read the images that are drawn again and again while a network is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fmapviz.core.errors import InputError, RequestError
from fmapviz.core.types import Failure, ImageFile
from fmapviz.images.clips import read_clip
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import find_images, unit_name
from fmapviz.images.frames import frames_of
from fmapviz.images.preprocess import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fmapviz.core.types import Preparation

    Given = str | Path | Tensor | Iterable[str | Path | Tensor]

_HINT = "the path of an image, or a prepared tensor (C, H, W), or a list of these"


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """An image that is drawn again and again.

    Attributes:
        file: Its path, and its name in pictures.
        values: Prepared, float32 `(C, ...)`, on the CPU.
    """

    file: ImageFile
    values: Tensor


def read_probes(given: Given, preparation: Preparation) -> list[Probe]:
    """Read and preprocess images.

    Args:
        given: One or several: paths of images, of frames of films, of folders; prepared tensors, each of one image
            `(C, H, W)` or of several `(N, C, H, W)`.
        preparation: The preprocessing of files.

    Raises:
        RequestError: There is none, or something else was given.
        InputError: One of them cannot be read.
    """
    listed = [given] if isinstance(given, str | Tensor) or not hasattr(given, "__iter__") else list(given)
    probes: list[Probe] = []
    for each in listed:
        if isinstance(each, Tensor):
            probes += _of_tensor(each, len(probes))
        else:
            probes += _of_path(each, preparation)
    if not probes:
        raise RequestError("no images to draw while the network is trained", hint=_HINT)
    names = [probe.file.unit for probe in probes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"two images have one name: {twice!r}", hint="give one of the files another name")
    return probes


def _of_path(path: object, preparation: Preparation) -> Iterator[Probe]:
    for found in find_images([path]):  # type: ignore[list-item]  # it refuses what is no path
        if isinstance(found, Failure):
            raise InputError(found.code, found.message, hint=found.hint)
        frames = frames_of(found.path)
        if frames:
            yield Probe(found, read_clip(found, frames, preparation)[1])
        else:
            yield Probe(found, preparation.apply(read_image(found, channels=preparation.channels).pixels))


def _of_tensor(values: Tensor, first: int) -> Iterator[Probe]:
    if not values.is_floating_point() or values.ndim not in {3, 4} or not values.numel():
        raise RequestError(f"no prepared image: {values.dtype} {tuple(values.shape)}", hint=_HINT)
    for number, own in enumerate(values if values.ndim == 4 else [values], first):
        image = own.detach().float().cpu().clone()
        path = f"tensor:{digest_of(image)[:16]}"
        yield Probe(ImageFile(path, unit_name(f"image_{number}", path), image.nbytes, 0), image)
