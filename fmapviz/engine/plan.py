"""What the views of a run want to see of each forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fmapviz import registry
from fmapviz.registry import VIEWS
from fmapviz.targets import TOP1, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from torch import Tensor

    from fmapviz.options import Style
    from fmapviz.targets import Wanted
    from fmapviz.tiling import Ranges, Shared
    from fmapviz.values import Of

    Draw = Callable[[Tensor, Ranges, Style], Tensor]
    Count = Callable[[Tensor], Sequence[Tensor]]
    DrawKernels = Callable[[Tensor, Style], Tensor]

_CAPTURES = ("outputs", "inputs", "gradients", "input_gradients")
_KERNELS = "kernels"


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
class Reduction:
    """How all channels of a layer become one map.

    Attributes:
        reduce: Makes float32 `(N, h, w)` of maps `(N, C, h, w)`.
        over: Whether the map lies over the input; otherwise it keeps the layer's resolution.
    """

    reduce: Callable[[Tensor], Tensor]
    over: bool = True


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
        reduces: Views that put all channels of what a layer returns together.
        counts: Views that count how often which values occur.
        kernels: Views of a layer's weights, which see no image.
        moments: Whether each channel's mean, scatter and zeros are wanted.
        kept: The type in which values themselves are wanted, `float32` or `float16`; None if they are not.
        shared: What all images of the run have in common: by what it is of, the feature map's name, and the class.
        principal: Whether all channels are wanted, to find the principal components that images share.
        drawn: Whether pictures are wanted.
    """

    outputs: Mapping[str, Draw] = field(default_factory=dict)
    inputs: Mapping[str, Draw] = field(default_factory=dict)
    gradients: Mapping[str, Draw] = field(default_factory=dict)
    input_gradients: Mapping[str, Draw] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    targets: tuple[Wanted, ...] = (TOP1,)
    output: str | None = None
    automatic: bool = False
    reduces: Mapping[str, Reduction] = field(default_factory=dict)
    counts: Mapping[str, Count] = field(default_factory=dict)
    kernels: Mapping[str, DrawKernels] = field(default_factory=dict)
    moments: bool = False
    kept: str | None = None
    shared: Mapping[tuple[str, str, str], Shared] = field(default_factory=dict)
    principal: bool = False
    drawn: bool = True

    @property
    def of_outputs(self) -> bool:
        """Whether some view is of what layers return."""
        return bool(self.outputs or self.reduces or self.counts)

    @property
    def of_layers(self) -> bool:
        """Whether some view is drawn of every chosen layer."""
        return bool(self.of_outputs or self.inputs or self.gradients or self.input_gradients)

    @property
    def of_images(self) -> bool:
        """Whether some view needs an image."""
        return self.of_layers or bool(self.methods)

    def draws(self, of: Of) -> Mapping[str, Draw]:
        """Give the views that draw one thing of a layer."""
        each: dict[Of, Mapping[str, Draw]] = {
            "output": self.outputs,
            "input": self.inputs,
            "gradient": self.gradients,
            "input gradient": self.input_gradients,
        }
        return each[of]

    def without_pictures(self) -> Plan:
        """Plan to find out the same and to draw nothing."""
        return replace(
            self,
            outputs=dict.fromkeys(self.outputs, _draw_nothing),
            inputs=dict.fromkeys(self.inputs, _draw_nothing),
            gradients=dict.fromkeys(self.gradients, _draw_nothing),
            input_gradients=dict.fromkeys(self.input_gradients, _draw_nothing),
            drawn=False,
        )

    def gives(self, view: str) -> bool:
        """Tell whether anything comes of a view."""
        of_layers = (self.outputs, self.inputs, self.gradients, self.input_gradients)
        return any(view in views for views in (*of_layers, self.methods, self.reduces, self.counts, self.kernels))

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
    # Any: what a module has of that name.
    drawn: dict[str, Any] = {capture: {} for capture in (*_CAPTURES, _KERNELS)}
    methods, reduces, counts = {}, {}, {}
    for view, module in modules.items():
        if hasattr(module, "draw"):
            drawn[getattr(module, "NEEDS", "outputs")][view] = module.draw
        elif hasattr(module, "reduce"):
            reduces[view] = Reduction(module.reduce, over=getattr(module, "OVER", True))
        elif hasattr(module, "count"):
            counts[view] = module.count
        else:
            methods[view] = make_method(module, asked)
    return Plan(
        **drawn,
        methods=methods,
        targets=asked or (TOP1,),
        output=output,
        automatic=automatic,
        reduces=reduces,
        counts=counts,
    )


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
    return needs not in {None, _KERNELS, *_CAPTURES} and not registry.constant(VIEWS, view, "SHEET")


def _draw_nothing(maps: Tensor, _ranges: Ranges, _style: Style) -> Tensor:
    return maps.new_zeros((len(maps), 0, 0), dtype=torch.uint8)
