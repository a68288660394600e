"""Recognize addresses of remote files, `s3://bucket/key`, and take them apart."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeGuard
from urllib.parse import urlsplit

from fmapviz.errors import RequestError, quote

# Other text with `://`, such as `nope://x`, may be the name of a local file.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")
INSTALL = "pip install 'fmapviz[remote]'"  # obstore, which reads and writes them
HINT = f"a local path, or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"

_HOLDERS = dict.fromkeys(("az", "abfs", "abfss"), "container")  # of objects, where it is no bucket
_URL = re.compile(rf"({'|'.join(SCHEMES)})://", re.IGNORECASE)


def is_path(text: object) -> TypeGuard[str]:
    r"""Return True for text that can be a path.

    Example:
        >>> is_path("a/b"), is_path("a\0b"), is_path("\ud800"), is_path(7)
        (True, False, False, False)
    """
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_url(text: object) -> bool:
    """Return True for the address of a remote file.

    Example:
        >>> is_url("s3://photos/lena.png"), is_url("photos/lena.png"), is_url("C://photos")
        (True, False, False)
    """
    return isinstance(text, str) and _URL.match(text) is not None


def is_unknown(text: object) -> bool:
    """Return True for what looks like an address, but has an unsupported scheme.

    Example:
        >>> is_unknown("s4://photos"), is_unknown("s3://photos"), is_unknown("photos/lena.png"), is_unknown("C://photos")
        (True, False, False, False)
    """
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None and not is_url(text)


def is_web(url: str) -> bool:
    """Return True for an address of the web, which cannot be listed."""
    return url.lower().startswith(("http://", "https://"))


def check_address(text: object) -> None:
    """Check that an address names a bucket, a container or a host; all other text, such as a path, passes.

    Raises:
        RequestError: The address is incomplete.

    Example:
        >>> check_address("s3://photos"), check_address("photos/lena.png")
        (None, None)
    """
    if not isinstance(text, str) or not is_url(text):
        return
    scheme, _, rest = text.partition("://")
    try:
        host = urlsplit(text).hostname  # also of `container@account`
    except ValueError:  # such as an unclosed bracket
        host = None
    bucket = rest.partition("/")[0]
    if host and bucket == bucket.strip() and "\\" not in bucket:
        return
    kind, example = ("host", "example.org/photo.jpg") if is_web(text) else (_HOLDERS.get(scheme.lower(), "bucket"), None)
    hint = f"{scheme}://{example or f'{kind.upper()}/FOLDER'}"
    raise RequestError(f"the address names no {kind}: {quote(text)}", hint=hint)


def split(url: str) -> tuple[str, str]:
    """Return the address of the bucket, and the path in it.

    Example:
        >>> split("s3://photos/cats/lena.png")
        ('s3://photos', 'cats/lena.png')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path.strip("/")


def join(url: str, *names: str) -> str:
    """Append names to an address.

    Example:
        >>> join("s3://photos/", "cats", "lena.png")
        's3://photos/cats/lena.png'
    """
    return "/".join((url.rstrip("/"), *names))


class UrlPath(type(Path())):  # type: ignore[misc]  # a PosixPath or a WindowsPath
    """An address with the interface of a path, for messages and joining; no local file has this name.

    Example:
        >>> str(UrlPath("s3://photos/runs") / "alexnet")
        's3://photos/runs/alexnet'
    """

    def __str__(self) -> str:
        path: str = super().__str__()
        return path.replace("\\", "/").replace(":/", "://", 1)

    def __fspath__(self) -> str:
        return str(self)


def expand_home(path: str | Path) -> str | Path:
    """Return a path with a leading `~/`, which no shell has replaced, as the home directory; any other as it is.

    Example:
        >>> expand_home("~a/b"), expand_home("s3://photos")
        ('~a/b', 's3://photos')
    """
    return Path(os.path.expanduser(path)) if str(path).startswith("~/") else path
