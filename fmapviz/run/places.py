"""Locate the maps of layers in the network's input, with the receptive field of each position."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.core.lazy_torchvision import uncompiled
from fmapviz.images.preprocess import grey_input
from fmapviz.models.replicas import replicate
from fmapviz.observe.layers import call_of, find_layers, unwrap
from fmapviz.observe.meta_copy import copy_to_meta
from fmapviz.observe.places import Places
from fmapviz.observe.randomness import all_undisturbed
from fmapviz.observe.receptive_field import ReceptiveField, trace_fields, unknown_field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from torch import Tensor

    from fmapviz.data import Model


def input_shape(model: Model) -> tuple[int, ...]:
    """Return the shape of one picture that a model has prepared: `(C, H, W)`, or `(C, T, H, W)` for a clip."""
    return tuple(model.preparation.apply(grey_input(model.preparation)).shape)


def find_fields(model: Model, names: Collection[str], shape: tuple[int, ...]) -> dict[str, ReceptiveField]:
    """Compute the receptive fields of some layers; for a model that fails, fall back to the whole picture.

    Args:
        model: On any device; it is not changed.
        names: Names of layers; those that do not run are not in the result.
        shape: Of the input, `(C, H, W)`, or `(C, T, H, W)` for a clip.

    Returns:
        The fields by the name of the feature map. If the model fails, the whole picture for each layer, with the reason.
    """
    networks = [unwrap(model.module)]
    with suppress(Exception):  # of a network that cannot be copied; it runs itself
        networks.insert(0, copy_to_meta(networks[0]))
    return _trace_first(model.forward, networks, names, shape)


class FieldCache:
    """The displayed receptive fields of a model's layers; `shown` may be called by several threads at once.

    The network is copied at once: a copy of one that has hooks would call them.

    Args:
        model: A model without hooks.
        names: Names of layers.
    """

    def __init__(self, model: Model, names: Collection[str]) -> None:
        self._traces = _Traces(model, names)

    def shown(self, name: str, shape: tuple[int, ...]) -> ReceptiveField | None:
        """Return the field of a feature map without gates, which see the whole picture; None if it is not known.

        Args:
            name: The feature map. All frames of a clip, such as `layer1.t03`, have the field of their layer.
            shape: Of the input, `(C, H, W)`, or `(C, T, H, W)` for a clip.
        """
        fields = self._traces.fields(shape)
        field = fields.get(name) or fields.get(call_of(name))
        shown = field and (field.ungated or field)
        return None if shown is None or shown.reason else shown


class PlaceCache:
    """Where the maps of a network's layers lie, by the shape of the input; `at` may be called by several threads at once.

    Args:
        model: Copied at once, without its hooks.
        fields: Receptive fields by the shape of the input; new ones are added.
    """

    def __init__(self, model: Model, fields: dict[tuple[int, ...], dict[str, ReceptiveField]] | None = None) -> None:
        names = [layer.name for layer in find_layers(unwrap(model.module))]
        self._traces = _Traces(model, names, placing=True, known=fields)
        self._known: dict[tuple[int, ...], Places] = {}

    def at(self, shape: tuple[int, ...], *, now: bool = True) -> Places | None:
        """Return the positions of maps in inputs of a shape.

        Args:
            shape: `(C, H, W)` or `(C, T, H, W)`; None is returned if they are no pictures.
            now: Whether to find out at once, as is needed before a pass of the network in which it is asked for.
        """
        if len(shape) < 2:
            return None
        places = self._known.setdefault(shape, Places(partial(self._traces.fields, shape), (shape[-2], shape[-1])))
        if now:
            _ = places.fields
        return places


class _Traces:
    """Follows pixels through copies of a network, once for each shape of inputs; may be called by several threads at once.

    A copy that shares the weights comes before one on the meta device, for whose first convolution PyTorch imports sympy,
    which takes 1.5 s and 100 MB.

    Args:
        model: Copied at once.
        names: Names of layers.
        placing: As of `trace_fields`; then the copies have no hooks.
        known: As of `PlaceCache`.
    """

    def __init__(
        self,
        model: Model,
        names: Collection[str],
        *,
        placing: bool = False,
        known: dict[tuple[int, ...], dict[str, ReceptiveField]] | None = None,
    ) -> None:
        self._forward, self._names, self._placing = model.forward, names, placing
        self._known = {} if known is None else known
        self._lock = Lock()
        network = unwrap(model.module)
        self._networks: list[nn.Module] = []  # to be tried one after the other
        with suppress(Exception):  # of a parameter that cannot be replaced
            if copied := replicate(network):
                _separate(copied)
                self._networks.append(copied)
        with suppress(Exception):  # of a network that cannot be copied, nothing is known
            self._networks.append(copy_to_meta(network, hooks=not placing))

    def fields(self, shape: tuple[int, ...]) -> dict[str, ReceptiveField]:
        """Return the fields by the name of the feature map, of inputs of a shape, `(C, H, W)` or `(C, T, H, W)`."""
        with self._lock:
            if shape not in self._known:
                self._known[shape] = _trace_first(self._forward, self._networks, self._names, shape, placing=self._placing)
            return self._known[shape]


def _separate(copied: nn.Module) -> None:
    """Replace parameters and buffers of a copy by tensors that share only their values: a network may count its passes."""
    own: dict[int, Tensor] = {}
    for module in copied.modules():
        for name, buffer in [*module.named_buffers(recurse=False)]:
            setattr(module, name, own.setdefault(id(buffer), buffer.clone()))
        for name, weights in [*module.named_parameters(recurse=False)]:
            setattr(module, name, own.setdefault(id(weights), nn.Parameter(weights.detach(), weights.requires_grad)))


def _trace_first(
    forward: Callable[[nn.Module, Tensor], object],
    networks: Iterable[nn.Module],
    names: Collection[str],
    shape: tuple[int, ...],
    *,
    placing: bool = False,
) -> dict[str, ReceptiveField]:
    """Return the fields of the first copy of a network that runs; if none runs, the whole picture with the reason."""
    failure = "the model cannot be copied"
    for network in networks:
        try:
            return _trace(forward, network, names, shape, placing=placing)
        except (Exception, SystemExit) as error:  # noqa: BLE001  of the model; on the meta device of one that reads values
            failure = f"the model failed: {type(error).__name__}"
    return {name: unknown_field(name, (shape[-2], shape[-1]), reason=failure) for name in names}


def _trace(
    forward: Callable[[nn.Module, Tensor], object],
    network: nn.Module,
    names: Collection[str],
    shape: tuple[int, ...],
    *,
    placing: bool,
) -> dict[str, ReceptiveField]:
    own = next(network.parameters(), torch.empty(0))
    pixels = torch.full((1, *shape), 0.5, device=own.device, dtype=own.dtype)
    layers = [layer for layer in find_layers(network) if layer.name in names]
    with warnings.catch_warnings(), uncompiled(), all_undisturbed(pixels.device):
        warnings.simplefilter("ignore")  # of meta kernels
        return trace_fields(network, layers, pixels, forward=forward, placing=placing)
