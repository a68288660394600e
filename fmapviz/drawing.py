"""Draw what the views show of each layer, while a model runs over a batch of images."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fmapviz.automatic import Choices
from fmapviz.class_maps import ClassMaps
from fmapviz.errors import FmapvizError, quote
from fmapviz.findings import Found
from fmapviz.foresight import Foresight, Watch, state_of
from fmapviz.gradients import BackwardError, frozen, recording
from fmapviz.hooks import observe
from fmapviz.keeping import keep
from fmapviz.layers import find_layers
from fmapviz.memory import is_out_of_memory
from fmapviz.places import Place
from fmapviz.predictions import predict
from fmapviz.randomness import Numbers, undisturbed
from fmapviz.shapes import NotAMapError, is_unrolled
from fmapviz.sketches import sketch
from fmapviz.tape import Tape
from fmapviz.targets import part_of
from fmapviz.values import Drawing, Drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from fmapviz.automatic import Chosen
    from fmapviz.keeping import KeptBatch
    from fmapviz.options import Style
    from fmapviz.plan import Plan
    from fmapviz.sketches import Sketch
    from fmapviz.values import FeatureMap, HeatMap, Kept, Layer, Model, Of, Prediction


class ForwardError(FmapvizError):
    """The model's own forward pass failed; the message names the last layer that ran."""

    @classmethod
    def after(cls, layer: str, error: BaseException) -> ForwardError:
        """Say what went wrong after which layer; the empty name stands for none."""
        place = f"after layer {quote(layer)}" if layer else "before the first layer"
        return cls(f"the model failed {place}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


class _EnoughError(Exception):
    """The last layer that is wanted has run."""


@contextmanager
def attach(
    model: Model,
    layers: Sequence[Layer],
    plan: Plan,
    style: Style,
    *,
    top: int = 0,
    foresight: Foresight | None = None,
    choices: Choices | None = None,
    check: Callable[[], object] = bool,
) -> Iterator[Drawer]:
    """Hang hooks into a model, for as many images as will come; afterwards the model is as it was.

    Args:
        model: On the device that the images will be on.
        layers: Which ones to draw.
        plan: What to draw of them.
        style: How the pictures look.
        top: How many classes to predict per image; that takes the whole forward pass.
        foresight: How many outputs these layers give: the forward pass ends with the last. What it does not know is learnt
            from the first pass that is certain to be like all others. None: every pass goes to its end.
        choices: The layers that are chosen automatically, if others are to know them too.
        check: Called at every layer; an exception of its own ends the forward pass and comes out of `draw`.
    """
    whole = top or plan.of_classes
    drawer = Drawer(
        model,
        layers,
        plan,
        style,
        top=top,
        foresight=None if whole else foresight,
        choices=choices or Choices(),
        check=check,
    )
    enter = drawer.enter if plan.inputs or plan.input_gradients else None
    with ExitStack() as stack:
        observed = observe(model.module, layers, drawer.receive, enter=enter, attached=plan.of_classes)
        drawer.calls = stack.enter_context(observed)
        if plan.of_maps:
            everything = find_layers(model.module)
            stack.enter_context(observe(model.module, everything, drawer.keep, attached=True))
        if plan.of_classes:
            stack.enter_context(frozen(model.module))
        yield drawer


class Drawer:
    """A model with hooks, made by `attach`.

    Attributes:
        calls: How often each layer's module has run in the last forward pass.
        numbers: Whether it drew random numbers.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[Layer],
        plan: Plan,
        style: Style,
        *,
        top: int,
        foresight: Foresight | None,
        choices: Choices,
        check: Callable[[], object],
    ) -> None:
        self.calls: Mapping[nn.Module, int] = {}
        self.numbers = Numbers()
        self._model = model
        self._layers = layers
        self._plan = plan
        self._style = style
        self._top = top
        self._foresight = foresight
        self._class_maps = ClassMaps(model.module, plan, model.classes, style=style, choices=choices)
        self._check = check
        self._ordered = not is_unrolled(model.module.modules())
        self._sheet = _Sheet(Tape(model.module, torch.empty(0, 0, 0), ordered=True), Watch())

    def draw(self, batch: Tensor) -> list[Drawn]:
        """Run the model once and draw what is wanted of each layer.

        What layers return and are given is drawn inside their hooks; gradients and heat maps when the pass has ended, by one
        backward pass for each class.

        Args:
            batch: Prepared images `(N, ...)`.

        Returns:
            One per image.

        Raises:
            ForwardError: The model raised an exception.
            MixedBatchError: The images have to go through one by one.
            RequestError: What is wanted of classes cannot be had of this model.
            torch.OutOfMemoryError: And a RuntimeError of the CPU's allocator: see `is_out_of_memory`.
        """
        try:
            return self._class_maps.repeat(lambda chosen: self._draw(batch, chosen))
        except BackwardError as error:
            raise ForwardError(str(error)) from error.__cause__
        finally:  # nothing of the graph is kept
            self._sheet = _Sheet(Tape(self._model.module, batch[:0], ordered=True), Watch())

    def _draw(self, batch: Tensor, chosen: Chosen | None) -> list[Drawn]:
        shape = batch.shape
        enough = self._foresight.outputs(shape) if self._foresight else None
        learns = self._foresight is not None and enough is None
        kept = state_of(self._model.module) if learns else None
        tape, given = self._class_maps.begin(batch, ordered=self._ordered, chosen=chosen)
        sheet = self._sheet = _Sheet(tape, Watch(), enough)
        try:
            recorded = recording() if self._plan.of_classes else torch.no_grad()
            watched = sheet.watch if learns else nullcontext()
            with recorded, undisturbed(batch.device) as self.numbers, watched:
                tape.output = self._model.forward(self._model.module, given)
        except (Exception, SystemExit) as error:  # a script's sys.exit() too
            if sheet.error is None and not sheet.complete:
                if is_out_of_memory(error):
                    raise
                raise ForwardError.after(sheet.last, error) from error
        looked = sheet.error or sheet.watch.looked or self.numbers.drawn
        if self._foresight and learns and not looked and kept == state_of(self._model.module):
            self._foresight.learn(shape, sheet.received)
        if sheet.error is not None:
            raise sheet.error  # ours, also where the model caught it or made another of it
        tape.over = True
        predictions = self._predict(tape.output, len(batch))
        found = self._class_maps.draw(tape) if self._plan.of_classes else Found(len(batch))
        missed = tuple(layer.name for layer in self._layers if not self.calls[layer.module])
        ran = (layer.name for layer in self._layers if self.calls[layer.module])
        silent = {name: "returned no tensor" for name in ran if name not in sheet.seen}
        undrawn = {**sheet.undrawn, **found.undrawn, **silent}
        sketches = [*sheet.sketches, *found.sketches]
        drawings = _finish_drawings(sketches, len(batch))
        heats = _finish_heats(sketches, found)
        kept = _finish_kept([*sheet.kept, *found.kept], len(batch))
        return [
            Drawn(own, missed, undrawn, seen, hot, tuple(notices), tuple(found.remarks), values)
            for own, seen, hot, notices, values in zip(drawings, predictions, heats, found.notices, kept, strict=True)
        ]

    def _predict(self, output: object, images: int) -> list[tuple[Prediction, ...]]:
        if not self._top:
            return [()] * images
        part = output if self._plan.output is None else part_of(output, self._plan.output)
        return predict(part, self._model.classes, top=self._top, images=images)

    def receive(self, feature_map: FeatureMap) -> None:
        """Draw one layer's output: what the hooks call."""
        with self._sheet.drawing() as goes_on:
            if goes_on:
                self._receive(self._sheet, feature_map)

    def enter(self, feature_map: FeatureMap) -> Tensor:
        """Draw one layer's input, and give what the layer is to be given: what the hooks call."""
        with self._sheet.drawing() as goes_on:
            return self._enter(self._sheet, feature_map) if goes_on else feature_map.values

    def keep(self, feature_map: FeatureMap) -> None:
        """Keep the output of any layer, if a heat map may need it: what the hooks call."""
        with self._sheet.drawing() as goes_on:
            if goes_on:
                self._check()
                self._sheet.tape.keep(feature_map)

    def _receive(self, sheet: _Sheet, feature_map: FeatureMap) -> None:
        self._check()
        sheet.seen.add(feature_map.layer.name)
        sheet.last = feature_map.name
        heats = self._plan.of_maps and not self._plan.automatic
        if self._plan.gradients or heats:
            sheet.tape.outputs.append(sheet.tape.place(feature_map, copied=heats))
        if self._plan.of_outputs:
            self._sketch(sheet, feature_map, "output")
        sheet.received += 1
        if sheet.received == sheet.enough:
            raise _EnoughError

    def _enter(self, sheet: _Sheet, feature_map: FeatureMap) -> Tensor:
        self._check()
        if self._plan.inputs:
            self._sketch(sheet, feature_map, "input")
        values = feature_map.values
        if not self._plan.input_gradients:
            return values
        # A copy of its own: the gradient at the tensor itself is also that of whatever else it goes into.
        own = values.clone()
        sheet.tape.inputs.append(Place.of(replace(feature_map, values=own), copied=False))
        return own

    def _sketch(self, sheet: _Sheet, feature_map: FeatureMap, of: Of) -> None:
        values = feature_map.values
        values = values.detach() if values.requires_grad else values
        tape = sheet.tape
        try:
            if self._plan.kept and (of != "output" or self._plan.outputs or self._plan.counts):
                sheet.kept.append(keep(feature_map, values, self._plan.kept, images=tape.images, of=of))
            for suffix, maps in tape.views(feature_map, values).items():
                drawn = sketch(
                    feature_map,
                    maps,
                    self._plan,
                    self._style,
                    images=tape.images,
                    picture=tape.picture,
                    suffix=suffix,
                    of=of,
                )
                sheet.sketches.append(drawn)
                sheet.undrawn |= drawn.undrawn
        except NotAMapError as reason:
            if self._plan.drawn or not (sheet.kept and sheet.kept[-1].layer == feature_map.name):
                sheet.undrawn[feature_map.name] = str(reason)


class _Sheet:
    """Collects what is drawn during one forward pass."""

    def __init__(self, tape: Tape, watch: Watch, enough: int | None = None) -> None:
        self.tape = tape
        self.watch = watch
        self.enough = enough
        self.sketches: list[Sketch] = []
        self.kept: list[KeptBatch] = []
        self.received = 0
        self.seen: set[str] = set()
        self.undrawn: dict[str, str] = {}
        self.last = ""
        self.complete = False
        self.error: Exception | None = None

    @contextmanager
    def drawing(self) -> Iterator[bool]:
        """Tell what we do inside the network's forward pass from what it does itself.

        Yields:
            Whether that pass goes on.
        """
        self.watch.paused = True
        try:
            yield not self.tape.over
        except _EnoughError:  # not kept: with its traceback it would keep every tensor of the pass
            self.complete = True
            raise
        except RecursionError:  # the model's: what is done here is never deep
            raise
        except Exception as error:
            self.error = error
            raise
        finally:
            self.watch.paused = False


def _finish_drawings(sketches: Sequence[Sketch], images: int) -> list[tuple[Drawing, ...]]:
    """Give each image's drawings; what a GPU has copied meanwhile is waited for once."""
    if sketches and sketches[0].ranges.mean.is_cuda:
        torch.cuda.synchronize(sketches[0].ranges.mean.device)
    drawings: list[list[Drawing]] = [[] for _ in range(images)]
    for each in sketches:
        for own, more in zip(drawings, each.finish(), strict=True):
            own.extend(more)
    return [tuple(own) for own in drawings]


def _finish_heats(sketches: Sequence[Sketch], found: Found) -> list[tuple[HeatMap, ...]]:
    heats: list[list[HeatMap]] = [[] for _ in found.notices]
    for sketched in sketches:
        for own, more in zip(heats, sketched.finish_heats(), strict=True):
            own.extend(more)
    for each in found.heats:
        for own, heat in zip(heats, each.finish(), strict=True):
            if heat:
                own.append(heat)
    return [tuple(own) for own in heats]


def _finish_kept(batches: Sequence[KeptBatch], images: int) -> list[tuple[Kept, ...]]:
    kept: list[list[Kept]] = [[] for _ in range(images)]
    for each in batches:
        for own, values in zip(kept, each.finish(), strict=True):
            if values:
                own.append(values)
    return [tuple(own) for own in kept]
