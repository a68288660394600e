"""One labelled sheet with the input and the channel mean of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.draw.facts import first_of, shape_of
from fmapviz.draw.heatmap import draw_heat_map
from fmapviz.draw.sheets import draw_contact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.draw.picture import Cell, Composed, Sheet

_SCALINGS = {
    "channel": "from its smallest value to its largest",
    "layer": "from its smallest value to its largest",
    "run": "from its smallest value in all images of the run to its largest",
    "signed": "zero in the middle, its largest magnitude at an end",
    "signed-layer": "zero in the middle, its largest magnitude at an end",
    "signed-run": "zero in the middle, its largest magnitude in all images of the run at an end",
    "fixed": "the same two values at the ends of every scale",
}


def compose(sheet: Sheet) -> Composed:
    """Compose the input and the map of each layer; see `fmapviz.views.base`."""
    cells, style = sheet.cells, sheet.style
    scaling = _SCALINGS[style.norm.partition(":")[0]]
    tiles = [(draw_heat_map(heat, sheet.seen.at(layer.frame), style), layer.layer, shape_of(layer)) for layer, heat in cells]
    finite = all(heat.finite.all() for _, heat in cells)
    board = "" if finite else " Where no channel has a finite value there is a checkerboard."
    note = f"Of each layer the mean of all its channels, {scaling}.{board}"
    facts = {"Shows": "the input and the mean of each layer's channels", "Layers": str(len(cells)), "Scaling": scaling}
    return draw_contact(sheet.seen.picture, tiles, title=sheet.title, note=note), facts | _nonfinite_facts(cells)


def _nonfinite_facts(cells: Sequence[Cell]) -> dict[str, str]:
    layers = [
        f"{layer.layer}: {heat.nonfinite} values, no other at {heat.raw.size - heat.finite.sum()} of {heat.raw.size} places"
        for layer, heat in cells
        if heat.nonfinite
    ]
    named = "; ".join(first_of(layers, "layers"))
    return {"Not finite": f"take no part, drawn as a checkerboard where there is no other; {named}"} if layers else {}
