"""Run no other user code for a record from disk than the files whose checksums it holds.

A record names code, and may be forged: `subprocess:check_output(args=[...])` would be a builder of networks. The standard
library is never imported for it. Of installed packages, classes of networks are called; of user code, recorded files run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from fmapviz.errors import RefusedError, RequestError, printable, quote, suggest_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType, ModuleType

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_STANDARD = {*sys.stdlib_module_names, "__main__"}
_HINT = "if you trust it, type its model, views and formats in a command of your own"


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The user code that may be run.

    Attributes:
        files: Files whose checksums are recorded and right.
        folders: Folders whose files may all be run.
        typed: Modules that the user named; their functions may be called wherever they are from.
    """

    files: frozenset[Path]
    folders: tuple[Path, ...] = ()
    typed: frozenset[str] = frozenset()

    def has(self, file: Path) -> bool:
        return file in self.files or any(file.is_relative_to(folder) for folder in self.folders)


_allowed: ContextVar[_Allowed | None] = ContextVar("_allowed", default=None)


class FromSource(SourceFileLoader):
    """Compiles a file whatever `__pycache__` holds, which no checksum covers."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        """Return the code of the file."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class _Guard:
    """Finds modules as Python does, and refuses user code that is not recorded."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        allowed = _allowed.get()
        others = (finder for finder in sys.meta_path if finder is not self) if allowed else ()
        found = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if allowed is None or found is None or not found.has_location or found.origin is None:
            return found
        file = Path(found.origin).resolve()
        if is_library(file):
            return found
        if not allowed.has(file):
            raise RefusedError(f"{quote(file)} would be run, and the record holds no checksum of it", hint=_HINT)
        if isinstance(found.loader, SourceFileLoader):
            found.loader = FromSource(name, found.origin)
        return found


@contextmanager
def only_recorded(code: Mapping[str, Any], *, typed: Sequence[str] = ()) -> Iterator[list[str]]:
    """Allow only recorded files of user code to be imported or called in this thread. Nothing is run yet.

    Args:
        code: For each module that a reference names, the SHA-256 of files by their paths below its folder, see `located`.
        typed: Modules of references that the user typed, whose code may be run.

    Yields:
        The files that are others now, such as `net.py has changed`; there must be none.

    Raises:
        RequestError: A module does not exist.
        RefusedError: It is of the standard library.
    """
    files, changed = set[Path](), list[str]()
    # Any: a record may hold anything.
    for module, recorded in code.items():
        for name, sha256 in (recorded if isinstance(recorded, dict) else {}).items():
            file = (located(module)[1] / name).resolve()
            known = _sha256(file)
            if known == sha256:
                files.add(file)
            else:
                changed.append(f"{printable(name)} {'has changed' if known else 'is gone'}")
    roots = tuple(located(module)[1] for module in typed)
    guard = _Guard()
    before = _allowed.set(_Allowed(frozenset(files), roots, frozenset(typed)))
    sys.meta_path.insert(0, guard)
    try:
        yield list(dict.fromkeys(changed))
    finally:
        sys.meta_path.remove(guard)
        _allowed.reset(before)


@contextmanager
def allowing(folder: Path) -> Iterator[None]:
    """Allow all code of a folder to be run, whatever a record holds."""
    allowed = _allowed.get()
    before = _allowed.set(allowed and replace(allowed, folders=(*allowed.folders, folder.resolve())))
    try:
        yield
    finally:
        _allowed.reset(before)


def check_import(module: str) -> None:
    """Check that a module may be imported now; nothing is run.

    Raises:
        RequestError: It does not exist.
        RefusedError: It may not; see `only_recorded`.
    """
    allowed = _allowed.get()
    if allowed is None or module in allowed.typed:
        return
    file, _ = located(module)
    if is_library(file) and module.endswith(".py"):
        raise RefusedError(f"{quote(module)} is a file of an installed package, which is not run for a record", hint=_HINT)
    if not is_library(file) and not allowed.has(file):
        raise RefusedError(f"the record holds no checksum of the code of {quote(module)}, which is not run", hint=_HINT)


def check_called(module: str, name: str, found: Any) -> None:
    """Check that the target of a reference may be called now.

    Args:
        module: The module of the reference.
        name: The reference, for messages.
        found: Its target.

    Raises:
        RefusedError: It may not; see `only_recorded`.
    """
    # Any: of the user.
    allowed = _allowed.get()
    if allowed is None or module in allowed.typed:
        return
    called = found
    while isinstance(called, partial | MethodType):
        called = called.func if isinstance(called, partial) else called.__func__
    called = inspect.unwrap(called) if callable(called) else called
    is_class = isinstance(called, type)
    home = str(called.__module__ if is_class or inspect.isroutine(called) else type(called).__module__)
    is_network = any(base.__module__ == "torch.nn.modules.module" for base in (called if is_class else type(called)).__mro__)
    file = getattr(sys.modules.get(home), "__file__", None)
    if isinstance(file, str) and allowed.has(Path(file).resolve()):
        return
    is_users = not is_library(located(module)[0])
    if is_network and home.partition(".")[0] not in _STANDARD and (is_class or is_users):
        return  # a network that a recorded file holds is not called
    what = f"it is of {quote(home)}, of which a record may name classes of networks only"
    raise RefusedError(f"{quote(name)} is not called: {what}", hint=_HINT)


def located(module: str) -> tuple[Path, Path]:
    """Return the file of a module, and the folder that comes first on `sys.path` for it. Nothing is run.

    Args:
        module: The path of a file that ends in `.py`, or a dotted name.

    Raises:
        RequestError: It does not exist.
        RefusedError: It is of the standard library.
    """
    if module.endswith(".py"):
        path = existing_file(module).resolve()
        return path, packages_above(path)[0]
    top, *parts = module.split(".")
    if top in _STANDARD:
        raise RefusedError(f"{quote(module)} is of the standard library, which is not run for a record", hint=_HINT)
    found = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) or importlib.util.find_spec(top)
    above = found
    for end in range(1, len(parts) + 1):
        folders = found.submodule_search_locations if found else None
        found = PathFinder.find_spec(".".join((top, *parts[:end])), list(folders)) if folders else None
    if above is None or found is None or not found.origin:
        raise RequestError(f"no such model or module: {quote(module)}")
    folders = above.submodule_search_locations
    first = Path(next(iter(folders)) if folders else str(above.origin)).resolve()
    return Path(found.origin).resolve(), first.parent


def existing_file(module: str) -> Path:
    """Return the path of a file with Python code.

    Raises:
        RequestError: It does not exist.
    """
    path = Path(module)
    with suppress(OSError, ValueError):  # the name is too long
        if path.is_file():
            return path
    raise RequestError(f"no such file: {quote(module)}", hint=suggest_file(module, lambda name: name.endswith(".py")))


def packages_above(path: Path) -> tuple[Path, list[str]]:
    """Return the folder that holds the outermost package of a file, and the parts of the name of its module."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, parts


def is_library(file: Path) -> bool:
    """Return True for a file of an installed package, of fmapviz, or of the standard library of any Python."""
    if str(file).startswith(_INSTALLED) or file.is_relative_to(_PACKAGE):
        return True
    return bool({"site-packages", "dist-packages"} & {*file.parts}) or any(map(_is_standard, file.parents))


@cache
def _is_standard(folder: Path) -> bool:
    return (folder / "os.py").is_file() and (folder / "subprocess.py").is_file()


def _sha256(file: Path) -> str:
    with suppress(OSError, ValueError):
        if file.is_file():  # no pipe, whose reader waits
            with file.open("rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()
    return ""
