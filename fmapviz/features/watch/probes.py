"""Read the images that are drawn again and again while a network is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fmapviz.errors import InputError, RequestError, quote
from fmapviz.images.find import find_images
from fmapviz.images.load import read_values
from fmapviz.images.memory.inputs import resolve_inputs
from fmapviz.store.unit_key import distinct_name
from fmapviz.types import Failure

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.types import ImageFile, Inputs, Preparation


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """An image that is drawn again and again.

    Attributes:
        file: Its path, and its name in pictures.
        values: Prepared, float32 `(C, ...)`, on the CPU.
    """

    file: ImageFile
    values: Tensor


def read_probes(given: Inputs, preparation: Preparation) -> list[Probe]:
    """Read and preprocess images.

    Args:
        given: As of `fmapviz.visualize`: paths, pictures, arrays, tensors, or a list of these.
        preparation: The preprocessing of what is not prepared.

    Raises:
        RequestError: There is none, one is given twice, or something else was given.
        InputError: One of them cannot be read.
    """
    probes: dict[str, Probe] = {}
    for found in find_images(list(resolve_inputs(given, volumes=preparation.volume))):
        if isinstance(found, Failure):
            raise InputError(found.code, found.message, hint=found.hint)
        file = replace(found, unit=distinct_name(found.unit, found.path)) if found.unit in probes else found
        if file.unit in probes:
            raise RequestError(f"an image is given twice: {quote(file.unit)}", hint="leave it out once")
        values = read_values(file, preparation)
        with torch.inference_mode(mode=False):  # a tensor of that mode has no gradients
            probes[file.unit] = Probe(file, values.detach().cpu().clone())
    if not probes:
        raise RequestError("no images to draw while the network is trained", hint="such as 'cat.png', or a list")
    return list(probes.values())
