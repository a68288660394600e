"""Run a model under hooks that receive each layer's output, and leave the model unchanged."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from itertools import chain, count
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fmapviz.data import FeatureMap
from fmapviz.errors import first_few
from fmapviz.observe.layers import unwrap
from fmapviz.observe.outputs import tensors
from fmapviz.observe.readable import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fmapviz.data import Layer
    from fmapviz.observe.layouts.find import LayoutFinder

# PyTorch holds a generator's lock while it converts the state to a Python object. If the garbage collector starts meanwhile
# and frees a tensor, another thread may run; if that thread asks for the state too, it waits for the generator while it
# holds the interpreter's lock: a deadlock. So only one thread at a time reads the state.
_random_lock = Lock()
_CPU = torch.device("cpu")
_unobserved = Counter[int]()  # how many times each network is unobserved, by its identity


@contextmanager
def observe(
    model: nn.Module,
    layers: Sequence[Layer],
    receive: Callable[[FeatureMap], None],
    *,
    refuse: Callable[[FeatureMap, str], None] = lambda _map, _reason: None,
    enter: Callable[[FeatureMap], Tensor] | None = None,
    attached: bool = False,
    begin: Callable[[], None] = lambda: None,
    layouts: LayoutFinder | None = None,
) -> Iterator[Mapping[nn.Module, int]]:
    """Pass every output of some layers to a function while a model runs.

    `receive` is called inside the forward hook, before any later layer can overwrite the tensor in place (the ReLUs of
    AlexNet do), and must have used or copied the values when it returns. The model is in evaluation mode meanwhile, and its
    fused paths, which bypass hooks, are disabled. Afterwards the hooks are removed and every module's training flag is
    restored, also after an exception.

    Args:
        model: The network; wrappers such as `torch.compile`'s are seen through.
        layers: See `fmapviz.observe.layers.select_layers`.
        receive: Called once per call of a layer and tensor of its output, in the order of execution.
        refuse: Called instead, with the reason, if the values of the tensor cannot be read; see `why_unreadable`.
        enter: Called with each tensor that goes into a layer, before the layer runs; the layer receives what it returns. The
            index of these is that of the layer's entry, not of its output.
        attached: Whether `receive` gets tensors that are part of the graph, if there is one, and learns of each that is not
            whether other layers may have received it already.
        begin: Called when a forward pass begins.
        layouts: Finds the layouts of the outputs.

    Yields:
        The number of calls of each layer's module in the last forward pass.
    """
    network = unwrap(model)
    counter, entries = _Counter(begin, _unobserved[id(network)]), _Entries()

    def hook_for(layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, *rest: object) -> None:
            if counter.is_paused(network):
                return
            counter.calls[module] += 1
            call = counter.calls[module]
            entries.leave(module)
            name = layer.name if call == 1 else f"{layer.name}#{call}"
            for part, values, reason in (read := _read(rest[-1])):
                if reason:
                    refuse(FeatureMap(layer, f"{name}{part}", call, next(counter.executed), values), reason)
                    continue
                given = values.detach() if values.requires_grad and not attached else values
                passed_on = attached and not values.requires_grad and _is_passed_on(read, values, module, (args, rest[:-1]))
                layout = layouts.of(layer, f"{name}{part}", values) if layouts else None
                index = next(counter.executed)
                receive(FeatureMap(layer, f"{name}{part}", call, index, given, passed_on, layout=layout))

        return hook

    def entry_hook_for(layer: Layer, enter: Callable[[FeatureMap], Tensor]) -> Callable[..., Any]:
        # Any: a module may take anything.
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if counter.is_paused(network):
                return args, kwargs
            counter.entries[module] += 1
            call, index = counter.entries[module], next(counter.entered)
            name = layer.name if call == 1 else f"{layer.name}#{call}"
            direct = any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
            single = direct and len(_read((args, kwargs))) == 1
            changed: list[tuple[Tensor, Tensor]] = []

            def change(part: str, values: Tensor) -> Tensor:
                full = name if single else f"{name}{part}"
                layout = layouts.of(layer, full, values, entry=True) if layouts and not why_unreadable(values) else None
                entered = FeatureMap(layer, full, call, index, values, layout=layout)
                own = enter(entered)
                changed.append((values, own))
                return own

            given = args, kwargs
            with suppress(RecursionError):  # a list that contains itself
                if len(args) == 1 and not kwargs:
                    given = (exchange(args[0], change),), kwargs
                else:
                    given = exchange(args, change), exchange(kwargs, change)
            entries.enter(module, changed)
            return given

        return hook

    with ExitStack() as stack:
        stack.enter_context(evaluating(network))
        stack.enter_context(_unfused)
        stack.enter_context(network.register_forward_pre_hook(counter.enter))
        for layer in layers:
            if enter:
                entry = entry_hook_for(layer, enter)
                stack.enter_context(layer.module.register_forward_pre_hook(entry, with_kwargs=True))
            stack.enter_context(layer.module.register_forward_hook(hook_for(layer), with_kwargs=attached))
        stack.enter_context(network.register_forward_hook(counter.leave, always_call=True))
        yield counter.calls


@contextmanager
def unobserved(network: nn.Module) -> Iterator[None]:
    """Pause the hooks of `observe` while one thread runs a network, except those that are attached meanwhile.

    Example:
        >>> from fmapviz.observe.layers import find_layers
        >>> network, names = nn.Sequential(nn.ReLU()), []
        >>> with observe(network, find_layers(network), lambda found: names.append(found.name)):
        ...     with unobserved(network):
        ...         _ = network(torch.ones(1, 3, 2, 2))
        ...     _ = network(torch.ones(1, 3, 2, 2))
        >>> names
        ['0']
    """
    _unobserved[id(network)] += 1
    try:
        yield
    finally:
        _unobserved[id(network)] -= 1
        if not _unobserved[id(network)]:
            del _unobserved[id(network)]


def _read(output: object) -> list[tuple[str, Tensor, str]]:
    """Return the tensors of `tensors`, each with the reason why it cannot be read; empty if it can."""
    try:
        return [(part, values, why_unreadable(values)) for part, values in tensors(output)]
    except Exception as error:  # noqa: BLE001  a container of the user's class may raise anything, or contain itself
        kind = type(output).__name__
        reason = f"tensors cannot be found in what it returns, {kind}: {type(error).__name__}: {error}"
        return [("", torch.empty(0), reason)]


def exchange(value: Any, change: Callable[[str, Tensor], Tensor], part: str = "") -> Any:
    """Replace the tensors in tuples, lists and dicts; unchanged containers are not copied.

    Example:
        >>> exchange((1, {"x": torch.ones(2)}), lambda part, values: values + 1)
        (1, {'x': tensor([2., 2.])})
    """
    # Any: a module may take anything.
    if isinstance(value, Tensor):
        return change(part, value)
    if not isinstance(value, dict | list | tuple):
        return value
    try:
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
    except Exception:  # noqa: BLE001  a container of the user's class may raise anything
        return value
    new = {key: exchange(each, change, f"{part}[{key!r}]") for key, each in items}
    if all(new[key] is each for key, each in items):
        return value
    if isinstance(value, tuple):
        return type(value)(*new.values()) if hasattr(value, "_fields") else tuple(new.values())
    own = copy(value)  # of the same class
    for key, each in new.items():
        own[key] = each
    return own


@dataclass
class Numbers:
    """Use of random numbers.

    Attributes:
        drawn: Whether any were drawn; set at the end.
    """

    drawn: bool = False


@contextmanager
def undisturbed(device: torch.device = _CPU) -> Iterator[Numbers]:
    """Restore the random generators of the CPU and of a device at the end.

    Example:
        >>> with undisturbed() as numbers:
        ...     first = torch.rand(1)
        >>> numbers.drawn, torch.equal(first, torch.rand(1))
        (True, True)
    """
    numbers = Numbers()
    before = _random_states(device)
    try:
        yield numbers
    finally:
        numbers.drawn = not all(map(torch.equal, before, _random_states(device)))
        if numbers.drawn:
            with _random_lock:
                torch.set_rng_state(before[0])
                for state in before[1:]:
                    torch.cuda.set_rng_state(state, device)


def _random_states(device: torch.device) -> list[Tensor]:
    with _random_lock:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else ())]


class _Counter:
    """Counts calls and positions within one forward pass of the whole network, which may call itself."""

    def __init__(self, begin: Callable[[], None], depth: int) -> None:
        self.calls: Counter[nn.Module] = Counter()
        self.entries: Counter[nn.Module] = Counter()
        self.executed, self.entered = count(), count()
        self._begin = begin
        self._unobserved = depth
        self._depth = 0

    def enter(self, network: nn.Module, _args: object) -> None:
        if self._depth == 0 and not self.is_paused(network):
            self.calls.clear()
            self.entries.clear()
            self.executed, self.entered = count(), count()
            self._begin()
        self._depth += 1

    def leave(self, _network: nn.Module, _args: object, _output: object) -> None:
        self._depth -= 1

    def is_paused(self, network: nn.Module) -> bool:
        return _unobserved[id(network)] > self._unobserved


class _Entries:
    """Tensors that layers receive in place of the network's."""

    def __init__(self) -> None:
        self._open: dict[nn.Module, list[list[tuple[Tensor, Tensor, int]]]] = defaultdict(list)

    def enter(self, module: nn.Module, changed: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._open[module].append([(values, own, own._version) for values, own in changed if own is not values])

    def leave(self, module: nn.Module) -> None:
        """Overwrite the layer's input as the layer would: the network may use it instead of the layer's output."""
        for values, own, version in self._open[module].pop() if self._open.get(module) else ():
            if own._version != version:
                values.copy_(own)


def _is_passed_on(returned: Sequence[object], values: Tensor, module: nn.Module, given: object) -> bool:
    """Return True if a layer returns its input, or a view of it, unchanged, or several tensors.

    It may have computed one of several from another.
    """
    if len(returned) > 1:
        return True
    if getattr(module, "inplace", False):
        return False
    own = values.untyped_storage().data_ptr()
    return any(each.untyped_storage().data_ptr() == own for _, each in tensors(given) if not why_unreadable(each))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode, and restore each training flag afterwards, with parameters and buffers as they were.

    A module whose class defines `train` or `eval` has them called if it is in training mode, since they may do more than set
    a flag, such as merging weights, or less, such as leaving dropout on: the flags that they leave stay, see
    `describe_training`. Those of other modules are set one by one: `train()` would also train what the user has frozen.
    """
    modules = dict.fromkeys(model.modules())
    flags = {module: module.training for module in modules}
    decided = {below for module in modules if _has_own_modes(module) for below in module.modules()}
    own = [module for module in modules if module.training and _has_own_modes(module)]
    inner = {below for module in own for below in module.modules() if below is not module}
    held = chain.from_iterable((*module.parameters(), *module.buffers()) for module in own)
    kept = [(values, values._version, values.detach().clone()) for values in held]
    try:
        for module in own:
            if module not in inner:
                module.eval()
        _set_flags(dict.fromkeys(modules.keys() - decided, False))
        yield
    finally:
        for module in own:
            if not module.training:
                module.train()
        _set_flags(flags)
        with torch.no_grad():
            for values, version, before in kept:
                if values._version != version:
                    values.copy_(before)


def describe_training(network: nn.Module) -> str:
    """Return a notice on modules in training mode while a network is evaluated; empty if there are none.

    Example:
        >>> describe_training(nn.Sequential(nn.Dropout()))
        "the network's own eval() leaves in training mode, and so it is drawn: 0 (Dropout)"
    """
    left = [(name, module) for name, module in network.named_modules() if module.training]
    leaves = [(name, module) for name, module in left if not any(module.children())] or left
    names = first_few([" ".join(filter(None, (name, f"({type(module).__name__})"))) for name, module in leaves])
    return f"the network's own eval() leaves in training mode, and so it is drawn: {names}" if left else ""


def _has_own_modes(module: nn.Module) -> bool:
    """Return True if a module's class defines `train` or `eval` itself."""
    return any(getattr(type(module), name) is not getattr(nn.Module, name) for name in ("train", "eval"))


def _set_flags(flags: Mapping[nn.Module, bool]) -> None:
    for module, training in flags.items():
        if module.training is not training:  # setting an attribute of a module is slow
            module.training = training


class _Unfused:
    """Disable what computes a layer without calling it: fused attention and compiled code.

    These are settings of the process, and captures of several threads end in any order: the last one restores them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._open = 0
        self._is_eager = False
        self._settings = ExitStack()

    def __enter__(self) -> None:
        with self._lock, ExitStack() as on_error:
            if not self._open:
                on_error.callback(self._settings.close)
                self._settings.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
                torch.backends.mha.set_fastpath_enabled(False)
            # Nothing can be compiled before this is imported, which takes a second.
            if "torch._dynamo.eval_frame" in sys.modules and not self._is_eager:
                self._settings.enter_context(torch.compiler.set_stance("force_eager"))
                self._is_eager = True
            on_error.pop_all()
            self._open += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._is_eager = False
                self._settings.close()


_unfused = _Unfused()
