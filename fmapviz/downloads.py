"""Fetch a weights file into torch's cache, or say soon that it cannot be had."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

from torch import hub

from fmapviz.errors import WeightsError, quote

# An unreachable server must be known within ten seconds of the command, importing torch included.
PATIENCE_SECONDS = 5.0


def fetch(url: str) -> Path:
    """Give the cached copy of a weights file, downloading it if need be.

    Args:
        url: `http:`, `https:` or `file:`. A name that ends in `-` and hexadecimal digits, as torchvision's do, is checked
            against the SHA-256 of what was received.

    Returns:
        A file in `torch.hub.get_dir()`'s `checkpoints`.

    Raises:
        WeightsError: Not in the cache and not to be had, or not what its name promises.
    """
    name = Path(urlparse(url).path).name
    if not name:
        raise WeightsError(f"the URL names no file: {quote(url)}")
    cached = Path(hub.get_dir()) / "checkpoints" / name
    if cached.exists():
        return cached
    reason = _unreachable(url)
    if reason is None:
        reason = _download(url, cached)
    if reason is None:
        return cached
    raise WeightsError(
        f"cannot download {quote(url)}: {reason}",
        hint=f"put the file at {quote(cached)}, or give --weights FILE, or --weights random",
    )


def _unreachable(url: str) -> str | None:
    """Try to open a URL, and give the reason if that fails or takes too long.

    In a thread, because looking a name up cannot be timed out otherwise.
    """
    reasons = [f"no answer within {PATIENCE_SECONDS:g} s"]

    def attempt() -> None:
        reasons.append(_open(url))

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return reasons[-1] or None


def _open(url: str) -> str:
    try:
        with urlopen(Request(url, method="HEAD"), timeout=PATIENCE_SECONDS):  # noqa: S310  the user's own URL
            return ""
    except HTTPError as error:
        return "" if error.code == 405 else f"HTTP status {error.code}"  # 405: the server does not know HEAD
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _download(url: str, cached: Path) -> str | None:
    promised = re.search(r"-([a-f0-9]{8,})\.", cached.name)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        hub.download_url_to_file(url, str(cached), promised[1] if promised else None, progress=sys.stderr.isatty())
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash is another one
        return str(error)
    return None
