"""Records: JSON files that end with a checksum of themselves.

Tried with orjson 3.13: on records of 10 KB it reads in 25 instead of 83 us and writes in 7 instead of 102 us, nothing beside
the milliseconds that an image takes. But it rejects lone surrogates, as which paths that are not UTF-8 are recorded, and
integers above 64 bits; it writes other digits of some floats and text that is not ASCII. So finished runs could not be read.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from fmapviz.core import files
from fmapviz.core.urls import is_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 2  # of the records of runs and units; 1 is that of versions up to 0.2.0
CHECKSUM_BYTES = 70  # the end of a record, with its checksum
MAX_BYTES = 2**28  # a record of 500,000 files; a larger file is no record, and is not read to its end

_CHECKSUM = b',\n "sha256": "'
_ENTRY = frozenset({"name", "size", "sha256", "members", "object"})  # keys of the entry of a file
_BEGINNING = b'{\n "fmapviz": '


read = partial(files.read, most=MAX_BYTES + 1)  # a record, and one byte more than it may have


class Json(str):
    """A value that is already formatted as JSON, such as long lists of numbers."""

    __slots__ = ()


def dumps(document: dict[str, Any]) -> bytes:
    """Format a record as JSON whose last entry is the SHA-256 of everything before it.

    Example:
        >>> is_intact(dumps({"fmapviz": 1})), is_intact(dumps({"fmapviz": 1}).replace(b"1", b"2", 1))
        (True, False)
    """
    # A line per entry and per item of a list of objects; the `indent` of json is slow, being written in Python.
    entries = []
    for key, value in document.items():
        if isinstance(value, Json):
            text: str = value
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            text = "[\n  " + ",\n  ".join(map(_dumps, value)) + "]"
        else:
            text = _dumps(value)
        entries.append(f"{_dumps(key)}: {text}")
    body = ("{\n " + ",\n ".join(entries)).encode("ascii")
    return body + _CHECKSUM + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_intact(data: bytes) -> bool:
    """Return True if a record ends with the checksum of what precedes it."""
    body, _, end = data.rpartition(_CHECKSUM)
    return end == hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_formatted(data: bytes) -> bool:
    """Return True if a record is byte for byte what `dumps` makes of its content, so that lines of it can be counted.

    Example:
        >>> is_formatted(dumps({"fmapviz": 1})), is_formatted(dumps({"fmapviz": 1}).replace(b" 1", b"  1"))
        (True, False)
    """
    document = parse(data)
    if document is None or document.pop("sha256", None) is None:
        return False
    try:
        return dumps(document) == data
    except (ValueError, RecursionError):  # NaN, for example
        return False


def is_truncated(data: bytes) -> bool:
    """Return True for a record that a full disk or a power failure truncated, emptied or filled with zeros.

    Example:
        >>> is_truncated(b""), is_truncated(dumps({"fmapviz": 1})[:20]), is_truncated(b"{}")
        (True, True, False)
    """
    return begins_like(data, _BEGINNING)


def begins_like(data: bytes, beginning: bytes) -> bool:
    """Return True if data have a known beginning, with at most one wrong byte, or are a part of it, or only zeros.

    Example:
        >>> begins_like(b"<!doctype html>", b"<!doctyPe"), begins_like(b"<!d", b"<!doctype"), begins_like(b"a", b"<!doctype")
        (True, True, False)
    """
    if not data.strip(b"\0") or (data and beginning.startswith(data)):
        return True
    wrong = sum(given != known for given, known in zip(data, beginning, strict=False))
    return len(data) >= len(beginning) and wrong <= 1


def parse(data: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None if the data, which may come from anywhere, are something else or more than a record has."""
    if len(data) > MAX_BYTES:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def load(path: Path, *, intact: bool = False) -> dict[str, Any] | None:
    """Read a record; None if it is missing or cannot be parsed.

    Args:
        path: The file.
        intact: Return None also if the checksum does not match.
    """
    try:
        data = read(path)
    except (OSError, ValueError):  # ValueError: no path can hold its name
        return None
    return None if intact and not is_intact(data) else parse(data)


def entries(document: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the files that a record lists, each with `name`, `size` and `sha256`; None if the list is malformed.

    An entry of a unit may have `members`, and that of a remote file `object`; another key is malformed.
    """
    listed = document.get("files")
    return listed if isinstance(listed, list) and all(map(_is_entry, listed)) else None


def _is_entry(entry: object) -> bool:
    """Return True for an entry of a file in the record's own directory."""
    if not isinstance(entry, dict) or not entry.keys() <= _ENTRY:
        return False
    if not isinstance(entry.get("size"), int) or not isinstance(entry.get("sha256"), str):
        return False
    names = (entry.get("name"), entry.get("object", "-"))
    return all(is_path(name) and name not in {"", ".", ".."} and "/" not in name for name in names)


_dumps = json.JSONEncoder(allow_nan=False).encode
