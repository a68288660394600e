"""Run no other user code for a record from disk than the files whose checksums it holds.

A record names code, and may be forged: `subprocess:check_output(args=[...])` would be a builder of networks. The standard
library is never imported for it. Of installed packages, classes of networks are called, with arguments that are neither code
nor paths. Of user code, the bytes are run whose checksum was compared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from fmapviz.errors import RefusedError, RequestError, printable, quote, suggest_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType, ModuleType

_PACKAGES = {"site-packages", "dist-packages"}  # names of folders
_STANDARD = {*sys.stdlib_module_names, "__main__"}
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES = 2**26  # of a file with source code
_HINT = "if you trust it, type its model, views and formats in a command of your own"


def _beginnings(*folders: str) -> tuple[str, ...]:
    """Return the beginnings of paths in folders, as they are spelled and without links."""
    return tuple({f"{spelled}{os.sep}" for folder in folders for spelled in (folder, os.path.realpath(folder))})


def _sites() -> list[str]:
    """Return the folders of packages of this Python; a folder of the same name elsewhere may hold anything."""
    here = ""
    with suppress(OSError):  # the working directory was removed
        here = os.getcwd()  # noqa: PTH109  as `sys.path` has it
    named = [path for path in sys.path if Path(path).is_absolute() and Path(path).name in _PACKAGES and path != here]
    return [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *named]


_SITES = _beginnings(*_sites())
_LIBRARY = _beginnings(os.path.dirname(os.__file__), *map(sysconfig.get_path, ("stdlib", "platstdlib")))  # noqa: PTH120
_INSTALLED = (*_SITES, *_LIBRARY, *_beginnings(str(Path(__file__).resolve().parents[1])))


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The user code that may be run.

    Attributes:
        files: The contents of source files whose checksums are recorded and right.
        compiled: Other such files, which are not run.
        folders: Folders whose files may all be run.
        typed: Modules that the user named; their functions may be called wherever they are from.
    """

    files: Mapping[Path, bytes]
    compiled: frozenset[Path] = field(default_factory=frozenset)
    folders: tuple[Path, ...] = ()
    typed: frozenset[str] = frozenset()

    def has(self, file: Path) -> bool:
        return file in self.files or any(file.is_relative_to(folder) for folder in self.folders)


_allowed: ContextVar[_Allowed | None] = ContextVar("_allowed", default=None)


class FromSource(SourceFileLoader):
    """Compiles a file whatever `__pycache__` holds, which no checksum covers; for a record, the bytes of the checksum."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        """Return the code of the file.

        Raises:
            RefusedError: It may not be run.
        """
        allowed, file = _allowed.get(), Path(self.path).resolve()
        if allowed and not allowed.has(file):
            raise _unrecorded(file)
        data = allowed.files.get(file) if allowed else None
        if data is not None:  # `inspect.getsource` and `torch.jit.script` read the same
            linecache.cache[self.path] = (len(data), None, decode_source(data).splitlines(keepends=True), self.path)
        code: CodeType = self.source_to_code(self.get_data(self.path) if data is None else data, self.path)
        return code


class _Guard:
    """Finds modules as Python does, and refuses user code that is not recorded."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        allowed = _allowed.get()
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Guard)) if allowed else ()
        found = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if allowed is None or found is None or not found.has_location or found.origin is None:
            return found
        if _is_installed(Path(found.origin)):
            return found
        file = Path(found.origin).resolve()
        if file in allowed.compiled:
            raise RefusedError(f"{quote(file)} is compiled, and may change after its checksum was compared", hint=_HINT)
        if not allowed.has(file):
            raise _unrecorded(file)
        if file in allowed.files or isinstance(found.loader, SourceFileLoader):
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
    files, compiled, changed = dict[Path, bytes](), set[Path](), list[str]()
    # Any: a record may hold anything.
    for module, recorded in code.items():
        for name, sha256 in (recorded if isinstance(recorded, dict) else {}).items():
            file = (located(module)[1] / name).resolve()
            if is_library(file):  # known to everyone, and so are its checksums
                continue
            known, data = _read(file)
            if known == sha256 and data is not None:
                files[file] = data
            elif known == sha256:
                compiled.add(file)
            else:
                changed.append(f"{printable(name)} {'has changed' if known else 'is gone'}")
    roots = tuple(located(module)[1] for module in typed)
    guard = _Guard()
    before = _allowed.set(_Allowed(files, frozenset(compiled), roots, frozenset(typed)))
    sys.meta_path.insert(0, guard)
    try:
        yield list(dict.fromkeys(changed))
    finally:
        sys.meta_path.remove(guard)
        for path in [path for path in linecache.cache if Path(path).resolve() in files]:
            del linecache.cache[path]
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


def check_import(module: str, name: str, arguments: Mapping[str, Any] | None = None) -> bool:
    """Check that a module may be imported now; nothing is run.

    Args:
        module: The module of a reference.
        name: The reference, for messages.
        arguments: Those that its target is called with.

    Returns:
        Whether the working directory is searched for it: not for an installed package that a record names.

    Raises:
        RequestError: It does not exist.
        RefusedError: It may not; see `only_recorded`.
    """
    allowed = _allowed.get()
    if allowed is None or module in allowed.typed:
        return True
    file, _ = located(module)
    is_path, is_installed = module.endswith(".py"), _is_installed(file)
    if not is_path and any(re.fullmatch("__.*__", part) for part in module.split(".")):
        raise RefusedError(f"{quote(module)} is a program, which is not run for a record", hint=_HINT)
    if is_installed and is_path:
        raise RefusedError(f"{quote(module)} is a file of an installed package, which is not run for a record", hint=_HINT)
    if is_installed and _is_of_standard_library(file):
        raise _standard(module)
    if is_installed:
        check_plain(name, arguments or {})
    elif not allowed.has(file):
        raise RefusedError(f"the record holds no checksum of the code of {quote(module)}, which is not run", hint=_HINT)
    return not is_installed


def check_called(module: str, name: str, found: Any, arguments: Mapping[str, Any] | None = None) -> None:
    """Check that the target of a reference may be called now.

    Args:
        module: The module of the reference.
        name: The reference, for messages.
        found: Its target.
        arguments: Those that it is called with.

    Raises:
        RefusedError: It may not, or not with these arguments; see `only_recorded`.
    """
    # Any: of the user.
    if not is_foreign(module, found):
        return
    called = _behind(found)
    is_class = isinstance(called, type)
    home = _home_of(called)
    is_network = any(base.__module__ == "torch.nn.modules.module" for base in (called if is_class else type(called)).__mro__)
    is_users = not _is_installed(located(module)[0])
    if is_network and home.partition(".")[0] not in _STANDARD and (is_class or is_users):
        check_plain(name, arguments or {})
        return  # a network that a recorded file holds is not called
    what = f"it is of {quote(home)}, of which a record may name classes of networks only"
    raise RefusedError(f"{quote(name)} is not called: {what}", hint=_HINT)


def is_foreign(module: str, found: Any) -> bool:
    """Return True if a record alone names the target of a reference, and no recorded file defines it.

    Args:
        module: The module of the reference.
        found: Its target.
    """
    # Any: of the user.
    allowed = _allowed.get()
    if allowed is None or module in allowed.typed:
        return False
    file = getattr(sys.modules.get(_home_of(_behind(found))), "__file__", None)
    return not (isinstance(file, str) and allowed.has(Path(file).resolve()))


def check_plain(name: str, arguments: Mapping[str, Any], *, nested: bool = False) -> None:
    """Check that arguments of a record for code of others are neither code nor paths.

    Args:
        name: What is called, for messages.
        arguments: Those that the record holds.
        nested: Whether an argument may be a dictionary of such arguments.

    Raises:
        RefusedError: One may be code or a path, such as `act="__import__('os')"`: who calls `eval` or `open` is unknown.

    Example:
        >>> check_plain("timm:resnet18", {"num_classes": 5, "act_layer": "silu", "layers": (1, 2.5, None, True)})
    """
    # Any: literals.
    for key, value in arguments.items():
        if not _is_plain(value, nested=nested):
            shown = f"{printable(key)}={printable(repr(value)[:80])}"
            hint = "if you trust it, type the command again with this model, whose text you then have read"
            message = f"{quote(name)} is not called with {shown}: for a record, code of installed packages"
            raise RefusedError(f"{message} takes numbers and plain words only", hint=hint)


def _is_plain(value: Any, *, nested: bool) -> bool:
    if isinstance(value, str):
        return bool(_WORD.fullmatch(value)) and not os.path.isfile(value)
    if isinstance(value, list | tuple):
        return all(_is_plain(each, nested=nested) for each in value)
    if isinstance(value, dict):
        return nested and all(_is_plain(each, nested=True) for pair in value.items() for each in pair)
    return value is None or isinstance(value, bool | int | float | complex)


def _behind(found: Any) -> Any:
    """Return the function that partial objects, methods and decorators wrap."""
    while isinstance(found, partial | MethodType):
        found = found.func if isinstance(found, partial) else found.__func__
    return inspect.unwrap(found) if callable(found) else found


def _home_of(called: Any) -> str:
    """Return the name of the module that defines a function, a class or the class of an object."""
    is_named = isinstance(called, type) or inspect.isroutine(called)
    return str(called.__module__ if is_named else type(called).__module__)


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
        raise _standard(module)
    found = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) or importlib.util.find_spec(top)
    above = found
    for end in range(1, len(parts) + 1):
        folders = found.submodule_search_locations if found else None
        found = PathFinder.find_spec(".".join((top, *parts[:end])), list(folders)) if folders else None
    if above is None or found is None or not found.origin:
        raise RequestError(f"no such model or module: {quote(module)}")
    folders = above.submodule_search_locations
    first = Path(next(iter(folders)) if folders else str(above.origin)).resolve()
    file = Path(found.origin)
    return file if _is_installed(file) else file.resolve(), first.parent


def _unrecorded(file: Path) -> RefusedError:
    return RefusedError(f"{quote(file)} would be run, and the record holds no checksum of it", hint=_HINT)


def _standard(module: str) -> RefusedError:
    return RefusedError(f"{quote(module)} is of the standard library, which is not run for a record", hint=_HINT)


def existing_file(module: str) -> Path:
    """Return the path of a file with Python code.

    Raises:
        RequestError: It does not exist.
    """
    path = Path(module)
    if os.path.isfile(path):
        return path
    raise RequestError(f"no such file: {quote(module)}", hint=suggest_file(module, lambda name: name.endswith(".py")))


def packages_above(path: Path) -> tuple[Path, list[str]]:
    """Return the folder that holds the outermost package of a file, and the parts of the name of its module."""
    folder, parts = path.parent, [path.stem]
    while os.path.isfile(folder / "__init__.py") and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, parts


def is_library(file: Path) -> bool:
    """Return True for a file of an installed package, of fmapviz, or of the standard library, also of another Python.

    It is no user code, and never recorded.
    """
    return _is_installed(file) or bool(_PACKAGES & {*file.parts}) or any(map(_is_standard, file.parents))


def _is_installed(file: Path) -> bool:
    """Return True for a file of a package of this Python, of fmapviz, or of the standard library: it needs no checksum."""
    return os.path.abspath(file).startswith(_INSTALLED)  # noqa: PTH100  a link in a folder of packages is of it


def _is_of_standard_library(file: Path) -> bool:
    path = os.path.abspath(file)  # noqa: PTH100  as above
    return path.startswith(_LIBRARY) and not path.startswith(_SITES)


@cache
def _is_standard(folder: Path) -> bool:
    return os.path.isfile(folder / "os.py") and os.path.isfile(folder / "subprocess.py")


def _read(file: Path) -> tuple[str, bytes | None]:
    """Return the SHA-256 of a file, empty if there is none; and the content that has it, if that is source code."""
    with suppress(OSError, ValueError):
        if os.path.isfile(file):  # no pipe, whose reader waits
            with file.open("rb") as content:
                if file.suffix != ".py":
                    return hashlib.file_digest(content, "sha256").hexdigest(), None
                data = content.read(_MOST_BYTES)
                return hashlib.sha256(data).hexdigest(), data
    return "", None
