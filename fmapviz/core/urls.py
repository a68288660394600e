"""Tell addresses of files elsewhere, `s3://bucket/key`, from paths on this machine."""

from __future__ import annotations

import re
from pathlib import Path

# Of what fsspec knows, what holds files elsewhere. A file that is called `nope://x` on this machine stays one.
SCHEMES = (
    *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "http", "https"),
    *("sftp", "ssh", "smb", "ftp", "hdfs", "webhdfs", "memory"),
)

_URL = re.compile(rf"({'|'.join(SCHEMES)})://", re.IGNORECASE)


def is_url(text: object) -> bool:
    """Tell whether this is the address of something elsewhere.

    Example:
        >>> is_url("s3://photos/lena.png"), is_url("photos/lena.png"), is_url("C://photos")
        (True, False, False)
    """
    return isinstance(text, str) and _URL.match(text) is not None


def is_unknown(text: object) -> bool:
    """Tell whether this looks like an address, of a kind that is none of these.

    Example:
        >>> is_unknown("s4://photos"), is_unknown("s3://photos"), is_unknown("photos/lena.png"), is_unknown("C://photos")
        (True, False, False, False)
    """
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None and not is_url(text)


def scheme_of(url: str) -> str:
    """Give what an address begins with.

    Example:
        >>> scheme_of("S3://photos/lena.png")
        's3'
    """
    return url.partition("://")[0].lower()


def root_of(url: str) -> str:
    """Give the place that everything of an address is in: the bucket, the host.

    Example:
        >>> root_of("s3://photos/cats/lena.png")
        's3://photos'
    """
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def join(url: str, *names: str) -> str:
    """Give the address of something below another one.

    Example:
        >>> join("s3://photos/", "cats", "lena.png")
        's3://photos/cats/lena.png'
    """
    return "/".join((url.rstrip("/"), *names))


class UrlPath(type(Path())):  # type: ignore[misc]  # a PosixPath or a WindowsPath
    """An address in the shape of a path, to tell and to join; a disk has nothing of that name.

    Example:
        >>> str(UrlPath("s3://photos/runs") / "alexnet")
        's3://photos/runs/alexnet'
    """

    def __str__(self) -> str:
        path: str = super().__str__()
        return path.replace("\\", "/").replace(":/", "://", 1)

    def __fspath__(self) -> str:
        return str(self)
