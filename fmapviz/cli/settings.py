"""Options from a settings file count as if they were typed, unless they are."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import typer
from typer.models import OptionInfo

from fmapviz.cli.printing import print_message
from fmapviz.cli.settings_file import SettingsFile, find_settings
from fmapviz.config.options import RUNNING
from fmapviz.core.platforms import in_shell
from fmapviz.core.settings_file import settings_file
from fmapviz.core.urls import is_url
from fmapviz.errors import RequestError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmapviz.cli.setting_values import Setting
    from fmapviz.errors import FmapvizError

F = TypeVar("F", bound="Callable[..., Any]")
_OPPOSITES = (("quiet", "verbose"), ("verbose", "quiet"))
_PATHS = {"out", "name"}  # whose parts and contents messages name
_MEMBERS = {"view", "to"}
_TO_LEAVE_OUT = re.compile(r"\b(?:without|leave out|omit) (--[^;:,.]*)")
_WORD = re.compile(r"[^\W_]+")


class _InEffect:
    """The settings of this command; a process runs one.

    Attributes:
        file: Where they are from.
        is_read: True once the file was searched for, also if it is wrong.
        command: Name of the command.
        settings: Those of the command, by the names of parameters; once it is parsed, those in effect.
        values: The parsed values, by the same names.
        typed: The parsed values of what was typed.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.file: SettingsFile | None = None
        self.is_read = False
        self.command = "run"
        self.settings: dict[str, Setting] = {}
        self.values: dict[str, Any] = {}  # Any: of each type
        self.typed: list[Any] = []  # Any: as above
        settings_file.set({})


_in_effect = _InEffect()


def configurable(command: F) -> F:
    """Take options of a command from a settings file, and add `--no-config`; a command without options stays as it is."""
    signature = inspect.signature(command, eval_str=True)
    if not any(isinstance(part, OptionInfo) for each in signature.parameters.values() for part in get_args(each.annotation)):
        return command
    declared = typer.Option(
        "--no-config",
        help="Ignore fmapviz.toml and [tool.fmapviz] in pyproject.toml.",
        is_eager=True,  # but a typed --help comes first: it needs no file
        callback=_load,
        rich_help_panel=RUNNING,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *signature.parameters.values(),
        inspect.Parameter("no_config", kind, default=False, annotation=Annotated[bool, declared]),
    ]

    @wraps(command)
    def call(*, no_config: bool, **kwargs: Any) -> Any:  # Any: as the command
        del no_config  # `_load` has read it
        return command(**kwargs)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by Typer
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return cast("F", call)


def _load(ctx: typer.Context, value: bool) -> bool:
    """Read the settings file before other options are processed."""
    _in_effect.clear()
    if value or ctx.resilient_parsing or ctx.parent is None:  # completion reads no file
        return value
    commands: Any = ctx.parent.command  # Any: the class of groups is not public
    _in_effect.is_read = True
    _in_effect.file = find_settings()
    if _in_effect.file:
        from fmapviz.cli.setting_values import settings_of  # most commands have no settings file

        found = settings_of(ctx.info_name or "", commands.commands, _in_effect.file)
        _in_effect.settings = {each.option.name or "": each for each in found if each.value is not None}
        ctx.default_map = {name: each.value for name, each in _in_effect.settings.items()}
    return value


def take_effect(ctx: Any) -> None:  # Any: the class of contexts is not public
    """Note which settings are in effect: those whose options, or their opposites, were not typed."""

    def source(name: str) -> str:
        return getattr(ctx.get_parameter_source(name), "name", "")

    _in_effect.command = ctx.info_name if any(each.name == "json" for each in ctx.command.params) else ""
    untyped = {"DEFAULT_MAP", ""}  # an error leaves some options without a source
    settings = {name: each for name, each in _in_effect.settings.items() if source(name) in untyped}
    for typed, other in _OPPOSITES:
        if source(typed) == "COMMANDLINE" and other in settings:
            del settings[other]
            ctx.params[other] = False
    _in_effect.settings = settings
    _in_effect.values = {name: ctx.params.get(name, each.value) for name, each in settings.items()}
    _in_effect.typed = [value for name, value in ctx.params.items() if source(name) == "COMMANDLINE"]
    if _in_effect.file and settings:
        options = {each.key: None if is_url(each.value) else each.value for each in settings.values()}  # may hold a password
        settings_file.set({"file": Path(_in_effect.file.path).name, "options": options})


def print_settings() -> None:
    """Report which settings are in effect."""
    if _in_effect.file and _in_effect.settings:
        flags = ", ".join(each.typed().partition(" ")[0] for each in _in_effect.settings.values())
        print_message(f"notice: {printable(f'{in_shell(str(_in_effect.file.path))} sets {flags}')}")


def describe_settings() -> str | None:
    """Return the settings in effect with their values and their file; None without any."""
    if not _in_effect.file or not _in_effect.settings:
        return None
    flags = ", ".join(each.typed() for each in _in_effect.settings.values())
    return printable(f"{flags} from {_in_effect.file.path}")


def asks_for_json() -> bool:
    """Return True if the settings file switches `--json` on, also if the command line or another setting is wrong."""
    file, command = _in_effect.file, _in_effect.command
    if not _in_effect.is_read and "--no-config" not in sys.argv[1:]:  # the parser failed before
        with suppress(RequestError):
            file = find_settings()
    if file is None or not command:
        return False
    own = file.table.get(command)
    return {**file.table, **(own if isinstance(own, dict) else {})}.get("json") is True


def locate(error: FmapvizError) -> None:
    """Add the places of the settings that an error is about to its message, unless it has one."""
    places = [place_of(name) for name in _causes(str(error), error.hint or "")]
    if places:
        error.args = (f"{error}{''.join(place for place in places if place not in str(error))}",)


def place_of(parameter: str) -> str:
    """Return the place of the setting of a parameter as the end of a message; empty if it was typed."""
    setting, file = _in_effect.settings.get(parameter), _in_effect.file
    return f" ({file.place(*setting.keys)})" if setting and file else ""


def _causes(message: str, hint: str) -> list[str]:
    """Return the settings that an error is about, by the names of their parameters."""
    return next(filter(None, _guesses(message, hint)), []) if _in_effect.settings else []


def _guesses(message: str, hint: str) -> Iterator[list[str]]:
    """Yield settings that an error may be about, the surest first."""
    from fmapviz.cli.options import as_typed, described_as  # most commands have no settings file

    values, keys = _in_effect.values, {name: each.key for name, each in _in_effect.settings.items()}
    yield [name for name, value in values.items() if _fails_alone(name, value) == message]
    quoted = [name for name, value in values.items() if _is_quoted(message, value, is_path=name in _PATHS)]
    yield [name for name in quoted if any(f" {word}" in _words(message) for word in described_as(name).words)]
    if not any(_is_quoted(message, value) for value in _in_effect.typed):
        yield quoted
    yield [name for name, value in values.items() if _is_said(message, name, value)]
    yield [name for name in values if re.search(described_as(name).difference, message)]
    yield [name for name, key in keys.items() if _has_flag(message, key) or f"chosen {key} " in message]
    advice = as_typed(hint)
    yield [name for name, key in keys.items() if any(_has_flag(each, key) for each in _TO_LEAVE_OUT.findall(advice))]
    yield [name for name, key in keys.items() if values.get(name) == "" and _has_flag(advice, key)]


def _is_quoted(message: str, value: Any, *, is_path: bool = False) -> bool:  # Any: of each type
    """Return True if a message quotes a part of a value, or a path with it."""
    ends = "['/]" if is_path and value else "'"
    return any(re.search(f"{ends}{re.escape(printable(part))}{ends}", message) for part in _parts(value))


def _is_said(message: str, name: str, value: Any) -> bool:  # Any: as above
    """Return True if a message names an option with a part of its value, or begins with a view or format."""
    from fmapviz.cli.options import described_as

    parts = {piece for part in _parts(value) if part for piece in (part, part.partition("-")[0])}
    if name in _MEMBERS and message.partition(" ")[0].rstrip(",") in parts:
        return True
    return any(f" {word}{_words(part)}" in _words(message) for word in described_as(name).words for part in parts)


def _words(text: str) -> str:
    """Return the words of a text in lower case, with a blank at both ends."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _has_flag(text: str, key: str) -> bool:
    return re.search(rf"--{key}(?![\w-])", text) is not None


def _fails_alone(name: str, value: Any) -> str | None:  # Any: of each type
    """Return the message of the error that an option causes without others; None if there is none."""
    from fmapviz.cli.options import read_options
    from fmapviz.config import Engine, InputOptions, RunConfig, Style

    try:
        if name == "engine":
            Engine.parse(value)
            return None
        read = read_options({name: value})
        Style(**read[Style])
        InputOptions(**read[InputOptions])
        Engine(**read[Engine])
        RunConfig("", **read[RunConfig])
    except RequestError as error:
        return str(error)
    return None


def _parts(value: Any) -> Iterator[str]:  # Any: of each type
    """Yield what a message may quote of a value: all, each of several, and what follows a prefix, as in `model:NAME`."""
    for each in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(each, bool):
            yield str(each)
            pieces = {*str(each).split(","), str(each).partition(":")[2]}
            yield from pieces - ({""} if not str(each).endswith(":") else set())
