"""List a model's layers in the order of execution, with their shapes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.config import InputOptions, check_type, explain_arguments, renamed
from fmapviz.core.layout import Layout
from fmapviz.core.lazy_torchvision import uncompiled
from fmapviz.core.user_code import report_of
from fmapviz.data import LayerInfo, Model
from fmapviz.images.preprocess import grey_input
from fmapviz.models.homes import find_homes
from fmapviz.models.known_layers import remember
from fmapviz.models.load import load_model, outline_model
from fmapviz.models.network import describe_network
from fmapviz.models.weights.fit import LoadedWeights
from fmapviz.observe.detectors import find_detector, is_detection, with_feeds
from fmapviz.observe.hooks import observe
from fmapviz.observe.layers import find_layers, select_layers, unwrap
from fmapviz.observe.layouts.find import LayoutFinder
from fmapviz.observe.macs import MacCounter
from fmapviz.observe.outputs import keys_of, tensors
from fmapviz.run.forward_pass import ForwardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.data import FeatureMap, Layer


@dataclass(frozen=True, slots=True)
class LayerList:
    """The layers of a model.

    Attributes:
        model: The model, on the meta device if it can run there.
        rows: The chosen layers.
        outputs: See `list_outputs`.
        parameters: Number of parameters of the whole model.
        parameter_bytes: Their size.
        macs: Multiply-accumulate operations of the forward pass of one image; None if an operator has no known formula.
        uncounted: Operators without one.
    """

    model: Model
    rows: list[LayerInfo]
    outputs: dict[str, tuple[int, ...]]
    parameters: int
    parameter_bytes: int
    macs: int | None
    uncounted: tuple[str, ...]


@renamed(options="preprocessing")
@explain_arguments
def list_layers(
    model: str | nn.Module | Model,
    *,
    layers: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    types: str | Sequence[str] = (),
    preprocessing: InputOptions | None = None,
) -> list[LayerInfo]:
    """List layers in the order of execution, those that do not run at the end.

    A model given by name is built without weights, on the meta device if it can run there: a large one takes no longer than
    a small one.

    Args:
        model: A name such as `alexnet`, any `nn.Module` that takes a batch `(N, 3, H, W)`, or what `load_model` returns.
        layers: Globs over dotted names; none means all of the types.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, else Conv3d, and blocks of transformers.
        preprocessing: Changes to the preparation of the input, such as its size.

    Raises:
        RequestError: An unknown model, a type or glob that fits nothing.
        ForwardError: The forward pass fails; the message names the last layer that ran.

    Example:
        >>> for layer in list_layers("alexnet")[:2]:
        ...     print(layer.index, layer.name, layer.type, layer.shape, layer.parameters)
        0 features.0 Conv2d (64, 55, 55) 23296
        1 features.3 Conv2d (192, 27, 27) 307392
    """
    return load_and_list(model, layers=layers, exclude=exclude, types=types, preprocessing=preprocessing).rows


def list_outputs(output: object) -> dict[str, tuple[int, ...]]:
    """Return the shape, without the batch axis, of each tensor that a network returns, by the keys that `output=` takes.

    Returns:
        Nothing for a single tensor, and for what a detector returns.

    Example:
        >>> list_outputs({"grade": torch.zeros(1, 5), "site": torch.zeros(1, 3)})
        {'grade': (5,), 'site': (3,)}
    """
    found = {part: tuple(values.shape[1:]) for part, values in tensors(output)}
    keys = keys_of(output)
    detects = isinstance(output, list) and bool(output) and all(map(is_detection, output))
    return dict(zip(keys, found.values(), strict=True)) if len(keys) == len(found) and not detects else {}


def load_and_list(
    model: str | nn.Module | Model,
    *,
    layers: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    types: str | Sequence[str] = (),
    preprocessing: InputOptions | None = None,
) -> LayerList:
    """Load a model, on the meta device if possible, and list its layers."""
    preprocessing = (
        check_type("preprocessing", preprocessing, InputOptions | None, hint="such as InputOptions(fit='pad')")
        or InputOptions()
    )
    if isinstance(model, str):
        try:
            with uncompiled():
                outline = outline_model(model, preprocessing=preprocessing)
                return _list(outline, types, layers=layers, exclude=exclude)
        except ForwardError:  # a model that reads values, such as a detector, cannot run on the meta device
            model = load_model(model, weights="random", preprocessing=preprocessing)
    if not isinstance(model, Model):
        module = unwrap(model)
        homes, _ = find_homes(module)
        given = LoadedWeights(module, "")
        model = describe_network(given, name=type(module).__name__, preprocessing=preprocessing, code=None, homes=homes)
    return _list(model, types, layers=layers, exclude=exclude)


def remember_model(spec: object, model: Model) -> None:
    """Keep the names of a model's layers and classes for the shell's completion, if it was given by name."""
    if isinstance(spec, str):
        remember(spec, {layer.name: layer.type for layer in find_layers(unwrap(model.module))}, model.classes)


def _list(
    model: Model, types: str | Sequence[str], *, layers: str | Sequence[str], exclude: str | Sequence[str]
) -> LayerList:
    found = find_layers(unwrap(model.module))
    include = with_feeds(layers, unwrap(model.module))
    chosen = select_layers(found, types=types, include=include, exclude=exclude)
    rows = {layer.name: _row(layer) for layer in chosen}
    last = ""

    def receive(feature_map: FeatureMap) -> None:
        nonlocal last
        last, row = feature_map.name, rows[feature_map.layer.name]
        if row.index is None:
            layout = feature_map.layout or Layout()
            shape = layout.of_one(feature_map.shape, images=len(batch))
            row = replace(
                row,
                index=feature_map.index,
                shape=shape,
                layout=layout.unlike or layout.unfollowed or layout.text,
                output_bytes=prod(shape) * feature_map.values.element_size(),
            )
        rows[row.name] = replace(row, calls=feature_map.call)

    finder = LayoutFinder(unwrap(model.module), chosen, given=model.layout)
    own = next(model.module.parameters(), torch.empty(0))
    batch = model.preparation.apply(grey_input(model.preparation))[None].to(own.device, own.dtype)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of meta kernels
        try:
            hooks = observe(model.module, chosen, receive, refuse=lambda refused, _: receive(refused), layouts=finder)
            with hooks, finder.following(batch), MacCounter.counting([layer.module for layer in chosen]) as counter:
                output = model.forward(model.module, batch)
        except (Exception, SystemExit) as error:
            failure = ForwardError.after(last, error, given=batch.shape)
            failure.report = report_of(error) if model.own else None
            raise failure from error
    for layer in chosen:
        if rows[layer.name].calls:
            rows[layer.name] = replace(rows[layer.name], macs=counter.of(layer.module))
    return LayerList(
        model,
        sorted(rows.values(), key=lambda row: (row.index is None, row.index)),
        {} if find_detector(unwrap(model.module)) else list_outputs(output),
        *_size(model.module),
        counter.total,
        tuple(sorted(counter.uncounted)),
    )


def _row(layer: Layer) -> LayerInfo:
    """Return the row of a layer that has not run."""
    parameters, size = _size(layer.module)
    return LayerInfo(None, layer.name, layer.type, None, parameters, calls=0, aliases=layer.aliases, parameter_bytes=size)


def _size(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of a module, and their bytes."""
    found = list(module.parameters())
    return sum(values.numel() for values in found), sum(values.numel() * values.element_size() for values in found)
