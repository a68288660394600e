"""Differentiate class scores after a forward pass, and draw gradients and class activation maps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import HeatMap
from fmapviz.draw.heatmap import heat_and_ends
from fmapviz.features.attention.flow import draw_flow
from fmapviz.features.cam.cam_layers import Chosen, NoMapError, OtherEndingError
from fmapviz.features.cam.exact_cam import Pooling
from fmapviz.features.cam.positions import choose_layers, chosen_points, requested_points
from fmapviz.observe.class_scores import Head, indices_of, scores_at, scores_of_pixels
from fmapviz.observe.forward_record import ForwardRecord
from fmapviz.observe.gradients import BackwardError, begin_graph, edge_of, gradients_at
from fmapviz.observe.reshape import frames_of, picture_size
from fmapviz.observe.targets import TOP1
from fmapviz.run.layer_results import BatchResults, LayerBatch, draw_feature_map
from fmapviz.types import LayerResult, Target
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.config import Style
    from fmapviz.features.cam.cam_layers import Choices
    from fmapviz.features.cam.positions import Points
    from fmapviz.observe.class_scores import ClassScores
    from fmapviz.observe.forward_record import GraphPoint
    from fmapviz.observe.layouts.find import LayoutFinder
    from fmapviz.observe.targets import Wanted
    from fmapviz.run.plan import Plan
    from fmapviz.types import Model, Of

    Indices = tuple[int | None, ...]  # of a class in each image; None if the image does not have it
    Targets = Sequence[Target | None]  # likewise

NOT_FINITE = "the class scores are not finite"
_OF_CLIPS = "a class activation map of a clip or volume is the mean over its frames or slices, laid over a single one"
_PIXELS_OF_CLIPS = "saliency of a clip or volume is the largest of its frames or slices, laid over a single one"

# At most: another ending, chosen layers that were overwritten, a graph that cannot begin late, a backward pass that fails.
_PASSES = 5


class ClassMaps:
    """Draws what views need of class scores and their gradients.

    Args:
        model: The network, and the names of its classes.
        plan: The views.
        style: How gradients are drawn.
        choices: What earlier passes have shown.

    Attributes:
        head: What is known of the network's scores.
        exact: Whether the weights of a classifier are needed.
        automatic: Whether layers are to be chosen.
        of_layers: The class activation maps of layers.
        of_pixels: Those of the network's input.
    """

    def __init__(self, model: Model, plan: Plan, style: Style, choices: Choices) -> None:
        self.model = model
        self.plan = plan
        self.style = style
        self.choices = choices
        self.head = Head.of(model, plan.scores)
        self.of_layers = {view: method for view, method in plan.methods.items() if not method.of_pixels}
        self.of_pixels = {view: method for view, method in plan.methods.items() if method.of_pixels}
        self.exact = any(method.exact for method in plan.methods.values())
        self.automatic = bool(plan.automatic and self.of_layers)

    def note_layout(self, record: ForwardRecord, finder: LayoutFinder, *, needed: bool) -> None:
        """Note where the classes are in scores of pixels, if these are needed, at the end of a pass that a finder follows.

        Raises:
            MissingLayoutError: The pass has to be repeated, with axes followed.
        """
        if not needed:
            return
        key = self.plan.output
        values = scores_of_pixels(record.output, key=key, images=record.images, head=self.head)
        if values is not None:
            record.score_layout = finder.of_scores(values, key)

    def passes(self, batch: Tensor) -> Iterator[tuple[ForwardRecord, Tensor, BatchResults]]:
        """Yield what the caller has to run on prepared images `(N, ...)`, and draw after each pass.

        Which layers to record, and whether the graph may begin late, is unknown for the first images of some networks. The
        first pass then is a probe, whose answers `Choices` remembers. It is also the final pass, unless a chosen layer was
        overwritten, the graph could not begin late, or a late graph cannot be differentiated.

        Yields:
            A record that hooks fill in while the network runs, the network's input, and the results; those of the last pass
            count.

        Raises:
            RequestError: No class scores in the output, no gradient, no map, or no such class or layer.
            BackwardError: The backward pass failed.
        """
        choices = self.choices
        chosen = choices.layers.get(batch.shape[1:]) if self.automatic else Chosen()
        for _ in range(_PASSES):
            late = not (chosen is None or self.plan.from_pixels or choices.early)
            start, given = (batch, batch) if late else begin_graph(batch)
            names = None if chosen is None else chosen.names
            record = ForwardRecord(self.model.module, start, late=late, names=names, heads=self.exact)
            results = BatchResults(record.images)
            yield record, given, results
            if record.disconnected:
                choices.early = True
                continue
            current = Pass(self, record, results)
            try:
                current.score()
            except OtherEndingError:
                continue
            if chosen is None:
                chosen = current.choose()
                if not all(point.intact for point in record.kept if point.name in chosen.names):
                    continue
            try:
                current.draw(chosen)
            except BackwardError:
                if not late:
                    raise
                choices.early = True  # a late graph may begin within `torch.utils.checkpoint`, for example
                continue
            return
        raise AssertionError("the same reason twice")


@dataclass(slots=True, eq=False)
class Pass:
    """A forward pass that is over, and what is found out from it.

    Attributes:
        maps: What to draw.
        record: For its backward passes.
        results: Receives what is drawn.
        scores: Of all classes, None if no view needs them.
        pooling: The maps of exact class activation maps, if some view draws them.
        classes: The requested classes, by their indices in each image: `top1` and a name may be the same class.
        points: The layers of each view that is a class activation map of layers.
        gradients: Of the class that is drawn: by the identity of a graph point, or of the record for the network's input.
    """

    maps: ClassMaps
    record: ForwardRecord
    results: BatchResults
    scores: ClassScores | None = None
    pooling: Pooling | None = None
    classes: dict[Indices, list[Wanted]] = field(default_factory=lambda: defaultdict(list))
    points: Points = field(default_factory=dict)
    gradients: Mapping[int, Tensor | None] = field(default_factory=dict)

    def score(self) -> None:
        """Find the class scores, if views need them, and the requested classes."""
        maps, record = self.maps, self.record
        wanted = maps.plan.wanted
        if not wanted and not maps.automatic:
            return
        self.scores = scores = maps.choices.read_scores(record, key=maps.plan.output, head=maps.head)
        if maps.exact and bool(scores.values.isfinite().all()):
            self.pooling = Pooling(record, scores)
        elif maps.exact:
            exact = ", ".join(view for view, method in maps.of_layers.items() if method.exact)
            self.results.notify_all(f"no {exact}: {NOT_FINITE}")
        for each in wanted or (TOP1,):
            self.classes[tuple(indices_of(scores, each))].append(each)

    def choose(self) -> Chosen:
        """Choose layers by the first class that some image has."""
        indices = next(filter(_is_present, self.classes), None)
        if indices is None:
            return Chosen()
        try:
            return choose_layers(self, indices)
        except NoMapError as reason:
            self.results.undrawn[", ".join(self.maps.of_layers)] = str(reason)
            return Chosen()

    def draw(self, chosen: Chosen) -> None:
        """Draw class activation maps, of these layers if they are chosen automatically, and gradients.

        Raises:
            RequestError: No gradient, no map, or no such class.
            BackwardError: The backward pass failed.
        """
        maps, results, scores = self.maps, self.results, self.scores
        if maps.automatic:
            found = any(map(_is_present, self.classes))  # not if a detector found nothing
            self.points = chosen_points(self, chosen if found else Chosen())
        else:
            self.points = requested_points(self)
        for view, method in maps.of_layers.items():
            for point in () if method.targets else self.points[view]:
                self._draw_heat_map(view, point, [None] * self.record.images)
        if scores is None or not maps.plan.wanted:
            return
        results.remarks += scores.remarks
        if scores.ended:
            results.remarks.append("the network ends with a softmax or sigmoid: the logits before it are differentiated")
        for number, (indices, alike) in enumerate(self.classes.items(), 1):
            for wanted in alike:
                results.miss(wanted.label, [index is None for index in indices])
            if _is_present(indices):
                self._draw_class(scores, alike, indices, more=number < len(self.classes))
        results.notify_missing(_why_missing(scores))

    def _draw_class(self, scores: ClassScores, alike: Sequence[Wanted], indices: Indices, *, more: bool) -> None:
        """Draw one class of each image, which was requested in one or several ways, by one backward pass."""
        values, maps, record = scores_at(scores, indices), self.maps, self.record
        needed = self._points_with_gradients(alike)
        self.gradients = {id(point): record.known.get((point.identity, indices)) for point in needed}
        edges: dict[int, GradientEdge | None] = {id(point): point.edge for point in needed}
        if any(not set(alike).isdisjoint(method.targets) for method in maps.of_pixels.values()):
            edges[id(record)] = edge_of(record.pixels)
        flows = [view for view, flow in maps.plan.flows.items() if not set(alike).isdisjoint(flow.targets)]
        edges |= {id(block): block.edge for block in record.blocks if flows}
        if any(self.gradients.get(key) is None for key in edges):
            found = gradients_at(values, list(edges.values()), more=more)
            self.gradients = dict(zip(edges, found, strict=True))
        for wanted in alike:
            targets = [self._target(wanted, image, index, scores) for image, index in enumerate(indices)]
            if wanted in maps.plan.targets:
                self._draw_gradients("gradient", record.outputs, targets)
                self._draw_gradients("input gradient", record.inputs, targets)
            for view, method in maps.of_layers.items():
                for point in self.points[view] if wanted in method.targets else ():
                    self._draw_heat_map(view, point, targets)
            for view, method in maps.of_pixels.items():
                if wanted in method.targets:
                    self._draw_pixels(view, targets)
            for view in flows:
                if wanted in maps.plan.flows[view].targets:
                    given = {id(block): self.gradients[id(block)] for block in record.blocks}
                    draw_flow(
                        view, maps.plan, maps.style, record=record, results=self.results, targets=targets, gradients=given
                    )

    def _points_with_gradients(self, alike: Sequence[Wanted]) -> list[GraphPoint]:
        """Return the points at which some view needs the gradient of a class."""
        plan = self.maps.plan
        needed = [
            point
            for view, method in self.maps.of_layers.items()
            if "gradients" in method.needs and not set(alike).isdisjoint(method.targets)
            for point in self.points[view]
        ]
        if not set(alike).isdisjoint(plan.targets):
            needed += self.record.outputs if plan.draws.get("gradient") else []
            needed += self.record.inputs if plan.draws.get("input gradient") else []
        return needed

    def _target(self, wanted: Wanted, image: int, index: int | None, scores: ClassScores) -> Target | None:
        return None if index is None else Target(wanted.label, index, scores.name(index), **scores.numbers(image, index))

    def _draw_gradients(self, of: Of, points: Sequence[GraphPoint], targets: Targets) -> None:
        plan, style, results = self.maps.plan, self.maps.style, self.results
        views = plan.draws.get(of, {})
        for point in points if views else ():
            gradient = self.gradients.get(id(point))
            if gradient is None:
                results.note(views, point.name, point.why_no_gradient())
                continue
            for batch in draw_feature_map(
                point.feature_map, gradient, plan, style, record=self.record, of=of, targets=targets
            ):
                results.layers.append(batch)
                for why in batch.undrawn.values():
                    results.note(views, point.name, why)

    def _draw_heat_map(self, view: str, point: GraphPoint, targets: Targets) -> None:
        record, method = self.record, self.maps.of_layers[view]
        captured = {"activations": record.maps(point, point.values)}
        if method.exact and self.pooling:
            captured |= self.pooling.of(point, [target.index if target else 0 for target in targets])
        if "gradients" in method.needs:
            gradient = self.gradients.get(id(point))
            if gradient is None:
                self.results.note([view], point.name, point.why_no_gradient())
                return
            captured["gradients"] = record.maps(point, gradient)
            if bool(gradient.any()) and not bool(captured["gradients"].any()):
                self.results.note([view], point.name, record.why_only_prefix())
                return
        raw = method.apply(**captured)
        own = point.feature_map
        frames = len(frames_of(own, point.values))
        layer = LayerResult(own.name, own.layer.type, own.call, own.index, own.shape[1:], automatic=self.maps.automatic)
        raw = raw.reshape(*raw.shape[:2], frames, -1).mean(2)
        if frames > 1 and _OF_CLIPS not in self.results.remarks:
            self.results.remarks.append(_OF_CLIPS)
        layer = replace(layer, frame=own.layout.frame(0, count=1) if own.layout else None)
        if record.places:
            raw = record.places.upright(own, raw)
            layer = replace(layer, centres=record.places.of(own, (raw.shape[1], raw.shape[2])))
            if record.pixels.ndim == 5 and frames == 1 and layer.frame is None:
                record.places.unframed[own.name] = None
        self._add_heat_map(view, raw, layer, targets)

    def _draw_pixels(self, view: str, targets: Targets) -> None:
        gradient = self.gradients.get(id(self.record))
        if gradient is None:
            self.results.undrawn[view] = "the class score does not depend on the input, or not differentiably"
            return
        raw = self.maps.of_pixels[view].apply(pixel_gradients=gradient)
        if self.record.pixels.ndim == 5 and _PIXELS_OF_CLIPS not in self.results.remarks:
            self.results.remarks.append(_PIXELS_OF_CLIPS)
        self._add_heat_map(view, raw, LayerResult("", "", call=1, index=0, shape=tuple(raw.shape[1:])), targets)

    def _add_heat_map(self, view: str, raw: Tensor, layer: LayerResult, targets: Targets) -> None:
        method = self.maps.plan.methods[view]
        size, limits = picture_size(self.record.pixels) or (raw.shape[1], raw.shape[2]), self._limits(view, layer, targets)
        heat, low, high = heat_and_ends(raw, size, layer.centres, limits=limits)

        def make(raw: NDArray[np.float32], heat: NDArray[np.float32], *, low: float, high: float) -> HeatMap:
            pixels = (heat * np.float32(255) + np.float32(0.5)).astype(np.uint8)
            return HeatMap(raw, pixels, method.over, method.colormap, common=limits, ends=(low, high))

        content = BatchContent(make, {"raw": raw, "heat": heat, "low": low, "high": high})
        drawings: dict[str, BatchContent | None] = {view: content}
        given = targets if method.targets else None
        self.results.layers.append(LayerBatch(self.record.images, layer, given, drawings=drawings))

    def _limits(self, view: str, layer: LayerResult, targets: Targets) -> tuple[float, float] | None:
        """Return the values at the ends of the scale of a map, if all images of the run share it."""
        if self.maps.style.scope != "run" or self.maps.plan.methods[view].sheet:
            return None
        label = next((target.label for target in targets if target), "")
        shared = self.maps.plan.shared.get((view, layer.layer, label))
        return (shared.low, shared.high) if shared else None


def _why_missing(scores: ClassScores) -> list[str]:
    """Return why each image does not have a class."""
    if scores.kind == "ordinal":
        reason = "its probability is zero: the thresholds of the network are out of order"
    elif scores.of_pixels:
        reason = "no pixel is predicted as that class"
    elif scores.open_ended:
        reason = "the network finds no such class in the image"
    else:
        count, what = scores.values.shape[1], "output" if scores.kind == "value" else "class"
        plural = {"output": "outputs", "class": "classes"}[what] if count > 1 else what
        reason = f"the network has only {count} {plural}"
    finite = (scores.values.detach().isfinite() & scores.ranking.isfinite()).all(1).tolist()
    unknown = [0.0] * len(finite) if scores.unknown is None else scores.unknown.tolist()
    partly = f"{reason}, or only where its scores are not finite"
    return [
        NOT_FINITE if not known or share == 1 else partly if share else reason
        for known, share in zip(finite, unknown, strict=True)
    ]


def _is_present(indices: Indices) -> bool:
    return any(index is not None for index in indices)
