"""Run a network on copies of an image in which channels are switched off, and read the score of one target."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from math import nan
from typing import TYPE_CHECKING

import torch

from fmapviz.core.layout import LayoutError
from fmapviz.errors import FmapvizError, RequestError
from fmapviz.features.trust.switching import NOISE, NONE, Elsewhere, NotExpandedError
from fmapviz.observe.forward_record import ForwardRecord
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.observe.hooks import unobserved
from fmapviz.observe.lasting_state import LastingState
from fmapviz.observe.randomness import all_undisturbed
from fmapviz.observe.reshape import NotAMapError
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.score_reader import OtherEndingError, ScoreReader
from fmapviz.run.forward_pass import ForwardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from fmapviz.core.layout import Layout
    from fmapviz.data import Model
    from fmapviz.features.trust.switching import Switch
    from fmapviz.observe.class_scores import ClassScores
    from fmapviz.observe.same_target import SameTarget
    from fmapviz.run.plan import Plan

# Copies in one pass, whatever the batch size of the run is: another number may round otherwise. One is unchanged.
_ON_CPU, _ELSEWHERE = 16, 64
_NEAR = {torch.float32: 1e-4, torch.float64: 1e-8}  # of the scores: what another number of copies may round
_NEAR_HALF = 2e-2
_ROUNDED = 8  # units in the last place of the largest score: sums of other values round otherwise


class Computed(StrEnum):
    """What was computed for the copies."""

    BEHIND = "only what follows the layer was computed for each copy"
    WHOLE = "the whole network was computed for each copy"
    ALONE = "the whole network was computed for each copy alone, as it mixes or refuses the images of a batch"


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """How much a score moves when each channel is switched off.

    Attributes:
        values: The score with each channel switched off minus the unchanged one; NaN if the copy has no such box.
        score: The unchanged score, in a copy among the others.
        spread: Largest difference between two unchanged copies, of different passes.
        computed: What was computed for the copies.
        lost: The channels without which the image has no such box.
        rounding: A difference that may be rounding.
    """

    values: tuple[float, ...]
    score: float
    spread: float
    computed: Computed
    lost: tuple[int, ...] = ()
    rounding: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """An image of which copies are made, a layer and a target.

    Attributes:
        image: Prepared, `(1, ...)`.
        switch: Of a layer of the copy of the network that runs.
        target: As it is in the image.
        layout: Of scores of pixels in the network's output.
    """

    image: Tensor
    switch: Switch
    target: SameTarget
    layout: Layout | None


class _DiffersError(Exception):
    """Copies cannot be computed in this way."""


class SwitchedPasses:
    """Runs one copy of a network on copies of an image. Hooks of the run do not see these passes.

    Each pass begins in the state of the start, with the random numbers of the run's own pass. The network is in evaluation
    mode already.

    Args:
        model: The network, before its first pass.
        plan: Of the run.

    Attributes:
        check: Called before each pass; its exception ends the run.
    """

    def __init__(self, model: Model, plan: Plan) -> None:
        self.check: Callable[[], object] = bool
        self._model, self._key = model, plan.output
        self._head = Head.of(model, plan.scores, confidence=0.0)  # a box is followed however weak it becomes
        self._lasting = LastingState(model.module)
        self._reader = ScoreReader()
        self._mixes: dict[tuple[str, Computed], bool] = {}  # by the layer's name

    def effects(self, copied: Copied, channels: int, *, score: float) -> Effects:
        """Switch off each channel.

        The outputs before the layer are computed once where the network allows it: its first output is expanded to copies.
        An unchanged copy in each pass must have the score of the image, and once also beside copies of noise: a network may
        mix the images of a batch. Else, or if the network fails, the image is passed through all of it in several copies,
        or if that fails too, in one.

        Args:
            copied: The image.
            channels: C.
            score: Of the image, in the run's own pass.

        Raises:
            NotAMapError: The output of the layer cannot be replaced.
            ForwardError: The network failed.
        """
        together = _ON_CPU if copied.image.device.type == "cpu" else _ELSEWHERE
        ways = [Computed.BEHIND, Computed.WHOLE] if self._model.batches else []
        try:
            with copied.switch.attached():
                for computed in ways:
                    with suppress(_DiffersError):
                        self._learn(copied, together, computed, score)
                        return self._measure(copied, _chunks(channels, together), computed, score)
                return self._measure(copied, _chunks(channels, 1), Computed.ALONE, None)
        finally:
            self._lasting.restore()

    def look_up(self, switch: Switch, images: Iterable[Tensor], *, averaged: bool) -> Elsewhere:
        """Return what the layer of a switch returns for other images, each in a pass of its own.

        Args:
            switch: Of a layer.
            images: Prepared, `(1, ...)` each.
            averaged: Whether the mean is requested, not the values.

        Raises:
            NotAMapError: The layer does not run for one of them, or its output has another layout.
            ForwardError: The network failed.
        """
        sums, count = torch.zeros(()), 0
        try:
            with switch.attached():
                for image in images:
                    self.check()
                    given, unchanged = image.clone(), all_undisturbed(image.device)
                    switch.begin((), expands=False)
                    alone, lasting = unobserved(self._model.module), self._lasting.one_pass(given)
                    with torch.inference_mode(mode=False), torch.no_grad(), alone, lasting, unchanged:
                        self._forward(given, Computed.ALONE)
                    if switch.seen is None:
                        raise NotAMapError("it does not return such a tensor for the other images")
                    if not averaged:
                        return Elsewhere(switch.seen)
                    more, values = switch.sums()
                    if count and len(more) != len(sums):
                        raise NotAMapError("its number of channels changes from image to image")
                    sums, count = sums.to(more) + more, count + values
        except LayoutError as error:
            raise NotAMapError(f"for the other images: {error}") from error
        finally:
            self._lasting.restore()
        return Elsewhere(None, sums / count)

    def _learn(self, copied: Copied, together: int, computed: Computed, score: float) -> None:
        """Find out once for a layer whether other copies change the score of an unchanged one.

        Raises:
            _DiffersError: They do, or the network fails.
        """
        known = copied.switch.feature_map.name, computed
        if known not in self._mixes:
            scores = self._run(copied, (*[NOISE] * (together - 1), NONE), computed)
            compared = copied.target.compared_in(scores)[-1:]
            beside = compared if copied.target.is_box else scores.values[-1:]
            self._mixes[known] = not _near(float(compared), score, beside)
        if self._mixes[known]:
            raise _DiffersError

    def _measure(
        self, copied: Copied, chunks: Sequence[tuple[int, ...]], computed: Computed, score: float | None
    ) -> Effects:
        """Switch off the channels in one way.

        Args:
            copied: The image.
            chunks: The channels of each pass, see `_chunks`.
            computed: What is computed for each copy.
            score: That of an unchanged copy; None: any.

        Raises:
            _DiffersError: The unchanged copy has another score, or the network fails.
        """
        found, controls, lost, rounding = dict[int, float](), list[float](), list[int](), 0.0
        for chunk in chunks:
            scores = self._run(copied, chunk, computed)
            compared = copied.target.compared_in(scores)
            values = compared.double().tolist()
            if chunk[-1] == NONE:
                controls.append(values[-1])
                rounding = max(
                    rounding, _ROUNDED * torch.finfo(scores.values.dtype).eps * _largest(values[-1], scores.values)
                )
                beside = compared if copied.target.is_box else scores.values  # these are logits of boxes
                if score is not None and not _near(values[-1], score, beside):
                    raise _DiffersError
            for at, channel in enumerate(chunk):
                if channel != NONE:
                    is_lost = copied.target.is_box and any(
                        place is None for place, _ in copied.target.follow(scores.boxes[at])
                    )
                    lost += [channel] * is_lost
                    found[channel] = nan if is_lost else values[at] - controls[-1]
        spread = max(abs(each - controls[0]) for each in controls)
        effects = tuple(found[channel] for channel in range(len(found)))
        return Effects(effects, controls[0], spread, computed, tuple(lost), rounding)

    def _run(self, copied: Copied, channels: Sequence[int], computed: Computed) -> ClassScores:
        image, switch, network = copied.image, copied.switch, self._model.module
        many = image.expand(len(channels), *image.shape[1:])
        while True:
            self.check()
            given = (image if computed is Computed.BEHIND else many).clone()  # which the network may overwrite
            record = ForwardRecord(network, many)
            record.endings, record.score_layout = self._reader.endings(), copied.layout
            switch.begin(channels, expands=computed is Computed.BEHIND)
            lasting, seeing = self._lasting.one_pass(given), record.endings or nullcontext()
            undisturbed, capturing = all_undisturbed(given.device), record.capturing(self._head)
            with torch.inference_mode(mode=False), torch.no_grad():
                with unobserved(network), lasting, undisturbed, seeing, capturing:
                    record.output = self._forward(given, computed)
                record.over = True
                if not switch.reached:
                    raise NotAMapError("no tensor of what it returns can be replaced")
                with suppress(OtherEndingError):
                    return self._read(record, computed)

    def _read(self, record: ForwardRecord, computed: Computed) -> ClassScores:
        try:
            found = self._reader.read(record, key=self._key, head=self._head)
        except RequestError as error:
            if computed is Computed.ALONE:
                raise
            raise _DiffersError from error  # it has another number of scores
        if len(found.values) != record.images:
            raise _DiffersError
        return found

    def _forward(self, given: Tensor, computed: Computed) -> object:
        try:
            return self._model.forward(self._model.module, given)
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error) or isinstance(error, NotAMapError):
                raise
            if computed is not Computed.ALONE:
                raise _DiffersError from error
            if isinstance(error, NotExpandedError):
                raise NotAMapError(str(error)) from error
            if isinstance(error, FmapvizError):
                raise
            raise ForwardError.after("", error, given=given.shape) from error


def _near(found: float, score: float, scores: Tensor) -> bool:
    """Return True if two scores differ by rounding only, beside all scores of a pass."""
    return abs(found - score) <= _NEAR.get(scores.dtype, _NEAR_HALF) * _largest(score, scores)


def _largest(score: float, scores: Tensor) -> float:
    """Return the largest magnitude of a score and all finite scores of a pass."""
    values = scores.detach().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return max(abs(score), float(values.abs().amax()) if values.numel() else 0.0)


def _chunks(channels: int, together: int) -> list[tuple[int, ...]]:
    """Return the channels of each pass; unchanged copies at its end fill it up to the same number of copies.

    Example:
        >>> _chunks(3, 3), _chunks(2, 1)
        ([(0, 1, -1), (2, -1, -1)], [(-1,), (0,), (1,), (-1,)])
    """
    if together == 1:
        return [(NONE,), *((channel,) for channel in range(channels)), (NONE,)]
    parts = (range(channels)[begin : begin + together - 1] for begin in range(0, channels, together - 1))
    return [(*part, *[NONE] * (together - len(part))) for part in parts]
