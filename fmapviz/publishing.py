"""Keep what is made of all images of a run up to date."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from fmapviz import registry
from fmapviz.products import publish
from fmapviz.registry import SHARD_WRITERS, WRITERS
from fmapviz.runs import writing_to

if TYPE_CHECKING:
    from pathlib import Path

    from fmapviz.outputs import Output
    from fmapviz.values import RunInfo

PUBLISH_SECONDS = 30.0


class Publisher:
    """Makes what is made of all images of a run: at its end, and before that now and then, for who cannot wait."""

    def __init__(self, directory: Path, info: RunInfo, output: Output, *, sync: bool = False) -> None:
        family = SHARD_WRITERS if info.shard else WRITERS
        modules = [registry.fetch(family, form) for form in info.formats]
        self._directory = directory
        self._output = output
        self._sync = sync
        self._makers = [partial(module.publish, info=info) for module in modules if hasattr(module, "publish")]
        self._due = time.monotonic() + PUBLISH_SECONDS

    def look(self) -> None:
        """Publish if it is time to; that takes a twentieth of the run's time at most."""
        begun = time.monotonic()
        if self._makers and begun >= self._due:
            self.publish()
            self._due = time.monotonic() + max(PUBLISH_SECONDS, 20 * (time.monotonic() - begun))

    def publish(self) -> list[Path]:
        """Make whatever is not there, or is of other images, and say which images had to be left out.

        Raises:
            OutputError: It could not be written.
        """
        if not self._makers:
            return []
        with writing_to(self._directory):
            return self._output.publish(self._directory, lambda: publish(self._directory, self._makers, sync=self._sync))
