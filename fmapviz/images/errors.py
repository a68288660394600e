"""Limits on image files, and the errors of reading them."""

from __future__ import annotations

import errno

from PIL import Image as PillowImage

from fmapviz.core.errors import InputError, printable, quote
from fmapviz.core.object_store import INSTALL
from fmapviz.core.urls import is_url

MAX_PIXELS = 89_478_485  # where Pillow begins to warn: 256 MiB of RGB
MAX_VALUES = 3 * MAX_PIXELS


def explain(error: Exception, path: str) -> InputError:
    """Return the `InputError` for any error between a file and its pixels."""
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return InputError("E_DECODE", f"image is damaged (refers to data outside the file): {quote(path)}")
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return InputError("E_TOO_LARGE", f"not enough memory: {quote(path)}")
    if isinstance(error, OSError) and error.errno:
        return system_error(error, path)
    if isinstance(error, PillowImage.DecompressionBombError):
        return InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels: {quote(path)}")
    if isinstance(error, ValueError) and "MAX_TEXT_" in str(error):  # Pillow's limits have no exception of their own
        return InputError("E_TOO_LARGE", f"more than a megabyte of text around the pixels: {quote(path)}")
    reason = printable(str(error).partition("\n")[0]) or type(error).__name__
    return InputError("E_DECODE", f"image is damaged ({reason}): {quote(path)}")


def system_error(error: OSError, path: str) -> InputError:
    """Return the `InputError` for an error of the operating system.

    Example:
        >>> system_error(FileNotFoundError(2, "No such file or directory"), "lena.png").code
        'E_MISSING'
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError("E_MISSING", f"no such file: {quote(path)}")
    if isinstance(error, PermissionError):
        return InputError("E_PERM", f"no permission to read: {quote(path)}")
    if isinstance(error, IsADirectoryError) or error.errno == errno.ENXIO:  # ENXIO: a socket
        return InputError("E_TYPE", f"not a regular file: {quote(path)}")
    hint = INSTALL if error.errno == errno.ENOSYS and is_url(path) else None
    return InputError("E_READ", f"cannot be read ({error.strerror}): {quote(path)}", hint=hint)


def wrong_channels(found: str, path: str, *, channels: int) -> InputError:
    """Return the error for a file with another number of channels than the model takes."""
    expected = "1 channel" if channels == 1 else f"{channels} channels"
    message = f"the model takes {expected}, this is {found}: {quote(path)}"
    hint = f"{'a picture, or ' if channels in {1, 3} else ''}a .npy or .tif file with {expected}"
    return InputError("E_CHANNELS", message, hint=hint)
