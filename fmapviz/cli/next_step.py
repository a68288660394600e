"""The grey line at the end of a first run in a terminal: one command to go on with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fmapviz.cli.printing import is_terminal, print_message
from fmapviz.core import registry
from fmapviz.core.file_names import RUN_FILE
from fmapviz.core.platforms import in_shell
from fmapviz.core.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.config import RunConfig
    from fmapviz.events import RunSummary

_HEAT_MAP = "gradcam"  # the view to try after a first report
_LONGEST = 400  # characters; of more inputs, such as those of a glob, a command is not worth reading


def is_first(out: str | Path) -> bool:
    """Return True if a directory of runs holds none yet."""
    return not is_url(out) and not (os.path.isdir(out) and any(Path(out).glob(f"*/{RUN_FILE}")))


def show_next_step(config: RunConfig, summary: RunSummary, *, first: bool, predicted: bool) -> None:
    """Show what to do after a run, in a terminal with colours.

    Args:
        config: The configuration of the run, or of a comparison.
        summary: How it ended.
        first: Whether its directory held no other run before.
        predicted: Whether classes were predicted, which heat maps need.
    """
    if (
        not (is_terminal(sys.stdout) and is_terminal(sys.stderr))
        or "NO_COLOR" in os.environ
        or os.environ.get("TERM") == "dumb"
    ):
        return
    if summary.failures:
        print_message(_gray(f"what {summary.failures[0].code} means: fmapviz guide {summary.failures[0].code}"))
    elif first and summary.exit_code == 0 and (step := _step_after(config, predicted=predicted)):
        aim, words = step
        command = in_shell("fmapviz", *words)
        if len(command) <= _LONGEST and command.isprintable():
            print_message(_gray(f"next, {aim}: {command}"))


def _step_after(config: RunConfig, *, predicted: bool) -> tuple[str, Sequence[str]] | None:
    """Return what a command is for, and its words; None if the same command with more options would be refused."""
    report = next(iter(registry.pages()))
    is_pair = any(registry.view(view).networks == 2 for view in config.views)
    if config.name or config.shard or config.part or config.engine or config.single_file or "-" in sys.argv:
        return None
    if report not in config.to:
        return "a report in the browser", _typed(*(("--to", report) if is_pair else ("--open",)))
    if is_pair:
        return None
    chosen = config.layers or config.types or config.exclude or config.output
    if predicted and not chosen and _HEAT_MAP in registry.views() and _HEAT_MAP not in config.views:
        return "the regions that speak for the class", _typed("--view", _HEAT_MAP)
    return "what else can be drawn", ("guide", "layers-and-views")


def _typed(*more: str) -> list[str]:
    """Return the words of this command with more options, which are before a `--`."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *more, *words[end:]]


def _gray(text: str) -> str:
    return typer.style(text, fg=typer.colors.BRIGHT_BLACK)
