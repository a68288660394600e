"""Extract one picture from a shard."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image as PillowImage
from pyarrow import parquet

from fmapviz.core import files
from fmapviz.core.file_names import INDEX_FILE, RUN_FILE, UNIT_FILE, shard_files
from fmapviz.core.files import writing_to
from fmapviz.core.platforms import in_shell
from fmapviz.data import Picture
from fmapviz.errors import DamagedError, RefusedError, RequestError, first_few, printable, quote, suggest, suggest_file
from fmapviz.images.find import absolute_path, path_hash
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.shards import index as shard_index
from fmapviz.store.shards.shard import find_shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.store.remote.local_copy import LocalCopy

_NAMES = 1000  # to choose a suggestion from
_FEW = 4  # that are named if none is similar


@dataclass(frozen=True, slots=True)
class Extracted:
    """An extracted picture.

    Attributes:
        name: Name for a file, safe for any name of image and layer.
        png: The PNG file.
        shard: The shard that holds it.
    """

    name: str
    png: bytes
    shard: Path


def extract(
    directory: Path | str, *, image: str, layer: str, view: str | None = None, target: str | None = None
) -> Extracted:
    """Find one picture in a run's shards.

    Args:
        directory: A directory of runs, a run or a shard, or the address of one.
        image: The image's name in the run, its path, the end of one of these, or its number.
        layer: The feature map's name; `input` is the preprocessed input, or with a view its picture of no single layer, such
            as `boxes`, `saliency` or `contact`.
        view: The view, if there are several of that layer.
        target: The class, if there are several: `top1`, a number or a name, as given to the run.

    Raises:
        RequestError: No picture matches, or several do.
        DamagedError: A file of the shard was changed.
    """
    with local_copy(directory, {INDEX_FILE}) as copy:
        shards = _shards(copy.directory)
        if not shards:
            beside = [
                quote(path.parent) for path in sorted(copy.directory.parent.glob(f"*/{RUN_FILE}")) if _shards(path.parent)
            ]
            hint = "without --shard, pictures are in a directory named like their image"
            hint += f"; there are shards in {first_few(beside)}" if beside else ""
            raise RequestError(f"no shards in {quote(copy.directory)}", hint=hint)
        found = _find(shards, image)
        runs = dict.fromkeys(shard.parent for shard, _ in found)
        if len(runs) > 1:
            options = {"--image": image, "--layer": layer, "--view": view, "--target": target}
            raise _several_runs([str(copy.address_of(run)) for run in runs], options)
        shard, rows = _only(found, image)
        row = _choose(rows, image, layer, view, target)
        of_run = [each for each in shards if each.parent == shard.parent]
        return Extracted(_name(row, of_run), _read(copy, shard, row), copy.address_of(shard))


def put(path: Path, png: bytes, *, force: bool = False) -> None:
    """Write a picture to a file, which gets its name when it is complete.

    Args:
        path: The file.
        png: The picture.
        force: Whether to replace an existing file.

    Raises:
        RefusedError: The file exists.
        OutputError: The disk is full, for example.
    """
    if files.exists(path) and not force:
        raise RefusedError(f"file exists: {quote(path)}", hint="--force replaces it, --out names another")
    with writing_to(path):
        files.write_over(path, png)


def _shards(directory: Path) -> list[Path]:
    if files.exists(directory / INDEX_FILE):
        return [directory]
    if not os.path.isdir(directory):
        raise RequestError(f"no such directory: {quote(directory)}", hint=suggest_file(str(directory), lambda _name: False))
    runs = [path.parent for path in (directory / RUN_FILE, *sorted(directory.glob(f"*/{RUN_FILE}"))) if files.exists(path)]
    return [shard for run in runs for shard in find_shards(run) if files.exists(shard / UNIT_FILE)]


def _find(shards: Sequence[Path], image: str) -> list[tuple[Path, list[dict[str, Any]]]]:
    """Return the shards with an image of this name, and the rows of their index about it."""
    exact = (pc.field("image") == image) | (pc.field("path") == image)
    with suppress(OSError):  # without a name, or in a directory that was removed
        exact |= pc.field("path") == printable(str(absolute_path(image)))
    if image.isdecimal() and len(image) < 19:  # an int64
        exact |= pc.field("key") == int(image)
    end = f"/{image.removeprefix('./')}"
    for wanted in (exact, pc.ends_with(pc.field("image"), end) | pc.ends_with(pc.field("path"), end)):
        found = [(shard, rows) for shard in shards if (rows := _rows(shard, wanted))]
        if found:
            return found
    raise RequestError(f"no such image: {quote(image)}", hint=_near(shards, image))


def _several_runs(runs: Sequence[str], options: Mapping[str, str | None]) -> RequestError:
    given = [word for option, value in options.items() if value is not None for word in (option, value)]
    return RequestError(
        f"{len(runs)} runs have the image {quote(options['--image'])}: {first_few(runs)}",
        hint=f"name one of them: `{in_shell('fmapviz', 'extract', runs[0], *given)}`",
    )


def _only(found: Sequence[tuple[Path, list[dict[str, Any]]]], image: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return the only image that was found in a run."""
    if len({(shard, row["key"]) for shard, rows in found for row in rows}) > 1:
        paths = sorted({row["path"] for _, rows in found for row in rows})
        raise RequestError(f"several images are named {quote(image)}", hint=f"by path: {', '.join(paths[:3])}")
    (only,) = found
    return only


def _rows(shard: Path, wanted: pc.Expression) -> list[dict[str, Any]]:
    try:
        table = parquet.read_table(io.BytesIO(files.read(shard / INDEX_FILE)), filters=wanted)
        rows: list[dict[str, Any]] = table.cast(shard_index.SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _damaged(shard / INDEX_FILE) from error
    return rows


def _choose(rows: Sequence[dict[str, Any]], image: str, layer: str, view: str | None, target: str | None) -> dict[str, Any]:
    """Return the row of the selected picture of an image."""
    failed = next((row["error"] for row in rows if row["error"]), None)
    if failed:
        raise RequestError(f"{quote(image)} was not drawn: {failed}")
    of_layer = [row for row in rows if row["layer"] == layer]
    if not of_layer and layer == "input":
        of_layer = [row for row in rows if not row["layer"]]  # saliency, boxes or contact, besides the input itself
        view = "input" if view is None and target is None else view
    if not of_layer:
        known = list(dict.fromkeys(row["layer"] for row in rows if row["layer"]))
        raise RequestError(
            f"no such layer: {quote(layer)}", hint=suggest(layer, known) or f"there are: {', '.join(known[:20])}"
        )
    of_layer = [row for row in of_layer if row["file"]] or of_layer  # a sheet of all layers has its own row
    viewed = [row for row in of_layer if view in {None, row["view"]}]
    drawn = [row for row in viewed if target in {None, row["target"], row["class"]}]
    if target is not None and not drawn:
        spelled = [row for row in viewed if row["target"]]
        drawn = [row for row in spelled if target.casefold() in {row["target"].casefold(), row["class"].casefold()}]
    if len(drawn) != 1:
        there = "; ".join(dict.fromkeys(f"{row['view']} {row['target'] or ''}".rstrip() for row in of_layer))
        how = "several pictures" if drawn else "no such picture"
        raise RequestError(f"{how} of {quote(layer)}", hint=f"--view and --target choose: {there}")
    if drawn[0]["file"] is None:
        raise RequestError(f"no pictures of {quote(layer)} were written", hint="--to tar or tensorboard keeps them")
    return drawn[0]


def _read(copy: LocalCopy, shard: Path, row: dict[str, Any]) -> bytes:
    """Read a picture, and check that it is one."""
    path = shard / row["file"]
    if row["file"] not in shard_files():  # the index may be made up
        raise _damaged(shard / INDEX_FILE)
    try:
        png = copy.read(path, start=max(0, row["offset"]), most=max(0, row["bytes"]))
        with PillowImage.open(io.BytesIO(png), formats=["PNG"]) as picture:
            picture.verify()
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        raise _damaged(path) from error
    return png


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"damaged: {quote(path)}", hint="`fmapviz verify` reports the remedy")


def _name(row: dict[str, Any], shards: Iterable[Path]) -> str:
    """Return the name of a picture's file, with a hash if several images of the run have the same name."""
    target = f".{row['target']}" if row["target"] else ""
    place = row["view"] if row["layer"] is None else f"{row['index']:02} {row['layer'] or 'input'}{target}"
    picture = Picture(row["view"], place, b"", 0, 0, {}).file_name
    stem = "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in row["image"])[-80:].lstrip(".")
    namesakes = {other["path"] for shard in shards for other in _rows(shard, pc.field("image") == row["image"])}
    return f"{stem}~{path_hash(row['path'])}.{picture}" if len(namesakes) > 1 else f"{stem}.{picture}"


def _near(shards: Sequence[Path], image: str) -> str | None:
    names: dict[str, None] = {}
    for shard in shards:
        table = parquet.read_table(io.BytesIO(files.read(shard / INDEX_FILE)), columns=["image"])
        names |= dict.fromkeys(pc.unique(table["image"]).to_pylist())
        if len(names) > _NAMES:
            break
    first = [quote(name) for name in names][:_FEW]
    return suggest(printable(image), list(names)) or (f"there are others, such as {', '.join(first)}" if first else None)
