"""Views and formats in user code: `my_view.py:energy`, or in Python the function or class itself.

The pages *own-views* and *own-formats* of the guide describe them.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, Self

from fmapviz.core.members import GRID_LOOKS, HEAT_LOOKS, Format, LayerView, Need, ReducedView, View, load
from fmapviz.core.user_code import (
    find_in,
    import_module_of,
    parse_reference,
    public_names,
    running_user_code,
    same_directory,
)
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Kind = Literal["view", "format"]

CAPTURES = ("output", "input", "gradient", "input gradient")
_one_call = RLock()
_NEEDS: tuple[Need, ...] = ("pictures", "measures", "values")
_NAME = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)  # names files, tags and keys
_LOOKS = tuple(look for look in dict.fromkeys((*GRID_LOOKS, *HEAT_LOOKS, "smooth")) if look != "norm")
_VIEW = "def energy(maps): return maps.square().mean(1); the page own-views of the guide has more"
_FORMAT = "class Csv: with __init__(self, directory) and add(self, image, pictures); see the page own-formats of the guide"


class OwnName(str):
    """The name of a view or format in user code, which finds it.

    The code is run on first use, and in another process again if there is a reference.

    Attributes:
        kind: `view` or `format`.
        reference: Reference of its code, such as `my_view.py:energy`; empty for an object in Python.
        given: The object in Python.
    """

    __slots__ = ("_member", "given", "kind", "reference")
    kind: Kind
    reference: str
    given: object
    _member: View | Format | None

    def __new__(cls, name: str, kind: Kind, reference: str = "", given: object = None) -> Self:
        """Name the target of a reference, or a function, class or object."""
        self = super().__new__(cls, name)
        self.kind, self.reference, self.given, self._member = kind, reference, given, None
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the arguments of `__new__`
        """Return how another process makes it."""
        return OwnName, (str(self), self.kind, self.reference, self.given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:  # Any: of `copy`
        """Return itself: the object may not be copyable."""
        return self

    @property
    def member(self) -> View | Format:
        """What the catalogue would have.

        Raises:
            RequestError: There is no such code, or it is no view or format.
            UserCodeError: It raises an exception.
        """
        if self._member is None:
            found = self.given
            if self.reference:
                reference = parse_reference(self.reference)
                home = import_module_of(reference)
                found = find_in(home, reference, public_names(home))
            self._member = (_view_of if self.kind == "view" else _format_of)(str(self), found)
        return self._member


def name_own(kind: Kind, given: object) -> OwnName:
    """Return the name of a view or format from a reference to it, or from itself. Nothing is run.

    Raises:
        RequestError: It is no reference, or no file can have its name.
    """
    if isinstance(given, str):
        example = "my_view.py:energy" if kind == "view" else "my_format.py:Csv"
        reference = parse_reference(given, example=example)
        if reference.arguments is not None:
            hint = f"give the result a name in the file, and type {quote(f'{reference.module}:NAME')}"
            raise RequestError(f"a {kind} takes no arguments: {quote(given)}", hint=hint)
        name, reference_text = reference.attribute.rpartition(".")[2], given.strip()
    else:
        named = getattr(given, "name", None)
        name = named if isinstance(named, str) else getattr(given, "__name__", type(given).__name__)
        reference_text = ""
    if not _NAME.fullmatch(name):
        hint = "a name is a letter, then up to 39 ASCII letters, digits and underscores"
        raise RequestError(f"no name of a {kind}: {quote(name)}", hint=hint)
    return OwnName(name, kind, reference_text, None if reference_text else given)


def is_own(kind: Kind, value: object) -> bool:
    """Return True for a function, class or object that may be a view or a format; a network is neither."""
    if isinstance(value, str) or any(base.__module__ == "torch.nn.modules.module" for base in type(value).__mro__):
        return False
    return callable(value) or hasattr(value, "draw" if kind == "view" else "add")


@contextmanager
def calling() -> Iterator[None]:
    """Run user code, one call at a time: matplotlib, for example, is not safe in several threads."""
    with _one_call, same_directory():
        yield


def code_of(member: View | Format) -> list[object]:
    """Return what determines the output of a member: its code, and its attributes."""
    found = member.own
    methods = [getattr(found, name, None) for name in ("draw", "__init__", "add", "close")]
    settings = [str(getattr(member, name, "")) for name in ("captures", "over", "colormap", "needs", "many")]
    return [found, *filter(inspect.isroutine, methods), settings]


def _view_of(name: str, found: Any) -> View:  # Any: of the user
    """Return a view that draws by a method `draw`, or that reduces all channels to one map."""
    if isinstance(found, type):
        _check_call(name, found, (), _VIEW)
        with running_user_code(name):
            found = found()
    draw = getattr(found, "draw", None)
    captures = _attribute(name, found, "captures", CAPTURES[0], CAPTURES)
    about = {"name": name, "help": f"{name}, of your own code.", "captures": captures, "own": found}
    if callable(draw):
        _check_call(name, draw, ("maps", "style"), _VIEW)
        return LayerView(**about, looks=_LOOKS, scaled=False, draw="fmapviz.views.own:draw")
    if draw is not None or not callable(found):
        what = "its draw is no method" if draw is not None else "it has no draw, and is no function"
        raise RequestError(f"{quote(name)} is no view: {what}, but of type {type(found).__name__}", hint=_VIEW)
    _check_call(name, found, ("maps",), _VIEW)
    over = _attribute(name, found, "over", True, (True, False))
    colormap = getattr(found, "colormap", "")
    if colormap:
        colormap = load("fmapviz.config.style:canonical_colormap")(colormap)
    looks = ("norm", *HEAT_LOOKS) if over else ("norm", "scale", "colormap", "labels", "background", "text_size", "colorbar")
    reduce = "fmapviz.views.own:reduce"
    return ReducedView(**about, looks=looks, over=over, placed=over, colormap=colormap, reduce=reduce)


def _format_of(name: str, found: Any) -> Format:  # Any: of the user
    """Return a format whose writers a class makes, or another function of a directory."""
    if not callable(found):
        raise RequestError(f"{quote(name)} is no format, but of type {type(found).__name__}", hint=_FORMAT)
    if isinstance(found, type):
        if not callable(add := getattr(found, "add", None)):
            raise RequestError(f"{quote(name)} is no format: it has no method add", hint=_FORMAT)
        _check_call(f"{name}.add", add, ("self", "image", "pictures"), _FORMAT)
    _check_call(name, found, ("directory",), _FORMAT)
    needs = getattr(found, "needs", _NEEDS[:1])
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    if not needs or not {*needs} <= {*_NEEDS}:
        raise RequestError(f"{name}.needs is {needs!r}", hint=f"one or several of {', '.join(_NEEDS)}")
    many = _attribute(name, found, "many", False, (True, False))
    open_writer = "fmapviz.formats.own:open_writer"
    return Format(name=name, help=f"{name}, of your own code.", needs=needs, many=many, own=found, open_writer=open_writer)


def _attribute(name: str, found: object, attribute: str, default: Any, allowed: tuple[Any, ...]) -> Any:
    # Any: a word or a Boolean.
    value = getattr(found, attribute, default)
    if not isinstance(value, type(default)) or value not in allowed:
        raise RequestError(f"{name}.{attribute} is {value!r}", hint=f"one of {', '.join(map(repr, allowed))}")
    return value


def _check_call(name: str, function: Callable[..., Any], arguments: tuple[str, ...], hint: str) -> None:
    """Check that a function takes some arguments, if it has a signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # C code
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        takes = f"it is called as {name}({', '.join(each for each in arguments if each != 'self')})"
        raise RequestError(f"{name}{signature} takes other arguments: {takes}", hint=hint) from error
