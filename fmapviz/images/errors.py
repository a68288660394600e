"""Limits on image files, and the errors of reading them."""

from __future__ import annotations

import errno
from typing import Any

from PIL import Image as PillowImage

from fmapviz.core.urls import INSTALL
from fmapviz.core.words import counted
from fmapviz.errors import InputError, hint_behind, printable, quote

MAX_PIXELS = 89_478_485  # where Pillow begins to warn: 256 MiB of RGB
MAX_VALUES = 3 * MAX_PIXELS


def explain(error: Exception, path: str) -> InputError:
    """Return the `InputError` for any error between a file and its pixels, with the file's name in its message."""
    refusal = error if isinstance(error, InputError) else classify(error)
    return InputError(refusal.code, f"{refusal}: {quote(path)}", hint=refusal.hint)


def classify(error: Exception) -> InputError:
    """Return the `InputError` for an error of a decoder or the system; its message does not name the file."""
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return InputError("E_DECODE", "image is damaged (refers to data outside the file)")
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return InputError("E_TOO_LARGE", "not enough memory")
    if isinstance(error, OSError) and error.errno:
        return system_error(error)
    if isinstance(error, PillowImage.DecompressionBombError):
        return InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels")
    if isinstance(error, ValueError) and "MAX_TEXT_" in str(error):  # Pillow's limits have no exception of their own
        return InputError("E_TOO_LARGE", "more than a megabyte of text around the pixels")
    reason = printable(str(error).partition("\n")[0]) or type(error).__name__
    return InputError("E_DECODE", f"image is damaged ({reason})")


def system_error(error: OSError) -> InputError:
    """Return the `InputError` for an error of the operating system; its message does not name the file.

    Example:
        >>> system_error(FileNotFoundError(2, "No such file or directory")).code
        'E_MISSING'
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError("E_MISSING", "no such file", hint=hint_behind(error))
    if isinstance(error, PermissionError):
        return InputError("E_PERM", "no permission to read", hint=hint_behind(error))
    if isinstance(error, IsADirectoryError) or error.errno == errno.ENXIO:  # ENXIO: a socket
        return InputError("E_TYPE", "not a regular file")
    hint = INSTALL if error.errno == errno.ENOSYS else hint_behind(error)  # obstore is missing
    return InputError("E_READ", f"cannot be read ({error.strerror})", hint=hint)


def require_few_pixels(shown: Any) -> None:  # Any: a picture or a frame of a film
    """Raise `E_TOO_LARGE` if a picture has more than `MAX_PIXELS`."""
    if shown.width * shown.height > MAX_PIXELS:
        raise InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels ({shown.width} x {shown.height})")


def wrong_channels(found: str, *, channels: int, volume: bool = False) -> InputError:
    """Return the error for a file with another number of channels than the model takes."""
    expected = counted(channels, "channel")
    message = f"the model takes {'volumes of ' if volume else ''}{expected}, this is {found}"
    if volume:
        axes = "(D, H, W)" if channels == 1 else f"({channels}, D, H, W)"
        return InputError("E_CHANNELS", message, hint=f"a .npy array {axes}; channels_in= changes the number of channels")
    files = f"{'a picture, or ' if channels in {1, 3} else ''}a .npy or .tif file with {expected}"
    hint = f"{files}; channels_in= if the network makes its channels itself"
    return InputError("E_CHANNELS", message, hint=hint)
