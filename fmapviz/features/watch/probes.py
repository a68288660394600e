"""Read the images that a watch draws at each step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fmapviz.core.file_names import folded
from fmapviz.data import Failure
from fmapviz.errors import InputError, RequestError, quote
from fmapviz.images.find import find_images
from fmapviz.images.load import read_input, remark_on_values
from fmapviz.images.memory.inputs import is_all_prepared, resolve_inputs
from fmapviz.run.kept_passes import ReadImage
from fmapviz.store.unit_key import distinct_name

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.data import ImageFile, Inputs, Model


def read_probes(given: Inputs, model: Model) -> tuple[list[ImageFile], str]:
    """Read and preprocess images.

    Args:
        given: As of `fmapviz.visualize`: paths, pictures, arrays, tensors, or a list of these.
        model: Its preprocessing is applied to images that are not prepared.

    Returns:
        The images, each with its values in memory as a `ReadImage`, and what is assumed about their preprocessing.

    Raises:
        RequestError: There is none, one is given twice, or something else was given.
        InputError: One of them cannot be read.
    """
    probes: dict[str, ImageFile] = {}
    preparation, remarks, are_prepared = model.preparation, list[str](), True
    for found in find_images(list(resolve_inputs(given, volumes=preparation.volume))):
        if isinstance(found, Failure):
            raise InputError(found.code, found.message, hint=found.hint)
        taken = {folded(unit) for unit in probes}
        file = replace(found, unit=distinct_name(found.unit, found.path)) if folded(found.unit) in taken else found
        if file.unit in probes:
            raise RequestError(f"an image is given twice: {quote(file.unit)}", hint="leave it out once")
        values = read_input(file, preparation).values
        with torch.inference_mode(mode=False):  # a tensor of that mode has no gradients
            own = values.detach().cpu().clone()
        probes[file.unit] = replace(file, content=ReadImage(partial(_read_again, own)))
        if is_all_prepared([file.content]):
            remarks += filter(None, [remark_on_values(own, preparation)])
        else:
            are_prepared = False
    if not probes:
        raise RequestError("no images to draw while the network is trained", hint="such as 'cat.png', or a list")
    return list(probes.values()), next(iter(remarks), "") if are_prepared else model.assumption


def _read_again(values: Tensor) -> tuple[Tensor, dict[str, str], None]:
    return values, {}, None
