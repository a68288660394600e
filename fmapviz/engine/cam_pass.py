"""Differentiate class scores after a forward pass, and draw gradients and class activation maps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import HeatMap
from fmapviz.core.types import LayerResult, Target
from fmapviz.engine.cam_positions import choose_layers, chosen_points, requested_points
from fmapviz.engine.layer_results import BatchResults, LayerBatch, draw_feature_map
from fmapviz.inspection.cam_layers import Chosen, NoMapError
from fmapviz.inspection.exact_cam import Pooling
from fmapviz.inspection.forward_record import ForwardRecord
from fmapviz.inspection.gradients import BackwardError, begin_graph, edge_of, gradients_at
from fmapviz.inspection.layout import frames_of, picture_size
from fmapviz.inspection.targets import TOP1, before_softmax, class_scores, indices_of, scores_at
from fmapviz.render.heatmap import heat_of
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.autograd.graph import GradientEdge

    from fmapviz.core.config import Style
    from fmapviz.core.types import Of
    from fmapviz.engine.cam_positions import Points
    from fmapviz.engine.plan import Draw, Method, Plan
    from fmapviz.inspection.cam_layers import Choices
    from fmapviz.inspection.forward_record import GraphPoint
    from fmapviz.inspection.targets import ClassScores, Wanted

_PASSES = 4  # at most: chosen layers that were overwritten, a graph that cannot begin late, a backward pass that fails


@dataclass(slots=True, eq=False)
class _Scored:
    """The class scores of a forward pass.

    Attributes:
        scores: Of all classes.
        pooling: The maps of exact class activation maps, if some view draws them.
        classes: The requested classes, by their indices in each image: `top1` and a name may be the same class.
        notices: For every image.
    """

    scores: ClassScores
    pooling: Pooling | None = None
    classes: dict[tuple[int | None, ...], list[Wanted]] = field(default_factory=lambda: defaultdict(list))
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """One requested class of each image, or none.

    Attributes:
        record: The forward pass.
        results: Receives what is drawn.
        targets: The class for each image, None for an image without it.
        gradients: Of its score: by the identity of a graph point, or of the record for the network's input.
    """

    record: ForwardRecord
    results: BatchResults
    targets: Sequence[Target | None]
    gradients: Mapping[int, Tensor | None] = field(default_factory=dict)


class ClassMaps:
    """Draws what views need of class scores and their gradients.

    Args:
        network: The network.
        plan: The views.
        classes: The classes' names.
        style: How gradients are drawn.
        choices: What earlier passes have shown.
        ordered: See `ForwardRecord`.

    Attributes:
        exact: Whether the weights of a classifier are needed.
    """

    def __init__(
        self,
        network: nn.Module,
        plan: Plan,
        classes: Sequence[str],
        *,
        style: Style,
        choices: Choices,
        ordered: bool,
    ) -> None:
        self._network = network
        self._plan = plan
        self._classes = classes
        self._style = style
        self._choices = choices
        self._ordered = ordered
        self._of_layers = {view: method for view, method in plan.methods.items() if not method.of_pixels}
        self._of_pixels = {view: method for view, method in plan.methods.items() if method.of_pixels}
        self.exact = any(method.exact for method in plan.methods.values())
        self._automatic = bool(plan.automatic and self._of_layers)

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
        chosen = self._choices.of(batch.shape) if self._automatic else Chosen()
        for _ in range(_PASSES):
            probes = chosen is None
            late = not (probes or self._plan.from_pixels or self._choices.early)
            start, given = (batch, batch) if late else begin_graph(batch)
            names = None if chosen is None else chosen.names
            record = ForwardRecord(self._network, start, self._ordered, late=late, names=names, heads=self.exact)
            results = BatchResults(record.images)
            yield record, given, results
            if record.disconnected:
                self._choices.early = True
                continue
            scored = self._score(record)
            if chosen is None:
                chosen = self._choose(record, scored, results)
                if any(point.intact is None for point in record.kept if point.name in chosen.names):
                    continue
            try:
                self._draw(record, scored, chosen, results)
            except BackwardError:
                if not late:
                    raise
                self._choices.early = True  # a late graph may begin within `torch.utils.checkpoint`, for example
                continue
            return
        raise AssertionError("the same reason twice")

    def _score(self, record: ForwardRecord) -> _Scored | None:
        """Return the class scores, None if no view needs them."""
        wanted = self._plan.wanted
        if not wanted and not self._automatic:
            return None
        scores = class_scores(record.output, key=self._plan.output, images=record.images)
        scored = _Scored(scores)
        if self.exact and bool(scores.values.isfinite().all()):
            scored.pooling = Pooling(record, scores)
        elif self.exact:
            exact = ", ".join(view for view, method in self._of_layers.items() if method.exact)
            scored.notices.append(f"no {exact}: the class scores are not finite")
        for each in wanted or (TOP1,):
            scored.classes[tuple(indices_of(scores, each))].append(each)
        return scored

    def _choose(self, record: ForwardRecord, scored: _Scored | None, results: BatchResults) -> Chosen:
        """Choose layers by the first class that some image has."""
        assert scored
        indices = next((own for own in scored.classes if any(index is not None for index in own)), None)
        if indices is None:
            return Chosen()
        try:
            return choose_layers(
                self._of_layers,
                record,
                scored.scores,
                indices=indices,
                pooling=scored.pooling,
                choices=self._choices,
            )
        except NoMapError as reason:
            results.undrawn[", ".join(self._of_layers)] = str(reason)
            return Chosen()

    def _draw(self, record: ForwardRecord, scored: _Scored | None, chosen: Chosen, results: BatchResults) -> None:
        pooling = scored.pooling if scored else None
        points: Points
        if self._automatic and scored and not any(index is not None for own in scored.classes for index in own):
            points = dict.fromkeys(self._of_layers, ())  # a detector found nothing
        elif self._automatic:
            points = chosen_points(self._of_layers, record, chosen)
        else:
            points = requested_points(self._of_layers, record, pooling, results)
        for view, method in self._of_layers.items():
            for point in () if method.targets else points[view]:
                self._draw_heat_map(_Class(record, results, [None] * record.images), view, method, point)
        if scored is None:
            return
        for notice in scored.notices:
            results.notify_all(notice)
        if not self._plan.wanted:
            return
        scores = scored.scores
        if scores.logits:
            results.remarks.append("the network ends with a softmax or sigmoid: the logits before it are differentiated")
        elif scores.probable:
            results.remarks.append("the network returns probabilities: these are differentiated, not logits")
        for number, (indices, alike) in enumerate(scored.classes.items()):
            more = number + 1 < len(scored.classes)
            self._draw_class(record, results, scored, alike, indices, points=points, more=more)
        unseen = scores.of_pixels or scores.open_ended
        known = f"the network has only {scores.values.shape[1]} classes"
        results.notify_missing("the network finds no such class in the image" if unseen else known)

    def _draw_class(
        self,
        record: ForwardRecord,
        results: BatchResults,
        scored: _Scored,
        alike: Sequence[Wanted],
        indices: Sequence[int | None],
        *,
        points: Points,
        more: bool,
    ) -> None:
        """Draw one class of each image, which was requested in one or several ways, by one backward pass."""
        for wanted in alike:
            results.miss(wanted.label, [index is None for index in indices])
        if all(index is None for index in indices):
            return
        values = scores_at(scored.scores, indices)
        before = before_softmax(scored.scores, indices)
        gradients = self._gradients(record, alike, values, indices, points=points, more=more, before=before)
        for wanted in alike:
            targets = [self._target(wanted, *each, scored.scores) for each in zip(indices, values.tolist(), strict=True)]
            each = _Class(record, results, targets, gradients)
            if wanted in self._plan.targets:
                self._draw_gradients(each, "gradient", record.outputs, views=self._plan.gradients)
                self._draw_gradients(each, "input gradient", record.inputs, views=self._plan.input_gradients)
            for view, method in self._of_layers.items():
                pooling = scored.pooling if method.exact else None
                for point in points[view] if wanted in method.targets else ():
                    exact = pooling.of(point, [index or 0 for index in indices]) if pooling else {}
                    self._draw_heat_map(each, view, method, point, exact=exact)
            for view, method in self._of_pixels.items():
                if wanted in method.targets:
                    self._draw_pixels(each, view, method)

    def _target(self, wanted: Wanted, index: int | None, score: float, scores: ClassScores) -> Target | None:
        if index is None:
            return None
        known = len(self._classes) == scores.values.shape[1] or (scores.open_ended and index < len(self._classes))
        return Target(wanted.label, index, self._classes[index] if known else "", score)

    def _gradients(
        self,
        record: ForwardRecord,
        alike: Sequence[Wanted],
        values: Tensor,
        indices: Sequence[int | None],
        *,
        points: Points,
        more: bool,
        before: tuple[GradientEdge, Tensor] | None,
    ) -> Mapping[int, Tensor | None]:
        """Differentiate once for all views; see `_Class` for the keys."""
        needed = [
            point
            for view, method in self._of_layers.items()
            if "gradients" in method.needs and not set(alike).isdisjoint(method.targets)
            for point in points[view]
        ]
        if not set(alike).isdisjoint(self._plan.targets):
            needed += record.outputs if self._plan.gradients else []
            needed += record.inputs if self._plan.input_gradients else []
        known = {id(point): record.known.get((point.identity, tuple(indices))) for point in needed}
        edges: dict[int, GradientEdge | None] = {id(point): point.edge for point in needed}
        if any(not set(alike).isdisjoint(method.targets) for method in self._of_pixels.values()):
            edges[id(record)] = edge_of(record.pixels)
        if all(known.get(key) is not None for key in edges):
            return known
        return dict(zip(edges, gradients_at(values, list(edges.values()), more=more, before=before), strict=True))

    def _draw_gradients(self, each: _Class, of: Of, points: Sequence[GraphPoint], *, views: Mapping[str, Draw]) -> None:
        record, results = each.record, each.results
        for point in points if views else ():
            gradient = each.gradients.get(id(point))
            if gradient is None:
                results.note(views, point.name, point.why_no_gradient())
                continue
            batches = draw_feature_map(
                point.feature_map, gradient, self._plan, self._style, record=record, of=of, targets=each.targets
            )
            for batch in batches:
                results.layers.append(batch)
                for why in batch.undrawn.values():
                    results.note(views, point.name, why)

    def _draw_heat_map(
        self, each: _Class, view: str, method: Method, point: GraphPoint, *, exact: Mapping[str, Tensor] | None = None
    ) -> None:
        record, results = each.record, each.results
        captured = {"activations": record.maps(point, point.values), **(exact or {})}
        if "gradients" in method.needs:
            gradient = each.gradients.get(id(point))
            if gradient is None:
                results.note([view], point.name, point.why_no_gradient())
                return
            captured["gradients"] = record.maps(point, gradient)
            if bool(gradient.any()) and not bool(captured["gradients"].any()):
                results.note([view], point.name, record.why_only_prefix())
                return
        raw = method.apply(**captured)
        feature_map = point.feature_map
        frames = len(frames_of(feature_map, point.values, record.pixels, ordered=record.ordered))
        template = LayerResult(
            feature_map.name,
            feature_map.layer.type,
            feature_map.call,
            index=0 if self._automatic else feature_map.index,
            shape=feature_map.shape[1:],
            automatic=self._automatic,
        )
        _add_heat_map(each, view, method, raw.reshape(*raw.shape[:2], frames, -1).mean(2), template=template)

    def _draw_pixels(self, each: _Class, view: str, method: Method) -> None:
        gradient = each.gradients.get(id(each.record))
        if gradient is None:
            why = "the class score does not depend on the input, or not differentiably"
            each.results.undrawn[view] = why
            return
        raw = method.apply(pixel_gradients=gradient)
        template = LayerResult("", "", call=1, index=0, shape=tuple(raw.shape[1:]))
        _add_heat_map(each, view, method, raw, template=template)


def _add_heat_map(each: _Class, view: str, method: Method, raw: Tensor, *, template: LayerResult) -> None:
    heat = heat_of(raw, picture_size(each.record.pixels) or (raw.shape[1], raw.shape[2]))

    def make(raw: NDArray[np.float32], heat: NDArray[np.float32]) -> HeatMap:
        pixels = (heat * np.float32(255) + np.float32(0.5)).astype(np.uint8)
        return HeatMap(raw, pixels, method.over, method.colormap)

    content = BatchContent(make, {"raw": raw, "heat": heat})
    targets = each.targets if method.targets else None
    each.results.layers.append(LayerBatch(each.record.images, template, targets, drawings={view: content}))
