"""Write the run-level files at the end of a run, and at intervals during it."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from fmapviz.core import registry
from fmapviz.core.files import writing_to
from fmapviz.core.members import load
from fmapviz.store import run_files
from fmapviz.store.aggregates import base

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fmapviz.run.session import Session
    from fmapviz.store.aggregates.base import Aggregate
    from fmapviz.store.run_files import Content

PUBLISH_SECONDS = 30.0


class Publisher:
    """Writes the files of a run's aggregates, and the files that formats derive from them.

    Args:
        session: The run.
        more: Names of aggregates that the run has besides those of its formats and views.
    """

    def __init__(self, session: Session, *, more: Sequence[str] = ()) -> None:
        self._session = session
        self._names = [*base.names_of(session.config), *more]
        self._aggregates: dict[str, Aggregate[Any]] = {}  # each with a summary of its own type
        self._update()
        self._makers = [load(form.publish) for form in map(registry.form, session.config.to) if form.publish]
        self._due = time.monotonic() + PUBLISH_SECONDS
        self._doubled = 1

    def publish_if_due(self, images: int) -> None:
        """Publish at intervals, in a twentieth of the run's time at most.

        A single file may become too large, which is refused early: it is also published when the images have doubled.

        Args:
            images: Number of finished images.
        """
        begun = time.monotonic()
        doubled = self._session.config.single_file and images >= self._doubled
        if self._aggregates and (doubled or begun >= self._due):
            self.publish()
            self._doubled = 2 * images
            self._due = time.monotonic() + max(PUBLISH_SECONDS, 20 * (time.monotonic() - begun))

    def _update(self) -> None:
        """Add the aggregates that another command has published meanwhile."""
        names = dict.fromkeys([*self._names, *base.published_names(self._session.directory)])
        self._aggregates = {
            name: cast("Aggregate[Any]", import_module(registry.aggregates()[name].module)) for name in names
        }

    def publish(self) -> list[Path]:
        """Write the files unless they are up to date; return the units that are left out because they are damaged.

        Raises:
            OutputError: They could not be written.
        """
        self._update()
        if not self._aggregates:
            return []
        directory, config = self._session.directory, self._session.config
        variant = "single file" if config.single_file else ""

        def make() -> list[Path]:
            return run_files.publish(directory, self._make, variant=variant, owned=self._owned(), sync=config.fsync)

        with writing_to(directory):
            return self._session.output.publish(directory, make)

    def make_again(self) -> dict[str, Content]:
        """Return the contents of all files, made from the units; nothing is written into the run."""
        return self._make(run_files.find_units(self._session.directory))[0]

    def report(self) -> tuple[dict[str, Any], list[str]]:
        """Return the reports of the aggregates about the published run: fields for `--json`, and lines of text."""
        reports = [aggregate.report(self._session.directory) for aggregate in self._aggregates.values()]
        fields = {name: value for known, _ in reports for name, value in known.items()}
        return fields, [line for _, lines in reports for line in lines]

    def _owned(self) -> set[str]:
        return {file for name in self._aggregates for file in registry.aggregates()[name].run_files}

    def _make(self, units: list[Path]) -> tuple[dict[str, Content], list[Path]]:
        """Return the contents of all files by name, and the units left out."""
        self._update()
        gathered = {name: base.gather(aggregate, units) for name, aggregate in self._aggregates.items()}
        summaries = {name: summary for name, (summary, _) in gathered.items()}
        contents: dict[str, Content] = {}
        for name, aggregate in self._aggregates.items():
            contents |= aggregate.publish(summaries[name], self._session.info)
        for make in self._makers:
            contents |= make(self._session.directory, self._session.info, summaries)
        return contents, list(dict.fromkeys(unit for _, left_out in gathered.values() for unit in left_out))
