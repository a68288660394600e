"""Open a page in the browser of whoever sits before the screen, if there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TEXT_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")  # they would take the terminal over


def open_page(page: Path) -> bool:
    """Show a page; tell whether a browser could be asked to."""
    if not has_display():
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return getattr(browser, "name", "") not in _TEXT_BROWSERS and browser.open(page.absolute().as_uri())


def has_display() -> bool:
    """Tell whether somebody would see a window."""
    if sys.platform in {"win32", "darwin"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
