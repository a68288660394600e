"""Draw what is found of the maps of an image: the maps above, the curves below, one colour for each method."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.draw.facts import number
from fmapviz.draw.heatmap import gray_of, overlay
from fmapviz.draw.layout import WHITE, Box, column, draw, picture, row
from fmapviz.draw.text import TextLine, Typeface, set_lines, wrap
from fmapviz.features.trust.judgement import remarks, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.data import LayerResult
    from fmapviz.features.trust.judgement import JudgedMethod, Judgement

# By their numbers, as Okabe and Ito chose them for people who see few colours, without black and yellow.
COLOURS = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (120, 60, 20), (90, 90, 200),
    (150, 150, 0), (200, 30, 60), (0, 110, 90), (130, 0, 130), (100, 100, 100),
)  # fmt: skip
_CHANCE, _CHANCE_LINE, _AXIS = (225, 225, 225), (150, 150, 150), (120, 120, 120)
# Pixels.
_TILE, _CHART, _CHART_HEIGHT, _GAP, _MARGIN, _STRIPE = 168, 372, 220, 14, 24, 6
_CELL = 58  # of the table of agreement
_ACROSS = 6  # maps in a row
_OVERSAMPLING = 3
_INK, _GREY = 20, 105
_TITLE, _STRONG = Typeface(18, _INK, 0.25), Typeface(14, _INK, 0.25)
_TEXT, _DIM = Typeface(12, _INK), Typeface(12, _GREY)


@dataclass(frozen=True, slots=True, eq=False)
class TrustDrawn(CustomContent):
    """Content of a drawing: the methods of one image and one class, judged.

    Attributes:
        pixels: The maps of the methods, each uint8 `(H, W)`.
        judgement: What was found.
    """

    pixels: tuple[NDArray[np.uint8], ...]
    judgement: Judgement

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """See `CustomContent`: the curves of the methods, then of random orders, and the agreement of the methods."""
        found = self.judgement
        curves = [*(each.curve for each in found.methods), *found.chance]
        return {
            ".shares": np.stack([each.shares for each in curves]).astype(np.float32),
            ".deletion": np.stack([each.deletion for each in curves]).astype(np.float32),
            ".insertion": np.stack([each.insertion for each in curves]).astype(np.float32),
            ".agreement": found.agreement.astype(np.float32),
        }

    def render(self, layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(draw_trust(self, layer, seen, style), has_input=True)

    def describe(self, _layer: LayerResult, _style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        found = self.judgement
        facts: dict[str, str | None] = {each.name: "; ".join(_facts(each, found)) for each in found.methods}
        return facts | {
            "Curves": f"{found.measure} {number(found.whole)} in the image, {number(found.blurred)} in the blurred one; "
            f"{len(found.chance)} random orders of the same cells",
            "Remarks": " ".join(remarks(found)) or None,
            "Scaling": "maps from zero to their maximum; curves of one scale",
        }


def _facts(method: JudgedMethod, judgement: Judgement) -> list[str]:
    """Return the numbers of a method, in words."""
    return [
        f"deletion {method.curve.deletion_area:.3f}",
        f"insertion {method.curve.insertion_area:.3f}",
        verdict(method, judgement.chance),
        f"last layer random {in_two_digits(method.last.correlation)}",
        f"all random {in_two_digits(method.all.correlation)}",
    ]


def in_two_digits(correlation: float) -> str:
    """Return a correlation as text, cut so that only 1 itself is written as 1.

    Example:
        >>> in_two_digits(0.999), in_two_digits(1.0), in_two_digits(float("nan"))
        ('0.99', '1.00', '?')
    """
    return "?" if isnan(correlation) else f"{int(correlation * 100) / 100:.2f}"


def draw_trust(drawn: TrustDrawn, layer: LayerResult, seen: NDArray[np.uint8], style: Style) -> NDArray[np.uint8]:
    """Draw a sheet.

    Returns:
        uint8 `(H, W, 3)`, dark on white.
    """
    found = drawn.judgement
    below = gray_of(seen) if style.gray_input and seen.ndim == 3 else seen
    tiles = [_tile(seen, ["input", f"{found.measure} {number(found.whole)}", f"blurred {number(found.blurred)}"], None)]
    for at, (method, heat) in enumerate(zip(found.methods, drawn.pixels, strict=True)):
        shown = overlay(below, heat, colormap=style.colormap or HEAT_COLORMAP, alpha=style.alpha)
        name = [method.view, *([f"of {method.layer}"] if method.layer else [])]
        tiles.append(_tile(shown, [*name, *_facts(method, found)], colour_of(at), strong=1))
    across = min(_ACROSS, len(tiles))
    maps = column([row(tiles[at : at + across], gap=_GAP) for at in range(0, len(tiles), across)], gap=_GAP)
    charts = [_draw_chart(found, kind) for kind in ("deletion", "insertion")]
    width = max(maps.width, sum(chart.width for chart in charts) + _GAP)
    title = f"trust: {layer.target.caption}" if layer.target else "trust"
    notes = [
        "deletion, the area under the curve: lower is better; insertion: higher is better; grey: the range of "
        f"{len(found.chance)} random orders. Random: rank correlation with the map of the same network with random weights"
        f"{f', the last layer is {found.last_layer}' if found.last_layer else ''}. None of it says that a map is true.",
        *remarks(found),
    ]
    page = [
        set_lines(wrap(title, _TITLE, width, lines=2)),
        maps,
        row(charts, gap=_GAP),
        _draw_agreement(found, width),
        column([set_lines(wrap(note, _DIM, width, lines=4)) for note in notes], gap=4),
    ]
    return draw(column(page, gap=_GAP).padded(_MARGIN), WHITE, colour=True)


def colour_of(method: int) -> tuple[int, int, int]:
    """Return the colour of a method by its number."""
    return COLOURS[method % len(COLOURS)]


def _tile(pixels: NDArray[np.uint8], lines: Sequence[str], colour: tuple[int, int, int] | None, *, strong: int = 1) -> Box:
    """Lay out a map above its numbers, below a stripe in the colour of its method."""
    height, width = pixels.shape[:2]
    factor = _TILE / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    shown = picture(np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)))
    stripe = picture(np.full((_STRIPE, _TILE, 3), colour or (WHITE, WHITE, WHITE), np.uint8))
    words = [
        set_lines(wrap(text, _STRONG if at < strong else _TEXT, _TILE, lines=2)) for at, text in enumerate(lines) if text
    ]
    return column([stripe, shown.within(_TILE, shown.height), Box(_TILE, 2), *words])


def _draw_chart(found: Judgement, kind: str) -> Box:
    """Draw the curves of one kind over the range of random orders."""
    curves = [getattr(each.curve, kind) for each in found.methods]
    random = np.stack([getattr(each, kind) for each in found.chance])
    low = min(0.0, float(random.min()), *(float(each.min()) for each in curves))
    high = max(0.0, float(random.max()), *(float(each.max()) for each in curves))
    span = (high - low) or 1.0
    labels = 48
    size = ((_CHART - labels) * _OVERSAMPLING, _CHART_HEIGHT * _OVERSAMPLING)
    area = Image.new("RGB", size, (WHITE, WHITE, WHITE))
    pen = ImageDraw.Draw(area)

    def points(shares: NDArray[np.float64], values: NDArray[np.float64]) -> list[tuple[float, float]]:
        across, down = shares * (size[0] - 1), (high - values) / span * (size[1] - 1)
        return list(zip(across.tolist(), down.tolist(), strict=True))

    shares = np.mean([each.shares for each in found.chance], 0)
    pen.polygon(points(shares, random.max(0)) + points(shares, random.min(0))[::-1], fill=_CHANCE)
    pen.line(points(shares, random.mean(0)), _CHANCE_LINE, _OVERSAMPLING)
    for at, (method, values) in enumerate(zip(found.methods, curves, strict=True)):
        pen.line(points(method.curve.shares, values), colour_of(at), 2 * _OVERSAMPLING, joint="curve")
    pen.rectangle((0, 0, size[0] - 1, size[1] - 1), outline=_AXIS, width=_OVERSAMPLING)
    chart = np.asarray(area.resize((_CHART - labels, _CHART_HEIGHT), Image.Resampling.BOX))
    parts: list[tuple[Any, int, int]] = [(chart, labels, 0)]
    for text, top in ((f"{high:.3g}", 0), (f"{low:.3g}", _CHART_HEIGHT - _DIM.leading)):
        parts.append((TextLine(text, _DIM, labels - 6, 1.0), 0, top))
    head = set_lines(wrap(f"{found.measure} while the highest cells are {_DONE[kind]}", _STRONG, _CHART, lines=2))
    axis = [set_lines(wrap(text, _DIM, 200)) for text in ("0 %", "of the image", "100 %")]
    inner = _CHART - labels
    below = Box(
        _CHART,
        axis[0].height,
        [(axis[0], labels, 0), (axis[1], labels + (inner - axis[1].width) // 2, 0), (axis[2], _CHART - axis[2].width, 0)],
    )
    return column([head, Box(_CHART, 2), Box(_CHART, _CHART_HEIGHT, parts), below])


_DONE = {"deletion": "removed (deletion)", "insertion": "revealed (insertion)"}


def _draw_agreement(found: Judgement, width: int) -> Box:
    """Draw the table of rank correlations between methods; nothing of a single method."""
    count = len(found.methods)
    if count < 2:
        return Box(0, 0)
    aside = min(260, max(_TEXT.width(each.name) for each in found.methods) + 22)
    shown = min(count, max(1, (width - aside) // _CELL))
    square = [picture(np.full((10, 10, 3), colour_of(at), np.uint8)) for at in range(count)]
    head = row([Box(aside, 12), *(square[at].within(_CELL, 14, x=1) for at in range(shown))])
    lines = []
    for at, method in enumerate(found.methods):
        name = set_lines(wrap(method.name, _TEXT, aside - 22))
        cells = [_number(in_two_digits(found.agreement[at, other])) for other in range(shown)]
        lines.append(row([square[at].within(18, name.height, x=0), name.within(aside - 18, name.height, x=0), *cells]))
    title = set_lines(wrap("agreement: rank correlation of the maps", _STRONG, width))
    return column([title, head, *lines], gap=2)


def _number(text: str) -> Box:
    line = set_lines(wrap(text, _TEXT, _CELL))
    return line.within(_CELL, line.height, x=1)
