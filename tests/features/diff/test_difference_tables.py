"""Numbers as text are read as they were written, to the digits of float32."""

import csv
import io

import numpy as np
import pytest

from fmapviz.features.diff import tables
from fmapviz.features.diff.unit_differences import write_unit
from fmapviz.types import DIFFERENCES, Difference, ImageResult, LayerResult

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-300, 1e300, 3.4028234663852886e38, -3.4028234663852886e38, 1 / 3]


def unit(place, layers):
    """Write the numbers of layers, `(1 + C, 8)` by name, as those of an image."""
    found = [
        LayerResult(
            name, "Conv2d", 0, at, (1,), difference=Difference((None, None), numbers[1:], numbers[0], (1.0, 1.0), (at, at))
        )
        for at, (name, numbers) in enumerate(layers.items())
    ]
    place.mkdir(exist_ok=True)
    write_unit(place, ImageResult(tuple(found), (), {}))
    return place


def read(units):
    file = io.BytesIO()
    tables.write_csv(units, file)
    assert file.getvalue().endswith(b"\n")
    return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))


def numbers_of(row):
    return [float(row[name] or "nan") for name in DIFFERENCES]


def test_numbers_are_read_as_they_were(tmp_path):
    random = np.random.default_rng(0)
    size = 10.0 ** random.integers(-50, 50, (400, 8))
    numbers = np.where(random.random((400, 8)) < 0.2, random.choice(SPECIAL, (400, 8)), size * random.normal(size=(400, 8)))
    numbers[:, -1] = random.integers(0, 10**6, 400)
    rows = read([(unit(tmp_path / "a", {"features.0": numbers}), "a.png", None)])
    assert [row["channel"] for row in rows] == ["", *map(str, range(399))]
    assert np.array([numbers_of(row) for row in rows]) == pytest.approx(numbers, rel=1.3e-7, abs=0, nan_ok=True)
    assert all(row["nonfinite"].isdecimal() for row in rows)


@pytest.mark.parametrize("name", ["nan", "a,nan", 'say "x"', "1.0],[", "null", "3.4028235e+38", "two\nlines", "r\r", "é"])
def test_names_that_look_like_numbers_stay_text(tmp_path, name):
    numbers = np.full((3, 8), np.nan)
    numbers[:, -1] = 4
    units = [(unit(tmp_path / str(step), {name: numbers, f"{name}2": numbers}), f"{name}.png", step) for step in (5, 10)]
    rows = read(units)
    assert [(row["layer"], row["channel"], row["image"], row["step"]) for row in rows] == [
        (layer, channel, f"{name}.png", step)
        for step in ("5", "10")
        for layer in (name, f"{name}2")
        for channel in ("", "0", "1")
    ]
    assert all(np.isnan(numbers_of(row)[:-1]).all() and row["nonfinite"] == "4" for row in rows)


def test_an_empty_table_has_a_heading(tmp_path):
    assert read([(unit(tmp_path / "a", {}), "a.png", None)]) == []
