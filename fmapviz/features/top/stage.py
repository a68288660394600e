"""Top images of a run, drawn when all of its images are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.errors import RequestError
from fmapviz.events import Notice
from fmapviz.features.top.of_run import draw_top_images, has_top_images
from fmapviz.run.session import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmapviz.events import Event
    from fmapviz.run.session import Session


class TopStage(Stage):
    """Draws the images with the largest values of each channel, if a view asks for them or they need a repair."""

    def after(self, session: Session, on_event: Callable[[Event], None]) -> int:
        """Draw top images, unless that is done; return the number of pages."""
        if not session.plan.second_pass and not (session.config.repair and has_top_images(session.directory)):
            return 0
        try:
            return draw_top_images(session, on_event).pictures
        except RequestError as error:  # all images are drawn
            on_event(Notice(f"no top images: {error}"))
            return 0
