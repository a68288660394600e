"""`fmapviz completion`: print or install the script of a shell; at TAB the script asks this module for values."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

from fmapviz.cli.commands import COMPLETING, commands
from fmapviz.cli.completers import COMPLETERS, LISTS, kind_of
from fmapviz.cli.printing import print_line
from fmapviz.cli.shells import SCRIPTS, current_shell, install_script
from fmapviz.errors import RequestError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmapviz.cli.completers import Item, Kind

_WORD, _LINE, _BREAKS = "_FMAPVIZ_WORD", "_FMAPVIZ_LINE", "_FMAPVIZ_BREAKS"


def completion(
    shell: Annotated[
        str | None, typer.Argument(metavar=f"[{'|'.join(SCRIPTS)}]", help="The shell.", show_default="the current one")
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the script for this user.")] = False,
) -> None:
    """Print the script that completes commands, options, models, layers and files at TAB, or install it.

    The layers and classes of a model are completed after it has been drawn or listed once.
    """
    print_script(shell, install=install)


def print_script(shell: str | None = None, *, install: bool = False) -> None:
    """Print the script of a shell, by default the current one, or install it.

    Raises:
        RequestError: There is no script for the shell, or none is known.
        OutputError: The script cannot be installed.
    """
    name = shell or current_shell()
    if name not in SCRIPTS:
        problem = f"no completion for the shell {quote(name)}" if name else "the current shell is unknown"
        raise RequestError(problem, hint=f"there are: {', '.join(SCRIPTS)}")
    if install:
        print_line("\n".join(map(printable, install_script(name))))
    else:
        print_line(SCRIPTS[name].rstrip("\n"))


def answer(group: Any, words: Sequence[str]) -> None:  # Any: the class of groups is not public
    """Print the values that complete the word at the cursor, for the script of a shell; after a failure nothing.

    Args:
        group: The commands.
        words: The words before; bash passes its line instead.
    """
    with suppress(Exception):  # a message would appear in the middle of the user's line
        shell, quoted = os.environ[COMPLETING], False
        word = os.environ.get(_WORD, "").lstrip("'\"")
        if shell == "bash":
            (_, *words, word), quoted = split_line(os.environ[_LINE])
        kind, found = complete(group, words, word)
        values = [(value, " ".join(text.replace("`", "").split())) for value, text in found if value.isprintable()]
        if shell == "bash":
            breaks = "" if quoted else os.environ.get(_BREAKS, "")
            start = max((word.rfind(mark) + 1 for mark in ":=" if mark in breaks), default=0)  # bash replaces what follows
            keeps = quoted or kind != "words"  # bash escapes names of files itself
            values = [(value[start:] if keeps else _escape(value[start:]), text) for value, text in values]
        print_line("\n".join((kind, *("\t".join(each) for each in values))))


def split_line(line: str) -> tuple[list[str], bool]:
    """Split the line of a shell up to the cursor.

    Returns:
        Its words, the last one being that at the cursor, and whether a quotation is open.

    Example:
        >>> split_line("fmapviz alexnet --layers 'feat"), split_line("fmapviz ")
        ((['fmapviz', 'alexnet', '--layers', 'feat'], True), (['fmapviz', ''], False))
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quotation is open, or a backslash is the last character
        return [*words, lexer.token], not line.endswith("\\")
    ended = line[-1:].isspace() and not line.endswith("\\ ")
    return ([*words, ""] if ended or not words else words), False


# Any: as above.
def complete(group: Any, words: Sequence[str], word: str) -> tuple[Kind, list[Item]]:
    """Return what completes a word.

    Args:
        group: The commands.
        words: The words between `fmapviz` and this one.
        word: The word, which may be empty.

    Returns:
        Whether files or directories complete it too, and values with their descriptions.
    """
    root = group.context_class(group, info_name="fmapviz", resilient_parsing=True)
    own = {option: each for each in group.get_params(root) for option in _options_of(each)}
    is_first = not words or (len(words) == 1 and words[0] in own)
    name, words = group.split_command(root, list(words))
    command = group.commands[name or "run"]
    context = command.context_class(command, info_name=command.name, parent=root, ignore_unknown_options=True)
    options = {option: each for each in command.get_params(context) for option in _options_of(each)}
    if is_first:
        options = own | options
    ended = "--" in words
    before = options.get(words[-1]) if words and not ended else None
    if before is not None and not _takes_value(before):
        before = None
    # Not converted to the types of the parameters, for which Typer would import pydantic: 0.1 s.
    context.params, _, _ = command.make_parser(context).parse_args(args=words[:-1] if before else words)
    if before:
        return _values(before, word, context)
    option, equals, value = word.partition("=")
    if equals and option in options and not ended:
        kind, found = _values(options[option], value, context)
        return kind, [(f"{option}={each}", text) for each, text in found]
    if word.startswith("-") and not ended:
        shown = ((option, each.help or "") for option, each in options.items() if not each.hidden)
        return "words", _starting(word, shown)
    return _argument(command, word, context, named=name is not None)


# Any: as above.
def _argument(command: Any, word: str, context: Any, *, named: bool) -> tuple[Kind, list[Item]]:
    """Return what completes an argument; the first one may also be a command, unless one was `named` before."""
    kind: Kind = "words"
    found: list[Item] = []
    if not (named or context.params.get("model")):
        found = _starting(word, ((each, command.help) for each, command in commands().items()))
        if not word:  # among all models, the commands would be lost
            return kind, found
    for each in command.get_params(context):
        if not isinstance(each, TyperOption) and (each.nargs == -1 or not context.params.get(each.name)):
            kind, more = _values(each, word, context)
            return kind, found + more
    return kind, found


# Any: the classes of parameters and contexts are not public.
def _values(parameter: Any, word: str, context: Any) -> tuple[Kind, list[Item]]:
    """Return the values of a parameter that begin with a word; of a list, those that complete its last part."""
    completer = COMPLETERS.get(f"{context.info_name}.{parameter.name}") or COMPLETERS.get(parameter.name)
    kind = kind_of(parameter.metavar or "")
    if completer is None:
        own = [(each.value, each.help or "") for each in parameter.shell_complete(context, word)]
        literal = re.findall(r"(?<![^[|])[a-z][\w-]*(?![^]|])", parameter.metavar or "")  # `max|mean|min`
        return kind, _starting(word, own or ((each, "") for each in literal))
    before, comma, last = word.rpartition(",") if parameter.name in LISTS else ("", "", word)
    taken = before.split(",")
    found = [(value, text) for value, text in completer(last, context.params) if value not in taken]
    return kind, [(f"{before}{comma}{value}", text) for value, text in _starting(last, found)]


def _starting(word: str, items: Iterable[Item]) -> list[Item]:
    """Return the items that begin with a word, each with the first sentence of its description."""
    return [(value, re.split(r"(?<=\w)\.(?:\s|$)", text)[0]) for value, text in items if value.startswith(word)]


# Any: as above.
def _takes_value(option: Any) -> bool:
    return not (option.is_flag or option.count)


def _options_of(parameter: Any) -> list[str]:  # Any: as above
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, TyperOption) else []


def _escape(text: str) -> str:
    r"""Escape what bash would interpret.

    Example:
        >>> print(_escape("layer4.*"))
        layer4.\*
    """
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)
