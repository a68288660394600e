"""One SVG file per picture, for papers: texts as text."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as PillowImage

from fmapviz.core import files
from fmapviz.draw.layout import picture as box_of
from fmapviz.draw.svg import to_svg
from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage


def _write(directory: Path, _image: UnitImage, pictures: Iterable[Picture]) -> None:
    """Write files named by layer and view, `00_features.0.maps.svg`; the input has none."""
    for picture in pictures:
        if picture.group != "input":
            name = f"{picture.file_name.removesuffix('.png')}.svg"
            files.write(directory / name, (picture.svg or _embed(picture)).encode("ascii", "xmlcharrefreplace"))


def _embed(picture: Picture) -> str:
    """Return a picture whose texts are pixels: a sheet of several layers, or of top images."""
    with PillowImage.open(BytesIO(picture.png), formats=("PNG",)) as whole:
        pixels = np.asarray(whole.convert("RGB"))
    return to_svg(box_of(pixels), 0, title=picture.title or picture.name, facts=picture.facts)


open_writer = base.separate_files(_write)
