"""Run a model under hooks and hand over what each layer saw; leave the model exactly as it was found."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.layers import find_layers, select_layers, several, unwrap
from fmapviz.shapes import tensors
from fmapviz.values import FeatureMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fmapviz.values import Layer


@contextmanager
def observe(
    model: nn.Module,
    layers: Sequence[Layer],
    receive: Callable[[FeatureMap], None],
    *,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[Mapping[nn.Module, int]]:
    """Hand every output of some layers to a function while a model runs.

    `receive` is called inside the forward hook, before any later layer can overwrite the tensor in place (the ReLUs of
    AlexNet do), and must be done with the values, or have copied them, when it returns. The model is in evaluation mode
    meanwhile, and its fused paths, which go round hooks, are off. Whatever happens, the hooks are gone afterwards and every
    module's training flag is as before.

    Args:
        model: The network; wrappers such as `torch.compile`'s are seen through.
        layers: Which layers, see `fmapviz.layers.select_layers`.
        receive: Called once per call of a layer and tensor of its output, in the order of execution.
        begin: Called when a forward pass begins.

    Yields:
        How often each layer's module has run in the last forward pass.
    """
    network = unwrap(model)
    counter = _Counter(begin)

    def hook_for(layer: Layer) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, _args: object, output: object) -> None:
            call = counter.call(module)
            for part, values in tensors(output):
                receive(
                    FeatureMap(layer, call, counter.next_index(), part, values.detach() if values.requires_grad else values)
                )

        return hook

    with ExitStack() as stack:
        stack.enter_context(_evaluating(network))
        stack.enter_context(_unfused())
        stack.enter_context(network.register_forward_pre_hook(counter.enter))
        for layer in layers:
            stack.enter_context(layer.module.register_forward_hook(hook_for(layer)))
        stack.enter_context(network.register_forward_hook(counter.leave, always_call=True))
        yield counter.calls


@contextmanager
def capture(
    model: nn.Module,
    *,
    layers: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
) -> Iterator[Mapping[str, FeatureMap]]:
    """Keep a copy of what each layer returns, in one's own loop.

    Args:
        model: Any `nn.Module`; run it inside the `with` block, on any device, as often as wanted: the last pass counts.
        layers: Globs over dotted names; none means all.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, or Conv3d where there is no Conv2d.

    Returns:
        From layer name (`layer1.0.relu#2` for a second call) to feature map, in the order of execution, filled while the
        model runs. The values are copies, which no later in-place layer can change.

    Raises:
        RequestError: A glob or type that fits nothing, a scripted or exported program.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
        >>> with capture(net) as maps:
        ...     _ = net(torch.randn(2, 3, 32, 32))
        >>> maps["0"].shape
        (2, 8, 30, 30)
    """
    chosen = select_layers(
        find_layers(unwrap(model)), types=several(types), include=several(layers), exclude=several(exclude)
    )
    maps: dict[str, FeatureMap] = {}

    def keep(feature_map: FeatureMap) -> None:
        maps[feature_map.name] = replace(feature_map, values=feature_map.values.clone())

    with observe(model, chosen, keep, begin=maps.clear):
        yield maps


class _Counter:
    """Counts calls and positions within one forward pass of the whole network, which may call itself."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.calls: Counter[nn.Module] = Counter()
        self._begin = begin
        self._depth = 0
        self._executed = count()

    def enter(self, _network: nn.Module, _args: object) -> None:
        if self._depth == 0:
            self.calls.clear()
            self._executed = count()
            self._begin()
        self._depth += 1

    def leave(self, _network: nn.Module, _args: object, _output: object) -> None:
        self._depth -= 1

    def call(self, module: nn.Module) -> int:
        self.calls[module] += 1
        return self.calls[module]

    def next_index(self) -> int:
        return next(self._executed)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set every module's training flag to False, and each to its own value afterwards.

    The flags are set one by one, not with `eval()`: some modules do more than that in `train()`, such as merging weights.
    """
    flags = {module: module.training for module in model.modules()}
    try:
        for module in flags:
            module.training = False
        yield
    finally:
        for module, training in flags.items():
            module.training = training


@contextmanager
def _unfused() -> Iterator[None]:
    """Switch off what computes a layer without calling it: fused attention, and compiled code."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo.eval_frame" in sys.modules:  # nothing can be compiled before; importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
