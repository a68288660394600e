"""Draw the CKA of all layers of two networks with each other, over all images, as a matrix."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.file_names import ALIGNMENT, STEP
from fmapviz.data import Picture
from fmapviz.draw.colormaps import colorize
from fmapviz.draw.labels import add_colorbar
from fmapviz.draw.layout import BLACK, Box, column, draw, picture, row
from fmapviz.draw.png import encode
from fmapviz.draw.text import Typeface, set_lines, wrap
from fmapviz.events import Notice
from fmapviz.features.diff import aggregate as differences
from fmapviz.features.diff.cka import LEAST
from fmapviz.run.load import needs_of
from fmapviz.run.model_views import KIND, UNIT
from fmapviz.run.session import Stage
from fmapviz.run.units import write_unit
from fmapviz.store import run_files
from fmapviz.store.aggregates import base
from fmapviz.store.unit import find_done
from fmapviz.store.unit_key import UnitKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fmapviz.events import Event, RunSummary
    from fmapviz.run.session import Session
    from fmapviz.store.unit_key import Version


_MEANING = (
    "linear CKA with the unbiased estimator of HSIC (Song et al., 2012): samples are {images} images, features are means of "
    "channels; 1 is the same up to rotation and scale, 0 is unrelated"
)
_TITLE, _SIDE, _NOTE, _NAME = Typeface(15, 235, 0.25), Typeface(13, 200), Typeface(12, 165), Typeface(11, 200)
_MARGIN, _GAP = 12, 6  # pixels
_LARGEST, _SMALLEST = 40, 6  # sides of a cell
_WIDE = 900  # about the side of the whole matrix
_ROOM = 180  # the widest name
_COLORS = "viridis"
_UNKNOWN = 60  # grey level of a cell without a number


class AlignmentStage(Stage):
    """Draws the alignment of two networks when their images are drawn, and reports how they differ.

    Args:
        names: Labels of the networks.
        at: The step of a series in the version of its units; empty: there is none.
    """

    def __init__(self, names: tuple[str, str], at: Version = MappingProxyType({})) -> None:
        self._names, self._at = names, at

    def after(self, session: Session, on_event: Callable[[Event], None]) -> int:  # noqa: ARG002
        """Draw the alignment, unless that is done; return the number of pictures written."""
        run, info, step = session.directory, session.info, int(self._at["step"]) if self._at else None
        if not any("pictures" in needs_of(form) for form in session.writers):
            return 0
        own_name = UNIT if step is None else STEP.format(step)
        units = [unit for unit in run_files.find_units(run) if unit.relative_to(run).parts[0] != UNIT]
        known, _ = base.gather(differences, (unit for unit in units if step is None or unit.name == own_name))
        images = sorted(image for _, image, own in known.units if own == step)
        state = hashlib.sha256("\n".join(images).encode("utf-8", "surrogatepass")).hexdigest()
        place = UNIT if step is None else f"{UNIT}/{own_name}"
        key = UnitKey(KIND, f"model:{info.label}", place, {"images": len(images), "names": state, **self._at})
        if not session.config.force and find_done(run, key, info.fingerprint):
            return 0
        found = differences.align(known, step)
        if found is None:
            return 0
        rows, columns, matrix = found
        meaning, sides = _MEANING.format(images=len(images)), (f"A: {self._names[0]}", f"B: {self._names[1]}")
        pixels = draw_matrix(matrix, rows, columns, sides=sides, title="CKA", note=meaning)
        diagonal = [float(matrix[rows.index(name), columns.index(name)]) for name in rows if name in columns]
        usual = [value for value in diagonal if isfinite(value)]
        facts = {
            "Shows": meaning,
            "A": self._names[0],
            "B": self._names[1],
            **({"Layers of one name": f"{min(usual):.3f} to {max(usual):.3f}"} if usual else {}),
        }
        picture = Picture(ALIGNMENT, ALIGNMENT, encode(pixels, facts), pixels.shape[1], pixels.shape[0], facts)
        write_unit(session, key, [picture])
        return 1

    def report(self, session: Session, summary: RunSummary, on_event: Callable[[Event], None]) -> RunSummary:  # noqa: ARG002
        """Report the results as notices, not as the results of the command."""
        compared = summary.done + summary.skipped
        if not self._at and 0 < compared < LEAST:
            on_event(Notice(f"no CKA: it needs {LEAST} images"))
        for line in summary.highlights if compared else ():
            on_event(Notice(line))
        return replace(summary, highlights=())


def draw_matrix(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    sides: tuple[str, str],
    title: str,
    note: str = "",
) -> NDArray[np.uint8]:
    """Draw a matrix.

    Args:
        values: `(R, C)`, 0 to 1; others are drawn as the nearest of these, NaN in grey.
        rows: R names, from top to bottom.
        columns: C names, from left to right.
        sides: Labels of rows and of columns.
        title: Text above.
        note: Small print below.

    Returns:
        uint8 `(H, W, 3)`.

    Example:
        >>> draw_matrix(np.eye(2), ["a", "b"], ["a", "b"], sides=("A", "B"), title="CKA").ndim
        3
    """
    cell = max(_SMALLEST, min(_LARGEST, _WIDE // max(1, *values.shape)))
    levels = (np.nan_to_num(values.clip(0, 1)) * 255 + 0.5).astype(np.uint8)
    colours = colorize(torch.from_numpy(levels), _COLORS).numpy().copy()
    colours[np.isnan(values)] = _UNKNOWN
    cells = colours.repeat(cell, 0).repeat(cell, 1)
    beside = _names(rows, cell)
    above = picture(np.ascontiguousarray(np.rot90(draw(_names(columns, cell, x=0), BLACK))))  # read from below
    body = row([beside, Box(_GAP, 0), picture(cells)])
    head = row([Box(beside.width + _GAP, above.height), above])
    across = set_lines(wrap(f"columns: {sides[1]}", _SIDE, max(320, body.width), lines=2))
    down = set_lines(wrap(f"rows: {sides[0]}", _SIDE, max(320, body.width), lines=2))
    heading = set_lines(wrap(title, _TITLE, max(320, body.width), lines=2))
    table = draw(column([head, Box(1, _GAP), body]), BLACK, colour=True)
    table = draw(add_colorbar(picture(table), colormap=_COLORS, marks=[(0.0, "0"), (0.5, "0.5"), (1.0, "1")]), BLACK)
    below = set_lines(wrap(note, _NOTE, max(320, table.shape[1]), lines=4))
    return draw(column([heading, down, across, picture(table), below], gap=_GAP).padded(_MARGIN), BLACK, colour=True)


def _names(names: Sequence[str], cell: int, *, x: int = 1) -> Box:
    """Return names below each other beside their cells, left (0) or right (1) aligned; every k-th where cells are low."""
    every = -(-_NAME.leading // cell)
    texts = {at: set_lines(wrap(names[at], _NAME, _ROOM)) for at in range(0, len(names), every)}
    width = max((text.width for text in texts.values()), default=0)
    parts = [(text, x * (width - text.width), at * cell + max(0, (cell - text.height) // 2)) for at, text in texts.items()]
    return Box(width, max(len(names) * cell, *(top + text.height for text, _, top in parts), 1), parts)
