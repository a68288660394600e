"""Make a batch for a network from a caller's images, and `fmapviz.load_image`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fmapviz.config import InputOptions, check_type, explain_arguments
from fmapviz.core.placement import InFile
from fmapviz.core.words import counted
from fmapviz.data import Model, Preparation
from fmapviz.errors import RequestError, quote
from fmapviz.images.load import read_memory_image, read_prepared, remark_on_values
from fmapviz.images.memory.image import MemoryImage
from fmapviz.images.memory.inputs import images_in, is_all_prepared, kind_of, resolve_inputs, values_in
from fmapviz.images.placement import find_placement
from fmapviz.models.homes import find_homes
from fmapviz.models.network import (
    BY_OPTIONS,
    check_values,
    describe_network,
    find_layout,
    said_of_outputs,
    takes_volumes,
)
from fmapviz.models.recognise import recognise, recognise_outputs
from fmapviz.models.weights.fit import LoadedWeights
from fmapviz.observe.layers import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.data import Input, Inputs
    from fmapviz.images.load import PreparedImage


class Batch(NamedTuple):
    """A batch for a network.

    Attributes:
        values: `(N, C, H, W)`.
        model: The network with the preprocessing of its inputs.
        pictures: Width and height of the upright picture of each image; None of a prepared tensor.
    """

    values: Tensor
    model: Model
    pictures: Sequence[tuple[int, int] | None]

    def files(self) -> list[InFile | None]:
        """Return where each image lies in its file; None of a prepared tensor."""
        place = cache(partial(find_placement, self.model.preparation))
        return [each and InFile(place(each), each) for each in self.pictures]


def make_batch(x: Inputs, model: nn.Module | Model) -> Batch:
    """Return the batch for a network, and the network with the preprocessing of its inputs.

    Args:
        x: A path, a picture, an array or a tensor, or an iterable of these, as `fmapviz.visualize` takes them. A single
            tensor of floats is returned as it is, on its device, with N added if it has no such axis.
        model: A network without preprocessing gets that of ImageNet, or its own, only if `x` holds an image to preprocess.

    Returns:
        The batch, of several images on the device of the network.

    Raises:
        InputError: An image cannot be read or preprocessed.
        RequestError: `x` is something else, or its images differ in shape once they are prepared.

    Example:
        >>> from PIL import Image
        >>> from fmapviz import load_model
        >>> star = "sample_images/shapes/star.jpg"
        >>> make_batch([star, Image.open(star)], load_model("shapesnet")).values.shape
        torch.Size([2, 3, 96, 96])
    """
    images = values_in(x)
    if not images:
        raise RequestError("no image: the list is empty", hint="a path, a picture, an array or a tensor, or several")
    prepared = [isinstance(each, Tensor) and kind_of(each) == "prepared" for each in images]
    is_loaded = isinstance(model, Model)
    if not isinstance(model, Model):
        network = unwrap(model)
        model = _describe_outputs(network) if all(prepared) else describe_given(network, code=None)
    parts, pictures = list[Tensor](), list[tuple[int, int] | None]()
    for position, (each, is_prepared) in enumerate(zip(images, prepared, strict=True)):
        if is_prepared:
            parts.append(_with_batch_axis(each, model.preparation))
            pictures += [None] * len(parts[-1])
        else:
            read = _prepare(each, model.preparation, position)
            parts.append(torch.stack([one.values for one in read]))
            pictures += [one.size for one in read]
    if model.assumption and not (is_loaded and all(prepared)):
        warnings.warn(model.assumption.replace(BY_OPTIONS, "prepared tensors"), stacklevel=4)
    remarks = (remark_on_values(part, model.preparation) for part, given in zip(parts, prepared, strict=True) if given)
    if remark := next(filter(None, remarks), ""):
        warnings.warn(remark, stacklevel=4)
    if len(parts) == 1 and prepared[0]:
        return Batch(parts[0], model, pictures)
    device = next(model.module.parameters(), torch.empty(0)).device
    try:
        return Batch(torch.cat([part.to(device) for part in parts]), model, pictures)
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(part.shape[1:])) for part in parts[:4])
        hint = "call once for each, or load the model with InputOptions(size=), which gives all one size"
        raise RequestError(f"prepared images that differ in shape: {quote(shapes)}", hint=hint) from error


@explain_arguments
def load_image(path: Input, model: nn.Module | Model) -> Tensor:
    """Read an image and preprocess it for a model, as a run does.

    Args:
        path: A file, an address such as `s3://bucket/photo.jpg`, or a frame of a film such as `clip.mp4/000042`; or a Pillow
            picture, a NumPy array or a uint8 tensor `(C, H, W)`.
        model: A result of `load_model`, whose weights define the preprocessing; or any network: its own preprocessing, or
            ImageNet's.

    Returns:
        A batch of one, float32 `(1, C, H, W)`, on the device of the model. Join several with `torch.cat`. Where the
        preprocessing of the model is an assumption, a warning says so.

    Raises:
        InputError: The image cannot be read or preprocessed; `code` is the reason.
        RequestError: There are several images, or it is no network.

    Example:
        >>> from fmapviz import load_model
        >>> load_image("sample_images/shapes/star.jpg", load_model("shapesnet")).shape
        torch.Size([1, 3, 96, 96])
    """
    check_type("model", model, nn.Module | Model, hint="what fmapviz.load_model returns, or a torch.nn.Module")
    if not isinstance(model, Model):
        model = describe_given(unwrap(model), code=None)
    device = next(model.module.parameters(), torch.empty(0)).device
    images = [path] if isinstance(path, str | Path) else list(resolve_inputs(path, volumes=model.preparation.volume))
    if model.assumption and not is_all_prepared(images):
        warnings.warn(model.assumption, stacklevel=3)
    if isinstance(path, str | Path):
        return read_prepared(path, model.preparation).values[None].to(device)
    if len(images) != 1 or not isinstance(images[0], MemoryImage):
        raise RequestError(
            f"{counted(len(images), 'image')}, where one is expected",
            hint="call once for each, and join them with torch.cat",
        )
    return read_memory_image(images[0], model.preparation).values[None].to(device)


def describe_given(
    network: nn.Module, *, preprocessing: InputOptions = InputOptions(), code: tuple[Path, ...] | None = ()
) -> Model:
    """Return a network that was given in Python as a `Model`; see `describe_network`.

    Its preprocessing is that of the module of its class, or, of a network of torchvision or timm, that of its library.

    Raises:
        RequestError: It takes no single batch of images, or has shapes but no values.
    """
    check_values(network)
    loaded = LoadedWeights(network, "weights as given")
    name = type(network).__name__.lower()
    known = recognise(network, preprocessing)
    homes, notice = ([], "") if known else find_homes(network)
    model = describe_network(
        loaded, name=name, preprocessing=preprocessing, code=code, homes=homes, forward=known.forward if known else None
    )
    if known and not model.preparation.own:
        model = replace(model, preparation=known.preparation, batches=known.batches, assumption=known.assumption, own=True)
        return replace(model, classes=known.classes or model.classes)
    if notice and (model.assumption or homes):
        assumption = f"{notice}; {model.assumption}" if model.assumption else notice
        return replace(model, assumption=assumption)
    return model


def _describe_outputs(network: nn.Module) -> Model:
    """Return a network that gets prepared inputs only, with the declarations of its outputs and axes."""
    homes, is_guess = find_homes(network)
    classes, scores = said_of_outputs([network, *homes])
    guess = ""
    if is_guess and homes and (classes or scores):
        guess = f"the network's classes are of a library: what {homes[0].__name__} says of the outputs is taken"
    unknown = replace(_UNKNOWN, volume=takes_volumes(network))
    layout = find_layout(network, *homes)
    model = Model("", network, "", None, unknown, classes=classes, scores=scores, layout=layout, own=True, assumption=guess)
    if known := recognise_outputs(network):
        return replace(model, classes=known.classes, forward=known.forward or model.forward, assumption=known.assumption)
    return model


def _with_batch_axis(prepared: Tensor, preparation: Preparation) -> Tensor:
    return prepared[None] if prepared.ndim <= (4 if preparation.volume else 3) else prepared


def _prepare(image: Any, preparation: Preparation, position: int) -> list[PreparedImage]:  # Any: of the user
    """Return one image, or those of a uint8 batch."""
    if isinstance(image, str | Path):
        return [read_prepared(image, preparation)]
    kind = kind_of(image)
    each = (MemoryImage(f"image_{position}", kind, one) for one in images_in(image, kind))
    return [read_memory_image(one, preparation) for one in each]


def _prepare_nothing(_picture: object) -> Tensor:
    raise NotImplementedError


_UNKNOWN = Preparation(_prepare_nothing, mean=(), std=(), description="")
