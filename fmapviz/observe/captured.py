"""Capture feature maps and their gradients in the caller's loop: `fmapviz.capture`."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from fmapviz.config import check_type, explain_arguments
from fmapviz.data import FeatureMap, Model
from fmapviz.errors import LayerKeyError, RequestError, first_few, quote, suggest
from fmapviz.observe.detectors import with_feeds
from fmapviz.observe.gradients import begin_graph, edge_of, gradients_at
from fmapviz.observe.hooks import exchange, observe
from fmapviz.observe.layers import find_layers, select_layers, unwrap
from fmapviz.observe.layouts.find import LayoutFinder, following_calls
from fmapviz.observe.readable import is_transformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor
    from torch.autograd.graph import GradientEdge


@explain_arguments
@contextmanager
def capture(
    model: nn.Module | Model,
    *,
    layers: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    gradients: bool = False,
) -> Iterator[Captured]:
    """Capture a copy of each layer's output, in your own loop.

    Within the block the model is in evaluation mode, afterwards as before: dropout passes everything on, and batch norms use
    their averages and do not learn. So a step of a training belongs outside of it; `Watch` draws while a network is trained.

    Args:
        model: Any `nn.Module`, or what `load_model` returns; run it, or its `module`, inside the `with` block, on any
            device, any number of times: the last pass counts.
        layers: Globs over dotted names; none means all.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, else Conv3d, and blocks of transformers.
        gradients: Whether `backward` will be called; no tensor needs to require gradients. The model must run outside of
            `torch.no_grad()`.

    Returns:
        From layer name (`layer1.0.relu#2` for a second call) to feature map, in the order of execution, filled while the
        model runs. The values are copies, which no later in-place layer can change. Its `backward` fills in gradients.

    Raises:
        RequestError: A glob or type that fits nothing, a scripted or exported program.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
        >>> with capture(net) as maps:
        ...     _ = net(torch.randn(2, 3, 32, 32))
        >>> maps["0"].shape
        (2, 8, 30, 30)
        >>> with capture(net, gradients=True) as maps:
        ...     maps.backward(net(torch.randn(2, 3, 32, 32)).mean())
        >>> maps["0"].gradient.shape
        torch.Size([2, 8, 30, 30])
    """
    check_type("gradients", gradients, bool, hint="True if Captured.backward will be called")
    model, given = (model.module, model.layout) if isinstance(model, Model) else (model, None)
    include = with_feeds(layers, unwrap(model))
    chosen = select_layers(find_layers(unwrap(model)), types=types, include=include, exclude=exclude)
    maps, is_training = Captured(gradients=gradients), any(module.training for module in unwrap(model).modules())
    with ExitStack() as stack:
        if gradients:
            stack.enter_context(unwrap(model).register_forward_pre_hook(_begin_graphs, with_kwargs=True))
        finder = LayoutFinder(unwrap(model), chosen, given=given)
        stack.enter_context(following_calls(unwrap(model), finder))
        hooks = observe(model, chosen, maps.keep, refuse=maps.refuse, attached=gradients, begin=maps.clear, layouts=finder)
        stack.enter_context(hooks)
        if is_training:
            stack.enter_context(_warning_of_training(unwrap(model)))
        yield maps


@contextmanager
def _warning_of_training(network: nn.Module) -> Iterator[None]:
    """Warn if weights are changed within the block, where a network in training mode is evaluated."""
    weights = [each for each in network.parameters() if not each.is_inference()]
    before = [each._version for each in weights]
    yield
    if before != [each._version for each in weights]:
        warnings.warn(
            "the network was trained while its feature maps were captured: it is in evaluation mode meanwhile, so that its "
            "batch norms have learnt nothing and dropout was off; step outside of the block, or use Watch",
            stacklevel=2,
        )


class Captured(dict[str, FeatureMap]):
    """Feature maps by name, of the last forward pass; another name is a `KeyError` with the most similar ones."""

    def __init__(self, *, gradients: bool) -> None:
        super().__init__()
        self._gradients = gradients
        self._over = False
        self._edges: dict[str, GradientEdge | None] = {}
        self._refused: dict[str, str] = {}

    def __missing__(self, name: object) -> NoReturn:
        """Raise `LayerKeyError`, which is a `KeyError` too, with the most similar names."""
        if isinstance(name, str) and name in self._refused:
            raise LayerKeyError(f"no feature map of {quote(name)} was captured: {self._refused[name]}")
        if not self:
            raise LayerKeyError("no feature maps were captured", hint="run the model inside the with block")
        if str(name) in self:
            raise LayerKeyError(f"names are texts, not {type(name).__name__}", hint=f"[{str(name)!r}]")
        near = suggest(name, self) if isinstance(name, str) else None
        raise LayerKeyError(f"no feature map of {quote(name)} was captured", hint=near or f"there are: {first_few([*self])}")

    def keep(self, feature_map: FeatureMap) -> None:
        """Copy the output of a layer; called by the hooks."""
        if self._over:  # layers under `torch.utils.checkpoint` run again in the backward pass
            return
        self._edges[feature_map.name] = edge_of(feature_map.values) if self._gradients else None
        self[feature_map.name] = replace(feature_map, values=feature_map.values.detach().clone())

    def refuse(self, feature_map: FeatureMap, reason: str) -> None:
        """Copy other than plain tensors, such as sparse ones, unless they end with the call of the layer."""
        if is_transformed(feature_map.values):
            self._refused[feature_map.name] = reason
        else:
            self.keep(feature_map)

    def clear(self) -> None:
        """Remove everything of the last forward pass."""
        super().clear()
        self._edges.clear()
        self._refused.clear()

    def backward(self, score: Tensor, *, retain_graph: bool = False) -> None:
        """Differentiate a score of the last forward pass, and store its gradient with every feature map.

        No `.grad` is changed. The gradient of a map that the score does not depend on is None.

        Args:
            score: Of any shape; the gradient is that of its sum.
            retain_graph: Whether another score of the same pass will follow.

        Raises:
            RequestError: `capture` was called without `gradients`, or the score depends on none of the layers.
            BackwardError: The backward pass failed.
        """
        if not self._gradients:
            raise RequestError("no gradients were captured", hint="capture(model, gradients=True)")
        if not isinstance(score, torch.Tensor):
            message = f"a score is a tensor that the model has returned, not {quote(type(score).__name__)}"
            raise RequestError(message, hint="for example maps.backward(model(x)[:, 281].sum())")
        check_type("retain_graph", retain_graph, bool, hint="True if another score of the same pass will follow")
        if not score.requires_grad or not any(self._edges.values()):
            raise RequestError("the score has no gradient", hint="run the model outside of torch.no_grad()")
        self._over = True
        try:
            found = gradients_at(score, list(self._edges.values()), more=retain_graph)
        finally:
            self._over = False
        if all(gradient is None for gradient in found):
            raise RequestError("the score depends on none of the layers", hint="it has to be of the last forward pass")
        for name, gradient in zip(self._edges, found, strict=True):
            self[name] = replace(self[name], gradient=gradient)


def _begin_graphs(_network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Begin a graph at the network's inputs, so that there are gradients even if no parameter requires them."""

    # Any: a network may take anything.
    def begin(_part: str, values: Tensor) -> Tensor:
        if values.requires_grad or not values.is_floating_point() or not torch.is_grad_enabled():
            return values
        return begin_graph(values)[1]

    return exchange(args, begin), exchange(kwargs, begin)
