"""Run a network again on changed copies of an image, and read the score of the same target."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import torch

from fmapviz.observe.forward_record import ForwardRecord
from fmapviz.observe.gradients import BackwardError, begin_graph, edge_of, gradients_at, is_out_of_memory, recording
from fmapviz.observe.hooks import unobserved
from fmapviz.observe.lasting_state import LastingState
from fmapviz.observe.located import AbsentError
from fmapviz.observe.randomness import all_undisturbed
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.score_reader import OtherEndingError, ScoreReader
from fmapviz.observe.target_scores import NOT_FINITE
from fmapviz.run.forward_pass import ForwardError, call_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    from fmapviz.core.layout import Layout
    from fmapviz.data import Model
    from fmapviz.observe.class_scores import ClassScores
    from fmapviz.observe.same_target import SameTarget
    from fmapviz.run.plan import Plan

# Copies in one pass, whatever the batch size of the run is: another number may round otherwise. More are hardly faster.
_ON_CPU, _ELSEWHERE = 8, 32
REPEATS = 2  # passes of the unchanged image, which show whether its score is the same each time
_MORE = 6  # if it is not, to estimate the spread
_NEAR = 1e-4  # of the score: rounding of other algorithms


class ChangedPasses:
    """Runs one copy of a network on changed images. Hooks of the run do not see these passes.

    Each pass begins in the state of the start, and with the random numbers of the run's own pass. The network is in
    evaluation mode and frozen already.

    Args:
        model: The network, before its first pass.
        plan: Of the run.

    Attributes:
        check: Called before each pass; its exception ends the run.
        count: Called with the number of copies after each pass.
        together: Number of copies in one pass.
        mixes: Whether the network is known to mix the images of a batch, so that each copy is passed alone.
        draws: Whether the network is known to draw random numbers.
    """

    def __init__(self, model: Model, plan: Plan) -> None:
        self.check: Callable[[], object] = bool
        self.count: Callable[[int], object] = abs  # ignored
        self.mixes = self.draws = False
        device = next(chain(model.module.parameters(), model.module.buffers()), torch.empty(0)).device
        self.together = 1 if not model.batches else _ON_CPU if device.type == "cpu" else _ELSEWHERE
        self._model, self._key = model, plan.output
        # A box is followed however weak it becomes.
        self._head = Head.of(model, plan.scores, confidence=0.0)
        self._lasting = LastingState(model.module)
        self._readers = {False: ScoreReader(), True: ScoreReader()}
        self._is_checked = False

    def of(self, image: Tensor, target: SameTarget, layout: Layout | None) -> ImagePasses:
        """Return the passes of an image.

        Args:
            image: Prepared, `(1, ...)`.
            target: Its target.
            layout: Of scores of pixels in the network's output.
        """
        return ImagePasses(self, image, target, layout)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the state of the network at the end."""
        try:
            yield
        finally:
            self._lasting.restore()

    def run(
        self, copies: Tensor, layout: Layout | None, *, graph: bool = False, alike: bool = True
    ) -> tuple[ClassScores, Tensor]:
        """Run the network.

        Args:
            copies: `(M, ...)`, not changed.
            layout: As of `of`.
            graph: Whether the pass is recorded by autograd.
            alike: Whether the pass draws the same random numbers as the one before.

        Returns:
            The scores, and the tensor at the beginning of the graph.

        Raises:
            ForwardError: The network raised an exception.
        """
        network, reader = self._model.module, self._readers[graph]
        while True:
            self.check()
            start, given = begin_graph(copies) if graph else (copies, copies.clone())  # which the network may overwrite
            record = ForwardRecord(network, start)
            record.endings, record.score_layout = reader.endings(), layout
            recorded, seeing = recording() if graph else _without_graph(), record.endings or nullcontext()
            lasting, capturing = self._lasting.one_pass(given), record.capturing(self._head)
            restored = all_undisturbed(given.device) if alike else nullcontext()
            with unobserved(network), lasting, recorded, restored as numbers, seeing, capturing:
                record.output = call_network(self._model, network, given)
            record.over = True
            self.count(len(copies))
            if numbers and numbers.drawn:
                self.draws, self.together = True, 1  # each copy is to get the same ones
            try:
                return reader.read(record, key=self._key, head=self._head), start
            except OtherEndingError:
                continue

    def learn(self, image: Tensor, target: SameTarget, layout: Layout | None) -> None:
        """Find out once whether copies may share a pass, as the other images of a batch may not change a score."""
        if self._is_checked or self.together == 1:
            return
        self._is_checked = True
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
        louder = noise * 4 * image.abs().amax().clamp(min=1)  # of a larger range than all

        def beside(other: Tensor) -> float:
            found, _ = self.run(torch.cat([image, other]), layout)
            return float(target.scores_in(found)[0])

        try:
            alike = beside(image)
            if _differ(beside(louder), alike):
                self.together = 1
                self.mixes = not _differ(beside(image), alike)  # else the score varies from pass to pass
        except ForwardError:  # it takes one image
            self.together = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """How much a target varies from pass to pass of the same image; 0 for most networks.

    Attributes:
        score: Standard deviation of its score, see `ImagePasses.scores`.
        weight: Standard deviation of its probability, see `ImagePasses.weights`.
    """

    score: float
    weight: float


@dataclass(frozen=True, slots=True, eq=False)
class ImagePasses:
    """Passes of changed copies of one image, with its target.

    Attributes:
        passes: Run the network.
        image: Prepared, `(1, ...)`.
        target: Its target.
        layout: Of scores of pixels in the network's output.
    """

    passes: ChangedPasses
    image: Tensor
    target: SameTarget
    layout: Layout | None

    def scores(self, copies: Iterable[Tensor]) -> Iterator[float]:
        """Yield the target's score in each copy `(1, ...)`; of a box the product of overlap and score.

        Only as many copies are made ahead as there are in one pass.

        Raises:
            AbsentError: A score is not finite.
            ForwardError: The network raised an exception.
        """
        return self._read(copies, self.target.compared_in)

    def weights(self, copies: Iterable[Tensor]) -> Iterator[float]:
        """Yield the target's probability in each copy, or its score where there is no probability; see `scores`."""
        return self._read(copies, self.target.weights_in)

    def gradient(self, copy: Tensor) -> tuple[Tensor | None, float]:
        """Return the gradient of the target's score at a copy `(1, ...)`, and the score.

        Returns:
            None in place of a gradient if the score does not depend on the copy.

        Raises:
            AbsentError: The score or its gradient is not finite.
            ForwardError: The network, or the backward pass through it, failed.
        """
        found, start = self.passes.run(copy, self.layout, graph=True)
        scores = self.target.scores_in(found)
        (score,) = _finite(scores)
        try:
            (gradient,) = gradients_at(scores, [edge_of(start)])
        except BackwardError as error:
            raise ForwardError(str(error)) from error.__cause__
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise AbsentError("the gradient of the class score is not finite for a changed copy of the image")
        return gradient, score

    def score(self, copy: Tensor) -> tuple[float, bool]:
        """Return the score that `gradient` differentiates, and whether the copy has the target."""
        found, _ = self.passes.run(copy, self.layout)
        (score,) = _finite(self.target.scores_in(found).detach())
        return score, self.target.is_in(found)

    def spread(self) -> Spread:
        """Return how much the score of the unchanged image varies in repeated passes."""
        found = [self._alone() for _ in range(REPEATS)]
        if found[0] == found[1] and not self.passes.draws:
            return Spread(0.0, 0.0)
        with all_undisturbed(self.image.device):
            found += [self._alone(alike=False) for _ in range(_MORE)]
        return Spread(*torch.tensor(found[1:], dtype=torch.float64).std(0).tolist())

    def _alone(self, *, alike: bool = True) -> list[float]:
        found, _ = self.passes.run(self.image, self.layout, alike=alike)
        return [_finite(read(found))[0] for read in (self.target.compared_in, self.target.weights_in)]

    def _read(self, copies: Iterable[Tensor], read: Callable[[ClassScores], Tensor]) -> Iterator[float]:
        self.passes.learn(self.image, self.target, self.layout)
        left = iter(copies)
        while chunk := list(islice(left, self.passes.together)):
            parts = deque([chunk])
            while parts:
                part = parts.popleft()
                try:
                    found, _ = self.passes.run(torch.cat(part), self.layout)
                except Exception as error:
                    if len(part) == 1 or not (is_out_of_memory(error) or isinstance(error, ForwardError)):
                        raise
                    half = len(part) // 2 if is_out_of_memory(error) else 1
                    self.passes.together = min(self.passes.together, half)
                    parts.extendleft([part[at : at + half] for at in range(0, len(part), half)][::-1])
                    continue
                yield from _finite(read(found))


def _differ(score: float, other: float) -> bool:
    return abs(score - other) > _NEAR * abs(other)


def _finite(scores: Tensor) -> list[float]:
    if not bool(scores.detach().isfinite().all()):
        raise AbsentError(f"{NOT_FINITE} for a changed copy of the image")
    found: list[float] = scores.detach().double().tolist()
    return found


@contextmanager
def _without_graph() -> Iterator[None]:
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
