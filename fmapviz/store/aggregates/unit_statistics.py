"""The files that hold the statistics of a unit: of one image, or of a shard's images.

A directory of one image holds float32 columns in safetensors: pyarrow is an optional package, which only `--shard` needs. A
shard holds a Parquet table for analysis with other tools. Both are read into the same value.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fmapviz.core import files
from fmapviz.store.aggregates.channels import ChannelStatistics, FeatureMapInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.data import ImageResult, Measures

IMAGE_FILE, TABLE_FILE = "stats.safetensors", "stats.parquet"
DIGEST = "input"
_TENSORS = {"output", "input", "gradient", "input gradient", "attention"}
_COUNTS = ("zeros", "nonfinite")
_REST = "rest"  # of the mean
_TEXTS = ("layer", "of", "target", "type")


def columns_of(image: ImageResult) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the statistics of an image as columns over the channels of all its feature maps, and these maps as JSON."""
    maps: dict[tuple[str | int, ...], tuple[int, Measures]] = {}
    for layer in image.layers:
        if (measures := layer.measures) is not None:
            label = layer.target.label if layer.target else ""
            key = (layer.layer, layer.of, label, layer.type, len(measures.low), measures.values)
            maps.setdefault(key, (layer.index, measures))
    described = [
        {**dict(zip((*_TEXTS, "channels", "values"), key, strict=True)), "index": index} for key, (index, _) in maps.items()
    ]
    columns = {
        column: np.concatenate(
            [np.zeros(0), *(getattr(measures, column) for _, measures in maps.values())], dtype=dtype, casting="unsafe"
        )
        for dtype, names in ((np.float32, ("low", "high", "mean", "std")), (np.uint32, _COUNTS))
        for column in names
    }
    columns[_REST] = np.concatenate(
        [
            np.zeros(0, np.float32),
            *(np.zeros_like(each.mean) if each.rest is None else np.nan_to_num(each.rest) for _, each in maps.values()),
        ],
        dtype=np.float32,
    )
    return json.dumps(described), columns


def statistics_of(maps: str, columns: Mapping[str, NDArray[Any]]) -> ChannelStatistics:
    """Convert the columns of one image.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: They are not what `columns_of` returns.
    """
    infos, values = load_maps(maps)
    if any(column.shape != values.shape or column.dtype.kind not in "fu" for column in columns.values()):
        raise ValueError(columns.keys())
    low, high = columns["low"], columns["high"]
    zeros, nonfinite, rest = (columns.get(name, np.zeros(len(values), np.uint32)) for name in (*_COUNTS, _REST))
    finite = values - nonfinite
    mean, std = (np.where(finite > 0, columns[name], 0).astype(np.float64) for name in ("mean", "std"))
    mean += rest
    converted = {
        "images": np.broadcast_to(np.int64(1), values.shape),
        "single": values == 1,
        "min": low,
        "max": high,
        "mean": mean,
        "scatter": std**2 * finite,
        "finite": finite,
        "nonfinite": nonfinite,
        "zeros": zeros,
        "dead": (low == high) & (nonfinite == 0),
    }
    return ChannelStatistics(1, infos, converted)


@lru_cache(maxsize=16)  # most images of a run have the same feature maps
def load_maps(text: str) -> tuple[tuple[FeatureMapInfo, ...], NDArray[np.int64]]:
    """Parse the description of feature maps, and return them with the number of values per channel."""
    described = json.loads(text)
    names = (*_TEXTS, "channels", "index")
    infos = checked_maps(FeatureMapInfo(*(each[name] for name in names)) for each in described)
    values = np.array([int(each["values"]) for each in described], np.int64)
    return infos, np.repeat(values, [info.channels for info in infos])


def checked_maps(described: Iterable[FeatureMapInfo]) -> tuple[FeatureMapInfo, ...]:
    """Check that a file describes feature maps as fmapviz does, each once.

    Raises:
        ValueError: It does not.
    """
    infos = tuple(described)
    for info in infos:
        texts = all(isinstance(getattr(info, name), str) for name in _TEXTS)
        numbers = type(info.channels) is type(info.index) is int and info.channels >= 1
        if not texts or not numbers or info.of not in _TENSORS:
            raise ValueError(info)
    if len({info.key for info in infos}) < len(infos):
        raise ValueError("a feature map twice")
    return infos


def write_image(directory: Path, image: ImageResult, *, digest: str = "") -> None:
    """Write `stats.safetensors` of one image.

    The tensors `low`, `high`, `mean` and `std`, float32, and `zeros` and `nonfinite`, uint32, hold the channels of all
    feature maps; a count that is zero everywhere is left out. So is `rest`, what float32 loses of means that are large
    beside the deviation, float32. The metadata describe the feature maps. `input` is the SHA-256
    of the prepared input, uint8. (A second entry of the metadata would be written in an order that is not always the same.)

    Raises:
        OSError: The disk is full, for example, or the file exists.
    """
    maps, columns = columns_of(image)
    needed = {name: values for name, values in columns.items() if name not in (*_COUNTS, _REST) or values.any()}
    identity = {DIGEST: np.frombuffer(bytes.fromhex(digest), np.uint8)} if digest else {}
    files.write(directory / IMAGE_FILE, save(needed | identity, {"layers": maps}))


def read_image(directory: Path) -> ChannelStatistics:
    """Read `stats.safetensors`.

    Raises:
        OSError, KeyError, TypeError, ValueError, OverflowError: The file is missing or damaged.
    """
    try:
        with safe_open(directory / IMAGE_FILE, framework="numpy") as file:
            columns = {column: file.get_tensor(column) for column in file.keys() if column != DIGEST}  # noqa: SIM118  no dictionary
            return statistics_of(file.metadata()["layers"], columns)
    except SafetensorError as error:
        raise ValueError(directory) from error


_TABLE = {  # columns and their Arrow types
    "map": "int32",
    "layer_index": "int32",
    **dict.fromkeys(_TEXTS, "string"),
    "channel": "int32",
    **dict.fromkeys(("images", "values"), "int64"),
    **dict.fromkeys(("min", "max", "mean", "std", "scatter"), "float64"),
    **dict.fromkeys(_COUNTS, "int64"),
    **dict.fromkeys(("dead", "single"), "bool"),
}


def write_table(directory: Path, known: ChannelStatistics) -> None:
    """Write `stats.parquet`: a row per channel of each feature map, in the order of execution.

    The columns are over all images of the shard and named as in `stats.csv`; from `scatter` and `single`, the statistics
    of several shards are computed, see `ChannelStatistics`.

    Raises:
        OSError: The disk is full, for example, or the file exists.
    """
    import pyarrow as pa  # noqa: PLC0415  only for shards
    from pyarrow import parquet  # noqa: PLC0415

    rows = [(number, channel) for number, info in enumerate(known.maps) for channel in range(info.channels)]
    texts = {
        name: [getattr(known.maps[number], name).encode("utf-8", "backslashreplace").decode() for number, _ in rows]
        for name in _TEXTS
    }
    numbers = {
        "map": [number for number, _ in rows],
        "layer_index": [known.maps[number].index for number, _ in rows],
        "channel": [channel for _, channel in rows],
    }
    columns = {**numbers, **texts, **known.columns, "values": known.values, "std": known.std, "dead": known.flat}
    schema = _schema().with_metadata({"images": str(known.images)})
    with files.create(directory / TABLE_FILE) as file:
        parquet.write_table(pa.table(columns, schema=schema), file, compression="zstd")


def read_table(directory: Path) -> ChannelStatistics:
    """Read `stats.parquet`.

    Raises:
        OSError, KeyError, TypeError, ValueError, OverflowError: The file is missing or damaged.
    """
    from pyarrow import parquet  # noqa: PLC0415  only for shards

    with parquet.ParquetFile(directory / TABLE_FILE) as file:
        table = file.read()
    if not table.schema.equals(_schema()) or any(table[name].null_count for name in _TABLE):
        raise ValueError(table.schema)
    columns = {name: table[name].to_numpy() for name, kind in _TABLE.items() if kind != "string"}
    columns |= {"finite": columns["values"] - columns["nonfinite"], "mean": np.nan_to_num(columns["mean"])}
    begins = np.flatnonzero(np.diff(columns["map"], prepend=-1))
    channels = np.diff(begins, append=len(table)).tolist()
    texts = [table[name].take(begins).to_pylist() for name in _TEXTS]
    infos = checked_maps(map(FeatureMapInfo, *texts, channels, columns["layer_index"][begins].tolist()))
    return ChannelStatistics(int(table.schema.metadata[b"images"]), infos, columns)


def _schema() -> Any:  # a pyarrow.Schema
    import pyarrow as pa  # noqa: PLC0415  only for shards

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _TABLE.items()])
