"""Print results on standard output and messages on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from fmapviz.core.platforms import interprets_escapes
from fmapviz.errors import FmapvizError, OutputError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

summaries: list[int] = []  # the exit code in the summary of `--json`, once that is printed
_results: list[TextIO | None] = []
_ERASE = "\r\x1b[K"
_REMARK = re.compile(r"(?:error|hint|notice): [^\n]*")
_QUOTED, _CALL = r"""`[^`]*`|(?<!\w)'.*?'(?!\w)|(?<!\w)".*?"(?!\w)""", r"(?<=[\w=])\([^()]*\)"
# A word, or what a user copies: besides the above, an option with its value, and the command of another program.
_WHOLE = re.compile(
    rf"(?:{_QUOTED}|{_CALL}|(?<![^\s(])--[\w-]+ (?:{_QUOTED}|\S)|pip install (?:-\S+ )*|(?<=\S) -[cm] .*|\S)+"
)


class _Erasing:
    """A standard stream whose output replaces the status line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        erase_status()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:  # Any: the attributes of a stream
        return getattr(self._stream, name)


_covered: list[TextIO] = []  # the terminal, while it shows a status line


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if a standard stream is open, and a terminal that can interpret escape sequences."""
    return stream is not None and stream.isatty() and interprets_escapes(stream)


def show_status(text: str) -> None:
    """Show a status line in a terminal until something else is printed; call it before a slow import."""
    erase_status()
    terminal = sys.stderr
    if not is_terminal(terminal) or os.environ.get("TERM") == "dumb":
        return
    with suppress(OSError):
        columns = os.get_terminal_size(terminal.fileno()).columns or 80
        terminal.write(printable(text)[: columns - 1])  # a longer line could not be erased
        terminal.flush()
        _covered[:] = [terminal]
        sys.stderr = cast("TextIO", _Erasing(terminal))


def erase_status() -> None:
    """Erase the status line, if there is one."""
    while _covered:
        terminal = _covered.pop()
        sys.stderr = terminal
        with suppress(OSError):
            terminal.write(_ERASE)
            terminal.flush()


@contextmanager
def results_only() -> Iterator[None]:
    """Reserve standard output for the functions below; other prints go to standard error."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def print_line(text: str) -> None:
    """Print a line on standard output; a closed pipe is ignored.

    Raises:
        OutputError: Standard output cannot be written, for instance because the disk is full.
    """
    stream: TextIO | None = _results[-1] if _results else sys.stdout
    erase_status()
    if stream is None:  # closed at the start; `print` would fall back to its replacement
        return
    with _writing_results():
        print(f"{text}\n", end="", flush=True, file=stream)  # one write: a signal may come between two


def print_bytes(data: bytes) -> None:
    """Write bytes to standard output; a closed pipe is ignored.

    Raises:
        OutputError: As in `print_line`.
    """
    erase_status()
    if sys.stdout is None:
        return
    with _writing_results():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def print_json(fields: dict[str, Any]) -> None:
    """Print an object as one line of ASCII JSON."""
    print_line(json.dumps(fields, default=str, allow_nan=False))
    if fields.get("event") == "summary":
        summaries.append(fields["exit_code"])


def print_message(text: str) -> None:
    """Print a line on standard error."""
    with suppress(OSError):  # a closed or full standard error does not end the command
        print(fit(text), file=sys.stderr, flush=True)


def fit(text: str) -> str:
    """Return an error, a hint or a notice as lines for the terminal that is standard error; other texts as they are."""
    if _REMARK.fullmatch(text) and sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError):
            return wrap(text, os.get_terminal_size(sys.stderr.fileno()).columns or len(text))
    return text


def wrap(text: str, columns: int) -> str:
    """Break a text at spaces, except in what a user copies: a line may be longer, and the terminal wraps it.

    Example:
        >>> wrap("hint: choose a layer: `fmapviz layers resnet18` lists them all", 24).splitlines()
        ['hint: choose a layer:', '  `fmapviz layers resnet18`', '  lists them all']
    """
    from rich.cells import cell_len

    lines: list[str] = []
    start = end = 0
    for piece in _WHOLE.finditer(text):
        if end and 2 * bool(lines) + cell_len(text[start : piece.end()]) > columns:
            lines.append(text[start:end])
            start = piece.start()
        end = piece.end()
    return "\n  ".join([*lines, text[start:]])


def print_error(error: FmapvizError) -> None:
    """Print an error with its hint and, if user code failed, its traceback."""
    if error.report:
        print_message(error.report)
    print_message(f"error: {printable(str(error))}")
    if error.hint:
        from fmapviz.cli.options import as_typed

        print_message(f"hint: {printable(as_typed(error.hint))}")


def align(rows: Sequence[Sequence[str]], *, right: AbstractSet[int] = frozenset()) -> list[str]:
    """Return rows as aligned columns, without a limit of width, so that `grep` and `cut` work.

    Args:
        rows: The cells of each row, safe to show.
        right: Indices of the columns that are aligned at the right.

    Example:
        >>> align([("run", "images"), ("alexnet", "3")], right={1})
        ['run      images', 'alexnet       3']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) if column in right else cell.ljust(width)
                  for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip


@contextmanager
def _writing_results() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # buffered data would fail again when the interpreter exits
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write to standard output: {error.strerror}") from error
