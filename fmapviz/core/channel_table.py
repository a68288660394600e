"""Statistics of channels as a table in Python: a list of rows that prints itself, and converts to pandas."""

from __future__ import annotations

from math import isnan
from typing import Any

from fmapviz.errors import RequestError

_SHOWN = ("channel", "min", "max", "mean", "std", "zeros", "nonfinite", "dead")
_MOST, _LAST = 20, 5  # rows that are printed, and how many of them are the last ones


class ChannelTable(list[dict[str, Any]]):  # Any: of each column its own type
    """A row for each channel, a dictionary with the columns of `stats.csv`.

    The columns are `layer_index`, `layer`, `of`, `target`, `type`, `channel`, `images`, `values`, `min`, `max`, `mean`,
    `std`, `zeros`, `nonfinite` and `dead`.
    """

    def to_frame(self) -> Any:  # a pandas.DataFrame
        """Return a DataFrame of pandas, which fmapviz does not install.

        Raises:
            RequestError: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415  an optional package
        except ImportError as error:
            raise RequestError("a DataFrame needs the package pandas", hint="pip install pandas") from error
        return pd.DataFrame(self)

    def __repr__(self) -> str:
        """Return the numbers of each channel in columns; of many the first and the last ones."""
        columns = ("layer", *_SHOWN) if len({row["layer"] for row in self}) > 1 else _SHOWN
        hidden = max(0, len(self) - _MOST)
        rows = self if not hidden else [*self[: _MOST - _LAST], *self[-_LAST:]]
        cells = [columns, *([_text(row[name]) for name in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.rjust, line, widths)) for line in cells]
        if hidden:
            lines.insert(1 + _MOST - _LAST, f"... {hidden} more channels ...")
        first = self[0] if self else {}
        titles = [f"{first['layer']}  {first['type']}"] if len(columns) == len(_SHOWN) and self else []
        return "\n".join([*titles, *lines])


def _text(value: object) -> str:
    """Return a cell as text, numbers with four digits.

    Example:
        >>> _text(0.123456), _text(12), _text(True), _text(float("nan"))
        ('0.1235', '12', 'yes', '-')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "-" if isnan(value) else f"{value:.4g}"
    return str(value)
