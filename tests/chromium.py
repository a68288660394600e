"""Find the browser of this machine."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> tuple[str | None, list[str]]:
    """Give where Chromium or Chrome is, None if nowhere, and the arguments it needs: as root it refuses its own sandbox."""
    return next(filter(None, map(shutil.which, NAMES)), None), ["--no-sandbox"] if os.geteuid() == 0 else []
