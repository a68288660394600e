"""Compute the maps that are judged: those of the observations of other views, of one image and one target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.members import load
from fmapviz.draw.heatmap import enlarge
from fmapviz.observe.reshape import picture_size
from fmapviz.run.forward_pass import call_network
from fmapviz.run.observed_passes import ObservedPasses, Wanted
from fmapviz.run.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.core.members import View
    from fmapviz.data import Model
    from fmapviz.observe.class_scores import ClassScores, Index
    from fmapviz.observe.located import Located
    from fmapviz.observe.places import Places
    from fmapviz.observe.same_target import SameTarget
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.batch_results import LayerBatch
    from fmapviz.run.plan import Observation

_NOT_FINITE = "it has values that are not finite, which have no order"


@dataclass(frozen=True, slots=True, eq=False)
class JudgedMap:
    """A map of a class over an image.

    Attributes:
        view: Name of the view, the method.
        layer: Name of the feature map; empty of a map of the input.
        values: Signed, enlarged to the image, float32 `(H, W)`.
        heat: Its positive part as it is drawn, uint8 `(H, W)`.
        extremes: Smallest and largest value, before it is enlarged.
        of_class: Whether the method computes another map for another class.
    """

    view: str
    layer: str
    values: NDArray[np.float32]
    heat: NDArray[np.uint8]
    extremes: tuple[float, float]
    of_class: bool

    @property
    def key(self) -> tuple[str, str]:
        """Its view and its layer."""
        return self.view, self.layer


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """An image and its target.

    Attributes:
        image: Prepared, `(1, ...)`.
        target: Its target, which is the same in each pass.
        choice: As the user requested it.
        places: Where the maps of layers lie in the image; None if that is unknown.
    """

    image: Tensor
    target: SameTarget
    choice: TargetChoice
    places: Places | None


class MapMaker:
    """Computes the maps of some views, by passes that other observers of a run do not see.

    Args:
        model: The network; its weights may change from call to call.
        plan: Of the run.
        views: Names of the views.

    Attributes:
        check: Called in each pass; its exception ends the run.
        count: Called with the number of passes that are done.
        expect: Called with the number of passes that the maps of an image take, as far as it is known.
    """

    def __init__(self, model: Model, plan: Plan, views: Sequence[str]) -> None:
        self.check: Callable[[], object] = bool
        self.count: Callable[[int], object] = abs  # ignored
        self.expect: Callable[[int], object] = abs
        self._needs = dict[tuple[str, ...], int]()
        self.views = [registry.view(name) for name in views]
        self._plan = plan
        self._passes = passes_of(model)

    def observations(self, choice: TargetChoice) -> tuple[Observation, ...]:
        """Return the observations of one image; the layers that they choose are those of all its passes."""
        planners: dict[str, list[View]] = {}
        for view in self.views:
            planners.setdefault(view.observe, []).append(view)
        return tuple(
            load(planner)(own, targets=[choice], automatic=self._plan.automatic) for planner, own in planners.items()
        )

    def maps(
        self, followed: Followed, observations: Sequence[Observation], layers: Collection[str]
    ) -> tuple[list[JudgedMap], dict[str, str]]:
        """Return the maps of an image, with the weights that the network has now.

        Args:
            followed: The image and its target.
            observations: See `observations`.
            layers: Names of the feature maps that the user chose; empty: they are chosen automatically.

        Returns:
            The maps, in the order of views, and why others are missing.

        Raises:
            RequestError: A method does not fit the network.
            ForwardError: The network failed.
            BackwardError: Likewise.
        """
        maps, missing = dict[tuple[str, str], JudgedMap](), dict[str, str]()
        target = followed.target

        def find(scores: ClassScores, _choice: TargetChoice, _located: Located | None) -> list[Index | None]:
            return [target.index_in(scores, image) for image in range(len(scores.present))]

        self._passes.check = self.check
        for observation in observations:
            plan = self._inner(observation, followed.choice)
            self._passes.report = self._counting(observation.views)
            results = self._passes.observe(followed.image, Wanted(plan, layers, followed.places, find=find))
            missing |= results.missing[0] | results.undrawn
            for found in _read(results.layers, followed.image, automatic=self._plan.automatic):
                if all(map(isfinite, found.extremes)):
                    maps[found.key] = found
                else:
                    missing[found.view] = _NOT_FINITE
        order = [view.name for view in self.views]
        return sorted(maps.values(), key=lambda each: order.index(each.view)), missing

    def _counting(self, views: Collection[str]) -> Callable[[int, int], object]:
        """Return a function that counts the passes that an observer reports."""
        before = 0

        def report(done: int, total: int) -> None:
            nonlocal before
            self._needs[(*views,)] = total
            self.expect(sum(self._needs.values()))
            self.count(done - before)
            before = done

        return report

    def _inner(self, observation: Observation, choice: TargetChoice) -> Plan:
        return Plan(
            observations=(observation,),
            targets=(choice,),
            output=self._plan.output,
            scores=self._plan.scores,
            confidence=0.0,  # a box is followed however weak it becomes
            changes=self._plan.changes,
            automatic=self._plan.automatic,
            placed=frozenset(observation.views),
        )


def passes_of(model: Model) -> ObservedPasses:
    """Return passes of a network that its other hooks do not see; an exception of the network is a `ForwardError`."""
    return ObservedPasses(replace(model, forward=partial(call_network, model)), seen=False)


def _read(batches: Iterable[LayerBatch], image: Tensor, *, automatic: bool) -> Iterable[JudgedMap]:
    """Yield the maps of results; of layers that are chosen automatically the last, which of a detector is of all scales."""
    last: dict[str, JudgedMap] = {}
    size = picture_size(image)
    assert size
    for batch in batches:
        if batch.targets is not None and batch.targets[0] is None:
            continue
        for view, content in batch.drawings.items():
            if content is None:
                continue
            raw, heat = content.tensors["raw"], content.tensors["heat"]
            found = JudgedMap(
                view,
                batch.template.layer,
                enlarge(raw, size, batch.template.centres)[0].cpu().numpy(),
                heat[0].mul(255).add(0.5).byte().cpu().numpy(),
                (float(raw.min()), float(raw.max())),
                batch.targets is not None,
            )
            if automatic:
                last[view] = found
            else:
                yield found
    yield from last.values()
