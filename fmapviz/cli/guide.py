"""`fmapviz guide`: list the pages of the guide, or show one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from fmapviz.cli.commands import commands
from fmapviz.cli.help import describe_option, print_help
from fmapviz.cli.pages import (
    CODES,
    PAGES,
    codes_in,
    find_code,
    find_page,
    first_sentence,
    near_pages,
    read_page,
    rows_of_codes,
)
from fmapviz.cli.printing import is_terminal, print_line, print_message
from fmapviz.errors import SAMPLES, RequestError, nearest, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_LINK = re.compile(r"\[([^]]+)\]\((?:\.\./)*([\w-]+)\.md(?:#[\w-]*)?\)")  # to another page, or to the README
_OPTION = re.compile(r"`-[^`\n]{1,30}`")  # with its value
_GLUE = "\ue000"  # a blank at which Rich does not break a line: a no-break space is one to it
_WIDEST = 120  # columns; longer lines are hard to read


def guide(
    context: typer.Context,
    page: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAGE]",
            help="Name of a page, a code such as E_DECODE, an exit code or an option; without it, all pages are listed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the pages of the guide, or show one: `fmapviz guide weights`.

    `fmapviz guide E_DECODE` shows the row of the code of a failed input, `fmapviz guide 3` that of an exit code, and
    `fmapviz guide --layers` an option.

    In a terminal a page is shown in `$PAGER`, or `less`. Otherwise it is printed as Markdown.
    """
    if not page:
        print_line(_list_pages(width=_columns() if is_terminal(sys.stdout) else None))
        print_message("`fmapviz guide PAGE` shows one of them")
        print_message(f"`{SAMPLES}` is a folder of the repository; without it, take any photo")
        return
    words = " ".join(page)
    if words.startswith("-"):
        print_help(describe_option(words.partition("=")[0], context.parent))
    elif code := find_code(words):
        _show_code(code)
    elif is_terminal(sys.stdout):
        _show(_render(read_page(find_page(words))))
    else:
        print_line(read_page(find_page(words)).rstrip("\n"))


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND|PAGE]",
            help="A command, or a page of the guide; without it, all commands are listed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show all options of a command, or a page of the guide; without a name, all commands.

    A file called help is ./help.
    """
    above: Any = context.parent  # of the group; the classes of groups are not public
    if not words:
        print_help(above.get_help())
    elif len(words) == 1 and words[0] in commands():
        command = above.command.commands[words[0]]
        with command.context_class(command, info_name=words[0], parent=above) as of:
            print_help(of.get_help())
    else:
        if not words[0].startswith("-") and not find_code(" ".join(words)):
            _check_topic(" ".join(words))
        guide(context, words)


def _show_code(code: str) -> None:
    """Show the page of the codes in a pager that begins at the row of one; elsewhere only its table with this row."""
    text = read_page(CODES)
    (row,) = [row for row in rows_of_codes() if code in codes_in(row)]
    if is_terminal(sys.stdout):
        shown = _render(text)
        of_row = re.compile(rf"^\W*(?:\w+, )*{code}\b")
        lines = (re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown.splitlines())
        _show(shown, line=next((number for number, line in enumerate(lines, 1) if of_row.match(line)), 1))
        return
    before, _, _ = text.partition(row)
    *_, paragraph, table = before.split("\n\n")
    print_line("\n".join((f"{paragraph}\n", *table.splitlines()[:2], row)))


def _check_topic(word: str) -> None:
    """Raise `RequestError` if a word is no page of the guide; its hint names similar commands and pages."""
    try:
        find_page(word)
    except RequestError as error:
        from fmapviz.cli.synonyms import meant_command
        from fmapviz.models.load import is_model

        meant = {page: f"`fmapviz guide {page}`" for page in PAGES}
        meant |= {command: f"`fmapviz help {command}`" for command in commands()}
        near = [meant[name] for name in nearest(word, meant, cutoff=0.65)]
        hint = meant_command(word) or (f"did you mean {', '.join(near)}?" if near else None)
        first, *others = word.split() or [""]
        if others and first in commands():
            option = f", `fmapviz help {others[0]}` an option" if others[0].startswith("-") else ""
            hint = f"one at a time: `fmapviz help {first}` shows all options{option}"
        if not hint and is_model(word):
            hint = f"it is a model: `fmapviz layers {word}` lists its layers, `fmapviz {word} INPUT...` draws them"
        hint = hint or f"{near_pages(word)}`fmapviz help` lists all commands, `fmapviz guide` all pages"
        raise RequestError(f"no such command or page: {quote(word)}", hint=hint) from error


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _list_pages(*, width: int | None) -> str:
    """Return a line with the name and the first sentence of each page, wrapped to a width if there is one."""
    indent = max(map(len, PAGES)) + 2
    lines = (f"{page.ljust(indent)}{first_sentence(read_page(page))}" for page in PAGES)
    if width:
        lines = (textwrap.fill(line, max(width, 2 * indent), subsequent_indent=" " * indent) for line in lines)
    return "\n".join(lines)


def _render(text: str) -> str:
    """Lay out Markdown for the terminal."""
    from rich.console import Console
    from rich.markdown import CodeBlock, Markdown
    from rich.syntax import Syntax
    from rich.text import Text
    from rich.theme import Theme

    class WholeLines(CodeBlock):
        """A block of code that the terminal wraps: copied lines stay whole."""

        def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> Iterator[Text]:
            code = Syntax("", self.lexer_name, theme=self.theme).highlight(str(self.text).rstrip())
            yield from (Text(" ", no_wrap=True, overflow="ignore").append_text(line) for line in code.split())

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": WholeLines}

    console = Console(width=_columns(), theme=Theme({"markdown.code": "bold cyan"}))  # by default on black
    with console.capture() as captured:
        glued = _OPTION.sub(lambda option: option[0].replace(" ", _GLUE), _name_links(text))
        console.print(Page(glued, code_theme="ansi_dark", hyperlinks=False), crop=False)
    return captured.get().replace(_GLUE, " ").rstrip("\n")


def _name_links(text: str) -> str:
    """Replace links to pages by the commands that show them.

    Example:
        >>> _name_links("See [weights](weights.md), [a checkpoint](weights.md#file) or the [README](../../README.md).")
        'See `fmapviz guide weights`, a checkpoint (`fmapviz guide weights`) or the README.'
    """

    def name(link: re.Match[str]) -> str:
        label, page = link.groups()
        if page not in PAGES:
            return label
        command = f"`fmapviz guide {page}`"
        return command if label == page else f"{label} ({command})"

    return _LINK.sub(name, text)


def _show(text: str, line: int = 1) -> None:
    """Show text in the pager of the user, from a line on if this is `less`; print it if there is none."""
    pager = os.environ.get("PAGER", "less -R").split()
    if not pager or shutil.which(pager[0]) is None or os.environ.get("TERM", "dumb") == "dumb":
        print_line(text)
        return
    # As git starts it: less ends by itself if all fits on the screen, shows colours, and leaves the text there.
    environment = {"LESS": "FRX", **os.environ}
    if line > 1:
        environment["LESS"] += f" +{line}"
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager; it does not inherit a handler
    try:
        subprocess.run(pager, input=f"{text}\n".encode(), env=environment, check=False)  # noqa: S603  the user's own command
    finally:
        signal.signal(signal.SIGINT, interrupt)
