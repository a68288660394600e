"""Draw what each channel of a layer does for a class, after a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

import torch

from fmapviz.core.words import counted
from fmapviz.data import LayerResult
from fmapviz.draw.grid import as_floats, measure
from fmapviz.errors import first_few, printable
from fmapviz.features.trust.passes import Copied, SwitchedPasses
from fmapviz.features.trust.picture import EffectsDrawn, draw_ordered
from fmapviz.features.trust.switching import Switch
from fmapviz.observe.detectors import feeds_of
from fmapviz.observe.last_map import NoMapError, find_last, find_maps, find_scale
from fmapviz.observe.reshape import NotAMapError, frames_of
from fmapviz.observe.same_target import SameTarget
from fmapviz.observe.target_scores import NOT_FINITE
from fmapviz.observe.targets import TOP1
from fmapviz.run.batch_results import LayerBatch
from fmapviz.run.observers import PassObserver
from fmapviz.run.off_images import OffImages
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.config.changes import Changes
    from fmapviz.core.members import View
    from fmapviz.data import Model, Target
    from fmapviz.features.trust.passes import Effects
    from fmapviz.features.trust.switching import Elsewhere
    from fmapviz.observe.class_scores import Index
    from fmapviz.observe.forward_record import GraphPoint
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.observers import ClassPass
    from fmapviz.run.plan import Plan
    from fmapviz.run.running_pass import RunningPass

VIEW = "effect"
_NO_EFFECT = "the class score is the same whichever channel is switched off: it does not depend on this layer"

_ROUNDING = "the class score changes by no more than rounding, whichever channel is switched off"


@dataclass(frozen=True, slots=True, eq=False)
class EffectObservation:
    """The effects of a run; see `fmapviz.run.plan.Observation`.

    Attributes:
        views: Name of the view.
        targets: The classes.
        automatic: Whether the layer is chosen automatically.
        chosen: The layer that was chosen for images of a shape, by all threads: the first choice is that of all.
        elsewhere: What layers return for the images that the user names, by their names.
    """

    views: Collection[str]
    targets: tuple[TargetChoice, ...]
    automatic: bool
    chosen: dict[torch.Size, str] = field(default_factory=dict)
    elsewhere: dict[str, Elsewhere] = field(default_factory=dict)

    differentiates = of_layers = captioned = True
    from_pixels = of_modules = False

    def without_pictures(self, *, values: bool) -> EffectObservation | None:
        """Return all effects, which are values; None if no format stores values."""
        return self if values else None

    def start(self, model: Model, plan: Plan, style: Style) -> EffectObserver:
        """Return an observer of one copy of the network."""
        return EffectObserver(self, model, plan, style)


def observe_effect(views: Sequence[View], *, targets: Sequence[TargetChoice], automatic: bool) -> EffectObservation:
    """Plan the view of effects; see `fmapviz.run.plan.PlanObservation`."""
    return EffectObservation(tuple(view.name for view in views), tuple(targets) or (TOP1,), automatic)


class EffectObserver(PassObserver):
    """Switches off the channels of layers when a pass is over, and draws what that does to scores."""

    keeps_layers = True
    needs_scores = True

    def __init__(self, observation: EffectObservation, model: Model, plan: Plan, style: Style) -> None:
        self._observation, self._plan, self._style = observation, plan, style
        self._passes, self._feeds = SwitchedPasses(model, plan), frozenset(feeds_of(model.module))
        self._images = torch.empty(0)
        self._chosen = self._again = ""
        self._points: list[GraphPoint] = []

    def begin(self, current: RunningPass) -> None:
        """Copy the images, which the network may overwrite."""
        self._passes.check = current.check
        self._images = current.record.pixels.detach().clone()

    def end(self) -> None:
        """Release the images and the recorded layers."""
        self._images, self._again, self._points = torch.empty(0), "", []

    def layers_of(self, shape: torch.Size, *, again: bool) -> Collection[str] | None:
        """Return the layer that was chosen for images of a shape; None before."""
        if not self._observation.automatic:
            return ()
        self._again = self._again if again else ""
        chosen = self._again or self._observation.chosen.get(shape)
        return {chosen} if chosen else None

    def choose(self, current: ClassPass) -> bool:
        """Choose the layer of class activation maps, of a detector the first scale, unless that is done."""
        record, scores = current.record, current.scores
        assert scores
        shape, known = record.pixels.shape[1:], self._observation.chosen
        if not self._observation.automatic or record.names is not None:
            self._chosen = self._again or known.get(shape, "")
            return True
        self._chosen = self._again = ""
        if current.present is None:
            return True
        try:
            last = find_scale(record, scores, current.present, self._feeds) or find_last(record, scores, current.present)
        except NoMapError as reason:
            current.results.undrawn[VIEW] = str(reason)
            return True
        self._chosen = known.setdefault(shape, last.point.name) if last.certain else last.point.name
        record.keep_only({self._chosen}, find_maps(record, scores))
        is_intact = all(point.intact for point in record.kept)
        self._again = "" if is_intact else self._chosen
        return is_intact

    def draw(self, current: ClassPass) -> None:
        """Note the layers whose channels are switched off."""
        record = current.record
        kept = [point for point in record.kept if point.name == self._chosen][:1]
        self._points = kept if self._observation.automatic else list(record.outputs)

    def draw_class(self, current: ClassPass, choice: TargetChoice, targets: Sequence[Target | None]) -> None:
        """Draw the effects of each layer on a class of each image.

        Raises:
            ForwardError: The network failed for a changed copy.
        """
        if choice not in self._observation.targets:
            return
        indices = next(indices for indices, alike in current.classes.items() if choice in alike)
        for point in self._points:
            try:
                self._draw_layer(current, point, targets, indices)
            except NotAMapError as reason:
                current.results.note([VIEW], point.name, str(reason))

    def _draw_layer(
        self, current: ClassPass, point: GraphPoint, targets: Sequence[Target | None], indices: Sequence[Index | None]
    ) -> None:
        """Draw the effects of a layer.

        Raises:
            NotAMapError: It has no channels that can be switched off.
        """
        record, results = current.record, current.results
        maps, is_vector = _maps_of(point, record.images)
        switch = Switch(point.feature_map, self._plan.changes.off)
        switch.elsewhere = self._elsewhere(switch)
        drawn, contents, why = list(targets), dict[int, EffectsDrawn](), ""
        for image, (target, index) in enumerate(zip(targets, indices, strict=True)):
            if target is None or index is None:
                continue
            found = self._effects(current, switch, image, index, channels=maps.shape[1])
            if reason := _why_none(found, switch.off):
                results.notices[image].append(f"{VIEW} of {point.name} for {target.full_title}: {reason}")
                drawn[image], why = None, reason
            else:
                contents[image] = draw_ordered(
                    found, maps[image : image + 1], self._style, off=_named(self._plan.changes), vector=is_vector
                )
                results.notices[image] += _notices(found, f"{VIEW} of {point.name} for {target.full_title}")
        if not contents:
            if why:
                raise NotAMapError(why)
            return
        own = point.feature_map
        shape = own.layout.of_one(own.values.shape, images=record.images) if own.layout else own.shape[1:]
        automatic = self._observation.automatic
        layer = LayerResult(own.name, own.layer.type, own.call, own.index, tuple(shape), automatic=automatic)
        some = next(iter(contents.values()))  # in place of those that are not drawn
        content = BatchContent(lambda number: contents.get(int(number), some), {"number": torch.arange(record.images)})
        single = maps.shape[-1] * maps.shape[-2] == 1
        batch = LayerBatch(record.images, layer, drawn, measure(as_floats(maps)), single, drawings={VIEW: content})
        results.layers.append(batch)

    def _elsewhere(self, switch: Switch) -> Elsewhere | None:
        """Return what a layer returns for the images that the user names; None if there are none."""
        changes, known, name = self._plan.changes, self._observation.elsewhere, switch.feature_map.name
        if not isinstance(changes, OffImages):
            return None
        if name not in known:
            images = (image.to(self._images) for image in changes.read())
            known[name] = self._passes.look_up(switch, images, averaged=changes.averaged)
        return known[name]

    def _effects(self, current: ClassPass, switch: Switch, image: int, index: Index, *, channels: int) -> Effects:
        assert current.scores
        target = SameTarget.of(current.scores, image, index)
        score = float(target.compared_in(current.scores)[image])
        copied = Copied(self._images[image : image + 1], switch, target, current.record.score_layout)
        return self._passes.effects(copied, channels, score=score)


def _maps_of(point: GraphPoint, images: int) -> tuple[Tensor, bool]:
    """Return the maps of a layer, `(N, C, h, w)`, the frames of a clip side by side, and whether they are vectors.

    Raises:
        NotAMapError: They are neither.
    """
    frames = list(frames_of(point.feature_map, point.values).values())
    if len(frames[0]) != images:
        raise NotAMapError(f"{len(frames[0])} samples for {counted(images, 'image')}, not a map of the image")
    is_vector = frames[0].ndim == 2
    return (frames[0][:, :, None, None] if is_vector else torch.cat(frames, -1)), is_vector


def _why_none(found: Effects, off: str) -> str:
    """Return why there is nothing to draw; empty if there is something."""
    if all(abs(value) <= found.rounding for value in found.values):
        return _ROUNDING if any(found.values) or off != "zero" else _NO_EFFECT
    if found.lost or any(map(isfinite, found.values)):
        return ""
    return f"{NOT_FINITE} when a channel is switched off"


def _named(changes: Changes) -> str:
    """Return what replaces channels: `zero`, `mean`, or an image or a folder without its path."""
    if not isinstance(changes, OffImages):
        return changes.off
    name = printable(changes.off.rstrip("/").rpartition("/")[2])
    return f"mean over {counted(len(changes.images), 'image')} in {name}" if changes.averaged else f"values in {name}"


def _notices(found: Effects, of: str) -> Iterator[str]:
    """Yield notices about channels without a number."""
    others = sum(not isfinite(value) for value in found.values) - len(found.lost)
    if found.lost:
        yield f"{of}: the network finds no such box without channel {first_few(list(map(str, found.lost)))}"
    if others:
        yield f"{of}: {NOT_FINITE} without {counted(others, 'channel')}"
