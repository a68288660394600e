"""Draw effects of channels: bars, and the maps in the same order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from fmapviz.core.drawings import Rendered
from fmapviz.core.words import counted
from fmapviz.data import CustomContent
from fmapviz.draw import grid
from fmapviz.draw.facts import channel_facts, number
from fmapviz.draw.labels import number_tiles
from fmapviz.draw.layout import BLACK, Box, column, draw, picture, row
from fmapviz.draw.text import TextLine, Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.drawings import Tiles
    from fmapviz.data import LayerResult
    from fmapviz.features.trust.passes import Effects

# Pixels.
_ROW, _THUMB, _BARS, _VALUE = 28, 24, 200, 78
_GAP, _BETWEEN, _NARROWEST = 6, 20, 460
_SMALLEST_TILE = 24
_FEWEST, _MOST = 12, 40  # bars, if there are as many channels
_LISTED = 8  # channels whose effects are listed in words
_FALLS, _RISES, _ZERO = (240, 120, 60), (90, 150, 250), (150, 150, 150)
_STRONG, _TEXT, _DIM = Typeface(15, 235, 0.25), Typeface(12, 210), Typeface(12, 165)
_SWITCHED = {"zero": "set to zero", "mean": "replaced by its mean over this image"}


@dataclass(frozen=True, slots=True, eq=False)
class EffectsDrawn(CustomContent):
    """Content of a drawing: the channels of a layer, ordered by how much a class's score moves without each.

    Attributes:
        pixels: The maps in this order, uint8 `(H, W)` or `(H, W, 3)`.
        tiles: Position of the maps; None of a vector.
        order: The channels.
        found: The effects.
        off: What replaces the values of a channel: `zero`, `mean`, or in words.
    """

    pixels: NDArray[np.uint8]
    tiles: Tiles | None
    order: tuple[int, ...]
    found: Effects
    off: str

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """See `CustomContent`: the effects in the order of channels, then the unchanged score and the repeat spread."""
        found = self.found
        return {"": np.array(found.values, np.float32), ".score": np.array([found.score, found.spread], np.float32)}

    @property
    def record(self) -> Mapping[str, Any]:
        """See `CustomContent`."""
        found = self.found
        return {
            "effect": {
                "off": self.off,
                "score": found.score,
                "spread": found.spread,
                "computed": found.computed.name.lower(),
                "channels": list(self.order),
                "effects": [value if isfinite(value) else None for value in map(found.values.__getitem__, self.order)],
            }
        }

    def render(self, layer: LayerResult, _seen: NDArray[np.uint8], _style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(draw_effects(self, layer))

    def describe(self, layer: LayerResult, style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        found = self.found
        shown = (f"{channel}: {_signed(found.values[channel])}" for channel in self.order[:_LISTED])
        more = len(self.order) - _LISTED
        scaling = "bars from zero: the score without the channel minus the unchanged score"
        if self.tiles:
            scaling += (
                "; each map from its minimum to its maximum" if style.scope == "channel" else f"; maps by norm {style.norm}"
            )
        facts = {
            "Unchanged": f"score {number(found.score)}; repeat spread {number(found.spread)}",
            "Switched off": f"each channel, {_switched(self.off)}; {found.computed}",
            "Effects": ", ".join(shown) + (f", and {more} more" if more > 0 else ""),
        }
        return channel_facts(layer, scaling=scaling, nonfinite="drawn as a checkerboard", more=facts, channels=self.order)


def order_of(found: Effects) -> tuple[int, ...]:
    """Return the channels, those without which a box is lost first, then by magnitude, then those that are not finite.

    Example:
        >>> from fmapviz.features.trust.passes import Computed, Effects
        >>> order_of(Effects((0.5, -2.0, float("nan"), 0.5), 1.0, 0.0, Computed.BEHIND))
        (1, 0, 3, 2)
    """

    def moves(channel: int) -> float:
        value = abs(found.values[channel])
        return inf if channel in found.lost else value if isfinite(value) else -1

    return tuple(sorted(range(len(found.values)), key=moves, reverse=True))


def draw_ordered(found: Effects, maps: Tensor, style: Style, *, off: str, vector: bool) -> EffectsDrawn:
    """Draw the maps of a layer in the order of effects.

    Args:
        found: The effects.
        maps: Of one image, `(1, C, h, w)`.
        style: As of the view `maps`.
        off: What replaces the values of a channel.
        vector: Whether there are no rows and columns to draw.
    """
    order = order_of(found)
    if vector:
        return EffectsDrawn(np.zeros((0, 0), np.uint8), None, order, found, off)
    floats = grid.as_floats(maps)
    height, width = maps.shape[2:]
    style = replace(style, scale=max(style.scale, _SMALLEST_TILE // max(height, width)))
    chosen = torch.tensor([order], device=maps.device)
    shown, ranges = grid.take_channels(floats, grid.measure(floats), chosen)
    tiles = grid.lay_out(len(order), height, width, style)
    pixels = grid.draw_grids(shown, ranges, grid.scale_limits(ranges, style), tiles, style)
    return EffectsDrawn(pixels[0].cpu().numpy(), tiles, order, found, off)


def draw_effects(drawn: EffectsDrawn, layer: LayerResult) -> NDArray[np.uint8]:
    """Draw bars of the channels that matter most, beside the maps of all channels in the same order.

    Returns:
        uint8 `(H, W, 3)`.
    """
    grid_box = Box(0, 0)
    if drawn.tiles:
        numbered, _ = number_tiles(drawn.pixels, drawn.tiles, drawn.order)
        grid_box = picture(numbered)
    count = min(len(drawn.order), max(_FEWEST, min(_MOST, grid_box.height // _ROW)))
    chart = _lay_out_bars(drawn, count)
    below = row([chart, grid_box], gap=_BETWEEN)
    width = max(below.width, _NARROWEST)
    lines = [set_lines(wrap(text, face, width, lines=3)) for text, face in _heading(drawn, layer)]
    title = layer.target.title if layer.target else "the class"
    legend = [
        _entry(_FALLS, f"the score falls without the channel: it speaks for {title}", width),
        _entry(_RISES, f"the score rises without it: it speaks against {title}", width),
    ]
    notes = [set_lines(wrap(text, _DIM, width, lines=3)) for text in _remarks(drawn, count)]
    page = column([*lines, *legend, Box(0, _GAP), below, Box(0, _GAP), *notes])
    return draw(page.within(max(width, page.width), page.height, x=0).padded(_GAP), BLACK, colour=True)


def _heading(drawn: EffectsDrawn, layer: LayerResult) -> Iterator[tuple[str, Typeface]]:
    of = f": what each channel does for {layer.target.full_title}" if layer.target else ""
    yield f"{layer.layer}  {layer.type}{of}", _STRONG
    score = number(drawn.found.score)
    yield f"unchanged score {score}; a bar is the score with the channel {_switched(drawn.off)}, minus {score}", _TEXT


def _remarks(drawn: EffectsDrawn, count: int) -> Iterator[str]:
    found, rest = drawn.found, drawn.order[count:]
    if rest:
        moves = [abs(found.values[channel]) for channel in rest if isfinite(found.values[channel])]
        most = f" move the score by at most {number(max(moves))} each" if moves else " have no finite score"
        yield f"bars: {count} of {counted(len(drawn.order), 'channel')}; the other {len(rest)}{most}"
    if drawn.tiles:
        yield "maps: all channels in the same order, row by row"
    yield f"{found.computed}; repeat spread {number(found.spread)}, rounding below {found.rounding:.1g}"


def _switched(off: str) -> str:
    return _SWITCHED.get(off, f"replaced by its {off}")


def _entry(colour: tuple[int, int, int], text: str, width: int) -> Box:
    line = set_lines(wrap(text, _DIM, width - 18))
    square = picture(np.full((10, 10, 3), colour, np.uint8))
    return row([square.within(12, line.height), line], gap=_GAP)


def _lay_out_bars(drawn: EffectsDrawn, count: int) -> Box:
    """Lay out a row for each channel: its number, its map, its bar and its effect."""
    found, shown = drawn.found, drawn.order[:count]
    finite = [found.values[channel] for channel in shown if isfinite(found.values[channel])]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    span = (high - low) or 1.0
    wide = _TEXT.width(str(max(drawn.order)))
    left = wide + _GAP + (_THUMB + _GAP if drawn.tiles else 0)
    zero = left + round(-low / span * _BARS)
    bars = np.zeros((count * _ROW, left + _BARS + 1, 3), np.uint8)
    parts: list[tuple[Any, int, int]] = [(bars, 0, 0)]
    middle = (_ROW - _TEXT.leading) // 2
    for at, channel in enumerate(shown):
        top, value = at * _ROW, found.values[channel]
        if drawn.tiles:
            parts.append((_thumb(drawn.pixels, drawn.tiles, at), wide + _GAP, top + (_ROW - _THUMB) // 2))
        if isfinite(value):
            end = left + round((value - low) / span * _BARS)
            colour = _FALLS if value < 0 else _RISES
            bars[top + 5 : top + _ROW - 5, min(zero, end) : max(zero, end)] = colour
        text = "box lost" if channel in found.lost else _signed(value)
        parts.append((TextLine(str(channel), _TEXT, wide, 1.0), 0, top + middle))
        parts.append((TextLine(text, _TEXT, _VALUE, 0.0), left + _BARS + _GAP, top + middle))
    bars[:, zero] = _ZERO
    return Box(left + _BARS + _GAP + _VALUE, count * _ROW, parts)


def _thumb(pixels: NDArray[np.uint8], tiles: Tiles, at: int) -> NDArray[np.uint8]:
    left, top = tiles.corner(at)
    own = Image.fromarray(pixels[top : top + tiles.height, left : left + tiles.width])
    way = Image.Resampling.NEAREST if max(own.size) <= _THUMB else Image.Resampling.BOX
    return np.asarray(own.resize((_THUMB, _THUMB), way))


def _signed(value: float) -> str:
    return f"{value:+#.3g}" if value else "0"
