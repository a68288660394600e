"""`fmapviz guide`: list the pages of the guide, or show one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from fmapviz.cli.commands import commands
from fmapviz.cli.help import print_help
from fmapviz.cli.printing import is_terminal, print_line, print_message
from fmapviz.errors import RequestError, nearest, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions
    from rich.text import Text

# In the order in which `fmapviz guide` lists them.
PAGES = (
    "models", "weights", "layers-and-views", "class-activation-maps", "tokens", "top-images", "looks", "films", "training",
    "comparing", "report", "tensorboard", "numbers", "own-views", "own-formats", "folders-and-scripts", "exit-codes",
    "many-images", "remote-stores", "clusters", "python", "security", "reliability", "performance", "how-it-is-built",
)  # fmt: skip
_LINK = re.compile(r"\[([^]]+)\]\((?:\.\./)*([\w-]+)\.md(?:#[\w-]*)?\)")  # to another page, or to the README
_OPTION = re.compile(r"`-[^`\n]{1,30}`")  # with its value
_GLUE = "\ue000"  # a blank at which Rich does not break a line: a no-break space is one to it
_WIDEST = 120  # columns; longer lines are hard to read


def guide(
    page: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAGE]",
            help="Name of a page; without it, all pages are listed.",
            show_default=False,
            autocompletion=lambda incomplete: [name for name in PAGES if name.startswith(incomplete)],
        ),
    ] = None,
) -> None:
    """List the pages of the guide, or show one: `fmapviz guide weights`.

    In a terminal a page is shown in `$PAGER`, or `less`. Otherwise it is printed as Markdown.
    """
    if not page:
        print_line(_list_pages(width=_columns() if is_terminal(sys.stdout) else None))
        print_message("`fmapviz guide PAGE` shows one of them")
        return
    text = _read(find_page(" ".join(page)))
    if is_terminal(sys.stdout):
        _show(_render(text))
    else:
        print_line(text.rstrip("\n"))


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND|PAGE]",
            help="A command, or a page of the guide; without it, all commands are listed.",
            show_default=False,
            autocompletion=lambda incomplete: [name for name in (*commands(), *PAGES) if name.startswith(incomplete)],
        ),
    ] = None,
) -> None:
    """Show all options of a command, or a page of the guide; without a name, all commands.

    A file called help is ./help.
    """
    above: Any = context.parent  # of the group; the classes of groups are not public
    if not words:
        print_help(above.get_help())
    elif words[0] in commands():
        command = above.command.commands[words[0]]
        with command.context_class(command, info_name=words[0], parent=above) as of:
            print_help(of.get_help())
    else:
        _check_topic(" ".join(words))
        guide(words)


def _check_topic(word: str) -> None:
    """Raise `RequestError` if a word is no page of the guide; its hint names similar commands and pages."""
    try:
        find_page(word)
    except RequestError as error:
        from fmapviz.cli.synonyms import meant_command

        meant = {page: f"`fmapviz guide {page}`" for page in PAGES}
        meant |= {command: f"`fmapviz help {command}`" for command in commands()}
        near = [meant[name] for name in nearest(word, meant, cutoff=0.65)]
        hint = f"did you mean {', '.join(near)}?" if near else meant_command(word) or error.hint
        raise RequestError(f"no such command or page: {quote(word)}", hint=hint) from error


def find_page(words: str) -> str:
    """Return the page of a name, or the only one whose name contains it, or the page `own-NAME`.

    Raises:
        RequestError: No page has or contains the name, or several contain it.

    Example:
        >>> find_page("Exit codes"), find_page("views"), find_page("formats")
        ('exit-codes', 'layers-and-views', 'own-formats')
    """
    name = "-".join(words.lower().removesuffix(".md").split())
    pages = [page for page in PAGES if page == name]
    pages = pages or [page for page in PAGES if name and f"-{name}-" in f"-{page}-" and not page.startswith("own-")]
    pages = pages or [page for page in PAGES if page == f"own-{name}"]
    if len(pages) != 1:
        near = _near(words)
        hint = f"{near}`fmapviz guide` lists all pages" if near else f"there are: {', '.join(PAGES)}"
        raise RequestError(f"no such page: {quote(words)}", hint=hint)
    return pages[0]


def _read(page: str) -> str:
    return files("fmapviz").joinpath("guide", f"{page}.md").read_text(encoding="utf-8")


def _near(word: str) -> str:
    """Return the pages with a similar name, or those that mention the word most often."""
    if similar := nearest(word, PAGES, cutoff=0.6):
        return f"did you mean {', '.join(map(quote, similar))}? "
    counts = {page: _read(page).lower().count(word.lower().strip()) for page in PAGES if word.strip()}
    mentions = sorted((page for page in PAGES if counts.get(page)), key=counts.__getitem__, reverse=True)[:3]
    return f"{', '.join(map(quote, mentions))} {'mention' if len(mentions) > 1 else 'mentions'} it; " if mentions else ""


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _list_pages(*, width: int | None) -> str:
    """Return a line with the name and the first sentence of each page, wrapped to a width if there is one."""
    indent = max(map(len, PAGES)) + 2
    lines = (f"{page.ljust(indent)}{_first_sentence(_read(page))}" for page in PAGES)
    if width:
        lines = (textwrap.fill(line, max(width, 2 * indent), subsequent_indent=" " * indent) for line in lines)
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    r"""Return the first sentence below the title of a page, without marks.

    Example:
        >>> _first_sentence("# Weights\n\nWhich `--weights` a model\ngets. More.\n\nAnd more.\n")
        'Which --weights a model gets.'
    """
    paragraph = " ".join(text.split("\n\n")[1].split())
    return re.split(r"(?<=\.) ", paragraph)[0].replace("`", "")


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


def _show(text: str) -> None:
    """Show text in the pager of the user; print it if there is none."""
    pager = os.environ.get("PAGER", "less -R").split()
    if not pager or shutil.which(pager[0]) is None or os.environ.get("TERM", "dumb") == "dumb":
        print_line(text)
        return
    # As git starts it: less ends by itself if all fits on the screen, shows colours, and leaves the text there.
    environment = {"LESS": "FRX", **os.environ}
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager; it does not inherit a handler
    try:
        subprocess.run(pager, input=f"{text}\n".encode(), env=environment, check=False)  # noqa: S603  the user's own command
    finally:
        signal.signal(signal.SIGINT, interrupt)
