"""Write rows of CSV files."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def csv_row(cells: Sequence[str]) -> str:
    r"""Return cells as text, quoted where they must be, without the end of the line.

    Example:
        >>> csv_row(["conv", "a,b", "two\nlines"])
        'conv,"a,b","two\nlines"'
    """
    written = io.StringIO()
    csv.writer(written).writerow(cells)  # what ends its lines, "\r\n", it quotes in a cell
    return written.getvalue().removesuffix("\r\n")
