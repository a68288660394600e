"""The survey of all images, before they are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.features.tokens.survey.first_pass import survey
from fmapviz.run.kept_passes import KeptPasses
from fmapviz.run.session import Stage
from fmapviz.store.run import is_surveyed, shares_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fmapviz.events import Event
    from fmapviz.run.session import Session
    from fmapviz.types import Failure, ImageFile


class SurveyStage(Stage):
    """Finds what all images of a run share: ranges, components, clusters, the vectors at an anchor."""

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
