"""Show where code of the user's own failed, and nothing of the code that called it."""

from __future__ import annotations

from pathlib import Path
from traceback import StackSummary, TracebackException

from torch import nn

from fmapviz.errors import printable

_OURS = str(Path(__file__).parent)
_PLUMBING = {nn.modules.module.__file__}  # how torch calls a module's forward


def report_of(error: BaseException) -> str:
    """Write an exception with its causes as Python does, without fmapviz' frames and those that import and call.

    Returns:
        Lines that are safe to show at a terminal.
    """
    written = TracebackException.from_exception(error)
    links: TracebackException | None = written
    while links is not None:
        links.stack = StackSummary.from_list([frame for frame in links.stack if not _is_plumbing(frame.filename)])
        links = links.__cause__ or links.__context__
    return "\n".join(printable(line) for line in "".join(written.format()).splitlines())


def _is_plumbing(file: str) -> bool:
    return file.startswith((_OURS, "<frozen importlib")) or file in _PLUMBING


def sentence_of(error: BaseException) -> str:
    """Put an exception in one line of at most 300 characters after its class.

    Example:
        >>> sentence_of(KeyError("width"))
        "KeyError: 'width'"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")
