"""Render the sample pictures: `python sample_images/make.py [DIRECTORY]`.

Everything is computed, nothing photographed: the pictures are free of anyone's rights, and the same everywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from painting.chart import draw_chart
from painting.shapes import draw_shapes
from painting.single_shape import CLASSES, paint
from painting.still_life import render_still_life
from painting.textures import draw_textures
from painting.village import draw_village
from PIL import ExifTags, Image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

QUALITY = 92
COLOURS = 256
TURN_CLOCKWISE = 6  # the EXIF orientation of a camera held upright that stores its sensor's rows
SHAPES = {"circle": 54, "square": 79, "triangle": 68, "star": 75, "cross": 82, "ring": 89}  # seeds chosen by eye


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all pictures into a directory."""
    parser = argparse.ArgumentParser(description="Render the sample pictures.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).parent, help="default: beside this file")
    parser.add_argument("--samples", type=int, default=8, help="rays a pixel of the still life, about 1.4 seconds each")
    options = parser.parse_args(arguments)
    (options.directory / "more").mkdir(parents=True, exist_ok=True)
    write_still_lifes(options.directory, samples=options.samples)
    write_single_shapes(options.directory / "shapes")
    write_png(options.directory / "shapes.png", draw_shapes(640, 480))
    write_png(options.directory / "test_chart.png", draw_chart())
    write_png(options.directory / "more" / "textures.png", draw_textures())
    write_jpeg(options.directory / "more" / "village.jpg", Image.fromarray(draw_village()))


def write_still_lifes(directory: Path, *, samples: int) -> None:
    """Write the still life, and a smaller one that lies on its side and says so in its EXIF data."""
    upright = Image.fromarray(render_still_life(640, 480, samples=samples))
    write_jpeg(directory / "still_life.jpg", upright)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = TURN_CLOCKWISE
    lying = upright.resize((400, 300), Image.Resampling.LANCZOS).transpose(Image.Transpose.ROTATE_90)
    write_jpeg(directory / "rotated_exif.jpg", lying, exif=exif)


def write_single_shapes(directory: Path) -> None:
    """Write one picture of each shape that shapesnet knows, four times as large as it is given."""
    directory.mkdir(exist_ok=True)
    for name, seed in SHAPES.items():
        picture = paint(np.random.default_rng(seed), side=384, label=CLASSES.index(name))
        write_jpeg(directory / f"{name}.jpg", Image.fromarray(picture.pixels))


def write_jpeg(path: Path, image: Image.Image, *, exif: Image.Exif | bytes = b"") -> None:
    """Write a JPEG file and say so."""
    image.save(path, quality=QUALITY, optimize=True, exif=exif)
    report(path)


def write_png(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a PNG file with a palette, and say so."""
    palette = Image.fromarray(pixels).quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)
    report(path)


def report(path: Path) -> None:
    """Print a file's name and size."""
    print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
