"""Go through all images once before any is drawn, to find out what they have in common."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.errors import RefusedError
from fmapviz.products import find_units
from fmapviz.runs import SURVEY_FILE, read_failures, writing_to
from fmapviz.survey import Survey, Surveyor, load, save
from fmapviz.units import paths_of, read_unit
from fmapviz.values import Notice
from fmapviz.work import work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from fmapviz.survey import Key
    from fmapviz.tiling import Shared
    from fmapviz.values import Event, Failure, ImageFile
    from fmapviz.work import Job


def rehearse(job: Job, found: Sequence[ImageFile | Failure], tell: Callable[[Event], None]) -> Mapping[Key, Shared]:
    """Find out what the images of a run have in common, or remember it: it is found out once, and stays.

    Otherwise pictures that are drawn later could not be compared with those that are there. Images that cannot be read or
    drawn have no say.

    Args:
        job: What is to be drawn.
        found: All inputs.
        tell: Called with each `Notice`.

    Raises:
        OutputError: The output could not be written.
        RefusedError: It is lost what the images that were drawn have in common, and those given now are others.
    """
    known = load(job.directory, job.info.fingerprint)
    if known is not None:
        failed = {str(row.get("path")) for row in read_failures(job.directory)}  # these had no say
        given = sum(each.path not in failed for each in found)
        if known.images < given:
            tell(Notice(f"what {known.images} images have in common stays, also for what has come since: {given} are given"))
        return known.shared
    number = f"{len(found)} images" if len(found) > 1 else "the image"
    tell(Notice(f"going through {number} first, to find out what the run's images have in common"))
    surveyor = Surveyor()
    principal = job.info.style.pca == "shared" and "pca" in job.info.views
    plan = replace(job.plan.without_pictures(), moments=False, kept=None, counts={}, methods={}, principal=principal)
    rehearsal = replace(job, plan=plan, on_drawn=surveyor.note)
    with closing(work(rehearsal, found)) as events:
        for event in events:
            if isinstance(event, Notice):
                tell(event)
    if not surveyor.images:
        return {}
    drawn = _drawn(job)  # before another look at what is remembered, which is there before the first image is drawn
    known = load(job.directory, job.info.fingerprint)
    if known is not None:  # another process was faster
        return known.shared
    _check_lost(drawn, surveyor.paths, force=job.force)
    with writing_to(job.directory):
        saved = save(job.directory, job.info.fingerprint, Survey(surveyor.images, surveyor.finish()), sync=job.sync)
    job.output.share(job.directory, SURVEY_FILE)
    return (load(job.directory, job.info.fingerprint) or saved).shared


def _drawn(job: Job) -> set[str]:
    """Give the images that the run has finished directories of."""
    records = filter(None, map(read_unit, find_units(job.directory)))
    return {path for record in records for path in paths_of(record)}


def _check_lost(drawn: AbstractSet[str], seen: AbstractSet[str], *, force: bool) -> None:
    """Make sure that what was just found out is of the images that are drawn already, if there are any."""
    if drawn <= seen if force else drawn in (set(), seen):
        return
    raise RefusedError(
        f"what the images drawn so far have in common is lost, {SURVEY_FILE} is gone or damaged: {len(drawn)} were drawn, "
        f"{len(seen)} of these or others are given now",
        hint="--force, with all images of the run at least, draws everything anew; or begin another run with --name",
    )
