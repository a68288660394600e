"""Show results in a notebook, as HTML with escaped texts, and the progress of a run."""

from __future__ import annotations

import io
import os
import sys
import time
import warnings
from base64 import b64encode
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fmapviz.core import files
from fmapviz.core.urls import UrlPath
from fmapviz.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

_SECONDS = 0.2  # between two updates of a bar
_MOST, _SIDE = 6, 220  # pictures of an image, and the longer side of each, pixels
_MOST_PIXELS = 50_000_000  # of a picture that is reduced: the largest takes a second


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


def gallery(title: str, pictures: Sequence[Path]) -> str:
    """Return some of the pictures of an image, evenly spread from the first to the last, reduced and embedded.

    Files that cannot be read, and very large ones, are left out; how many is said.
    """
    count = min(_MOST, len(pictures))
    chosen = [pictures[position * (len(pictures) - 1) // max(1, count - 1)] for position in range(count)]
    shown = [shown for picture in chosen if (shown := _embed(picture))]
    if not shown:
        return ""
    left_out = f", {len(shown)} of {counted(len(pictures), 'picture')}" if len(shown) < len(pictures) else ""
    return f"<div>{text(title)}{left_out}</div><div>{''.join(shown)}</div>"


def _embed(picture: Path) -> str:
    """Return a picture with its name; empty if it cannot be read."""
    from PIL import Image  # noqa: PLC0415  only in a notebook

    reduced = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(files.read(picture)))
        if opened.width * opened.height > _MOST_PIXELS:
            return ""
        opened.thumbnail((_SIDE, _SIDE))
        opened.save(reduced, "PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # Pillow's errors for a damaged file
        return ""
    source = f"data:image/png;base64,{b64encode(reduced.getvalue()).decode()}"
    name = text(picture.stem)
    style = "display:inline-block;vertical-align:top;margin:0 8px 8px 0;font-size:80%"
    return f'<div style="{style}"><img src="{source}" alt="{name}"><br>{name}</div>'


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
        unit: The counted noun.
    """

    def __init__(self, display: Callable[..., Any], unit: str) -> None:
        self.total: int | None = None
        self._unit = unit
        self._begun = self._shown = time.monotonic()
        self._done = 0
        self._handle = display(self, display_id=True)

    def advance(self, count: int = 1) -> None:
        """Advance the bar."""
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
