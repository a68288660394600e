"""Draw what the views show of each layer, while a model runs over a batch of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmapviz.errors import FmapvizError, quote
from fmapviz.hooks import observe
from fmapviz.shapes import NotAMapError, as_maps
from fmapviz.tiling import Ranges, as_floats, choose_channels, measure, take_channels
from fmapviz.values import Drawing, Drawn, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fmapviz.options import Style
    from fmapviz.values import FeatureMap, Layer, Model

    View = Callable[[Tensor, Ranges, Style], Tensor]


class ForwardError(FmapvizError):
    """The model's own forward pass failed; the message names the last layer that ran."""

    @classmethod
    def after(cls, layer: str, error: Exception) -> ForwardError:
        """Say what went wrong after which layer; the empty name stands for none."""
        place = f"after layer {quote(layer)}" if layer else "before the first layer"
        return cls(f"the model failed {place}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


class MixedBatchError(Exception):
    """A layer saw another number of samples than there are images, so they cannot be told apart in a batch."""


def draw(model: Model, layers: Sequence[Layer], views: Mapping[str, View], style: Style, batch: Tensor) -> list[Drawn]:
    """Run a model once and draw each layer's output inside its hook.

    Args:
        model: On the device of `batch`.
        layers: Which ones to draw.
        views: From a view's name to its `draw` function.
        style: How the pictures look.
        batch: Prepared images `(N, ...)`.

    Returns:
        One per image.

    Raises:
        ForwardError: The model raised an exception.
        MixedBatchError: The images have to go through one by one.
        torch.OutOfMemoryError: And a RuntimeError of the CPU's allocator: see `is_out_of_memory`.
    """
    sheet = _Sheet(len(batch), views, style)
    try:
        with torch.no_grad(), _undisturbed(batch.device), observe(model.module, layers, sheet.receive) as calls:
            model.forward(model.module, batch)
    except Exception as error:
        if sheet.error is None:
            if is_out_of_memory(error):
                raise
            raise ForwardError.after(sheet.last, error) from error
    if sheet.error is not None:  # a failure of ours, also where the model caught it or made another of it
        raise sheet.error
    silent = {layer.name: "returned no tensor" for layer in layers if layer.name not in sheet.seen and calls[layer.module]}
    missed = tuple(layer.name for layer in layers if not calls[layer.module])
    return [Drawn(tuple(drawings), missed, {**sheet.undrawn, **silent}) for drawings in sheet.drawings]


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory, the GPU's or the computer's, did not suffice."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


class _Sheet:
    """Collects what is drawn of each image during one forward pass."""

    def __init__(self, images: int, views: Mapping[str, View], style: Style) -> None:
        self.drawings: list[list[Drawing]] = [[] for _ in range(images)]
        self.seen: set[str] = set()
        self.undrawn: dict[str, str] = {}
        self.last = ""
        self.error: Exception | None = None
        self._views = views
        self._style = style

    def receive(self, feature_map: FeatureMap) -> None:
        self.seen.add(feature_map.layer.name)
        self.last = feature_map.name
        try:
            for suffix, maps in as_maps(feature_map.values, feature_map.layer.module).items():
                self._draw(feature_map, suffix, maps)
        except NotAMapError as reason:
            self.undrawn[feature_map.name] = str(reason)
        except Exception as error:
            self.error = error
            raise

    def _draw(self, feature_map: FeatureMap, suffix: str, maps: Tensor) -> None:
        images = len(self.drawings)
        samples = len(maps)
        if samples != images:
            if images > 1:
                raise MixedBatchError
            maps = maps[:1]
        maps = as_floats(maps)
        ranges = measure(maps)
        statistics = _statistics(maps, ranges)
        chosen = choose_channels(ranges, self._style)
        if chosen is not None:
            if chosen.shape[1] == 0:
                raise NotAMapError(f"has {maps.shape[1]} channels, none of those chosen")
            maps, ranges = take_channels(maps, ranges, chosen)
        for view, draw_view in self._views.items():
            pixels = draw_view(maps, ranges, self._style).cpu().numpy()
            for image in range(images):
                drawing = Drawing(
                    view=view,
                    layer=f"{feature_map.name}{suffix}",
                    type=feature_map.layer.type,
                    call=feature_map.call,
                    index=feature_map.index,
                    shape=feature_map.shape[1:],
                    pixels=pixels[image],
                    statistics=statistics[image],
                    channels=None if chosen is None else tuple(chosen[image].tolist()),
                    samples=samples if images == 1 else 1,
                )
                self.drawings[image].append(drawing)


def _statistics(maps: Tensor, ranges: Ranges) -> list[Statistics]:
    """Sum up each image's feature map; two transfers from the device for all of it, one more if values are not finite."""
    if ranges.bad is None:
        mean, bad = maps.mean((1, 2, 3), dtype=torch.float32), [0] * len(maps)
    else:
        mean, bad = maps.float().where(maps.isfinite(), torch.nan).nanmean((1, 2, 3)), ranges.bad.sum(1).tolist()
    low = ranges.low.nan_to_num(nan=torch.inf).amin(1)
    high = ranges.high.nan_to_num(nan=-torch.inf).amax(1)
    rows = torch.stack([low, high, mean], 1).cpu().tolist()
    single = maps.shape[-1] * maps.shape[-2] == 1
    constant = [()] * len(maps) if single else _constant_channels(ranges)
    return [
        Statistics(_finite(low), _finite(high), _finite(mean), channels, nonfinite)
        for (low, high, mean), channels, nonfinite in zip(rows, constant, bad, strict=True)
    ]


def _constant_channels(ranges: Ranges) -> list[tuple[int, ...]]:
    equal = ranges.low == ranges.high
    if ranges.bad is not None:
        equal &= ranges.bad == 0
    equal = equal.cpu()
    return [tuple(row.nonzero().flatten().tolist()) for row in equal]


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") and value == value else None  # noqa: PLR0124  NaN is what differs from itself


def _undisturbed(device: torch.device) -> Any:
    # Any: fork_rng is an untyped context manager.
    if device.type == "cuda":
        return torch.random.fork_rng(devices=[device])
    return torch.random.fork_rng(devices=[])
