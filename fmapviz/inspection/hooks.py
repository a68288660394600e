"""Run a model under hooks that receive what each layer returns, and leave the model unchanged."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fmapviz.core.errors import RequestError, quote
from fmapviz.core.types import FeatureMap
from fmapviz.inspection.gradients import begin_graph, edge_of, gradients_at
from fmapviz.inspection.layers import find_layers, select_layers, several, unwrap
from fmapviz.inspection.layout import exchange, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.core.types import Layer


@contextmanager
def observe(
    model: nn.Module,
    layers: Sequence[Layer],
    receive: Callable[[FeatureMap], None],
    *,
    enter: Callable[[FeatureMap], Tensor] | None = None,
    attached: bool = False,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[Mapping[nn.Module, int]]:
    """Pass every output of some layers to a function while a model runs.

    `receive` is called inside the forward hook, before any later layer can overwrite the tensor in place (the ReLUs of
    AlexNet do), and must have used or copied the values when it returns. The model is in evaluation mode meanwhile, and its
    fused paths, which bypass hooks, are disabled. Afterwards the hooks are removed and every module's training flag is
    restored, also after an exception.

    Args:
        model: The network; wrappers such as `torch.compile`'s are seen through.
        layers: See `fmapviz.inspection.layers.select_layers`.
        receive: Called once per call of a layer and tensor of its output, in the order of execution.
        enter: Called with each tensor that goes into a layer, before the layer runs; the layer receives what it returns. The
            index of these is that of the layer's entry, not of its output.
        attached: Whether `receive` gets tensors that are part of the graph, if there is one, and learns of each that is not
            whether the layer only passed it on.
        begin: Called when a forward pass begins.

    Yields:
        The number of calls of each layer's module in the last forward pass.
    """
    network = unwrap(model)
    counter, entries = _Counter(begin), _Entries()

    def hook_for(layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, *rest: object) -> None:
            call, output = counter.call(module), rest[-1]
            entries.leave(module)
            for part, values in tensors(output):
                given = values.detach() if values.requires_grad and not attached else values
                passed_on = attached and not values.requires_grad and _is_passed_on(values, module, (args, rest[:-1]))
                receive(FeatureMap(layer, call, counter.next_index(), part, given, passed_on))

        return hook

    def entry_hook_for(layer: Layer, enter: Callable[[FeatureMap], Tensor]) -> Callable[..., Any]:
        # Any: a module may take anything.
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            call, index = counter.entry(module)
            direct = any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
            single = direct and sum(1 for _ in tensors((args, kwargs))) == 1
            changed: list[tuple[Tensor, Tensor]] = []

            def change(part: str, values: Tensor) -> Tensor:
                own = enter(FeatureMap(layer, call, index, "" if single else part, values))
                changed.append((values, own))
                return own

            if len(args) == 1 and not kwargs:
                given = (exchange(args[0], change),), kwargs
            else:
                given = exchange(args, change), exchange(kwargs, change)
            entries.enter(module, changed)
            return given

        return hook

    with ExitStack() as stack:
        stack.enter_context(_evaluating(network))
        stack.enter_context(_unfused())
        stack.enter_context(network.register_forward_pre_hook(counter.enter))
        for layer in layers:
            if enter:
                entry = entry_hook_for(layer, enter)
                stack.enter_context(layer.module.register_forward_pre_hook(entry, with_kwargs=True))
            stack.enter_context(layer.module.register_forward_hook(hook_for(layer), with_kwargs=attached))
        stack.enter_context(network.register_forward_hook(counter.leave, always_call=True))
        yield counter.calls


@contextmanager
def capture(
    model: nn.Module,
    *,
    layers: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    gradients: bool = False,
) -> Iterator[Captured]:
    """Capture a copy of what each layer returns, in your own loop.

    Args:
        model: Any `nn.Module`; run it inside the `with` block, on any device, any number of times: the last pass counts.
        layers: Globs over dotted names; none means all.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, or Conv3d where there is no Conv2d.
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
    chosen = select_layers(
        find_layers(unwrap(model)), types=several(types), include=several(layers), exclude=several(exclude)
    )
    maps = Captured(gradients=gradients)
    with ExitStack() as stack:
        if gradients:
            stack.enter_context(unwrap(model).register_forward_pre_hook(_begin_graphs, with_kwargs=True))
        stack.enter_context(observe(model, chosen, maps.keep, attached=gradients, begin=maps.clear))
        yield maps


class Captured(dict[str, FeatureMap]):
    """Feature maps by name, of the last forward pass."""

    def __init__(self, *, gradients: bool) -> None:
        super().__init__()
        self._gradients = gradients
        self._over = False
        self._edges: dict[str, GradientEdge | None] = {}

    def keep(self, feature_map: FeatureMap) -> None:
        """Copy what a layer returned; called by the hooks."""
        if self._over:  # layers under `torch.utils.checkpoint` run again in the backward pass
            return
        self._edges[feature_map.name] = edge_of(feature_map.values) if self._gradients else None
        self[feature_map.name] = replace(feature_map, values=feature_map.values.detach().clone())

    def clear(self) -> None:
        """Remove everything of the last forward pass."""
        super().clear()
        self._edges.clear()

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
            raise RequestError(f"a score is a tensor that the model has returned, not {quote(type(score).__name__)}")
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


class _Counter:
    """Counts calls and positions within one forward pass of the whole network, which may call itself."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.calls: Counter[nn.Module] = Counter()
        self._begin = begin
        self._depth = 0
        self._executed, self._entered = count(), count()
        self._entries: Counter[nn.Module] = Counter()

    def enter(self, _network: nn.Module, _args: object) -> None:
        if self._depth == 0:
            self.calls.clear()
            self._entries.clear()
            self._executed, self._entered = count(), count()
            self._begin()
        self._depth += 1

    def leave(self, _network: nn.Module, _args: object, _output: object) -> None:
        self._depth -= 1

    def call(self, module: nn.Module) -> int:
        self.calls[module] += 1
        return self.calls[module]

    def entry(self, module: nn.Module) -> tuple[int, int]:
        """Count an entry; return its number within the module, from 1, and within the pass, from 0."""
        self._entries[module] += 1
        return self._entries[module], next(self._entered)

    def next_index(self) -> int:
        return next(self._executed)


class _Entries:
    """Tensors that layers receive in place of the network's own."""

    def __init__(self) -> None:
        self._open: dict[nn.Module, list[list[tuple[Tensor, Tensor, int]]]] = defaultdict(list)

    def enter(self, module: nn.Module, changed: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._open[module].append([(values, own, own._version) for values, own in changed if own is not values])

    def leave(self, module: nn.Module) -> None:
        """Overwrite what the layer would have overwritten: the network may use that instead of the layer's output."""
        for values, own, version in self._open[module].pop() if self._open.get(module) else ():
            if own._version != version:
                values.copy_(own)


def _is_passed_on(values: Tensor, module: nn.Module, given: object) -> bool:
    """Return True if a layer returns its input, or a view of it, unchanged."""
    if getattr(module, "inplace", False):
        return False
    own = values.untyped_storage().data_ptr()
    return any(each.untyped_storage().data_ptr() == own for _, each in tensors(given) if each.layout is torch.strided)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set every module's training flag to False, and restore each afterwards.

    The flags are set one by one, not with `eval()`: `train()` has other effects in some modules, such as merging weights.
    """
    flags = {module: module.training for module in model.modules()}
    try:
        for module, training in flags.items():
            if training is not False:  # setting an attribute of a module is slow
                module.training = False
        yield
    finally:
        for module, training in flags.items():
            if module.training is not training:
                module.training = training


@contextmanager
def _unfused() -> Iterator[None]:
    """Disable what computes a layer without calling it: fused attention and compiled code."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo.eval_frame" in sys.modules:  # nothing can be compiled before; importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
