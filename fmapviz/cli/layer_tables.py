"""Tables of layers: aligned for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, astuple
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from fmapviz.cli.printing import align
from fmapviz.data import LayerInfo
from fmapviz.errors import RequestError, printable, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fmapviz.observe.receptive_field import ReceptiveField

    Fields = Mapping[str, ReceptiveField] | None  # by the names of layers; None if they are not requested

_HEADER = ("#", "layer", "type", "output", "axes", "parameters", "calls", "MACs")
_FIELD_HEADER = ("field", "stride", "start")
_RIGHT = {0, 5, 6, 7}  # columns of numbers


def plain_table(rows: Iterable[LayerInfo], fields: Fields) -> str:
    """Return a table with aligned columns, and a line for each layer."""
    header, *lines = _cells(rows, fields)
    return "\n".join(align([header, *(list(map(printable, line)) for line in lines)], right=_RIGHT))


def markdown_table(rows: Iterable[LayerInfo], fields: Fields) -> str:
    """Return a table of GitHub's Markdown; names are set as code."""
    header, *lines = _cells(rows, fields, sizes=True)
    rule = ["---:" if column in {*_RIGHT, 8, 9} else "---" for column in range(len(header))]
    shown = ([_as_code(cell) if column in {1, 2, 4} else cell for column, cell in enumerate(line)] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *shown))


def csv_table(rows: Iterable[LayerInfo], fields: Fields) -> str:
    """Return a table of comma-separated values as RFC 4180 has them, with the fields of `LayerInfo` as columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(each.name for each in dataclass_fields(LayerInfo)), *(() if fields is None else _FIELD_HEADER)])
    writer.writerows([*map(_in_csv, astuple(row)), *_cells_of_field(row, fields)] for row in rows)
    return text.getvalue().rstrip("\n")


def json_table(rows: Iterable[LayerInfo], fields: Fields) -> str:
    """Return an array with an object for each layer, one in each line."""
    lines = ",\n".join(f"  {json.dumps(layer_record(row, fields))}" for row in rows)
    return f"[\n{lines}\n]" if lines else "[]"


TABLES: Mapping[str, Callable[[Iterable[LayerInfo], Fields], str]] = {
    "md": markdown_table,
    "csv": csv_table,
    "json": json_table,
}


def check_tables(names: Iterable[str]) -> None:
    """Raise `RequestError` if one is no format of a table."""
    for name in names:
        if name not in TABLES:
            raise RequestError(
                f"no such format of a table: {quote(name)}", hint=suggest(name, TABLES) or f"there are: {', '.join(TABLES)}"
            )


def layer_record(row: LayerInfo, fields: Fields) -> dict[str, Any]:  # Any: JSON values
    """Return a layer as JSON values, with its receptive field if fields are requested."""
    return {**asdict(row), **({} if fields is None else _field_record(fields.get(row.name)))}


def _cells(rows: Iterable[LayerInfo], fields: Fields, *, sizes: bool = False) -> list[tuple[str, ...]]:
    """Return the texts of a table, with its header.

    Args:
        rows: The layers.
        fields: Their receptive fields.
        sizes: Whether there are columns with bytes.
    """
    header = (*_HEADER, *(("parameter bytes", "output bytes") if sizes else ()), *(() if fields is None else _FIELD_HEADER))
    return [header, *((*_cells_of(row, sizes=sizes), *_cells_of_field(row, fields)) for row in rows)]


def _cells_of(row: LayerInfo, *, sizes: bool) -> tuple[str, ...]:
    number, shape = ("-", "not executed") if row.shape is None else (str(row.index), " x ".join(map(str, row.shape)))
    name = f"{row.name} = {', '.join(row.aliases)}" if row.aliases else row.name
    cells = (number, name, row.type, shape, row.layout, _number(row.parameters), str(row.calls), _number(row.macs))
    return (*cells, _number(row.parameter_bytes), _number(row.output_bytes)) if sizes else cells


def _cells_of_field(row: LayerInfo, fields: Fields) -> tuple[str, ...]:
    return () if fields is None else _field_cells(fields.get(row.name))


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _as_code(text: str) -> str:
    r"""Return a code span for a cell of a table.

    Example:
        >>> print(_as_code("a|b"), _as_code("a`b"))
        `a\|b` `` a`b ``
    """
    if not text:
        return ""
    text = printable(text).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest or text.startswith(" ") or text.endswith(" ") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _in_csv(value: object) -> object:
    if isinstance(value, tuple):
        return (" x " if all(isinstance(each, int) for each in value) else ", ").join(printable(str(each)) for each in value)
    return printable(value) if isinstance(value, str) else value


def _field_cells(field: ReceptiveField | None) -> tuple[str, str, str]:
    """Return a field's size, stride and start as text; stride and start are those without gates."""
    if field is None:
        return "", "", ""
    shown = field.ungated or field
    if shown.reason:
        return f"whole picture ({shown.reason})", "", ""
    size = _pair(shown.size, " x ")
    if field.ungated:
        size = f"{'whole picture' if field.is_whole else _pair(field.size, ' x ')}, {size} ungated"
    return size, _pair(shown.stride, " x ") if shown.stride else "irregular", _pair(shown.start, ", ")


def _pair(numbers: Sequence[int], between: str) -> str:
    return between.join(map(str, numbers))


def _field_record(field: ReceptiveField | None) -> dict[str, Any]:
    """Return a field as JSON values; `receptive_field` is None where it is unknown."""
    if field is None or field.reason:
        record: dict[str, Any] = {"receptive_field": None, "reason": field.reason if field else "not executed"}
    else:
        record = {"receptive_field": {"size": field.size, "stride": field.stride, "start": field.start}, "reason": ""}
    if field and field.ungated:
        record["ungated"] = _field_record(field.ungated)["receptive_field"]
    return record
