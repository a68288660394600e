"""What the views of a run want to see of each forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmapviz import registry
from fmapviz.registry import VIEWS
from fmapviz.targets import TOP1, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from torch import Tensor

    from fmapviz.sketches import Draw
    from fmapviz.targets import Wanted

_CAPTURES = ("outputs", "inputs", "gradients", "input_gradients")


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """How a heat map is computed.

    Attributes:
        attribute: Gives the signed map, float32 `(N, h, w)`, for what it needs.
        needs: The names of its parameters: `activations`, `gradients`, `weights`, `pixel_gradients`.
        targets: For which classes; empty if it knows no classes.
        over: Whether its pictures lie over the input.
        sheet: Whether the maps of several layers and classes are one picture.
    """

    attribute: Callable[..., Tensor]
    needs: tuple[str, ...]
    targets: tuple[Wanted, ...]
    over: bool = True
    sheet: bool = False

    @property
    def of_pixels(self) -> bool:
        """Whether it looks at the network's input, at no layer."""
        return "pixel_gradients" in self.needs

    @property
    def exact(self) -> bool:
        """Whether it needs the weights of a linear layer behind global average pooling."""
        return "weights" in self.needs

    def apply(self, **captured: Tensor) -> Tensor:
        """Compute the map from whatever of this is needed."""
        return self.attribute(**{name: captured[name] for name in self.needs})


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The views of a run, sorted by what they need.

    Attributes:
        outputs: Views of what a layer returns: from name to `draw` function.
        inputs: Views of what goes into a layer.
        gradients: Views of the gradient of a class score at a layer's output.
        input_gradients: Views of the gradient at a layer's input.
        methods: Views that are heat maps over the input.
        targets: The classes whose scores are differentiated.
        output: Which part of what the network returns holds the class scores; None: whichever it must be.
        automatic: Whether the layers of heat maps are chosen automatically.
    """

    outputs: Mapping[str, Draw] = field(default_factory=dict)
    inputs: Mapping[str, Draw] = field(default_factory=dict)
    gradients: Mapping[str, Draw] = field(default_factory=dict)
    input_gradients: Mapping[str, Draw] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    targets: tuple[Wanted, ...] = (TOP1,)
    output: str | None = None
    automatic: bool = False

    @property
    def of_layers(self) -> bool:
        """Whether some view is drawn of every chosen layer."""
        return bool(self.outputs or self.inputs or self.gradients or self.input_gradients)

    @property
    def of_maps(self) -> bool:
        """Whether there are heat maps of layers."""
        return any(not method.of_pixels for method in self.methods.values())

    @property
    def of_classes(self) -> bool:
        """Whether the whole forward pass is needed, and its output."""
        return bool(self.gradients or self.input_gradients or self.methods)

    @property
    def from_pixels(self) -> bool:
        """Whether gradients are asked for before the first layer."""
        return bool(self.input_gradients) or any(method.of_pixels for method in self.methods.values())

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """Every class that some view asks for, each once."""
        asked = [self.targets] if self.gradients or self.input_gradients else []
        asked += [method.targets for method in self.methods.values()]
        return tuple(dict.fromkeys(wanted for targets in asked for wanted in targets))


def make_plan(
    views: Sequence[str], *, targets: Sequence[str], classes: Sequence[str], output: str | None, automatic: bool
) -> Plan:
    """Sort views by what they need.

    Args:
        views: Their names.
        targets: The classes as the user wrote them; empty: the likeliest, for a view with a `TARGETS` of its own that.
        classes: The classes' names.
        output: See `Plan`.
        automatic: See `Plan`.

    Raises:
        RequestError: There is no such view or class.
    """
    modules = {view: registry.fetch(VIEWS, view) for view in views}
    asked = parse(targets, classes) if targets else ()
    drawn: dict[str, dict[str, Any]] = {capture: {} for capture in _CAPTURES}
    methods = {}
    for view, module in modules.items():
        if hasattr(module, "draw"):
            drawn[getattr(module, "NEEDS", "outputs")][view] = module.draw
        else:
            methods[view] = make_method(module, asked)
    return Plan(**drawn, methods=methods, targets=asked or (TOP1,), output=output, automatic=automatic)


def make_method(module: ModuleType, targets: Sequence[Wanted] = ()) -> Method:
    """Make a method of the module of a view.

    Args:
        module: Has `attribute` and `NEEDS`; may have `TARGETS`, its own default, `OVER` and `SHEET`.
        targets: The classes asked for; empty: the default.
    """
    needs = tuple(module.NEEDS.split())
    classless = needs == ("activations",)
    default = parse([getattr(module, "TARGETS", "top1")], ())
    return Method(
        module.attribute,
        needs,
        () if classless else tuple(targets) or default,
        over=getattr(module, "OVER", True),
        sheet=getattr(module, "SHEET", False),
    )


def is_heat_map(view: str) -> bool:
    """Tell whether a view is a single heat map over the input, without importing it."""
    needs = registry.constant(VIEWS, view, "NEEDS")
    return needs is not None and needs not in _CAPTURES and not registry.constant(VIEWS, view, "SHEET")
