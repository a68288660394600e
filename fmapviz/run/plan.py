"""What the views of a run capture in each forward and backward pass."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fmapviz.core import registry
from fmapviz.core.members import LayerView, ModelView, ReducedView, load
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.features.attention import AttentionView, FlowView
from fmapviz.features.cam import CamView
from fmapviz.features.diff import PairView
from fmapviz.observe.targets import TOP1, parse
from fmapviz.views.base import draw_reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fmapviz.draw.grid import Shared
    from fmapviz.draw.picture import Composed, Sheet
    from fmapviz.observe.targets import Wanted
    from fmapviz.types import Of
    from fmapviz.views import base
    from fmapviz.views.base import DrawLayer, DrawWeights, ReadWeights

    # None: the view is requested, but no requested format shows pictures.
    Draw = DrawLayer | None
    DrawPair = base.DrawPair | None


class ModelDrawing(NamedTuple):
    """How the weights of a layer are read and drawn, see `fmapviz.views.base`."""

    read: ReadWeights
    draw: DrawWeights


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """How a heat map is computed.

    Attributes:
        attribute: Returns the signed map, float32 `(N, h, w)`.
        needs: The names of its parameters: `activations`, `gradients`, `weights`, `pixel_gradients`.
        targets: The classes; empty if it is independent of classes.
        over: Whether its pictures are drawn over the input.
        colormap: Used unless the style names one.
        sheet: Whether the maps of several layers and classes are one picture.
    """

    attribute: Callable[..., Tensor]
    needs: tuple[str, ...]
    targets: tuple[Wanted, ...]
    over: bool = True
    colormap: str = HEAT_COLORMAP
    sheet: bool = False

    @property
    def of_pixels(self) -> bool:
        """Whether it needs gradients at the network's input, not at a layer."""
        return "pixel_gradients" in self.needs

    @property
    def exact(self) -> bool:
        """Whether it needs the weights of a linear layer behind global average pooling."""
        return "weights" in self.needs

    def apply(self, **captured: Tensor) -> Tensor:
        """Compute the map from those of the captured tensors that it needs."""
        return self.attribute(**{name: captured[name] for name in self.needs})


@dataclass(frozen=True, slots=True, eq=False)
class TokenFlow:
    """How attention is followed through all blocks, see `fmapviz.features.attention.rollout`.

    Attributes:
        flow: Follows it.
        flow_of_class: Follows it weighted by the gradients of a class's score.
        targets: The classes; empty if none was requested.
    """

    flow: Callable[..., Tensor]
    flow_of_class: Callable[..., Tensor]
    targets: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The views of a run, sorted by what they capture.

    Attributes:
        draws: The views of a layer by what they draw of it: from name to `draw` function.
        pairs: The views of two networks.
        methods: Views that are class activation maps.
        flows: Views of attention through all blocks.
        attending: Names of the modules whose attention is requested; None for all.
        of_model: Views of a layer's weights, which need no image.
        sheets: Views that compose the maps of all layers into one picture.
        reductions: The views of a layer whose content are values too, not only a picture.
        unscaled: The views that no range of all images changes.
        placed: The views that draw maps over the input, or find positions of it in them.
        second_pass: Whether some images go through the network again when all are done, see `fmapviz.features.top`.
        targets: The classes whose scores are differentiated.
        output: Which part of the network's output holds the class scores; None: detected.
        scores: What the user says that the outputs are, see `fmapviz.observe.class_scores`; None: nothing.
        automatic: Whether the layers of heat maps are chosen automatically.
        moments: Whether each channel's mean, standard deviation and zeros are requested.
        kept: The type of raw values, `float32` or `float16`; None if they are not requested.
        shared: Ranges over all images of the run: by what was captured (or the view), the feature map's name, and the class.
        fields: Whether the receptive field of each layer is requested.
        whole: Whether all channels are requested, for what all images share.
        anchor_path: Path of the image in which the anchor is; empty if it is in each image.
        drawn: Whether pictures are requested.
        of_maps: Whether there are heat maps of layers.
        of_classes: Whether the whole forward pass is needed, and its output.
    """

    draws: Mapping[Of, Mapping[str, Draw]] = field(default_factory=dict)
    pairs: Mapping[str, DrawPair] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    flows: Mapping[str, TokenFlow] = field(default_factory=dict)
    attending: frozenset[str] | None = None
    of_model: Mapping[str, ModelDrawing] = field(default_factory=dict)
    sheets: Mapping[str, Callable[[Sheet], Composed]] = field(default_factory=dict)
    reductions: frozenset[str] = frozenset()
    unscaled: frozenset[str] = frozenset()
    placed: frozenset[str] = frozenset()
    second_pass: bool = False
    targets: tuple[Wanted, ...] = (TOP1,)
    output: str | None = None
    scores: str | None = None
    automatic: bool = False
    moments: bool = False
    kept: str | None = None
    shared: Mapping[tuple[str, str, str], Shared] = field(default_factory=dict)
    fields: bool = False
    whole: bool = False
    anchor_path: str = ""
    drawn: bool = True
    of_maps: bool = field(init=False)
    of_classes: bool = field(init=False)

    def __post_init__(self) -> None:  # these are asked for at each layer
        object.__setattr__(self, "of_maps", any(not method.of_pixels for method in self.methods.values()))
        object.__setattr__(self, "of_classes", bool(self.methods or self.of_gradients or self._weighs_flows))

    @property
    def of_layers(self) -> bool:
        """Whether some view draws every chosen layer."""
        return bool(self.pairs) or any(views for of, views in self.draws.items() if of != "attention")

    @property
    def of_attention(self) -> bool:
        """Whether some view draws attention, whose modules are found by running the network."""
        return bool(self.draws.get("attention") or self.flows)

    @property
    def of_channels(self) -> bool:
        """Whether some view draws values that have channels: of layers, or of the heads of their attention."""
        return any(self.draws.values())

    @property
    def of_gradients(self) -> bool:
        """Whether some view draws gradients of class scores at layers."""
        return bool(self.draws.get("gradient") or self.draws.get("input gradient"))

    @property
    def of_images(self) -> bool:
        """Whether some view needs an image."""
        return self.of_layers or self.of_attention or bool(self.methods)

    @property
    def of_outputs(self) -> bool:
        """Whether what layers return is all that is needed to draw."""
        return not (self.of_classes or self.of_maps or self.of_attention or self.draws.get("input"))

    @property
    def from_pixels(self) -> bool:
        """Whether gradients are needed before the first layer."""
        of_pixels = any(method.of_pixels for method in self.methods.values())
        return bool(self.draws.get("input gradient")) or of_pixels or self._weighs_flows

    @property
    def _weighs_flows(self) -> bool:
        return any(flow.targets for flow in self.flows.values())

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """Every class that some view needs, each once."""
        asked = [self.targets] if self.of_gradients else []
        asked += [method.targets for method in self.methods.values()] + [flow.targets for flow in self.flows.values()]
        return tuple(dict.fromkeys(wanted for targets in asked for wanted in targets))

    def without_pictures(self) -> Plan:
        """Return a plan that captures and measures the same but draws nothing except what are values too."""
        draws = {
            of: {view: draw if view in self.reductions else None for view, draw in views.items()}
            for of, views in self.draws.items()
        }
        return replace(self, draws=draws, pairs=dict.fromkeys(self.pairs), drawn=False)

    def to_survey(self, *, whole: bool, ranges: bool) -> Plan:
        """Return a plan for what the images of a run share: ranges, also of heat maps, and what is made of all channels."""
        plan = self.without_pictures()
        draws = {
            of: {
                view: None if view in self.unscaled else draw
                for view, draw in views.items()
                if view not in self.unscaled or (whole and of == "output")
            }
            for of, views in plan.draws.items()
        }
        return replace(plan, draws=draws, moments=False, kept=None, methods=plan.methods if ranges else {}, whole=whole)

    def has(self, view: str) -> bool:
        """Return True if a view draws or captures anything."""
        return any(view in views for views in (*self.draws.values(), self.pairs, self.methods, self.flows, self.of_model))


def make_plan(
    views: Sequence[str],
    *,
    targets: Sequence[str],
    classes: Sequence[str],
    output: str | None,
    automatic: bool,
    scores: str | None = None,
    outputs: int | None = None,
) -> Plan:
    """Sort views by what they capture.

    Args:
        views: Their names.
        targets: The classes as the user wrote them; empty: the default of each view.
        classes: The classes' names.
        output: See `Plan`.
        automatic: See `Plan`.
        scores: See `Plan`.
        outputs: Number of classes by the network's output, if it is known.

    Raises:
        RequestError: No such view or class.
    """
    chosen = [registry.view(view) for view in views]
    asked = parse(targets, classes, outputs=outputs) if targets else ()
    draws: dict[Of, dict[str, Draw]] = defaultdict(dict)
    pairs: dict[str, DrawPair] = {}
    methods: dict[str, Method] = {}
    flows: dict[str, TokenFlow] = {}
    of_model: dict[str, ModelDrawing] = {}
    for view in chosen:
        match view:
            case CamView():
                methods[view.name] = make_method(view, asked)
            case PairView():
                pairs[view.name] = load(view.draw)
            case FlowView():
                flows[view.name] = TokenFlow(load(view.flow), load(view.flow_of_class), asked)
            case ModelView():
                of_model[view.name] = ModelDrawing(load(view.read), load(view.draw))
            case ReducedView():
                colormap = view.colormap or HEAT_COLORMAP
                reduced = partial(draw_reduced, load(view.reduce), over=view.over, colormap=colormap, sharp=view.sharp)
                draws[view.captures][view.name] = reduced
            case AttentionView():
                draws["attention"][view.name] = load(view.draw)
            case LayerView():
                draws[view.captures][view.name] = load(view.draw) if view.draw else None
    return Plan(
        dict(draws),
        pairs=pairs,
        methods=methods,
        flows=flows,
        of_model=of_model,
        sheets={
            view.name: load(view.compose) for view in chosen if isinstance(view, CamView | ReducedView) and view.compose
        },
        reductions=frozenset(view.name for view in chosen if isinstance(view, ReducedView) or view.values),
        placed=frozenset(view.name for view in chosen if view.placed),
        second_pass=any(view.paged for view in chosen),
        unscaled=frozenset(view.name for view in chosen if not view.scaled),
        targets=asked or (TOP1,),
        output=output,
        scores=scores,
        automatic=automatic,
    )


def make_method(view: CamView, targets: Sequence[Wanted] = ()) -> Method:
    """Build a method from a view.

    Args:
        view: A class activation map.
        targets: The requested classes; empty: its default.
    """
    classless = view.needs == ("activations",)
    return Method(
        load(view.formula),
        view.needs,
        () if classless else tuple(targets) or parse([view.targets], ()),
        over=view.over,
        colormap=view.colormap or HEAT_COLORMAP,
        sheet=bool(view.compose),
    )
