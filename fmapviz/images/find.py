"""Find image files, each once, and name their units."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import stat
import unicodedata
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import chain, islice, takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import urlsplit

from PIL import Image as PillowImage

from fmapviz.config import check_type
from fmapviz.core import checksummed_json, object_store
from fmapviz.core.file_names import RUN_FILE, UNIT_FILE, folded, own_run_files, portable
from fmapviz.core.object_store import Store
from fmapviz.core.urls import HINT, check_address, expand_home, is_path, is_unknown, is_url, is_web, join
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import RequestError, quote
from fmapviz.images.decode import FORMATS
from fmapviz.images.errors import explain, system_error
from fmapviz.images.frames import FILMS, file_of, frame_of, frames_of, may_be_film, numbered
from fmapviz.images.memory.image import MemoryImage, is_in_memory, memory_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import BufferedIOBase

    from fmapviz.core.object_store import Entry
    from fmapviz.images.frames import Frames

    _Folder = tuple[int, int]  # device and inode: the same for all paths to it

SORTED = 10_000  # files of a remote folder tree that are sorted; a larger one is read in the order of the store
_MOST_SUFFIXES = 100  # that are counted one by one
_LONGEST_PART = 180  # bytes; file systems allow 255, and the output adds something
_LONGEST_NAME = 180  # UTF-16 units; Windows allows paths of 260
_LONGEST_PATH = 65_536  # bytes; no system allows more


def find_images(
    inputs: Iterable[str | Path | MemoryImage],
    *,
    avoid: Path | str | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[ImageFile | Failure]:
    """Find image files lazily.

    A file is found by its own path even without an image's suffix. In a folder and all folders in it, files with an
    image's suffix are found in natural order; hidden ones are not. A file is found once, even if it is named several
    times. Memory grows with the number of inputs and folders, not with that of files.

    Args:
        inputs: Files and folders as typed, addresses, `s3://bucket/folder`, or images in memory.
        avoid: The output: a folder that is skipped inside other folders.
        left_out: Counts the other entries of folders, by reason: `hidden`, `hidden folder`, `folder of a run`, `no suffix`,
            or the suffix of a file.

    Raises:
        RequestError: An address in a list of inputs is incomplete; in a stream, it is a failure.
    """
    if isinstance(inputs, list | tuple):
        for item in inputs:
            check_address(item)
    return _find(inputs, avoid, Counter() if left_out is None else left_out)


def _find(
    inputs: Iterable[str | Path | MemoryImage], avoid: Path | str | None, left_out: Counter[str]
) -> Iterator[ImageFile | Failure]:
    here = avoid if isinstance(avoid, Path) else None
    remote = _RemoteFinder(avoid if isinstance(avoid, str) else None, left_out)
    walked: set[_Folder] = set()
    named: dict[_Folder, set[str]] = {}
    given: set[str] = set()
    for item in inputs:
        if isinstance(item, MemoryImage):
            yield from _look_in_memory(item, given)
            continue
        typed = item if isinstance(item, str) else str(check_type("each input", item, str | Path, hint="a file or a folder"))
        if "://" in typed and is_url(typed):
            yield from remote.find(typed)
            continue
        try:
            path = absolute_path(typed)
            if frames := frames_of(str(path)):
                yield _in_film(_look(frames.film, PurePath(frames.film).name), frames)
                continue
            is_folder = stat.S_ISDIR(path.stat().st_mode)
            folder = _identify(path.parent)
        except (OSError, ValueError) as error:  # ValueError: a character that no path can hold
            if is_unknown(typed):
                yield Failure(typed, "E_MISSING", f"unsupported address: {quote(typed)}", hint=HINT)
            else:
                yield _failure(error if isinstance(error, OSError) else FileNotFoundError(), typed)
            continue
        if is_folder:
            yield from _walk(path, walked=walked, named=named, avoid=here, left_out=left_out)
        elif path.name not in named.setdefault(folder, set()) and not (folder in walked and is_candidate(path.name)):
            named[folder].add(path.name)
            yield _look(str(path), path.name)


def look_again(file: ImageFile) -> ImageFile | None:
    """Return the current state of an image that was found earlier; None if it is gone."""
    if is_in_memory(file.path):
        image = memory_image(file)
        return image.as_file(file.unit) if image else None
    if frames := frames_of(file.path):
        film = look_again(replace(file, path=frames.film))
        return film and replace(film, path=file.path)
    if not is_url(file.path):
        found = _look(file.path, file.unit) if is_path(file.path) else None
        return replace(found, unit=file.unit) if isinstance(found, ImageFile) else None
    try:
        entry = object_store.find(file.path)
    except OSError:
        return None
    return None if entry.is_folder else replace(_image(entry, file.path, file.unit), unit=file.unit)


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


def unit_name(relative: str, path: str) -> str:
    r"""Return the name of an image's unit: its own name, with a hash if that is unsafe or looks like such a name.

    Args:
        relative: The path below the folder that was searched, or only the file's name; parts separated by `/`.
        path: The absolute path, whose hash makes an altered name unique.

    Example:
        >>> unit_name("cats/lena.png", "/photos/cats/lena.png")
        'cats/lena.png'
        >>> unit_name("new\nline.png", "/photos/new\nline.png"), unit_name("con.png", "/photos/con.png")
        ('new_line.png~cf83a0c0', '_con.png~3387deda')
    """
    safe = "/".join(map(_make_safe, relative.split("/")))
    if len(safe) + sum(character > "\uffff" for character in safe) > _LONGEST_NAME:
        safe = safe.rpartition("/")[2]
    looks_altered = re.search(r"~[0-9a-f]{8}$", relative)
    return f"{safe}~{path_hash(path)}" if safe != relative or looks_altered else safe


def is_named_after(file: ImageFile) -> bool:
    """Return True if the unit of an image has the name of its path below some folder; True of a remote image.

    Example:
        >>> [is_named_after(ImageFile("/photos/lena.png", unit)) for unit in ("lena.png", "photos/lena.png", "cat.png")]
        [True, True, False]
    """
    if is_url(file.path):
        return True
    path, unit = file_of(file.path), file.unit
    if path != file.path:
        unit, _, frame = unit.rpartition("/")
        if frame != file.path.rpartition("/")[2]:
            return False
    parts = path.replace(os.sep, "/").strip("/").split("/")
    names = {unit_name("/".join(parts[at:]), path) for at in range(len(parts))}
    return not names.isdisjoint({unit, unit.removesuffix(f"~{path_hash(path)}")})


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


def absolute_path(typed: str) -> Path:
    """Return the absolute path of an image or a folder, without `..` and a leading `~`; a link at its end is not followed.

    Raises:
        OSError: The path is empty, or the working directory was removed.
    """
    if not typed:
        raise FileNotFoundError
    path = Path(expand_home(typed)).absolute()
    if ".." not in path.parts:
        return path
    # `link/..` is the folder above the link's target.
    if path.name == "..":
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name


def is_candidate(name: str) -> bool:
    """Return True if a name has an image's suffix and is not hidden."""
    return name.lower().endswith(_suffixes()) and not name.startswith(".")


def is_input(path: str | Path) -> bool:
    """Return True for a folder, and for the name of an image, which need not exist."""
    return is_candidate(Path(path).name) or os.path.isdir(path)


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


def _walk(
    root: Path,
    *,
    walked: set[_Folder],
    named: dict[_Folder, set[str]],
    avoid: Path | None,
    left_out: Counter[str],
) -> Iterator[ImageFile | Failure]:
    """Find the image files below a folder, depth first, except those named before; memory holds names of open folders."""
    top = Path(os.path.realpath(root))

    def enter(path: Path, relative: str) -> Iterator[ImageFile | Failure | tuple[Path, str]]:
        """Yield the images of a folder, and the arguments for each folder in it."""
        try:
            folder = _identify(path)
            if folder in walked:
                return
            if relative and _is_output(path, avoid):
                left_out["folder of a run"] += 1
                return
            names = _list_names(path, left_out)
        except OSError as error:
            yield _failure(error, str(path))
            return
        walked.add(folder)
        for name in names:
            if name.endswith("/"):
                if not _is_alias(path / name, top, avoid):
                    yield path / name, relative + name
            elif name not in named.get(folder, ()):
                yield _look(f"{path}{os.sep}{name}", relative + name)

    folders = [enter(root, "")]  # a recursion would end with an error in a deep tree
    while folders:
        found = next(folders[-1], None)
        if isinstance(found, tuple):
            folders.append(enter(*found))
        elif found:
            yield found
        else:
            folders.pop()


def _is_alias(path: Path, top: Path, avoid: Path | None) -> bool:
    """Return True for a link to a folder that is searched under its own name, below the same root."""
    if not os.path.islink(path):
        return False
    target = Path(os.path.realpath(path))
    below = takewhile(lambda folder: folder != top, (target, *target.parents))
    return target.is_relative_to(top) and not any(
        folder.name.startswith(".") or _is_output(folder, avoid) for folder in below
    )


def _is_output(folder: Path, avoid: Path | None) -> bool:
    """Return True for the output of this run, and for other runs among the inputs."""
    if avoid and os.path.exists(avoid) and folder.samefile(avoid):
        return True
    return _is_run(checksummed_json.load(folder / RUN_FILE))


def _list_names(folder: Path, left_out: Counter[str]) -> list[str]:
    """Return the names of possible images and of folders, these with a slash at the end, in natural order."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = not entry.name.startswith(".") and _is_folder(entry)
            if is_folder or is_candidate(entry.name):
                names.append(f"{entry.name}/" if is_folder else entry.name)
            else:
                _count_left_out(left_out, entry.name, is_folder=entry.name.startswith(".") and _is_folder(entry))
    names.sort(key=lambda name: f"{natural(name.removesuffix('/'))}\0{name.removesuffix('/')}")
    return names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _count_left_out(left_out: Counter[str], name: str, *, is_folder: bool = False) -> None:
    """Count a file or a hidden folder that is no input."""
    if name.startswith("."):
        left_out["hidden folder" if is_folder else "hidden"] += 1
        return
    suffix = PurePath(name).suffix.lower() or "no suffix"
    left_out[suffix if suffix in left_out or len(left_out) < _MOST_SUFFIXES else "other suffixes"] += 1


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
    return ImageFile(path, unit_name(relative, path), {"size": status.st_size, "mtime_ns": status.st_mtime_ns})


def _look_in_memory(image: MemoryImage, given: set[str]) -> Iterator[ImageFile | Failure]:
    """Yield an image in memory, unless it was given before under the same name."""
    try:
        path = image.path
    except Exception as error:  # noqa: BLE001  Pillow reads a file only now
        refusal = explain(error, image.name)
        yield Failure(image.name, refusal.code, str(refusal), refusal.hint)
        return
    if path not in given:
        given.add(path)
        yield image.as_file(unit_name(image.name, path))


def _in_film(film: ImageFile | Failure, frames: Frames) -> ImageFile | Failure:
    """Return a frame of a film that was found."""
    return film if isinstance(film, Failure) else frame_of(film, frames.first, frames.last)


class _RemoteFinder:
    """Finds image files at addresses, as `find_images` does in folders.

    Args:
        avoid: The address of the output: a folder that is skipped inside other folders.
    """

    def __init__(self, avoid: str | None, left_out: Counter[str]) -> None:
        self._left_out = left_out
        self._avoid = avoid.rstrip("/") if avoid else None
        self._walked: set[str] = set()
        self._named: set[str] = set()

    def find(self, url: str) -> Iterator[ImageFile | Failure]:
        """Find the image at an address, or those in the folder there."""
        if frames := frames_of(url):
            yield from (_in_film(film, frames) for film in _RemoteFinder(self._avoid, self._left_out).find(frames.film))
            return
        given, (scheme, _, rest) = url, url.partition("://")
        url = f"{scheme.lower()}://{rest if is_web(url) else rest.strip('/')}"
        try:
            check_address(given)
        except RequestError as error:  # in a stream
            yield Failure(given, "E_MISSING", str(error), error.hint)
            return
        folder, _, name = url.rpartition("/")
        try:
            entry = object_store.find(url)
        except OSError as error:
            yield _failure(error, url)
            return
        if entry.is_folder:
            if not self._was_walked(url):
                yield from self._walk(url)
                self._walked.add(url)
        elif url not in self._named and not (is_candidate(name) and self._was_walked(folder)):
            self._named.add(url)
            yield _image(entry, url, name)

    def _walk(self, top: str) -> Iterator[ImageFile | Failure]:
        """Find the files below an address in natural order, or those of many files in the order of the store."""
        skipped = {"": False}
        records: set[str] | None = None  # folders with a run.json; None: not known yet

        def is_skipped(folder: str) -> bool:
            """Return True for folders that are hidden, searched already, the output, or runs of fmapviz."""
            if folder not in skipped:
                above, _, name = folder.rpartition("/")
                url = join(top, folder)
                skipped[folder] = (
                    is_skipped(above)
                    or name.startswith(".")
                    or url == self._avoid
                    or self._was_walked(url)
                    or ((records is None or folder in records) and _is_run(_load_record(store, folder)))
                )
            return skipped[folder]

        try:
            store = Store(top)
            entries = filter(self._is_relevant, store.list())
            first = list(islice(entries, SORTED + 1))
            if len(first) <= SORTED:
                parts = (entry.name.rpartition("/") for entry in first)
                records = {folder for folder, _, name in parts if name == RUN_FILE}
                first.sort(key=lambda entry: in_natural_order(entry.name.split("/")))
            for entry in chain(first, entries):
                folder, _, name = entry.name.rpartition("/")
                url = join(top, entry.name) if entry.name else top
                if entry.is_folder:
                    if not is_skipped(entry.name):
                        message = f"a folder with a file whose name no local file can have: {quote(url)}"
                        yield Failure(url, "E_TYPE", message)
                elif name != RUN_FILE and not is_skipped(folder) and url not in self._named:
                    yield _image(entry, url, entry.name)
        except OSError as error:
            yield _failure(error, top)

    def _is_relevant(self, entry: Entry) -> bool:
        name = entry.name.rpartition("/")[2]
        if entry.is_folder or name == RUN_FILE or is_candidate(name):
            return True
        _count_left_out(self._left_out, name)
        return False

    def _was_walked(self, folder: str) -> bool:
        """Return True if a folder was searched, by itself or as a visible folder inside another one."""
        while folder not in self._walked:
            folder, slash, name = folder.rpartition("/")
            if not slash or name.startswith("."):
                return False
        return True


def _load_record(store: Store, folder: str) -> dict[str, Any] | None:
    found = store.fetch(f"{folder}/{RUN_FILE}")
    return checksummed_json.parse(found[0]) if found else None


def _image(entry: Entry, url: str, relative: str) -> ImageFile:
    if is_web(url):
        relative = urlsplit(url).path.rpartition("/")[2] or urlsplit(url).netloc
    tag = {"etag": entry.state} if entry.state else {}
    return ImageFile(url, unit_name(relative, url), {"size": entry.size, **tag})


def _is_run(record: dict[str, Any] | None) -> bool:
    return record is not None and "fmapviz" in record and "fingerprint" in record


def _failure(error: OSError, path: str) -> Failure:
    refusal = system_error(error)
    hint = refusal.hint
    film, _, frame = path.rpartition("/")
    if refusal.code == "E_MISSING" and frame.isdecimal() and may_be_film(film):
        hint = f"the name of a frame has six digits: {film}/{numbered(int(frame))}"
    return Failure(path, refusal.code, f"{refusal}: {quote(path)}", hint)


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


@cache
def _suffixes() -> tuple[str, ...]:
    known = PillowImage.registered_extensions().items()
    pictures = (suffix for suffix, format_name in known if format_name in FORMATS)
    return (*pictures, ".mpo", ".heic", ".heif", ".hif", ".npy", *FILMS)


def _make_safe(part: str) -> str:
    """Replace characters and names that the file system of any platform, a terminal, TensorBoard or the run reserves."""
    shown = (ch if ch.isprintable() or unicodedata.category(ch) == "Zs" else "_" for ch in part)
    safe = re.sub(r"^\.", "_", "".join(shown))
    safe = re.sub("(?i)(tf)(events)", r"\1_\2", safe)  # TensorBoard takes any such file for data
    if folded(safe) in own_run_files() | {UNIT_FILE}:
        safe = f"_{safe}"
    encoded = safe.encode()
    return portable(encoded[: _LONGEST_PART - 20].decode(errors="ignore") if len(encoded) > _LONGEST_PART else safe)
