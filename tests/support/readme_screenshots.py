"""Pictures of the report and of TensorBoard's page, taken in the browser of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chromium import NAMES, find_browser
from PIL import Image
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page


def take_report(page: Path, state: str, target: Path) -> None:
    """Open a report in a state, the part of its address behind the number sign."""
    with open_tab(width=1200, height=740, scale=1.5) as tab:
        tab.goto(f"{page.absolute().as_uri()}#{state}")
        tab.wait_for_timeout(1000)
        tab.screenshot(path=target)
    Image.open(target).convert("RGB").save(target, optimize=True)


def take_tensorboard(directory: Path, target: Path) -> None:
    """Show `runs` of a directory in TensorBoard, and wait until its images are there."""
    with serve_tensorboard(directory) as address, open_tab(width=1050, height=1165) as tab:
        tab.goto(f"{address}#images")
        tab.locator("tf-image-loader img").nth(3).wait_for()
        tab.wait_for_load_state("networkidle")
        tab.wait_for_timeout(1000)
        tab.screenshot(path=target, type="jpeg", quality=80)


@contextmanager
def serve_tensorboard(directory: Path) -> Iterator[str]:
    """Start TensorBoard on a free port, and yield its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", "0", "--load_fast", "false"]
    with subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield next(found.group() for found in map(re.compile(r"http://\S+").search, server.stderr) if found)
        finally:
            server.terminate()


@contextmanager
def open_tab(*, width: int, height: int, scale: float = 1) -> Iterator[Page]:
    """Open an empty page in a browser without a window."""
    executable, arguments = find_browser()
    if executable is None:
        sys.exit(f"no browser: none of {', '.join(NAMES)} is in PATH")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=executable, args=arguments) as browser:
        size = {"width": width, "height": height}
        yield browser.new_page(viewport=size, color_scheme="light", device_scale_factor=scale)
