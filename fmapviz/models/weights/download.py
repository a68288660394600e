"""Download a weights file into torch's cache, and fail within seconds if the server does not answer."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import Request, url2pathname, urlopen

from torch import hub

from fmapviz.errors import WeightsError, printable, quote

CONNECT_SECONDS = 5.0  # an unreachable server is reported within ten seconds of the command, importing torch included
STALL_SECONDS = 60.0  # a download may pause this long
LONGEST_NAME = 200  # bytes; file systems allow 255, and torch appends a suffix while it downloads


def fetch(url: str) -> Path:
    """Return the cached copy of a weights file, downloaded if necessary.

    Args:
        url: `http:` or `https:`. A file name that ends in `-` and hexadecimal digits, as torchvision's do, must match the
            SHA-256 of the download. For `file:` the path is returned.

    Returns:
        A file in `torch.hub.get_dir()`'s `checkpoints`. A name without a digest gets a digest of the URL, because many
        servers have a `model.pth`.

    Raises:
        WeightsError: The file is neither cached nor downloadable, or its digest does not match its name.
    """
    try:
        parts = urlparse(url)
    except ValueError as error:
        raise WeightsError(f"no such URL: {quote(url)}: {error}", hint="such as https://example.org/model.pth") from error
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    by_hand = "download the file yourself and pass weights=FILE"
    if parts.username is not None:  # a log must not contain the password
        message = f"cannot download weights from {quote(parts.hostname)} with a user name or password in the URL"
        raise WeightsError(message, hint=by_hand)
    name = Path(parts.path).name
    if not name:
        raise WeightsError(f"the URL names no file: {quote(url)}", hint=by_hand)
    if not _digest_in(name):
        name = f"{Path(name).stem}~{hashlib.sha256(url.encode()).hexdigest()[:8]}{Path(name).suffix}"
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise WeightsError(f"the file name is too long: {quote(url)}", hint=by_hand)
    cached = Path(hub.get_dir()) / "checkpoints" / name
    if os.path.exists(cached):
        return cached
    reason = unreachable(url)
    if reason is None:
        reason = _download(url, cached)
    if reason is None:
        return cached
    raise download_error(url, reason, f"put the file at {quote(cached)}")


def download_error(url: str, reason: str, remedy: str) -> WeightsError:
    """Return the error for a download that failed."""
    return WeightsError(
        f"cannot download {quote(url)}: {printable(reason.strip())}",
        hint=f"{remedy}, or pass weights=FILE or weights='random'",
    )


def unreachable(url: str) -> str | None:
    """Return why a URL cannot be opened, None if it can.

    The attempt runs in a thread because a host name lookup has no timeout.
    """
    reasons = [f"no answer within {CONNECT_SECONDS:g} s"]

    def attempt() -> None:
        try:
            # The same request as the download's: some servers refuse HEAD or unknown clients.
            request = Request(url, headers={"User-Agent": "torch.hub"})  # noqa: S310  the user's own URL
            with urlopen(request, timeout=CONNECT_SECONDS):  # noqa: S310  as above
                reasons.append("")
        except HTTPError as error:
            reasons.append(f"HTTP status {error.code}")
        except (OSError, ValueError, HTTPException) as error:
            reasons.append(str(getattr(error, "reason", error)) or type(error).__name__)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return reasons[-1] or None


def _download(url: str, cached: Path) -> str | None:
    """Download a file; return why it failed, None if it did not."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)  # torch's downloader has no timeout
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        hub.download_url_to_file(url, str(cached), _digest_in(cached.name), progress=sys.stderr.isatty())
    except (OSError, ValueError, HTTPException, RuntimeError) as error:  # RuntimeError: the digest differs
        return str(error) or type(error).__name__
    finally:
        socket.setdefaulttimeout(timeout)
    return None


def _digest_in(name: str) -> str | None:
    match = re.search(r"-([a-f0-9]{8,})\.", name)
    return match[1] if match else None
