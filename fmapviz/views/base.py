"""The contract of a view: what its functions receive and return.

A view is a value in `CONTRIBUTION` of `fmapviz/views/__init__.py`, or of a feature's `__init__.py`. It is of one of the
kinds in `fmapviz.core.members`, and names these functions:

* `draw(maps: LayerMaps, style)` of a `LayerView`: Return a `BatchContent` for what was captured of one layer.
* `reduce(maps)` of a `ReducedView`: Reduce `(N, C, h, w)` to float32 `(N, h, w)`, NaN where no channel has a finite value.
* `read(module, style)` of a `ModelView`: Return the weights of a layer that are drawn, channels first.
* `draw(values, style)` of a `ModelView`: Return the content of these weights, a `Grid`.
* `compose(sheet: fmapviz.draw.picture.Sheet)`: Compose the maps of all layers of an image. Return the picture, uint8
  `(H, W)` or `(H, W, 3)`, and its facts.

A function that cannot draw a layer raises `NotAMapError` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.centres import Centres
from fmapviz.core.drawings import HeatMap
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.draw.heatmap import heat_and_ends, stretch
from fmapviz.observe.reshape import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.data import Content
    from fmapviz.draw.grid import Ranges


class NoChannelsError(NotAMapError):
    """None of the chosen channels exists."""


class NoWeightsError(NotAMapError):
    """A layer has no weights of the kind that a view draws."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerMaps:
    """One feature map of N images, as a view receives it.

    Attributes:
        values: `(N, C, H, W)`, float32 or a half type, any range; `(N, C, 1, 1)` for a vector.
        ranges: Extremes of the channels, see `fmapviz.draw.grid.measure`.
        vector: Whether it has no rows and columns.
        picture: Height and width of the input, pixels; None if the input is not a picture.
        limits: Smallest and largest value of this view's maps over all images of the run, if known.
        centres: Positions of the values in the input; None: they span it.
    """

    values: Tensor
    ranges: Ranges
    vector: bool = False
    picture: tuple[int, int] | None = None
    limits: tuple[float, float] | None = None
    centres: Centres | None = None

    @property
    def placed(self) -> Centres:
        """The positions of the values in the input, which is a picture."""
        assert self.picture
        return self.centres or Centres.spread((self.values.shape[2], self.values.shape[3]), self.picture)


@dataclass(frozen=True, slots=True, eq=False)
class BatchContent:
    """A view's content for N images, whose tensors may still be on a GPU.

    Attributes:
        make: Builds the content of one image. Its arguments are that image's part of each tensor: a NumPy array, or a Python
            number of a tensor `(N,)`.
        tensors: Each `(N, ...)`, by parameter name.
    """

    make: Callable[..., Content]
    tensors: Mapping[str, Tensor]


def draw_reduced(
    reduce: Callable[[Tensor], Tensor],
    maps: LayerMaps,
    style: Style,
    *,
    over: bool = True,
    colormap: str = HEAT_COLORMAP,
    sharp: bool = False,
) -> BatchContent:
    """Draw all channels as one map.

    Raises:
        NotAMapError: It is a vector.
    """
    if maps.vector:
        raise NotAMapError("a vector, without rows and columns to lay over the image")
    size = maps.picture if over else None
    centres = maps.centres if over else None
    content = draw_map(reduce(maps.values), size, style, maps.limits, colormap=colormap, sharp=sharp, centres=centres)
    if maps.ranges.bad is None:
        return content
    return replace(content, tensors={**content.tensors, "nonfinite": maps.ranges.bad.sum(1)})


def draw_map(
    raw: Tensor,
    size: tuple[int, int] | None,
    style: Style,
    limits: tuple[float, float] | None,
    *,
    colormap: str = HEAT_COLORMAP,
    sharp: bool = False,
    centres: Centres | None = None,
) -> BatchContent:
    """Draw maps in colour.

    Args:
        raw: float32 `(N, h, w)`, any range.
        size: Height and width of the input, over which they are drawn; None draws them alone, as large as they are.
        style: How pictures look.
        limits: Smallest and largest value over all images of the run, if known.
        colormap: Used unless the style names one.
        sharp: Whether values are enlarged to rectangles, unless the style is smooth.
        centres: Where the values lie in the input, over which they are drawn; None: they span it.
    """
    limits = style.limits or (limits if style.scope == "run" else None)
    over = size is not None
    shown = size or (raw.shape[1], raw.shape[2])
    pixels, low, high = stretch(raw, shown, style, limits, smooth=style.smooth or not sharp, centres=centres)

    def make(raw: NDArray[np.float32], pixels: NDArray[np.uint8], *, low: float, high: float, nonfinite: int = 0) -> HeatMap:
        return HeatMap(raw, pixels, over, colormap, (low, high), nonfinite)

    return BatchContent(make, {"raw": raw, "pixels": pixels, "low": low, "high": high})


def draw_class_map(
    raw: Tensor,
    size: tuple[int, int],
    colormap: str,
    *,
    over: bool = True,
    centres: Centres | None = None,
    limits: tuple[float, float] | None = None,
    ends: tuple[float, float] | None = None,
    method: str = "",
    notes: Sequence[str] = (),
) -> BatchContent:
    """Draw the positive part of maps of classes.

    Args:
        raw: float32 `(N, h, w)`, any range.
        size: Height and width of the input, over which they are drawn.
        colormap: Used unless the style names one.
        over: Whether they are drawn over the input.
        centres: Where the values lie in the input; None: they span it.
        limits: Smallest and largest value over all images of the run, if known.
        ends: Values at the ends of the scale, without limits; None: each map's own extremes.
        method: See `HeatMap`.
        notes: For each map; see `HeatMap`.
    """
    heat, low, high = heat_and_ends(raw, size, centres, limits=limits or ends)

    def make(
        raw: NDArray[np.float32], heat: NDArray[np.float32], *, low: float, high: float, number: float = 0.0
    ) -> HeatMap:
        pixels = (heat * np.float32(255) + np.float32(0.5)).astype(np.uint8)
        note = notes[int(number)] if notes else ""
        return HeatMap(raw, pixels, over, colormap, common=limits, ends=(low, high), method=method, note=note)

    numbers = {"number": torch.arange(len(raw), dtype=torch.float32)} if notes else {}
    return BatchContent(make, {"raw": raw, "heat": heat, "low": low, "high": high, **numbers})


def in_double(values: Tensor) -> Tensor:
    """Return values as float64, for formulas that divide; as float32 on Apple's GPUs, which lack float64."""
    return values.float() if values.device.type == "mps" else values.double()


def divided(values: Tensor | float, sums: Tensor, sizes: Tensor) -> Tensor:
    """Divide by sums; 0 where a sum is zero, up to the rounding of its terms to float32.

    Args:
        values: The dividends, of a shape that broadcasts.
        sums: The divisors.
        sizes: Sums of the magnitudes of the terms.
    """
    return (values / sums).where(sums.abs() > sizes * torch.finfo(torch.float32).eps, 0)
