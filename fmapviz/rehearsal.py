"""Go through all images once before any is drawn, to find out what they have in common."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.runs import writing_to
from fmapviz.survey import Surveyor, load, save
from fmapviz.values import Notice
from fmapviz.work import work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmapviz.survey import Key
    from fmapviz.tiling import Shared
    from fmapviz.values import Event, Failure, ImageFile, RunInfo
    from fmapviz.work import Job


def is_needed(info: RunInfo) -> bool:
    """Tell whether something that a run draws depends on all of its images."""
    return info.style.norm == "run" or (info.style.pca == "shared" and "pca" in info.views)


def rehearse(job: Job, found: Sequence[ImageFile | Failure], tell: Callable[[Event], None]) -> dict[Key, Shared]:
    """Find out what the images of a run have in common, or remember it: it is found out once, and stays.

    Otherwise pictures that are drawn later could not be compared with those that are there. Images that cannot be read or
    drawn have no say.

    Args:
        job: What is to be drawn.
        found: All inputs.
        tell: Called with each `Notice`.

    Raises:
        OutputError: The output could not be written.
    """
    known = load(job.directory, job.info.fingerprint)
    if known is not None:
        return known
    tell(Notice(f"going through {len(found)} images first, to find out what they have in common"))
    surveyor = Surveyor(principal=job.info.style.pca == "shared" and "pca" in job.info.views)
    plan = replace(job.plan.without_pictures(), moments=False, kept=None, surveyor=surveyor)
    # One image at a time: noise that proves whether more can share a forward pass must have no say.
    rehearsal = replace(job, plan=plan, batch_size=job.batch_size or 1, on_drawn=surveyor.note)
    with closing(work(rehearsal, found)) as events:
        for event in events:
            if isinstance(event, Notice):
                tell(event)
    with writing_to(job.directory):
        return save(job.directory, job.info.fingerprint, surveyor.images, surveyor.finish())
