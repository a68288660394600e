"""Refer to user code, such as `my_net.py:build` and `my.package:Net(width=2)`, import it, and report its failures.

Only `import_module_of` runs code. The module is imported without torch, to check references.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_tb
from typing import TYPE_CHECKING, Any

from fmapviz.core.recorded_code import (
    FromSource,
    check_called,
    check_import,
    existing_file,
    is_library,
    located,
    packages_above,
)
from fmapviz.errors import FmapvizError, RequestError, UserCodeError, first_few, printable, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

_imported: dict[Path, set[Path]] = {}  # by the file of a reference: what it has imported in this process
_OWN_FILES = (str(Path(__file__).parents[1]), "<frozen importlib")
_LIBRARIES = (*_OWN_FILES, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))
_MODULE_CALL = str(Path("torch", "nn", "modules", "module.py"))  # calls a module's forward
_FORM = re.compile(r"(?P<module>.+?):(?P<attribute>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\s*(?P<call>\(.*\))?\s*", re.DOTALL)
_EXAMPLE = "for example my_net.py:build, my.package:Net or 'my_net.py:build(num_classes=5)'"


@dataclass(frozen=True, slots=True)
class CodeReference:
    """A function, class or network in a Python file or module.

    Attributes:
        module: A file's path, ending in `.py`, or a module's dotted name.
        attribute: Its name in the module, possibly dotted.
        arguments: Keyword arguments to call it with; None without parentheses.
    """

    module: str
    attribute: str
    arguments: Mapping[str, Any] | None = None

    @property
    def is_file(self) -> bool:
        """True if `module` is a path, False if it is a module's name."""
        return self.module.endswith(".py")

    @property
    def name(self) -> str:
        """The reference without its arguments."""
        return f"{self.module}:{self.attribute}"


def parse_reference(text: str, *, example: str = _EXAMPLE) -> CodeReference:
    """Parse a reference. Arguments must be literals; `ast.literal_eval` reads them.

    Args:
        text: The reference.
        example: Hint for a reference of another form.

    Raises:
        RequestError: The text has another form, or an argument is unnamed or not a literal.

    Example:
        >>> parse_reference("my_net.py:build(num_classes=5, widths=[8, 16])")
        CodeReference(module='my_net.py', attribute='build', arguments={'num_classes': 5, 'widths': [8, 16]})
    """
    match = _FORM.fullmatch(text)
    if not match:
        unclosed = "(" in text and not text.rstrip().endswith(")")
        problem = "unclosed parenthesis" if unclosed else "the name of a function or class is missing"
        known = [] if unclosed else list(references_in(text.partition(":")[0]))
        raise RequestError(f"{problem}: {quote(text)}", hint=f"type one of {first_few(known)}" if known else example)
    arguments = None if match["call"] is None else parse_arguments(match["call"])
    return CodeReference(match["module"], match["attribute"], arguments)


def check_reference(text: str) -> None:
    """Check, without running anything, that a reference is well formed and its file or outermost package exists.

    Raises:
        RequestError: It is malformed, or the file or package does not exist.
    """
    if text.endswith(".py"):
        existing_file(text)
    reference = parse_reference(text)
    if reference.is_file:
        existing_file(reference.module)
        return
    package = reference.module.partition(".")[0]
    if PathFinder.find_spec(package, [""]) is None and importlib.util.find_spec(package) is None:
        raise RequestError(
            f"no such model or module: {quote(reference.module)}",
            hint="fmapviz.model_names() lists model names; modules are also searched for in the working directory",
        )


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse keyword arguments in parentheses, whose values are literals.

    Raises:
        RequestError: The text is something else.

    Example:
        >>> parse_arguments("(in_chans=1)")
        {'in_chans': 1}
    """
    # Any: a literal of any type.
    try:
        call = ast.parse(f"f{text.strip()}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RequestError(f"invalid arguments: {quote(text)}", hint=_EXAMPLE) from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise RequestError(f"invalid arguments: {quote(text)}", hint=_EXAMPLE)
    names = {keyword.arg for keyword in call.keywords}
    if call.args or None in names or len(names) < len(call.keywords):
        raise RequestError(f"every argument needs its own name: {quote(text)}", hint=_EXAMPLE)
    return {str(keyword.arg): _literal(keyword) for keyword in call.keywords}


def split_call(text: str) -> tuple[str, dict[str, Any]]:
    """Split a name from the arguments that follow it in parentheses.

    Raises:
        RequestError: See `parse_arguments`.

    Example:
        >>> split_call("resnet18(num_classes=5)"), split_call("resnet18")
        (('resnet18', {'num_classes': 5}), ('resnet18', {}))
    """
    # Any: as above.
    name, parenthesis, rest = text.partition("(")
    return name.strip(), parse_arguments(f"({rest}") if parenthesis else {}


def import_module_of(reference: CodeReference) -> ModuleType:
    """Run the Python file, or import the module, that a reference names.

    A file's folder, or the working directory, comes first on `sys.path` during the import and last afterwards. A file
    beside an `__init__.py` is imported as a module of that package.

    Raises:
        RequestError: The file or module does not exist.
        RefusedError: It may not be run for a record; see `fmapviz.core.recorded_code`.
        UserCodeError: It raises an exception.
    """
    may_be_here = check_import(reference.module, reference.name, reference.arguments)
    if not reference.is_file:
        here = _on_path(Path.cwd()) if may_be_here else nullcontext()
        with here, _without_arguments(reference.module), _noting_imports(reference.module):
            return _import(reference.module)
    path = existing_file(reference.module).resolve()
    folder, parts = packages_above(path)
    with _on_path(folder), _without_arguments(str(path)), _noting_imports(reference.module):
        return _import(".".join(parts)) if len(parts) > 1 else _run(path)


@contextmanager
def running_user_code(name: str) -> Iterator[None]:
    """Raise every exception as a failure of the user's code; standard output goes to standard error.

    The working directory is the same at the end.

    Args:
        name: Name of the code, for the message.

    Raises:
        UserCodeError: The code raised an exception.
    """
    try:
        with redirect_stdout(sys.stderr), same_directory():
            yield
    except FmapvizError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit() too
        message = f"{quote(name)} failed: {one_line(error)}"
        raise UserCodeError(message, hint=_hint(error), report=report_of(error)) from error


@contextmanager
def same_directory() -> Iterator[None]:
    """Return to the working directory at the end, if it still exists."""
    before = None
    with suppress(OSError):
        before = Path.cwd()
    try:
        yield
    finally:
        if before:
            with suppress(OSError):
                os.chdir(before)


def _hint(error: BaseException) -> str | None:
    """Return what to change in user code that fails in a usual way."""
    if isinstance(error, SystemExit):
        return "it ends Python, as a script does: put what it does besides definitions below if __name__ == '__main__':"
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "name it as a module of its package, from the folder that holds the package: my_pkg.net:build"
    return None


def find_in(home: ModuleType, reference: CodeReference, known: Sequence[str]) -> Any:
    """Return the object that a reference names in its module.

    Args:
        home: The module.
        reference: The reference.
        known: Names in the module, for the hint.

    Raises:
        RequestError: It does not exist.
        RefusedError: It may not be called for a record; see `fmapviz.core.recorded_code`.
    """
    # Any: an attribute of the user's module.
    found: Any = home
    for part in reference.attribute.split("."):
        if not hasattr(found, part):
            raise RequestError(
                f"no {quote(reference.attribute)} in {quote(reference.module)}",
                hint=suggest(reference.attribute, known) or f"there are: {', '.join(known) or 'no functions or classes'}",
            )
        found = getattr(found, part)
    check_called(reference.module, reference.name, found, reference.arguments)
    return found


def public_names(home: ModuleType) -> list[str]:
    """Return the names of a module's own functions and classes."""
    held = vars(home).items()
    return [name for name, value in held if name[0] != "_" and getattr(value, "__module__", None) == home.__name__]


def references_in(file: str) -> Iterator[str]:
    """Yield references to the public functions and classes in a file, which is not run."""
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        for each in ast.parse(Path(file).read_bytes()).body:
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and not each.name.startswith("_"):
                yield f"{file}:{each.name}"


def imported_files(module: str) -> list[Path]:
    """Return the source files of the user's code that a module of a reference has imported, wherever they are.

    Args:
        module: The module; it was imported by `import_module_of`.
    """
    try:
        file, root = located(module)
    except FmapvizError:  # it is gone meanwhile, or of the standard library
        return []
    if is_library(file):
        return []
    prefix = str(root).rstrip(os.sep) + os.sep
    known = {str(getattr(imported, "__file__", None) or "") for imported in list(sys.modules.values())}
    paths = {Path(name).resolve() for name in known if name.startswith(prefix)} | _imported.get(file, set())
    return sorted(path for path in paths if os.path.isfile(path) and not is_library(path))


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
        link.stack = StackSummary.from_list([frame for frame in frames if not frame.filename.endswith(_MODULE_CALL)])
        link = link.__cause__ or link.__context__
    return "\n".join(printable(line) for line in "".join(traceback.format()).splitlines())


def place_of(error: BaseException) -> str:
    """Return the last line of the user's code that an exception has passed, such as `my_view.py, line 12`; empty if none.

    Example:
        >>> try:
        ...     exec(compile("1 / 0", "folder/my_view.py", "exec"))
        ... except ZeroDivisionError as error:
        ...     place_of(error)
        'my_view.py, line 1'
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    users = [each for each in frames if not each[0].startswith(_LIBRARIES) and "site-packages" not in Path(each[0]).parts]
    return f"{Path(users[-1][0]).name}, line {users[-1][1]}" if users else ""


def one_line(error: BaseException) -> str:
    """Format an exception as its class and at most 300 characters of its message.

    Example:
        >>> one_line(KeyError("width"))
        "KeyError: 'width'"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")


def _literal(keyword: ast.keyword) -> Any:
    # Any: as above.
    try:
        return ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise RequestError(
            f"not a literal: {quote(f'{keyword.arg}={ast.unparse(keyword.value)}')}",
            hint="numbers, strings, True, False, None, and lists, tuples and dicts of them are allowed",
        ) from error


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
    spec = importlib.util.spec_from_file_location(name, path, loader=FromSource(name, str(path)))
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
def _noting_imports(module: str) -> Iterator[None]:
    """Note which files are imported for a module; what it imports lies anywhere."""
    before = {*sys.modules}
    yield
    named = [sys.modules[name] for name in sys.modules.keys() - before]
    files = {str(getattr(each, "__file__", None) or "") for each in named} - {""}
    with suppress(FmapvizError):  # of the standard library, which is no user code
        _imported.setdefault(located(module)[0], set()).update(Path(file).resolve() for file in files)


@contextmanager
def _without_arguments(name: str) -> Iterator[None]:
    """Hide the arguments of fmapviz from a script that parses arguments when it is imported."""
    before = sys.argv
    sys.argv = [name]
    try:
        yield
    finally:
        sys.argv = before


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
