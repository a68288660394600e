"""The contract of a result over all images of a run, such as statistics: one module for each.

The formats and views of a run name the aggregates that it has, see `fmapviz.core.members`. `fmapviz.run.publish` keeps their
files up to date.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fmapviz.core import registry
from fmapviz.core.file_names import UNIT_FILE
from fmapviz.store import run_files
from fmapviz.store.unit import holds_images, read_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.config import RunConfig, RunInfo
    from fmapviz.store.run_files import Content

Summary = TypeVar("Summary")
UNREADABLE = (OSError, KeyError, TypeError, ValueError, OverflowError)


class Aggregate(Protocol[Summary]):
    """A result over all images of a run, made from files of their units.

    Runs are divided, interrupted and resumed, so the units on the disk are the only complete source. An image counts once
    because it lies in one unit. Floating-point sums depend on their order, so units are always merged in natural order of
    their names, which makes the result equal to the last digit.

    """

    def summarize(self, unit: Path, /) -> Summary:
        """Summarize the images of a finished unit, written by this version or an older one.

        Raises:
            OSError, KeyError, TypeError, ValueError, OverflowError: A file of the unit is missing or damaged.
        """

    def merge(self, summaries: Iterable[Summary], /) -> Summary:
        """Merge summaries of disjoint sets of images, in the given order; none of them is kept."""

    def publish(self, summary: Summary, info: RunInfo, /) -> Mapping[str, Content]:
        """Return the contents of the run-level files by file name, or a function that writes one."""

    def report(self, run: Path, /) -> tuple[Mapping[str, Any], list[str]]:
        """Return the lines that the command prints at the end of the run, read from the run-level files.

        Returns:
            Fields of the summary that `--json` prints, and lines of text for people.
        """


def names_of(config: RunConfig) -> list[str]:
    """Return the aggregates that the formats and views of a run feed, without importing any of them.

    Example:
        >>> from fmapviz.config import RunConfig
        >>> names_of(RunConfig("alexnet", to="png,stats,html"))
        ['statistics', 'images']
    """
    members = (*map(registry.form, config.to), *map(registry.view, config.views))
    return list(dict.fromkeys(chain.from_iterable(member.aggregates for member in members)))


def published_names(run: Path) -> list[str]:
    """Return the aggregates that have run-level files in a run, or a unit of their own that these are made from.

    The formats and views of the run need not feed them: another command may have made the unit, and not yet the files.
    """
    made = {entry["name"] for entry in (run_files.read(run) or {"files": ()})["files"]}
    return [
        name
        for name, each in registry.aggregates().items()
        if not made.isdisjoint(each.run_files) or (each.unit and os.path.isfile(run / each.unit / UNIT_FILE))
    ]


def unit_files(names: Iterable[str]) -> set[str]:
    """Return the names of the files of units that aggregates read, besides `unit.json`.

    Example:
        >>> sorted(unit_files(["statistics", "images"]))
        ['stats.parquet', 'stats.safetensors']
    """
    return {file for name in names for file in registry.aggregates()[name].reads}


def gather(aggregate: Aggregate[Summary], units: Iterable[Path]) -> tuple[Summary, list[Path]]:
    """Merge the summaries of units.

    Args:
        aggregate: Which result.
        units: The units' directories, in natural order of their names.

    Returns:
        The merged summary, and the units of images left out because their files are missing or damaged.
    """
    left_out: list[Path] = []

    def summaries() -> Iterator[Summary]:
        for unit in units:
            try:
                yield aggregate.summarize(unit)
            except UNREADABLE:
                if holds_images(read_unit(unit)):
                    left_out.append(unit)

    return aggregate.merge(summaries()), left_out
