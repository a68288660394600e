"""Differentiate class scores after a forward pass, for gradient views and for observers of the pass."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from fmapviz.data import Target
from fmapviz.observe.class_scores import scores_of_pixels
from fmapviz.observe.forward_record import ForwardRecord, GraphPoint
from fmapviz.observe.gradients import BackwardError, begin_graph, gradients_at
from fmapviz.observe.located import Located
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.score_reader import OtherEndingError
from fmapviz.observe.target_scores import indices_of, scores_at, why_absent
from fmapviz.observe.targets import TOP1
from fmapviz.run.batch_results import BatchResults
from fmapviz.run.layer_results import draw_feature_map
from fmapviz.run.observers import ClassPass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.data import Model, Of
    from fmapviz.observe.class_scores import ClassScores, Index
    from fmapviz.observe.layouts.find import LayoutFinder
    from fmapviz.observe.score_reader import ScoreReader
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.observers import Differentiable, Indices, PassObserver
    from fmapviz.run.plan import Plan

    FindTarget = Callable[[ClassScores, TargetChoice, Located | None], Sequence[Index | None]]

# At most: another ending, chosen layers that were overwritten, a graph that cannot begin late, a backward pass that fails.
_PASSES = 5


class ClassGradients:
    """Runs passes whose class scores are differentiated.

    Args:
        model: The network, and the names of its classes.
        plan: The views.
        style: How gradients are drawn.
        observers: Draw further results of a pass.
        reader: Remembers how the network ends.
        find: Returns the index of a requested class for each image.

    Attributes:
        head: The declared and detected kind of the network's scores.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        style: Style,
        observers: Sequence[PassObserver],
        reader: ScoreReader,
        *,
        find: FindTarget = indices_of,
    ) -> None:
        self.model = model
        self.plan = plan
        self.style = style
        self.observers = observers
        self.reader = reader
        self.find = find
        self.head = Head.of(model, plan.scores, confidence=plan.confidence)

    def note_layout(self, record: ForwardRecord, finder: LayoutFinder, *, needed: bool) -> None:
        """Record the class axis of scores of pixels at the end of a followed pass, if scores are needed.

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
        """Yield the passes that the caller has to run for prepared images `(N, ...)`, and draw after each.

        Which layers to record, and whether the graph may begin late, is unknown for the first images of some networks. The
        first pass then is a probe, whose answers are remembered. It is also the final pass, unless a chosen layer was
        overwritten, the graph could not begin late, or a late graph cannot be differentiated.

        Yields:
            A record that hooks fill in while the network runs, the network's input, and the results; those of the last pass
            count.

        Raises:
            RequestError: No class scores in the output, no gradient, no map, or no such class or layer.
            BackwardError: The backward pass failed.
        """
        reader, heads = self.reader, any(each.keeps_heads for each in self.observers)
        for number in range(_PASSES):
            layers = [each.layers_of(batch.shape[1:], again=number > 0) for each in self.observers]
            names = None if None in layers else {name for own in layers if own is not None for name in own}
            late = not (names is None or self.plan.from_pixels or reader.early)
            # A copy, which the network may overwrite: the batch is the caller's, and may have to pass again.
            start, given = (batch, batch.clone()) if late else begin_graph(batch)
            record = ForwardRecord(self.model.module, start, late=late, names=names, heads=heads)
            results = BatchResults(record.images)
            try:
                yield record, given, results
                if self._is_final(record, results):
                    return
            finally:
                record.release()
        raise AssertionError("the same reason twice")

    def _is_final(self, record: ForwardRecord, results: BatchResults) -> bool:
        """Draw the results of a pass; return False if it has to be repeated."""
        if record.disconnected:
            self.reader.early = True
            return False
        current = ClassPass(record, results)
        try:
            self._score(current)
        except OtherEndingError:
            return False
        if not self._choose(current):
            return False
        try:
            self._draw(current)
        except BackwardError:
            if not record.late:
                raise
            self.reader.early = True  # a late graph may begin within `torch.utils.checkpoint`, for example
            return False
        return True

    def _choose(self, current: ClassPass) -> bool:
        """Choose the layers of each observer among all that were recorded, and keep those of any observer.

        Returns:
            False if the pass has to be repeated.
        """
        record = current.record
        recorded, kept, is_final = record.kept, list[GraphPoint](), True
        for each in self.observers:
            record.kept = recorded
            is_final = each.choose(current) and is_final
            kept += record.kept if record.kept is not recorded else ()
        record.kept = list({id(point): point for point in kept}.values()) or recorded
        return is_final

    def _score(self, current: ClassPass) -> None:
        """Find the class scores, if views need them, and the requested classes."""
        wanted = self.plan.wanted
        if not wanted and not any(each.needs_scores for each in self.observers):
            return
        current.scores = self.reader.read(current.record, key=self.plan.output, head=self.head)
        current.located = locate(current.record, current.scores)
        for each in wanted or (TOP1,):
            current.classes[tuple(self.find(current.scores, each, current.located))].append(each)

    def _draw(self, current: ClassPass) -> None:
        """Draw the results of observers, and gradients.

        Raises:
            RequestError: No gradient, no map, or no such class.
            BackwardError: The backward pass failed.
        """
        for each in self.observers:
            each.draw(current)
        results, scores = current.results, current.scores
        if scores is None or not self.plan.wanted:
            return
        results.remarks += scores.remarks
        if scores.ended:
            results.remarks.append("the network ends with a softmax or sigmoid: the logits before it are differentiated")
        for number, (indices, alike) in enumerate(current.classes.items(), 1):
            for wanted, image in product(alike, [image for image, index in enumerate(indices) if index is None]):
                results.miss(wanted.label, image, why_absent(scores, wanted, image, current.located))
            if any(index is not None for index in indices):
                self._draw_class(current, scores, alike, indices, more=number < len(current.classes))
        results.notify_missing()

    def _draw_class(
        self, current: ClassPass, scores: ClassScores, alike: Sequence[TargetChoice], indices: Indices, *, more: bool
    ) -> None:
        """Draw one class of each image by one backward pass; the class may have been requested in several ways."""
        values, record, plan = scores_at(scores, indices), current.record, self.plan
        points: list[Differentiable] = [point for each in self.observers for point in each.points(alike)]
        if not set(alike).isdisjoint(plan.targets):
            points += record.outputs if plan.draws.get("gradient") else []
            points += record.inputs if plan.draws.get("input gradient") else []
        current.gradients = {id(point): record.known.get((_identity_of(point), indices)) for point in points}
        edges = {id(point): point.edge for point in points}
        if any(current.gradients.get(key) is None for key in edges):
            found = gradients_at(values, list(edges.values()), more=more)
            current.gradients = dict(zip(edges, found, strict=True))
        for wanted in alike:
            targets = [_target(wanted, image, index, scores) for image, index in enumerate(indices)]
            if wanted in plan.targets:
                self._draw_gradients(current, "gradient", record.outputs, targets)
                self._draw_gradients(current, "input gradient", record.inputs, targets)
            for each in self.observers:
                each.draw_class(current, wanted, targets)

    def _draw_gradients(
        self, current: ClassPass, of: Of, points: Sequence[GraphPoint], targets: Sequence[Target | None]
    ) -> None:
        plan, style, record, results = self.plan, self.style, current.record, current.results
        views = plan.draws.get(of, {})
        for point in points if views else ():
            gradient = current.gradients.get(id(point))
            if gradient is None:
                results.note(views, point.name, point.why_no_gradient())
                continue
            for batch in draw_feature_map(point.feature_map, gradient, plan, style, record=record, of=of, targets=targets):
                results.layers.append(batch)
                for why in batch.undrawn.values():
                    results.note(views, point.name, why)


def locate(record: ForwardRecord, scores: ClassScores) -> Located:
    """Return where the images of a pass lie in their files, and the scores of pixels in the images."""
    known = record.places.of_output(scores.pixels.part) if record.places and scores.pixels else None
    height, width = record.pixels.shape[-2:]
    return Located((height, width), record.files, known)


def _target(wanted: TargetChoice, image: int, index: Index | None, scores: ClassScores) -> Target | None:
    if index is None:
        return None
    number = index if isinstance(index, int) else index.index
    return Target(wanted.label, number, scores.name(number), **scores.numbers(image, index))


def _identity_of(point: Differentiable) -> object:
    return point.identity if isinstance(point, GraphPoint) else None
