"""Fetch a weights file into torch's cache, or say soon that it cannot be had."""

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

# An unreachable server must be known within ten seconds of the command, importing torch included.
PATIENCE_SECONDS = 5.0
# How long a download that has begun may bring nothing.
STALL_SECONDS = 60.0
LONGEST_NAME = 200  # bytes; file systems allow 255, and torch adds something while it downloads


def fetch(url: str) -> Path:
    """Give the cached copy of a weights file, downloading it if need be.

    Args:
        url: `http:` or `https:`. A name that ends in `-` and hexadecimal digits, as torchvision's do, is checked against the
            SHA-256 of what was received. Of a `file:` the path is given.

    Returns:
        A file in `torch.hub.get_dir()`'s `checkpoints`, under its own name if that tells its content, otherwise under one
        that tells the URL: files called `model.pth` come from many places.

    Raises:
        WeightsError: Not in the cache and not to be had, or not what its name promises.
    """
    try:
        parts = urlparse(url)
    except ValueError as error:
        raise WeightsError(f"no such URL: {quote(url)}: {error}") from error
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    if parts.username is not None:  # nor would a log keep the password
        message = f"weights cannot be had from {quote(parts.hostname)} with a user name or password in the URL"
        raise WeightsError(message, hint="download the file yourself, and give --weights FILE")
    name = Path(parts.path).name
    if not name:
        raise WeightsError(f"the URL names no file: {quote(url)}")
    if not _promised_digest(name):
        name = f"{Path(name).stem}~{hashlib.sha256(url.encode()).hexdigest()[:8]}{Path(name).suffix}"
    cached = Path(hub.get_dir()) / "checkpoints" / name
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise WeightsError(f"too long a name for a file: {quote(url)}", hint="get it yourself, and give --weights FILE")
    if cached.exists():
        return cached
    reason = unreachable(url)
    if reason is None:
        reason = _download(url, cached)
    if reason is None:
        return cached
    raise refusal(url, reason, f"put the file at {quote(cached)}")


def refusal(url: str, reason: str, way_on: str) -> WeightsError:
    """Say that weights cannot be downloaded, why, and what to do instead."""
    return WeightsError(
        f"cannot download {quote(url)}: {printable(reason.strip())}",
        hint=f"{way_on}, or give --weights FILE, or --weights random",
    )


def unreachable(url: str) -> str | None:
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
        # The same request as for the download: some servers refuse HEAD, or what does not look like torch.
        request = Request(url, headers={"User-Agent": "torch.hub"})  # noqa: S310  the user's own URL
        with urlopen(request, timeout=PATIENCE_SECONDS):  # noqa: S310  as above
            return ""
    except HTTPError as error:
        return f"HTTP status {error.code}"
    except (OSError, ValueError, HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def _download(url: str, cached: Path) -> str | None:
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)  # torch's downloader would wait for ever
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        hub.download_url_to_file(url, str(cached), _promised_digest(cached.name), progress=sys.stderr.isatty())
    except (OSError, ValueError, HTTPException, RuntimeError) as error:  # RuntimeError: the hash is another one
        return str(error) or type(error).__name__
    finally:
        socket.setdefaulttimeout(patience)
    return None


def _promised_digest(name: str) -> str | None:
    match = re.search(r"-([a-f0-9]{8,})\.", name)
    return match[1] if match else None
