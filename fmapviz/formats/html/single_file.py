"""Read the files that the report's page embeds with `--single-file`: scripts as JSON, pictures in base64."""

from __future__ import annotations

import os
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from fmapviz.core import files
from fmapviz.core.words import counted
from fmapviz.errors import RefusedError
from fmapviz.formats.html.page import read_script, to_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

LARGEST = 18_000_000  # bytes: in a mail an attachment grows by 37 %, and most providers accept 25 MB


def embed(units: Mapping[str, Path], *, script: str, without: Collection[str] = ()) -> dict[str, str]:
    """Return the content of each file that the page shows, by its address relative to the page.

    Missing and damaged files are left out; the page says so in their places.

    Args:
        units: The directories of the units by their addresses, which end in `/`.
        script: The name of a unit's script.
        without: Addresses of files that the page does not show.

    Raises:
        RefusedError: They are larger than the page may be.
    """
    embedded: dict[str, str] = {}
    size = 0
    for number, (address, directory) in enumerate(units.items(), 1):
        for name, content in _read(directory, script):
            if address + name in without:
                continue
            embedded[address + name] = content
            size += len(content)
        if size > LARGEST:
            raise too_large(number)
    return embedded


def too_large(images: int) -> RefusedError:
    """Return the error for a page that is too large with its number of images."""
    return RefusedError(
        f"the pictures of {counted(images, 'image')} exceed the {LARGEST // 1_000_000} MB of a single file",
        hint="fewer images, layers= or views=; without single_file=True the same call continues, pictures beside the page",
    )


def _read(directory: Path, script: str) -> list[tuple[str, str]]:
    contents: list[tuple[str, str]] = []
    with suppress(OSError, ValueError, KeyError, TypeError):
        unit: dict[str, Any] = read_script(files.read(directory / script))
        for picture in unit["pictures"]:
            if "histogram" not in picture:  # the page draws it
                content = files.read(directory / os.fsdecode(unquote_to_bytes(picture["href"])))
                contents.append((picture["href"], b64encode(content).decode()))
        contents.append((script, to_json({**unit, "source": ""})))  # a path of this computer
    return contents
