"""Check the types and values of arguments."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from functools import cache
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fmapviz.config.options import options_of
from fmapviz.errors import RequestError, printable, quote

_SHORT = (str, bytes, Real, Enum, os.PathLike, type(None))


@cache
def types_of(config: Any) -> Mapping[str, Any]:  # Any: a dataclass; types, and unions of types
    """Return the types of a dataclass's fields."""
    return get_type_hints(config)


def check_types(config: Any) -> None:  # Any: a dataclass
    """Check the options of a frozen dataclass for their types; sequences become tuples, NumPy's numbers Python's.

    Raises:
        RequestError: An option has another type than its annotation.
    """
    types = types_of(config.__class__)
    for each in fields(config):
        if each.init and types[each.name] is not Any:
            described = options_of(config.__class__)[each.name].help
            value = check_type(each.name, getattr(config, each.name), types[each.name], hint=f"{each.name}: {described}")
            object.__setattr__(config, each.name, value)


# Any: a value of this type, or equal to one.
def check_type(name: str, value: object, kind: Any, *, hint: str) -> Any:
    """Check the type of an argument.

    Args:
        name: Name of the argument.
        value: Its value.
        kind: A type, a union of types, a tuple, or `Sequence[T]` for one or several T.
        hint: The meaning of the argument.

    Returns:
        The value, as a tuple if it is a sequence, and as `int` or `float` if it is a number of NumPy.

    Raises:
        RequestError: It has another type.

    Example:
        >>> check_type("size", [64, 96], tuple[int, int] | None, hint="height and width")
        (64, 96)
    """
    try:
        return _conform(value, kind)
    except TypeError:
        text = _as_text(value)
        with suppress(TypeError):
            hint = f"{name}={text!r}" if text and _conform(text, kind) else hint
        raise RequestError(f"{name} must be {_describe(kind)}, not {_show(value)}", hint=hint) from None


def check_confidence(confidence: object) -> float | None:
    """Return the lowest score of a detector's boxes, from 0 to 1; None: that of its own post-processing.

    Raises:
        RequestError: It is something else.
    """
    number: float | None = check_type("confidence", confidence, float | int | None, hint="from 0 to 1, such as 0.1")
    check_number("confidence", number, "from 0 to 1", least=0, most=1)
    return number


def _as_text(value: object) -> Any:  # Any: a text, several, or None
    """Return the text for a path, a member of an enumeration, a class, or a list of these; None for other values."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        texts = [each if isinstance(each, str) else _as_text(each) for each in value]
        return texts if all(isinstance(each, str) for each in texts) else None
    return value.__name__ if isinstance(value, type) else None


def _conform(value: object, kind: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        for each in inner:
            with suppress(TypeError):
                return _conform(value, each)
    elif origin in {tuple, Sequence, Iterable}:
        return _conform_items(value, origin, inner)
    elif kind in {int, float}:
        if isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool):
            return value if type(value) in {int, float} else kind(value)
    elif kind is Path and isinstance(value, os.PathLike):
        return Path(value)
    elif isinstance(value, str if origin is Literal else origin or kind):
        return value
    raise TypeError


def _conform_items(value: object, origin: Any, inner: tuple[Any, ...]) -> Any:
    several = [value] if origin is Sequence and isinstance(value, str) else value
    if not isinstance(several, Iterable) or isinstance(several, str | bytes | Mapping):
        raise TypeError
    if origin is Iterable and not isinstance(several, Sequence):
        iter(several)  # a tensor may refuse this
        return value  # an iterator is read once
    items = tuple(_conform(each, inner[0]) for each in several)
    if origin is tuple and (isinstance(value, AbstractSet) or (inner[-1] is not Ellipsis and len(items) != len(inner))):
        raise TypeError
    return value if origin is Iterable else items


def _show(value: object) -> str:
    """Return a value if it is short, and otherwise its type.

    Example:
        >>> _show("x"), _show((1, "x")), _show(range), _show([range])
        ("'x'", "(1, 'x')", 'type', 'list of type')
    """
    if isinstance(value, _SHORT):
        return printable(reprlib.repr(value))
    if isinstance(value, list | tuple):
        others = [type(each).__name__ for each in value if not isinstance(each, _SHORT)]
        return f"{type(value).__name__} of {others[0]}" if others else printable(reprlib.repr(value))
    return type(value).__name__


def _describe(kind: Any) -> str:
    """Return a type as Python spells it.

    Example:
        >>> _describe(Sequence[str]), _describe(tuple[int, int] | None)
        ('str or Sequence[str]', 'tuple[int, int] or None')
    """
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        return " or ".join(map(_describe, get_args(kind)))
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    text = "None" if kind is type(None) else str(kind) if origin else kind.__name__
    text = re.sub(r"\b(collections\.abc|pathlib|typing)\.", "", text)
    return f"str or {text}" if origin is Sequence and get_args(kind) == (str,) else text


def check_word(name: str, value: str | None, words: Sequence[str]) -> None:
    """Check that a value, unless it is None, is one of several words.

    Raises:
        RequestError: It is not.
    """
    if value is not None and value not in words:
        raise RequestError(f"no such {name}: {quote(value)}", hint=f"one of {', '.join(words)}")


def check_scores(scores: str | None) -> None:
    """Check that scores are one of `SCORES`, or `value:UNIT`.

    Raises:
        RequestError: They are something else; for a word of another tool the hint names ours.
    """
    if scores is None or scores in SCORES or re.fullmatch(r"value:\s*\S.*", scores):
        return
    meant = _CALLED.get(re.sub(r"[^a-z]", "", scores.lower()))
    hint = f"scores={meant!r}" if meant else f"one of {', '.join(SCORES)}; value:years names a unit"
    raise RequestError(f"no such kind of scores: {quote(scores)}", hint=hint)


SCORES = ("softmax", "sigmoid", "ordinal", "value")
# Our words by those of other tools.
_CALLED = {
    **dict.fromkeys(("singlelabel", "singlelabelclassification", "multiclass", "crossentropy", "logits"), "softmax"),
    **dict.fromkeys(("multilabel", "multilabelclassification", "binary", "bce", "mask", "masks"), "sigmoid"),
    **dict.fromkeys(("coral", "corn", "cumulative", "thresholds"), "ordinal"),
    **dict.fromkeys(("regression", "values", "raw", "none", "linear", "identity", "hinge", "quantity"), "value"),
}


def check_weights(weights: object) -> None:
    """Check that weights are a name, a member of an enumeration, or a mapping; which one is checked when they are loaded.

    Raises:
        RequestError: They are something else.
    """
    if not isinstance(weights, str | Enum | Mapping):
        path = os.fspath(weights) if isinstance(weights, os.PathLike) else None
        hint = (
            f"weights={quote(path)}"
            if path
            else "'default', 'random' (torchvision's None), the name of a published entry, a file, or a state dict"
        )
        raise RequestError(f"weights must be a name, a file or a state dict, not {_show(weights)}", hint=hint)


def check_number(
    name: str, number: float | None, allowed: str = "at least 1", *, least: float = 1, most: float = inf, hint: str = ""
) -> None:
    """Check that a number, unless it is None, is in a range, which `allowed` names.

    Raises:
        RequestError: It is not.
    """
    if number is not None and not least <= number <= most:
        default = f"leave out {name.replace(' ', '_')}= for the default"
        shown = number if isinstance(number, int) else f"{number:.12g}"
        raise RequestError(f"{name} must be {allowed}: '{shown}'", hint=hint or default)
