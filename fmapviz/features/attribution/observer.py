"""Draw attributions: after a pass, pass changed copies of each image through the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fmapviz.core.members import load
from fmapviz.data import LayerResult
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.features.attribution import AttributionView
from fmapviz.observe.located import AbsentError
from fmapviz.observe.reshape import picture_size
from fmapviz.observe.same_target import SameTarget
from fmapviz.observe.targets import TOP1
from fmapviz.run.batch_results import LayerBatch
from fmapviz.run.changed_passes import REPEATS, ChangedPasses
from fmapviz.run.observers import PassObserver
from fmapviz.views.base import draw_class_map

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.members import View
    from fmapviz.data import Model, Target
    from fmapviz.observe.class_scores import Index
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.observers import ClassPass
    from fmapviz.run.plan import Plan
    from fmapviz.run.running_pass import RunningPass
    from fmapviz.views.base import BatchContent

_OF_CLIPS = "an attribution of a clip or volume is of all its frames or slices, laid over a single one"
_MIXES = "the network mixes the images of a batch: each changed copy is passed through it alone"


@dataclass(frozen=True, slots=True, eq=False)
class AttributionObservation:
    """The attributions of a run; see `fmapviz.run.plan.Observation`.

    Attributes:
        methods: By the name of the view.
        targets: The classes.
    """

    methods: Mapping[str, AttributionView]
    targets: tuple[TargetChoice, ...]

    differentiates = True
    # The network may overwrite what it is given; a graph that begins at the pixels begins at a copy.
    from_pixels = True
    of_layers = False
    of_modules = False
    captioned = True

    @property
    def views(self) -> Collection[str]:
        """Names of the views."""
        return self.methods.keys()

    def without_pictures(self, *, values: bool) -> AttributionObservation | None:
        """Return all maps, which are values; None if no format stores values."""
        return self if values else None

    def start(self, model: Model, plan: Plan, style: Style) -> AttributionObserver:
        """Return an observer of one copy of the network."""
        return AttributionObserver(self, model, plan, style)


def observe_attribution(
    views: Sequence[View],
    *,
    targets: Sequence[TargetChoice],
    automatic: bool,  # noqa: ARG001
) -> AttributionObservation:
    """Plan attributions; see `fmapviz.run.plan.PlanObservation`."""
    methods = {view.name: view for view in views if isinstance(view, AttributionView)}
    return AttributionObservation(methods, tuple(targets) or (TOP1,))


class AttributionObserver(PassObserver):
    """Draws attributions when a pass is over."""

    def __init__(self, observation: AttributionObservation, model: Model, plan: Plan, style: Style) -> None:
        self._observation, self._plan, self._style = observation, plan, style
        self._preparation = model.preparation
        self._passes = ChangedPasses(model, plan)
        self._report: Callable[[int, int], object] = max
        self._done = self._total = 0

    def begin(self, current: RunningPass) -> None:
        """Connect the passes of an image to the end of the run and to its progress."""
        self._passes.check, self._passes.count = current.check, self._count
        self._report = current.report

    def _count(self, passes: int) -> None:
        self._done = min(self._done + passes, self._total)  # a few more find out whether copies may share a pass
        self._report(self._done, self._total)

    def draw(self, current: ClassPass) -> None:
        """Count the passes of all classes and images."""
        changes, wanted = self._plan.changes, set(self._observation.targets)
        if picture_size(current.record.pixels) is None:
            return
        shape = tuple(current.record.pixels.shape[1:])
        maps = sum(
            len(wanted.intersection(alike)) * sum(index is not None for index in indices)
            for indices, alike in current.classes.items()
        )
        each = sum(REPEATS + load(method.passes)(shape, changes) for method in self._observation.methods.values())
        self._done, self._total = 0, maps * each

    def draw_class(self, current: ClassPass, choice: TargetChoice, targets: Sequence[Target | None]) -> None:
        """Draw the maps of a class of each image.

        Raises:
            ForwardError: The network failed for a changed copy.
            RequestError: The options do not fit the image.
        """
        if choice not in self._observation.targets:
            return
        indices = next(indices for indices, alike in current.classes.items() if choice in alike)
        with self._passes.restored():
            for view, method in self._observation.methods.items():
                self._draw(current, method, targets, indices, limits=self._limits(view, targets))
        if self._passes.mixes and _MIXES not in current.results.remarks:
            current.results.remarks.append(_MIXES)

    def _draw(
        self,
        current: ClassPass,
        method: AttributionView,
        targets: Sequence[Target | None],
        indices: Sequence[Index | None],
        *,
        limits: tuple[float, float] | None,
    ) -> None:
        record, results, changes = current.record, current.results, self._plan.changes
        size = picture_size(record.pixels)
        if size is None:
            results.undrawn[method.name] = "the input is no picture: it has no rows and columns"
            return
        maps, notes, drawn, why = torch.zeros(record.images, *size), [""] * record.images, list(targets), ""
        for image, (target, index) in enumerate(zip(targets, indices, strict=True)):
            if target is None or index is None:
                continue
            try:
                maps[image], notes[image] = self._attribute(current, method, image, index)
            except AbsentError as reason:
                results.notices[image].append(f"no {method.name} of {target.label}: {reason}")
                why, drawn[image] = str(reason), None
        if record.pixels.ndim == 5 and _OF_CLIPS not in results.remarks:
            results.remarks.append(_OF_CLIPS)
        if not any(drawn):
            results.undrawn[method.name] = why
            return
        content = draw_class_map(
            maps.to(record.pixels.device),
            size,
            method.colormap or HEAT_COLORMAP,
            over=method.over,
            limits=limits,
            method=load(method.describe)(changes),
            notes=notes,
        )
        drawings: dict[str, BatchContent | None] = {method.name: content}
        layer = LayerResult("", "", call=1, index=0, shape=size)
        results.layers.append(LayerBatch(record.images, layer, drawn, drawings=drawings))

    def _attribute(self, current: ClassPass, method: AttributionView, image: int, index: Index) -> tuple[Tensor, str]:
        """Return the map of an image, and a note about it.

        Raises:
            AbsentError: It has none.
        """
        assert current.scores
        record = current.record
        target = SameTarget.of(current.scores, image, index)
        passes = self._passes.of(record.pixels[image : image + 1].detach(), target, record.score_layout)
        found: tuple[Tensor, str] = load(method.attribute)(passes, self._preparation, self._plan.changes)
        spread = passes.spread()
        if varies := spread.weight if method.weighted else spread.score:
            what = target.measure_of(current.scores) if method.weighted else "score"
            said = f"the {what} varies from pass to pass of the same image: standard deviation {varies:.2g}"
            current.results.notices[image].append(f"{method.name}: {said}")
        return found

    def _limits(self, view: str, targets: Sequence[Target | None]) -> tuple[float, float] | None:
        """Return the values at the ends of the scale of a map, if all images of the run share it."""
        if self._style.scope != "run":
            return None
        label = next((target.label for target in targets if target), "")
        shared = self._plan.shared.get((view, "", label))
        return (shared.low, shared.high) if shared else None
