"""Show results in a notebook: as HTML in which every text is escaped, and progress while a run goes on."""

from __future__ import annotations

import os
import sys
import time
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fmapviz.core.urls import UrlPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_SECONDS = 0.2  # between two updates of a bar


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns.

    Args:
        rows: A label, and a cell that is HTML already.

    Example:
        >>> table([("images", text("<b>"))])
        '<table><tr><th style="text-align:left">images</th><td style="text-align:left">&lt;b&gt;</td></tr></table>'
    """
    left = 'style="text-align:left"'
    lines = (f"<tr><th {left}>{escape(label)}</th><td {left}>{cell}</td></tr>" for label, cell in rows)
    return f"<table>{''.join(lines)}</table>"


def text(value: object) -> str:
    """Return a text as HTML."""
    return escape(str(value).encode("utf-8", "replace").decode())


def link(path: Path) -> str:
    """Return a link to a local file or directory, relative if it is below the working directory; of an address its text."""
    if isinstance(path, UrlPath):
        return text(path)
    absolute = os.fsencode(path.absolute())
    below = os.path.relpath(absolute)
    is_below = not below.startswith(b"..")
    target = quote(below) if is_below else f"file://{quote(absolute)}"
    return f'<a href="{escape(target)}" target="_blank">{text(path)}</a>'


class Bar:
    """A progress bar in the output of a notebook's cell.

    rich needs ipywidgets to redraw a bar in a notebook, and so does tqdm; a display that IPython updates needs nothing.

    Args:
        display: `IPython.display.display`.
        unit: What is counted.
    """

    def __init__(self, display: Callable[..., Any], unit: str) -> None:
        self.total: int | None = None
        self._unit = unit
        self._begun = self._shown = time.monotonic()
        self._done = 0
        self._handle = display(self, display_id=True)

    def advance(self, count: int = 1) -> None:
        """Add what is done."""
        self._done += count
        if time.monotonic() >= self._shown + _SECONDS:
            self.show()

    def show(self) -> None:
        """Show the current number."""
        self._shown = time.monotonic()
        self._handle.update(self)

    def __repr__(self) -> str:
        """Return the number that is done, where HTML is not shown."""
        total = "" if self.total is None else f" of {self.total}"
        return f"{self._done}{total} {self._unit}, {time.monotonic() - self._begun:.0f} s"

    def _repr_html_(self) -> str:
        share = "" if self.total is None else f' value="{self._done}" max="{max(1, self.total)}"'
        return f"<progress{share}></progress> {escape(repr(self))}"


def make_bar(unit: str) -> Bar | None:
    """Show a progress bar if this process is the kernel of a notebook; nothing is imported if it is not."""
    find_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if find_shell is None or getattr(find_shell(), "kernel", None) is None:
        return None
    return Bar(import_module("IPython.display").display, unit)
