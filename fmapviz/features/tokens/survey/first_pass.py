"""Survey all images before the first is drawn; the run stores the result."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.core.file_names import SURVEY_FILE
from fmapviz.core.files import writing_to
from fmapviz.core.words import counted
from fmapviz.data import ImageFile
from fmapviz.errors import RefusedError, RequestError, first_few, quote
from fmapviz.events import Notice
from fmapviz.features.tokens.survey.collect import Survey, Surveyor, SurveyRequest
from fmapviz.features.tokens.survey.record import load, save
from fmapviz.images.frames import is_film, numbered
from fmapviz.run.kept_passes import KeptPasses
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.work import work
from fmapviz.run.session import Stage
from fmapviz.store.failures import read_failures
from fmapviz.store.run import clusters_of, is_surveyed, shares_components, shares_ranges, shares_values
from fmapviz.store.run_files import find_units
from fmapviz.store.unit import images_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fmapviz.config.positions import Anchor
    from fmapviz.data import Failure
    from fmapviz.events import Event
    from fmapviz.run.session import Session


class SurveyStage(Stage):
    """Computes values that all images of a run share: ranges, components, clusters, the vectors at an anchor."""

    def before(
        self, session: Session, items: Iterable[ImageFile | Failure], on_event: Callable[[Event], None]
    ) -> tuple[Session, Iterable[ImageFile | Failure]]:
        """Survey the images, unless nothing is shared."""
        settings, plan = session.info.settings, session.plan
        if not plan.of_images or not (is_surveyed(settings) if plan.drawn else shares_values(settings)):
            return session, items
        listed = list(items)
        session = replace(session, kept=KeptPasses() if plan.of_outputs else None)
        known = survey(session, listed, on_event)
        return replace(session, plan=replace(plan, shared=known.shared, anchor_path=known.path)), listed


def request_of(session: Session) -> SurveyRequest:
    """Return the values to compute of all images before they are drawn."""
    settings, style = session.info.settings, session.config.style
    anchor = style.start if style.start and style.start.image else None
    components = session.plan.drawn and shares_components(settings)
    return SurveyRequest(
        ranges=session.plan.drawn and shares_ranges(settings),
        components=components,
        foreground=components and style.foreground,
        clusters=clusters_of(settings),
        anchor=anchor,
    )


def survey(session: Session, found: Sequence[ImageFile | Failure], on_event: Callable[[Event], None]) -> Survey:
    """Return the shared values of a run's first survey, so that later pictures stay comparable.

    Images that cannot be read or drawn do not count.

    Args:
        session: What is drawn.
        found: All inputs.
        on_event: Called with each `Notice`.

    Raises:
        OutputError: The output could not be written.
        RequestError: The image of the anchor is not among the inputs, or cannot be drawn, or the anchor is outside it.
        RefusedError: The survey of the images drawn so far is lost, and other images are given.
    """
    request = request_of(session)
    known = load(session.directory, session.info.fingerprint)
    if known is not None:
        failed = {str(row.get("path")) for row in read_failures(session.directory)}  # not surveyed
        given = sum(each.path not in failed for each in found)
        if request.of_all and known.images < given:
            on_event(
                Notice(f"the survey of {counted(known.images, 'image')} also applies to new ones: the inputs are {given}")
            )
        return known
    if request.anchor:
        file = find_anchor(request.anchor, found)
        request = replace(request, path=file.path)
        found = found if request.of_all else [file]
    if request.of_all:
        number = f"{len(found)} images" if len(found) > 1 else "the image"
        on_event(Notice(f"surveying {number} first, for values that all images share"))
    surveyor = Surveyor(request, session.preparation_of)
    surveyed = replace(session, plan=session.plan.to_survey(whole=request.maps, ranges=request.ranges))
    with closing(work(surveyed, found, progress=Progress(), on_drawn=surveyor.note)) as events:
        for event in events:
            if isinstance(event, Notice):
                on_event(event)
    if session.kept:
        session.kept.end()
    if not surveyor.paths and not request.anchor:
        return Survey(0, {})
    # Read before the survey, which is saved before the first image is drawn.
    drawn = {image.path for unit in find_units(session.directory) for image in images_of(read_unit(unit))}
    known = load(session.directory, session.info.fingerprint)
    if known is not None:  # another process was faster
        return known
    is_same = drawn <= surveyor.paths if session.config.force else drawn in (set(), surveyor.paths)
    if request.of_all and not is_same:
        raise RefusedError(
            f"the survey of the {counted(len(drawn), 'image')} drawn so far is lost, {SURVEY_FILE} is missing or "
            f"damaged, and {len(surveyor.paths)} of these or others are given now",
            hint="force=True, with at least all images of the run, redraws everything; or start another run with name=",
        )
    made = surveyor.finish()
    with writing_to(session.directory):
        save(session.directory, session.info.fingerprint, made, sync=session.config.fsync)
    session.output.share_file(session.directory, SURVEY_FILE)
    return load(session.directory, session.info.fingerprint) or made


def find_anchor(anchor: Anchor, found: Sequence[ImageFile | Failure]) -> ImageFile:
    """Return the image of an anchor among the inputs: by its path, or by the end of its path or name.

    Raises:
        RequestError: It is not among them, or several are.
    """
    images = [each for each in found if isinstance(each, ImageFile)]
    fitting = [each for each in images if anchor.is_path(each.path)]
    fitting = fitting or [each for each in images if anchor.names(each.path, each.unit)]
    if len({each.path for each in fitting}) > 1:
        listed = first_few([each.path for each in fitting])
        raise RequestError(
            f"several inputs have the name of the anchor, {quote(anchor.image)}: {listed}", hint="name its folder too"
        )
    if not fitting:
        frame = f"{anchor.image}/{numbered(0)}"
        raise RequestError(
            f"the image of the anchor is not among the inputs: {quote(anchor.image)}",
            hint=f"one of the film's frames, such as {quote(frame)}"
            if is_film(anchor.image)
            else "Style(anchor='photo.jpg:112,80') names one of the inputs, by its path or the end of it",
        )
    return fitting[0]
