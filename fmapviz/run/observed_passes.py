"""Run a network on images with one observation, outside of a run."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmapviz.config import Style
from fmapviz.data import Layer
from fmapviz.errors import FmapvizError, RequestError, quote, suggest
from fmapviz.observe.endings import Endings
from fmapviz.observe.gradients import frozen, is_out_of_memory, recording
from fmapviz.observe.hooks import describe_training, observe, undisturbed, unobserved
from fmapviz.observe.lasting_state import LastingState
from fmapviz.observe.layouts.find import LayoutCache, LayoutFinder, MissingLayoutError
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.observe.target_scores import indices_of
from fmapviz.run.class_gradients import ClassGradients
from fmapviz.run.forward_pass import ForwardError
from fmapviz.run.running_pass import RunningPass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor, nn

    from fmapviz.core.placement import InFile
    from fmapviz.data import FeatureMap, Model
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.observe.places import Places
    from fmapviz.run.batch_results import BatchResults
    from fmapviz.run.class_gradients import FindTarget
    from fmapviz.run.plan import Plan

_PLAIN = Style()


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What is drawn of a pass.

    Attributes:
        plan: With one observation.
        layers: Names of the feature maps that are drawn; empty: the observation chooses them.
        places: Where the maps of layers lie in the images; None if that is unknown or not needed.
        files: The files of the images, for targets that are given by a place.
        find: Returns the index of a requested class for each image.
    """

    plan: Plan
    layers: Collection[str] = ()
    places: Places | None = None
    files: Sequence[InFile | None] = ()
    find: FindTarget = indices_of


@dataclass(slots=True, eq=False)
class ObservedPasses:
    """Runs one copy of a network with an observer.

    The state of the network is that of the start in each pass, and afterwards.

    Attributes:
        model: The network; its weights may change from call to call.
        layouts: Those of earlier calls.
        reader: Remembers how the network ends; None: it is found out in each call.
        seen: Whether hooks that are on the network run.
        check: Called at each layer; its exception ends the run.
        report: See `RunningPass`.
    """

    model: Model
    layouts: LayoutCache = field(default_factory=LayoutCache)
    reader: ScoreReader | None = None
    seen: bool = True
    check: Callable[[], object] = bool
    report: Callable[[int, int], object] = max

    def observe(self, images: Tensor, wanted: Wanted) -> BatchResults:
        """Run the network, and draw what the only observation of a plan sees.

        Args:
            images: Prepared, `(N, ...)`.
            wanted: What is drawn.

        Raises:
            RequestError: The observation, a layer or the target does not fit the network.
            BackwardError: A backward pass failed.
            Exception: The network's own; `ForwardError` is taken for one.
        """
        try:
            return self._attempt(images, wanted)
        except MissingLayoutError:  # another image took another way through the network
            self.layouts.known.clear()
        except Exception as error:
            of_ours = isinstance(error, FmapvizError) and not isinstance(error, ForwardError)
            if of_ours or self.layouts.broken or is_out_of_memory(error):
                raise
            with self.layouts.giving_up():
                return self._attempt(images, wanted)
        return self._attempt(images, wanted)

    def _attempt(self, images: Tensor, wanted: Wanted) -> BatchResults:
        model, plan, reader = self.model, wanted.plan, self.reader or ScoreReader()
        network, (observation,) = model.module, plan.observations
        modules = dict(network.named_modules())  # once: listing them takes as long as some layers
        observer = observation.start(model, plan, _PLAIN)
        gradients = ClassGradients(model, plan, _PLAIN, [observer], reader, find=wanted.find)
        with ExitStack() as stack:
            lasting = stack.enter_context(LastingState(network))
            for context in (nullcontext() if self.seen else unobserved(network), frozen(network), recording()):
                stack.enter_context(context)
            hooks = stack.enter_context(ExitStack())
            stack.callback(observer.end)
            for record, given, results in gradients.passes(images):
                record.places, record.files = wanted.places, wanted.files
                # Those of an earlier pass; the last ones stay for the backward passes, which may run layers again.
                hooks.close()
                names = None if record.names is None else {*record.names, *wanted.layers}
                layers = _layers(modules, names, heads=observer.keeps_heads)
                finder = self._attach(hooks, layers, record, results, chosen=wanted.layers)
                observer.begin(RunningPass(record, results, finder, self.check, model.name, self.report))
                left = describe_training(network)
                # What the forward does may be switched in between.
                record.endings = None if reader.in_graph else Endings()
                with (
                    lasting.one_pass(given),
                    undisturbed(given.device),
                    record.endings or nullcontext(),
                    finder.following(given),
                    record.capturing(gradients.head),
                ):
                    record.output = model.forward(network, given)
                    gradients.note_layout(record, finder, needed=True)
                record.over = True
        results.remarks += [left] if left else []
        return results

    def _attach(
        self,
        hooks: ExitStack,
        layers: Sequence[Layer],
        record: ForwardRecord,
        results: BatchResults,
        *,
        chosen: Collection[str],
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

        finder = LayoutFinder(self.model.module, layers, self.layouts, given=self.model.layout)
        hooks.enter_context(observe(self.model.module, layers, receive, refuse=refuse, attached=True, layouts=finder))
        return finder


def _layers(modules: Mapping[str, nn.Module], names: Collection[str] | None, *, heads: bool) -> list[Layer]:
    """Return the layers to hook: those of some feature maps, or all.

    Raises:
        RequestError: There is no such layer.
    """
    found = [Layer(own, type(module).__name__, module) for own, module in modules.items() if own]
    if names is None:
        return found
    known = {layer.name for layer in found}
    chosen = {name if name in known else name.partition("#")[0].partition("[")[0] for name in names}
    for name in chosen - known:
        hint = suggest(name, known) or f"there are: {', '.join(sorted(known)[:20])}"
        raise RequestError(f"no such layer: {quote(name)}", hint=hint)
    return found if heads else [layer for layer in found if layer.name in chosen]
