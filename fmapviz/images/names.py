"""Names of image files and of the units drawn of them."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from PIL import Image as PillowImage

from fmapviz.core.layout import UNIT_FILE, own_run_files
from fmapviz.images.decode import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_PART = 180  # bytes; file systems allow 255, and the output adds something


def unit_name(relative: str, path: str) -> str:
    r"""Return the name of an image's unit: its own name, with a hash if that is unsafe or looks like such a name.

    Args:
        relative: The path below the folder that was searched, or only the file's name; parts separated by `/`.
        path: The absolute path, whose hash makes an altered name unique.

    Example:
        >>> unit_name("cats/lena.png", "/photos/cats/lena.png")
        'cats/lena.png'
        >>> unit_name("new\nline.png", "/photos/new\nline.png")
        'new_line.png~cf83a0c0'
    """
    safe = "/".join(map(_make_safe, relative.split("/")))
    looks_altered = re.search(r"~[0-9a-f]{8}$", relative)
    return f"{safe}~{path_hash(path)}" if safe != relative or looks_altered else safe


def path_hash(path: str) -> str:
    """Return eight hexadecimal digits of the hash of a path.

    Example:
        >>> path_hash("/photos/lena.png")
        '41587864'
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:  # from a damaged record
        encoded = path.encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).hexdigest()[:8]


def is_candidate(name: str) -> bool:
    """Return True if a name has an image's suffix and is not hidden."""
    return name.lower().endswith(_suffixes()) and not name.startswith(".")


def in_natural_order(parts: Sequence[str]) -> list[tuple[str, str]]:
    """Return a sort key for paths, by which `x2` comes before `x10`.

    Example:
        >>> sorted([("a", "x10"), ("a", "x2")], key=in_natural_order)
        [('a', 'x2'), ('a', 'x10')]
    """
    return [(natural(part), part) for part in parts]


def natural(name: str) -> str:
    """Return a sort key for a name, in which each number follows its length."""
    return re.sub(r"0*([0-9]+)", lambda number: f"{len(number[1]):03}{number[1]}", name.casefold())


@cache
def _suffixes() -> tuple[str, ...]:
    known = PillowImage.registered_extensions().items()
    return (*(suffix for suffix, format_name in known if format_name in FORMATS), ".mpo", ".heic", ".heif", ".hif", ".npy")


def _make_safe(part: str) -> str:
    """Replace characters and names that a file system, a terminal, TensorBoard or the run reserves."""
    shown = (ch if ch.isprintable() or unicodedata.category(ch) == "Zs" else "_" for ch in part)
    safe = re.sub(r'[\\"]', "_", "".join(shown))  # TensorBoard shows no pictures of runs with these in their names
    safe = re.sub(r"^\.", "_", safe)
    safe = re.sub("(?i)(tf)(events)", r"\1_\2", safe)  # TensorBoard takes any such file for data
    if safe.lower() in own_run_files() | {UNIT_FILE}:
        safe = f"_{safe}"
    encoded = safe.encode()
    return encoded[: _LONGEST_PART - 20].decode(errors="ignore") if len(encoded) > _LONGEST_PART else safe
