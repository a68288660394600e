"""First three principal components of each layer's channels, as red, green and blue.

The mean is middle grey; 2.5 standard deviations below it are 0, and above it 255. Drawn at the layer's resolution, then
enlarged to the input's, times `style.scale`: each pixel has the colour of the position whose centre is nearest, so that the
pictures of all layers can be compared with each other and with the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent
from fmapviz.draw.facts import channel_facts
from fmapviz.draw.heatmap import interpolate_colours, nearest_values
from fmapviz.features.tokens.components import border, fit, paint, separate
from fmapviz.features.tokens.shared import sample_note, size_of, vectors_in
from fmapviz.features.tokens.vectors import silent_channels
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.data import LayerResult
    from fmapviz.views.base import LayerMaps

_SIDE = "the side of the first component with fewer places at the border; the others are black"
_COMPONENTS_OF = {"image": "this image", "shared": "all images of the run"}


@dataclass(frozen=True, slots=True, eq=False)
class Rgb(CustomContent):
    """Content of a drawing: all channels projected to red, green and blue.

    Attributes:
        pixels: uint8 `(h, w, 3)` at the layer's resolution.
        nonfinite: Number of positions with a value that is NaN or infinite.
        foreground: Number of positions of the foreground, if the others are black; None if all are drawn.
        sampled: Numbers of sampled and of all positions, if the foreground was not computed from all.
    """

    pixels: NDArray[np.uint8]
    nonfinite: int = 0
    foreground: int | None = None
    sampled: tuple[int, int] | None = None

    @property
    def record(self) -> Mapping[str, int]:
        """See `CustomContent`."""
        return {"nonfinite_places": self.nonfinite} if self.nonfinite else {}

    @property
    def why_empty(self) -> str:
        """See `CustomContent`."""
        return "black: no position of this image is foreground" if self.foreground == 0 else ""

    def render(self, layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """Enlarge it to the input's size, times the scale: rectangles, unless the style is smooth."""
        grid = self.pixels.shape[0], self.pixels.shape[1]
        size = size_of(grid, seen, style)
        if style.smooth:
            return Rendered(interpolate_colours(self.pixels, size, layer.centres))
        rows, columns = nearest_values(grid, size, layer.centres)
        return Rendered(self.pixels[rows[:, None], columns])

    def describe(self, layer: LayerResult, style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        places = self.pixels[..., 0].size
        of_what = "" if self.foreground is None else " of the foreground"
        scaling = f"the first three principal components{of_what}, of {_COMPONENTS_OF[style.pca]}, are red, green and blue"
        scaling += f", each from 2.5 deviations below its mean to 2.5 above{sample_note(self.sampled)}"
        shown = f"at {self.nonfinite} of {places} places, drawn as a checkerboard"
        foreground = None if self.foreground is None else f"{self.foreground} of {places} places: {_SIDE}"
        return channel_facts(layer, scaling=scaling, nonfinite=shown, more={"Foreground": foreground})


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one picture per image, by its own principal components or by those shared by the run.

    Returns:
        Of `Rgb`: uint8 `(N, h, w, 3)` on the device of the maps.

    Raises:
        NotAMapError: A vector.
    """
    if maps.vector:
        raise NotAMapError("is a vector, not a map")
    tensors = _foreground(maps) if style.foreground else {"pixels": _everything(maps)}
    if maps.ranges.bad is not None:
        tensors["nonfinite"] = _nonfinite(maps.values).sum((1, 2))
    split = vectors_in(maps.ranges.shared).foreground if style.foreground else None
    return BatchContent(partial(Rgb, sampled=split.positions if split else None), tensors)


def _everything(maps: LayerMaps) -> Tensor:
    if basis := vectors_in(maps.ranges.shared).basis:
        return paint(maps.values, basis)
    return torch.cat([paint(image, fit(image)) for image in torch.split(maps.values, 1)])


def _foreground(maps: LayerMaps) -> dict[str, Tensor]:
    """Draw the foreground in the colours of its own components, and the background black."""
    shared, (height, width) = vectors_in(maps.ranges.shared).foreground, maps.values.shape[2:]
    pixels, counts = [], []
    for image in torch.split(maps.values, 1):
        known = shared or separate(image[0].flatten(1), border(height, width, image.device))
        mask = known.mask(image)
        finite = ~_nonfinite(image)
        pixels.append(paint(image, known.basis).masked_fill((~mask & finite)[..., None], 0))
        counts.append((mask & finite).sum())
    return {"pixels": torch.cat(pixels), "foreground": torch.stack(counts)}


def _nonfinite(maps: Tensor) -> Tensor:
    """Return which positions have a value that is not finite, silent channels aside: boolean `(N, h, w)`."""
    finite = maps.isfinite().flatten(2)
    return (~(finite | silent_channels(finite))).any(1).view(-1, *maps.shape[2:])
