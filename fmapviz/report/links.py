"""Write a relative path as a web page refers to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import PurePath


def link(path: PurePath) -> str:
    """Escape whatever has a meaning in addresses, byte for byte as the file system has it.

    Example:
        >>> from pathlib import PurePosixPath
        >>> link(PurePosixPath("a b/50%#1?.png"))
        'a%20b/50%25%231%3F.png'
    """
    return "/".join(quote(os.fsencode(part), safe="") for part in path.parts)
