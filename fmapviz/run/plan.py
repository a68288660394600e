"""Plan the tensors that the views of a run capture in each forward and backward pass."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fmapviz.config.changes import Changes
from fmapviz.core import registry
from fmapviz.core.members import LayerView, ModelView, ReducedView, load
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.observe.targets import TOP1, parse
from fmapviz.views.base import draw_reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from torch import Tensor, nn

    from fmapviz.config import Style
    from fmapviz.core.drawings import Grid
    from fmapviz.core.members import View
    from fmapviz.data import Model
    from fmapviz.draw.grid import Shared
    from fmapviz.draw.picture import Composed, Sheet
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.observers import PassObserver

    # Any: what is drawn of one network, or of two; None: no requested format shows pictures.
    Draw = Callable[[Any, Style], Any] | None


class ModelDrawing(NamedTuple):
    """How the weights of a layer are read and drawn, see `fmapviz.views.base`."""

    read: Callable[[nn.Module, Style], Tensor]
    draw: Callable[[Tensor, Style], Grid]


class Observation(Protocol):
    """The needs of all views that name one planning function; it starts a `PassObserver` for each copy of the network."""

    @property
    def views(self) -> Collection[str]:
        """Names of the views."""

    @property
    def targets(self) -> Sequence[TargetChoice]:
        """The classes by whose scores something is differentiated."""

    @property
    def differentiates(self) -> bool:
        """True if the pass is recorded by autograd."""

    @property
    def from_pixels(self) -> bool:
        """True if gradients are needed before the first layer."""

    @property
    def of_layers(self) -> bool:
        """True if it draws layers that the user or the view itself chooses."""

    @property
    def of_modules(self) -> bool:
        """True if it draws values inside modules, which it finds by running the network."""

    @property
    def captioned(self) -> bool:
        """True if its pictures name a class."""

    def without_pictures(self, *, values: bool) -> Observation | None:
        """Return the observation for formats without pictures; None if it has nothing to do.

        Args:
            values: Whether a format stores what is drawn as values.
        """

    def start(self, model: Model, plan: Plan, style: Style) -> PassObserver:
        """Return an observer of one copy of the network."""


class PlanObservation(Protocol):
    """A planning function that views name in `observe`."""

    def __call__(self, views: Sequence[View], *, targets: Sequence[TargetChoice], automatic: bool) -> Observation:
        """Plan views.

        Args:
            views: Those of a run that name this function.
            targets: The classes that the user asked for; empty: the default of each view.
            automatic: Whether the layers are chosen by the observation.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The views of a run, sorted by the captured quantity.

    Attributes:
        draws: The views of a layer by what they draw of it, such as `output`: from name to `draw` function, of which the
            argument is None if the view is requested, but no requested format shows pictures.
        observations: Observations of other views.
        modules: Names of the modules that an observation may draw, if it finds them itself; None for all.
        networks: Number of networks drawn side by side.
        of_model: Views of a layer's weights, which need no image.
        sheets: Views that compose the maps of all layers into one picture.
        reductions: The views of a layer whose content are values too, not only a picture.
        unscaled: The views that no range of all images changes.
        placed: The views that draw maps over the input, or find positions of it in them.
        second_pass: Whether some images go through the network again when all are done.
        targets: The classes whose scores are differentiated.
        output: Which part of the network's output holds the class scores; None: detected.
        scores: Kind of the outputs that the user declares, see `fmapviz.observe.class_scores`; None: undeclared.
        confidence: Lowest score of a detector's boxes; None: the network's own.
        changes: How changed copies of images are made.
        automatic: Whether the layers of heat maps are chosen automatically.
        moments: Whether each channel's mean, standard deviation and zeros are requested.
        kept: The type of raw values, `float32` or `float16`; None if they are not requested.
        shared: Ranges over all images of the run: by what was captured (or the view), the feature map's name, and the class.
        fields: Whether the receptive field of each layer is requested.
        whole: Whether all channels are requested, for what all images share.
        anchor_path: Path of the image in which the anchor is; empty if it is in each image.
        drawn: Whether pictures are requested.
        of_maps: Whether an observation draws layers.
        of_classes: Whether the whole forward pass is needed, and its output.
    """

    draws: Mapping[str, Mapping[str, Draw]] = field(default_factory=dict)
    observations: tuple[Observation, ...] = ()
    modules: frozenset[str] | None = None
    networks: int = 1
    of_model: Mapping[str, ModelDrawing] = field(default_factory=dict)
    sheets: Mapping[str, Callable[[Sheet], Composed]] = field(default_factory=dict)
    reductions: frozenset[str] = frozenset()
    unscaled: frozenset[str] = frozenset()
    placed: frozenset[str] = frozenset()
    second_pass: bool = False
    targets: tuple[TargetChoice, ...] = (TOP1,)
    output: str | None = None
    scores: str | None = None
    confidence: float | None = None
    changes: Changes = field(default_factory=Changes)
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
        object.__setattr__(self, "of_maps", any(each.of_layers for each in self.observations))
        differentiates = self.of_gradients or any(each.differentiates for each in self.observations)
        object.__setattr__(self, "of_classes", differentiates)

    @property
    def of_layers(self) -> bool:
        """True if some view draws every chosen layer."""
        observed = {view for each in self.observations for view in each.views}
        return any(view not in observed for views in self.draws.values() for view in views)

    @property
    def of_modules(self) -> bool:
        """True if an observation finds its layers by running the network."""
        return any(each.of_modules for each in self.observations)

    @property
    def of_channels(self) -> bool:
        """True if some view draws values that have channels."""
        return any(self.draws.values())

    @property
    def of_gradients(self) -> bool:
        """True if some view draws gradients of class scores at layers."""
        return bool(self.draws.get("gradient") or self.draws.get("input gradient"))

    @property
    def of_images(self) -> bool:
        """True if some view needs an image."""
        return self.of_layers or bool(self.observations)

    @property
    def of_outputs(self) -> bool:
        """True if the views need only the outputs of layers."""
        return not (self.of_classes or self.observations or self.draws.get("input"))

    @property
    def from_pixels(self) -> bool:
        """True if gradients are needed before the first layer."""
        return bool(self.draws.get("input gradient")) or any(each.from_pixels for each in self.observations)

    @property
    def located(self) -> bool:
        """True if a target is given by its place in the file."""
        return any(each.place for wanted in self.wanted for each in wanted.each or (wanted,))

    @property
    def wanted(self) -> tuple[TargetChoice, ...]:
        """All classes that views need, without duplicates."""
        asked = [self.targets] if self.of_gradients else []
        asked += [tuple(each.targets) for each in self.observations]
        return tuple(dict.fromkeys(wanted for targets in asked for wanted in targets))

    def without_pictures(self) -> Plan:
        """Return a plan that captures and measures the same, and draws only views whose content is values."""
        draws = {
            of: {view: draw if view in self.reductions else None for view, draw in views.items()}
            for of, views in self.draws.items()
        }
        return replace(self, draws=draws, drawn=False)

    def to_survey(self, *, whole: bool, ranges: bool) -> Plan:
        """Return a plan for the survey of a run: shared ranges, and data for shared components."""
        plan = self.without_pictures()
        draws = {
            of: {
                view: None if view in self.unscaled else draw
                for view, draw in views.items()
                if view not in self.unscaled or (whole and of == "output")
            }
            for of, views in plan.draws.items()
        }
        # Of the observations those that choose no modules have ranges, unless no range changes their views.
        observations = tuple(
            each for each in plan.observations if each.of_modules or (ranges and not plan.unscaled.issuperset(each.views))
        )
        return replace(plan, draws=draws, moments=False, kept=None, observations=observations, whole=whole)

    def has(self, view: str) -> bool:
        """Return True if a view draws or captures anything."""
        observed = (each.views for each in self.observations)
        return any(view in views for views in (*self.draws.values(), self.of_model, *observed))


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
    """Sort views by the captured quantity.

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
    draws: dict[str, dict[str, Draw]] = defaultdict(dict)
    of_model: dict[str, ModelDrawing] = {}
    observed: dict[str, list[View]] = defaultdict(list)
    for view in chosen:
        if view.observe:
            observed[view.observe].append(view)
        match view:
            case ModelView():
                of_model[view.name] = ModelDrawing(load(view.read), load(view.draw))
            case ReducedView():
                colormap = view.colormap or HEAT_COLORMAP
                reduced = partial(draw_reduced, view.load(view.reduce), over=view.over, colormap=colormap, sharp=view.sharp)
                draws[view.captures][view.name] = reduced
            case LayerView():
                draws[view.captures][view.name] = view.load(view.draw) if view.draw else None
    return Plan(
        dict(draws),
        observations=tuple(load(plan)(own, targets=asked, automatic=automatic) for plan, own in observed.items()),
        networks=max(view.networks for view in chosen),
        of_model=of_model,
        sheets={view.name: load(view.compose) for view in chosen if view.compose},
        reductions=frozenset(view.name for view in chosen if isinstance(view, ReducedView) or view.values),
        placed=frozenset(view.name for view in chosen if view.placed),
        second_pass=any(view.paged for view in chosen),
        unscaled=frozenset(view.name for view in chosen if not view.scaled),
        targets=asked or (TOP1,),
        output=output,
        scores=scores,
        automatic=automatic,
    )
