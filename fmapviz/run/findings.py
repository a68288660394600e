"""What earlier calls have shown about a network, so that only the first one has to find it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fmapviz.observe.layers import unwrap
from fmapviz.observe.layouts.find import LayoutCache

if TYPE_CHECKING:
    from torch import nn

    from fmapviz.observe.receptive_field import ReceptiveField
    from fmapviz.types import Model

_PLAIN = bool | int | float | complex | str | bytes | None


@dataclass(slots=True, eq=False)
class Findings:
    """What is known about a network; nothing in it refers to the network, which may be deleted.

    Attributes:
        layouts: The layouts of layers.
        fields: Where maps lie in the input, by the shape of that: see `fmapviz.run.places.PlaceCache`.
        others: What a capability has found, by keys of its own.
    """

    layouts: LayoutCache = field(default_factory=LayoutCache)
    fields: dict[tuple[int, ...], dict[str, ReceptiveField]] = field(default_factory=dict)
    others: dict[object, Any] = field(default_factory=dict)  # Any: of each capability its own type


_shown: WeakKeyDictionary[nn.Module, tuple[object, Findings]] = WeakKeyDictionary()


def findings_of(model: Model) -> Findings:
    """Return what is known about a model's network: nothing if a module, an attribute or a hook has changed since."""
    network = unwrap(model.module)
    state = (id(model.forward), [_state_of(module) for module in network.modules()])
    if network not in _shown or _shown[network][0] != state:
        _shown[network] = (state, Findings())
    return _shown[network][1]


def _state_of(module: nn.Module) -> object:
    """Return what a module's forward pass in evaluation mode may depend on, without its weights and buffers."""
    held = [each for each in vars(module).items() if each[0] != "training"]
    hooks = [list(each) for name, each in held if name.endswith("_hooks") and isinstance(each, dict)]
    plain = {name: each if isinstance(each, _PLAIN) else id(each) for name, each in held}
    return id(module), plain, hooks
