"""Print the help of a command: its options under headings, in two columns that keep every word whole."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDEST, _NARROWEST = 120, 50  # columns of a line
_LABELS = 24  # columns; the text beside a longer label begins on the next line
_NO_BREAK = "\xa0"
ITEM = "\n\n- "  # before each of the values that the help of an option lists
Row = tuple[str, str]


class HelpCommand(TyperCommand):
    """A command with this help."""

    # Any: the classes of contexts and formatters are not public.
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command."""
        formatter.write(_help_of(self, ctx))


class HelpGroup(TyperGroup):
    """A group of commands with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group."""
        formatter.write(_help_of(self, ctx))


def _help_of(command: Any, context: Any) -> str:
    width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))
    sections = dict(_sections(command, context))
    usage = [command.options_metavar, *(label for label, _ in sections.get("Arguments", ()))]
    if isinstance(command, TyperGroup):
        usage.append(command.subcommand_metavar)
    paragraphs = [f"{_bold('Usage:')} {context.command_path} {' '.join(usage)}"]
    paragraphs += [textwrap.fill(text, width) for text in _paragraphs(command.help)]
    paragraphs += ["\n".join((_bold(title), *_lines(rows, width))) for title, rows in sections.items()]
    return _styled("\n\n".join(paragraphs))


def _sections(command: Any, context: Any) -> Iterator[tuple[str, list[Row]]]:
    """Yield headings with their rows: arguments, options in the order of their panels, commands, values of options."""
    parameters = command.get_params(context)
    if arguments := [(each.metavar or "", each.help or "") for each in parameters if isinstance(each, TyperArgument)]:
        yield "Arguments", arguments
    panels: dict[str, list[Row]] = {}
    lists: dict[str, list[Row]] = {}
    options = [each for each in parameters if isinstance(each, TyperOption)]
    for each in sorted(options, key=lambda each: not each.rich_help_panel):  # those of every command last
        text, *items = (each.help or "").split(ITEM)
        if items:
            lists[f"Values of {each.opts[0]}"] = [(name, text) for name, _, text in (item.partition(": ") for item in items)]
            text = f"{text.rstrip()} Listed below."
        panels.setdefault(each.rich_help_panel or "Options", []).append((_label(each), f"{text} {_default(each)}"))
    yield from panels.items()
    if isinstance(command, TyperGroup):
        commands = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        yield "Commands", [(name, next(_paragraphs(each.help if each else ""))) for name, each in commands]
    yield from lists.items()


def _label(option: TyperOption) -> str:
    names = [", ".join(sorted(option.opts, key=len)), *option.secondary_opts]
    return f"{'/'.join(names)} {'' if option.is_flag else option.metavar or ''}".rstrip()


def _default(option: TyperOption) -> str:
    shown = option.show_default
    if shown is True and not option.is_flag and option.default is not None:
        shown = str(option.default)
    return f"[default:{_NO_BREAK}{shown}]" if isinstance(shown, str) else "[required]" if option.required else ""


def _lines(rows: list[Row], width: int) -> Iterator[str]:
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


def _paragraphs(text: str | None) -> Iterator[str]:
    return (" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text or "").split("\n\n"))


def _bold(text: str) -> str:
    return typer.style(text, bold=True)


def _styled(text: str) -> str:
    """Mark up commands, which are between backticks, and defaults."""
    text = re.sub(r"`([^`]+)`", lambda match: typer.style(match[1], bold=True), text)
    text = re.sub(r"\[default:[^]]*\]", lambda match: typer.style(match[0], dim=True), text)
    return text.replace(_NO_BREAK, " ")
