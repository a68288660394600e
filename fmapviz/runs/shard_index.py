"""The index of a shard, a Parquet file: a row for each picture and each feature map of each image."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fmapviz import files
from fmapviz.errors import printable
from fmapviz.values import Drawing, HeatMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.values import Failure, ImageFile, Picture, Unit

FILE = "index.parquet"
_ROWS = 65_536  # in a row group

SCHEMA = pa.schema(
    [
        ("key", pa.int64()),  # unlike that of any other image of the run
        ("image", pa.string()),
        ("path", pa.string()),
        ("error", pa.string()),
        ("prediction", pa.string()),
        ("score", pa.float32()),
        ("view", pa.string()),
        ("layer", pa.string()),
        ("index", pa.int32()),
        ("type", pa.string()),
        ("of", pa.string()),
        ("target", pa.string()),
        ("class", pa.string()),
        ("shape", pa.list_(pa.int32())),
        ("min", pa.float32()),
        ("max", pa.float32()),
        ("mean", pa.float32()),
        ("nonfinite", pa.int64()),
        ("dead", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the bytes of a picture lie.

    Attributes:
        file: A file of the shard.
        offset: From its beginning.
    """

    file: str
    offset: int


class Index:
    """An index that is being written."""

    def __init__(self, writer: parquet.ParquetWriter) -> None:
        self._writer = writer
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}

    def add(self, key: int, unit: Unit, pictures: Sequence[Picture], stored: Sequence[Stored]) -> None:
        """Add an image.

        Args:
            key: Its number.
            unit: What is to be said of it.
            pictures: Its pictures; what was looked at without any gets rows all the same.
            stored: Where each picture is; empty if they are nowhere.
        """
        common = _image(key, unit.file)
        if unit.drawn.predictions:
            first = unit.drawn.predictions[0]
            common |= {"prediction": printable(first.name), "score": first.score}
        shown = set()
        for number, picture in enumerate(pictures):
            shown.add(id(picture.source))
            place = stored[number] if stored else None
            self._append(
                {
                    **common,
                    "view": picture.group,
                    **_source(picture.source),
                    "width": picture.width,
                    "height": picture.height,
                    **({"file": place.file, "offset": place.offset, "bytes": len(picture.png)} if place else {}),
                }
            )
        undrawn: tuple[Drawing | HeatMap, ...] = (*unit.drawn.drawings, *unit.drawn.heats)
        for each in undrawn:
            if id(each) not in shown:
                self._append({**common, "view": each.view, **_source(each)})
        if len(self._columns["key"]) >= _ROWS:
            self.flush()

    def add_failure(self, key: int, file: ImageFile, failure: Failure) -> None:
        """Add an image that could not be drawn."""
        self._append({**_image(key, file), "error": failure.code})

    def flush(self) -> None:
        """Write the rows that are waiting, as a row group."""
        self._writer.write_table(pa.table(self._columns, schema=SCHEMA))
        for column in self._columns.values():
            column.clear()

    def _append(self, row: Mapping[str, Any]) -> None:
        for name, column in self._columns.items():
            column.append(row.get(name))


@contextmanager
def create(directory: Path) -> Iterator[Index]:
    """Write the index of a shard, complete when the block ends.

    Raises:
        OSError: The disk is full, say.
    """
    with files.create(directory / FILE) as file, parquet.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        index = Index(writer)
        yield index
        index.flush()


def find(directory: Path, matches: Callable[[Mapping[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    """Give the rows of a shard's index for which something holds.

    Raises:
        OSError: There is none, say, or it is damaged.
    """
    with parquet.ParquetFile(directory / FILE) as table:
        for batch in table.iter_batches():
            yield from filter(matches, batch.to_pylist())


def _image(key: int, file: ImageFile) -> dict[str, Any]:
    return {"key": key, "image": printable(file.unit), "path": printable(file.path)}


def _source(source: Drawing | HeatMap | None) -> dict[str, Any]:
    """Say which feature map something is of, and what that is like."""
    if source is None:
        return {}
    told = {
        "layer": printable(source.layer),
        "index": source.index,
        "type": printable(source.type),
        "shape": list(source.shape),
        "target": source.target.label if source.target else None,
        "class": printable(source.target.title) if source.target else None,
    }
    if isinstance(source, HeatMap):
        finite = source.raw[np.isfinite(source.raw)]
        return {**told, "min": float(finite.min()), "max": float(finite.max())} if finite.size else told
    statistics = source.statistics
    return {
        **told,
        "of": source.of,
        "min": statistics.minimum,
        "max": statistics.maximum,
        "mean": statistics.mean,
        "nonfinite": statistics.nonfinite,
        "dead": len(statistics.constant),
    }
