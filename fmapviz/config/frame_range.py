"""Parse a range of frames of a film, `A:B`."""

from __future__ import annotations

import re

from fmapviz.errors import RequestError, quote

_FORMS = "A:B, from frame A to before frame B, counted from 0; one of them may be left out, such as 0:100 or 50:"


def parse_frames(text: str) -> tuple[int, int | None]:
    """Return the number of the first frame, and that of the frame after the last one; None is the end of the film.

    Raises:
        RequestError: The text has another form, or the range is empty.

    Example:
        >>> parse_frames("50:100"), parse_frames(":100"), parse_frames("50:")
        ((50, 100), (0, 100), (50, None))
    """
    match = re.fullmatch(r"(\d{0,9}):(\d{0,9})", text.strip())
    start, stop = (int(match[1] or 0), int(match[2]) if match[2] else None) if match else (0, 0)
    if stop is not None and stop <= start:
        raise RequestError(f"no such frames: {quote(text)}", hint=_FORMS)
    return start, stop
