"""Find the image files that somebody named, each once, under a safe name."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import stat
import unicodedata
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from PIL import Image as PillowImage

from fmapviz import records
from fmapviz.errors import RequestError, quote
from fmapviz.images import FORMATS, system_error
from fmapviz.urls import is_unknown, is_url
from fmapviz.values import Failure, ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from io import BufferedIOBase
    from types import ModuleType

    from fmapviz.remote_inputs import Finder

    _Folder = tuple[int, int]  # device and inode: the same by whatever path it is reached

_LONGEST_PATH = 65_536  # bytes; no system allows more
_LONGEST_PART = 180  # bytes; file systems allow 255, and the output adds something
RUN_FILE = "run.json"
# Names of files that a run's directory holds besides images' directories.
PRODUCTS = {"html": {"index.html"}, "stats": {"stats.csv", "stats.json", "stats.js"}}  # by format
RESERVED = {RUN_FILE, "unit.json", "failures.jsonl", "survey.json", "products.json"}.union(*PRODUCTS.values())


def find_images(inputs: Iterable[str], *, avoid: Path | str | None = None) -> Iterator[ImageFile | Failure]:
    """Find image files one by one, as they are asked for.

    A file is taken whatever it is called. Of a folder and all folders in it, the files with an image's suffix are taken, in
    natural order; what is hidden is not looked at. A file is found once, however often it is named, and not opened here.
    What is remembered grows with the inputs and the folders, not with the files in the folders.

    Args:
        inputs: Files and folders, as typed, or addresses of such, `s3://...`; see `fmapviz.remote_inputs`.
        avoid: A folder that is not entered from a folder above it: the output.
    """
    here = avoid if isinstance(avoid, Path) else None
    elsewhere: Finder | None = None
    walked: set[_Folder] = set()
    named: dict[_Folder, set[str]] = {}
    for typed in inputs:
        if is_url(typed):
            elsewhere = elsewhere or _look_elsewhere().Finder(avoid if isinstance(avoid, str) else None)
            yield from elsewhere.find(typed)
            continue
        try:
            path = _absolute(typed)
            is_folder = stat.S_ISDIR(path.stat().st_mode)
            folder = _identify(path.parent)
        except (OSError, ValueError) as error:  # ValueError: a character that no path can hold
            if is_unknown(typed):
                yield Failure(typed, "E_MISSING", f"no such kind of place: {quote(typed)}", hint="a path, or s3://...")
                continue
            yield _failure(error if isinstance(error, OSError) else FileNotFoundError(), typed)
            continue
        if is_folder:
            yield from _walk(path, walked=walked, named=named, avoid=here)
        elif path.name not in named.setdefault(folder, set()) and not (folder in walked and is_candidate(path.name)):
            named[folder].add(path.name)
            yield _look(str(path), path.name)


def look_again(file: ImageFile) -> ImageFile | None:
    """Give an image that was found once as it is now; None if it is gone."""
    if is_url(file.path):
        again: ImageFile | None = _look_elsewhere().look_again(file)
        return again
    found = _look(file.path, file.unit) if records.is_path(file.path) else None
    return replace(found, unit=file.unit) if isinstance(found, ImageFile) else None


def read_list(stream: BinaryIO, *, null: bool) -> Iterator[str]:
    r"""Read paths as they arrive, one per line or, with `null`, separated by NUL bytes.

    Raises:
        RequestError: Something too long to be a path, or NUL bytes in the first line: the stream is no such list.

    Example:
        >>> from io import BytesIO
        >>> list(read_list(BytesIO(b"a.png\r\n\r\nb c.png"), null=False))
        ['a.png', 'b c.png']
    """
    separator, line_end = (b"\0", b"") if null else (b"\n", b"\r")
    byte_order_mark = codecs.BOM_UTF8
    for item in _split(stream, separator):
        path = item.removeprefix(byte_order_mark).removesuffix(line_end)
        if byte_order_mark and b"\0" in path:
            raise _no_list(path)
        byte_order_mark = b""
        if path:
            yield os.fsdecode(path)


def unit_name(relative: str, path: str) -> str:
    r"""Name the output directory of an image: its own name, unless that cannot be shown, stored or told apart.

    Args:
        relative: The name below the folder that was given, or only the file's name; parts separated by `/`.
        path: The absolute path, which makes an altered name unlike all others.

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
    """Give eight hexadecimal digits that tell this path from others.

    Example:
        >>> path_hash("/photos/lena.png")
        '41587864'
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:  # of no file: a damaged record claims it
        encoded = path.encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).hexdigest()[:8]


def _look_elsewhere() -> ModuleType:
    # Only when it is needed: it needs this module.
    return import_module("fmapviz.remote_inputs")


def _absolute(typed: str) -> Path:
    """Make a path absolute, without `..`, its last part as it was typed."""
    if not typed:
        raise FileNotFoundError
    path = Path(typed).absolute()
    if ".." not in path.parts:
        return path
    return path.resolve() if path.name == ".." else path.parent.resolve() / path.name  # `link/..` is not where it seems


def _walk(
    root: Path, *, walked: set[_Folder], named: dict[_Folder, set[str]], avoid: Path | None
) -> Iterator[ImageFile | Failure]:
    """Find the image files of a folder and of all folders in it, depth first, except those named before.

    Of each folder that it is in, and of no other, it holds the names that are still to come.
    """
    ahead = [_Names(root, "", [])]
    while ahead:
        here = ahead[-1]
        try:
            if not here.entered:
                here.entered = True
                folder = _identify(here.path)
                if folder not in walked and not (here.relative and _is_output(here.path, avoid)):
                    here.names, here.known = _list(here.path), named.get(folder, frozenset())
                    walked.add(folder)
        except OSError as error:
            yield _failure(error, str(here.path))
        if not here.names:
            ahead.pop()
            continue
        name = here.names.pop()
        if name.endswith("/"):
            ahead.append(_Names(here.path / name, here.relative + name, []))
        elif name not in here.known:
            yield _look(f"{here.path}/{name}", here.relative + name)


@dataclass(slots=True)
class _Names:
    """What is still to be looked at of a folder: names in reverse order, those of folders with a slash at the end."""

    path: Path
    relative: str
    names: list[str]
    known: AbstractSet[str] = frozenset()
    entered: bool = False


def _is_output(folder: Path, avoid: Path | None) -> bool:
    """Tell whether this is where the output goes, or a run that lies among the inputs."""
    if avoid and avoid.exists() and folder.samefile(avoid):
        return True
    record = records.load(folder / RUN_FILE) or {}
    return "fmapviz" in record and "fingerprint" in record


def _list(folder: Path) -> list[str]:
    """Name what may be an image or a folder, in reverse natural order."""
    with os.scandir(folder) as entries:
        names = [
            f"{entry.name}/" if is_folder else entry.name
            for entry in entries
            if (is_folder := _is_visible_folder(entry)) or is_candidate(entry.name)
        ]
    names.sort(key=_natural_key, reverse=True)
    return names


def _natural_key(name: str) -> str:
    name = name.removesuffix("/")
    return f"{_natural(name)}\0{name}"


def is_candidate(name: str) -> bool:
    """Tell whether a file of a folder may be an image, by its name."""
    return name.lower().endswith(_suffixes()) and not name.startswith(".")


def _is_visible_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a link to itself
        return False


@cache
def _suffixes() -> tuple[str, ...]:
    known = PillowImage.registered_extensions().items()
    return (*(suffix for suffix, format_name in known if format_name in FORMATS), ".mpo", ".heic", ".heif", ".hif", ".npy")


def in_natural_order(parts: Sequence[str]) -> list[tuple[str, str]]:
    """Give what to sort paths by, so that `x2` comes before `x10`.

    Example:
        >>> sorted([("a", "x10"), ("a", "x2")], key=in_natural_order)
        [('a', 'x2'), ('a', 'x10')]
    """
    return [(_natural(part), part) for part in parts]


def _natural(name: str) -> str:
    """Give a sort key in which `img2` comes before `img10`: every number is led by its length."""
    return re.sub(r"0*([0-9]+)", lambda number: f"{len(number[1]):03}{number[1]}", name.casefold())


def _identify(folder: Path) -> _Folder:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _look(path: str, relative: str) -> ImageFile | Failure:
    try:
        status = os.stat(path)  # noqa: PTH116  of a million files; to make a `Path` takes as long
    except OSError as error:
        return _failure(error, path)
    if not stat.S_ISREG(status.st_mode):
        return Failure(path, "E_TYPE", f"not a regular file: {quote(path)}")
    return ImageFile(path, unit_name(relative, path), status.st_size, status.st_mtime_ns)


def _failure(error: OSError, path: str) -> Failure:
    refusal = system_error(error, path)
    return Failure(path, refusal.code, str(refusal))


def _make_safe(part: str) -> str:
    """Change what a file system, a terminal, TensorBoard or the output's own files would stumble over."""
    shown = (ch if ch.isprintable() or unicodedata.category(ch) == "Zs" else "_" for ch in part)
    safe = re.sub(r'[\\"]', "_", "".join(shown))  # TensorBoard shows no pictures of runs with these in their names
    safe = re.sub(r"^\.", "_", safe)
    safe = re.sub("(?i)(tf)(events)", r"\1_\2", safe)  # TensorBoard takes any such file for data
    if safe.lower() in RESERVED:
        safe = f"_{safe}"
    encoded = safe.encode()
    return encoded[: _LONGEST_PART - 20].decode(errors="ignore") if len(encoded) > _LONGEST_PART else safe


def _split(stream: BinaryIO, separator: bytes) -> Iterator[bytes]:
    """Cut a stream into pieces, each as soon as it is complete."""
    rest = b""
    while chunk := cast("BufferedIOBase", stream).read1(_LONGEST_PATH):  # read() would wait for so many bytes
        *complete, rest = (rest + chunk).split(separator)
        yield from complete
        if len(rest) > _LONGEST_PATH:
            raise _no_list(rest)
    yield rest


def _no_list(beginning: bytes) -> RequestError:
    found = quote(os.fsdecode(beginning[:40]))
    return RequestError(f"not a list of paths: {found}", hint="one path per line, or with -0 a NUL byte between them")
