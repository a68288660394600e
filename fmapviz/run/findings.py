"""Cache of facts about networks that only a pass shows, so that later calls reuse them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import nn

from fmapviz.observe.layers import unwrap
from fmapviz.observe.layouts.find import LayoutCache

if TYPE_CHECKING:
    from fmapviz.data import Model
    from fmapviz.observe.receptive_field import ReceptiveField

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OF_TORCH = frozenset(vars(nn.Module()))


@dataclass(slots=True, eq=False)
class Findings:
    """Cached facts about a network; they hold no reference to the network.

    Attributes:
        layouts: The layouts of layers.
        fields: Where maps lie in the input, by the shape of that: see `fmapviz.run.places.PlaceCache`.
        others: Facts that a feature has found, by the feature's keys.
    """

    layouts: LayoutCache = field(default_factory=LayoutCache)
    fields: dict[tuple[int, ...], dict[str, ReceptiveField]] = field(default_factory=dict)
    others: dict[object, Any] = field(default_factory=dict)  # Any: of each feature its own type


_shown: WeakKeyDictionary[nn.Module, tuple[object, Findings]] = WeakKeyDictionary()


def findings_of(model: Model) -> Findings:
    """Return the cached facts about a model's network; empty if a module, an attribute or a hook has changed."""
    network = unwrap(model.module)
    state = (id(model.forward), [_state_of(module) for module in network.modules()])
    if network not in _shown or _shown[network][0] != state:
        _shown[network] = (state, Findings())
    return _shown[network][1]


def _state_of(module: nn.Module) -> object:
    """Return everything that a module's forward pass in evaluation mode may depend on besides weights and buffers."""
    held = vars(module).items()
    hooks = [(name, *each) for name, each in held if name.endswith("_hooks") and isinstance(each, dict) and each]
    own = {name: each if isinstance(each, _PLAIN) else id(each) for name, each in held if name not in _OF_TORCH}
    return id(module), own, hooks
