"""Print the help of a command: its options under headings, in two columns that keep every word whole."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from fmapviz.cli.commands import commands
from fmapviz.cli.pages import pages_with
from fmapviz.cli.printing import is_terminal, print_line
from fmapviz.config.options import COMMON, ITEM
from fmapviz.errors import RequestError, nearest, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_EXAMPLES, _MOST_OPTIONS, _FEW_OPTIONS = 4, 9, 5  # in `-h`
_MORE = (
    ("fmapviz -h", "the most used options"),
    ("fmapviz help", "all commands; `fmapviz help run`: all options of a run"),
    ("fmapviz guide", "the pages of the guide"),
)
_WIDEST, _NARROWEST = 120, 50  # columns of a line
_LABELS = 24  # columns; the text beside a longer label begins on the next line
_NO_BREAK = "\xa0"
Row = tuple[str, str]


class _WithHelp:
    """What `-h` and `--help` of a command or a group show."""

    _short_help: Any = None

    # Any: the classes of contexts, parameters and formatters are not public.
    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with `-h`."""
        params = super().get_params(ctx)  # type: ignore[misc]  # of the other base
        if self._short_help is None:  # the parser compares parameters by identity
            self._short_help = copy(params[-1])  # --help
            self._short_help.name, self._short_help.opts = "short_help", ["-h"]
            self._short_help.callback, self._short_help.help = _print_short_help, "Show examples and the most used options."
            params[-1].callback, params[-1].help = _print_help, "Show this help."
        return [*params[:-1], self._short_help, params[-1]]

    # Any: as above.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words; an error names the command that refused them."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]  # of the other base
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:  # a value is missing
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all of the help."""
        formatter.write(_help_of(self, ctx))


class HelpCommand(_WithHelp, TyperCommand):
    """A command with this help."""


class HelpGroup(_WithHelp, TyperGroup):
    """A group of commands with this help; `run` is the one that `fmapviz MODEL INPUT...` calls."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with `-h`."""
        return keep_texts(super().get_params(ctx))


# Any: the classes of contexts and parameters are not public.
def keep_texts(params: list[Any]) -> list[Any]:
    """Return parameters which are flags or texts, not converted: Typer would import pydantic, for 0.07 s."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.default = each.default or False
        else:
            each.process_value = partial(_call_back, each)
    return params


# Any: as above.
def _call_back(parameter: Any, ctx: Any, value: Any) -> Any:
    return parameter.callback(ctx, parameter, value) if parameter.callback else value


def print_first_help() -> None:
    """Print what `fmapviz` without words shows: three examples, and where more is."""
    shown = "\n".join(_examples(commands()["run"].examples[:3], _width()))
    more = "\n".join(_lines(_MORE, _width()))
    print_help(_styled(f"See what every layer of a vision network computes:\n\n{shown}\n\n{more}"))


def print_help(text: str) -> None:
    """Print a help text, in a terminal with its marks."""
    print_line(text if is_terminal(sys.stdout) else re.sub(r"\x1b\[[\d;]*m", "", text))


# Any: the class of contexts is not public.
def describe_option(option: str, context: Any) -> str:
    """Return the help of an option in each command that has it, with its values, and the pages of the guide on it.

    Args:
        option: Its name, with dashes.
        context: That of the group.

    Raises:
        RequestError: No command has this option.
    """
    described: dict[tuple[str, str, str], list[str]] = {}
    known: set[str] = set()
    for name, command in context.command.commands.items():
        for each in command.get_params(context):
            names = [*each.opts, *each.secondary_opts] if isinstance(each, TyperOption) else []
            known |= {*names}
            if option in names:
                described.setdefault((_label(each), _default(each), each.help or ""), []).append(f"fmapviz {name}")
    if not described:
        near = nearest(option, known, cutoff=0.7)
        hint = f"did you mean {', '.join(near)}?" if near else "`fmapviz run --help` lists all options of a run"
        raise RequestError(f"no such option: {quote(option)}", hint=hint)
    paragraphs = []
    for (label, default, text), of in described.items():
        first, *items = text.split(ITEM)
        rows = [(label, f"{first.rstrip()} {default}")]
        rows += [(f"  {name}", meaning) for name, _, meaning in (item.partition(": ") for item in items)]
        paragraphs.append("\n".join((_bold(", ".join(of)), *_lines(rows, _width()))))
    if pages := [f"`fmapviz guide {page}`" for page in pages_with(option)]:
        paragraphs.append(f"See {', '.join(pages)}.")
    return _styled("\n\n".join(paragraphs))


# Any: the classes of contexts and parameters are not public.
def _print_short_help(ctx: Any, _parameter: Any, on: bool) -> None:
    if on and not ctx.resilient_parsing:
        print_help(_short_help_of(ctx.command, ctx))
        ctx.exit()


def _print_help(ctx: Any, _parameter: Any, on: bool) -> None:
    if on and not ctx.resilient_parsing:
        print_help(ctx.get_help())
        ctx.exit()


def _short_help_of(command: Any, context: Any) -> str:
    """Return at most 30 lines, in a terminal of 80 columns."""
    width, is_group = _width(), isinstance(command, TyperGroup)
    shown = command.commands["run"] if is_group else command  # whose options
    member = commands()[shown.name]
    paragraphs = [
        _usage(command, context),
        textwrap.fill(next(paragraphs_of(command.help if is_group else member.help)), width),
    ]
    paragraphs.append("\n".join((_bold("Examples"), *_examples(member.examples[:_MOST_EXAMPLES], width))))
    if rows := _most_used(shown, context, width):
        paragraphs.append("\n".join((_bold("Most used options"), *_lines(rows, width))))
    if is_group:
        listed = textwrap.fill(f"Commands: {', '.join(commands())}", width)
        paragraphs.append(listed.replace("Commands:", _bold("Commands:")))
    paragraphs.append(f"`{context.command_path} --help` shows everything.")
    return _styled("\n\n".join(paragraphs))


def _most_used(command: Any, context: Any, width: int) -> list[Row]:
    """Return the rows of the options under the heading of the most used ones, or the first options of a small command."""
    options = [each for each in command.get_params(context) if isinstance(each, TyperOption)]
    usual = [each for each in options if each.rich_help_panel == COMMON]
    if len(usual) < _FEW_OPTIONS:
        own = [each for each in options if each.opts[0] not in {"-h", "--help", "--json", "--no-config"}]
        json = [each for each in options if each.opts[0] == "--json"]
        usual = [*own[: _MOST_OPTIONS - len(json)], *json]
    return [(_label(each), _shortened(each.help or "", width - _LABELS - 4)) for each in usual]


def _shortened(text: str, width: int) -> str:
    r"""Return the first clause of a help text as a phrase of its own, or with the listed values that fit into a line.

    Example:
        >>> _shortened("What to draw; view.py:energy is yours.\n\n- maps: Outputs.\n\n- mean: Means.", 24)
        'What to draw: maps, ...'
        >>> _shortened("What to draw.\n\n- maps: Outputs.\n\n- mean: Means.", 80)
        'What to draw: maps, mean'
        >>> _shortened("Directory of all runs; or its address, such as s3://BUCKET/DIR.", 40)
        'Directory of all runs'
        >>> _shortened("Dry run: estimate size and time from a sample. Writes nothing.", 60)
        'Dry run: estimate size and time from a sample'
        >>> _shortened("Second network: other weights, as --weights accepts them; model:NAME, another network.", 40)
        'Second network'
    """
    text, *items = text.split(ITEM)
    text = re.split(r"[.;](?: |$)", text.strip())[0]
    name, _, explained = text.partition(": ")
    if not items:
        return text if not explained or len(text) <= width else name
    text = name
    values = ", ".join(item.partition(":")[0] for item in items)
    return textwrap.shorten(f"{text}: {values}", width, placeholder=" ...")


def _help_of(command: Any, context: Any) -> str:
    width = _width()
    sections = dict(sections_of(command, context))
    paragraphs = [_usage(command, context)]
    paragraphs += [textwrap.fill(text, width) for text in paragraphs_of(command.help)]
    of = commands()["run" if isinstance(command, TyperGroup) else command.name]
    paragraphs.append("\n".join((_bold("Examples"), *_examples(of.examples, width))))
    if isinstance(command, TyperGroup):
        sections = {"Most used options of `fmapviz run`": _most_used(command.commands["run"], context, width)} | sections
    paragraphs += ["\n".join((_bold(title), *_lines(rows, width))) for title, rows in sections.items()]
    return _styled("\n\n".join(paragraphs))


def _usage(command: Any, context: Any) -> str:
    arguments = [each.metavar or "" for each in command.get_params(context) if isinstance(each, TyperArgument)]
    usage = f"{_bold('Usage:')} {context.command_path} {' '.join([command.options_metavar, *arguments])}"
    if isinstance(command, TyperGroup):
        usage += f" {command.subcommand_metavar}\n       {context.command_path} COMMAND ..."
    return usage


def _examples(examples: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of examples: whole commands, to be copied, each with what it does beside or below it."""
    column = max(len(command) for command, _ in examples) + 4
    beside = all(column + len(does) <= width for _, does in examples)
    for command, does in examples:
        margin = " " * (column - len(command) - 2) if beside else "\n"
        text = does if beside else textwrap.indent(textwrap.fill(does, width - 6), " " * 6)
        yield f"  {_bold(command)}{margin}{text}"


def _width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def sections_of(command: Any, context: Any) -> Iterator[tuple[str, list[Row]]]:
    """Yield headings with their rows: arguments, options in the order of their panels, commands, values of options."""
    parameters = command.get_params(context)
    if arguments := [(each.metavar or "", each.help or "") for each in parameters if isinstance(each, TyperArgument)]:
        yield "Arguments", arguments
    panels: dict[str, list[Row]] = {}
    lists: dict[str, list[Row]] = {}
    options = [each for each in parameters if isinstance(each, TyperOption) and not each.hidden]
    for each in sorted(options, key=lambda each: not each.rich_help_panel):  # those of every command last
        text, *items = (each.help or "").split(ITEM)
        if items:
            lists[f"Values of {each.opts[0]}"] = [(name, text) for name, _, text in (item.partition(": ") for item in items)]
            text = f"{text.rstrip()} Listed below."
        panels.setdefault(each.rich_help_panel or "Options", []).append((_label(each), f"{text} {_default(each)}"))
    yield from panels.items()
    if isinstance(command, TyperGroup):
        yield "Commands", [(name, each.help) for name, each in commands().items()]
    yield from lists.items()


def _label(option: TyperOption) -> str:
    names = [", ".join(sorted(option.opts, key=len)), *option.secondary_opts]
    return f"{'/'.join(names)} {'' if option.is_flag else option.metavar or ''}".rstrip()


def _default(option: TyperOption) -> str:
    shown = option.show_default
    if shown is True and not option.is_flag and option.default is not None:
        shown = str(option.default)
    return f"[default:{_NO_BREAK}{shown}]" if isinstance(shown, str) else "[required]" if option.required else ""


def _lines(rows: Sequence[Row], width: int) -> Iterator[str]:
    """Yield the lines of two columns."""
    column = min(_LABELS, max(len(label) for label, _ in rows)) + 4
    for label, text in rows:
        margin = " " * column
        wrapped = textwrap.wrap(
            re.sub(r"[ \n]+", " ", text).strip(),
            width,
            initial_indent=margin,
            subsequent_indent=margin,
            break_on_hyphens=False,
        )
        shown = f"  {_bold(label)}"
        if wrapped and len(label) + 4 <= column:
            shown += wrapped.pop(0)[len(label) + 2 :]
        yield "\n".join((shown, *wrapped))


def paragraphs_of(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a docstring, each in one line."""
    return (" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text or "").split("\n\n"))


def _bold(text: str) -> str:
    return typer.style(text, bold=True)


def _styled(text: str) -> str:
    """Mark up commands, which are between backticks, and defaults."""
    text = re.sub(r"`([^`]+)`", lambda match: typer.style(match[1], bold=True), text)
    text = re.sub(r"\[default:[^]]*\]", lambda match: typer.style(match[0], dim=True), text)
    return text.replace(_NO_BREAK, " ")
