"""Declare the options of a configuration: each field of a dataclass with its help, its command-line form and its record."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import Parameter, cleandoc, signature
from typing import TYPE_CHECKING, Any, TypeVar

from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

# Headings of `--help`.
COMMON, CHOOSE, LOOKS, INPUT = "Most used", "Layers and classes", "Looks", "Input preparation"
STORING, RUNNING, CLUSTER = "Storing", "Running", "Ray"
PANELS = (COMMON, CHOOSE, LOOKS, INPUT, STORING, RUNNING, CLUSTER)
ITEM = "\n\n- "  # before each of the values that the help of an option lists
MOST_OF_GLOB = 1000  # characters; the time of fnmatch grows with the square of those that are open brackets
_SHOWN = 40  # of these in a message
# Of a list; commas in the brackets of a glob belong to it.
_PART = re.compile(rf"(?:\[!?\]?[^]]{{0,{MOST_OF_GLOB}}}\]|[^,])+")
_WRAPPER = textwrap.TextWrapper(  # with pydoc's indentation, a terminal of 80 columns
    72, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a field is documented, typed on the command line, and recorded.

    Attributes:
        help: A sentence for `--help` and for Python's `help()`.
        details: More sentences for Python's `help()`.
        panel: Heading of the group in `--help`; empty if the field is not on the command line.
        flag: `--name`; empty for the name of the field.
        metavar: Form of the value; None for one of `words`, if there are any.
        shown: Text for the default; None for the value itself.
        words: Values for shell completion.
        family: Package whose members are the values, for shell completion and `--help`; there those in `words` come first.
        commas: Whether one argument may hold several values, separated by commas.
        parse: Parses the typed text; None if Typer does, by the type of the field.
        of_pair: The help where two networks are compared; empty for the same.
        recorded: Key in the settings of `run.json`; empty if the field does not change pictures.
    """

    help: str
    details: str = ""
    panel: str = ""
    flag: str = ""
    metavar: str | None = None
    shown: str | None = None
    words: Sequence[str] = ()
    family: str = ""
    commas: bool = False
    parse: Callable[[str], object] | None = None
    of_pair: str = ""
    recorded: str = ""


# Any: the type checker takes the field's type from its annotation, and its default as declared.
def option(default: Any, help: str, details: str = "", **kwargs: Any) -> Any:  # noqa: A002  Typer's word for it
    """Declare a dataclass field with an `Option`."""
    return field(default=default, metadata={"option": Option(help=help, details=details, **kwargs)})


@cache
def options_of(config: type) -> Mapping[str, Option]:
    """Return the options among the fields of a dataclass, by field name."""
    return {each.name: each.metadata["option"] for each in fields(config) if "option" in each.metadata}


def documented(config: type[T]) -> type[T]:
    """Decorate a dataclass: its docstring has the help of each option."""
    head, _, tail = cleandoc(config.__doc__ or "").partition("\n\nRaises:")  # Python 3.13 has removed the indentation
    config.__doc__ = f"{head}\n\nAttributes:\n{describe(config)}" + (f"\n\nRaises:{tail}" if tail else "")
    return config


def describe(config: type) -> str:
    """Return the lines of a docstring on the options of a dataclass: name, meaning and default."""
    options, described = options_of(config), []
    for name, parameter in signature(config).parameters.items():
        each, default = options[name], parameter.default
        text = f"{name}: {each.help} {each.details}".rstrip()
        if default is not Parameter.empty:
            meaning = f"None ({each.shown})" if default is None else each.shown
            text += f" Default: {meaning if each.shown else repr(default)}."
        described.append(_WRAPPER.fill(text))
    return "\n".join(described)


def changed_fields(config: Any) -> str:  # Any: a dataclass
    """Format a dataclass with those fields that differ from their defaults; a short `__repr__`."""
    values = ((each, getattr(config, each.name)) for each in fields(config) if each.init)
    changed = ", ".join(f"{each.name}={value!r}" for each, value in values if value != each.default)
    return f"{type(config).__name__}({changed})"


def split(values: str | Iterable[str]) -> tuple[str, ...]:
    """Split values at commas, except in the brackets of a glob, and drop repetitions.

    Example:
        >>> split(["png,tensorboard", "png"]), split("layer[1,2].*, fc")
        (('png', 'tensorboard'), ('layer[1,2].*', 'fc'))

    Raises:
        RequestError: The values contain no name, or a glob that is too long.
    """
    values = [values] if isinstance(values, str) else list(values)
    parts = (part.strip() for value in values for part in _PART.findall(value))
    names = tuple(dict.fromkeys(filter(None, parts)))
    if values and not names:
        raise RequestError(f"a list without names: {quote(','.join(values))}", hint="names, separated by commas")
    for name in names:
        check_glob(name)
    return names


def check_glob(text: str) -> None:
    """Check the length of a text with wildcards; names without are as long as networks have them.

    Raises:
        RequestError: It has too many characters.
    """
    if len(text) > MOST_OF_GLOB and re.search(r"[*?[]", text):
        message = f"a glob has more than {MOST_OF_GLOB:,} characters: {quote(f'{text[:_SHOWN]}...')}"
        raise RequestError(message, hint="one shorter, such as 'layer4.*'")
