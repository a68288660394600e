"""Errors that a user can cause, each with an exit code and a hint.

Hints and notices name options as Python's arguments: `weights='random'`, `force=True`, or `layers=` without a value. The
command line prints them as `--weights random`, `--force`, `--layers`; see `fmapviz.cli.options.as_typed`. Messages name no
option.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class FmapvizError(Exception):
    """Base class of all errors that a user can cause.

    Attributes:
        exit_code: Exit code of the command.
        hint: What to do next, or None. Python's traceback shows it as a note.
        report: Traceback of user code, without frames of fmapviz; None if no user code failed.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str | None = None, report: str | None = None) -> None:
        super().__init__(message)
        self.hint: str | None = None
        self.report = report
        if hint:
            self.advise(hint)

    def advise(self, hint: str) -> None:
        """Set the hint, and the note that Python's traceback shows below the message."""
        self.hint = hint
        self.__notes__ = [f"hint: {hint}"]


class RequestError(FmapvizError):
    """The request is wrong: an unknown name, an impossible option. Nothing was written."""


class PositionError(RequestError):
    """A position is outside the picture; of a later image than the first one it is that image's own failure."""


class WeightsError(RequestError):
    """Weights cannot be loaded, cannot be trusted or do not match the model."""


class UserCodeError(RequestError):
    """User code failed; `report` is its traceback."""


class ArgumentError(RequestError, TypeError):
    """A function was called with an unknown argument, or without a required one."""


class LayerKeyError(RequestError, KeyError):
    """No feature map of this name was captured."""

    __str__ = Exception.__str__  # that of KeyError would quote the message


class NothingToDoError(FmapvizError):
    """No input is a readable image."""

    exit_code: ClassVar[int] = 4


class OutputError(FmapvizError):
    """The output could not be written; the same command continues later."""

    exit_code: ClassVar[int] = 5


class RefusedError(FmapvizError):
    """The output directory belongs to something else and was not changed."""

    exit_code: ClassVar[int] = 6


class DamagedError(FmapvizError):
    """A file of the output was changed or is damaged."""

    exit_code: ClassVar[int] = 3


class InputError(FmapvizError):
    """One input failed; the run continues with the others.

    Attributes:
        code: A stable code for scripts, such as `E_DECODE`.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def hint_behind(error: OSError) -> str | None:
    """Return the hint of a store's error, which is a note on it; None for other errors."""
    return next(iter(getattr(error, "__notes__", ())), None)


def printable(text: str) -> str:
    r"""Escape control characters, bidirectional marks and lone surrogates, which terminals would interpret.

    Example:
        >>> printable("a\x1b[31m.png")
        'a\\x1b[31m.png'
    """
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def quote(value: object) -> str:
    """Quote a value of the user, escaped for the terminal.

    Example:
        >>> quote("resnet999")
        "'resnet999'"
    """
    return f"'{printable(str(value))}'"


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint that names the known words most similar to a misspelt one, or None.

    Example:
        >>> suggest("alexnt", ["alexnet", "vgg11"])
        "did you mean 'alexnet'?"
    """
    near = nearest(word, known)
    return f"did you mean {', '.join(map(quote, near))}?" if near else None


_SEARCHED = 500  # folders in which a file of the same name is looked for
SAMPLES = "sample_images"  # the pictures of the guide's examples


def suggest_file(path: str, is_wanted: Callable[[str], bool] = bool) -> str:
    """Return a hint for a path that does not exist.

    It is why, similar folders and names, files of the same name in the working directory and below, or the last folder that
    exists.
    """
    typed = Path(path)
    try:
        typed.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # the name is too long, a folder may not be entered, links form a circle
        return f"the system reports: {error.strerror}"
    except ValueError:
        return "no path holds a NUL byte"
    if near := _similar(typed, is_wanted) or (is_wanted(typed.name) and _of_the_same_name(typed.name)):
        return f"did you mean {', '.join(map(quote, near))}?"
    if _is_sample(typed):
        return f"{SAMPLES} is a folder of fmapviz's repository, and not in the package: take any photo of yours"
    with suppress(OSError, ValueError):
        existing = next(folder for folder in (typed / "_").absolute().parents if os.path.isdir(folder))
        return f"no similar name in {quote(existing)}"
    return "the working directory was removed"


def _similar(typed: Path, is_wanted: Callable[[str], bool]) -> list[Path]:
    """Return up to three paths in the folder of a path whose names are similar to its own."""
    with suppress(OSError, ValueError):  # ValueError: a character that no path can hold
        names = [each.name for each in typed.parent.iterdir() if is_wanted(each.name) or os.path.isdir(each)]
        return [typed.with_name(name) for name in nearest(typed.name, names, cutoff=0.7)]
    return []


def _of_the_same_name(name: str) -> list[Path]:
    """Return up to three files of a name in the working directory and the folders below it, the newest first."""
    found, folders = list[tuple[float, Path]](), deque([Path()])
    for _ in range(_SEARCHED):
        if not folders:
            break
        folder = folders.popleft()
        with suppress(OSError, ValueError), os.scandir(folder) as entries:
            for entry in entries:
                path = folder / entry.name
                if entry.name == name and entry.is_file():
                    found.append((entry.stat().st_mtime, path))
                elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    folders.append(path)
    return [path for _, path in sorted(found, reverse=True)[:3]]


def _is_sample(path: Path) -> bool:
    """Return True for a path of the guide's examples, in a directory without their pictures."""
    folder = next((folder for folder in (path, *path.parents) if folder.name == SAMPLES), None)
    with suppress(OSError, ValueError):
        return folder is not None and not os.path.exists(folder)
    return False


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> list[str]:
    """Return up to three known words that are similar to a misspelt one, the most similar first.

    Args:
        word: The misspelt word.
        known: The known words.
        cutoff: The least similarity, 0 to 1, as `difflib.get_close_matches` measures it.

    Example:
        >>> nearest("Vgg", ["alexnet", "vgg11", "vgg13"])
        ['vgg13', 'vgg11']
    """
    by_lower_case = {name.lower(): name for name in known}
    return [by_lower_case[name] for name in get_close_matches(word.lower(), by_lower_case, n=3, cutoff=cutoff)]


def first_few(words: Sequence[str], *, separator: str = ", ") -> str:
    """List the first four words, safe to show, and the number of the others.

    Example:
        >>> first_few("abcdef")
        'a, b, c, d and 2 more'
    """
    more = f" and {len(words) - 4} more" if len(words) > 4 else ""
    return f"{separator.join(map(printable, words[:4]))}{more}"
