"""Show a run to a person at a terminal, in a log file, or to a script that reads JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self, TextIO

from fmapviz.errors import FmapvizError, OutputError, printable
from fmapviz.urls import is_url
from fmapviz.values import Counted, Notice, Outcome, Staged, Started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rich.progress import Progress

    from fmapviz.forecast import Forecast
    from fmapviz.values import Event, LayerInfo, RunSummary

REPORT = "index.html"
DEAD_LAYERS = 20  # told at the end of a run
LOG_INTERVAL_SECONDS = 30.0


class Console:
    """Prints what happens.

    Results go to standard output, everything else to standard error; with `json`, one object per line goes to standard
    output and the last one is the summary.

    Args:
        verbosity: -1 errors only, 0 notices too, 1 a line per image.
        json: Objects instead of words on standard output.
    """

    def __init__(self, *, verbosity: int = 0, json: bool = False) -> None:
        self._verbosity = verbosity
        self._json = json
        self._total: int | None = None
        self._staged = 0  # drawn, but in a shard that is not yet whole
        self._shard: int | None = None
        self._seen = {"done": 0, "skipped": 0, "failed": 0}
        self._begun = self._logged = time.monotonic()
        self._bar: Progress | None = None
        self._formats: tuple[str, ...] = ()
        self._reported: set[str | None] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop_bar()

    def tell(self, event: Event) -> None:
        """Show one event of a run."""
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Notice):
            self._object("notice", message=event.message)
            self.notice(event.message)
        elif isinstance(event, Counted):
            self._total = event.images
        elif isinstance(event, Staged):
            self._staged += 1
            self._progress()
        else:
            self._image(event)

    def finish(self, summary: RunSummary, out: str | Path) -> None:
        """Show how a run ended, and what to type next."""
        self._stop_bar()
        for message in _remarks(summary):
            self.notice(message)
        if self._verbosity >= 0:
            self._say_error(_sentence(summary))
        command = f"tensorboard --logdir {shlex.quote(str(out))}"
        if self._shard:
            command += f" --samples_per_plugin images={self._shard}"  # otherwise it shows ten of a shard
        shown = "tensorboard" in self._formats and summary.exit_code != 4
        page = summary.directory / REPORT
        report = "html" in self._formats and (page.exists() or (is_url(str(page)) and summary.exit_code != 4))
        if self._json:
            fields = asdict(summary)
            del fields["complete"]
            self._object("summary", **fields, exit_code=summary.exit_code, tensorboard=command if shown else None,
                         report=page if report else None)  # fmt: skip
        else:
            say(printable(str(summary.directory)))
            if shown:
                say(printable(command))
            if report:
                say(printable(str(page)))
            for line in dead_channels(summary.dead):
                say(printable(line))

    def tell_briefly(self, event: Event) -> None:
        """Show of a run that is only tried out what fails."""
        if isinstance(event, Outcome) and event.failure:
            self._say_error(f"error: {printable(event.failure.message)} [{event.failure.code}]")

    def show(self, forecast: Forecast) -> None:
        """Show what a run would do."""
        fields = asdict(forecast)
        if self._json:
            self._object("plan", **fields, fits=forecast.fits)
            self._object("summary", exit_code=0 if forecast.fits else 6)
            return
        for line in forecast.lines():
            say(line)

    def notice(self, message: str) -> None:
        """Tell something worth knowing, on standard error."""
        if self._verbosity >= 0:
            self._say_error(f"notice: {printable(message)}")

    def _begin(self, event: Started) -> None:
        info = event.info
        self._formats = info.formats
        self._shard = info.shard
        self._begun = self._logged = time.monotonic()
        self._object(
            "run", directory=event.directory, model=info.model, weights=info.weights, fingerprint=info.fingerprint,
            settings=info.settings,
        )  # fmt: skip
        if self._verbosity > 0:
            self._say_error(f"{info.label} into {printable(str(event.directory))}; input: {info.preparation}")
        if self._verbosity >= 0 and sys.stderr is not None and sys.stderr.isatty():
            self._bar = _progress_bar()
            self._bar.start()
            self._bar.add_task("images", total=None, rate=0.0)

    def _image(self, event: Outcome) -> None:
        self._seen[event.status] += 1
        self._staged -= event.status == "done" and self._staged > 0
        fields = asdict(event) | {"predictions": [each.record for each in event.predictions]}
        del fields["failure"]
        if event.status == "skipped":
            del fields["predictions"]  # they are in its unit.json
        if event.failure:
            fields |= {"code": event.failure.code, "message": event.failure.message}
            self._report(event.failure.report)
            self._say_error(f"error: {printable(event.failure.message)} [{event.failure.code}]")
            if event.failure.hint:
                self._say_error(f"hint: {printable(event.failure.hint)}")
        self._object("image", **fields)
        for message in event.notices:
            self.notice(f"{event.path}: {message}")
        seen = ", ".join(map(str, event.predictions))
        if self._verbosity > 0 and event.status != "failed":
            told = f"{event.status} {event.path} ({event.pictures} pictures, {event.seconds:.2f} s)"
            self._say_error(printable(f"{told}{seen and ': '}{seen}"))
        elif self._verbosity == 0 and seen and not self._shard:  # of so many images it stands in the index
            self._say_error(printable(f"{event.path}: {seen}"))
        self._progress()

    def _report(self, report: str | None) -> None:
        """Show where the user's own code failed, once: it does so alike for every image."""
        where = report and report.rpartition("\n")[0]  # the last line may name what only this image is like
        if report and where not in self._reported:
            self._reported.add(where)
            self._say_error(report)

    def _progress(self) -> None:
        accounted = sum(self._seen.values()) + self._staged
        elapsed = time.monotonic() - self._begun
        rate = (accounted - self._seen["skipped"]) / elapsed if elapsed > 0 else 0.0
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=accounted, total=self._total, rate=rate)
        elif self._verbosity >= 0 and time.monotonic() - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = time.monotonic()
            left = f", about {(self._total - accounted) / rate:.0f} s left" if self._total and rate else ""
            total = f" of {self._total}" if self._total else ""
            self._say_error(f"progress: {accounted}{total} images, {rate:.1f} images/s{left}")

    def _object(self, event: str, **fields: Any) -> None:
        # Any: values of all kinds become JSON.
        if self._json:
            say_json({"event": event, **fields})

    def _say_error(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            say_error(text)

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._progress()
            self._bar.stop()
            self._bar = None


def layer_table(rows: list[LayerInfo]) -> list[str]:
    """Set the rows in columns, without a width limit: lines can be searched and cut."""
    cells = [("#", "layer", "type", "output", "parameters", "calls")]
    for row in rows:
        number, shape = ("-", "not executed") if row.shape is None else (str(row.index), " x ".join(map(str, row.shape)))
        name = f"{row.name} = {', '.join(row.aliases)}" if row.aliases else row.name
        cells.append((number, printable(name), row.type, shape, f"{row.parameters:,}", str(row.calls)))
    widths = [max(len(row[column]) for row in cells) for column in range(6)]
    right = {0, 4, 5}
    return [
        "  ".join(cell.rjust(width) if column in right else cell.ljust(width)
                  for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]  # fmt: skip


_results: list[TextIO | None] = []


@contextmanager
def results_only() -> Iterator[None]:
    """Keep standard output for what is said here; what anybody else prints meanwhile goes to standard error."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def say(text: str) -> None:
    """Print a line on standard output; if nobody listens any more, go on in silence.

    Raises:
        OutputError: Standard output is a file on a full disk, say.
    """
    stream: TextIO | None = _results[-1] if _results else sys.stdout
    if stream is None:  # closed from the start; `print` would take what stands in its place
        return
    try:
        print(f"{text}\n", end="", flush=True, file=stream)  # in one piece: a signal may come between two
    except OSError as error:
        _give_up(error)


def _give_up(error: OSError) -> None:
    """Write nothing more to standard output; that nobody listens is no failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again when the interpreter exits
    if not isinstance(error, BrokenPipeError):
        raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def say_bytes(data: bytes) -> None:
    """Write data to standard output.

    Raises:
        OutputError: It is a file on a full disk, say.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        _give_up(error)


def say_json(fields: dict[str, Any]) -> None:
    """Print an object as one line of JSON, in ASCII whatever it holds."""
    say(json.dumps(fields, default=str, allow_nan=False))


def say_error(text: str) -> None:
    """Print a line on standard error."""
    with suppress(OSError):  # a closed or full standard error is no reason to end
        print(text, file=sys.stderr, flush=True)


def show_error(error: FmapvizError) -> None:
    """Print a failure and, where it helps, what to do next; of code of the user's own also where it failed."""
    if error.report:
        say_error(error.report)
    say_error(f"error: {printable(str(error))}")
    if error.hint:
        say_error(f"hint: {printable(error.hint)}")


def _progress_bar() -> Progress:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("images  {task.fields[rate]:.1f} images/s"),
        TimeRemainingColumn(),
        console=RichConsole(stderr=True),
        transient=True,
    )


def dead_channels(dead: Mapping[str, tuple[int, int, int]]) -> list[str]:
    """Say in how many channels of which layers all values are the same, over all images or on every single one.

    Example:
        >>> dead_channels({"layer3.2.conv1": (12, 12, 256), "layer4.0.conv1": (0, 0, 512)})
        ['layer3.2.conv1: 12 of 256 channels never vary']
    """
    told = []
    for layer, (constant, flat, channels) in dead.items():
        if constant:
            told.append(f"{layer}: {constant} of {channels} channels never vary")
        if flat > constant:
            told.append(f"{layer}: {flat - constant} of {channels} channels are the same all over each image")
    if dead and not told:
        what = "layer" if not any(" (" in name for name in dead) else "feature map"  # several may be of one layer
        return [f"every channel of {'the' if len(dead) == 1 else 'all'} {_count(len(dead), what)} varies"]
    hidden = len(told) - DEAD_LAYERS
    return [*told[:DEAD_LAYERS], f"... and {_count(hidden, 'more such line')}: see stats.csv"] if hidden > 0 else told


def _remarks(summary: RunSummary) -> list[str]:
    remarks = []
    if summary.not_executed:
        missed = summary.not_executed
        remarks.append(f"not executed: {_count(len(missed), 'layer')}: {', '.join(missed)}")
    remarks.extend(f"not drawn: {name}: {reason}" for name, reason in summary.undrawn.items())
    return remarks


def _sentence(summary: RunSummary) -> str:
    counts = {"done": summary.done, "already there": summary.skipped, "failed": summary.failed}
    parts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    each = f"{_count(summary.layers, 'feature map')} each, " if summary.layers else ""
    drawn = f"; {each}{_count(summary.pictures, 'picture')}" if summary.done else ""
    if not summary.found:
        return f"{_count(summary.pictures, 'picture')} of the model in {summary.seconds:.1f} s"
    ended = "; ended at the first failure (--strict)" if summary.stopped else ""
    return f"{_count(summary.found, 'image')}: {parts}{drawn} in {summary.seconds:.1f} s{ended}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
