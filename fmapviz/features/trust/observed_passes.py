"""Run a network on one image with an observation of its own, unseen by other observers."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING

from fmapviz.config import Style
from fmapviz.errors import FmapvizError
from fmapviz.observe.endings import Endings
from fmapviz.observe.gradients import frozen, is_out_of_memory, recording
from fmapviz.observe.hooks import observe, undisturbed, unobserved
from fmapviz.observe.lasting_state import LastingState
from fmapviz.observe.layers import find_layers
from fmapviz.observe.layouts.find import LayoutCache, LayoutFinder, MissingLayoutError
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.observe.target_scores import indices_of
from fmapviz.run.class_gradients import ClassGradients
from fmapviz.run.forward_pass import ForwardError
from fmapviz.run.running_pass import RunningPass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from fmapviz.core.placement import InFile
    from fmapviz.data import FeatureMap, Layer, Model
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.observe.places import Places
    from fmapviz.run.batch_results import BatchResults
    from fmapviz.run.class_gradients import FindTarget
    from fmapviz.run.plan import Plan

_PLAIN = Style()


class ObservedPasses:
    """Runs one copy of a network with the observer of a plan. Hooks of the run do not see these passes.

    The state of the network is that of the start in each pass, and afterwards.

    Args:
        model: The network; its weights may change from call to call.

    Attributes:
        check: Called at each layer; its exception ends the run.
        report: See `RunningPass`.
    """

    def __init__(self, model: Model) -> None:
        self.check: Callable[[], object] = bool
        self.report: Callable[[int, int], object] = max
        self._model = model
        self._layouts = LayoutCache()

    def observe(
        self,
        image: Tensor,
        plan: Plan,
        layers: Collection[str],
        *,
        places: Places | None = None,
        files: Sequence[InFile | None] = (),
        find: FindTarget = indices_of,
    ) -> BatchResults:
        """Run the network, and draw what the only observation of a plan sees.

        Args:
            image: Prepared, `(1, ...)`.
            plan: With one observation.
            layers: Names of the feature maps that are drawn; empty: the observation chooses them.
            places: Where the maps of layers lie in the image; None if that is unknown.
            files: The file of the image, for targets that are given by a place.
            find: Returns the index of a requested class for each image.

        Raises:
            RequestError: The observation or the target does not fit the network.
            ForwardError: The network failed.
            BackwardError: Likewise.
        """

        def attempt() -> BatchResults:
            return self._attempt(image, plan, layers, places=places, files=files, find=find)

        try:
            return attempt()
        except MissingLayoutError:  # another image took another way through the network
            self._layouts.known.clear()
        except ForwardError:
            if self._layouts.broken:
                raise
            with self._layouts.giving_up():
                return attempt()
        return attempt()

    def _attempt(
        self,
        image: Tensor,
        plan: Plan,
        layers: Collection[str],
        *,
        places: Places | None,
        files: Sequence[InFile | None],
        find: FindTarget,
    ) -> BatchResults:
        network, reader, (observation,) = self._model.module, ScoreReader(), plan.observations
        observer = observation.start(self._model, plan, _PLAIN)
        gradients = ClassGradients(self._model, plan, _PLAIN, [observer], reader, find=find)
        with ExitStack() as stack:
            lasting = stack.enter_context(LastingState(network))
            for context in (unobserved(network), frozen(network), recording()):
                stack.enter_context(context)
            hooks = stack.enter_context(ExitStack())
            stack.callback(observer.end)
            for record, given, results in gradients.passes(image):
                record.places, record.files = places, files
                hooks.close()
                finder = self._attach(hooks, record, results, layers)
                observer.begin(RunningPass(record, results, finder, self.check, self._model.name, self.report))
                record.endings = None if reader.in_graph else Endings()
                with (
                    lasting.one_pass(given),
                    undisturbed(given.device),
                    record.endings or nullcontext(),
                    finder.following(given),
                    record.capturing(gradients.head),
                ):
                    record.output = self._forward(given)
                    gradients.note_layout(record, finder, needed=True)
                record.over = True
        return results

    def _attach(
        self, hooks: ExitStack, record: ForwardRecord, results: BatchResults, chosen: Collection[str]
    ) -> LayoutFinder:
        """Attach hooks to the layers that a pass records."""

        def receive(feature_map: FeatureMap) -> None:
            if record.over:
                return
            self.check()
            if feature_map.name in chosen:
                record.outputs.append(record.point(feature_map, copied=True))
            record.keep(feature_map)

        def refuse(feature_map: FeatureMap, reason: str) -> None:
            if not record.over and feature_map.name in chosen:
                results.undrawn[feature_map.name] = reason

        network = self._model.module
        names = None if record.names is None else {*record.names, *chosen}
        layers = _layers(find_layers(network), names, heads=record.heads)
        finder = LayoutFinder(network, layers, self._layouts, given=self._model.layout)
        hooks.enter_context(observe(network, layers, receive, refuse=refuse, attached=True, layouts=finder))
        return finder

    def _forward(self, given: Tensor) -> object:
        try:
            return self._model.forward(self._model.module, given)
        except (Exception, SystemExit) as error:
            if isinstance(error, FmapvizError | MissingLayoutError) or is_out_of_memory(error):
                raise
            raise ForwardError.after("", error, given=given.shape) from error


def _layers(known: Sequence[Layer], names: Collection[str] | None, *, heads: bool) -> list[Layer]:
    """Return the layers of some feature maps, or all."""
    if names is None or heads:
        return [*known]
    own = {layer.name for layer in known}
    chosen = {name if name in own else name.partition("#")[0].partition("[")[0] for name in names}
    return [layer for layer in known if layer.name in chosen]
