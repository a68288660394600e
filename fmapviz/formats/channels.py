"""One PNG file per channel of each grid."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as PillowImage

from fmapviz.core import files
from fmapviz.core.drawings import Grid
from fmapviz.draw.png import encode
from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage


def _write(directory: Path, _image: UnitImage, pictures: Iterable[Picture]) -> None:
    """Write the tiles of each grid as they are in it, to `00_features.0.maps.channel07.png`; bars of a vector have none."""
    for picture in pictures:
        grid = picture.drawing.content if picture.drawing else None
        if picture.tiles is None or not isinstance(grid, Grid) or grid.bars:
            continue
        with PillowImage.open(BytesIO(picture.png), formats=("PNG",)) as whole:
            pixels = np.asarray(whole)
        tiles, channels = picture.tiles, grid.channels or range(picture.tiles.count)
        digits = len(str(max(grid.total - 1, *channels)))  # the same for any choice of channels
        for at, channel in enumerate(channels):
            left, top = tiles.corner(at)
            tile = np.ascontiguousarray(pixels[top : top + tiles.height, left : left + tiles.width])
            name = f"{picture.file_name.removesuffix('.png')}.channel{channel:0{digits}d}.png"
            files.write(directory / name, encode(tile, {**picture.facts, "Channel": str(channel)}))


open_writer = base.separate_files(_write)
