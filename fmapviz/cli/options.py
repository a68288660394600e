"""Command-line options, derived from the fields of the configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin

import typer

from fmapviz.config import PANELS, Engine, InputOptions, RunConfig, Style, options_of, split, types_of
from fmapviz.config.options import ITEM, Option
from fmapviz.core import registry
from fmapviz.core.platforms import in_shell
from fmapviz.core.user_code import references_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fmapviz.core.members import NamedMember

GROUPS = (RunConfig, Style, InputOptions, Engine)
# Arguments of functions that are not fields of the configuration; a command has options of the same name.
_BESIDE = ("against", "reference")
OF_ONE = ("run", "signed-run")  # ranges that a comparison of two networks does not take
F = TypeVar("F", bound="Callable[..., Any]")

# Phrases of the library about Python, and what to type instead.
_PHRASES = {
    r"fmapviz\.list_layers\(model\)": "`fmapviz layers MODEL`",
    r"fmapviz\.list_layers\(model, types='Module'\)": "`fmapviz layers MODEL --types Module`",
    r"fmapviz\.model_names\(\)": "`fmapviz models`",
    r"fmapviz\.model_names\(('[^']*')\)": r"`fmapviz models \1`",
    r"fmapviz\.visualize\('([^']*)', inputs, to='([^']*)'\)": r"`fmapviz \1 INPUT... --to \2`",
    r"fmapviz\.diff\(one, other, images\)": "`fmapviz diff MODEL INPUT... --against FILE`",
    r"\bthe same call\b": "the same command",
}


def takes_options(only: Sequence[str] = (), *, pair: bool = False) -> Callable[[F], F]:
    """Replace `**options` in the signature of a command by the options of a run.

    Args:
        only: Names of the fields; empty for all.
        pair: Whether the command compares two networks, which takes other values.
    """

    def decorate(command: F) -> F:
        own = inspect.signature(command, eval_str=True)
        kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = sorted(_options(), key=lambda option: PANELS.index(option[2].panel))
        derived = [_parameter(group, name, each, pair=pair) for group, name, each in options if not only or name in only]
        arguments = [each for each in kept if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        parameters = [*arguments, *derived, *kept[len(arguments) :]]
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by Typer
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


# Any: the declaration of an option, which Typer returns as any type; its other arguments.
def word_option(*names: str, words: Sequence[str], commas: bool = False, **more: Any) -> Any:
    """Declare an option of a command that takes one of some words, or several with commas, for help and completion."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if commas else ("", "", incomplete)
        given = before.split(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last) and word not in given]

    return typer.Option(*names, autocompletion=complete, **{"metavar": "|".join(words), **more})


# Any: as above.
def formats_option(formats: Sequence[str], *, help: str, **more: Any) -> Any:  # noqa: A002  Typer's word for it
    """Declare an option of a command that takes some of the output formats, for help and completion."""
    option = options_of(RunConfig)["to"]
    return typer.Option(
        help=f"{help} {_described(option, formats)}",
        metavar=option.metavar,
        autocompletion=lambda incomplete: _complete(option, formats, incomplete),
        **more,
    )


def read_options(typed: Mapping[str, object]) -> dict[type, dict[str, Any]]:
    """Return the values of each configuration dataclass that were typed, by field name.

    Args:
        typed: Values by option name, as Typer passes them; None and empty lists were not typed.

    Raises:
        RequestError: A value does not have the form of its option.
    """
    read: dict[type, dict[str, Any]] = {group: {} for group in GROUPS}
    for group, name, each in _options():
        value = typed.get(_key(name, each))
        if value is None or value == []:
            continue
        if each.commas:
            value = split(cast("list[str]", value))
        elif each.parse:
            value = each.parse(cast(str, value))
        read[group][name] = value
    return read


def as_typed(text: str) -> str:
    """Return a hint of the library with its Python arguments as options of the command; quoted names are kept.

    Example:
        >>> as_typed("pass weights=FILE or weights='random'; force=True redraws; layers= and types=['ReLU', 'Block'] choose")
        'pass --weights FILE or --weights random; --force redraws; --layers and --types ReLU,Block choose'
        >>> as_typed("see Engine(cpus=) and InputOptions(fit='pad')")
        'see --worker-cpus and --fit pad'
        >>> as_typed("such as size=(240, 320) or mean=(0.5, 0.4)")
        'such as --size 240x320 or --mean 0.5,0.4'
        >>> as_typed("no such file: 'size=3.jpg'")
        "no such file: 'size=3.jpg'"
    """
    for spoken, typed in _PHRASES.items():
        text = re.sub(spoken, typed, text)
    return _arguments().sub(lambda found: _type(found["name"], found["value"]) if found["name"] else found[0], text)


@dataclass(frozen=True, slots=True)
class Described:
    """How messages describe an option.

    Attributes:
        words: Its name and the kinds of its values, in lower case.
        difference: Pattern of a difference between a run and another value of it.
    """

    words: Sequence[str]
    difference: str


@cache
def described_as(parameter: str) -> Described:
    """Return how messages describe the option of a parameter of a command."""
    found = ((group, name, each) for group, name, each in _options() if _key(name, each) == parameter)
    group, name, option = next(found, (RunConfig, parameter, Option(help="")))
    own = parameter.replace("_", " ")
    kinds = re.findall("[A-Z]{3,}", option.metavar or "")
    difference = "another preprocessing" if group is InputOptions else rf"[(;] ?{option.recorded or name}: .*, not "
    return Described([own, own.removesuffix("s"), *map(str.lower, kinds)], difference)


@cache
def _arguments() -> re.Pattern[str]:
    """Return a pattern that matches an argument, or anything in quotes."""
    name = "|".join([*(name for _, name, _ in _options()), *_BESIDE])
    value = r"'[^']*'|\[[^]]*\]|\([^()]*\)|True\b|[A-Z\d][\w:#.]*|(?=[\s,;:)?]|$)"
    group = "|".join(group.__name__ for group in GROUPS)
    return re.compile(
        rf"(?<![\w.?&(])(?P<group>(?:{group})\()?(?P<name>{name})=(?P<value>{value})(?(group)\))|(?<!\w)'[^']*'"
    )


def _type(name: str, value: str) -> str:
    option = next((each for _, known, each in _options() if known == name), Option(help=""))
    flag = _flag(name, option)
    if value in {"", "True"}:
        return flag
    if value.startswith("("):  # several numbers
        return f"{flag} {('x' if 'x' in (option.metavar or '') else ',').join(re.findall(r'[^(), ]+', value))}"
    strings = re.findall("'([^']*)'", value)
    return f"{flag} {in_shell(','.join(strings)) if strings else value}"


def written_options(known: Collection[str]) -> dict[str, str]:
    """Return the options of a run that a command knows, as hints write them, by their names in Python; see `as_typed`."""
    return {name: f"{name}=" for _, name, each in _options() if _flag(name, each) in known}


@cache
def _options() -> list[tuple[type, str, Option]]:
    return [(group, name, each) for group in GROUPS for name, each in options_of(group).items() if each.panel]


def _key(name: str, option: Option) -> str:
    return _flag(name, option).removeprefix("--").replace("-", "_")


def _flag(name: str, option: Option) -> str:
    return option.flag or f"--{name.replace('_', '-')}"


def _in_order(option: Option, *, pair: bool) -> list[str]:
    """List the members of an option's family that a command takes, those that the option names first."""
    known = registry.offered_views(pair=pair) if option.family == "view" else registry.offered_formats(pair=pair)
    return [*(word for word in option.words if word in known), *(name for name in known if name not in option.words)]


def _described(option: Option, members: Sequence[str]) -> str:
    return "".join(f"{ITEM}{member}: {_members(option.family)[member].help}" for member in members)


def _members(family: str) -> Mapping[str, NamedMember]:
    return registry.views() if family == "view" else registry.formats()


def _for_pair(option: Option) -> Option:
    """Return an option without the words that need all images of a run of one network."""
    words = [word for word in option.words if word not in OF_ONE]
    return replace(option, help=option.of_pair or option.help, words=words)


def _parameter(group: type, name: str, option: Option, *, pair: bool) -> inspect.Parameter:
    option = _for_pair(option) if pair else option
    kind = _kind(types_of(group)[name], option)
    default = inspect.signature(group).parameters[name].default
    flag = _flag(name, option)
    if kind == bool | None or default is True:
        flag += f"/--no-{flag.removeprefix('--')}"
    leaves_default = kind in (str | None, list[str] | None)  # `read_options` leaves it to the dataclass
    repeatable = " Repeatable." if kind == list[str] | None and not option.commas else ""
    members = _in_order(option, pair=pair) if option.family else []
    declared = typer.Option(
        flag,
        metavar=option.metavar or "|".join(option.words) or None,
        help=f"{option.help}{repeatable} {_described(option, members)}".rstrip(),
        show_default=option.shown or True,
        rich_help_panel=option.panel,
        autocompletion=lambda incomplete: _complete(option, members, incomplete),
    )
    annotation = Annotated[kind, declared]  # type: ignore[valid-type]  # a type at run time
    return inspect.Parameter(
        _key(name, option),
        inspect.Parameter.KEYWORD_ONLY,
        default=None if leaves_default else default,
        annotation=annotation,
    )


# Any: a type, or a union of types.
def _kind(hint: Any, option: Option) -> Any:
    """Return the type of a field as Typer takes it."""
    if option.parse:
        return str | None
    if Path in get_args(hint):
        return str
    if any(get_origin(each) is Sequence for each in (hint, *get_args(hint))):
        return list[str] | None
    return hint


def _complete(option: Option, members: Sequence[str], incomplete: str) -> list[Any]:
    """Complete a word, or the last of several members of a family, separated by commas."""
    if not option.family:
        return [word for word in option.words if word.startswith(incomplete)]
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = (name for name in sorted(members) if name.startswith(last) and name not in given)
    known = [(f"{before}{comma}{name}", _members(option.family)[name].help) for name in names]
    return [*known, *((f"{before}{comma}{name}", "your own code") for name in _own(last))]


def _own(incomplete: str) -> Iterator[str]:
    """Yield references to functions and classes in Python files that begin with a text; no code is run."""
    file = incomplete.partition(":")[0]
    beside = Path(f"{file}_").parent
    for path in sorted(map(str, beside.glob("*.py"))) if file else ():
        if path.startswith(file):
            yield from (reference for reference in references_in(path) if reference.startswith(incomplete))
