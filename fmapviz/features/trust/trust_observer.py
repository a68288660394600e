"""Judge the maps of other views when a pass is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fmapviz.core import registry
from fmapviz.data import LayerResult
from fmapviz.features.trust.judge import COMPUTED, Judge
from fmapviz.features.trust.judged_maps import Followed
from fmapviz.features.trust.trust_sheet import TrustDrawn
from fmapviz.observe.gradients import BackwardError
from fmapviz.observe.located import AbsentError
from fmapviz.observe.reshape import picture_size
from fmapviz.observe.same_target import SameTarget
from fmapviz.observe.targets import TOP1, TargetChoice
from fmapviz.run.batch_results import LayerBatch
from fmapviz.run.forward_pass import ForwardError
from fmapviz.run.observers import PassObserver
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from fmapviz.config import Style
    from fmapviz.core.members import View
    from fmapviz.data import Model, Target
    from fmapviz.observe.class_scores import Index
    from fmapviz.run.observers import ClassPass
    from fmapviz.run.plan import Plan
    from fmapviz.run.running_pass import RunningPass

VIEW = "trust"
# One of each kind, without those that take hundreds of passes.
USUAL = ("gradcam", "layercam", "eigencam", "saliency", "integrated-gradients")


@dataclass(frozen=True, slots=True, eq=False)
class TrustObservation:
    """The judgement of a run; see `fmapviz.run.plan.Observation`.

    Attributes:
        views: Name of the view.
        targets: The classes.
        judged: Names of the views that are judged; empty: those of the other observations, or else the usual ones.
    """

    views: Collection[str]
    targets: tuple[TargetChoice, ...]
    judged: tuple[str, ...] = ()

    # The network may overwrite what it is given; a graph that begins at the pixels begins at a copy.
    differentiates = from_pixels = of_layers = captioned = True
    of_modules = False

    def without_pictures(self, *, values: bool) -> TrustObservation:  # noqa: ARG002
        """Return all of it: the table of the run is made of it."""
        return self

    def start(self, model: Model, plan: Plan, style: Style) -> TrustObserver:  # noqa: ARG002
        """Return an observer of one copy of the network."""
        return TrustObserver(self, model, plan)


def observe_trust(
    views: Sequence[View],
    *,
    targets: Sequence[TargetChoice],
    automatic: bool,  # noqa: ARG001
) -> TrustObservation:
    """Plan the view of trust; see `fmapviz.run.plan.PlanObservation`."""
    return TrustObservation(tuple(view.name for view in views), tuple(targets) or (TOP1,))


def judged_views(plan: Plan) -> tuple[str, ...]:
    """Return the names of the views that are judged: those that are drawn too, or else the usual ones."""
    requested = (view for each in plan.observations for view in each.views)
    return tuple(view for view in requested if registry.view(view).method) or usual_views()


def usual_views() -> tuple[str, ...]:
    """Return the names of the views that are judged if none is requested."""
    return tuple(view for view in USUAL if view in registry.views())


class TrustObserver(PassObserver):
    """Judges maps when a pass is over."""

    def __init__(self, observation: TrustObservation, model: Model, plan: Plan) -> None:
        self._observation, self._plan = observation, plan
        self._judge = Judge(model, plan, observation.judged or judged_views(plan))
        self._report: Callable[[int, int], object] = max
        self._done = self._judged = self._own = 0
        self._maps = 0  # passes that compute the maps of an image and class once, as far as known

    def begin(self, current: RunningPass) -> None:
        """Connect passes to the end of the run and to its progress."""
        self._judge.maps.check = self._judge.changed.check = current.check
        self._judge.changed.count = self._judge.maps.count = self._count
        self._judge.maps.expect, self._report = self._expect, current.report

    def end(self) -> None:
        """Release what belongs to the run."""
        self._judge.maps.check = self._judge.changed.check = bool
        self._judge.changed.count = self._judge.maps.count = self._judge.maps.expect = abs
        self._report = max

    def _expect(self, passes: int) -> None:
        self._maps = passes

    def _count(self, passes: int) -> None:
        total = self._judged * (self._own + COMPUTED * self._maps)
        self._done = min(self._done + passes, total)
        self._report(self._done, total)

    def draw(self, current: ClassPass) -> None:
        """Count the passes of all classes and images."""
        size, wanted = picture_size(current.record.pixels), set(self._observation.targets)
        self._judged = sum(
            len(wanted.intersection(alike)) * sum(index is not None for index in indices)
            for indices, alike in current.classes.items()
        )
        self._done, self._own = 0, self._judge.count(size) if size else 0

    def draw_class(self, current: ClassPass, choice: TargetChoice, targets: Sequence[Target | None]) -> None:
        """Judge the maps of a class of each image.

        Raises:
            ForwardError: The network failed.
            RequestError: A method does not fit the network.
        """
        if choice not in self._observation.targets:
            return
        indices = next(indices for indices, alike in current.classes.items() if choice in alike)
        record, results = current.record, current.results
        drawn, contents, why = list(targets), dict[int, TrustDrawn](), ""
        for image, (target, index) in enumerate(zip(targets, indices, strict=True)):
            if target is None or index is None:
                continue
            try:
                contents[image] = self._draw(current, image, index, label=choice.label)
            except AbsentError as reason:
                results.notices[image].append(f"no {VIEW} for {target.full_title}: {reason}")
                why, drawn[image] = str(reason), None
        if not contents:
            results.undrawn[VIEW] = why or results.undrawn.get(VIEW, "no image has the class")
            return
        some = next(iter(contents.values()))  # in place of those that are not drawn
        content = BatchContent(lambda number: contents.get(int(number), some), {"number": torch.arange(record.images)})
        layer = LayerResult("", "", call=1, index=0, shape=picture_size(record.pixels) or ())
        results.layers.append(LayerBatch(record.images, layer, drawn, drawings={VIEW: content}))

    def _draw(self, current: ClassPass, image: int, index: Index, *, label: str) -> TrustDrawn:
        assert current.scores
        record = current.record
        target = SameTarget.of(current.scores, image, index)
        followed = Followed(
            record.pixels[image : image + 1].detach(), target, TargetChoice(label, None, target.index), record.places
        )
        layers = () if self._plan.automatic else {point.name for point in record.outputs}
        try:
            judgement, heats = self._judge.judge(followed, record.score_layout, layers=layers)
        except BackwardError as error:
            raise ForwardError(str(error)) from error.__cause__
        if judgement.spread:
            said = f"the {judgement.measure} varies from pass to pass of the same image"
            current.results.notices[image].append(f"{VIEW}: {said}: standard deviation {judgement.spread:.2g}")
        return TrustDrawn(heats, judgement)
