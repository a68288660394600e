"""Import user code, and report its failures without fmapviz's own stack frames."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import TYPE_CHECKING

from torch import nn

from fmapviz.core.errors import FmapvizError, RequestError, UserCodeError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from fmapviz.models.spec import Reference

_OWN_FILES = (str(Path(__file__).parents[1]), "<frozen importlib")
_MODULE_CALL = nn.modules.module.__file__  # calls a module's forward


def import_module_of(reference: Reference) -> ModuleType:
    """Run the Python file, or import the module, that a reference names.

    A file's folder, or the working directory, comes first on `sys.path` during the import and last afterwards. A file
    beside an `__init__.py` is imported as a module of that package.

    Raises:
        RequestError: The file or module does not exist.
        UserCodeError: It raises an exception.
    """
    if not reference.is_file:
        with _on_path(Path.cwd()):
            return _import(reference.module)
    path = Path(reference.module)
    if not path.is_file():
        raise RequestError(f"no such file: {quote(reference.module)}")
    path = path.resolve()
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    with _on_path(folder):
        return _import(".".join(parts)) if len(parts) > 1 else _run(path)


@contextmanager
def running_user_code(name: str) -> Iterator[None]:
    """Raise every exception as a failure of the user's code; standard output goes to standard error.

    Args:
        name: What is run, for the message.

    Raises:
        UserCodeError: The code raised an exception.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except FmapvizError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit() too
        raise UserCodeError(f"{quote(name)} failed: {one_line(error)}", report=report_of(error)) from error


def imported_files_beside(module: ModuleType) -> list[Path]:
    """List the source files of all imported modules in a module's folder and below, except installed packages."""
    if module.__file__ is None:
        return []
    folder = Path(module.__file__).resolve().parent
    prefix = str(folder).rstrip(os.sep) + os.sep  # strings: a Path for each of thousands of modules takes 0.1 s
    files = {str(getattr(imported, "__file__", None) or "") for imported in list(sys.modules.values())}
    paths = (Path(file) for file in files if file.startswith(prefix))
    return [path for path in paths if "site-packages" not in path.relative_to(folder).parts]


def report_of(error: BaseException) -> str:
    """Format a traceback with its causes as Python does, without the frames of fmapviz, `importlib` and `Module.__call__`.

    Returns:
        Lines that are safe to print at a terminal.
    """
    traceback = TracebackException.from_exception(error)
    link: TracebackException | None = traceback
    while link is not None:
        frames = [frame for frame in link.stack if not frame.filename.startswith(_OWN_FILES)]
        link.stack = StackSummary.from_list([frame for frame in frames if frame.filename != _MODULE_CALL])
        link = link.__cause__ or link.__context__
    return "\n".join(printable(line) for line in "".join(traceback.format()).splitlines())


def one_line(error: BaseException) -> str:
    """Format an exception as its class and at most 300 characters of its message.

    Example:
        >>> one_line(KeyError("width"))
        "KeyError: 'width'"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")


def _import(name: str) -> ModuleType:
    try:
        with running_user_code(name):
            return importlib.import_module(name)
    except UserCodeError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):  # the user's code imports it
            raise
        raise RequestError(
            f"no such module: {quote(missing)}", hint="the working directory and Python's module path were searched"
        ) from error


def _run(path: Path) -> ModuleType:
    """Run a file as a module named after it, with a digest appended if another module has that name."""
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
        with running_user_code(path.name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    entry = str(folder)
    known = entry in sys.path
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)
        if not known:
            sys.path.append(entry)
