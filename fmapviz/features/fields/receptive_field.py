"""Compute the receptive fields of a model's layers: `fmapviz.receptive_field`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.config import InputOptions, check_type, explain_arguments, renamed
from fmapviz.run.layer_list import load_and_list
from fmapviz.run.places import find_fields, input_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fmapviz.data import LayerInfo, Model
    from fmapviz.observe.receptive_field import ReceptiveField


@renamed(options="preprocessing")
@explain_arguments
def receptive_field(
    model: str | nn.Module | Model,
    size: int | tuple[int, int] | None = None,
    *,
    layers: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    types: str | Sequence[str] = (),
    preprocessing: InputOptions | None = None,
) -> dict[str, ReceptiveField]:
    """Compute the receptive field of each layer: the input pixels that each position of its feature map depends on.

    Intervals of pixels are followed through every operator that runs, also those without a module, so the fields are exact.
    Where they cannot be followed, as through attention, or where rows and columns of the picture are exchanged, the field is
    the whole picture, and `reason` says so.
    Weights are not needed: the forward pass runs on the meta device, which computes nothing, if the model can run there.

    Args:
        model: A name such as `alexnet`, any `nn.Module` that takes a batch `(N, 3, H, W)`, or what `load_model` returns.
        size: Input size in pixels: a number, or height and width. By default that of the model's preparation.
        layers: Globs over dotted names; none means all of the types.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, else Conv3d, and blocks of transformers.
        preprocessing: Changes to the preparation of the input.

    Returns:
        The fields by the name of the feature map, in the order of execution: `relu#2` for a second call, `head['out']` for a
        part of a layer's output.

    Raises:
        RequestError: An unknown model, a type or glob that fits nothing.
        ForwardError: The forward pass fails; the message names the last layer that ran.

    Example:
        >>> field = receptive_field("resnet18")["layer4.1.conv2"]
        >>> field.size, field.stride, field.start, field.box(3, 3)
        ((435, 435), (32, 32), (-217, -217), (-121, -121, 314, 314))
    """
    preprocessing = (
        check_type("preprocessing", preprocessing, InputOptions | None, hint="such as InputOptions(fit='pad')")
        or InputOptions()
    )
    if size is not None:
        preprocessing = replace(preprocessing, size=size)
    listed = load_and_list(model, layers=layers, exclude=exclude, types=types, preprocessing=preprocessing)
    shape = input_shape(listed.model)
    if isinstance(preprocessing.size, tuple) and size is not None:
        shape = (*shape[:-2], *preprocessing.size)
    return find_fields(listed.model, [row.name for row in listed.rows], shape)


def fields_by_layer(model: Model, rows: Sequence[LayerInfo]) -> dict[str, ReceptiveField]:
    """Return the field of each layer's first output, for those layers that run; see `find_fields`."""
    fields = find_fields(model, [row.name for row in rows], input_shape(model))
    firsts = {
        row.name: next((key for key in fields if key == row.name or key.startswith(f"{row.name}[")), "") for row in rows
    }
    return {name: fields[first] for name, first in firsts.items() if first}
