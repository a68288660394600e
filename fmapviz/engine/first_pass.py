"""Survey all images once before the first is drawn, for `--norm run` and `--pca shared`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.core.errors import RefusedError
from fmapviz.core.events import Notice
from fmapviz.core.files import writing_to
from fmapviz.core.layout import SURVEY_FILE
from fmapviz.engine.pipeline.work import Progress, work
from fmapviz.engine.shared_ranges import Survey, Surveyor, load, save
from fmapviz.runs.failures import read_failures
from fmapviz.runs.run import shares_components
from fmapviz.runs.run_files import find_units
from fmapviz.runs.unit import paths_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from fmapviz.core.events import Event
    from fmapviz.core.types import Failure, ImageFile
    from fmapviz.engine.session import Session
    from fmapviz.engine.shared_ranges import Key
    from fmapviz.render.grid import Shared


def survey(
    session: Session, found: Sequence[ImageFile | Failure], on_event: Callable[[Event], None]
) -> Mapping[Key, Shared]:
    """Return what all images of a run share, from its first survey, so that later pictures stay comparable.

    Images that cannot be read or drawn do not count.

    Args:
        session: What is drawn.
        found: All inputs.
        on_event: Called with each `Notice`.

    Raises:
        OutputError: The output could not be written.
        RefusedError: The survey of the images that were drawn is lost, and the images given now are others.
    """
    known = load(session.directory, session.info.fingerprint)
    if known is not None:
        failed = {str(row.get("path")) for row in read_failures(session.directory)}  # not surveyed
        given = sum(each.path not in failed for each in found)
        if known.images < given:
            on_event(Notice(f"the survey of {known.images} images also holds for new ones: {given} are given"))
        return known.shared
    number = f"{len(found)} images" if len(found) > 1 else "the image"
    on_event(Notice(f"surveying {number} first, for what all images of the run share"))
    surveyor = Surveyor()
    plan = session.plan.to_survey(principal=shares_components(session.info.settings))
    with closing(work(replace(session, plan=plan), found, progress=Progress(), on_drawn=surveyor.note)) as events:
        for event in events:
            if isinstance(event, Notice):
                on_event(event)
    if not surveyor.images:
        return {}
    drawn = _drawn(session)  # read before the survey, which is saved before the first image is drawn
    known = load(session.directory, session.info.fingerprint)
    if known is not None:  # another process was faster
        return known.shared
    _check_lost(drawn, surveyor.paths, force=session.config.force)
    with writing_to(session.directory):
        saved = save(
            session.directory,
            session.info.fingerprint,
            Survey(surveyor.images, surveyor.finish()),
            sync=session.config.fsync,
        )
    session.output.share_file(session.directory, SURVEY_FILE)
    return (load(session.directory, session.info.fingerprint) or saved).shared


def _drawn(session: Session) -> set[str]:
    """Return the paths of the images in finished units."""
    records = filter(None, map(read_unit, find_units(session.directory)))
    return {path for record in records for path in paths_of(record)}


def _check_lost(drawn: AbstractSet[str], seen: AbstractSet[str], *, force: bool) -> None:
    """Check that the images of a survey are those that are drawn already, if there are any."""
    if drawn <= seen if force else drawn in (set(), seen):
        return
    raise RefusedError(
        f"the survey of the {len(drawn)} images drawn so far is lost, {SURVEY_FILE} is missing or damaged, and "
        f"{len(seen)} of these or others are given now",
        hint="--force, with at least all images of the run, redraws everything; or start another run with --name",
    )
