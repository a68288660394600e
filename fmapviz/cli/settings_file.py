"""Find and read the settings file of a command: `fmapviz.toml`, or `[tool.fmapviz]` in `pyproject.toml`."""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.core.platforms import user_number
from fmapviz.errors import RequestError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OWN, SHARED = "fmapviz.toml", "pyproject.toml"  # in one folder the first one counts
_HEADINGS = {OWN: (), SHARED: ("tool", "fmapviz")}  # of the table with the settings
_MOST_BYTES, _MOST_READ = 2**18, 2**24  # a table behind what is read does not count
MOST_BITS = 64  # of a number; Python refuses to print thousands of digits
_MOST_SHOWN = 80  # characters
_MOST_PARTS = 64  # of a key; the time of tomllib grows with their square
_PART = r"""(?:[\w-]++|"(?:\\.|[^"\\\n])*+"|'[^'\n]*+')[ \t]*+"""
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:{_PART}\.[ \t]*+){{{_MOST_PARTS}}}")
_PIECE = re.compile(  # what decides where a statement of TOML ends
    r"""\"{3}(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*'|\#[^\n]*|[\[\]{}\n]""", re.DOTALL
)
# A line that may begin the table of settings in a file that is not parsed.
_MAY_BEGIN = re.compile(
    rb"""^[ \t]*\[[ \t]*(["']?)tool\1[ \t]*\.[ \t]*(["']?)fmapviz\2[ \t]*[\].]
    |(?:^|[{,])[ \t]*(?:(["']?)tool\3[ \t]*\.[ \t]*)?(["']?)fmapviz\4[ \t]*[.=]""",
    re.MULTILINE | re.VERBOSE,
)
_IGNORED = "--no-config ignores the file"
_OPEN = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file.

    Attributes:
        path: Its path, relative to the working directory.
        folder: Its folder, absolute.
        table: The settings, and tables of settings by the names of commands.
        text: The whole text.
    """

    path: str
    folder: Path
    table: Mapping[str, Any]  # Any: values of TOML
    text: str

    def place(self, *keys: str) -> str:
        """Return file and line of a key, for a message."""
        return _place(self.path, _line_of(self.text, (*_HEADINGS[Path(self.path).name], *keys)))


def find_settings() -> SettingsFile | None:
    """Return the nearest settings file from the working directory upwards; None if there is none.

    A `pyproject.toml` without a table `[tool.fmapviz]` does not count.

    Raises:
        RequestError: The nearest one cannot be read, is not valid TOML, or is of another user.
    """
    try:
        here = Path.cwd()
    except OSError:  # the working directory was removed
        return None
    paths = (folder / name for folder in (here, *here.parents) for name in (OWN, SHARED))
    found = (_read(path, here) for path in paths if os.path.lexists(path))  # False in a folder that cannot be searched
    return next(filter(None, found), None)


def relative(path: Path, here: Path) -> str:
    """Return a path relative to a directory; on another drive it stays absolute."""
    try:
        return os.path.relpath(path, here)
    except ValueError:
        return str(path)


def describe(value: object) -> str:
    """Describe a value of a file for a message.

    Example:
        >>> describe(True), describe("a"), describe(1.5), describe({}), describe([1]), describe(2**64)
        ('true', "'a'", '1.5', 'a table', 'an array', 'a number of more than 64 bits')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "an array"
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return "a number of more than 64 bits"
    return shorten(value) if isinstance(value, str) else printable(str(value))


def shorten(text: str) -> str:
    """Quote the beginning of a text."""
    return quote(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def _read(path: Path, here: Path) -> SettingsFile | None:
    """Read a settings file; return None for a `pyproject.toml` without settings."""
    shown = relative(path, here)
    heading = _HEADINGS[path.name]
    if heading and not os.path.isfile(path):
        return None
    data, owners, is_open = _load(path, shown)
    if not all(key.encode() in data for key in heading) and b"\\" not in data:  # most need not be parsed
        return None
    try:
        text, table = _parse(data, shown)
    except RequestError:
        if heading and not _MAY_BEGIN.search(data):
            return None
        raise
    if not _holds(table, heading):
        return None
    for key in heading:
        table = table[key]
    file = SettingsFile(shown, path.parent, table, text)
    if not isinstance(table, dict):
        raise RequestError(f"{'.'.join(heading)} must be a table, not {describe(table)} ({file.place()})", hint=_IGNORED)
    _check_trusted(owners, here, shown, is_open=is_open)
    return file


def _load(path: Path, shown: str) -> tuple[bytes, set[int], bool]:
    """Return the content of a file, the owners of it and of a link to it, and whether every user can write it."""
    try:
        with os.fdopen(os.open(path, _OPEN), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RequestError(f"the settings file is no regular file: {quote(shown)}", hint=_IGNORED)
            data = file.read(_MOST_READ)
        owners = {status.st_uid, path.lstat().st_uid}
        is_open = bool(status.st_mode & stat.S_IWOTH) and _keeps_permissions(path)
    except OSError as error:
        raise RequestError(f"cannot read the settings file {quote(shown)}: {error.strerror}", hint=_IGNORED) from error
    return data, owners, is_open


def _keeps_permissions(path: Path) -> bool:
    """Return False if a file system seems to have no permissions, such as a drive of Windows in WSL.

    There a file, its folder, and the root of the file system have all of them, and `chmod` changes nothing. Not each folder
    in between: one with Windows' attribute read-only has the mode 0555.
    """
    real = Path(os.path.realpath(path))
    root = next(folder for folder in real.parents if os.path.ismount(folder))
    return any(stat.S_IMODE(each.stat().st_mode) != 0o777 for each in (real, real.parent, root))


def _check_trusted(owners: set[int], here: Path, shown: str, *, is_open: bool) -> None:
    """Check that no other user decides what a command does: a setting may name code.

    As git does for repositories, except that the owner of the working directory counts, for commands in a container.

    Raises:
        RequestError: The file is of another user, or every user can write it.
    """
    user = user_number()
    if user is None:
        return
    try:
        trusted = {user, 0, here.stat().st_uid}
    except OSError:  # the working directory was removed
        trusted = {user, 0}
    if not owners <= trusted:
        hint = f"{_IGNORED}; trusted are yours, those of root, and those of the owner of the working directory"
        raise RequestError(f"the settings file belongs to another user: {quote(shown)}", hint=hint)
    if is_open:
        raise RequestError(f"every user can write the settings file: {quote(shown)}", hint=f"chmod o-w FILE; {_IGNORED}")


def _parse(data: bytes, shown: str) -> tuple[str, Any]:  # Any: values of TOML
    """Return the text of a file and its values."""
    import tomllib  # most commands have no settings file

    reason, line = "", None
    if len(data) > _MOST_BYTES:
        raise RequestError(f"the settings file is larger than {_MOST_BYTES // 1024} KiB: {quote(shown)}", hint=_IGNORED)
    try:
        text = data.decode("utf-8-sig")
        if deep := _DEEP_KEY.search(text):
            place = _place(shown, text.count("\n", 0, deep.start()) + 1)
            raise RequestError(f"a key of the settings file has more than {_MOST_PARTS} parts ({place})", hint=_IGNORED)
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        reason, line = "it is not UTF-8", data[: error.start].count(b"\n") + 1
    except RecursionError:
        reason = "its values are nested too deeply"
    except ValueError as error:  # also of a number with thousands of digits
        reason, _, position = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", position)
        line = int(found[1]) if found else data.count(b"\n") + 1 if position else None
    raise RequestError(f"the settings file is not valid TOML: {printable(reason)} ({_place(shown, line)})", hint=_IGNORED)


def _place(shown: str, line: int | None) -> str:
    return printable(shown if line is None else f"{shown}:{line}")


def _line_of(text: str, keys: Sequence[str]) -> int | None:
    r"""Return the line at which a key is set first; None if it is not.

    Example:
        >>> _line_of("to = [\n'png',\n]\n[diff]\nto = 'html'", ["to"]), _line_of("[a]\n'b' = 1", ["a", "b"])
        (1, 2)
    """
    import tomllib  # as above

    text = text.replace("\r\n", "\n") + "\n"
    ends = list(_ends_of_statements(text))
    if not keys or not _holds(tomllib.loads(text), keys):
        return None
    first = bisect_left(ends, True, key=lambda end: _holds(tomllib.loads(text[:end]), keys))
    return text.count("\n", 0, ends[first - 1]) + 1 if first else 1


def _ends_of_statements(text: str) -> Iterator[int]:
    """Yield where the statements of a text in TOML end; those of an empty line and of a comment count."""
    depth = 0
    for piece in _PIECE.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece[0], 0)
        if piece[0] == "\n" and not depth:
            yield piece.end()


def _holds(values: Any, keys: Iterable[str]) -> bool:  # Any: values of TOML
    """Return True if nested tables hold a key."""
    for key in keys:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True
