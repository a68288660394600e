"""Draw the top images of a run into a unit of their own, from which the run's table is made."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.core import files
from fmapviz.core.errors import first_few
from fmapviz.core.events import Notice
from fmapviz.core.files import stage, writing_to
from fmapviz.core.types import ImageFile, ImageResult, UnitImage
from fmapviz.engine.session import needs_of
from fmapviz.engine.top.pages import Pages
from fmapviz.engine.top.second_pass import SecondPass, Shown, forward_again
from fmapviz.engine.top.tiles import SIDE, TileFile
from fmapviz.engine.top.winners import find_winners
from fmapviz.runs.aggregates.top import CSV_FILE, KIND, UNIT, write_rows
from fmapviz.runs.unit import commit, find_done

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.core.events import Event
    from fmapviz.engine.session import Session
    from fmapviz.engine.top.options import TopOptions
    from fmapviz.engine.top.second_pass import Slot
    from fmapviz.engine.top.winners import Winner
    from fmapviz.runs.aggregates._ranking import Ranking


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn of the ranked images; nothing if that was done before.

    Attributes:
        pictures: Number of pages.
        images: Number of images that went through the network again.
        lost: Names of the images that could not be drawn again.
        different: Number of values that were not the same when drawn again.
        difference: The largest relative difference among them.
    """

    pictures: int = 0
    images: int = 0
    lost: tuple[str, ...] = ()
    different: int = 0
    difference: float = 0.0

    def remarks(self) -> Iterator[str]:
        """Yield what the user must know."""
        if self.lost:
            yield f"top images: {len(self.lost)} could not be drawn again: {first_few(self.lost)}"
        if self.different:
            yield (
                f"top images: {self.different} values were not the same when drawn again, "
                f"by up to {self.difference:.2g} of the value"
            )


def draw_ranking(
    session: Session,
    ranking: Ranking,
    options: TopOptions,
    on_event: Callable[[Event], None],
    *,
    layers: Collection[str] | None = None,
    force: bool = False,
) -> Drawn:
    """Draw the ranked images of each channel, unless that is done.

    Args:
        session: The run.
        ranking: The ranking of its images.
        options: What is shown of them.
        on_event: Called with notices.
        layers: Names of the layers that were asked for; None: all.
        force: Whether to draw them again.

    Returns:
        What was drawn.

    Raises:
        OutputError: The output could not be written.
    """
    run, fingerprint = session.directory, session.info.fingerprint
    winners = find_winners(run, ranking, options.channels)
    file = _identify(ranking, winners, options, session)
    if not winners and ranking.maps:
        on_event(Notice("top images: none, as each channel has the same value in all images, or no finite one"))
    is_intact = session.output.is_intact if session.config.repair else None
    if not winners or (not force and find_done(run, file, fingerprint, is_intact=is_intact)):
        return Drawn()
    listed = [winner.file for winner in winners if winner.file]
    on_event(Notice(f"top images: {len(listed)} image{'s go' if len(listed) > 1 else ' goes'} through the network again"))
    with writing_to(run), stage(run) as staging, closing(TileFile(run, SIDE * session.config.style.scale)) as tiles:
        second = SecondPass(session, ranking, winners, options, tiles)
        forward_again(session, listed, second.note, on_event)
        shown = {**_not_drawn(ranking, winners, second), **second.shown}
        count = _write_pages(
            session,
            staging,
            file,
            Pages(session.info, ranking, options=options, second=second, shown=shown, tiles=tiles),
            ranking,
        )
        files.write(staging / CSV_FILE, write_rows(_rows(ranking, shown)))
        made_of = {"run": fingerprint, "model": session.info.label, "weights": session.info.weights}
        record = {"kind": KIND, **made_of, "options": options.record, "layers": layers and sorted(layers)}
        again = force or session.config.repair
        session.output.upload(commit(staging, run, file, record, force=again, sync=session.config.fsync))
    lost = tuple(winner.name for winner in winners if winner.file is None or winner.file.path in second.failed)
    drawn = Drawn(count, len(listed), lost, sum(bool(each.note) for each in second.shown.values()), second.difference)
    for remark in drawn.remarks():
        on_event(Notice(remark))
    return drawn


def _write_pages(session: Session, staging: Path, file: ImageFile, pages: Pages, ranking: Ranking) -> int:
    """Write the pages of all layers in the formats that show pictures, and return their number."""
    forms = [form for form in session.writers if session.plan.drawn and "pictures" in needs_of(form)]
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(session.writers[form](staging)) for form in forms]
        for number, (info, own) in enumerate(ranking.slices() if writers else ()):
            pictures = list(pages.of(info, own.start))
            image = UnitImage(file, ImageResult((), (), {}), (), session.info, key=number)
            for writer in writers:
                writer.add(image, pictures)
            count += len(pictures)
    return count


def _identify(ranking: Ranking, winners: Sequence[Winner], options: TopOptions, session: Session) -> ImageFile:
    """Identify what is shown by a digest, as size and time of modification identify an image."""
    digest = hashlib.sha256(repr((options, sorted(session.writers), session.config.style, ranking.maps)).encode())
    for winner in winners:
        digest.update(repr((winner.name, winner.file, winner.copies)).encode())
    for array in (ranking.places, ranking.scores, ranking.worst, ranking.images, ranking.excluded):
        digest.update(array.tobytes())
    return ImageFile(f"top:{session.info.label}", UNIT, len(winners), int.from_bytes(digest.digest()[:7]))


def _not_drawn(ranking: Ranking, winners: Sequence[Winner], second: SecondPass) -> Mapping[Slot, Shown]:
    """Return what is shown in place of the images that could not be drawn again."""
    values, rows = ranking.values, {info: own.start for info, own in ranking.slices()}
    shown = {}
    for winner in winners:
        failure = second.failed.get(winner.file.path) if winner.file else None
        note = "the run has no record of it" if winner.file is None else "the layer did not run again"
        if failure:
            note = "the file is gone" if failure.code == "E_MISSING" else failure.message.partition(":")[0]
        for info, slots in winner.channels.items():
            for channel, rank in slots:
                value = float(values[rows[info] + channel, rank])
                shown[info, channel, rank] = Shown(winner.name, winner.copies, value, note=note)
    return shown


def _rows(ranking: Ranking, shown: Mapping[Slot, Shown]) -> Iterator[dict[str, object]]:
    """Yield the rows of the table."""
    for info, _ in ranking.slices():
        for channel in range(info.channels):
            for rank in range(ranking.k):
                if each := shown.get((info, channel, rank)):
                    yield {"layer": info.layer, "channel": channel, "rank": rank, **_cells(each)}


def _cells(shown: Shown) -> dict[str, object]:
    cells: dict[str, object] = {"image": shown.image, "value": f"{shown.value:.9g}"}
    sides = ("left", "top", "right", "bottom")
    if shown.position:
        cells |= {"y": shown.position.y, "x": shown.position.x, **dict(zip(sides, shown.position.visible, strict=True))}
    if shown.in_file:
        cells |= {f"file_{side}": edge for side, edge in zip(sides, shown.in_file, strict=True)}
    return cells | {"copies": shown.copies, "note": shown.note}
