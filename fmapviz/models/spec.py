"""Read how somebody names code of their own: `my_net.py:build`, `my.package:Net(width=2)`. Nothing of it is run here."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FORM = re.compile(r"(?P<place>.+?):(?P<attribute>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\s*(?P<call>\(.*\))?\s*", re.DOTALL)
_EXAMPLE = "such as my_net.py:build, my.package:Net or 'my_net.py:build(num_classes=5)'"


@dataclass(frozen=True, slots=True)
class Reference:
    """Something in a Python file or module, and what to call it with.

    Attributes:
        place: A file's path, ending in `.py`, or a module's dotted name.
        attribute: Its name there, perhaps dotted.
        arguments: Keyword arguments; None if it was named without parentheses.
    """

    place: str
    attribute: str
    arguments: Mapping[str, Any] | None = None

    @property
    def is_file(self) -> bool:
        """Whether the place is a file, not a module to be imported by name."""
        return self.place.endswith(".py")

    @property
    def name(self) -> str:
        """Place and attribute, without the arguments."""
        return f"{self.place}:{self.attribute}"


def parse_reference(text: str) -> Reference:
    """Take a reference apart; the arguments are literals, read by `ast.literal_eval`.

    Raises:
        RequestError: It has another form, or an argument that is no literal or has no name.

    Example:
        >>> parse_reference("my_net.py:build(num_classes=5, widths=[8, 16])")
        Reference(place='my_net.py', attribute='build', arguments={'num_classes': 5, 'widths': [8, 16]})
    """
    match = _FORM.fullmatch(text)
    if not match and "(" in text and not text.rstrip().endswith(")"):
        raise RequestError(f"a bracket is not closed: {quote(text)}", hint=_EXAMPLE)
    if not match:
        raise RequestError(f"no name of a function or class: {quote(text)}", hint=_EXAMPLE)
    arguments = None if match["call"] is None else parse_arguments(match["call"])
    return Reference(match["place"], match["attribute"], arguments)


def check_place(text: str) -> None:
    """Make sure, without running it, that there is the code that a reference names.

    Raises:
        RequestError: There is no such file, or no module whose name begins so.
    """
    reference = parse_reference(text)
    if reference.is_file:
        if not _is_there(Path(reference.place).is_file):
            raise RequestError(f"no such file: {quote(reference.place)}")
        return
    outermost = reference.place.partition(".")[0]
    here = _is_there(Path(outermost).is_dir) or _is_there(Path(f"{outermost}.py").is_file)
    if not here and find_spec(outermost) is None:
        raise RequestError(
            f"no such model, and no such module: {quote(reference.place)}",
            hint="`fmapviz models` lists the names there are; modules are looked for in the working directory too",
        )


def parse_arguments(text: str) -> dict[str, Any]:
    """Read keyword arguments in parentheses; their values are literals.

    Raises:
        RequestError: They are something else.

    Example:
        >>> parse_arguments("(in_chans=1)")
        {'in_chans': 1}
    """
    # Any: whatever literals there are.
    try:
        call = ast.parse(f"f{text.strip()}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RequestError(f"no list of arguments: {quote(text)}", hint=_EXAMPLE) from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise RequestError(f"no list of arguments: {quote(text)}", hint=_EXAMPLE)
    names = {keyword.arg for keyword in call.keywords}
    if call.args or None in names or len(names) < len(call.keywords):
        raise RequestError(f"every argument needs a name of its own: {quote(text)}", hint=_EXAMPLE)
    return {str(keyword.arg): _literal(keyword) for keyword in call.keywords}


def _is_there(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except OSError:  # a name that is too long
        return False


def _literal(keyword: ast.keyword) -> Any:
    # Any: as above.
    try:
        return ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise RequestError(
            f"not a literal: {quote(f'{keyword.arg}={ast.unparse(keyword.value)}')}",
            hint="numbers, strings, True, False, None, and lists, tuples and dicts of them",
        ) from error
