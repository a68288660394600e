"""The contract of a result over all images of a run, such as statistics; one module of this package each.

The directory is the registry. A writer names the aggregates that it feeds in a constant, `AGGREGATES = "statistics"`: the
formats of a run decide which aggregates it has. `fmapviz.engine.publish` keeps their files up to date.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fmapviz.core import registry
from fmapviz.core.registry import AGGREGATES, WRITERS
from fmapviz.runs.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.core.config import RunInfo

Summary = TypeVar("Summary")
_UNREADABLE = (OSError, KeyError, TypeError, ValueError, OverflowError)


class Aggregate(Protocol[Summary]):
    """A result over all images of a run, made from what their units keep.

    Runs are divided, interrupted and resumed, so the units on the disk are the only complete source. An image counts once
    because it lies in one unit. Floating-point sums depend on their order, so units are always merged in natural order of
    their names, which makes the result equal to the last digit.

    Attributes:
        READS: Names of the files of a unit that `summarize` reads besides `unit.json`, separated by spaces.
        RUN_FILES: Names of the files that `publish` returns, likewise; without it none.
    """

    READS: str

    def summarize(self, unit: Path, /) -> Summary:
        """Summarize the images of a finished unit, written by this version or an older one.

        Raises:
            OSError, KeyError, TypeError, ValueError, OverflowError: A file of the unit is missing or damaged.
        """

    def merge(self, summaries: Iterable[Summary], /) -> Summary:
        """Merge summaries of disjoint sets of images, in the given order; none of them is kept."""

    def publish(self, summary: Summary, info: RunInfo, /) -> Mapping[str, bytes]:
        """Return the contents of the run-level files, by file name."""

    def report(self, run: Path, /) -> tuple[Mapping[str, Any], list[str]]:
        """Return what the command prints about the run at its end, read from the run-level files.

        Returns:
            Fields of the summary that `--json` prints, and lines of text for people.
        """


def names_of(formats: Iterable[str]) -> list[str]:
    """Return the aggregates that the writers of these formats feed, without importing any of them.

    Example:
        >>> names_of(["png", "stats", "html"])
        ['statistics', 'images']
    """
    fed = ((registry.constant(WRITERS, form, "AGGREGATES") or "").split() for form in formats)
    return list(dict.fromkeys(chain.from_iterable(fed)))


def unit_files(formats: Iterable[str]) -> set[str]:
    """Return the names of the files of units that the aggregates of these formats read, besides `unit.json`.

    Example:
        >>> sorted(unit_files(["png", "stats"]))
        ['stats.parquet', 'stats.safetensors']
    """
    return {file for name in names_of(formats) for file in (registry.constant(AGGREGATES, name, "READS") or "").split()}


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
            except _UNREADABLE:
                if (read_unit(unit) or {}).get("kind") != "model":  # which holds no images
                    left_out.append(unit)

    return aggregate.merge(summaries()), left_out
