"""One tar archive of pictures, as WebDataset reads it: what is of one image stands together, under one key.

Keys are ten digits and fields are numbers and words of our own: whatever files, layers and classes are called, no name can
be taken for another one's key, or for a path. A field `json` says what the others are.

Format: https://github.com/webdataset/webdataset#the-webdataset-format
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from tarfile import BLOCKSIZE, NUL, RECORDSIZE, USTAR_FORMAT, TarInfo
from typing import TYPE_CHECKING, Any

from fmapviz import files
from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from fmapviz.values import Picture, Unit

FILE = "pictures.tar"


class Archive:
    """An archive that is being written.

    Attributes:
        members: How many files are in it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0
        self.members = 0

    def add(self, key: int, unit: Unit, pictures: Sequence[Picture]) -> list[int]:
        """Append the pictures of an image.

        Args:
            key: Its number.
            unit: What is known of it.
            pictures: In order.

        Returns:
            Where the bytes of each picture begin.

        Raises:
            OSError: The disk is full, say.
        """
        fields = name_fields(pictures)
        offsets = [self._append(f"{key:010}.{field}", picture.png) for field, picture in zip(fields, pictures, strict=True)]
        described = {field: _describe(picture) for field, picture in zip(fields, pictures, strict=True)}
        document = {
            "image": unit.file.unit,
            "path": unit.file.path,
            "model": unit.info.label,
            "predictions": [each.record for each in unit.drawn.predictions],
            "notices": list(unit.notices),
            "pictures": described,
        }
        self._append(f"{key:010}.json", json.dumps(document).encode())
        return offsets

    def end(self) -> None:
        """Say that nothing follows."""
        rest = -(self._end + 2 * BLOCKSIZE) % RECORDSIZE
        self._file.write(NUL * (2 * BLOCKSIZE + rest))

    def _append(self, name: str, data: bytes) -> int:
        header = TarInfo(name)
        header.size = len(data)
        self._file.write(header.tobuf(USTAR_FORMAT))
        self._file.write(data)
        self._file.write(NUL * (-len(data) % BLOCKSIZE))
        begin = self._end + BLOCKSIZE
        self._end = begin + len(data) + -len(data) % BLOCKSIZE
        self.members += 1
        return begin


@contextmanager
def create(directory: Path) -> Iterator[Archive]:
    """Write an archive into a directory, complete when the block ends.

    Raises:
        OSError: The disk is full, say.
    """
    with files.create(directory / FILE) as file:
        archive = Archive(file)
        yield archive
        archive.end()


def name_fields(pictures: Sequence[Picture]) -> list[str]:
    """Name the pictures of an image: `input.png`, `l03.png`; where there are several of a layer, `l03.gradcam.png` too.

    The number is that of the layer in the order of execution. The first view has the plain names.
    """
    first = next((picture.group for picture in pictures if picture.source), "")
    used: Counter[str] = Counter()
    fields = []
    for picture in pictures:
        number = picture.name.partition(" ")[0] if picture.source else ""
        stem = f"l{number}" if number.isdigit() else "all" if picture.group != "input" else "input"
        stem = stem if picture.group in {first, "input"} else f"{stem}.{picture.group}"
        used[stem] += 1
        fields.append(f"{stem}.png" if used[stem] == 1 else f"{stem}.{used[stem]}.png")
    return fields


def _describe(picture: Picture) -> dict[str, Any]:
    return {
        "view": picture.group,
        "layer": printable(picture.source.layer) if picture.source else None,
        "width": picture.width,
        "height": picture.height,
        "facts": {key: printable(value) for key, value in picture.facts.items()},
    }
