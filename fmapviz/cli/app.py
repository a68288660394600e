"""The command line: its commands and their exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.main import get_command

from fmapviz.cli import progress
from fmapviz.cli.command import Command, LookUp
from fmapviz.cli.commands import COMPLETING, commands
from fmapviz.cli.former import FORMER
from fmapviz.cli.help import HelpGroup, print_first_help
from fmapviz.cli.printing import erase_status, print_error, print_json, print_line, print_message, summaries
from fmapviz.cli.process import (
    Interrupted,
    exit_now,
    handle_signals,
    interruption_behind,
    open_missing_streams,
    remove_staged,
)
from fmapviz.cli.settings import asks_for_json, configurable, locate, place_of
from fmapviz.core.members import load
from fmapviz.core.platforms import in_shell
from fmapviz.core.version import __version__
from fmapviz.errors import FmapvizError, RequestError, nearest, quote


class Commands(Mapping[str, Command]):
    """All commands, by their names; the code of each is imported when it is used first."""

    def __getitem__(self, name: str) -> Command:
        return _build(commands()[name].function, name)

    def __iter__(self) -> Iterator[str]:
        return iter(commands())

    def __len__(self) -> int:
        return len(commands())


@cache
def _build(function: str, name: str) -> Command:
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    looks_up = name in {"guide", "help"}  # an option, too
    command = load(function) if looks_up or name == "completion" else configurable(load(function))
    kind = LookUp if looks_up or name in {"completion", "models"} else Command
    alone.command(name, cls=kind, context_settings={"ignore_unknown_options": looks_up})(command)
    return cast("Command", get_command(alone))


class RunByDefault(HelpGroup):
    """A group of commands in which `fmapviz MODEL INPUT...` is short for `fmapviz run MODEL INPUT...`."""

    def __init__(self, **attributes: Any) -> None:  # Any: those of any group
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]  # a mapping that is only read

    def main(self, *args: Any, **options: Any) -> Any:  # Any: the arguments of every group
        """Run the command line, or answer the script of a shell at TAB."""
        if COMPLETING in os.environ:
            from fmapviz.cli.completion import answer

            return answer(self, sys.argv[1:])
        return super().main(*args, **options)

    # Any: the classes of contexts are not public.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the name of the command to the front, or insert `run`."""
        words = list(args)
        if not (words or ctx.resilient_parsing):
            print_first_help()
            ctx.exit()
        if words and words[0].partition("=")[0] not in {
            option for parameter in self.get_params(ctx) for option in parameter.opts
        }:
            command, words = self.split_command(ctx, words)
            words.insert(0, command or "run")
            self._refuse_help_as_a_file(*words)
        return super().parse_args(ctx, words)

    @staticmethod
    def _refuse_help_as_a_file(command: str, *words: str) -> None:
        """Raise `RequestError` if the only word after a command, or after a model, is `help`, and no file has this name."""
        if (
            words[-1:] == ("help",)
            and len(words) <= 1 + (command == "run")
            and command != "help"
            and not os.path.lexists("help")
        ):
            raise RequestError("no file or model is called 'help'", hint=f"`fmapviz {command} --help` shows all options")

    def split_command(self, ctx: Any, words: list[str]) -> tuple[str | None, list[str]]:
        """Return the command that the first word names, or None, and the other words."""
        position = self._first_word(ctx, words)
        if position is None or words[position] not in self.commands:
            return None, words
        return words[position], [*words[:position], *words[position + 1 :]]

    def _first_word(self, ctx: Any, words: list[str]) -> int | None:
        """Return the position of the first word that is neither an option nor the value of one."""
        left = iter(enumerate(words))
        for position, word in left:
            if word == "--":
                return None
            if not word.startswith("-") or word == "-":
                return position
            if self._takes_value(ctx, word):
                next(left, None)
        return None

    def _takes_value(self, ctx: Any, word: str) -> bool:
        """Return True if a word is an option with a value; a test checks that commands agree on this."""
        for command in self.commands.values():  # `run` first, which imports the fewest modules
            for parameter in command.get_params(ctx):
                if word in parameter.opts:
                    return not (getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))
        return word in FORMER


app = typer.Typer(
    name="fmapviz",
    cls=RunByDefault,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    subcommand_metavar="MODEL INPUT...",
    add_completion=False,
    context_settings={"help_option_names": ["--help"]},  # -h is another option
)


def _hidden(option: str, callback: Callable[[bool], None]) -> Any:  # Any: as Typer declares it
    return typer.Option(option, is_eager=True, hidden=True, callback=callback)


@app.callback()
def fmapviz(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=lambda on: _version(on=on)),
    ] = False,
    generate: Annotated[
        str | None,
        typer.Option(
            "--generate",
            metavar="man|schema|skill|complete-SHELL",
            help="Print a man page, the JSON Schema of the lines of --json, a skill for agents, or the script of a shell: "
            "complete-bash, complete-zsh, complete-fish or complete-powershell.",
            is_eager=True,
            show_default=False,
            callback=lambda ctx, value: _generate(ctx, value),  # noqa: PLW0108  it is defined below
        ),
    ] = None,
    install_completion: Annotated[
        bool, _hidden("--install-completion", lambda on: _completion(on=on, install=True))
    ] = False,
    show_completion: Annotated[bool, _hidden("--show-completion", lambda on: _completion(on=on, install=False))] = False,
) -> None:
    """See what every layer of a vision network computes.

    `fmapviz MODEL INPUT...` draws the feature maps of a model for images or folders. It is short for `fmapviz run`:
    `fmapviz run --help` shows all its options, and `fmapviz guide` lists the pages of the guide.
    """


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    handle_signals(_report_interruption)
    code = _main()
    erase_status()
    exit_now(code)


def _main() -> int:
    open_missing_streams()
    summaries.clear()
    try:
        return int(app(standalone_mode=False) or 0)
    except SystemExit as stop:  # raised by the parser, with 1 if the reader of its help is gone
        return 0 if stop.code in {None, 0, 1} else 2
    except (Interrupted, Exception) as error:  # noqa: BLE001  after a bug, too, --json ends with a summary
        return _end_after(error)


def _end_after(error: BaseException) -> int:
    """Report an error, a signal or a bug and return the exit code."""
    if interruption := interruption_behind(error):
        remove_staged()
        return _report_interruption(interruption)
    if isinstance(error, typer.TyperException):
        error = _usage_error(error)
    if isinstance(error, FmapvizError):
        locate(error)
        print_error(error)
        return _end_json(error.exit_code, error)
    traceback.print_exception(error)
    return _end_json(1, error)


def _report_interruption(interruption: Interrupted) -> int:
    if summaries:  # everything was done before the signal arrived
        return summaries[-1]
    print_message(f"interrupted{progress.describe()}")
    return _end_json(128 + interruption.number, interruption)


def _end_json(code: int, error: BaseException) -> int:
    """Print the summary that ends the output of `--json`, and return the exit code; that of a printed summary is final."""
    if summaries:
        return summaries[-1]
    if "--json" in sys.argv[1:] or asks_for_json():
        from fmapviz.cli.options import as_typed

        hint = as_typed(getattr(error, "hint", None) or "") or None
        print_json({"event": "summary", "exit_code": code, "error": str(error) or type(error).__name__, "hint": hint})
    return code


def _usage_error(error: typer.TyperException) -> RequestError:
    """Convert an error of the parser."""
    context = getattr(error, "ctx", None)
    command = context.info_name if context and context.parent else "run"
    hint = f"see `fmapviz {command} --help`" if context and context.parent else "see `fmapviz --help`"
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        if file := next((word for word in sys.argv[1:] if word.startswith("-") and os.path.lexists(word)), None):
            return RequestError(
                f"the name of a file begins with a dash: {quote(file)}",
                hint=f"put -- before the files, or type {in_shell(f'./{file}')}; with a glob, ./* instead of *",
            )
        return RequestError(f"no such option: {quote(option)}", hint=_hint_for_option(option, context) or hint)
    message = error.format_message().partition(", unable to parse")[0].rstrip(".")
    place = place_of(getattr(getattr(error, "param", None), "name", ""))
    if option is not None and (metavar := _metavar(option, context)):
        hint = f"{option} {metavar}; {hint}"
    return RequestError(f"{message[:1].lower()}{message[1:]}{place}", hint=hint)


# Any: the class of contexts is not public.
def _hint_for_option(option: str, context: Any) -> str | None:
    """Return a hint for an unknown option: a similar one, or the option that other tools call so."""
    from fmapviz.cli.synonyms import meant_flag

    own, word = _of(context.command, context), option.lstrip("-")
    if meant := meant_flag(word, own):
        return meant
    group = context.parent.command if context.parent else None
    others = [name for name, each in group.commands.items() if option in _of(each, context)] if group else []
    if others:
        return f"{option} is an option of {', '.join(f'`fmapviz {name}`' for name in others)}"
    # Options of the group are refused behind a model or a command.
    alone = [each for each in _of(group, context.parent) if each not in own] if group else []
    absent = "a model" if context.info_name == "run" else "a command"
    if option in alone:
        return f"`fmapviz {option}`, without {absent}"
    near = nearest(option, own + alone, cutoff=0.7) if option.startswith("--") else []
    if meant := meant_flag(word, alone):
        near = [meant.removeprefix("did you mean ").removesuffix("?")]
    if near and near[0] in alone:
        return f"did you mean `fmapviz {near[0]}`, without {absent}?"
    return f"did you mean {', '.join(each for each in near if each in own)}?" if near else None


# Any: as above.
def _of(command: Any, context: Any) -> list[str]:
    parameters = command.get_params(context)
    return [option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)]


# Any: as above.
def _metavar(option: str, context: Any) -> str | None:
    """Return what an option takes, as its help shows it."""
    parameters = context.command.get_params(context) if context else ()
    return next((each.metavar for each in parameters if option in each.opts), None)


def _version(*, on: bool) -> None:
    if on:
        print_line(f"fmapviz {__version__}")
        raise typer.Exit


def _generate(context: typer.Context, name: str | None) -> None:
    if name is not None and not context.resilient_parsing:
        from fmapviz.cli.generated import generate

        print_line(generate(name, context))
        raise typer.Exit


def _completion(*, on: bool, install: bool) -> None:
    if on:
        from fmapviz.cli.completion import print_script

        print_script(install=install)
        raise typer.Exit
