"""Refuse unknown arguments of functions, with a hint that names the likely one."""

from __future__ import annotations

import re
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fmapviz.config.options import options_of
from fmapviz.core import registry
from fmapviz.core.synonyms import meant_name, meant_option
from fmapviz.errors import ArgumentError, first_few, nearest
from fmapviz.public_names import HOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

F = TypeVar("F", bound="Callable[..., Any]")
_decorated: dict[str, type] = {}  # dataclasses by name


def explain_arguments(function: F) -> F:
    """Decorate a public function, or a dataclass: a wrong argument is an `ArgumentError`, which is a `TypeError`.

    Its signature, docstring and types stay as they are.

    Example:
        >>> @explain_arguments
        ... def draw(*, layers=()): ...
        >>> try:
        ...     draw(layer="conv1")
        ... except ArgumentError as error:
        ...     print(f"{error} | {error.hint}")
        draw(): got an unexpected keyword argument 'layer' | did you mean layers=?
    """
    if isinstance(function, type):
        function.__init__ = explain_arguments(function.__init__)  # type: ignore[misc]  # of this class only
        _decorated[function.__name__] = function
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # Any: as the function
        try:
            return function(*args, **kwargs)
        except TypeError:
            try:
                signature(function).bind(*args, **kwargs)
            except TypeError as error:
                name = function.__qualname__.removesuffix(".__init__")
                place = "fmapviz" if name.partition(".")[0] in HOMES else "fmapviz.types"
                hint = _hint(function, str(error), kwargs) or f"help({place}.{name}) lists its arguments"
                raise ArgumentError(f"{name}(): {error}", hint=hint) from None
            raise

    return cast("F", call)


def _hint(function: Callable[..., Any], problem: str, given: Iterable[str]) -> str | None:
    parameters, options = signature(function).parameters, _options_within(function)
    unknown = next((name for name in given if name not in parameters), None)
    if unknown is None:
        named = [f"{name}=" for name, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY]
        return f"these need their names: {first_few(named)}" if named and "too many" in problem else None
    if unknown in options:
        return options[unknown]
    written = options | {name: f"{name}=" for name in parameters if name != "self"}
    if hint := meant_option(unknown, written, {"views": registry.views(), "to": registry.formats()}):
        return hint
    if (meant := meant_name(unknown)) in options_of(_decorated["InputOptions"]):  # of a function without them
        return f"load_model(NAME, preprocessing=InputOptions({meant}=...)) has it; prepared tensors are taken as they are"
    near = nearest(unknown, written, cutoff=0.6)
    return f"did you mean {written[near[0]]}?" if near else None


def _options_within(function: Callable[..., Any]) -> dict[str, str]:
    """Return the options of the dataclasses that a function takes as they are written, by their names and by their flags."""
    written: dict[str, str] = {}
    for name, parameter in signature(function).parameters.items():
        for kind in _decorated.keys() & re.findall(r"\w+", str(parameter.annotation)):
            for field, option in options_of(_decorated[kind]).items():
                flag = option.flag.removeprefix("--").replace("-", "_")
                text = f"{name}={kind}({field}=...)"
                written |= {field: text, flag or field: text}
    return written
