"""Draw how the layers of two networks are aligned, over all images: a picture of layers by layers."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING

from fmapviz.core.file_names import ALIGNMENT, STEP
from fmapviz.draw.png import encode
from fmapviz.events import Notice
from fmapviz.features.diff import aggregate as differences
from fmapviz.features.diff.cka import LEAST
from fmapviz.features.diff.matrix import draw_matrix
from fmapviz.run.load import needs_of
from fmapviz.run.model_views import KIND, UNIT
from fmapviz.run.session import Stage
from fmapviz.run.units import write_unit
from fmapviz.store import run_files
from fmapviz.store.aggregates import base
from fmapviz.store.unit import find_done
from fmapviz.store.unit_key import UnitKey
from fmapviz.types import Picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmapviz.events import Event, RunSummary
    from fmapviz.run.session import Session
    from fmapviz.store.unit_key import Version

_NOTE = (
    "linear CKA with the unbiased estimator of HSIC (Song et al., 2012): samples are {images} images, features are means of "
    "channels; 1 is the same up to rotation and scale, 0 is unrelated"
)


class AlignmentStage(Stage):
    """Draws the alignment of two networks when their images are drawn, and reports how they differ.

    Args:
        names: What the networks are, for people.
        at: The step of a series in the version of its units; empty: there is none.
    """

    def __init__(self, names: tuple[str, str], at: Version = MappingProxyType({})) -> None:
        self._names, self._at = names, at

    def after(self, session: Session, on_event: Callable[[Event], None]) -> int:  # noqa: ARG002
        """Draw the alignment, unless that is done."""
        return draw_alignment(session, self._names, self._at)

    def report(self, session: Session, summary: RunSummary, on_event: Callable[[Event], None]) -> RunSummary:  # noqa: ARG002
        """Report the results as notices: of a comparison they are no result for scripts."""
        compared = summary.done + summary.skipped
        if not self._at and 0 < compared < LEAST:
            on_event(Notice(f"no CKA: it needs {LEAST} images"))
        for line in summary.highlights if compared else ():
            on_event(Notice(line))
        return replace(summary, highlights=())


def draw_alignment(session: Session, names: tuple[str, str], at: Version) -> int:
    """Draw the alignment of the session's images, unless that is done; return the number of pictures written.

    Raises:
        OutputError: The output could not be written.
    """
    run, info, step = session.directory, session.info, int(at["step"]) if at else None
    if not any("pictures" in needs_of(form) for form in session.writers):
        return 0
    own_name = UNIT if step is None else STEP.format(step)
    units = [unit for unit in run_files.find_units(run) if unit.relative_to(run).parts[0] != UNIT]
    known, _ = base.gather(differences, (unit for unit in units if step is None or unit.name == own_name))
    images = sorted(image for _, image, own in known.units if own == step)
    state = hashlib.sha256("\n".join(images).encode("utf-8", "surrogatepass")).hexdigest()
    place = UNIT if step is None else f"{UNIT}/{own_name}"
    key = UnitKey(KIND, f"model:{info.label}", place, {"images": len(images), "names": state, **at})
    if not session.config.force and find_done(run, key, info.fingerprint):
        return 0
    found = differences.align(known, step)
    if found is None:
        return 0
    rows, columns, matrix = found
    pixels = draw_matrix(
        matrix, rows, columns, sides=(f"A: {names[0]}", f"B: {names[1]}"), title="CKA", note=_NOTE.format(images=len(images))
    )
    diagonal = [float(matrix[rows.index(name), columns.index(name)]) for name in rows if name in columns]
    usual = [value for value in diagonal if isfinite(value)]
    facts = {
        "Shows": _NOTE.format(images=len(images)),
        "A": names[0],
        "B": names[1],
        **({"Layers of one name": f"{min(usual):.3f} to {max(usual):.3f}"} if usual else {}),
    }
    picture = Picture(ALIGNMENT, ALIGNMENT, encode(pixels, facts), pixels.shape[1], pixels.shape[0], facts)
    write_unit(session, key, [picture])
    return 1
