"""Notices that many images of a run share: each image records them, but they are reported once."""

from __future__ import annotations

TRANSPARENT = "transparent pixels are laid over black"
NONFINITE = "values that are NaN or infinite"


def of_repeated(frames: int) -> str:
    """Return the notice on a picture for a network that takes clips."""
    return f"a picture is repeated to a clip of {frames} frames"


def is_reported_once(notice: str) -> bool:
    """Return True for a notice that is reported once for all images.

    Example:
        >>> is_reported_once(TRANSPARENT), is_reported_once(of_repeated(16)), is_reported_once("EXIF data is damaged")
        (True, True, False)
    """
    return notice.startswith((TRANSPARENT, NONFINITE, of_repeated(0).partition("0")[0]))
