"""Check the settings of a file, and convert them to values of the options of a command."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from typer.core import TyperOption

from fmapviz.cli.former import FORMER
from fmapviz.cli.settings_file import MOST_BITS, OWN, describe, relative, shorten
from fmapviz.cli.synonyms import meant_flag
from fmapviz.core.urls import is_unknown, is_url
from fmapviz.errors import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fmapviz.cli.settings_file import SettingsFile

    Keys = tuple[str, ...]  # of a setting: that of the table of a command, if it is in one, and its own
    Options = Mapping[str, TyperOption]  # of a command, by their keys
    Value = str | bool | list[str]

RUN = "run"
_OF_ITS_OWN = {
    ("extract", "force"),  # replaces a file of the user, elsewhere pictures of fmapviz
    ("layers", "out"),  # only with formats of tables
}
_TYPED_ONLY = {"help", "version", "no-config", "generate", "install-completion", "show-completion"}
_ARGUMENTS = {"model", "models", "input", "inputs", "images"}
_CODE = re.compile(r"(^model:|^|,)([^,:]+\.py)(?=[:,]|$)")
_WEIGHTS = re.compile(r".*\.(pt|pth|ckpt|bin|safetensors)(#.*)?|(?!\w\w+:).*/.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a command.

    Attributes:
        keys: The key of the table of the command, if it is in one, and its own.
        option: Its option.
        value: Its value, as the parser takes it; None if it is the default.
    """

    keys: Keys
    option: TyperOption
    value: Value | None

    @property
    def key(self) -> str:
        """Name of the option without dashes."""
        return self.keys[-1]

    def typed(self) -> str:
        """Return the option as it is typed, with its value.

        Raises:
            TypeError: The value is the default.
        """
        flag = max(self.option.opts, key=len)
        if isinstance(self.value, bool):
            return flag if self.value else next(iter(self.option.secondary_opts), f"no {flag}")
        return f"{flag} {','.join(self.value) if isinstance(self.value, list) else self.value}"


# Any: the class of commands is not public.
def settings_of(command: str, commands: Mapping[str, Any], file: SettingsFile) -> list[Setting]:
    """Return the settings of a command in a file, and check the general ones.

    A general setting has the meaning that the option has in `fmapviz run`. A command whose option of that name takes other
    values has it from its own table only. The table of another command is checked in full when that command runs: most of
    their code need not be imported.

    Args:
        command: Name of the command.
        commands: All commands, by name.
        file: The settings file.

    Raises:
        RequestError: A key is no option, or a value has a type that no typed value has.
    """
    options = _OptionsByCommand(commands)
    own, of_run = options[command], options[RUN]
    found: dict[str, Setting] = {}
    for table, keys, value in _each(file, options):
        key = keys[-1]
        if not _is_known(command, table, key, options):
            _refuse_key(file, keys, {name: options[name] for name in commands})
        meant = own.get(key) if table else of_run.get(key, own.get(key))
        if meant is None or table not in {"", command}:
            continue
        converted = _convert(file, keys, meant, value)
        if key in own and (table or not _is_other(command, key, own[key], of_run.get(key))):
            found.setdefault(key, Setting(keys, own[key], converted))
    return list(found.values())


class _OptionsByCommand(dict[str, "Options"]):
    """The options of each command, whose code is imported when they are asked for."""

    def __init__(self, commands: Mapping[str, Any]) -> None:  # Any: as above
        super().__init__()
        self.commands = commands

    def __missing__(self, name: str) -> Options:
        options = (each for each in self.commands[name].params if isinstance(each, TyperOption))
        named = {max(each.opts, key=len).lstrip("-"): each for each in options}
        self[name] = {key: option for key, option in named.items() if key not in _TYPED_ONLY}
        return self[name]


def _is_known(command: str, table: str, key: str, options: _OptionsByCommand) -> bool:
    if table == command:
        return key in options[command]
    others = [table] if table else [command, *options.commands]
    return key in options[RUN] or any(key in options[name] for name in others)


def _is_other(command: str, key: str, own: TyperOption, of_run: TyperOption | None) -> bool:
    """Return True if an option has another meaning than that of `fmapviz run`."""
    return of_run is not None and (own.metavar != of_run.metavar or (command, key) in _OF_ITS_OWN)


# Any: values of TOML.
def _each(file: SettingsFile, options: _OptionsByCommand) -> Iterator[tuple[str, Keys, Any]]:
    """Yield each setting: the command whose table holds it, if any, its keys and its value; those of tables come first."""
    tables = {
        key: value
        for key, value in file.table.items()
        if key in options.commands and isinstance(value, dict) and options[key]
    }
    for command, table in tables.items():
        for key, value in table.items():
            yield command, (command, key), value
    for key, value in file.table.items():
        if key not in tables:
            yield "", (key,), value


def _convert(file: SettingsFile, keys: Keys, option: TyperOption, value: Any) -> Value | None:  # Any: values of TOML
    """Return the value of an option as the parser takes it; None for an empty array, and for a flag that is off anyway."""
    key, form = keys[-1], option.metavar or ""
    between = "x" if "HxW" in form else ","
    has_several = option.multiple or between in form or "LIST" in form

    def refuse(must: str, found: object) -> NoReturn:
        hint = f"{key} = true" if option.is_flag else f"it is written as it is typed: {form}{', or an array' * has_several}"
        raise RequestError(f"{key} {must}, not {describe(found)} ({file.place(*keys)})", hint=hint)

    if option.is_flag:
        if not isinstance(value, bool):
            refuse("must be true or false", value)
        return value if value or option.secondary_opts else None
    if isinstance(value, list) and not has_several:
        refuse("takes one value", value)
    texts = []
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            refuse("must be text or a number", each)
        if isinstance(each, int) and each.bit_length() > MOST_BITS:
            refuse("must be a number of TOML", each)
        if isinstance(each, str) and "\0" in each:
            refuse("must be text without zero bytes", each)
        texts.append(_beside(file.folder, option, str(each)))
    if not texts:
        return None
    return texts if option.multiple else between.join(texts)


def _beside(folder: Path, option: TyperOption, text: str) -> str:
    """Return a value in which a path relative to the file is relative to the working directory."""
    here, kinds = Path.cwd(), {*re.findall("[A-Z]+", option.metavar or "")}

    def join(path: str) -> str:
        is_whole = path in {"", "-"} or path.startswith("~") or Path(path).is_absolute()
        return path if is_whole or is_url(path) or is_unknown(path) else relative(folder / path, here)

    if folder == here:
        return text
    if "DIR" in kinds or kinds == {"FILE"}:
        return join(text)
    if "FILE" in kinds and (_WEIGHTS.fullmatch(text) or os.path.lexists(folder / text)):
        return join(text)
    if "FILE" in kinds or ("NAME" in kinds and option.multiple):
        return _CODE.sub(lambda found: found[1] + join(found[2]), text)
    return text


def _refuse_key(file: SettingsFile, keys: Keys, options: Mapping[str, Options]) -> NoReturn:
    """Raise `RequestError` for a key that is no option."""
    key, place = keys[-1], file.place(*keys)
    if options.get(key) and len(keys) == 1 and f"--{key}" not in FORMER:
        table = key if file.path.endswith(OWN) else f"tool.fmapviz.{key}"
        hint = f"the table [{table}] has the options of `fmapviz {key}`"
        raise RequestError(f"{key} is a command, and no option ({place})", hint=hint)
    is_table = len(keys) == 1 and isinstance(file.table.get(key), dict)
    if is_table and key in options:
        raise RequestError(
            f"{key} is a command without settings ({place})", hint=f"`fmapviz {key} --help` shows its options"
        )
    what = f"no such option{' or command' if is_table else ''}" if len(keys) == 1 else f"no such option of {keys[0]}"
    everywhere = {name: option for some in options.values() for name, option in some.items()}
    known = options[keys[0]] if len(keys) > 1 else everywhere
    raise RequestError(f"{what}: {shorten(key)} ({place})", hint=next(_hints_for(key, known, options, is_table=is_table)))


def _hints_for(key: str, known: Options, options: Mapping[str, Options], *, is_table: bool) -> Iterator[str]:
    """Yield what a key may mean, the likeliest first.

    Args:
        key: The key.
        known: The options that are taken where it is.
        options: The options of all commands.
        is_table: Whether it is the key of a table, which may be meant for a command.
    """
    word = key.lower().replace("_", "-")
    if key == "tool":
        yield f"{OWN} has options at its top, without [tool.fmapviz]"
    if word in _TYPED_ONLY:
        yield "it is typed, and no setting"
    if word in known:
        yield f"did you mean {word}?"
    if is_table and (near := nearest(word, [name for name, some in options.items() if some], cutoff=0.6)):
        yield f"did you mean {', '.join(f'the table [{name}]' for name in near)}?"
    if (meant := word.removeprefix("no-")) in known:
        yield f"did you mean {meant} = false?"
    if (meant := FORMER.get(f"--{word}", "").removeprefix("--")) in known:
        yield f"{key} is now {meant}"
    if others := [name for name, some in options.items() if word in some]:
        yield f"{word} is an option of {', '.join(f'`fmapviz {name}`' for name in others)}"
    if word in _ARGUMENTS:
        yield "models and inputs are typed, and no settings"
    if hint := meant_flag(word, [f"--{name}" for name in known]):
        yield re.sub(r"--([\w-]+) ([\w-]+)(?=\?)", r"--\1 = '\2'", hint).replace("did you mean --", "did you mean ")
    if near := nearest(word, known, cutoff=0.6):
        yield f"did you mean {', '.join(near)}?"
    yield "options have their names without dashes; `fmapviz run --help` lists them"
