"""The files of units from which a run's images are ranked: the statistics of an image, the ranking of a shard.

The merged statistics of a shard's images no longer show which image a value is from.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fmapviz.core import files
from fmapviz.store.aggregates.channels import FeatureMapInfo
from fmapviz.store.aggregates.ranker import Ranker
from fmapviz.store.aggregates.ranking import BINS, BYS, Ranking, drop_unranked, identity, no_images
from fmapviz.store.aggregates.unit_statistics import DIGEST, IMAGE_FILE, checked_maps, columns_of, load_maps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.data import UnitImage
    from fmapviz.store.aggregates.ranking import By, Floats

TABLE_FILE = "ranking.parquet"
KEPT = 16  # images per channel that a shard's ranking holds
# The statistics of an image that it is ranked by.
COLUMNS: Mapping[By, str] = {"max": "high", "mean": "mean", "min": "low"}


def keeps_ranking(unit: Path) -> bool:
    """Return True for the shard of a run that keeps statistics."""
    return files.exists(unit / TABLE_FILE)


class UnitRanking:
    """Ranks the images of a shard by each value."""

    def __init__(self) -> None:
        self._rankers = {by: Ranker(by, KEPT) for by in BYS}

    def add(self, image: UnitImage) -> None:
        """Add an image."""
        described, columns = columns_of(image.result)
        for by, ranker in self._rankers.items():
            maps, values = _outputs(described, columns[COLUMNS[by]])
            ranker.add(maps, identity(image.name, image.path), _digest(image.input), values)

    def finish(self) -> Iterator[Ranking]:
        """Yield the ranking by each value, and forget it: one takes 61 MB for the channels of ResNet-50."""
        for by in BYS:
            yield self._rankers.pop(by).finish()


def add_image(ranker: Ranker, by: By, directory: Path, name: str) -> None:
    """Add the image of a unit to a ranking.

    Raises:
        OSError, KeyError, TypeError, ValueError, OverflowError: Its statistics are missing or damaged.
    """
    try:
        with safe_open(directory / IMAGE_FILE, framework="numpy") as file:
            described, values = file.metadata()["layers"], file.get_tensor(COLUMNS[by])
            digest = file.get_tensor(DIGEST).tobytes().hex()
    except SafetensorError as error:
        raise ValueError(directory) from error
    maps, values = _outputs(described, values)
    ranker.add(maps, name, _digest(digest), values)


def write_rankings(directory: Path, rankings: Iterable[Ranking]) -> None:
    """Write `ranking.parquet` of a shard: a row per channel of each feature map, for each value that images are ranked by.

    The columns `places` and `scores` hold the first 16 images, as positions among the names in the metadata, and their
    values, negated if they are ranked by the smallest; `bins` and `counts` hold the number of images by their value, see
    `fmapviz.store.aggregates.ranking.bin_edges`.

    Raises:
        OSError: The disk is full, for example, or the file exists.
    """
    import pyarrow as pa  # noqa: PLC0415  only for shards
    from pyarrow import parquet  # noqa: PLC0415

    def encode(ranking: Ranking) -> tuple[By, dict[str, Any], dict[str, Any]]:
        return ranking.by, _describe(ranking), _to_columns(ranking)

    encoded = [*map(encode, rankings)]  # which keeps none of them
    schema = _schema().with_metadata({"rankings": json.dumps({by: described for by, described, _ in encoded})})
    tables = [pa.table(columns, schema=schema) for _, _, columns in encoded]
    with files.create(directory / TABLE_FILE) as file:
        parquet.write_table(pa.concat_tables(tables), file, compression="zstd")


def read_ranking(directory: Path, by: By, k: int) -> Ranking:
    """Read the ranking of a shard's images by one value.

    Args:
        directory: The shard.
        by: The value.
        k: Number of images per channel, at most `KEPT`.

    Raises:
        OSError, KeyError, TypeError, ValueError, OverflowError: The file is missing or damaged.
    """
    import pyarrow.compute as pc  # noqa: PLC0415  only for shards
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(directory / TABLE_FILE, filters=pc.field("by") == by)
    if not table.schema.equals(_schema()):
        raise ValueError(table.schema)
    described = json.loads(table.schema.metadata[b"rankings"])[by]
    maps = checked_maps(FeatureMapInfo(*each) for each in described["feature_maps"])
    digests, inputs = (np.frombuffer(base64.b64decode(described[name]), "<u8") for name in ("digests", "inputs"))
    ranking = no_images(by, KEPT, maps)
    for name in ("worst", "images", "excluded"):
        getattr(ranking, name)[:] = table[name].to_numpy()
    for name in ("places", "scores"):
        rows, values = _from_lists(table[name])
        within = np.arange(len(values)) - np.searchsorted(rows, rows)
        getattr(ranking, name)[rows, within] = values
    rows, bins = _from_lists(table["bins"])
    ranking.counts[rows, bins] = _from_lists(table["counts"])[1]
    names = tuple(map(str, described["names"]))
    if not (len(names) == len(digests) > ranking.places.max(initial=-1)) or ranking.places.min(initial=0) < -1:
        raise ValueError(names)
    scores = np.where(ranking.places < 0, np.float32(np.nan), ranking.scores)
    names, digests, places = drop_unranked(names, digests, ranking.places[:, :k])
    return replace(ranking, k=k, names=names, digests=digests, inputs=inputs, places=places, scores=scores[:, :k].copy())


def _describe(ranking: Ranking) -> dict[str, Any]:
    maps = [[each.layer, each.of, each.target, each.type, each.channels, each.index] for each in ranking.maps]
    texts = {name: base64.b64encode(getattr(ranking, name).astype("<u8")).decode() for name in ("digests", "inputs")}
    return {"feature_maps": maps, "names": ranking.names, **texts}


def _schema() -> Any:  # a pyarrow.Schema
    import pyarrow as pa  # noqa: PLC0415  only for shards

    kinds = {"by": "string", "layer": "string", "channel": "int32", "worst": "float", "images": "int64", "excluded": "int64"}
    lists = {"places": pa.int32(), "scores": pa.float32(), "bins": pa.int16(), "counts": pa.int32()}
    return pa.schema(
        [(name, pa.type_for_alias(kind)) for name, kind in kinds.items()]
        + [(name, pa.list_(kind)) for name, kind in lists.items()]
    )


def _to_columns(ranking: Ranking) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415  only for shards

    def lists(chosen: NDArray[np.bool_], values: NDArray[Any]) -> Any:  # a pyarrow.Array
        ends = np.append(0, np.cumsum(chosen.sum(1))).astype(np.int32)
        return pa.ListArray.from_arrays(ends, values[chosen])

    rows = [(info.layer, channel) for info in ranking.maps for channel in range(info.channels)]
    there, counted = ranking.places >= 0, ranking.counts > 0
    return {
        "by": [ranking.by] * len(rows),
        "layer": [layer.encode("utf-8", "backslashreplace").decode() for layer, _ in rows],
        "channel": [channel for _, channel in rows],
        **{name: getattr(ranking, name) for name in ("worst", "images", "excluded")},
        "places": lists(there, ranking.places),
        "scores": lists(there, ranking.scores),
        "bins": lists(counted, np.broadcast_to(np.arange(BINS, dtype=np.int16), counted.shape)),
        "counts": lists(counted, ranking.counts),
    }


# Any: a column of lists; an array of numbers.
def _from_lists(column: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the row of each value in a column of lists, and the values."""
    joined = column.combine_chunks()
    lengths = np.diff(joined.offsets.to_numpy())
    return np.repeat(np.arange(len(lengths)), lengths), joined.flatten().to_numpy()


def _outputs(described: str, values: Floats) -> tuple[tuple[FeatureMapInfo, ...], Floats]:
    """Return the feature maps that are outputs of layers, and the values of their channels."""
    maps, _ = load_maps(described)
    if all(each.of == "output" for each in maps):
        return maps, values
    shown = np.repeat([each.of == "output" for each in maps], [each.channels for each in maps])
    return tuple(each for each in maps if each.of == "output"), values[shown]


def _digest(text: str) -> int:
    """Return the first 64 bits of a digest in hexadecimal."""
    return int(text[:16], 16)


def digest_of_name(name: str) -> int:
    """Return a digest that no other image has."""
    return int(hashlib.sha256(os.fsencode(name)).hexdigest()[:16], 16)
