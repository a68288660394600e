"""Rank the images of a run, and draw those with the largest values of each channel."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.config import Style
from fmapviz.core.words import counted
from fmapviz.draw.channel_choice import describe_left_out
from fmapviz.errors import NothingToDoError, RequestError, first_few, quote
from fmapviz.events import Notice
from fmapviz.features.top.aggregate import KIND, UNIT, rank_units
from fmapviz.features.top.draw import RESTORE, Drawn, draw_ranking
from fmapviz.features.top.locate import inside_values
from fmapviz.features.top.options import TopOptions
from fmapviz.features.top.second_pass import forward_again, why_lost
from fmapviz.images.preprocess import digest_of
from fmapviz.observe.layers import layer_of
from fmapviz.run.places import FieldCache
from fmapviz.run.session import Stage
from fmapviz.store.aggregates.channels import FeatureMapInfo
from fmapviz.store.aggregates.ranker import Ranker
from fmapviz.store.aggregates.ranking import identity, name_key
from fmapviz.store.aggregates.unit_ranking import KEPT, keeps_ranking
from fmapviz.store.run import load_run
from fmapviz.store.run_files import find_units
from fmapviz.store.shards.grouping import Failed
from fmapviz.store.staleness import state_of_images
from fmapviz.store.unit import images_of, read_unit
from fmapviz.store.unit_key import IMAGE, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.data import ImageFile
    from fmapviz.events import Event
    from fmapviz.run.pipeline.scheduler import Result
    from fmapviz.run.session import Session
    from fmapviz.store.aggregates.ranking import Ranking


class TopStage(Stage):
    """Draws the images with the largest values of each channel, when all images of a run are done.

    Args:
        options: Options of the pages; None: top images are drawn if a view requests them or they need a repair.
        layers: Names of layers; None: all.
        force: Whether to draw them again.

    Attributes:
        drawn: The drawn pages.
    """

    def __init__(
        self, options: TopOptions | None = None, layers: Collection[str] | None = None, *, force: bool = False
    ) -> None:
        self.aggregates = (KIND,) if options else ()
        self._options, self._layers, self._force = options, layers, force
        self.drawn = Drawn()

    def after(self, session: Session, on_event: Callable[[Event], None]) -> int:
        """Draw top images, unless that is done; return the number of pages."""
        if self._options:
            self.drawn = draw_top_images(session, on_event, options=self._options, layers=self._layers, force=self._force)
        elif session.plan.second_pass or (session.config.repair and _record_of(find_units(session.directory))):
            try:
                self.drawn = draw_top_images(session, on_event)
            except (RequestError, NothingToDoError) as error:  # all images are drawn
                on_event(Notice(f"no top images: {error}"))
        return self.drawn.pictures


def draw_top_images(
    session: Session,
    on_event: Callable[[Event], None],
    *,
    options: TopOptions | None = None,
    layers: Collection[str] | None = None,
    force: bool = False,
) -> Drawn:
    """Draw the top images of a run whose images are done, unless that is done; see `draw_ranking`.

    Args:
        session: The run.
        on_event: Called with notices.
        options: Options of the pages; None: those of the existing pages, or the default.
        layers: Names of layers; None: all.
        force: Whether to draw them again.

    Returns:
        What was drawn.

    Raises:
        RequestError: The run keeps no statistics, its shards rank fewer images than requested, or no layer has the
            channels.
        NothingToDoError: None of the images can be read any more; earlier pages stay.
        OutputError: The output could not be written.
    """
    run = session.directory
    session.output.refresh(run)
    units = find_units(run)
    of = state_of_images(run, units)
    lost: list[str] = []
    if options is None:
        record = (None if session.config.force else _record_of(units)) or {
            "options": TopOptions(channels=session.config.style.listed or ()).record
        }
        options, known = TopOptions.of(record["options"]), record.get("layers")
        layers = list(map(str, known)) if isinstance(known, list) else None
    if options.inside:
        ranking, lost = _rank_inside(session, units, options, on_event)
    else:
        ranking = _rank(units, run, options, settings=session.info.settings)
    if layers is not None:
        ranking = ranking.of_maps([info for info in ranking.maps if layer_of(info.layer) in layers])
    channels = max((info.channels for info in ranking.maps), default=0)
    if ranking.maps and options.channels and min(options.channels) >= channels:
        raise RequestError(
            f"no layer has channel {min(options.channels)}", hint=f"they have up to {counted(channels, 'channel')}"
        )
    counts = {info.layer: info.channels for info in ranking.maps}
    if options.channels and (left_out := describe_left_out(Style(channels=",".join(map(str, options.channels))), counts)):
        on_event(Notice(left_out))
    if not ranking.maps and lost:
        raise NothingToDoError(f"none of the images can be read any more: {first_few(lost)}", hint=RESTORE)
    again = force or session.config.force
    return draw_ranking(session, ranking, options, on_event, layers=layers, lost=lost, of=of, force=again)


def _record_of(units: Sequence[Path]) -> dict[str, Any] | None:
    """Return the record of the unit that shows top images; None without it."""
    records = (read_unit(unit) for unit in units if unit.name.startswith(UNIT))
    return next(
        (each for each in records if each and key_of(each).kind == KIND and isinstance(each.get("options"), dict)), None
    )


def rank_run(run: Path, options: TopOptions) -> Ranking:
    """Rank the images of a run by the statistics that it keeps.

    Raises:
        RequestError: It is no run, keeps no statistics, or its shards rank fewer images than requested.
    """
    return _rank(find_units(run), run, options, settings=load_run(run)["settings"])


def _rank(units: Sequence[Path], run: Path, options: TopOptions, *, settings: Mapping[str, Any]) -> Ranking:
    if options.k > KEPT and any(map(keeps_ranking, units)):
        raise RequestError(
            f"the shards of a run rank {KEPT} images per channel, not {options.k}",
            hint=f"{KEPT} or fewer: they keep no more",
        )
    ranking, left_out = rank_units(units, run, by=options.by, k=options.k)
    if left_out and not ranking.maps:
        formats = ",".join([*settings["formats"], "stats"])
        raise RequestError(
            f"the run keeps no statistics of its images: {quote(run)}",
            hint=f"fmapviz.visualize({quote(settings['model'])}, inputs, to='{formats}') makes them",
        )
    return ranking


def _rank_inside(
    session: Session, units: Sequence[Path], options: TopOptions, on_event: Callable[[Event], None]
) -> tuple[Ranking, list[str]]:
    """Forward all images, and rank them by the positions whose fields lie within the picture.

    Returns:
        The ranking, and the names of images that are gone or have changed.
    """
    images = list(_images_of(units, session.directory))
    lost = {file for file in images if why_lost(file)}
    failed: list[str] = []
    ranker, lock = Ranker(options.by, options.k), Lock()
    fields = FieldCache(session.model, [layer.name for layer in session.layers])

    def note(result: Result) -> None:  # several threads call it
        if isinstance(result, Failed):
            failed.append(result.member.file.unit)
            return
        layers = [layer for layer in result.drawn.layers if layer.of == "output" and layer.measures]
        values = [inside_values(layer, options.by, fields.shown(layer.layer, result.image.shape)) for layer in layers]
        maps = tuple(
            FeatureMapInfo(layer.layer, "output", "", layer.type, len(own), layer.index)
            for layer, own in zip(layers, values, strict=True)
        )
        file = result.image.member.file
        name = identity(file.unit, file.path) if session.config.shard is not None else file.unit
        digest = int(digest_of(result.image.values)[:16], 16)
        with lock:
            ranker.add(maps, name, digest, np.concatenate([np.zeros(0, np.float32), *values]))

    forward_again(session, [file for file in images if file not in lost], note, on_event)
    return ranker.finish(), sorted([*(file.unit for file in lost), *failed], key=name_key)


def _images_of(units: Sequence[Path], run: Path) -> Iterator[ImageFile]:
    for unit in units:
        record = read_unit(unit)
        is_single = record is not None and key_of(record).kind == IMAGE
        for file in images_of(record):
            yield replace(file, unit=unit.relative_to(run).as_posix()) if is_single else file
