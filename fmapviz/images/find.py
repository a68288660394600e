"""Find image files, each once, and name their units."""

from __future__ import annotations

import codecs
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from fmapviz.core import checksummed_json
from fmapviz.core.errors import RequestError, quote
from fmapviz.core.layout import RUN_FILE
from fmapviz.core.types import Failure, ImageFile
from fmapviz.core.urls import HINT, is_unknown, is_url
from fmapviz.images.decode import system_error
from fmapviz.images.find_remote import Finder
from fmapviz.images.find_remote import look_again as look_again_remotely
from fmapviz.images.names import is_candidate, natural, unit_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from io import BufferedIOBase

    _Folder = tuple[int, int]  # device and inode: the same by whatever path it is reached

_LONGEST_PATH = 65_536  # bytes; no system allows more


def find_images(inputs: Iterable[str], *, avoid: Path | str | None = None) -> Iterator[ImageFile | Failure]:
    """Find image files lazily.

    A file is found by its own path even without an image's suffix. In a folder and all folders in it, files with an
    image's suffix are found in natural order; hidden ones are not. A file is found once, even if it is named several
    times. Memory grows with the number of inputs and folders, not with that of files.

    Args:
        inputs: Files and folders as typed, or addresses, `s3://...`; see `fmapviz.images.find_remote`.
        avoid: The output: a folder that is skipped inside other folders.
    """
    here = avoid if isinstance(avoid, Path) else None
    remote: Finder | None = None
    walked: set[_Folder] = set()
    named: dict[_Folder, set[str]] = {}
    for typed in inputs:
        if "://" in typed and is_url(typed):
            remote = remote or Finder(avoid if isinstance(avoid, str) else None)
            yield from remote.find(typed)
            continue
        try:
            path = _absolute(typed)
            is_folder = stat.S_ISDIR(path.stat().st_mode)
            folder = _identify(path.parent)
        except (OSError, ValueError) as error:  # ValueError: a character that no path can hold
            if is_unknown(typed):
                yield Failure(typed, "E_MISSING", f"unsupported address: {quote(typed)}", hint=HINT)
                continue
            yield _failure(error if isinstance(error, OSError) else FileNotFoundError(), typed)
            continue
        if is_folder:
            yield from _walk(path, walked=walked, named=named, avoid=here)
        elif path.name not in named.setdefault(folder, set()) and not (folder in walked and is_candidate(path.name)):
            named[folder].add(path.name)
            yield _look(str(path), path.name)


def look_again(file: ImageFile) -> ImageFile | None:
    """Return the current state of an image that was found earlier; None if it is gone."""
    if is_url(file.path):
        return look_again_remotely(file)
    found = _look(file.path, file.unit) if checksummed_json.is_path(file.path) else None
    return replace(found, unit=file.unit) if isinstance(found, ImageFile) else None


def read_list(stream: BinaryIO, *, null: bool) -> Iterator[str]:
    r"""Read paths as they arrive, one per line or, with `null`, separated by NUL bytes.

    Raises:
        RequestError: A line is too long for a path, or the first one has NUL bytes: the stream is not such a list.

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
            raise _not_a_list(path)
        byte_order_mark = b""
        if path:
            yield os.fsdecode(path)


def _absolute(typed: str) -> Path:
    """Return an absolute path without `..`; a link at its end is kept."""
    if not typed:
        raise FileNotFoundError
    path = Path(typed).absolute()
    if ".." not in path.parts:
        return path
    return (
        path.resolve() if path.name == ".." else path.parent.resolve() / path.name
    )  # `link/..` is the folder above the link's target


def _walk(
    root: Path, *, walked: set[_Folder], named: dict[_Folder, set[str]], avoid: Path | None
) -> Iterator[ImageFile | Failure]:
    """Find the image files of a folder and of all folders in it, depth first, except those named before.

    Only the names in the current folder and in those above it are in memory.
    """
    open_folders = [_OpenFolder(root, "", [])]
    while open_folders:
        here = open_folders[-1]
        try:
            if not here.entered:
                here.entered = True
                folder = _identify(here.path)
                if folder not in walked and not (here.relative and _is_output(here.path, avoid)):
                    here.names, here.known = _list_names(here.path), named.get(folder, frozenset())
                    walked.add(folder)
        except OSError as error:
            yield _failure(error, str(here.path))
        if not here.names:
            open_folders.pop()
            continue
        name = here.names.pop()
        if name.endswith("/"):
            open_folders.append(_OpenFolder(here.path / name, here.relative + name, []))
        elif name not in here.known:
            yield _look(f"{here.path}/{name}", here.relative + name)


@dataclass(slots=True)
class _OpenFolder:
    """The remaining names of a folder, in reverse order; those of folders end with a slash."""

    path: Path
    relative: str
    names: list[str]
    known: AbstractSet[str] = frozenset()
    entered: bool = False


def _is_output(folder: Path, avoid: Path | None) -> bool:
    """Return True for the output of this run, and for other runs among the inputs."""
    if avoid and avoid.exists() and folder.samefile(avoid):
        return True
    record = checksummed_json.load(folder / RUN_FILE) or {}
    return "fmapviz" in record and "fingerprint" in record


def _list_names(folder: Path) -> list[str]:
    """Return the names of possible images and of folders in reverse natural order."""
    with os.scandir(folder) as entries:
        names = [
            f"{entry.name}/" if is_folder else entry.name
            for entry in entries
            if (is_folder := _is_visible_folder(entry)) or is_candidate(entry.name)
        ]
    names.sort(key=lambda name: f"{natural(name.removesuffix('/'))}\0{name.removesuffix('/')}", reverse=True)
    return names


def _is_visible_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identify(folder: Path) -> _Folder:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _look(path: str, relative: str) -> ImageFile | Failure:
    try:
        status = os.stat(path)  # noqa: PTH116  a `Path` takes as long to make as the call
    except OSError as error:
        return _failure(error, path)
    if not stat.S_ISREG(status.st_mode):
        return Failure(path, "E_TYPE", f"not a regular file: {quote(path)}")
    return ImageFile(path, unit_name(relative, path), status.st_size, status.st_mtime_ns)


def _failure(error: OSError, path: str) -> Failure:
    refusal = system_error(error, path)
    return Failure(path, refusal.code, str(refusal))


def _split(stream: BinaryIO, separator: bytes) -> Iterator[bytes]:
    """Split a stream into items, and yield each as soon as it is complete."""
    rest = b""
    while chunk := cast("BufferedIOBase", stream).read1(_LONGEST_PATH):  # read() would wait for so many bytes
        *complete, rest = (rest + chunk).split(separator)
        yield from complete
        if len(rest) > _LONGEST_PATH:
            raise _not_a_list(rest)
    yield rest


def _not_a_list(beginning: bytes) -> RequestError:
    found = quote(os.fsdecode(beginning[:40]))
    return RequestError(f"not a list of paths: {found}", hint="one path per line, or with -0 a NUL byte between them")
