"""Find own views and formats beside those of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.config.options import split
from fmapviz.core import registry
from fmapviz.core.file_names import ALIGNMENT, FILMSTRIP
from fmapviz.core.own import OwnName, is_own, name_own
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from fmapviz.core.own import Kind

_TAKEN = ("input", "all", "records", FILMSTRIP, ALIGNMENT)  # names of other pictures and files


def find_own(kind: Kind, given: object) -> object:
    """Replace the user's own views or formats among the requested ones by their names; no code is run.

    Args:
        kind: View or format.
        given: Names, and references to user code such as `my_view.py:energy`, in one text with commas or in several; or, in
            Python, the code itself.

    Returns:
        The names; those of user code are each an `OwnName`. A value of a wrong type is returned unchanged.

    Raises:
        RequestError: The name of user code is taken, or cannot be used.

    Example:
        >>> find_own("view", "maps,my_view.py:energy")
        ('maps', 'energy')
    """
    if isinstance(given, str) or is_own(kind, given):
        given = [given]
    try:
        members = list(given)  # type: ignore[call-overload]  # other types are refused by the check of types
    except TypeError:
        return given
    names: list[object] = []
    for each in members:
        if isinstance(each, OwnName):
            names.append(each)
        elif isinstance(each, str):
            names += [name_own(kind, part) if ":" in part or part.endswith(".py") else part for part in split(each)]
        else:
            names.append(name_own(kind, each) if is_own(kind, each) else each)
    _check_free(kind, names)
    return tuple(dict.fromkeys(names)) if all(isinstance(each, str) for each in names) else tuple(names)


def _check_free(kind: Kind, names: list[object]) -> None:
    known = {name.lower(): name for name in (*registry.views(), *registry.formats(), *_TAKEN)}
    met: dict[str, OwnName] = {}
    for each in names:
        if not isinstance(each, OwnName):
            continue
        other = met.setdefault(each.lower(), each)
        if each.lower() in known:
            what = "view" if known[each.lower()] in registry.views() else "format"
            what = "picture" if known[each.lower()] in _TAKEN else what
            raise RequestError(f"there is a {what} of the name {quote(each)}", hint=f"rename your own {kind}")
        if (other.reference, other.given) != (each.reference, each.given):
            raise RequestError(f"two {kind}s have the name {quote(each)}", hint="in Python, an attribute name is the name")
