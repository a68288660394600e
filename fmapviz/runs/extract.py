"""Get one picture back out of a shard."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image as PillowImage
from pyarrow import parquet

from fmapviz import archives, files, index
from fmapviz.errors import DamagedError, RefusedError, RequestError, printable, quote, suggest
from fmapviz.inputs import RUN_FILE
from fmapviz.runs import writing_to
from fmapviz.shards import find_shards
from fmapviz.staging import hidden
from fmapviz.units import EVENTS_FILE, UNIT_FILE
from fmapviz.urls import is_url
from fmapviz.values import Picture

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = 1000  # to choose a suggestion from


class Read(Protocol):
    """Reads a part of a file, as `fmapviz.files.read` does."""

    def __call__(self, path: Path, *, start: int, most: int) -> bytes:
        """Read a part of a file."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """A picture.

    Attributes:
        name: What to call it as a file, safe whatever image and layer are called.
        png: The file, complete.
        shard: Where it was.
    """

    name: str
    png: bytes
    shard: Path


def extract(
    directory: Path | str, *, image: str, layer: str, view: str | None = None, target: str | None = None
) -> Extracted:
    """Find one picture in a run's shards.

    Args:
        directory: Of runs, of a run, or a shard; or the address of one.
        image: The image's name in the run, the end of that, its path or its number.
        layer: The feature map's name; `input` is what the network was given.
        view: Which view of it, if there are several.
        target: Which class, if there are several: `top1`, a number, a name, as the run was told.

    Raises:
        RequestError: There is no such picture, or more than one.
        DamagedError: The shard's files are not as they were written.
    """
    if not is_url(str(directory)):
        return _extract(Path(directory), files.read, image=image, layer=layer, view=view, target=target)
    # Only here: few need it.
    with import_module("fmapviz.remote_runs").copied(str(directory), {index.FILE}) as copy:
        try:
            found: Extracted = _extract(copy.place, copy.read, image=image, layer=layer, view=view, target=target)
        except (RequestError, DamagedError) as error:
            raise type(error)(str(error).replace(str(copy.place), copy.store.url), hint=error.hint) from error
        return replace(found, shard=copy.told(found.shard))


def _extract(directory: Path, read: Read, *, image: str, layer: str, view: str | None, target: str | None) -> Extracted:
    shards = _shards(directory)
    if not shards:
        raise RequestError(
            f"no shards in {quote(directory)}", hint="without --shard pictures lie in a directory of their image's name"
        )
    for match in (_is_image, _ends_with):
        found = [(shard, rows) for shard in shards if (rows := _rows(shard, match(image)))]
        if found:
            break
    else:
        raise RequestError(f"no such image: {quote(image)}", hint=_near(shards, image))
    if len({(shard, row["key"]) for shard, rows in found for row in rows}) > 1:
        paths = sorted({row["path"] for _, rows in found for row in rows})
        raise RequestError(f"several images are called {quote(image)}", hint=f"by path: {', '.join(paths[:3])}")
    ((shard, rows),) = found
    row = _choose(rows, image, layer, view, target)
    return Extracted(_name(row), _read(shard, row, read), shard)


def put(path: Path, png: bytes, *, force: bool = False) -> None:
    """Write a picture to a file that appears when it is complete.

    Args:
        path: Which.
        png: The picture.
        force: Whether to replace a file that is there.

    Raises:
        RefusedError: There is one.
        OutputError: The disk is full, say.
    """
    if files.exists(path) and not force:
        raise RefusedError(f"there is something already: {quote(path)}", hint="--force replaces it, --out names another")
    unfinished = hidden(path.parent, path.suffix)
    with writing_to(path):
        try:
            files.write(unfinished, png)
            files.replace(unfinished, path)
        finally:
            if files.exists(unfinished):
                files.remove(unfinished)


def _shards(directory: Path) -> list[Path]:
    if files.exists(directory / index.FILE):
        return [directory]
    if not directory.is_dir():
        raise RequestError(f"no such directory: {quote(directory)}")
    runs = (
        [directory]
        if files.exists(directory / RUN_FILE)
        else sorted(path.parent for path in directory.glob(f"*/{RUN_FILE}"))
    )
    return [shard for run in runs for shard in find_shards(run) if files.exists(shard / UNIT_FILE)]


def _is_image(name: str) -> pc.Expression:
    said = (pc.field("image") == name) | (pc.field("path") == name)
    return said | (pc.field("key") == int(name)) if name.isdecimal() and len(name) < 19 else said


def _ends_with(name: str) -> pc.Expression:
    return pc.ends_with(pc.field("image"), f"/{name}")


def _rows(shard: Path, wanted: pc.Expression) -> list[dict[str, Any]]:
    try:
        table = parquet.read_table(io.BytesIO(files.read(shard / index.FILE)), filters=wanted)
        rows: list[dict[str, Any]] = table.cast(index.SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _damaged(shard / index.FILE) from error
    return rows


def _choose(rows: Sequence[dict[str, Any]], image: str, layer: str, view: str | None, target: str | None) -> dict[str, Any]:
    """Choose the one picture that is meant among those of an image."""
    failed = next((row["error"] for row in rows if row["error"]), None)
    if failed:
        raise RequestError(f"nothing was drawn of {quote(image)}: {failed}")
    of_layer = [row for row in rows if row["layer"] == layer] or [row for row in rows if row["view"] == layer == "input"]
    if not of_layer:
        known = list(dict.fromkeys(row["layer"] for row in rows if row["layer"]))
        raise RequestError(
            f"no such layer: {quote(layer)}", hint=suggest(layer, known) or f"there are: {', '.join(known[:20])}"
        )
    drawn = [row for row in of_layer if view in {None, row["view"]} and target in {None, row["target"], row["class"]}]
    if len(drawn) != 1:
        there = "; ".join(dict.fromkeys(_said(row) for row in of_layer))
        how = "several pictures" if drawn else "no such picture"
        raise RequestError(f"{how} of {quote(layer)}", hint=f"--view and --target choose: {there}")
    if drawn[0]["file"] is None:
        raise RequestError(f"no pictures were kept of {quote(layer)}", hint="--to tar or tensorboard keeps them")
    return drawn[0]


def _said(row: dict[str, Any]) -> str:
    return f"{row['view']} {row['target'] or ''}".rstrip()


def _read(shard: Path, row: dict[str, Any], read: Read) -> bytes:
    """Read a picture, and make sure that it is one."""
    path = shard / row["file"]
    if row["file"] not in {archives.FILE, EVENTS_FILE}:  # whoever wrote the index may have made it up
        raise _damaged(shard / index.FILE)
    try:
        png = read(path, start=max(0, row["offset"]), most=max(0, row["bytes"]))
        with PillowImage.open(io.BytesIO(png), formats=["PNG"]) as picture:
            picture.verify()
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        raise _damaged(path) from error
    return png


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"damaged: {quote(path)}", hint="fmapviz verify says what helps")


def _name(row: dict[str, Any]) -> str:
    place = (
        "input"
        if row["layer"] is None
        else f"{row['index']:02} {row['layer']}{'.' + row['target'] if row['target'] else ''}"
    )
    picture = Picture(row["view"], place, b"", 0, 0, {}).file_name
    stem = "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in Path(row["image"]).name)[:80].lstrip(".")
    return f"{stem}.{picture}"


def _near(shards: Sequence[Path], image: str) -> str | None:
    names: dict[str, None] = {}
    for shard in shards:
        table = parquet.read_table(io.BytesIO(files.read(shard / index.FILE)), columns=["image"])
        names |= dict.fromkeys(pc.unique(table["image"]).to_pylist())
        if len(names) > _NAMES:
            break
    return suggest(printable(image), list(names))
