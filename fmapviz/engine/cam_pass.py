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
from fmapviz.inspection.reshape import frames_of, picture_size
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

    Indices = tuple[int | None, ...]  # of a class in each image; None if the image does not have it

_PASSES = 4  # at most: chosen layers that were overwritten, a graph that cannot begin late, a backward pass that fails


@dataclass(slots=True, eq=False)
class _Pass:
    """A forward pass, and what is found out from it.

    Attributes:
        record: For its backward passes.
        results: Receives what is drawn.
        scores: Of all classes, None if no view needs them.
        pooling: The maps of exact class activation maps, if some view draws them.
        classes: The requested classes, by their indices in each image: `top1` and a name may be the same class.
        points: The layers of each view that is a class activation map of layers.
    """

    record: ForwardRecord
    results: BatchResults
    scores: ClassScores | None = None
    pooling: Pooling | None = None
    classes: dict[Indices, list[Wanted]] = field(default_factory=lambda: defaultdict(list))
    points: Points = field(default_factory=dict)


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
        chosen = self._choices.layers.get(batch.shape[1:]) if self._automatic else Chosen()
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
            current = self._score(record, results)
            if chosen is None:
                chosen = self._choose(current)
                if not all(point.intact for point in record.kept if point.name in chosen.names):
                    continue
            try:
                self._draw(current, chosen)
            except BackwardError:
                if not late:
                    raise
                self._choices.early = True  # a late graph may begin within `torch.utils.checkpoint`, for example
                continue
            return
        raise AssertionError("the same reason twice")

    def _score(self, record: ForwardRecord, results: BatchResults) -> _Pass:
        """Find the class scores, if views need them, and the requested classes."""
        current = _Pass(record, results)
        wanted = self._plan.wanted
        if not wanted and not self._automatic:
            return current
        current.scores = scores = class_scores(record.output, key=self._plan.output, images=record.images)
        if self.exact and bool(scores.values.isfinite().all()):
            current.pooling = Pooling(record, scores)
        elif self.exact:
            exact = ", ".join(view for view, method in self._of_layers.items() if method.exact)
            results.notify_all(f"no {exact}: the class scores are not finite")
        for each in wanted or (TOP1,):
            current.classes[tuple(indices_of(scores, each))].append(each)
        return current

    def _choose(self, current: _Pass) -> Chosen:
        """Choose layers by the first class that some image has."""
        assert current.scores
        indices = next(filter(_is_present, current.classes), None)
        if indices is None:
            return Chosen()
        try:
            return choose_layers(
                self._of_layers,
                current.record,
                current.scores,
                indices=indices,
                pooling=current.pooling,
                choices=self._choices,
            )
        except NoMapError as reason:
            current.results.undrawn[", ".join(self._of_layers)] = str(reason)
            return Chosen()

    def _draw(self, current: _Pass, chosen: Chosen) -> None:
        record, results, scores = current.record, current.results, current.scores
        if not self._automatic:
            current.points = requested_points(self._of_layers, record, current.pooling, results)
        elif any(map(_is_present, current.classes)):
            current.points = chosen_points(self._of_layers, record, chosen)
        else:  # a detector found nothing
            current.points = dict.fromkeys(self._of_layers, ())
        for view, method in self._of_layers.items():
            for point in () if method.targets else current.points[view]:
                self._draw_heat_map(_Class(record, results, [None] * record.images), view, method, point)
        if scores is None or not self._plan.wanted:
            return
        if scores.logits:
            results.remarks.append("the network ends with a softmax or sigmoid: the logits before it are differentiated")
        elif scores.probable:
            results.remarks.append("the network returns probabilities: these are differentiated, not logits")
        for number, (indices, alike) in enumerate(current.classes.items(), 1):
            for wanted in alike:
                results.miss(wanted.label, [index is None for index in indices])
            if _is_present(indices):
                self._draw_class(current, scores, alike, indices, more=number < len(current.classes))
        unseen = scores.of_pixels or scores.open_ended
        known = f"the network has only {scores.values.shape[1]} classes"
        results.notify_missing("the network finds no such class in the image" if unseen else known)

    def _draw_class(
        self, current: _Pass, scores: ClassScores, alike: Sequence[Wanted], indices: Indices, *, more: bool
    ) -> None:
        """Draw one class of each image, which was requested in one or several ways, by one backward pass."""
        values, record = scores_at(scores, indices), current.record
        needed = self._points_with_gradients(current, alike)
        known = {id(point): record.known.get((point.identity, indices)) for point in needed}
        edges: dict[int, GradientEdge | None] = {id(point): point.edge for point in needed}
        if any(not set(alike).isdisjoint(method.targets) for method in self._of_pixels.values()):
            edges[id(record)] = edge_of(record.pixels)
        gradients: Mapping[int, Tensor | None] = known
        if any(known.get(key) is None for key in edges):
            found = gradients_at(values, list(edges.values()), more=more, before=before_softmax(scores, indices))
            gradients = dict(zip(edges, found, strict=True))
        for wanted in alike:
            targets = [self._target(wanted, *each, scores) for each in zip(indices, values.tolist(), strict=True)]
            each = _Class(record, current.results, targets, gradients)
            if wanted in self._plan.targets:
                self._draw_gradients(each, "gradient", record.outputs, views=self._plan.gradients)
                self._draw_gradients(each, "input gradient", record.inputs, views=self._plan.input_gradients)
            for view, method in self._of_layers.items():
                pooling = current.pooling if method.exact else None
                for point in current.points[view] if wanted in method.targets else ():
                    exact = pooling.of(point, [index or 0 for index in indices]) if pooling else {}
                    self._draw_heat_map(each, view, method, point, exact=exact)
            for view, method in self._of_pixels.items():
                if wanted in method.targets:
                    self._draw_pixels(each, view, method)

    def _points_with_gradients(self, current: _Pass, alike: Sequence[Wanted]) -> list[GraphPoint]:
        """Return the points at which some view needs the gradient of a class."""
        needed = [
            point
            for view, method in self._of_layers.items()
            if "gradients" in method.needs and not set(alike).isdisjoint(method.targets)
            for point in current.points[view]
        ]
        if not set(alike).isdisjoint(self._plan.targets):
            needed += current.record.outputs if self._plan.gradients else []
            needed += current.record.inputs if self._plan.input_gradients else []
        return needed

    def _target(self, wanted: Wanted, index: int | None, score: float, scores: ClassScores) -> Target | None:
        if index is None:
            return None
        known = len(self._classes) == scores.values.shape[1] or (scores.open_ended and index < len(self._classes))
        return Target(wanted.label, index, self._classes[index] if known else "", score)

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


def _is_present(indices: Indices) -> bool:
    return any(index is not None for index in indices)


def _add_heat_map(each: _Class, view: str, method: Method, raw: Tensor, *, template: LayerResult) -> None:
    heat = heat_of(raw, picture_size(each.record.pixels) or (raw.shape[1], raw.shape[2]))

    def make(raw: NDArray[np.float32], heat: NDArray[np.float32]) -> HeatMap:
        pixels = (heat * np.float32(255) + np.float32(0.5)).astype(np.uint8)
        return HeatMap(raw, pixels, method.over, method.colormap)

    content = BatchContent(make, {"raw": raw, "heat": heat})
    targets = each.targets if method.targets else None
    each.results.layers.append(LayerBatch(each.record.images, template, targets, drawings={view: content}))
