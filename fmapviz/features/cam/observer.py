"""Draw class activation maps of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from fmapviz.data import LayerResult
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.features.cam import CamView
from fmapviz.features.cam.cam_layers import Chosen, choose_rows
from fmapviz.features.cam.exact_cam import Pooling, refuse
from fmapviz.features.cam.method import Method
from fmapviz.observe.detectors import feeds_of
from fmapviz.observe.gradients import edge_of
from fmapviz.observe.last_map import NoMapError, find_last, find_maps
from fmapviz.observe.reshape import NotAMapError, frames_of, picture_size
from fmapviz.observe.target_scores import NOT_FINITE
from fmapviz.run.batch_results import LayerBatch
from fmapviz.run.observers import PassObserver
from fmapviz.views.base import draw_class_map

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.config import Style
    from fmapviz.core.members import View
    from fmapviz.data import Model, Target
    from fmapviz.observe.forward_record import GraphPoint
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.observers import ClassPass, Differentiable, Indices
    from fmapviz.run.plan import Plan
    from fmapviz.views.base import BatchContent

    Points = Mapping[str, Sequence[GraphPoint]]  # by view
    Targets = Sequence[Target | None]  # of a class in each image; None if the image does not have it

FUSED = "fused"  # in place of a layer: the largest of the maps of a detector's scales
_OF_CLIPS = "a class activation map of a clip or volume is the mean over its frames or slices, laid over a single one"
_PIXELS_OF_CLIPS = "saliency of a clip or volume is the largest of its frames or slices, laid over a single one"


@dataclass(frozen=True, slots=True, eq=False)
class CamObservation:
    """The class activation maps of a run; see `fmapviz.run.plan.Observation`.

    Attributes:
        methods: By view.
        automatic: Whether layers are chosen automatically.
        chosen: The layers that were chosen for images of a shape, by all threads: the first choice is that of all.
    """

    methods: Mapping[str, Method]
    automatic: bool
    chosen: dict[torch.Size, Chosen] = field(default_factory=dict)

    differentiates = True
    of_modules = False

    @property
    def views(self) -> Collection[str]:
        """Names of the views."""
        return self.methods.keys()

    @property
    def targets(self) -> tuple[TargetChoice, ...]:
        """The classes of all methods."""
        return tuple(choice for method in self.methods.values() for choice in method.targets)

    @property
    def from_pixels(self) -> bool:
        """True if gradients are needed before the first layer."""
        return any(method.of_pixels for method in self.methods.values())

    @property
    def of_layers(self) -> bool:
        """True if there are maps of layers, not only of pixels."""
        return any(not method.of_pixels for method in self.methods.values())

    @property
    def captioned(self) -> bool:
        """True if a picture, beside a sheet, names a class."""
        return any(method.targets and not method.sheet for method in self.methods.values())

    def without_pictures(self, *, values: bool) -> CamObservation | None:
        """Return all maps, which are values; None if no format stores values."""
        return self if values else None

    def start(self, model: Model, plan: Plan, style: Style) -> CamObserver:
        """Return an observer of one copy of the network."""
        return CamObserver(self, plan, style, frozenset(feeds_of(model.module)))


def observe_cams(views: Sequence[View], *, targets: Sequence[TargetChoice], automatic: bool) -> CamObservation:
    """Plan class activation maps; see `fmapviz.run.plan.PlanObservation`."""
    return CamObservation(
        {view.name: Method.of(view, targets) for view in views if isinstance(view, CamView)}, automatic=automatic
    )


@dataclass(frozen=True, slots=True, eq=False)
class InputPoint:
    """The input of a network, at which a gradient is computed.

    Attributes:
        edge: Its position in the graph.
    """

    edge: GradientEdge | None


class CamObserver(PassObserver):
    """Draws class activation maps of passes.

    Args:
        observation: The planned observation.
        plan: Of the run.
        style: How pictures look.
        feeds: Paths of the modules whose outputs the head of a detector reads.

    Attributes:
        observation: The planned observation.
        of_layers: The methods of layers, by view.
        exact: Whether the weights of a classifier are needed.
        automatic: Whether layers are to be chosen.
        pooling: The maps of exact class activation maps of the pass, if some view draws them.
    """

    def __init__(self, observation: CamObservation, plan: Plan, style: Style, feeds: Collection[str] = ()) -> None:
        methods = observation.methods
        self.observation = observation
        self.of_layers = {view: method for view, method in methods.items() if not method.of_pixels}
        self._of_pixels = {view: method for view, method in methods.items() if method.of_pixels}
        self.exact = self.keeps_heads = any(method.exact for method in methods.values())
        self.automatic = self.needs_scores = bool(observation.automatic and self.of_layers)
        self.keeps_layers = bool(self.of_layers)
        self.pooling: Pooling | None = None
        self._plan, self._style, self._feeds = plan, style, feeds
        self._chosen = Chosen()
        self._again: Chosen | None = None  # the layers with which the pass is repeated
        self._points: Points = {}
        self._pixels = InputPoint(None)

    def end(self) -> None:
        """Release the recorded layers."""
        self.pooling, self._again, self._points, self._pixels = None, None, {}, InputPoint(None)

    def layers_of(self, shape: torch.Size, *, again: bool) -> Collection[str] | None:
        """Return the layers that were chosen for images of a shape; None before."""
        if not self.automatic:
            return ()
        self._again = self._again if again else None
        chosen = self._again or self.observation.chosen.get(shape)
        return None if chosen is None else chosen.names

    def choose(self, current: ClassPass) -> bool:
        """Choose layers by the first class that some image has, unless that is done."""
        record = current.record
        self._prepare(current)
        if not self.automatic or record.names is not None:
            self._chosen = self._again or self.observation.chosen.get(record.pixels.shape[1:], Chosen())
            return True
        indices = current.present
        try:
            self._chosen = Chosen() if indices is None else self._choose_layers(current, indices)
        except NoMapError as reason:
            current.results.undrawn[", ".join(self.of_layers)] = str(reason)
            self._chosen = Chosen()
        is_intact = all(point.intact for point in record.kept if point.name in self._chosen.names)
        self._again = None if is_intact else self._chosen
        return is_intact

    def _choose_layers(self, current: ClassPass, indices: Indices) -> Chosen:
        """Choose layers after a pass that recorded all of them, and release the others.

        A choice that another thread has made meanwhile wins.

        Args:
            current: The pass.
            indices: A class for each image, whose gradient decides.

        Raises:
            NoMapError: No layer can be chosen.
        """
        record, scores, methods = current.record, current.scores, self.of_layers.values()
        assert scores
        scales = [point for point in find_maps(record, scores) if point.layer.name in self._feeds][::-1]
        chosen, is_certain = Chosen(scales=tuple(point.name for point in scales)), True
        if not scales and any(not method.exact for method in methods):
            last = find_last(record, scores, indices)
            chosen, is_certain = replace(chosen, layer=last.point.name), last.certain
            record.known[last.point.identity, tuple(indices)] = last.gradient
        if any(method.sheet for method in methods):
            maps = [point for point in find_maps(record, scores) if point.edge is not None][::-1]
            ends = {*chosen.scales} or {chosen.layer}  # of a detector: its head has layers of distances, and of other scales
            maps = maps[: max(at for at, point in enumerate(maps) if point.name in ends) + 1]
            rows = choose_rows([point for point in maps if point.intact or point is maps[-1]], record)
            chosen = replace(chosen, rows=tuple(point.name for point in rows))
        if self.pooling:
            chosen = replace(chosen, pooled=self.pooling.choose(find_maps(record, scores)).name)
        elif any(method.exact for method in methods):
            is_certain = False  # the scores of other images may be finite
        if is_certain:  # for all images of this shape
            chosen = self.observation.chosen.setdefault(record.pixels.shape[1:], chosen)
        record.keep_only(chosen.names, find_maps(record, scores))
        return chosen

    def _prepare(self, current: ClassPass) -> None:
        """Find the maps that are averaged for the class scores, if some view draws them."""
        scores, self.pooling = current.scores, None
        if self.exact and scores and bool(scores.values.isfinite().all()):
            self.pooling = Pooling(current.record, scores)
        elif self.exact and scores:
            exact = ", ".join(view for view, method in self.of_layers.items() if method.exact)
            current.results.notify_all(f"no {exact}: {NOT_FINITE}")

    def draw(self, current: ClassPass) -> None:
        """Draw the maps of no class.

        Raises:
            RequestError: No chosen layer has a map.
        """
        self._pixels = InputPoint(edge_of(current.record.pixels) if self._of_pixels else None)
        self._points = self._chosen_points(current) if self.automatic else self._requested_points(current)
        for view, method in self.of_layers.items():
            if not method.targets:
                self._draw_layers(current, view, [None] * current.record.images)

    def _requested_points(self, current: ClassPass) -> Points:
        """Return the layers that the user chose, for each view; note those without a map.

        Raises:
            RequestError: None of them enters the pooling, see `fmapviz.features.cam.exact_cam`.
        """
        record, results, pooling = current.record, current.results, self.pooling
        maps = []
        for point in record.outputs if self.of_layers else ():
            try:
                record.maps(point, point.values)
                maps.append(point)
            except NotAMapError as reason:
                results.note(self.of_layers, point.name, str(reason))
        points: dict[str, Sequence[GraphPoint]] = {}
        for view, method in self.of_layers.items():
            points[view] = maps
            if method.exact:
                points[view] = fitting = [point for point in maps if pooling and pooling.maps_of(point) is not None]
                if pooling and maps and not fitting:
                    raise refuse(maps[-1].name)
                for point in maps:
                    if point not in fitting:
                        results.note([view], point.name, "the class scores are not averages of its maps")
        return points

    def _chosen_points(self, current: ClassPass) -> Points:
        """Return the recorded layers that were chosen automatically, for each view."""
        kept = {point.name: point for point in current.record.kept}
        chosen = self._chosen if current.present else Chosen()
        pooled = chosen.pooled if self.pooling else ""  # the scores of these images may not be finite
        points = {}
        for view, method in self.of_layers.items():
            names = chosen.rows if method.sheet else (pooled,) if method.exact else chosen.scales or (chosen.layer,)
            points[view] = [kept[name] for name in names if name in kept]
        return points

    def points(self, alike: Collection[TargetChoice]) -> Iterable[Differentiable]:
        """Return the layers, and the input, at which some view needs the gradient of a class."""
        for view, method in self.of_layers.items():
            if method.of_gradients and not set(alike).isdisjoint(method.targets):
                yield from self._points[view]
        if any(not set(alike).isdisjoint(method.targets) for method in self._of_pixels.values()):
            yield self._pixels

    def draw_class(self, current: ClassPass, choice: TargetChoice, targets: Targets) -> None:
        """Draw the maps of a class."""
        for view, method in self.of_layers.items():
            if choice in method.targets:
                self._draw_layers(current, view, targets)
        for view, method in self._of_pixels.items():
            if choice in method.targets:
                self._draw_pixels(current, view, targets)

    def _draw_layers(self, current: ClassPass, view: str, targets: Targets) -> None:
        """Draw the map of each layer; of several scales also one that is the largest of theirs at each pixel."""
        heats = [
            heat for point in self._points[view] if (heat := self._draw_layer(current, view, point, targets)) is not None
        ]
        if heats and self._is_fused(view):
            last = max(point.feature_map.index for point in self._points[view])
            layer = LayerResult(FUSED, "", 1, last, tuple(heats[0].shape[1:]))
            self._add(current, view, torch.stack(heats).amax(0), layer, targets, ends=(0.0, 1.0))

    def _draw_layer(self, current: ClassPass, view: str, point: GraphPoint, targets: Targets) -> Tensor | None:
        """Draw the map of a layer, and return it enlarged and divided by its maximum, `(N, H, W)`; None if there is none."""
        record, results, method = current.record, current.results, self.of_layers[view]
        captured = {"activations": record.maps(point, point.values)}
        if method.exact and self.pooling:
            captured |= self.pooling.of(point, [target.index if target else 0 for target in targets])
        if method.of_gradients:
            gradient = current.gradients.get(id(point))
            if gradient is None:
                results.note([view], point.name, point.why_no_gradient())
                return None
            if self._has_scales:  # another one may have found the box, and in each image another
                alive = gradient.flatten(1).any(1).tolist()
                targets = [target if flows else None for target, flows in zip(targets, alive, strict=True)]
            captured["gradients"] = record.maps(point, gradient)
            if not bool(captured["gradients"].any()) and bool(gradient.any()):
                results.note([view], point.name, record.why_only_prefix())
                return None
        raw = method.apply(**captured)
        own = point.feature_map
        frames = len(frames_of(own, point.values))
        layer = LayerResult(own.name, own.layer.type, own.call, own.index, own.shape[1:], automatic=self.automatic)
        raw = raw.reshape(*raw.shape[:2], frames, -1).mean(2)
        if frames > 1 and _OF_CLIPS not in results.remarks:
            results.remarks.append(_OF_CLIPS)
        layer = replace(layer, frame=own.layout.frame(0, count=1) if own.layout else None)
        if record.places:
            raw = record.places.upright(own, raw)
            layer = replace(layer, centres=record.places.of(own, (raw.shape[1], raw.shape[2])))
            if record.pixels.ndim == 5 and frames == 1 and layer.frame is None:
                record.places.unframed[own.name] = None
        return self._add(current, view, raw, layer, targets)

    def _is_fused(self, view: str) -> bool:
        """Return True if the layers of a view are the scales of a detector."""
        return self._has_scales and not self.of_layers[view].sheet

    @property
    def _has_scales(self) -> bool:
        """True if layers are chosen by the scales of a detector."""
        return self.automatic and bool(self._chosen.scales)

    def _draw_pixels(self, current: ClassPass, view: str, targets: Targets) -> None:
        gradient, results = current.gradients.get(id(self._pixels)), current.results
        if gradient is None:
            results.undrawn[view] = "the class score does not depend on the input, or not differentiably"
            return
        raw = self._of_pixels[view].apply(pixel_gradients=gradient)
        if current.record.pixels.ndim == 5 and _PIXELS_OF_CLIPS not in results.remarks:
            results.remarks.append(_PIXELS_OF_CLIPS)
        self._add(current, view, raw, LayerResult("", "", call=1, index=0, shape=tuple(raw.shape[1:])), targets)

    def _add(
        self,
        current: ClassPass,
        view: str,
        raw: Tensor,
        layer: LayerResult,
        targets: Targets,
        *,
        ends: tuple[float, float] | None = None,
    ) -> Tensor:
        """Draw a map, scaled between its own extremes unless `ends` or the whole run says others; see `_draw_layer`."""
        method, record = self.observation.methods[view], current.record
        size = picture_size(record.pixels) or (raw.shape[1], raw.shape[2])
        limits = None if ends else self._limits(view, layer, targets)
        colormap = method.view.colormap or HEAT_COLORMAP
        over = method.view.over
        content = draw_class_map(raw, size, colormap, over=over, centres=layer.centres, limits=limits, ends=ends)
        heat, low, high = (content.tensors[name] for name in ("heat", "low", "high"))
        drawings: dict[str, BatchContent | None] = {view: content}
        given = targets if method.targets else None
        current.results.layers.append(LayerBatch(record.images, layer, given, drawings=drawings))
        share = (low / high).where(high > 0, 0)[:, None, None]
        return share + heat * (1 - share)

    def _limits(self, view: str, layer: LayerResult, targets: Targets) -> tuple[float, float] | None:
        """Return the values at the ends of the scale of a map, if all images of the run share it."""
        if self._style.scope != "run" or self.observation.methods[view].sheet:
            return None
        label = next((target.label for target in targets if target), "")
        shared = self._plan.shared.get((view, layer.layer, label))
        return (shared.low, shared.high) if shared else None
