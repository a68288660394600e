"""Run a network on a batch of images, and draw the outputs of its layers inside their hooks."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fmapviz.data import ImageResult
from fmapviz.draw.grid import ROUNDED
from fmapviz.errors import FmapvizError, RequestError, first_few, quote
from fmapviz.observe.early_stop import EarlyStop, ReadDetector, state_of
from fmapviz.observe.forward_record import ForwardRecord, GraphPoint
from fmapviz.observe.gradients import BackwardError, frozen, is_out_of_memory, recording
from fmapviz.observe.hooks import Numbers, describe_training, observe, undisturbed
from fmapviz.observe.lasting_state import LastingState
from fmapviz.observe.layers import find_layers
from fmapviz.observe.layouts.find import LayoutCache, LayoutFinder, MissingLayoutError
from fmapviz.observe.outputs import part_of
from fmapviz.observe.predictions import predict
from fmapviz.observe.readable import why_unreadable
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.run.batch_results import BatchResults, LayerBatch
from fmapviz.run.class_gradients import ClassGradients
from fmapviz.run.kept_passes import KeptPass
from fmapviz.run.layer_results import draw_feature_map
from fmapviz.run.running_pass import EnoughError, RunningPass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from fmapviz.config import Style
    from fmapviz.core.placement import InFile
    from fmapviz.data import FeatureMap, Layer, Model, Prediction
    from fmapviz.run.kept_passes import KeptPasses
    from fmapviz.run.places import PlaceCache
    from fmapviz.run.plan import Plan

# In messages of PyTorch, torchvision and timm about inputs that are too small, or not of the only size a network takes.
_ABOUT_SHAPES = re.compile(r"shape|size|dimension|height|width|resolution|divisible|too small", re.IGNORECASE)
# In messages about inputs of another number of axes, such as those of a network of clips about a picture.
_ABOUT_AXES = re.compile(r"to unpack|\b[345]D\b|number of dimensions|dimension out of range", re.IGNORECASE)
_USED = "nn.MultiheadAttention uses its weights without calling it"
_ABOUT_CHANNELS = re.compile(r"\d+ channels")
# What a network raises that expects a dictionary, a list or further arguments; of the last, one without a forward pass.
_CALLED_OTHERWISE = (TypeError, IndexError, KeyError, AttributeError, NotImplementedError)


class ForwardError(FmapvizError):
    """The model's own forward pass failed; the message names the last layer that ran."""

    @classmethod
    def after(cls, layer: str, error: BaseException, *, given: Sequence[int]) -> ForwardError:
        """Return the error for a failure after a layer.

        Args:
            layer: Name of the layer; empty before the first one.
            error: The exception of the model.
            given: Shape of the batch, `(N, C, H, W)`; if the failure may be due to it, the hint names it.
        """
        position = f"after layer {quote(layer)}" if layer else "before the first layer"
        message = f"the model failed {position}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return cls(message, hint=_hint(layer, error, tuple(given)))


def call_network(model: Model, network: nn.Module, given: Tensor) -> object:
    """Return what a network returns for a batch of which no layer is drawn.

    Args:
        model: Defines how the network is called.
        network: That of the model, or a copy of it.
        given: The batch, `(N, ...)`.

    Raises:
        ForwardError: The network raised an exception, other than for lack of memory or one of this package.
    """
    try:
        return model.forward(network, given)
    except (Exception, SystemExit) as error:
        if isinstance(error, FmapvizError | MissingLayoutError) or is_out_of_memory(error):
            raise
        raise ForwardError.after("", error, given=given.shape) from error


def _hint(layer: str, error: BaseException, given: tuple[int, ...]) -> str | None:
    """Return a hint about the batch that made a network fail; None without a likely cause."""
    message = str(error)
    if not layer and (isinstance(error, _CALLED_OTHERWISE) or _ABOUT_AXES.search(message)):
        return (
            f"it was called with a tensor {given}; beside the function that builds it, inputs = (channels, frames, height, "
            "width) says that it takes clips, and call(network, images) whatever else"
        )
    if _ABOUT_CHANNELS.search(message):
        is_last = len(given) == 4 and given[3] in {1, 3, 4} and given[1] > 4
        return f"the input was {given}: if that is (N, H, W, C), tensor.permute(0, 3, 1, 2)" if is_last else None
    if not _ABOUT_SHAPES.search(message):
        return None
    size = " x ".join(map(str, given[-2:]))
    return f"the input was {size} pixels: InputOptions(size=) chooses another size, but not for tensors of floats"


class Drawer:
    """Draws images with a model, whose hooks are attached within a `with` block.

    Args:
        model: On the device of the images.
        layers: The layers to draw.
        plan: Plan of the drawings.
        style: How the pictures look.
        predictions: Number of classes to predict per image; that takes the whole forward pass.
        early_stop: Number of outputs of these layers: the forward pass ends with the last. A number that it does not know is
            learnt from the first pass that is certainly like all others. None: every pass runs to its end.
        reader: Findings of earlier passes about the network's end, if other threads share them.
        layouts: The layouts of the model's layers, likewise.
        check: Called at every layer; an exception of its own ends the forward pass and comes out of `draw`.
        places: Where maps lie in the input, if some view needs it.

    Attributes:
        calls: How often each layer's module has run in the last forward pass.
        numbers: Whether it drew random numbers.
        report: See `RunningPass`.
        lasting: State that the network keeps between passes.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[Layer],
        plan: Plan,
        style: Style,
        *,
        predictions: int = 0,
        early_stop: EarlyStop | None = None,
        reader: ScoreReader | None = None,
        layouts: LayoutCache | None = None,
        check: Callable[[], object] = bool,
        places: PlaceCache | None = None,
    ) -> None:
        self.calls: Mapping[nn.Module, int] = {}
        self.numbers = Numbers()
        self.report: Callable[[int, int], object] = max
        self.lasting = (LastingState(model.module),)
        self._model = model
        self._layers = layers
        self._plan = plan
        self._style = style
        self._predictions = predictions
        self._early_stop = None if predictions or plan.of_classes else early_stop
        self._check = check
        self._places = places if plan.placed else None
        everything = find_layers(model.module) if plan.of_maps and plan.automatic else []
        self._layouts = LayoutFinder(
            model.module, [*layers, *everything], layouts, given=model.layout, tokens=plan.of_modules
        )
        self._reader = reader or ScoreReader()
        self._observers = [each.start(model, plan, style) for each in plan.observations]
        self._gradients = ClassGradients(model, plan, style, self._observers, self._reader)
        self._pass = self._no_pass = self._begin(ForwardRecord(model.module, torch.empty(0, 0, 0)), BatchResults(0))
        # Only the weights of these modules are used.
        self._inside = {each.out_proj for each in model.module.modules() if isinstance(each, nn.MultiheadAttention)}
        self._hooks = ExitStack()
        self._remarks: list[str] = []

    def __enter__(self) -> Self:
        """Attach the hooks."""
        plan, network = self._plan, self._model.module
        enter = self.enter if plan.draws.get("input") or plan.draws.get("input gradient") else None
        with ExitStack() as hooks:
            observed = observe(
                network,
                self._layers,
                self.receive,
                refuse=self.receive,
                enter=enter,
                attached=plan.of_classes,
                layouts=self._layouts,
            )
            self.calls = hooks.enter_context(observed)
            if plan.of_maps:
                layouts = self._layouts if plan.automatic else None
                hooks.enter_context(observe(network, find_layers(network), self.keep, attached=True, layouts=layouts))
            for each in self._observers:
                hooks.enter_context(each.attached(network))
            if plan.of_classes:
                hooks.enter_context(frozen(network))
            self._remarks = list(filter(None, [describe_training(network)]))
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the hooks, and restore the state that the network has changed."""
        self._hooks.close()
        self.lasting[0].restore()

    def draw(
        self, batch: Tensor, *, keep: KeptPasses | None = None, files: Sequence[InFile | None] = ()
    ) -> list[ImageResult]:
        """Run the model and draw each layer as planned.

        What layers return and receive is drawn inside their hooks; gradients and heat maps after the pass, by one backward
        pass for each class.

        Args:
            batch: Prepared images `(N, ...)`.
            keep: Keeps what the layers return, on the CPU.
            files: The file of each image, for targets that are given by a place.

        Returns:
            One per image.

        Raises:
            ForwardError: The model raised an exception.
            MixedBatchError: The images have to be run one by one.
            RequestError: The request for classes does not fit the model.
            torch.OutOfMemoryError: And a RuntimeError of the CPU's allocator: see `is_out_of_memory`.
        """
        again: AbstractContextManager[object] = nullcontext()
        try:
            return self._run(batch, keep, files)
        except MissingLayoutError:  # another image took another way through the network
            self._layouts.cache.known.clear()
        except ForwardError:
            if not self._layouts.followed:
                raise
            again = self._layouts.cache.giving_up()
        with again:  # not while the first error is handled, which the second one would refer to
            return self._run(batch, keep, files)

    def _run(self, batch: Tensor, keep: KeptPasses | None, files: Sequence[InFile | None]) -> list[ImageResult]:
        plan, network, early_stop = self._plan, self._model.module, self._early_stop
        try:
            places = (
                self._places.at(tuple(batch.shape[1:]), now=plan.of_layers or plan.of_maps or plan.located)
                if self._places
                else None
            )
            for record, given, results in self._passes(batch):
                record.places, record.files = places, files
                enough = early_stop.outputs(given.shape) if early_stop else None
                learns = early_stop is not None and enough is None
                state = state_of(network) if learns else None
                current = self._pass = self._begin(record, results)
                current.enough, current.reads = enough, ReadDetector() if learns else None
                current.kept = KeptPass() if keep and keep.has_room and given.is_cpu else None
                for each in self._observers:
                    each.begin(current)
                record.endings = self._reader.endings() if self._predictions or plan.of_classes else None
                seeing = record.endings or nullcontext()
                try:
                    recorded = recording() if plan.of_classes else torch.no_grad()
                    reads, followed = current.reads or nullcontext(), self._layouts.following(given)
                    lasting = self.lasting[0].one_pass(given)
                    undisturbing, watching = undisturbed(given.device), self._watching()
                    capturing = record.capturing(self._gradients.head)
                    with lasting, recorded, undisturbing as self.numbers, reads, watching, seeing, followed, capturing:
                        record.output = self._model.forward(network, given)
                        self._gradients.note_layout(record, self._layouts, needed=bool(self._predictions or plan.of_classes))
                except (Exception, SystemExit) as error:  # a script's sys.exit() too
                    if current.error is None and not current.complete:
                        if is_out_of_memory(error) or isinstance(error, MissingLayoutError):
                            raise
                        raise ForwardError.after(current.last, error, given=given.shape) from error
                looked = current.error or self.numbers.drawn or (current.reads and current.reads.looked)
                if early_stop and learns and not looked and state == state_of(network):
                    early_stop.learn(given.shape, current.received)
                if current.error is not None:
                    raise current.error
                record.over = True
                current.ran = frozenset(layer.name for layer in self._layers if self.calls[layer.module])
                for each in self._observers:
                    each.finish(current)
            return self._finish(self._pass, keep)
        except BackwardError as error:
            raise ForwardError(str(error)) from error.__cause__
        finally:  # the graph is not kept
            self._pass = self._no_pass
            for observer in self._observers:
                observer.end()

    def _passes(self, batch: Tensor) -> Iterable[tuple[ForwardRecord, Tensor, BatchResults]]:
        """Return the records, inputs and results of the passes that a batch needs."""
        if self._plan.of_classes:
            return self._gradients.passes(batch)
        given = batch.clone()  # which the network may overwrite: the batch may have to pass again
        return [(ForwardRecord(self._model.module, batch), given, BatchResults(len(batch)))]

    def _begin(self, record: ForwardRecord, results: BatchResults) -> RunningPass:
        draws = bool(self._layers)
        name, report = self._model.name, self.report
        return RunningPass(record, results, self._layouts, self._check, name, report, draws_layers=draws)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Watch a forward pass for all observers."""
        with ExitStack() as stack:
            for each in self._observers:
                stack.enter_context(each.watching())
            yield

    def draw_kept(self, image: Tensor, kept: KeptPass) -> ImageResult:
        """Draw an image whose forward pass was kept, as `draw` draws it.

        Args:
            image: Prepared, `(1, ...)`.
            kept: Its pass.

        Raises:
            MixedBatchError: As in `draw`.
        """
        self._pass = self._begin(ForwardRecord(self._model.module, image), BatchResults(1))
        self._pass.ran = kept.ran
        self._pass.record.places = self._places.at(tuple(image.shape[1:])) if self._places else None
        layers = {layer.name: layer for layer in self._layers}
        try:
            with torch.no_grad():
                for feature_map in kept.feature_maps:
                    self.receive(replace(feature_map, layer=layers[feature_map.layer.name]))
            (drawn,) = self._finish(self._pass)
        finally:
            self._pass = self._no_pass
        return replace(drawn, predictions=kept.predictions)

    def _finish(self, current: RunningPass, keep: KeptPasses | None = None) -> list[ImageResult]:
        results = current.results
        images = len(current.record.pixels)
        results.remarks += self._layouts.notices({batch.template.layer for batch in results.layers})
        if sampled := [batch.template.layer for batch in results.layers if batch.shows_first_sample]:
            which = first_few([*dict.fromkeys(sampled)])
            results.remarks.append(f"several samples for an image, such as regions, of which the first is drawn: {which}")
        if rounded := [batch.template.layer or "input" for batch in results.layers if batch.rounded]:
            results.remarks.append(f"{ROUNDED} of {first_few(rounded)}")
        predictions: list[tuple[Prediction, ...]] = [()] * images
        if self._predictions and current.record.output is not None:
            predictions = self._predict(current.record, results)
        if keep and current.kept and not self.numbers.drawn:
            keep.keep(current.record.pixels, replace(current.kept, ran=current.ran), predictions)
        silent = {layer.name: "returned no tensor" for layer in self._layers if layer.name in current.ran - current.seen}
        idle = [layer for layer in self._layers if layer.name not in current.ran]
        missed = tuple(layer.name for layer in idle if layer.module not in self._inside)
        silent |= {layer.name: _USED for layer in idle if layer.module in self._inside}
        if current.record.pixels.is_cuda:  # once for everything that a GPU still has to copy
            torch.cuda.synchronize(current.record.pixels.device)
        finished = list(map(LayerBatch.finish, results.layers))
        return [
            ImageResult(
                tuple(filter(None, (layer[image] for layer in finished))),
                missed,
                results.undrawn | silent,
                predictions[image],
                tuple(results.notices[image]),
                (*self._remarks, *results.remarks, *(current.record.places.remarks() if current.record.places else [])),
            )
            for image in range(images)
        ]

    def _predict(self, record: ForwardRecord, results: BatchResults) -> list[tuple[Prediction, ...]]:
        """Return the predicted classes of each image; without predictions, add a remark with the reason.

        Raises:
            RequestError: The network does not return the requested part.
        """
        key = self._plan.output
        if key is not None:
            part_of(record.output, key)
        try:
            scores = self._reader.read(record, key=key, head=self._gradients.head)
        except RequestError as error:
            if self._plan.scores:
                raise
            choice = f"; {error.hint}" if error.hint else ""
            results.remarks.append(f"no predictions: {error}{choice}")
            return [()] * record.images
        results.remarks += [remark for remark in scores.remarks if remark not in results.remarks]
        predictions = predict(scores, most=self._predictions)
        for image, boxes in enumerate(scores.boxes):
            results.notify_once(image, boxes.why_none())
        unknown = scores.unknown is not None and bool((scores.unknown == 1).any())
        if unknown or (not all(predictions) and not (scores.open_ended or scores.of_pixels)):
            results.remarks.append("no predictions where the scores are not finite")
        return predictions

    def receive(self, feature_map: FeatureMap, reason: str = "") -> None:
        """Draw the output of a layer, or record why it cannot be read; called by the layer's hook."""
        current = self._pass
        with current.drawing() as running, self._layouts.paused():
            if not running:
                return
            self._check()
            current.seen.add(feature_map.layer.name)
            current.indices[feature_map.name] = feature_map.index
            current.last = feature_map.name
            if reason := reason or ("on the meta device, which has no values" if feature_map.values.is_meta else ""):
                current.results.undrawn[feature_map.name] = reason
                if current.kept:
                    current.kept.give_up()
            else:
                with current.surviving(feature_map.name):
                    self._draw(feature_map)
            current.received += 1
            if current.received == current.enough:
                raise EnoughError

    def _draw(self, feature_map: FeatureMap) -> None:
        current = self._pass
        if current.kept:
            current.kept.add(feature_map)
        heats = self._plan.of_maps and not self._plan.automatic
        if self._plan.draws.get("gradient") or heats:
            current.record.outputs.append(current.record.point(feature_map, copied=heats))
        if self._plan.draws.get("output"):
            current.results.add(
                draw_feature_map(feature_map, feature_map.values, self._plan, self._style, record=current.record)
            )

    def enter(self, feature_map: FeatureMap) -> Tensor:
        """Draw the input of a layer, and return the tensor that the layer receives instead; called by its hook."""
        values = feature_map.values
        current = self._pass
        with current.drawing() as running:
            if not running:
                return values
            self._check()
            if reason := why_unreadable(values):
                current.results.undrawn[f"the input of {feature_map.name}"] = reason
                return values
            if self._plan.draws.get("input"):
                with current.surviving(f"the input of {feature_map.name}"), self._layouts.paused():
                    current.results.add(
                        draw_feature_map(feature_map, values, self._plan, self._style, record=current.record, of="input")
                    )
            if not self._plan.draws.get("input gradient"):
                return values
            # A copy: the gradient at the tensor itself would include the other layers that it goes into.
            own = values.clone()
            current.record.inputs.append(GraphPoint.of(replace(feature_map, values=own), copied=False))
            return own

    def keep(self, feature_map: FeatureMap) -> None:
        """Record the output of any layer that a heat map may need; called by the layer's hook."""
        current = self._pass
        with current.drawing() as running, self._layouts.paused():
            if running:
                self._check()
                if feature_map.values.is_meta:
                    return
                # Numbered among the layers to draw, so that its pictures are sorted between theirs.
                index = current.indices.get(feature_map.name, current.received)
                current.record.keep(replace(feature_map, index=index))
