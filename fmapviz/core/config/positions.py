"""Positions in the network's input, as they are typed: `Y,X`."""

from __future__ import annotations

import re

from fmapviz.core.errors import RequestError, quote


def parse_position(text: str) -> tuple[int, int]:
    """Return row and column of a pixel of the network's input, counted from 0 at the top left.

    Raises:
        RequestError: The text is not of the form `Y,X`.

    Example:
        >>> parse_position("112,80")
        (112, 80)
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*", text)
    if not match:
        raise RequestError(
            f"no such position: {quote(text)}", hint="Y,X: row and column in the input's pixels, such as 112,80"
        )
    return int(match[1]), int(match[2])
