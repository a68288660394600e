"""Load the second network of a comparison, choose its layers, and check if its weights are related to the first one's.

`layer_pairs` pairs the layers of the two, and `two_runs` those of two finished runs.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.core.words import are, counted
from fmapviz.data import Model
from fmapviz.errors import RequestError, WeightsError, first_few, quote
from fmapviz.models.initialization import read_seed
from fmapviz.models.load import check_name, is_model, load_model
from fmapviz.models.weights.fit import load_weights
from fmapviz.observe.detectors import with_feeds
from fmapviz.observe.layers import default_types, find_layers, has_weights, is_in, select_layers, unwrap
from fmapviz.observe.layouts.find import LayoutCache
from fmapviz.run.batch import describe_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.config import InputOptions
    from fmapviz.data import Layer, Weights
    from fmapviz.store.unit_key import Version

    Other = Weights | nn.Module | Model

_MODEL, _DTYPE = "model:", "dtype:"
_ENOUGH = 100_000  # weights of a tensor
DTYPES = ("bfloat16", "float16", "float32", "float64")


class NetworkPair(nn.Module):
    """Holds both networks, so that they are moved and copied together. It is not called."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Two networks.

    Attributes:
        first: A.
        second: B, which gets the same input.
        names: Labels of A and B, as short as they are different.
        related: Whether channels of one number are the same feature; see `are_related`.
    """

    first: Model
    second: Model
    names: tuple[str, str]
    related: bool


@dataclass(frozen=True, slots=True, eq=False)
class PairSetup:
    """The second network of a run, besides the session of the first.

    Attributes:
        compared: Both networks.
        layers: The selected layers of the second.
        layouts: Remembers the layouts of these.
        at: Of a series, what its units have in their version: the step, and the weights of both networks.
    """

    compared: Compared
    layers: Sequence[Layer]
    layouts: LayoutCache = field(default_factory=LayoutCache)
    at: Version = field(default_factory=dict)


def check_other(against: Other) -> None:
    """Check the name of the second network before anything is loaded.

    Raises:
        RequestError: There is no such network or type.
    """
    if not isinstance(against, str):
        return
    if not against:
        raise RequestError("the second network or run of the comparison is empty", hint="against='b.pth', for example")
    if against.startswith(_DTYPE):
        _check_dtype(against.removeprefix(_DTYPE))
    elif against.startswith(_MODEL):
        check_name(against.removeprefix(_MODEL))


def load_second(first: Model, against: Other, *, weights: Weights, preprocessing: InputOptions) -> Model:
    """Load the second network.

    Args:
        first: The network, loaded.
        against: Weights of it; `model:NAME`, another network; `dtype:bfloat16`, the same one computed in another type. In
            Python also a network.
        weights: Those of the first, as requested: `random` and `default` also hold for another network.
        preprocessing: The preprocessing of the first.

    Raises:
        RequestError: There is no such network, or type.
        WeightsError: The weights cannot be loaded.
    """
    if isinstance(against, Model):
        return replace(against, module=unwrap(against.module))
    if isinstance(against, nn.Module):
        return replace(describe_given(unwrap(against), preprocessing=preprocessing), forward=first.forward)
    if isinstance(against, str) and against.startswith(_DTYPE):
        dtype = against.removeprefix(_DTYPE)
        _check_dtype(dtype)
        module = copy.deepcopy(first.module).to(getattr(torch, dtype))
        return replace(first, module=module, weights=f"{first.weights}, {dtype}", notices=())
    if isinstance(against, str) and against in DTYPES and not os.path.exists(against):
        raise RequestError(f"no such weights or file: {quote(against)}", hint=f"did you mean '{_DTYPE}{against}'?")
    if isinstance(against, str) and against.startswith(_MODEL):
        shared = (
            weights if isinstance(weights, str) and (weights == "default" or read_seed(weights) is not None) else "default"
        )
        return load_model(against.removeprefix(_MODEL), weights=shared, preprocessing=preprocessing)
    try:
        if not first.name or (first.own and ":" not in first.name):
            return _with_other_weights(first, against)
        return load_model(first.name, weights=against, preprocessing=preprocessing)
    except WeightsError as error:
        if isinstance(against, str) and not os.path.exists(against) and is_model(against):
            error.advise(f"another network is against='{_MODEL}{against}'")
        raise


def compare_networks(first: Model, second: Model) -> Compared:
    """Check that two networks can be compared, and name them.

    Raises:
        RequestError: Their inputs are preprocessed in different ways.
    """
    descriptions = first.preparation.description, second.preparation.description
    if descriptions[0] != descriptions[1]:
        raise RequestError(
            f"the inputs are preprocessed in different ways: {quote(descriptions[0])} and {quote(descriptions[1])}",
            hint="one for both: InputOptions(size=), InputOptions(fit=), InputOptions(mean=) and InputOptions(std=)",
        )
    if {*first.module.modules()} & {*second.module.modules()}:  # the hooks of one would run in the other
        second = replace(second, module=copy.deepcopy(second.module))
    return Compared(first, second, _name_both(first, second), are_related(first.module, second.module))


def choose_layers(
    compared: Compared, *, types: Sequence[str], include: Sequence[str], exclude: Sequence[str]
) -> list[Layer]:
    """Choose the layers of the second network as those of the first were chosen; none if it has no such layers."""
    existing = find_layers(compared.second.module)
    known = {layer.type for layer in existing} | {base.__name__ for each in existing for base in type(each.module).__mro__}
    kinds = tuple(each for each in types if each in known) or default_types(existing)
    try:
        include = with_feeds(include, compared.second.module)
        return select_layers(existing, types=kinds, include=include, exclude=exclude, any_type=not types)
    except RequestError:  # no layer of these names
        return []


def remark_on_weights(compared: Compared, chosen: Sequence[Layer]) -> str:
    """Return a remark if all weights are equal, or if layers that are not compared differ; else an empty text."""
    first, second = (each.module for each in (compared.first, compared.second))
    own, theirs = dict(first.state_dict()), dict(second.state_dict())
    if own and own.keys() == theirs.keys() and all(_are_equal(own[name], theirs[name]) for name in own):
        return "both networks have the same weights"
    names = [layer.name for layer in chosen]
    changed = Counter(
        layer.type
        for layer in find_layers(first)
        if has_weights(layer) and not any(is_in(layer.name, name) for name in names)
        if any(_are_equal(values, theirs.get(name)) is False for name, values in own.items() if is_in(name, layer.name))
    )
    if not changed:
        return ""
    listed = first_few([f"{count} {kind}" for kind, count in changed.most_common()])
    others, verb = counted(changed.total(), "layer"), are(changed.total())
    return f"{others} of other types, whose weights differ, {verb} not compared: {listed}; types= chooses others"


def _are_equal(values: object, other: object) -> bool | None:
    """Return whether weights are equal; None if they cannot be compared: of another type or shape, or without numbers."""
    if not isinstance(values, torch.Tensor) or not isinstance(other, torch.Tensor) or values.is_meta or other.is_meta:
        return None
    if (values.shape, values.dtype) != (other.shape, other.dtype):
        return None
    return torch.equal(values.to(other.device), other)


def are_related(first: nn.Module, second: nn.Module) -> bool:
    """Return True if the weights of two networks have something in common, as those before and after a training have.

    It is the mean cosine of all tensors of weights of one name and shape, weighted by their sizes; for a large tensor, every
    k-th weight suffices. Of two networks with independent weights it is about `1 / sqrt(n)` for n weights. Without any
    weights to compare the answer is True.
    """
    others = dict(second.named_parameters())
    shared, total = 0.0, 0
    for name, values in first.named_parameters():
        other = others.get(name)
        if other is None or other.shape != values.shape or values.ndim < 2 or not values.is_floating_point():
            continue
        step = max(1, values.numel() // _ENOUGH)
        a, b = (each.detach().flatten()[::step].double().cpu() for each in (values, other))
        usable = a.isfinite() & b.isfinite()
        a, b = a[usable], b[usable]
        a, b = a - a.mean(), b - b.mean()
        norms = float(a.norm() * b.norm())
        shared += a.numel() * float(a @ b) / norms if norms else 0.0
        total += a.numel()
    return total == 0 or shared / total > min(0.5, max(0.1, 4 / sqrt(total)))


def _with_other_weights(first: Model, weights: object) -> Model:
    """Return a copy of a network that was given in Python, filled with weights from a file or a state dict."""
    is_named = isinstance(weights, str) and (weights == "default" or read_seed(weights) is not None)
    if is_named or not isinstance(weights, str | Mapping):
        raise RequestError(
            f"the network was given in Python, and has no weights of this name: {quote(weights)}",
            hint="a file, a state dict, another network, or 'dtype:bfloat16'",
        )
    loaded = load_weights(weights, lambda: copy.deepcopy(first.module))
    return replace(first, module=loaded.module, weights=loaded.name, sha256=loaded.sha256, notices=loaded.notices)


def _check_dtype(name: str) -> None:
    if name not in DTYPES:
        raise RequestError(f"no such type: {quote(name)}", hint=f"one of {', '.join(_DTYPE + each for each in DTYPES)}")


def _name_both(first: Model, second: Model) -> tuple[str, str]:
    if first.name != second.name:
        same = first.weights == second.weights
        return (first.name, second.name) if same else (first.label, second.label)
    prefix = f"{first.weights}, "
    if second.weights.startswith(prefix):  # the same weights in another type
        return first.weights, second.weights.removeprefix(prefix)
    return first.weights, second.weights
