"""Read the files of units as trees, in which numbers and pixels that a forward pass computes are apart from all else.

Each file must be exactly what a writer of fmapviz makes of its content: other bytes could hide something.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from io import BytesIO
from tarfile import TarFile
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from PIL import Image as PillowImage
from tensorboard.compat.proto.event_pb2 import Event

from fmapviz.core import checksummed_json
from fmapviz.core.file_names import INDEX_FILE, UNIT_FILE
from fmapviz.formats.html.page import pixel_script, read_script, script
from fmapviz.formats.npz import METADATA, write_arrays
from fmapviz.formats.tar import append
from fmapviz.formats.tensorboard.event_file import Record, write_record
from fmapviz.store.aggregates.unit_statistics import IMAGE_FILE, load_maps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG = re.compile(rb"\x89PNG\r\n\x1a\n.*?IEND\xaeB`\x82", re.DOTALL)
_PIXELS = re.compile(rb'("(?:[^"\\]|\\.)*"):"((?:[^"\\]|\\.)*)",\n', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)")
_ESCAPES = {b"n": b"\n", b"r": b"\r"}
_EMBEDDED = re.compile(r'"data:image/png;base64,([^"]*)"')
_IN_SVG = re.compile(r"(<desc>.*?</desc>|<text [^>]*>.*?</text>)", re.DOTALL)
_LINE = re.compile(r"(<text [^>]*>)(.*)</text>", re.DOTALL)
_LENGTH = re.compile(r'(?<= textLength=")\d+(?=")')
_WIDTH = 4.0  # pixels by which other digits make a text wider or narrower
_CELLS = re.compile(r"^\| (.*?) \| (.*) \|$", re.MULTILINE)  # of a table in Markdown
_BASE64 = ("statistics", "levels")
# Facts that are no results: numbers in them are parts of names, or sizes.
_EXACT = {"Layer", "Type", "Shape", "Channels", "Heads", "Dead channels", "Shows", "Attention of", "Samples", "Frame"}
_EXACT |= {"Model", "Weights", "Software", "Image", "A", "B"}
_COSINES = {"Matches", "Cosine", "Layers of one name"}
_PYARROW = re.compile(r"parquet-cpp-arrow version \d+\.\d+\.\d+")
_AROUND_PARQUET = 12  # bytes: `PAR1` at both ends, and the length of the footer
_SCORES = {"score", "logit", "probability"}  # four digits behind the point are recorded of predictions
_OF_RANGE = {"min", "max", "mean", "low", "high"}
_ROUNDED_SCORE = 1.001e-4
_SHARES = 4  # the first row of `statistics` in the report that holds a count


@dataclass(frozen=True, slots=True, eq=False)
class Floats:
    """Numbers that rounding may change.

    Attributes:
        values: An array of floats of any shape.
        scale: The magnitude that differences are compared with, for all or for each value.
        absolute: What they may differ by in any case.
    """

    values: NDArray[Any]  # Any: of float16 to float64
    scale: float | NDArray[np.float64]
    absolute: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """The pixels of a picture.

    Attributes:
        values: uint8, `(H, W)` if it is grey, else `(H, W, 4)`.
    """

    values: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Text:
    """A text in which rounding may change numbers that are written as `names` are not.

    Attributes:
        text: The text.
        scale: A text with further numbers; differences are compared with the largest of these and its own.
        names: Numbers that are names, or parts of them.
        is_fixed: Whether its numbers are cosines, with three digits behind the point.
        is_line: Whether it is a line of a longer text, in which a name may be broken.
    """

    text: str
    scale: str = ""
    names: frozenset[str] = frozenset()
    is_fixed: bool = False
    is_line: bool = False


# Any: a tree of dictionaries and lists, with these leaves and those of JSON
Tree = Any


def content_of(name: str, data: bytes, read: Callable[[str], bytes]) -> Tree:
    """Return the content of a file of a unit.

    Args:
        name: Its name.
        data: Its bytes.
        read: Returns the bytes of another file of the unit.

    Raises:
        ValueError: It is no such file, or more than the writer makes of the content. Decoders raise further exceptions.
    """
    if data.startswith(_SIGNATURE):
        return _png(data)
    if name == INDEX_FILE:
        return _parquet(data, read)
    kind = next((suffix for suffix in _KINDS if name.endswith(suffix)), None)
    return _KINDS[kind](data) if kind else data


def record_of(data: bytes) -> Tree:
    """Return the content of `unit.json`, without the checksums and sizes of its files.

    Raises:
        ValueError: It is not formatted as fmapviz does it.
    """
    record = json.loads(data)
    del record["sha256"]
    _check(checksummed_json.dumps(record), data)
    for entry in record["files"]:
        for key in ("size", "sha256", "object"):
            entry.pop(key, None)
    return _json(record)


def _check(made: bytes, data: bytes) -> None:
    if made != data:
        raise ValueError("it holds more than its content")


def largest(values: NDArray[Any]) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    return float(np.abs(values[np.isfinite(values)].astype(np.float64)).max(initial=0))


def _array(values: NDArray[Any]) -> Tree:
    content = Floats(values, largest(values)) if values.dtype.kind == "f" else values.tolist()
    return {"type": values.dtype.str, "shape": values.shape, "values": content}


# --- pictures


def _png(data: bytes) -> Tree:
    chunks: list[Any] = []
    facts, compressed, at = list[tuple[str, str]](), b"", len(_SIGNATURE)
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if len(content) < size or data[at + 8 + size : at + 12 + size] != struct.pack(">I", zlib.crc32(kind + content)):
            raise ValueError("a damaged chunk")
        at += 12 + size
        if kind == b"IDAT":
            compressed += content
            kind, content = (b"", b"") if chunks[-1][0] == b"IDAT" else (kind, b"")
        elif kind in {b"tEXt", b"iTXt"}:
            key, _, value = content.partition(b"\0" if kind == b"tEXt" else b"\0\0\0\0\0")
            facts.append((key.decode("latin-1"), value.decode("latin-1" if kind == b"tEXt" else "utf-8")))
            content = key
        if kind:
            chunks.append((kind, content))
    inflate = zlib.decompressobj()
    plain = inflate.decompress(compressed)
    if not inflate.eof or inflate.unused_data or chunks[-1] != (b"IEND", b""):
        raise ValueError("data behind the pixels")
    with PillowImage.open(BytesIO(data), formats=("PNG",)) as picture:
        is_grey = picture.mode == "L"
        pixels = Pixels(np.asarray(picture if is_grey else picture.convert("RGBA")))
    is_known = chunks[0][1][8] == 8  # bits of a channel, in IHDR
    return {"chunks": chunks, "size": len(plain), "facts": _facts(facts), "pixels": pixels if is_known else plain}


def _facts(facts: Iterable[tuple[str, str]]) -> Tree:
    facts = list(facts)
    ends = dict(facts).get("Range", "")
    return [
        (
            key,
            value if key in _EXACT else Text(value, scale=ends if key == "Mean" else "", is_fixed=key in _COSINES),
        )
        for key, value in facts
    ]


def _svg(data: bytes) -> Tree:
    text = data.decode("ascii")
    pictures = [b64decode(each, validate=True) for each in _EMBEDDED.findall(text)]
    _check("".join(b64encode(each).decode() for each in pictures).encode(), "".join(_EMBEDDED.findall(text)).encode())
    parts: list[Any] = _IN_SVG.split(_EMBEDDED.sub('""', text))
    lines = [each for part in parts[1::2] if part.startswith("<desc>") for each in part[6:-7].split("\n")]
    names = frozenset(re.findall(r"[\d.]+", "\n".join(line for line in lines if line.partition(": ")[0] in _EXACT)))
    is_fixed = any(line.partition(": ")[0] in _COSINES for line in lines)
    for number, part in enumerate(parts):
        if part.startswith("<desc>"):
            parts[number] = _facts((key, value) for key, _, value in (line.partition(": ") for line in part.split("\n")))
        elif number % 2:
            parts[number] = _line(part, names, is_fixed=is_fixed)
    return {"text": parts, "pictures": list(map(_png, pictures))}


def _line(element: str, names: frozenset[str], *, is_fixed: bool) -> Tree:
    """Return a line of text in a picture, whose width follows from its digits."""
    if (match := _LINE.fullmatch(element)) is None:
        return element
    tag, text = match.groups()
    width = np.array([float(each) for each in _LENGTH.findall(tag)])
    tolerance = _WIDTH if any(map(str.isdigit, text)) else 0.0
    content = Text(text, names=names, is_fixed=is_fixed, is_line=True)
    return [_LENGTH.sub("", tag), Floats(width, largest(width), tolerance), content]


# --- JSON, alone and in scripts


def _json(value: Any, key: str = "") -> Tree:
    if isinstance(value, dict):
        return _object(value, key)
    if isinstance(value, list):
        return _list(value, key)
    return _number(value, "", []) if isinstance(value, float) else value


def _object(value: dict[str, Any], key: str) -> Tree:
    if key == "facts":
        return _facts(value.items())
    if key in _BASE64 and isinstance(value.get("data"), str):
        return {name: _packed(each, key) if name == "data" else _json(each) for name, each in value.items()}
    ends = [each for name, each in value.items() if name in _OF_RANGE and isinstance(each, float)]
    return {
        name: _number(each, name, ends) if isinstance(each, float) else _json(each, name) for name, each in value.items()
    }


def _list(value: list[Any], key: str) -> Tree:
    if key == "facts" and all(isinstance(each, list) and len(each) == 2 for each in value):
        return _facts((name, fact) for name, fact in value)
    if key == "predictions" and all(isinstance(each, str) for each in value):
        return list(map(Text, value))
    if value and all(isinstance(each, float) for each in value):
        return _array(np.array(value))
    return [_json(each) for each in value]


def _number(value: float, name: str, ends: list[float]) -> Floats:
    same = ends if name in _OF_RANGE else [value]
    return Floats(np.array(value), largest(np.array(same)), _ROUNDED_SCORE if name in _SCORES else 0.0)


def _packed(text: str, key: str) -> Tree:
    data = b64decode(text, validate=True)
    _check(b64encode(data), text.encode())
    rows = np.frombuffer(data, "<f4")
    if key != "statistics":
        return _array(rows)
    rows = rows.reshape(6, -1)
    return [_array(rows[:_SHARES]), rows[_SHARES:].tobytes()]


def _json_in(text: str) -> Tree:
    """Return JSON in a text as a tree, if it is as Python writes it; other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return _json(value) if json.dumps(value) == text else text


def _report(data: bytes) -> Tree:
    value = read_script(data)
    _check(script("unit", value), data)
    return _json(value)


def _pixels(data: bytes) -> Tree:
    found = {
        json.loads(href): _ESCAPED.sub(lambda match: _ESCAPES.get(match[1], match[1]), content)
        for href, content in _PIXELS.findall(data)
    }
    _check(b"".join(pixel_script(found.items())), data)
    return {href: _png(content) for href, content in found.items()}


# --- arrays


def _safetensors(data: bytes) -> Tree:
    header = _header(data)
    metadata, known = header.pop("__metadata__", {}), safetensors.numpy.load(data)
    return {
        "metadata": {key: _json_in(value) for key, value in metadata.items()},
        "arrays": {name: _array(known[name]) for name in header},
    }


def _header(data: bytes) -> dict[str, Any]:
    """Return what precedes the arrays, see https://huggingface.co/docs/safetensors/index#format."""
    (length,) = struct.unpack_from("<Q", data)
    text = data[8 : 8 + length]
    header: dict[str, Any] = json.loads(text)
    made = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    _check(made + b" " * (-len(made) % 8), text)
    return header


def _statistics(data: bytes) -> Tree:
    """Return `stats.safetensors`, whose columns are compared within each feature map."""
    found = _safetensors(data)
    arrays = found["arrays"]
    maps, _ = load_maps(_header(data)["__metadata__"]["layers"])
    of_map = np.repeat(np.arange(len(maps)), [each.channels for each in maps])
    columns = {name: arrays[name]["values"].values for name in ("low", "high", "mean", "std")}
    scale = _largest_of(len(maps), ((of_map, values) for values in columns.values()))[of_map]
    rest = arrays.pop("rest", {"values": Floats(np.zeros(len(of_map), np.float32), 0)})  # what float32 loses of the mean
    for name, values in (*columns.items(), ("rest", rest["values"].values)):
        arrays[name] = {"type": values.dtype.str, "shape": values.shape, "values": Floats(values, scale)}
    return found


def _largest_of(count: int, columns: Iterable[tuple[NDArray[np.int64], NDArray[Any]]]) -> NDArray[np.float64]:
    """Return the largest finite magnitude of each of several groups, from columns with the group of each row."""
    found = np.zeros(count)
    for groups, values in columns:
        finite = np.isfinite(values)
        np.maximum.at(found, groups[finite], np.abs(values[finite].astype(np.float64)))
    return found


def _npz(data: bytes) -> Tree:
    with np.load(BytesIO(data)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    write_arrays(made := BytesIO(), arrays)
    _check(made.getvalue(), data)
    metadata = json.loads(arrays.pop(METADATA).item())
    return {
        "metadata": {key: _json_in(value) for key, value in metadata.items()},
        "arrays": {name: _array(values) for name, values in arrays.items()},
    }


def _parquet(data: bytes, read: Callable[[str], bytes] | None = None) -> Tree:
    import pyarrow as pa  # noqa: PLC0415  of an extra, which only shards need

    table = _read_table(data)
    columns: dict[str, Any] = {name: table[name].combine_chunks() for name in table.column_names}
    keys = columns["map" if "map" in columns else "layer"].to_pylist() if read is None else range(len(table))
    names, groups = np.unique(np.array([*map(str, keys)]), return_inverse=True)
    lists = {name: np.diff(column.offsets.to_numpy()) for name, column in columns.items() if pa.types.is_list(column.type)}
    flat = {name: column.flatten() if name in lists else column for name, column in columns.items()}
    floats = {
        name: column.fill_null(0).to_numpy(zero_copy_only=False)
        for name, column in flat.items()
        if pa.types.is_floating(column.type)
    }
    if "scatter" in floats:  # the square of the deviation for each value
        floats["scatter"] = np.sqrt(floats["scatter"] / np.maximum(columns["values"].to_numpy(), 1))
    rows = {name: np.repeat(groups, lists[name]) if name in lists else groups for name in floats if name not in _SCORES}
    scales = _largest_of(len(names), ((of_row, floats[name]) for name, of_row in rows.items()))
    tree: dict[str, Any] = {
        "schema": str(table.schema.remove_metadata()),
        "metadata": {key: _json_in(value.decode()) for key, value in (table.schema.metadata or {}).items()},
    }
    for name, column in columns.items():
        values: Any = flat[name].to_pylist() if name not in floats else None
        if name in rows:
            values = Floats(floats[name], scales[rows[name]])
        elif name in floats:
            values = Floats(floats[name], np.abs(np.nan_to_num(floats[name])), _ROUNDED_SCORE)
        lengths = lists[name].tolist() if name in lists else None
        tree[name] = {"missing": column.is_null().to_pylist(), "lengths": lengths, "values": values}
    if read is not None:  # where pictures are, depends on the sizes of others
        places = zip(*(columns[name].to_pylist() for name in ("file", "offset", "bytes")), strict=True)
        tree |= {"file": list(_ordinals(places, read)), "offset": None, "bytes": None}
    return tree


def _read_table(data: bytes) -> Any:  # a pyarrow.Table
    import pyarrow as pa  # noqa: PLC0415  only for shards
    from pyarrow import parquet  # noqa: PLC0415

    with parquet.ParquetFile(BytesIO(data)) as file:
        table, footer = file.read(), file.metadata
    chunks = (footer.row_group(row).column(at) for row in range(footer.num_row_groups) for at in range(footer.num_columns))
    if len(data) != sum(each.total_compressed_size for each in chunks) + footer.serialized_size + _AROUND_PARQUET:
        raise ValueError("it holds more than its columns")
    made_by = footer.created_by
    # In a file, the values of a list have another name.
    fields = [
        each.with_type(pa.list_(each.type.value_type)) if pa.types.is_list(each.type) else each for each in table.schema
    ]
    table = table.cast(pa.schema(fields, metadata=table.schema.metadata))
    parquet.write_table(table, made := BytesIO(), compression="zstd")
    if made_by == parquet.read_metadata(made).created_by or not _PYARROW.fullmatch(
        made_by
    ):  # other versions write other bytes
        _check(made.getvalue(), data)
    return table


def _ordinals(places: Iterable[tuple[str | None, int | None, int | None]], read: Callable[[str], bytes]) -> Iterator[Any]:
    """Yield the file of each picture and its number among the pictures in it."""
    known: dict[str, dict[tuple[int, int], int]] = {}
    for file, offset, size in places:
        if file is None or offset is None or size is None:
            yield file, offset, size
            continue
        if file not in known:
            spans = enumerate(match.span() for match in _PNG.finditer(read(file)))
            known[file] = {(begin, end - begin): number for number, (begin, end) in spans}
        yield file, known[file][offset, size]


# --- archives


def _tar(data: bytes) -> Tree:
    members: list[tuple[str, bytes]] = []
    with TarFile.open(fileobj=BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            members.append((member.name, file.read() if file else b""))
    with TarFile(fileobj=(made := BytesIO()), mode="w", format=archive.format) as again:
        for name, content in members:
            append(again, name, content)
    _check(made.getvalue(), data)
    return [(name, _png(content) if name.endswith(".png") else _json_in(content.decode())) for name, content in members]


def _events(data: bytes) -> Tree:
    """Return the events of a file without their times."""
    events, made, at = list[Any](), BytesIO(), 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + size])
        write_record(made, Record(event.SerializeToString()))
        at += 16 + size
        events.append(_event(event))
    _check(made.getvalue(), data)
    return events


def _event(event: Event) -> Tree:
    event.ClearField("wall_time")
    found: dict[str, Any] = {}
    for value in event.summary.value:
        strings, doubles = value.tensor.string_val, np.array(value.tensor.double_val)
        if len(strings) == 3 and strings[2].startswith(_SIGNATURE):
            found[value.tag] = _png(strings[2])
            strings[2] = b""
        if doubles.size:  # a histogram: ends of bins, and counts
            bins = doubles.reshape(-1, 3)
            found[f"{value.tag} values"] = [_array(bins[:, :2]), bins[:, 2].tobytes()]
            del value.tensor.double_val[:]
        if value.HasField("simple_value"):
            found[f"{value.tag} value"] = _number(value.simple_value, "", [])
            value.simple_value = 0
        cells = _CELLS.findall(value.metadata.summary_description)
        found[f"{value.tag} facts"] = _facts(cells)
        value.metadata.summary_description = _CELLS.sub("", value.metadata.summary_description)
    return {"event": event.SerializeToString(), **found}


_KINDS: Mapping[str, Callable[[bytes], Tree]] = {
    ".svg": _svg,
    "report.js": _report,
    "pixels.js": _pixels,
    IMAGE_FILE: _statistics,
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".parquet": _parquet,
    ".tar": _tar,
    "events.out.tfevents.fmapviz": _events,
    UNIT_FILE: record_of,
}
