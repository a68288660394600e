"""Find out which protocol of pictures a terminal speaks, and how many pixels it has.

The terminal is asked. Variables such as TERM_PROGRAM say which terminal set them, which may be another one: they are
inherited through ssh, tmux and sudo. They count only where no terminal can be asked.

A terminal multiplexer shows graphics of its own only: tmux takes the question of kitty for a title of its window.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fmapviz.core.platforms import CONTROLS_TERMINALS, ask_terminal, terminal_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Graphics:
    """What a terminal can show.

    Attributes:
        protocol: In which pictures are written.
        colors: Number of colours of a picture in sixels.
    """

    protocol: Literal["kitty", "iterm2", "sixel"]
    colors: int = 256


TIMEOUT_SECONDS = 2.0  # a terminal answers in milliseconds, through a slow network in some hundred
_CELL = 10, 20  # width and height of a character in pixels, of a terminal that does not say it
_LEAST, _MOST = 64, 4096  # pixels; a terminal may say anything

# https://sw.kovidgoyal.net/kitty/graphics-protocol/#querying-support-and-available-transmission-mediums
_KITTY, _HAS_KITTY = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\", re.compile(rb"\x1b_Gi=31;OK\x1b\\")
# https://invisible-island.net/xterm/ctlseqs/ctlseqs.html: XTVERSION, XTSMGRAPHICS (a VT340 has 16 colours), DA1
_NAME, _OF_ITERM2 = b"\x1b[>0q", re.compile(rb"\x1bP>\|(?:iTerm2|WezTerm|mintty)\b")
_COLORS, _HAS_COLORS = b"\x1b[?1;1;0S", re.compile(rb"\x1b\[\?1;0;(\d{1,9})S")
_ATTRIBUTES, _ATTRIBUTED = b"\x1b[c", re.compile(rb"\x1b\[\?([\d;]*)c")  # every terminal answers this, so it is last
_SIXEL = b"4"


def find_graphics(descriptor: int, *, environment: Mapping[str, str] = os.environ) -> Graphics | None:
    """Return what a terminal can show; None if it shows no pictures.

    Nothing is asked if a key was pressed before: the answer could not be read without that key, which is for the program
    that runs next.

    Args:
        descriptor: Of the terminal that shows the pictures.
        environment: Variables.
    """
    kind = environment.get("TERM", "" if CONTROLS_TERMINALS else "windows")
    if kind in {"", "dumb", "linux"}:  # the console of Linux shows what it does not understand
        return None
    multiplexed = kind.startswith(("screen", "tmux")) or "TMUX" in environment
    question = _ATTRIBUTES if multiplexed else _KITTY + _NAME + _COLORS + _ATTRIBUTES
    answer = ask_terminal(descriptor, question, answered=_ATTRIBUTED, seconds=TIMEOUT_SECONDS)
    if answer is None:
        return None if multiplexed else _graphics_named(environment)
    return _graphics_in(answer)


def window_pixels(descriptor: int) -> tuple[int, int]:
    """Return the width of a terminal, and the height that pictures may take in it, in pixels."""
    columns, rows = shutil.get_terminal_size()
    rows, columns, width, height = terminal_size(descriptor) or (rows, columns, 0, 0)
    if not (width and height and rows):
        rows, width, height = rows or 24, (columns or 80) * _CELL[0], (rows or 24) * _CELL[1]
    height = height * (rows - 3) // rows  # with its caption and the prompt
    return min(max(width, _LEAST), _MOST), min(max(height, _LEAST), _MOST)


def _graphics_in(answer: bytes) -> Graphics | None:
    """Return what a terminal can show that gave an answer, which may be anything."""
    attributes = _ATTRIBUTED.search(answer)
    if attributes and _HAS_KITTY.search(answer):
        return Graphics("kitty")
    if attributes and _OF_ITERM2.search(answer):
        return Graphics("iterm2")
    if not attributes or _SIXEL not in attributes[1].split(b";"):
        return None
    colors = _HAS_COLORS.search(answer)
    return Graphics("sixel", min(max(int(colors[1]), 2), 256) if colors else 256)


def _graphics_named(environment: Mapping[str, str]) -> Graphics | None:
    """Return what the terminal shows that set the variables."""
    program = environment.get("TERM_PROGRAM", "")
    if environment.get("TERM") in {"xterm-kitty", "xterm-ghostty"} or "KITTY_WINDOW_ID" in environment:
        return Graphics("kitty")
    if program in {"iTerm.app", "WezTerm", "vscode", "mintty"} or environment.get("LC_TERMINAL") == "iTerm2":
        return Graphics("iterm2")
    return None
