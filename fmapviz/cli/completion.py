"""`fmapviz completion`: print or install the script of a shell; at TAB the script asks this module for values."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

from fmapviz.cli.commands import COMPLETING, commands
from fmapviz.cli.completers import COMPLETERS, LISTS, kind_of
from fmapviz.cli.printing import print_line
from fmapviz.cli.shells import SCRIPTS, current_shell, install_script
from fmapviz.errors import RequestError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

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
        shell = os.environ[COMPLETING]
        is_bash = shell == "bash"
        typed = split_line(os.environ.get(_LINE if is_bash else _WORD, ""), os.environ.get(_BREAKS, ""), shell=shell)
        word = typed.words[-1]
        kind, found = complete(group, typed.words[1:-1] if is_bash else words, word)
        if is_bash and kind != "words" and found:  # without values, bash completes paths itself
            found += _paths(word, {value for value, _ in found}, only_folders=kind == "directories")
        values = [(value, " ".join(text.replace("`", "").split())) for value, text in found if value.isprintable()]
        if is_bash:
            texts = quote_for_bash([value[typed.kept :] for value, _ in values], typed.quote)
            values = [(text, description) for text, (_, description) in zip(texts, values, strict=True)]
        print_line("\n".join((kind, *("\t".join(each) for each in values))))


@dataclass(frozen=True, slots=True)
class Typed:
    """The line of a shell up to the cursor.

    Attributes:
        words: Its words, the last one being that at the cursor.
        quote: The quotation mark that is open, or "".
        kept: Number of characters of the last word that bash keeps: those before the open quotation or the last break.
    """

    words: list[str]
    quote: str
    kept: int


def split_line(line: str, breaks: str = "", *, shell: str = "bash") -> Typed:
    """Split the line of a shell up to the cursor.

    Args:
        line: The line.
        breaks: Characters behind which bash replaces a word; quoted ones do not count.
        shell: Name of the shell.

    Example:
        >>> split_line("fmapviz alexnet --layers='feat")
        Typed(words=['fmapviz', 'alexnet', '--layers=feat'], quote="'", kept=9)
    """
    escapes = {"'": "'\\" if shell == "fish" else "", '"': '"$`\\'}  # in a quotation other backslashes are kept
    words, quote, opened, broken, is_word = [""], "", 0, 0, False
    characters = iter(line)
    for each in characters:
        if each.isspace() and not quote:
            words += [""] * is_word
            broken, is_word = 0, False
            continue
        is_word = True
        if each == "\\" and (not quote or escapes[quote]):
            escaped = next(characters, "")
            words[-1] += escaped if not quote or escaped in escapes[quote] else f"\\{escaped}"
        elif each == quote:
            quote = ""
        elif each in {"'", '"'} and not quote:
            quote, opened = each, len(words[-1])
        else:
            words[-1] += each
            broken = len(words[-1]) if each in breaks and not quote else broken
    return Typed(words, quote, opened if quote else broken)


def quote_for_bash(texts: Sequence[str], quote: str) -> list[str]:
    r"""Return what stands for texts in a line of bash, without a character that bash interprets.

    Bash inserts what they have in common at the beginning: it does not end within an escape.

    Args:
        texts: Different texts.
        quote: The quotation mark that is open before them, or "".

    Example:
        >>> print(*quote_for_bash(["layer4.*"], ""), *quote_for_bash(["a$", "a`"], '"'))
        layer4.\* a"'$'" a\`
    """
    common = _common(texts)
    quoted = [_quoted(text, quote) for text in texts]
    if _common(quoted) != _quoted(common, quote):  # a backslash too many
        first, position = texts[0], len(common)
        mark = '"' if first[position] == "'" else "'"
        alone = f"{quote}{mark}{first[position]}{mark}{quote}"
        quoted[0] = f"{_quoted(common, quote)}{alone}{_quoted(first[position + 1 :], quote)}"
    # Bash removes one of two quotation marks behind each other, even if the second one closes the quotation.
    return [f"{quote}{text}" if quote and text.startswith(quote) else text for text in quoted]


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


def _common(texts: Sequence[str]) -> str:
    return os.path.commonprefix(texts)  # noqa: RUF071  of texts, not of paths


def _quoted(text: str, quote: str) -> str:
    """Quote a text for bash inside an open quotation, or outside of any."""
    if quote == "'":
        return text.replace("'", r"'\''")
    if quote:
        return re.sub(r'[$`"\\]', r"\\\g<0>", text).replace("!", "\"'!'\"")  # bash keeps a backslash before this one
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


def _paths(word: str, known: Container[str], *, only_folders: bool) -> Iterator[Item]:
    """Yield files and directories that begin with a word, or with the value of an option, besides `known` ones.

    Bash adds the slash of a directory.
    """
    option, equals, start = word.partition("=") if word.startswith("--") else ("", "", word)
    folder, slash, name = start.rpartition("/")
    with suppress(OSError, ValueError):
        for path in sorted(Path(f"{folder}{slash}").iterdir()):
            found = f"{option}{equals}{folder}{slash}{path.name}"
            is_hidden = path.name.startswith(".") and not name
            is_offered = path.name.startswith(name) and found not in known and not is_hidden
            if is_offered and (os.path.isdir(path) or not only_folders):
                yield found, ""
