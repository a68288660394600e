"""Accept the names that arguments had up to version 0.2, until version 0.4."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fmapviz.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def renamed(**words: str) -> Callable[[F], F]:
    """Return a decorator of a function, or of a dataclass: a former name of an argument is a `DeprecationWarning`.

    Args:
        **words: The names of arguments by their former ones.

    Example:
        >>> @renamed(options="preprocessing")
        ... def load(*, preprocessing=None): ...
        >>> try:
        ...     load(options=1, preprocessing=2)
        ... except ArgumentError as error:
        ...     print(f"{error} | {error.hint}")
        load(): options= is now preprocessing=, and both are given | leave out options=
    """

    def decorate(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]  # of this class only
            return function

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:  # Any: as the function
            for former in words.keys() & kwargs:
                word, name = words[former], function.__qualname__.removesuffix(".__init__")
                if word in kwargs:
                    raise ArgumentError(
                        f"{name}(): {former}= is now {word}=, and both are given", hint=f"leave out {former}="
                    )
                warnings.warn(f"{name}(): {former}= is now {word}=", DeprecationWarning, stacklevel=2)
                kwargs[word] = kwargs.pop(former)
            return function(*args, **kwargs)

        return cast("F", call)

    return decorate
