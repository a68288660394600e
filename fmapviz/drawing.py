"""Draw what the views show of each layer, while a model runs over a batch of images."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.errors import FmapvizError, quote
from fmapviz.foresight import Foresight, Watch, state_of
from fmapviz.hooks import observe
from fmapviz.predictions import predict
from fmapviz.shapes import NotAMapError, as_maps, is_unrolled
from fmapviz.tiling import Ranges, as_floats, choose_channels, measure, take_channels
from fmapviz.values import Drawing, Drawn, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fmapviz.options import Style
    from fmapviz.values import FeatureMap, Layer, Model, Prediction

    View = Callable[[Tensor, Ranges, Style], Tensor]


class ForwardError(FmapvizError):
    """The model's own forward pass failed; the message names the last layer that ran."""

    @classmethod
    def after(cls, layer: str, error: BaseException) -> ForwardError:
        """Say what went wrong after which layer; the empty name stands for none."""
        place = f"after layer {quote(layer)}" if layer else "before the first layer"
        return cls(f"the model failed {place}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


class MixedBatchError(Exception):
    """A layer saw another number of samples than there are images, so they cannot be told apart in a batch."""


class _EnoughError(Exception):
    """The last layer that is wanted has run."""


@contextmanager
def attach(
    model: Model,
    layers: Sequence[Layer],
    views: Mapping[str, View],
    style: Style,
    *,
    top: int = 0,
    foresight: Foresight | None = None,
    check: Callable[[], object] = bool,
) -> Iterator[Drawer]:
    """Hang hooks into a model, for as many images as will come; afterwards the model is as it was.

    Args:
        model: On the device that the images will be on.
        layers: Which ones to draw.
        views: From a view's name to its `draw` function.
        style: How the pictures look.
        top: How many classes to predict per image; that takes the whole forward pass.
        foresight: How many outputs these layers give: the forward pass ends with the last. What it does not know is learnt
            from the first pass that is certain to be like all others. None: every pass goes to its end.
        check: Called at every layer; an exception of its own ends the forward pass and comes out of `draw`.
    """
    drawer = Drawer(model, layers, views, style, top=top, foresight=None if top else foresight, check=check)
    with observe(model.module, layers, drawer.receive) as drawer.calls:
        yield drawer


class Drawer:
    """A model with hooks, made by `attach`.

    Attributes:
        calls: How often each layer's module has run in the last forward pass.
        random: Whether the last forward pass drew random numbers.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[Layer],
        views: Mapping[str, View],
        style: Style,
        *,
        top: int,
        foresight: Foresight | None,
        check: Callable[[], object],
    ) -> None:
        self.calls: Mapping[nn.Module, int] = {}
        self.random = False
        self._model = model
        self._layers = layers
        self._views = views
        self._style = style
        self._top = top
        self._foresight = foresight
        self._check = check
        self._ordered = not is_unrolled(model.module)
        self._sheet = _Sheet(torch.Size([0]), Watch())

    def draw(self, batch: Tensor) -> list[Drawn]:
        """Run the model once and draw each layer's output inside its hook.

        Args:
            batch: Prepared images `(N, ...)`.

        Returns:
            One per image.

        Raises:
            ForwardError: The model raised an exception.
            MixedBatchError: The images have to go through one by one.
            torch.OutOfMemoryError: And a RuntimeError of the CPU's allocator: see `is_out_of_memory`.
        """
        shape = batch.shape
        enough = self._foresight.outputs(shape) if self._foresight else None
        learns = self._foresight is not None and enough is None
        kept = state_of(self._model.module) if learns else None
        sheet = self._sheet = _Sheet(shape, Watch(), enough)
        output: object = None
        try:
            with torch.no_grad(), _undisturbed(batch.device):
                before = torch.get_rng_state()
                try:
                    with sheet.watch if learns else nullcontext():
                        output = self._model.forward(self._model.module, batch)
                finally:  # also of a pass that ended early
                    self.random = not torch.equal(before, torch.get_rng_state())
        except (Exception, SystemExit) as error:  # a script's sys.exit() too
            if sheet.error is None and not sheet.complete:
                if is_out_of_memory(error):
                    raise
                raise ForwardError.after(sheet.last, error) from error
        looked = sheet.error or sheet.watch.looked or self.random
        if self._foresight and learns and not looked and kept == state_of(self._model.module):
            self._foresight.learn(shape, sheet.received)
        if sheet.error is not None:
            raise sheet.error  # ours, also where the model caught it or made another of it
        missed = tuple(layer.name for layer in self._layers if not self.calls[layer.module])
        ran = (layer.name for layer in self._layers if self.calls[layer.module])
        silent = {name: "returned no tensor" for name in ran if name not in sheet.seen}
        undrawn = {**sheet.undrawn, **silent}
        predictions = self._predict(output, len(batch))
        return [Drawn(own, missed, undrawn, seen) for own, seen in zip(sheet.finish(), predictions, strict=True)]

    def _predict(self, output: object, images: int) -> list[tuple[Prediction, ...]]:
        return predict(output, self._model.classes, top=self._top, images=images) if self._top else [()] * images

    def receive(self, feature_map: FeatureMap) -> None:
        """Draw one layer's output: what the hooks call."""
        sheet = self._sheet
        sheet.watch.paused = True
        try:
            self._sketch(sheet, feature_map)
        except _EnoughError:  # not kept: with its traceback it would keep every tensor of the pass
            sheet.complete = True
            raise
        except RecursionError:  # the model's: what is done here is never deep
            raise
        except Exception as error:
            sheet.error = error
            raise
        finally:
            sheet.watch.paused = False

    def _sketch(self, sheet: _Sheet, feature_map: FeatureMap) -> None:
        self._check()
        sheet.seen.add(feature_map.layer.name)
        sheet.last = feature_map.name
        try:
            outputs = as_maps(
                feature_map.values,
                feature_map.layer.module,
                picture=sheet.picture,
                portions=feature_map.shape[:1] != (sheet.images,),
                ordered=self._ordered,
                name=feature_map.name,
            )
            for suffix, maps in outputs.items():
                sheet.sketches.append(self._draw(feature_map, suffix, maps))
        except NotAMapError as reason:
            sheet.undrawn[feature_map.name] = str(reason)
        sheet.received += 1
        if sheet.received == sheet.enough:
            raise _EnoughError

    def _draw(self, feature_map: FeatureMap, suffix: str, maps: Tensor) -> _Sketch:
        images, samples = self._sheet.images, len(maps)
        if samples != images:
            if images > 1:
                raise MixedBatchError
            maps = maps[:1]
        vector = maps.ndim == 2
        maps = as_floats(maps[:, :, None, None] if vector else maps)
        ranges = whole = measure(maps)
        chosen = choose_channels(ranges, self._style)
        if chosen is not None:
            if chosen.shape[1] == 0:
                raise NotAMapError(f"has {maps.shape[1]} channels, none of those chosen")
            maps, ranges = take_channels(maps, ranges, chosen)
        return _Sketch(
            layer=f"{feature_map.name}{suffix}",
            type=feature_map.layer.type,
            call=feature_map.call,
            index=feature_map.index,
            shape=(whole.low.shape[1],) if vector else feature_map.shape[1:],
            pixels=self._pixels(maps.flatten(1) if vector else maps, ranges),
            ranges=whole,
            single=maps.shape[-1] * maps.shape[-2] == 1,
            chosen=chosen,
            samples=samples if images == 1 else 1,
        )

    def _pixels(self, maps: Tensor, ranges: Ranges) -> dict[str, Tensor]:
        return {view: _on_the_way(draw(maps, ranges, self._style)) for view, draw in self._views.items()}


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory, the GPU's or the computer's, did not suffice."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


@dataclass(frozen=True, slots=True, eq=False)
class _Sketch:
    """What is known of one feature map of a batch, still on the model's device, except the pixels."""

    layer: str
    type: str
    call: int
    index: int
    shape: tuple[int, ...]
    pixels: dict[str, Tensor]
    ranges: Ranges
    single: bool
    chosen: Tensor | None
    samples: int

    def finish(self) -> Iterator[list[Drawing]]:
        """Give each image's drawings."""
        statistics = _statistics(self.ranges, single=self.single)
        chosen = None if self.chosen is None else self.chosen.tolist()
        pixels = {view: values.numpy() for view, values in self.pixels.items()}
        for image, own in enumerate(statistics):
            yield [
                Drawing(
                    view=view,
                    layer=self.layer,
                    type=self.type,
                    call=self.call,
                    index=self.index,
                    shape=self.shape,
                    pixels=values[image],
                    statistics=own,
                    channels=None if chosen is None else tuple(chosen[image]),
                    samples=self.samples,
                )
                for view, values in pixels.items()
            ]


class _Sheet:
    """Collects what is drawn during one forward pass."""

    def __init__(self, shape: torch.Size, watch: Watch, enough: int | None = None) -> None:
        self.images = shape[0]
        self.picture = (shape[-2], shape[-1]) if len(shape) > 2 else None
        self.watch = watch
        self.enough = enough
        self.sketches: list[_Sketch] = []
        self.received = 0
        self.seen: set[str] = set()
        self.undrawn: dict[str, str] = {}
        self.last = ""
        self.complete = False
        self.error: Exception | None = None

    def finish(self) -> list[tuple[Drawing, ...]]:
        """Give each image's drawings; what a GPU has copied meanwhile is waited for once."""
        sketches, self.sketches = self.sketches, []
        if sketches and sketches[0].ranges.mean.is_cuda:
            torch.cuda.synchronize(sketches[0].ranges.mean.device)
        drawings: list[list[Drawing]] = [[] for _ in range(self.images)]
        for sketch in sketches:
            for own, more in zip(drawings, sketch.finish(), strict=True):
                own.extend(more)
        return [tuple(own) for own in drawings]


def _on_the_way(pixels: Tensor) -> Tensor:
    """Have pixels in the computer's memory; a GPU may still be writing them, and goes on with the next layer."""
    if not pixels.is_cuda:
        return pixels if pixels.is_cpu else pixels.cpu()
    host = torch.empty(pixels.shape, dtype=pixels.dtype, pin_memory=True)
    return host.copy_(pixels, non_blocking=True)


def _statistics(ranges: Ranges, *, single: bool) -> list[Statistics]:
    """Sum up each image's feature map."""
    low, high, means = (_numbers(values) for values in (ranges.low, ranges.high, ranges.mean))
    constant = low == high
    nonfinite = [0] * len(low)
    if ranges.bad is not None:
        bad = _numbers(ranges.bad)
        constant &= bad == 0
        nonfinite = bad.sum(1).tolist()
    if single or not constant.any():
        channels: list[tuple[int, ...]] = [()] * len(low)
    else:
        channels = [tuple(row.nonzero()[0].tolist()) for row in constant]
    lowest = np.fmin.reduce(low, 1).tolist()  # NaN, of a channel without a finite value, has no say
    highest = np.fmax.reduce(high, 1).tolist()
    return [
        Statistics(_finite(lowest), _finite(highest), _finite(mean), channels, nonfinite)
        for lowest, highest, mean, channels, nonfinite in zip(
            lowest, highest, means.tolist(), channels, nonfinite, strict=True
        )
    ]


def _numbers(values: Tensor) -> NDArray[Any]:
    return (values if values.is_cpu else values.cpu()).numpy()


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _undisturbed(device: torch.device) -> Any:
    # Any: fork_rng is an untyped context manager.
    if device.type == "cuda":
        return torch.random.fork_rng(devices=[device])
    return torch.random.fork_rng(devices=[])
