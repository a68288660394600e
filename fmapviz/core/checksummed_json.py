"""Records: JSON files that tell whether they are as they were written."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from fmapviz import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
SEAL_BYTES = 70  # the end of a record, which tells its content
MOST_SHARDS = 2**31  # in one run; with the number of an image in a shard, an index of pictures holds it in 64 bits
MAX_BYTES = 2**28  # of an image's record with 500,000 files; whoever makes a larger one is up to something

_SEAL = b',\n "sha256": "'
_BEGINNING = b'{\n "fmapviz": '


class Json(str):
    """A value that is JSON already: lists of many numbers, which the encoder takes long for."""

    __slots__ = ()


def seal(document: dict[str, Any]) -> bytes:
    """Write a record as JSON whose last entry is the SHA-256 of all before it, so that no byte changes unnoticed.

    Example:
        >>> is_sealed(seal({"fmapviz": 1})), is_sealed(seal({"fmapviz": 1}).replace(b"1", b"2", 1))
        (True, False)
    """
    # A line for each entry, and for each of a list of records; json's own `indent` is written in Python, and slow.
    entries = (f"{_dumps(key)}: {_lines(value)}" for key, value in document.items())
    body = ("{\n " + ",\n ".join(entries)).encode("ascii")
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_sealed(data: bytes) -> bool:
    """Tell whether a record is byte for byte as `seal` wrote it."""
    body, _, end = data.rpartition(_SEAL)
    return end == hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_remnant(data: bytes) -> bool:
    """Tell whether this is what a full disk or a power failure leaves of a record: its beginning, nothing, or zeros.

    Example:
        >>> is_remnant(b""), is_remnant(seal({"fmapviz": 1})[:20]), is_remnant(b"{}")
        (True, True, False)
    """
    return begins_like(data, _BEGINNING)


def begins_like(data: bytes, beginning: bytes) -> bool:
    """Tell whether data begin as is known, but for one byte; or are less than that, or nothing but zeros.

    Example:
        >>> begins_like(b"<!doctype html>", b"<!doctyPe"), begins_like(b"<!d", b"<!doctype"), begins_like(b"a", b"<!doctype")
        (True, True, False)
    """
    if not data.strip(b"\0") or (data and beginning.startswith(data)):
        return True
    wrong = sum(given != known for given, known in zip(data, beginning, strict=False))
    return len(data) >= len(beginning) and wrong <= 1


def parse(data: bytes) -> dict[str, Any] | None:
    """Read a JSON object, whoever wrote it; None if it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def read(path: Path) -> bytes:
    """Read what ought to be a record, but no more than one can be.

    Raises:
        OSError: There is none, say, or something else than a file.
    """
    return files.read(path, most=MAX_BYTES + 1)


def load(path: Path, *, sealed: bool = False) -> dict[str, Any] | None:
    """Read a record; None if there is none, or none that is whole.

    Args:
        path: The file.
        sealed: Whether a changed byte makes it none, too.
    """
    try:
        data = read(path)
    except OSError:
        return None
    if len(data) > MAX_BYTES or (sealed and not is_sealed(data)):
        return None
    return parse(data)


def entries(document: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Give what a record says of files: of each `name`, `size` and `sha256`; None if it does not, or of files elsewhere."""
    listed = document.get("files")
    return listed if isinstance(listed, list) and all(map(_is_entry, listed)) else None


def is_shard(document: Mapping[str, Any]) -> bool:
    """Tell whether a record says of many images what it should; whoever wrote it may have made it up."""
    images, number = document.get("images"), document.get("shard")
    return isinstance(images, list) and all(map(_is_image, images)) and isinstance(number, int) and 0 <= number < MOST_SHARDS


def is_path(text: object) -> bool:
    r"""Tell whether this can be a path at all.

    Example:
        >>> is_path("a/b"), is_path("a\0b"), is_path("\ud800"), is_path(7)
        (True, False, False, False)
    """
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _is_entry(entry: object) -> bool:
    """Tell whether this is said of a file in the record's own directory; whoever wrote the record may have made it up."""
    if not isinstance(entry, dict):
        return False
    plain = _is_name(entry.get("name")) and _is_name(entry.get("object", "elsewhere"))
    return plain and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and is_path(name) and name not in {"", ".", ".."} and "/" not in name


def _is_image(image: object) -> bool:
    if not isinstance(image, dict) or not is_path(image.get("path")) or not isinstance(image.get("name"), str):
        return False
    return isinstance(image.get("size"), int) and isinstance(image.get("mtime_ns"), int)


_dumps = json.JSONEncoder(allow_nan=False).encode


def _lines(value: object) -> str:
    if isinstance(value, Json):
        return value
    if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
        return _dumps(value)
    return "[\n  " + ",\n  ".join(map(_dumps, value)) + "]"
