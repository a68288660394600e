"""The sample pictures: small, of fixed sizes, and equal to the output of their script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

FOLDER = Path(__file__).parents[2] / "sample_images"
SIZES = {
    "more/textures.png": (480, 320),
    "more/village.jpg": (360, 540),
    "rotated_exif.jpg": (300, 400),
    "shapes.png": (640, 480),
    "shapes/circle.jpg": (384, 384),
    "shapes/cross.jpg": (384, 384),
    "shapes/ring.jpg": (384, 384),
    "shapes/square.jpg": (384, 384),
    "shapes/star.jpg": (384, 384),
    "shapes/triangle.jpg": (384, 384),
    "still_life.jpg": (640, 480),
    "test_chart.png": (640, 480),
}
RENDERED = ("rotated_exif.jpg", "still_life.jpg")


@pytest.mark.thorough
def test_the_script_draws_the_committed_pictures_again(tmp_path):
    # -B: no __pycache__ among the samples. One ray a pixel instead of eight: 2 seconds instead of 11.
    command = [sys.executable, "-B", "-W", "error", FOLDER / "make.py", tmp_path, "--samples", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert pictures(tmp_path) == pictures(FOLDER) == sorted(SIZES)
    for name in SIZES:
        # Fewer rays make rougher edges, which says nothing about the script; half the size evens them out.
        factor = 2 if name in RENDERED else 1
        assert difference(load(tmp_path / name).reduce(factor), load(FOLDER / name).reduce(factor)) < 2, name


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_picture_has_its_size_and_is_small(name, size):
    assert load(FOLDER / name).size == size
    assert (FOLDER / name).stat().st_size < 150_000


def test_all_pictures_together_are_small():
    assert sum((FOLDER / name).stat().st_size for name in SIZES) < 700_000
    assert all((FOLDER / name).stat().st_size < 60_000 for name in SIZES if name.startswith("shapes/"))


def test_only_the_picture_on_its_side_is_oriented():
    oriented = {name: load(FOLDER / name).getexif().get(ExifTags.Base.Orientation) for name in SIZES}
    assert oriented == dict.fromkeys(SIZES) | {"rotated_exif.jpg": 6}


def test_the_picture_on_its_side_is_the_still_life_once_turned():
    upright = load(FOLDER / "still_life.jpg").resize((400, 300), Image.Resampling.LANCZOS)
    turned = ImageOps.exif_transpose(load(FOLDER / "rotated_exif.jpg"))
    assert turned.size == upright.size
    assert difference(turned, upright) < 2
    assert difference(turned.rotate(180), upright) > 20


def pictures(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in {".png", ".jpg"})


def load(path):
    with Image.open(path) as image:
        return image.convert("RGB")


def difference(first, second):
    assert first.size == second.size
    return np.abs(np.asarray(first, np.float32) - np.asarray(second, np.float32)).mean()
