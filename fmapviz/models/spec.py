"""Parse references to user code, such as `my_net.py:build` and `my.package:Net(width=2)`, without running it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.core.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM = re.compile(r"(?P<module>.+?):(?P<attribute>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\s*(?P<call>\(.*\))?\s*", re.DOTALL)
_EXAMPLE = "for example my_net.py:build, my.package:Net or 'my_net.py:build(num_classes=5)'"


@dataclass(frozen=True, slots=True)
class Reference:
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


def parse_reference(text: str) -> Reference:
    """Parse a reference. Arguments must be literals; `ast.literal_eval` reads them.

    Raises:
        RequestError: The text has another form, or an argument is unnamed or not a literal.

    Example:
        >>> parse_reference("my_net.py:build(num_classes=5, widths=[8, 16])")
        Reference(module='my_net.py', attribute='build', arguments={'num_classes': 5, 'widths': [8, 16]})
    """
    match = _FORM.fullmatch(text)
    if not match:
        unclosed = "(" in text and not text.rstrip().endswith(")")
        problem = "unclosed parenthesis" if unclosed else "no name of a function or class"
        raise RequestError(f"{problem}: {quote(text)}", hint=_EXAMPLE)
    arguments = None if match["call"] is None else parse_arguments(match["call"])
    return Reference(match["module"], match["attribute"], arguments)


def check_reference(text: str) -> None:
    """Check, without running anything, that a reference is well formed and its file or outermost package exists.

    Raises:
        RequestError: It is malformed, or the file or package does not exist.
    """
    reference = parse_reference(text)
    if reference.is_file:
        if not _is_file(reference.module):
            raise RequestError(f"no such file: {quote(reference.module)}")
        return
    package = reference.module.partition(".")[0]
    if not (_is_file(f"{package}.py") or _is_file(package, folder=True)) and find_spec(package) is None:
        raise RequestError(
            f"no such model or module: {quote(reference.module)}",
            hint="`fmapviz models` lists model names; modules are also searched for in the working directory",
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


def _is_file(name: str, *, folder: bool = False) -> bool:
    try:
        return Path(name).is_dir() if folder else Path(name).is_file()
    except OSError:  # the name is too long
        return False


def _literal(keyword: ast.keyword) -> Any:
    # Any: as above.
    try:
        return ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise RequestError(
            f"not a literal: {quote(f'{keyword.arg}={ast.unparse(keyword.value)}')}",
            hint="numbers, strings, True, False, None, and lists, tuples and dicts of them are allowed",
        ) from error
