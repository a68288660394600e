"""Import code of the user's own, and tell its failures from ours."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.errors import FmapvizError, RequestError, UserCodeError, quote
from fmapviz.tracebacks import report_of, sentence_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from fmapviz.references import Reference


def import_place(reference: Reference) -> ModuleType:
    """Run a Python file, or import a module, with what lies beside it, or in the working directory, in reach.

    A file in a package, that is, beside an `__init__.py`, is imported as a module of that package. Its folder stays the last
    place that Python looks for modules in, for what is imported later.

    Raises:
        RequestError: There is none.
        UserCodeError: It raises an exception.
    """
    if not reference.is_file:
        with _in_reach(Path.cwd()):
            return _import(reference.place)
    path = Path(reference.place)
    if not path.is_file():
        raise RequestError(f"no such file: {quote(reference.place)}")
    path = path.resolve()
    root, name = _package_of(path)
    with _in_reach(root):
        return _import(name) if "." in name else _run(path)


@contextmanager
def blame_the_user(what: str) -> Iterator[None]:
    """Make of every exception one that says that the user's code failed; what that code prints is no result of ours.

    Raises:
        UserCodeError: Whatever happened.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except FmapvizError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit() too
        raise UserCodeError(f"{quote(what)} failed: {sentence_of(error)}", report=report_of(error)) from error


def code_beside(home: ModuleType) -> list[Path]:
    """List the files of code that lie beside a module, or below, and are imported: what it may call."""
    if home.__file__ is None:
        return []
    folder = Path(home.__file__).resolve().parent
    beside = str(folder).rstrip(os.sep) + os.sep  # thousands are imported: to make a path of each would take 0.1 s
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    paths = (Path(file) for file in files if file.startswith(beside))
    return [path for path in paths if "site-packages" not in path.relative_to(folder).parts]


def _import(name: str) -> ModuleType:
    try:
        with blame_the_user(name):
            return importlib.import_module(name)
    except UserCodeError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):  # one that the user's code wants
            raise
        raise RequestError(
            f"no such module: {quote(missing)}", hint="the working directory and Python's own places were searched"
        ) from error


def _run(path: Path) -> ModuleType:
    """Run a file as a module of its own name, or of another if that is taken."""
    name = path.stem
    taken = sys.modules.get(name)
    if not name.isidentifier() or (taken is not None and getattr(taken, "__file__", None) != str(path)):
        name = f"{name}_{hashlib.sha256(str(path).encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with blame_the_user(path.name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package_of(path: Path) -> tuple[Path, str]:
    """Give the folder that a file's outermost package lies in, and the file's dotted name there."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


@contextmanager
def _in_reach(folder: Path) -> Iterator[None]:
    """Have a folder first among the places for modules, as Python does for a script; last afterwards."""
    place = str(folder)
    known = place in sys.path
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(place)
        if not known:
            sys.path.append(place)
