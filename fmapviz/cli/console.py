"""Show the events of a run: as text for people, as JSON lines for scripts."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fmapviz.cli.options import as_typed
from fmapviz.cli.printing import align, print_json, print_line, print_message
from fmapviz.cli.progress import ProgressLine
from fmapviz.cli.settings import describe_settings
from fmapviz.core import registry
from fmapviz.core.platforms import in_shell
from fmapviz.core.settings_file import settings_file
from fmapviz.core.urls import is_url
from fmapviz.core.words import counted
from fmapviz.errors import first_few, printable
from fmapviz.events import Advanced, Counted, Notice, Outcome, Staged, Started, describe_left_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.data import Failure
    from fmapviz.events import Event, RunSummary
    from fmapviz.run.estimate import Estimate


_MOST_LAYERS = 10  # in the table of a comparison
_MOST_LINES = 20  # of predictions without -v: about a terminal's height


class Console:
    """Prints the results of a run on standard output and its messages on standard error.

    Args:
        verbosity: -1 prints errors only, 0 notices too, 1 a line per image.
        json: Print one JSON object per line on standard output, the summary last.
    """

    def __init__(self, *, verbosity: int = 0, json: bool = False) -> None:
        self._verbosity = verbosity
        self._json = json
        self._progress = ProgressLine(shown=verbosity >= 0)
        self._shard: int | None = None
        self._has_pages = False
        self._formats: tuple[str, ...] = ()
        self._reported: set[str] = set()
        self._lines = 0  # of predictions
        self.has_predictions = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Show one event of a run."""
        if isinstance(event, Started):
            self._show_start(event)
        elif isinstance(event, Notice):
            message = as_typed(event.message)
            self._print_object("notice", message=message)
            self._print_notice(message)
        elif isinstance(event, Counted):
            self._progress.total = event.images
        elif isinstance(event, Advanced):
            self._progress.advance(event.path, event.done, event.total)
        elif isinstance(event, Staged):
            self._progress.staged += 1
            self._progress.update()
        else:
            self._show_outcome(event)

    def show_summary(self, summary: RunSummary, out: str | Path) -> None:
        """Show how a run ended, and the commands and pages that open its results.

        Args:
            summary: The result of the run.
            out: The directory of all runs.
        """
        self._progress.stop()
        if summary.not_executed:
            layers = f"{counted(len(summary.not_executed), 'layer')}: {', '.join(summary.not_executed)}"
            self._print_notice(f"not executed: {layers}")
        undrawn: dict[str, list[str]] = {}
        for name, reason in summary.undrawn.items():
            undrawn.setdefault(reason, []).append(name)
        for reason, names in undrawn.items():
            self._print_notice(f"not drawn: {first_few(names)}: {as_typed(reason)}")
        if self._verbosity > 0 and summary.no_inputs:
            self._print_notice(f"no images among the inputs: {describe_left_out(summary.no_inputs)}")
        if self._verbosity >= 0:
            print_message(_sentence(summary))
            for row in [] if self._json else _changes(summary.results.get("layers", [])):
                print_message(printable(row))
        has_steps = bool(self._shard or self._has_pages or summary.steps)
        commands = self._open_commands(out, has_steps=has_steps) if summary.exit_code != 4 else {}
        pages = [summary.directory / page for form, page in registry.pages().items() if form in self._formats]
        pages = [page for page in pages if os.path.exists(page) or (is_url(str(page)) and summary.exit_code != 4)]
        if self._json:
            fields = asdict(summary)
            for name in ("model_pictures", "units", "highlights", "notices", "same"):  # the last two have separate lines
                del fields[name]
            fields |= {"dead": summary.dead, **fields.pop("results")}
            fields["undrawn"] = {name: as_typed(reason) for name, reason in summary.undrawn.items()}
            opened = {name: commands.get(name) for name, form in registry.formats().items() if form.open_with}
            fields |= {"exit_code": summary.exit_code, **opened, "report": next(iter(pages), None)}
            self._print_object("summary", **fields)
            return
        for line in (summary.directory, *commands.values(), *pages, *map(as_typed, summary.highlights)):
            print_line(printable(str(line)))

    def _open_commands(self, out: str | Path, *, has_steps: bool) -> dict[str, str]:
        """Return the command that opens the results of each format that has one."""
        forms = {name: registry.form(name) for name in sorted(self._formats)}
        commands = {name: form.open_command(str(out), has_steps=has_steps) for name, form in forms.items()}
        return {name: command for name, command in commands.items() if command}

    def _show_start(self, event: Started) -> None:
        info = event.info
        self._formats = tuple(info.config.to)
        self._shard = info.config.shard
        self._has_pages = any(registry.view(view).paged for view in info.config.views)
        self._print_object(
            "run", directory=event.directory, model=info.model, weights=info.weights, fingerprint=info.fingerprint,
            settings=info.settings,
        )  # fmt: skip
        if self._verbosity > 0:
            print_message(f"{info.label} into {printable(str(event.directory))}; input: {info.preparation}")
        self._progress.start()

    def _print_outcome(self, event: Outcome) -> None:
        fields = asdict(event) | {"predictions": [each.record for each in event.predictions]}
        fields["notices"] = list(map(as_typed, event.notices))
        del fields["failure"]
        if event.status == "skipped":
            del fields["predictions"]  # they are in its unit.json
        if event.failure:
            fields |= {"code": event.failure.code, "message": event.failure.message}
        self._print_object("image", **fields)

    def _show_outcome(self, event: Outcome) -> None:
        progress = self._progress
        progress.leave(event.path)
        progress.skipped += event.status == "skipped"
        progress.drawn += event.status == "done"
        progress.failed += event.status == "failed"
        progress.staged -= event.status == "done" and progress.staged > 0
        if event.failure:
            self._show_failure(event.failure)
        if self._json:  # a copy of a dataclass takes longer than to find out that an image is finished
            self._print_outcome(event)
        for message in event.notices:
            self._print_notice(f"{in_shell(_short(event.path))}: {as_typed(message)}")
        predictions = ", ".join(map(str, event.predictions))
        self.has_predictions = self.has_predictions or bool(predictions)
        if self._verbosity > 0 and event.status != "failed":
            line = f"{event.status} {_short(event.path)} ({counted(event.pictures, 'picture')}, {event.seconds:.2f} s)"
            progress.print(printable(f"{line}{predictions and ': '}{predictions}"))
        elif self._verbosity == 0 and predictions and not self._shard:  # predictions of shards are in their index
            self._lines += 1
            if self._lines <= _MOST_LINES:
                progress.print(printable(f"{_short(event.path)}: {predictions}"))
            elif self._lines == _MOST_LINES + 1:
                progress.print("predictions of further images are in unit.json and the report; -v prints all")
        progress.update()

    def _show_failure(self, failure: Failure) -> None:
        # User code fails in the same way for every image; only the last line of its traceback may differ.
        where = failure.report and failure.report.rpartition("\n")[0]
        if failure.report and where and where not in self._reported:
            self._reported.add(where)
            self._progress.print(failure.report)
        self._progress.print(f"error: {printable(failure.message)} [{failure.code}]")
        if failure.hint:
            self._progress.print(f"hint: {printable(as_typed(failure.hint))}")

    def _print_notice(self, message: str) -> None:
        if self._verbosity >= 0:
            self._progress.print(f"notice: {printable(message)}")

    def _print_object(self, event: str, **fields: Any) -> None:  # Any: values of all kinds become JSON
        if self._json:
            print_json({"event": event, **fields})


def show_sample_failure(event: Event) -> None:
    """Show the failure of an image of the sample that `--plan` draws."""
    if isinstance(event, Outcome) and event.failure:
        print_message(f"error: {printable(event.failure.message)} [{event.failure.code}]")


def show_estimate(estimate: Estimate, *, json: bool) -> None:
    """Show what a run would write and how long it would take."""
    if json:
        print_json({"event": "plan", **asdict(estimate), "fits": estimate.fits, "config": settings_file.get() or None})
        print_json({"event": "summary", "exit_code": 0 if estimate.fits else 6})
        return
    for line in estimate.lines():
        print_line(line)
    if settings := describe_settings():
        print_line(settings)


def _changes(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of the layers of a comparison that change most; empty if there are none."""
    largest: dict[str, Mapping[str, Any]] = {}  # by layer, ranked ones first
    for each in sorted(layers, key=lambda each: (not each["rank"], -each["relative_l2"] if each["rank"] else 0)):
        largest.setdefault(each["layer"], each)
    ranked, lines = [each for each in largest.values() if each["rank"]], []
    if ranked:
        series = any(each["step"] is not None for each in ranked)
        heading = ("layer", "relative L2", "SQNR", "max |B - A|", *(("at step",) if series else ()), "")
        rows = [
            (
                printable(each["layer"]), f"{each['relative_l2']:.3g}",
                f"{round(each['sqnr'], 1) + 0.0:.1f} dB", f"{each['max_abs']:.3g}",  # not -0.0
                *((str(each["step"]),) if series else ()), each["note"],
            )
            for each in ranked[:_MOST_LAYERS]
        ]  # fmt: skip
        more = f"; {len(ranked) - _MOST_LAYERS} more are in layers.csv" if len(ranked) > _MOST_LAYERS else ""
        lines = [f"layers that change most{more}", *align([heading, *rows], right={1, 2, 3, *((4,) if series else ())})]
        lines.append("relative L2: norm of B - A over that of A, over all images; 0.1 is 20 dB")
    notes: dict[str, list[str]] = {}
    for name, each in largest.items():
        if not each["rank"]:
            notes.setdefault(each["note"], []).append(name)
    return [*lines, *(f"{note}: {first_few(names)}" for note, names in notes.items())]


def _short(path: str) -> str:
    """Return the path of an image relative to the working directory, if it is below it."""
    with suppress(ValueError, OSError):  # OSError: the working directory was removed
        return str(Path(path).relative_to(Path.cwd()))
    return path


def _sentence(summary: RunSummary) -> str:
    if not summary.found:
        if summary.model_pictures and not summary.pictures:
            return f"pictures of the model already done in {summary.seconds:.1f} s"
        return f"{counted(summary.pictures, 'picture')} of the model in {summary.seconds:.1f} s"
    unread = sum(each.code == "E_WEIGHTS" for each in summary.failures)  # checkpoints, not images
    counts = {"done": summary.done, "already done": summary.skipped, "failed": summary.failed - unread}
    parts = {word: number for word, number in counts.items() if number}
    series = f" at {counted(summary.steps, 'checkpoint')}" if summary.steps else ""
    if len(parts) == 1:
        word, number = next(iter(parts.items()))
        images = f"{counted(number // max(1, summary.steps), 'image')}{series} {word}"
    else:
        of = f"comparisons of an image{series}" if series else counted(summary.found, "image")
        images = f"{of}: {', '.join(f'{number} {word}' for word, number in parts.items())}"
    images += f", {counted(unread, 'checkpoint')} failed" if unread else ""
    layers = f"{counted(summary.layers, 'layer')}, " if summary.layers else ""
    drawn = f"{';' if len(parts) > 1 else ':'} {layers}{counted(summary.pictures, 'picture')}" if summary.done else ""
    ended = "; stopped at the first failure (--strict)" if summary.stopped else ""
    return f"{images}{drawn} in {summary.seconds:.1f} s{ended}"
