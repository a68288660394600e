"""`fmapviz run`: draw the views of a model for every input."""

from __future__ import annotations

import os
import re
import sys
import webbrowser
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fmapviz.cli.commands import commands
from fmapviz.cli.next_step import is_first, show_next_step
from fmapviz.cli.options import read_options, takes_options
from fmapviz.cli.pages import PAGES, find_page
from fmapviz.cli.printing import print_message, results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.synonyms import meant_command
from fmapviz.config import COMMON, RUNNING, Engine, InputOptions, RunConfig, Style
from fmapviz.core import registry
from fmapviz.core.platforms import has_display, in_shell
from fmapviz.core.urls import is_url
from fmapviz.errors import RefusedError, RequestError, nearest, quote
from fmapviz.models.load import check_name, hint_for, is_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TEXT_BROWSERS = {"www-browser", "links", "links2", "elinks", "lynx", "w3m"}  # these would occupy the terminal

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name such as alexnet (`fmapviz models` lists them); timm:, hf:, hub: or ultralytics:NAME; best.pt; or your "
        "code, my_net.py:build.",
    ),
]
running_option = partial(typer.Option, rich_help_panel=RUNNING)
JsonOption = Annotated[
    bool, running_option("--json", help="Print one JSON object per line on standard output, the summary last.")
]


QuietOption = Annotated[
    bool, running_option("-q", "--quiet", help="Print results and errors only; the run's directory is a result.")
]
VerboseOption = Annotated[bool, running_option("-v", "--verbose", help="Add a line per image.")]
ShowOption = Annotated[
    bool,
    running_option(
        "--show",
        help="Show the first pictures here, if the terminal can: as kitty, iTerm2, or in sixels, which need the extra show.",
    ),
]


@takes_options()
def run(
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT...",
            help="Images, folders, or their addresses such as s3://...; - reads paths from standard input.",
            show_default=False,
        ),
    ] = None,
    *,
    null: Annotated[bool, running_option("-0", "--null", help="Paths on standard input end with a NUL byte.")] = False,
    plan: Annotated[bool, running_option("--plan", help="Dry run: estimate size and time from a small sample.")] = False,
    open_report: Annotated[
        bool, typer.Option("--open", help="Write a report and open it in the browser.", rich_help_panel=COMMON)
    ] = False,
    show: ShowOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    **options: Any,  # the fields of RunConfig
) -> int:
    """Draw the feature maps of MODEL for every INPUT. With --view, draw gradients and class activation maps too.

    Each image has its own directory, OUT/NAME/IMAGE. Finished images are skipped by the next run. `fmapviz guide` explains
    models, weights, views and formats.

    Exit codes: 0 all done; 1 a bug; 2 wrong request; 3 some inputs failed; 4 nothing could be drawn; 5 the output could
    not be written; 6 refused, the directory belongs to something else, or the run does not fit on the disk; 129, 130, 143
    interrupted.
    """
    _check_model(model, inputs or [])
    config = _configure(model, inputs or [], options, null=null, open_report=open_report)
    if show and not (quiet or json):
        from fmapviz.cli.show import check_show

        check_show()

    are_typed = "-" in (inputs or []) and os.isatty(0)
    if not (quiet or are_typed):  # the terminal would show typed text in the same line
        show_status(f"loading {model}{' to draw a sample' if plan else ''} ...")
    with importing():
        from fmapviz.cli.console import Console, show_estimate, show_sample_failure
        from fmapviz.images import decode_pool

        decode_pool.start()  # while torch is imported
        from fmapviz.run.estimate import estimate
        from fmapviz.run.loop import run as run_all

    verbosity, first = -1 if quiet else int(verbose), is_first(config.out)
    with results_only(), Console(verbosity=verbosity, json=json) as console:
        if plan:
            expected = estimate(replace(config, on_event=show_sample_failure))
            show_estimate(expected, json=json)
            return 0 if expected.fits else RefusedError.exit_code
        summary = run_all(replace(config, on_event=console.show))
        console.show_summary(summary, str(config.out))
    page = next(iter(registry.pages().values()))
    if open_report and summary.exit_code in {0, 3} and not open_page(summary.directory / page):
        print_message("notice: cannot open a browser here; the path of the report is printed above")
    if show and not (quiet or json):
        from fmapviz.cli.show import show_pictures

        show_pictures(summary.units, summary.directory)
    if not (quiet or json):
        show_next_step(config, summary, first=first, predicted=console.has_predictions)
    return summary.exit_code


def open_page(page: Path) -> bool:
    """Open a page in the browser of the desktop, or that of the variable BROWSER; return False if there is none."""
    if not has_display():
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    program, *_ = getattr(browser, "name", "").split() or [""]  # BROWSER may hold a path, and arguments
    return Path(program).name not in _TEXT_BROWSERS and browser.open(page.absolute().as_uri())


def _configure(model: str, inputs: list[str], options: dict[str, Any], *, null: bool, open_report: bool) -> RunConfig:
    """Return the configuration that the command line asks for.

    Raises:
        RequestError: An option is wrong, or conflicts with another.
    """
    if options["out"] == "":
        raise RequestError("--out is empty", hint="--out . is the current directory")
    name = options.pop("engine")
    typed = read_options(options)
    given = typed[RunConfig]
    report = next(iter(registry.pages()))
    if open_report:
        given["to"] = tuple(dict.fromkeys((*given.get("to", ()), report)))
    if name:
        given["engine"] = Engine.parse(name, workers=given.get("workers"), **typed[Engine])
    style, prepared = Style(**typed[Style]), InputOptions(**typed[InputOptions])
    listed = _read_paths(inputs, null=null) if "-" in inputs else inputs
    config = RunConfig(model, listed, style=style, preprocessing=prepared, **given)
    if open_report and is_url(config.out):
        raise RequestError("--open needs a local report", hint=f"--to {report} writes one to any --out")
    if not inputs and config.needs_images:
        raise RequestError("missing argument 'INPUT'", hint="images or folders; only views of the model itself need none")
    return config


def _check_model(spec: str, inputs: list[str]) -> None:
    """Raise `RequestError` if the model does not exist; its hint also names similar commands and pages of the guide."""
    try:
        check_name(spec)
    except RequestError as error:
        from fmapviz.images.find import is_input

        if spec == "fmapviz" and inputs:
            words = sys.argv[1:]
            words.remove(spec)
            hint = f"fmapviz is the command itself: `{in_shell('fmapviz', *words)}`"
            raise RequestError(f"no such command or model: {quote(spec)}", hint=hint) from error
        if is_input(spec):
            model = next(filter(is_model, inputs), "MODEL")
            first = [model, spec, *(path for path in inputs if path != model)]
            raise RequestError(
                f"no such command or model: {quote(spec)}", hint=f"the model comes first: `{in_shell('fmapviz', *first)}`"
            ) from error
        if re.fullmatch(r"[\w-]+", spec) and not os.path.isfile(f"{spec}.py"):
            raise _unknown_word(spec, alone=not inputs) from error
        raise


def _unknown_word(word: str, *, alone: bool) -> RequestError:
    """Return the error for a word that is no model; without inputs it may also be meant as a command or a page."""
    if hint := meant_command(word):
        return RequestError(f"no such command or model: {quote(word)}", hint=hint)
    meant = {page: f"`fmapviz guide {page}`" for page in PAGES}
    meant |= {command: f"`fmapviz {command}`" for command in commands()}
    meant |= {option: f"`fmapviz --{option}`" for option in ("help", "version")}
    near = [meant[name] for name in nearest(word, meant, cutoff=0.65)]
    with suppress(RequestError):
        near = [meant[find_page(word)]]
    if near:
        return RequestError(f"no such command or model: {quote(word)}", hint=f"did you mean {', '.join(near)}?")
    what, lists = "model", "`fmapviz models` lists all names"
    if alone:
        what, lists = "command or model", "`fmapviz --help` lists the commands, `fmapviz models` the models"
    return RequestError(f"no such {what}: {quote(word)}", hint=hint_for(word) or lists)


def _read_paths(inputs: Iterable[str], *, null: bool) -> Iterator[str]:
    """Yield the inputs, with `-` replaced by the paths on standard input."""
    from fmapviz.images.find import read_list

    for path in inputs:
        if path != "-":
            yield path
            continue
        try:
            with open(0, "rb", closefd=False) as stream:
                yield from read_list(stream, null=null)
        except OSError as error:
            raise RequestError(f"cannot read paths from standard input: {error.strerror}") from error
