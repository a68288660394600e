"""Every failure a user can cause, with its exit code and its hint."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class FmapvizError(Exception):
    """A failure with something useful to say to the person at the terminal.

    Attributes:
        exit_code: What the command exits with.
        hint: What to do next, or None.
        report: Of a failure in code of the user's own its traceback, without our own frames; else None.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str | None = None, report: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.report = report


class RequestError(FmapvizError):
    """The request is wrong: an unknown name, an impossible option. Nothing was written."""


class WeightsError(RequestError):
    """Weights that cannot be had, cannot be trusted or do not fit the model."""


class UserCodeError(RequestError):
    """Code of the user's own failed; `report` tells where."""


class NothingToDoError(FmapvizError):
    """None of the inputs is an image that can be read."""

    exit_code: ClassVar[int] = 4


class OutputError(FmapvizError):
    """The output could not be written; the same command continues later."""

    exit_code: ClassVar[int] = 5


class RefusedError(FmapvizError):
    """The output directory belongs to something else and is left alone."""

    exit_code: ClassVar[int] = 6


class DamagedError(FmapvizError):
    """A file of the output is not as it was written."""

    exit_code: ClassVar[int] = 3


class InputError(FmapvizError):
    """One input cannot be used; the others can.

    Attributes:
        code: A stable word for scripts, such as `E_DECODE`.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def printable(text: str) -> str:
    r"""Escape what a terminal would act on: control characters, bidirectional marks, lone surrogates.

    Example:
        >>> printable("a\x1b[31m.png")
        'a\\x1b[31m.png'
    """
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def quote(value: object) -> str:
    """Put a value as the user typed it between quotes, safe to show.

    Example:
        >>> quote("resnet999")
        "'resnet999'"
    """
    return f"'{printable(str(value))}'"


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Name the known words nearest to a misspelt one, as a hint.

    Example:
        >>> suggest("alexnt", ["alexnet", "vgg11"])
        "did you mean 'alexnet'?"
    """
    by_lower_case = {name.lower(): name for name in known}
    nearest = [by_lower_case[name] for name in get_close_matches(word.lower(), by_lower_case, n=3, cutoff=0.5)]
    return f"did you mean {', '.join(map(quote, nearest))}?" if nearest else None
