"""Statistics of the channels of many images in one Parquet file: a row for each channel of each feature map."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fmapviz import files
from fmapviz.statistics import LayerStatistics, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FILE = "stats.parquet"

_SCHEMA = pa.schema(
    [
        ("map", pa.int32()),  # which feature map, in the order of execution
        ("layer", pa.string()),
        ("of", pa.string()),
        ("target", pa.string()),
        ("type", pa.string()),
        ("channel", pa.int32()),
        ("images", pa.int64()),
        ("values", pa.int64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("scatter", pa.float64()),  # sum of squared distances from the mean: what deviations are put together of
        ("zeros", pa.int64()),
        ("nonfinite", pa.int64()),
        ("dead", pa.bool_()),
        ("single", pa.bool_()),  # whether each image has one value only
    ]
)
_COLUMNS = {"low": "min", "high": "max", "mean": "mean", "scatter": "scatter", "zeros": "zeros", "nonfinite": "nonfinite"}


def write(directory: Path, layers: Sequence[LayerStatistics], *, images: int) -> None:
    """Write what is known of some images.

    Raises:
        OSError: The disk is full, say, or the file is there already.
    """
    schema = _SCHEMA.with_metadata({"images": str(images)})
    table = pa.concat_tables([_table(number, each) for number, each in enumerate(layers)] or [_SCHEMA.empty_table()])
    with files.create(directory / FILE) as file:
        parquet.write_table(table.cast(schema), file, compression="zstd")


def read(directory: Path) -> tuple[int, list[LayerStatistics]]:
    """Read what is known of some images: of how many, and of each feature map, in the order of execution.

    Raises:
        OSError: There is no such file, or it is damaged.
        KeyError, TypeError, ValueError, OverflowError: It is not what `write` writes.
    """
    with parquet.ParquetFile(directory / FILE) as file:
        table = file.read()
    rows = table.to_pydict()
    if set(rows) != set(_SCHEMA.names):
        raise ValueError(rows.keys())
    images = int(table.schema.metadata[b"images"])
    ends = [len(list(group)) for _, group in groupby(rows["map"])]
    begins = np.cumsum([0, *ends]).tolist()
    return images, [_layer(rows, begin, begin + count) for begin, count in zip(begins, ends, strict=False)]


def gather(units: Iterable[Path]) -> tuple[int, list[list[LayerStatistics]], list[Path]]:
    """Read what is known of many shards' images, each in the order of execution.

    Returns:
        The number of images, what is known of each shard's, and the shards that were left out because that is damaged.
    """
    images, parts, left_out = 0, [], []
    for unit in units:
        try:
            count, layers = read(unit)
        except (OSError, KeyError, TypeError, ValueError, OverflowError):
            left_out.append(unit)
            continue
        images += count
        parts.append(layers)
    return images, parts, left_out


def _table(number: int, each: LayerStatistics) -> pa.Table:
    place = each.place
    same = {
        "map": number,
        "layer": place.layer.encode("utf-8", "backslashreplace").decode(),
        "of": place.of,
        "target": place.target,
        "type": place.type,
        "images": each.images,
        "values": each.values,
        "single": each.single,
    }
    dead = np.zeros(place.channels, np.bool_)
    dead[each.flat] = True
    columns: dict[str, Any] = {name: [value] * place.channels for name, value in same.items()}
    columns |= {column: getattr(each, field) for field, column in _COLUMNS.items()}
    columns |= {"channel": range(place.channels), "std": each.deviation, "dead": dead}
    return pa.table(columns, schema=_SCHEMA)


# Any: columns hold values of all kinds.
def _layer(rows: dict[str, list[Any]], begin: int, end: int) -> LayerStatistics:
    own = slice(begin, end)
    one = itemgetter(begin)
    low, high, mean, scatter = (np.array(rows[name][own], np.float64) for name in ("min", "max", "mean", "scatter"))
    zeros, nonfinite = (np.array(rows[name][own], np.int64) for name in ("zeros", "nonfinite"))
    record = {name: one(rows[name]) for name in ("layer", "of", "target", "type")}
    return LayerStatistics(
        place=place_of({**record, "channels": end - begin}),
        images=one(rows["images"]),
        values=one(rows["values"]),
        low=low,
        high=high,
        mean=mean,
        scatter=scatter,
        zeros=zeros,
        nonfinite=nonfinite,
        dead=np.array(rows["dead"][own], np.bool_),
        single=one(rows["single"]),
    )
