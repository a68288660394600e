"""One labelled sheet with Grad-CAM of several layers, the rows, and several classes, the columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fmapviz.draw.facts import shape_of
from fmapviz.draw.heatmap import colormap_of, draw_heat_map
from fmapviz.draw.sheets import draw_sheet
from fmapviz.draw.text import with_glyphs

if TYPE_CHECKING:
    from fmapviz.draw.picture import Composed, Sheet


_ABSENT = {"boxes": "the box does not depend on this layer"}  # by the kind of the target
_UNDRAWN = "no map: see the notices"


def compose(sheet: Sheet) -> Composed:
    """Compose a table of layers and classes; see `fmapviz.views.base`."""
    cells, style = sheet.cells, sheet.style
    rows = {layer.layer: shape_of(layer) for layer, _ in cells}
    targets = {layer.target.label: layer.target for layer, _ in cells if layer.target}
    maps = {(layer.layer, layer.target.label): (heat, layer.centres) for layer, heat in cells if layer.target}
    named = [with_glyphs(target) for target in targets.values()]
    titles = Counter(target.title for target in named)
    columns = [
        f"{target.title}{f', {target.label}' if titles[target.title] > 1 else ''}\n{target.short}" for target in named
    ]
    pixels = draw_sheet(
        [
            [
                draw_heat_map(heat, sheet.seen.picture, style, centres) if heat else _ABSENT.get(target.kind, _UNDRAWN)
                for target, (heat, centres) in (
                    (each, maps.get((row, label), (None, None))) for label, each in targets.items()
                )
            ]
            for row in rows
        ],
        rows=[f"{row}\n{shape}" for row, shape in rows.items()],
        columns=columns,
        title=sheet.title,
        note="Grad-CAM of each layer (rows) for each class (columns), without negative values. "
        "Each cell is scaled from its minimum to its maximum.",
        corner=sheet.seen.picture,
    )
    chosen = " (chosen automatically)" if any(layer.automatic for layer, _ in cells) else ""
    facts = {
        "Rows": ", ".join(rows) + chosen,
        "Columns": "; ".join(map(str, targets.values())),
        "Scaling": "Grad-CAM, negative values zero, each cell from its smallest value to its largest: "
        f"{colormap_of(cells[0][1], style)}, {style.alpha:g} over the {'grey ' if style.gray_input else ''}input",
    }
    return pixels, facts
