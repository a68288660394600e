"""The index of a shard, a Parquet file: a row for each picture and each feature map of each image."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fmapviz.core import files
from fmapviz.core.drawings import HeatMap
from fmapviz.core.file_names import INDEX_FILE
from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.data import Drawing, Failure, ImageFile, LayerResult, Picture, StoredAt, UnitImage

_ROWS = 65_536  # in a row group

SCHEMA = pa.schema(
    [
        ("key", pa.int64()),  # number of the image, unique in the run
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


class Index:
    """An index that is being written."""

    def __init__(self, writer: parquet.ParquetWriter) -> None:
        self._writer = writer
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}

    def add(self, image: UnitImage, pictures: Sequence[Picture], stored: Sequence[StoredAt]) -> None:
        """Add an image.

        Args:
            image: The image and its results.
            pictures: Its pictures; feature maps without pictures get rows as well.
            stored: Position of each picture; empty if no file holds them.
        """
        common = _image(image.key, image.name, image.path)
        if image.result.predictions:
            first = image.result.predictions[0]
            common |= {"prediction": printable(first.name), "score": first.score}
        shown = set()
        for number, picture in enumerate(pictures):
            shown.add(id(picture.drawing))
            place = stored[number] if stored else None
            self._append(
                {
                    **common,
                    "view": picture.group,
                    **(_describe(picture.layer, picture.drawing) if picture.layer else {}),
                    "width": picture.width,
                    "height": picture.height,
                    **({"file": place.file, "offset": place.offset, "bytes": len(picture.png)} if place else {}),
                }
            )
        for layer in image.result.layers:
            for drawing in layer.drawings:
                if id(drawing) not in shown:
                    self._append({**common, "view": drawing.view, **_describe(layer, drawing)})
            if layer.statistics and all(isinstance(drawing.content, HeatMap) for drawing in layer.drawings):
                self._append({**common, "view": "", **_describe(layer, None)})
        if len(self._columns["key"]) >= _ROWS:
            self.flush()

    def add_failure(self, key: int, file: ImageFile, failure: Failure) -> None:
        """Add an image that could not be drawn."""
        self._append({**_image(key, file.unit, file.path), "error": failure.code})

    def flush(self) -> None:
        """Write the pending rows as a row group."""
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
        OSError: The disk is full, for example.
    """
    with files.create(directory / INDEX_FILE) as file, parquet.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        index = Index(writer)
        yield index
        index.flush()


def _image(key: int, name: str, path: str) -> dict[str, Any]:
    return {"key": key, "image": printable(name), "path": printable(path)}


def _describe(layer: LayerResult, drawing: Drawing | None) -> dict[str, Any]:
    """Return the columns about a feature map: those of its own range for a heat map."""
    columns = {
        "layer": printable(layer.layer),
        "index": layer.index,
        "type": printable(layer.type),
        "shape": list(layer.shape),
        "target": layer.target.label if layer.target else None,
        "class": printable(layer.target.title) if layer.target else None,
    }
    if drawing and isinstance(drawing.content, HeatMap):
        raw = drawing.content.raw
        finite = raw[np.isfinite(raw)]
        return {**columns, "min": float(finite.min()), "max": float(finite.max())} if finite.size else columns
    statistics = layer.statistics
    if statistics is None:
        return columns
    return {
        **columns,
        "of": layer.of,
        "min": statistics.minimum,
        "max": statistics.maximum,
        "mean": statistics.mean,
        "nonfinite": statistics.nonfinite,
        "dead": len(statistics.constant),
    }
