"""Positions of each layer that match those of another image best, as numbered points in both pictures.

The other image is `--anchor IMAGE`. Drawn are mutual nearest neighbours by cosine, the best first, spread over the pictures;
of `--anchor IMAGE:Y,X` the best match of that position alone. Maps of more than 64 x 64 positions are averaged to fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent
from fmapviz.draw.colormaps import table
from fmapviz.draw.facts import channel_facts
from fmapviz.features.tokens.matches import averaged, best_pair, choose_pairs, match
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.features.tokens.vectors import cosines, direction_at
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.core.drawings import Size
    from fmapviz.data import LayerResult
    from fmapviz.features.tokens.matches import Pair
    from fmapviz.views.base import LayerMaps


@dataclass(frozen=True, slots=True, eq=False)
class Matches(CustomContent):
    """Content of a drawing: which position of another image matches best.

    Attributes:
        index: Of the best match, row by row, int32 `(h, w)`; -1 where a value is NaN or infinite.
        cosine: Of the match, float32 `(h, w)`; NaN there.
        mutual: Whether the position is the best match of its match too, boolean `(h, w)`.
        image: Name of the other image.
        picture: The other image, uint8 `(H, W)` or `(H, W, 3)`.
        grid: Height and width of its map.
        pairs: Those that are drawn.
    """

    index: NDArray[np.int32]
    cosine: NDArray[np.float32]
    mutual: NDArray[np.bool_]
    image: str
    picture: NDArray[np.uint8]
    grid: Size
    pairs: tuple[Pair, ...]

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """See `CustomContent`."""
        return {"": self.index, ".cosine": self.cosine, ".mutual": self.mutual}

    def render(self, _layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(draw_matches(self.pairs, self.picture, seen, scale=style.scale), has_input=True)

    def describe(self, layer: LayerResult, style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        matches = "; ".join(f"{number}: {pair.cosine:.3f}" for number, pair in enumerate(self.pairs, 1))
        shown = "and their positions match nothing"
        return channel_facts(layer, scaling=self._scaling(style), nonfinite=shown, more={"Matches": matches or "none"})

    def _scaling(self, style: Style) -> str:
        """Return the meaning of the lines."""
        start = style.start
        if start and start.at:
            mutual = "the best match of each other" if self.pairs and self.pairs[0].mutual else "not the other way round"
            return f"the best match, by cosine, of {start}, {mutual}"
        count = np.count_nonzero(self.mutual)
        return f"the best {len(self.pairs)} of {count} mutual nearest neighbours, by cosine, with {self.image} on the left"


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Match each image with that of the anchor.

    Raises:
        NotAMapError: A vector, or a layer that the image of the anchor does not have.
    """
    anchor, reference = style.start, vectors_in(maps.ranges.shared).reference
    assert anchor
    if maps.vector or maps.picture is None:
        raise NotAMapError("is a vector, not a map")
    if reference is None or len(reference.maps) != maps.values.shape[1]:
        raise NotAMapError(f"{anchor.image} has no such map")
    own = averaged(maps.values)
    index, cosine, mutual = match(own, reference.maps)
    tensors = {"index": index.to(torch.int32), "cosine": cosine, "mutual": mutual}
    theirs, ours = reference.centres, maps.placed.averaged((own.shape[2], own.shape[3]))
    cell = theirs.cell(anchor.at) if anchor.at else None
    if cell:
        tensors["similar"] = cosines(own, direction_at(reference.maps[None], *cell))

    def make(
        index: NDArray[np.int32],
        cosine: NDArray[np.float32],
        mutual: NDArray[np.bool_],
        similar: NDArray[np.float32] | None = None,
    ) -> Matches:
        if cell is None or similar is None:
            pairs = choose_pairs(index, cosine, mutual, theirs=theirs, ours=ours)
        else:
            pairs = best_pair(similar, index, at=cell, theirs=theirs, ours=ours)
        return Matches(index, cosine, mutual, reference.image, reference.picture, theirs.grid, pairs)

    return BatchContent(make, tensors)


_LOWEST = 400  # pixels; lower pictures of matches are enlarged
_GAP = 12  # pixels between two pictures
_FINE = 2  # times as large are circles and lines drawn, then reduced
_CIRCLE, _TEXT = 9, 12  # radius and font size, pixels


def draw_matches(
    pairs: Sequence[Pair], other: NDArray[np.uint8], seen: NDArray[np.uint8], *, scale: int
) -> NDArray[np.uint8]:
    """Draw the other picture and this one side by side, with lines between what matches.

    Args:
        pairs: The matches.
        other: The other picture, uint8 `(H, W)` or `(H, W, 3)`.
        seen: This picture, likewise.
        scale: Size of a pixel; a multiple of it for small pictures.

    Returns:
        uint8 `(H', W', 3)`.
    """
    factor = scale * max(1, round(_LOWEST / max(len(seen), len(other))))
    left, right = (_enlarged(pixels, factor) for pixels in (other, seen))
    height, across = max(len(left), len(right)), left.shape[1] + _GAP
    page = np.full((height, across + right.shape[1], 3), 255, np.uint8)
    page[: len(left), : left.shape[1]] = left
    page[: len(right), across:] = right
    large = Image.fromarray(page.repeat(_FINE, 0).repeat(_FINE, 1))
    drawing = ImageDraw.Draw(large)
    ends = [(_at(pair.theirs, factor), _at(pair.ours, factor, across)) for pair in pairs]
    colours = _rank_colours(len(ends))
    for colour, (first, second), pair in zip(colours, ends, pairs, strict=True):
        width = 2 * _FINE if pair.mutual else _FINE
        drawing.line([first, second], (0, 0, 0), width + 2 * _FINE)
        drawing.line([first, second], colour, width)
    for number, (colour, points) in reversed([*enumerate(zip(colours, ends, strict=True), 1)]):
        for point in points:
            _draw_point(drawing, point, colour, str(number) if len(ends) > 1 else "")
    return np.asarray(large.reduce(_FINE))


def _enlarged(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    coloured = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, 2)
    size = coloured.shape[1] * factor, coloured.shape[0] * factor
    return np.asarray(Image.fromarray(coloured).resize(size, Image.Resampling.BILINEAR))


def _at(point: tuple[float, float], factor: int, across: int = 0) -> tuple[float, float]:
    return (point[1] * factor + across) * _FINE, point[0] * factor * _FINE


def _rank_colours(count: int) -> list[tuple[int, int, int]]:
    """Return the colours of matches, best to worst: red to blue without the dark ends; yellow for a single one."""
    levels = np.linspace(225, 30, count).round().astype(np.uint8) if count > 1 else np.array([150], np.uint8)
    return [(int(red), int(green), int(blue)) for red, green, blue in table("turbo")[levels[:count]]]


def _draw_point(drawing: ImageDraw.ImageDraw, point: tuple[float, float], colour: tuple[int, int, int], text: str) -> None:
    x, y = point
    radius = (_CIRCLE if text else _CIRCLE / 2) * _FINE
    drawing.ellipse((x - radius, y - radius, x + radius, y + radius), colour, (0, 0, 0), _FINE)
    red, green, blue = colour
    ink: Sequence[int] = (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 110 else (255, 255, 255)
    drawing.text(point, text, tuple(ink), _font(), anchor="mm")


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT * _FINE)
