"""Turn heat maps into pictures: lay them over the input, name them, put them on a sheet, and say what they show."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.colors import checkerboard, overlay, table
from fmapviz.contact_sheets import Cell, draw_contact
from fmapviz.framing import frame
from fmapviz.heat import nearest
from fmapviz.sheets import draw_sheet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.options import Style
    from fmapviz.values import Drawn, HeatMap, ImageFile, RunInfo, Target

SHEET, CONTACT = "sheet", "contact"  # the views whose maps are one picture
_NAMED = 4  # empty cells, and layers with values that are not finite, named at most


@dataclass(frozen=True, slots=True, eq=False)
class HeatPicture:
    """A picture that is not yet encoded; the fields are those of `fmapviz.values.Picture`."""

    view: str
    name: str
    title: str
    pixels: NDArray[np.uint8]
    facts: Mapping[str, str]
    source: HeatMap | None = None


def draw_heats(
    drawn: Drawn, seen: NDArray[np.uint8], file: ImageFile, info: RunInfo, *, digits: int
) -> Iterator[HeatPicture]:
    """Draw one image's heat maps.

    Args:
        drawn: What was found of it.
        seen: What the network was given, uint8 `(H, W)` or `(H, W, 3)`.
        file: Which image.
        info: The run's settings.
        digits: Of the numbers in names.

    Yields:
        One picture for each map, and at the end one for the maps of each kind of sheet.
    """
    cells: dict[str, list[HeatMap]] = {SHEET: [], CONTACT: []}
    for heat in drawn.heats:
        if heat.view in cells:
            cells[heat.view].append(heat)
            continue
        name, title = name_and_title(f"{heat.index:0{digits}d} {heat.layer or 'input'}", heat.target)
        facts = _facts(heat, info.style)
        yield HeatPicture(heat.view, name, title, _framed(heat, seen, info, facts), facts, heat)
    if maps := cells[SHEET]:
        yield HeatPicture(SHEET, SHEET, "", _sheet(maps, seen, file, info, drawn), _sheet_facts(maps, info.style))
    if maps := cells[CONTACT]:
        shows = "the input and the mean of each layer's channels"
        facts = {"Shows": shows, "Layers": str(len(maps)), "Scaling": _CELLS[info.style.norm.partition(":")[0]]}
        facts |= _left_out_of(maps)
        yield HeatPicture(CONTACT, CONTACT, "", _contact(maps, seen, file, info), facts)


def header(facts: Mapping[str, str], view: str, info: RunInfo) -> list[str]:
    """Give the lines above a picture: layer, type, shape; what is shown, its range and scaling; what is not; the model."""
    layer = "  ".join(facts[key] for key in ("Layer", "Type", "Shape") if key in facts)
    shown = [*([] if view == "maps" else [view]), *(facts[key] for key in ("Class", "Range") if key in facts)]
    return [layer, ": ".join(shown), facts["Scaling"], facts.get("Not finite", ""), info.label]


def heat_records(drawn: Drawn) -> list[dict[str, Any]]:
    """Describe each heat map for `unit.json`, in plain JSON values."""
    return [
        {
            "view": heat.view,
            "layer": heat.layer or None,
            "type": heat.type or None,
            "shape": list(heat.shape),
            "automatic": heat.automatic,
            **(heat.target.record if heat.target else {}),
            **_ends_of_record(heat),
        }
        for heat in drawn.heats
    ]


def zero_notices(drawn: Drawn) -> list[str]:
    """Say which heat maps are empty: that is a result, but one that looks like a failure."""
    odd = [heat for heat in drawn.heats if not heat.reduced and (heat.empty or not _is_finite(heat))]
    notices = [f"{_called(heat)} is {_emptiness(heat)} (raw values {_range(heat)})" for heat in odd if heat.view != SHEET]
    cells = [f"{heat.layer} for {heat.target.title}" for heat in odd if heat.view == SHEET and heat.target]
    if cells:
        more = f" and {len(cells) - _NAMED} more" if len(cells) > _NAMED else ""
        notices.append(f"cells of the sheet with nothing to see: {', '.join(cells[:_NAMED])}{more}")
    if len(notices) > _NAMED:
        notices[_NAMED:] = [f"{len(notices) - _NAMED} more such heat maps"]
    return notices


def name_and_title(place: str, target: Target | None) -> tuple[str, str]:
    """Name a picture of a place, alike for all images, and say what people are told that it is."""
    return (f"{place}.{target.label}", f"{place}: {target.title}") if target else (place, "")


def said_of(target: Target) -> str:
    """Say in one phrase which class it is and how strongly it is seen."""
    number = f" (number {target.index})" if target.name else ""
    return f"{target.title}{number}, {target.label}, score {target.score:.4g}"


def _ends_of_record(heat: HeatMap) -> dict[str, Any]:
    values = _looked_at(heat)
    low, high = (float(values.min()), float(values.max())) if values.size else (nan, nan)
    ends = {"min": low if isfinite(low) else None, "max": high if isfinite(high) else None}
    if heat.reduced:
        return {**ends, "nonfinite": heat.nonfinite, "nonfinite_places": _broken(heat)}
    return ends


def _looked_at(heat: HeatMap) -> NDArray[np.float32]:
    """Give the values that a heat map's range is told of: of channels put together those that are finite."""
    return heat.raw[np.isfinite(heat.raw)] if heat.reduced else heat.raw


def _broken(heat: HeatMap) -> int:
    """Count the places that are not finite."""
    return heat.raw.size - int(np.isfinite(heat.raw).sum())


def _emptiness(heat: HeatMap) -> str:
    if not _is_finite(heat):
        return "not finite: NaN and infinite values are drawn as zero"
    if not heat.raw.any():
        return "zero everywhere: so is the gradient of the class score, or what the layer returned"
    return "the same everywhere" if (heat.raw > 0).any() else "zero everywhere: nothing there speaks for the class"


def _is_finite(heat: HeatMap) -> bool:
    return bool(np.isfinite(heat.raw).all())


def _called(heat: HeatMap) -> str:
    of = f" of {heat.layer}" if heat.layer else ""
    return f"{heat.view}{of}" + (f" for {heat.target.title}" if heat.target else "")


def _range(heat: HeatMap) -> str:
    values = _looked_at(heat)
    return f"{values.min():.4g} to {values.max():.4g}" if values.size else "no finite value"


def _pixels(heat: HeatMap, seen: NDArray[np.uint8], style: Style) -> NDArray[np.uint8]:
    colormap = _colormap(heat, style)
    if heat.over:
        return _marked(overlay(seen, heat.pixels, colormap=colormap, alpha=style.alpha), heat)
    return _marked(heat.pixels if colormap == "gray" else table(colormap)[heat.pixels], heat)


def _marked(pixels: NDArray[np.uint8], heat: HeatMap) -> NDArray[np.uint8]:
    """Draw a checkerboard where the nearest value of channels put together is not finite."""
    if not heat.reduced or _is_finite(heat):
        return pixels
    rows, columns = (nearest(*sides).numpy() for sides in zip(heat.raw.shape, pixels.shape[:2], strict=True))
    finite = np.isfinite(heat.raw)[rows[:, None], columns]
    board = checkerboard(*finite.shape).numpy()
    if pixels.ndim == 3:
        return np.where(finite[..., None], pixels, board[..., None])
    return np.where(finite, pixels, board)


def _colormap(heat: HeatMap, style: Style) -> str:
    if style.colormap:
        return style.colormap
    if heat.reduced and style.norm == "signed":
        return "coolwarm"
    if heat.view == CONTACT:
        return "viridis"
    return "turbo" if heat.over else "gray"


def _framed(heat: HeatMap, seen: NDArray[np.uint8], info: RunInfo, facts: Mapping[str, str]) -> NDArray[np.uint8]:
    colormap = _colormap(heat, info.style)
    low, high = _ends(heat)
    pixels, _ = frame(
        _pixels(heat, seen, info.style),
        info.style,
        lines=header(facts, heat.view, info),
        colormap=None if colormap == "gray" else colormap,
        marks=((0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")) if isfinite(low + high) else (),
    )
    return pixels


def _ends(heat: HeatMap) -> tuple[float, float]:
    """Say what the ends of the scale stand for."""
    return heat.limits or (max(float(heat.raw.min()), 0.0), max(float(heat.raw.max()), 0.0))


def _facts(heat: HeatMap, style: Style) -> dict[str, str]:
    chosen = " (chosen automatically)" if heat.automatic else ""
    layer = {"Layer": f"{heat.layer}{chosen}", "Type": heat.type} if heat.layer else {}
    colormap = _colormap(heat, style).replace("gray", "grey")
    shown = f"{colormap}, {style.alpha:g} over the input" if heat.over else colormap
    scaling = f"negative values are zero, then from the smallest to the largest: {shown}"
    if heat.reduced:
        low, high = _ends(heat)
        whose = ", the range of all images of the run" if style.norm == "run" else ""
        scaling = f"{low:.4g} to {high:.4g}{whose}: {shown}" if isfinite(low + high) else f"no finite value: {shown}"
    return {
        **layer,
        "Shape": " x ".join(map(str, heat.shape)),
        **({"Class": said_of(heat.target)} if heat.target else {}),
        "Range": _range(heat),
        "Scaling": _emptiness(heat) if not heat.reduced and (heat.empty or not _is_finite(heat)) else scaling,
        **_left_out(heat),
    }


def _left_out(heat: HeatMap) -> dict[str, str]:
    """Say how many values of the channels took no part, and at how many places there was no other."""
    if not heat.nonfinite:
        return {}
    said = f"{heat.nonfinite} values are NaN or infinite and take no part"
    if broken := _broken(heat):
        said += f"; {broken} of {heat.raw.size} places, where there is no other, are drawn as a checkerboard"
    return {"Not finite": said}


def _left_out_of(cells: Sequence[HeatMap]) -> dict[str, str]:
    """Say the same of the layers of a sheet."""
    told = [
        f"{heat.layer}: {heat.nonfinite} values, no other at {_broken(heat)} of {heat.raw.size} places"
        for heat in cells
        if heat.nonfinite
    ]
    if len(told) > _NAMED:
        told[_NAMED:] = [f"{len(told) - _NAMED} more layers"]
    return (
        {"Not finite": f"take no part, drawn as a checkerboard where there is no other; {'; '.join(told)}"} if told else {}
    )


def _sheet(
    cells: Sequence[HeatMap], seen: NDArray[np.uint8], file: ImageFile, info: RunInfo, drawn: Drawn
) -> NDArray[np.uint8]:
    rows = list(dict.fromkeys(heat.layer for heat in cells))
    targets = {heat.target.label: heat.target for heat in cells if heat.target}
    found = {(heat.layer, heat.target.label): heat for heat in cells if heat.target}
    shapes = {heat.layer: " x ".join(map(str, heat.shape)) for heat in cells}
    shares = {each.index: str(each).removeprefix(each.name).strip() for each in drawn.predictions}
    if not all(target.index in shares for target in targets.values()):
        shares = {}  # one unit for all
    return draw_sheet(
        [
            [
                _pixels(found[row, label], seen, info.style) if (row, label) in found else "no map: see the notices"
                for label in targets
            ]
            for row in rows
        ],
        rows=[f"{row}\n{shapes[row]}" for row in rows],
        columns=[
            f"{target.title}\n{shares.get(target.index) or f'score {target.score:.4g}'}" for target in targets.values()
        ],
        title=f"{info.label}: {file.unit}",
        note="Grad-CAM: where each layer speaks for each class. Each cell reaches from its smallest value to its largest.",
        corner=seen,
    )


_CELLS = {
    "channel": "from its smallest value to its largest",
    "layer": "from its smallest value to its largest",
    "run": "from its smallest value in all images of the run to its largest",
    "signed": "zero in the middle, its largest magnitude at an end",
    "fixed": "the same two values at the ends of every scale",
}


def _contact(cells: Sequence[HeatMap], seen: NDArray[np.uint8], file: ImageFile, info: RunInfo) -> NDArray[np.uint8]:
    colours = table(_colormap(cells[0], info.style))
    layers = [Cell(_marked(colours[heat.pixels], heat), heat.layer, " x ".join(map(str, heat.shape))) for heat in cells]
    board = "" if all(map(_is_finite, cells)) else " Where no channel has a finite value there is a checkerboard."
    return draw_contact(
        seen,
        layers,
        title=f"{info.label}: {file.unit}",
        note=f"Of each layer the mean of all its channels, {_CELLS[info.style.norm.partition(':')[0]]}.{board}",
    )


def _sheet_facts(cells: Sequence[HeatMap], style: Style) -> dict[str, str]:
    chosen = " (chosen automatically)" if any(heat.automatic for heat in cells) else ""
    targets = {heat.target.label: heat.target for heat in cells if heat.target}
    return {
        "Rows": ", ".join(dict.fromkeys(heat.layer for heat in cells)) + chosen,
        "Columns": "; ".join(map(said_of, targets.values())),
        "Scaling": "Grad-CAM, negative values zero, each cell from its smallest value to its largest: "
        f"{_colormap(cells[0], style)}, {style.alpha:g} over the input",
    }
