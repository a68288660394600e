"""One tar archive per image, or with --shard per shard, as WebDataset reads it.

The files of one image follow each other under one key. Keys are ten digits and fields are numbers and words of our own:
whatever files, layers and classes are called, no name can be mistaken for another key or for a path. A field `json`
describes the others.

Format: https://github.com/webdataset/webdataset#the-webdataset-format
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import contextmanager
from io import BytesIO
from tarfile import BLOCKSIZE, USTAR_FORMAT, TarError, TarFile, TarInfo
from typing import TYPE_CHECKING, BinaryIO

from fmapviz.core import files
from fmapviz.data import StoredAt
from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage

_FILE = "pictures.tar"


class TarArchive:
    """Appends the pictures of images to an archive."""

    def __init__(self, archive: TarFile) -> None:
        self.members = {_FILE: 0}
        self._archive = archive

    def add(self, image: UnitImage, pictures: Iterable[Picture]) -> list[StoredAt]:
        """See `fmapviz.formats.base.Writer`."""
        pictures = list(pictures)
        named = dict(zip(_name_fields(pictures), pictures, strict=True))
        stored = [self._append(f"{image.key:010}.{field}", picture.png) for field, picture in named.items()]
        document = {
            "image": image.name,
            "path": image.path,
            "model": image.info.label,
            "predictions": [each.record for each in image.result.predictions],
            "notices": list(image.notices),
            "pictures": {
                field: {
                    "view": picture.group,
                    "layer": printable(picture.layer.layer) if picture.layer else None,
                    "width": picture.width,
                    "height": picture.height,
                    "facts": {key: printable(value) for key, value in picture.facts.items()},
                }
                for field, picture in named.items()
            },
        }
        self._append(f"{image.key:010}.json", json.dumps(document).encode())
        return stored

    def _append(self, name: str, data: bytes) -> StoredAt:
        stored = StoredAt(_FILE, self._archive.offset + BLOCKSIZE)
        append(self._archive, name, data)
        self._archive.getmembers().clear()  # else the headers of all files of a shard stay in memory
        self.members[_FILE] += 1
        return stored


def append(archive: TarFile, name: str, data: bytes) -> None:
    """Append a file to an archive, without an owner or a time."""
    header = TarInfo(name)
    header.size = len(data)
    archive.addfile(header, BytesIO(data))


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[TarArchive]:  # noqa: ARG001
    """Write pictures to one archive, `pictures.tar`."""
    with files.create(directory / _FILE) as file, TarFile(fileobj=file, mode="w", format=USTAR_FORMAT) as archive:
        yield TarArchive(archive)


def read_pictures(unit: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each picture of an archive.

    Raises:
        OSError: The archive cannot be read.
        tarfile.TarError: It is damaged.
    """
    with TarFile.open(unit / _FILE) as archive:
        yield from _pictures_in(archive)


def lasting_digest(file: BinaryIO) -> str:
    """Return the SHA-256, hexadecimal, of all pictures in an archive, one after the other.

    Raises:
        ValueError: It is no archive.
    """
    digest = hashlib.sha256()
    try:
        with TarFile.open(fileobj=file, mode="r|") as archive:
            for _, picture in _pictures_in(archive):
                digest.update(picture)
    except TarError as error:
        raise ValueError(str(error)) from error
    return digest.hexdigest()


def _pictures_in(archive: TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        content = archive.extractfile(member) if member.name.endswith(".png") else None
        if content:
            yield member.name, content.read()


def _name_fields(pictures: Sequence[Picture]) -> list[str]:
    """Name the pictures of an image: `input.png`, `l03.png`; for further pictures of a layer `l03.grads.png`.

    The number is that of the layer in the order of execution. The first view has the plain names.
    """
    first = next((picture.group for picture in pictures if picture.layer), "")
    used: Counter[str] = Counter()
    fields = []
    for picture in pictures:
        number = picture.name.partition(" ")[0] if picture.layer else ""
        stem = f"l{number}" if number.isdigit() else "all" if picture.group != "input" else "input"
        stem = stem if picture.group in {first, "input"} else f"{stem}.{picture.group}"
        used[stem] += 1
        fields.append(f"{stem}.png" if used[stem] == 1 else f"{stem}.{used[stem]}.png")
    return fields
