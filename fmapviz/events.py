"""The events of a run and its summary."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from fmapviz.core import registry
from fmapviz.core.notebook import gallery, link, table, text
from fmapviz.core.urls import UrlPath
from fmapviz.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fmapviz.config import RunInfo
    from fmapviz.data import Failure, Prediction

Status = Literal["done", "skipped", "failed"]

MOST_SHOWN = 2  # images whose pictures are shown in a notebook
_MOST_FAILURES = 4  # in a notebook


def by_frequency(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts, the largest first and equal ones by name, independent of the order of the files.

    Example:
        >>> by_frequency({"hidden": 1, ".svg": 1, ".txt": 2})
        {'.txt': 2, '.svg': 1, 'hidden': 1}
    """
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def describe_left_out(counts: Mapping[str, int]) -> str:
    """Describe the files and folders among the inputs that are no images.

    Example:
        >>> describe_left_out({".svg": 3, "hidden": 1})
        '4 files or folders (3 .svg, 1 hidden)'
    """
    total = sum(counts.values())
    ordered = by_frequency(counts)
    listed = [f"{count} {reason}" for reason, count in ordered.items()]
    others = [f"{total - sum(list(ordered.values())[:8])} others"] if len(listed) > 8 else []
    return f"{total} file{'' if total == 1 else 's'} or folder{'' if total == 1 else 's'} ({', '.join(listed[:8] + others)})"


@dataclass(frozen=True, slots=True)
class Started:
    """Event: the run directory exists and images are about to be read."""

    directory: Path
    info: RunInfo


@dataclass(frozen=True, slots=True)
class Outcome:
    """Event: one input is done, skipped or failed.

    Attributes:
        path: The input.
        status: `done`, `skipped` because it was finished before, or `failed`.
        unit: Its output directory; None if it failed.
        failure: Why it failed, else None.
        notices: Remarks on its decoding and drawing.
        pictures: Number of pictures written.
        seconds: From the start of the forward pass to the finished directory.
        predictions: Predicted classes, the likeliest first.
        bytes: Number of bytes written.
    """

    path: str
    status: Status
    unit: Path | None = None
    failure: Failure | None = None
    notices: tuple[str, ...] = ()
    pictures: int = 0
    seconds: float = 0.0
    predictions: tuple[Prediction, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Event: a remark on the whole run."""

    message: str


@dataclass(frozen=True, slots=True)
class Staged:
    """Event: an image is drawn into the hidden directory of its shard; it is done when the shard is complete.

    Attributes:
        path: The image.
        bytes: Number of bytes written.
    """

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Event: all inputs are counted.

    Attributes:
        images: Number of inputs; with `part`, its share of them.
    """

    images: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """Event: some of the many passes that views of an image need are done; at most a few each second, none from Ray.

    Attributes:
        path: The image; of a batch its first one.
        done: Number of passes so far.
        total: Number of passes in all, about.
    """

    path: str
    done: int
    total: int


Event = Started | Counted | Outcome | Notice | Staged | Advanced


@dataclass(frozen=True, slots=True, repr=False)
class RunSummary:
    """How a run ended; `done + skipped + failed == found`.

    An image of a series counts once for each checkpoint.

    Attributes:
        directory: The run directory.
        found: Number of inputs.
        done: Number of images drawn by this run.
        skipped: Number of images finished by earlier runs.
        failed: Number of inputs that failed.
        pictures: Number of pictures written by this run.
        once: Number of pictures that show the model, or all images of the run.
        steps: Number of checkpoints at which images are drawn; 0 without a series.
        layers: Number of layers drawn of the last image.
        not_executed: Chosen layers that no forward pass executed.
        undrawn: Executed layers without a picture, with the reason.
        failures: The failures, in order.
        seconds: From the first image to the last.
        model_pictures: Whether the run consists of pictures of the model, which need no image.
        stopped: Whether `strict` ended the run at a failure.
        results: Values of the results over all images, as `--json` prints them.
        highlights: The same as lines of text.
        left_out: Directories left out of the results over all images because files in them are damaged.
        notices: Remarks on the whole run, for instance why its name has a number.
        units: Directories of the first images by name, whose pictures are shown in a notebook.
        same: Whether a run that was drawn again has the digest of the first one; None: it was not, or one has no digest.
        no_inputs: Number of files and folders among the inputs that are no images, by reason: `hidden`, `no suffix`, `.svg`.
    """

    directory: Path
    found: int
    done: int
    skipped: int
    failed: int
    pictures: int
    layers: int
    not_executed: tuple[str, ...]
    undrawn: Mapping[str, str]
    failures: tuple[Failure, ...]
    seconds: float
    once: int = 0
    steps: int = 0
    model_pictures: bool = False
    stopped: bool = False
    results: Mapping[str, Any] = field(default_factory=dict)
    highlights: tuple[str, ...] = ()
    left_out: tuple[Path, ...] = ()
    notices: tuple[str, ...] = ()
    no_inputs: Mapping[str, int] = field(default_factory=dict)
    units: tuple[Path, ...] = ()
    same: bool | None = None

    def __repr__(self) -> str:
        """Return its fields, without those that are zero, False or empty, and those that repeat others."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name not in {"results", "units"})
        return f"RunSummary({', '.join(f'{name}={value!r}' for name, value in values if value)})"

    def _repr_html_(self) -> str:
        """Return a table with links, and some pictures, for notebooks; no text in it is taken as HTML."""
        pages = registry.pages().values()
        report = [link(self.directory / page) for page in pages if os.path.isfile(self.directory / page)]
        counts = [("done", self.done), ("skipped", self.skipped), ("failed", self.failed)]
        failures = [f"{each.message} [{each.code}]" for each in self.failures[:_MOST_FAILURES]]
        if self.failed > len(failures):
            failures.append(f"and {self.failed - len(failures)} more")
        series = f", at {counted(self.steps, 'checkpoint')}" if self.steps else ""
        rows = [
            ("directory", link(self.directory)),
            ("report", "<br>".join(report)),
            (
                "comparisons" if series else "images",
                f"{', '.join(f'{count} {status}' for status, count in counts if count) or 'none'}{series}",
            ),
            ("pictures", text(self.pictures)),
            *(
                (label, "<br>".join(map(text, lines)))
                for label, lines in (("failures", failures), ("notices", self.notices))
            ),
        ]
        shown = [gallery(unit.name, _pictures_of(unit)) for unit in self.units]
        more = self.done + self.skipped - len(self.units)
        rest = f"<div>and {counted(more, 'more image')}</div>" if any(shown) and more > 0 else ""
        return f"{table((label, cell) for label, cell in rows if cell)}{''.join(shown)}{rest}"

    @property
    def dead(self) -> Mapping[str, tuple[int, int, int]]:
        """For each feature map three numbers: channels that have one value in all images, dead channels, and all channels.

        Empty without the format `stats`. A channel is dead if it has the same value everywhere in each image.
        """
        dead: Mapping[str, tuple[int, int, int]] = self.results.get("dead", {})
        return dead

    @property
    def exit_code(self) -> int:
        """0 if all is done, 3 if inputs failed or were left out, or the digest is another one, 4 if nothing is done."""
        if not self.done + self.skipped:
            return 0 if self.model_pictures else 3 if self.stopped else 4
        return 3 if self.failed or self.left_out or self.same is False else 0


def _pictures_of(unit: Path) -> list[Path]:
    """Return the pictures of an image, the input first; none if they are not on this machine."""
    if isinstance(unit, UrlPath):
        return []
    return sorted(unit.glob("*.png"), key=lambda path: (path.name != "input.png", path.name))
