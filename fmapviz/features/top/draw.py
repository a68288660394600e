"""Draw the top images of a run into one unit, from which the run's table is made."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from fmapviz.core import files, registry
from fmapviz.core.files import staging_folder, writing_to
from fmapviz.core.words import counted, plural
from fmapviz.data import ImageResult, UnitImage
from fmapviz.errors import NothingToDoError, first_few
from fmapviz.events import Notice
from fmapviz.features.top.aggregate import CSV_FILE, KIND, UNIT, write_rows
from fmapviz.features.top.pages import Pages, count_pages
from fmapviz.features.top.second_pass import SecondPass, Shown, find_winners, forward_again
from fmapviz.features.top.tiles import SIDE, TileFile
from fmapviz.run.load import needs_of
from fmapviz.run.units import finish_unit
from fmapviz.store.unit import find_done, find_own, read_unit
from fmapviz.store.unit_key import UnitKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.events import Event
    from fmapviz.features.top.options import TopOptions
    from fmapviz.features.top.second_pass import Slot, Winner
    from fmapviz.run.session import Session
    from fmapviz.store.aggregates.ranking import Ranking


_MANY = 100  # pages; above, the notice names the options that draw fewer
RESTORE = "restore their files as they were when the run was drawn; earlier pages stay"


@dataclass(frozen=True, slots=True)
class Drawn:
    """The result of drawing top images; all zero if they were drawn before.

    Attributes:
        pictures: Number of pages.
        images: Number of images that went through the network again.
        lost: Names of the images that could not be drawn again.
        unit: Directory of the pages.
    """

    pictures: int = 0
    images: int = 0
    lost: tuple[str, ...] = ()
    unit: Path | None = None


def draw_ranking(
    session: Session,
    ranking: Ranking,
    options: TopOptions,
    on_event: Callable[[Event], None],
    *,
    layers: Collection[str] | None = None,
    lost: Sequence[str] = (),
    of: str,
    force: bool = False,
) -> Drawn:
    """Draw the ranked images of each channel, unless that is done.

    Args:
        session: The run.
        ranking: The ranking of its images.
        options: Options of the ranking and pages.
        on_event: Called with notices.
        layers: Names of the requested layers; None: all.
        lost: Names of images that could not be ranked because their files are gone or have changed.
        of: Digest of all images that were ranked.
        force: Whether to draw them again.

    Returns:
        What was drawn.

    Raises:
        NothingToDoError: None of the ranked images can be read any more; earlier pages stay.
        OutputError: The output could not be written.
    """
    run, fingerprint = session.directory, session.info.fingerprint
    winners = find_winners(run, ranking, options.channels)
    key = _make_key(ranking, winners, options, session, of=of)
    is_intact = session.output.is_intact if session.config.repair else None
    done = None if force else find_done(run, key, fingerprint, is_intact=is_intact)
    if done and not (read_unit(done) or {}).get("lost"):
        return Drawn(unit=done)
    if not winners:
        on_event(Notice("top images: none, as each channel has the same value in all images, or no finite one"))
    listed = [winner.file for winner in winners if winner.file and not winner.lost]
    if listed:
        shown_channels = {(info, row) for winner in winners for info, slots in winner.channels.items() for row, _ in slots}
        images = f"{len(listed)} image{'s go' if len(listed) > 1 else ' goes'} through the network again"
        drawn = (
            f"{len(shown_channels):,} {plural(len(shown_channels), 'channel')}{_describe_pages(session, ranking, options)}"
        )
        on_event(Notice(f"top images of {drawn}: {images}"))
    replaced = _describe_replaced(session, key, options, layers)
    with writing_to(run), staging_folder(run) as staging, closing(TileFile(run, SIDE * session.config.style.scale)) as tiles:
        narrowed = replace(session, layers=[layer for layer in session.layers if layers is None or layer.name in layers])
        second = SecondPass(narrowed, ranking, winners, options, tiles)
        forward_again(narrowed, listed, second.note, on_event)
        shown = {**_not_drawn(ranking, winners, second), **second.shown}
        missing = [winner.name for winner in winners if winner.lost or (winner.file and winner.file.path in second.failed)]
        if winners and len(missing) == len(winners):
            why = {each.note for each in shown.values()}
            raise NothingToDoError(
                f"none of the top images can be read any more: {first_few(missing)} ({first_few(sorted(why))})",
                hint=RESTORE,
            )
        missing = list(dict.fromkeys([*missing, *lost]))
        count = _write_pages(
            session,
            staging,
            key,
            Pages(session.info, ranking, options=options, second=second, shown=shown, tiles=tiles),
            ranking,
        )
        files.write(staging / CSV_FILE, write_rows(_rows(ranking, shown)))
        more = {"options": options.record, "layers": layers and sorted(layers), "lost": missing}
        unit = finish_unit(session, staging, key, more, force=force or session.config.repair or bool(done))
    if replaced:
        on_event(Notice(replaced))
    if missing:
        what = "is gone or has changed" if len(missing) == 1 else "are gone or have changed"
        on_event(Notice(f"top images: {len(missing)} of the images {what}: {first_few(missing)}"))
    if different := sum(bool(each.note) for each in second.shown.values()):
        on_event(
            Notice(
                f"top images: {different} values were not the same when drawn again, "
                f"by up to {100 * second.difference:.2g} %: the network does not reproduce them"
            )
        )
    return Drawn(count, len(listed), tuple(missing), unit)


def _describe_pages(session: Session, ranking: Ranking, options: TopOptions) -> str:
    """Return how many pages will be drawn, and in which formats; of many, which options draw fewer."""
    forms, pages = _formats_of(session), count_pages(ranking.maps, options.channels)
    if not (forms and pages):
        return ""
    fewer = "; layers= and channels= draw fewer" if pages > _MANY else ""
    return f" on {pages:,} {plural(pages, 'page')} ({', '.join(forms)}{fewer})"


def _describe_replaced(session: Session, key: UnitKey, options: TopOptions, layers: Collection[str] | None) -> str:
    """Return a sentence on earlier top images of other options, layers or formats, which new ones replace; else ""."""
    unit, record = find_own(session.directory, key) or (None, {})
    if unit is None:
        return ""
    names = [each["name"] for each in record["files"]]
    patterns = {name: form.unit_files for name, form in registry.formats().items() if "pictures" in form.needs}
    counts = {name: sum(any(fnmatch(file, each) for each in of) for file in names) for name, of in patterns.items()}
    earlier = {name: count for name, count in counts.items() if count}
    known, chosen = record.get("layers"), {**options.record, "channels": [*options.channels]}  # as JSON has them
    if (record.get("options"), known) == (chosen, layers and sorted(layers)) and earlier.keys() <= {*_formats_of(session)}:
        return ""  # the same pages, of other images
    of_layers = counted(len(known if isinstance(known, list) else session.layers), "layer")
    written = ", ".join(f"{counted(count, 'file')} in {name}" for name, count in earlier.items())
    return f"the earlier top images, of {of_layers}{written and f' ({written})'}, were replaced"


def _formats_of(session: Session) -> list[str]:
    """Return the formats in which pages are written."""
    return [form for form in session.writers if session.plan.drawn and "pictures" in needs_of(form)]


def _write_pages(session: Session, staging: Path, key: UnitKey, pages: Pages, ranking: Ranking) -> int:
    """Write the pages of all layers in the formats that show pictures, and return their number."""
    forms = _formats_of(session)
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(session.writers[form](staging)) for form in forms]
        for number, (info, own) in enumerate(ranking.slices() if writers else ()):
            pictures = list(pages.of(info, own.start))
            image = UnitImage(key.name, key.path, ImageResult((), (), {}), (), session.info, key=number)
            for writer in writers:
                writer.add(image, pictures)
            count += len(pictures)
    return count


def _make_key(ranking: Ranking, winners: Sequence[Winner], options: TopOptions, session: Session, *, of: str) -> UnitKey:
    digest = hashlib.sha256(repr((options, sorted(session.writers), session.config.style, ranking.maps)).encode())
    for winner in winners:
        digest.update(repr((winner.name, winner.file, winner.lost, winner.copies)).encode())
    for array in (ranking.places, ranking.scores, ranking.worst, ranking.images, ranking.excluded):
        digest.update(array.tobytes())
    return UnitKey(KIND, f"top:{session.info.label}", UNIT, {"of": of, "shown": digest.hexdigest()})


def _not_drawn(ranking: Ranking, winners: Sequence[Winner], second: SecondPass) -> Mapping[Slot, Shown]:
    """Return the entries of images that could not be drawn again."""
    values, rows = ranking.values, {info: own.start for info, own in ranking.slices()}
    shown = {}
    for winner in winners:
        failure = second.failed.get(winner.file.path) if winner.file else None
        note = winner.lost or "the layer did not run again"
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
    sample = shown.position.sample if shown.position else None
    where = f"y and x are in sample {sample[0]} of {sample[1]}" if sample else ""
    return cells | {"copies": shown.copies, "note": "; ".join(filter(None, (shown.note, where, shown.frame)))}
