"""What differs between two files is named, and rounding is told from other content."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
from cases import thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save

from fmapviz.draw import png
from fmapviz.run.compared_files import compare_files


def differences(name, old, new):
    return [(each.message, each.is_rounding) for each in compare_files(name, old, new)]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 59))
def test_the_pixels_of_a_grey_picture_are_counted(before, after, position):
    pixels = np.full((6, 10), before, np.uint8)
    changed = pixels.copy()
    changed.flat[position] = after
    found = differences("a.png", png.encode(pixels), png.encode(changed))
    apart = abs(before - after)
    levels = f"{apart} grey level{'s' if apart > 1 else ''}"
    assert found == ([(f"1 of 60 pixels differs, by up to {levels}", apart <= 1)] if apart else [])


@settings(deadline=None, max_examples=40)
@given(st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32))
def test_a_number_in_an_array_is_compared_with_the_largest(one, other):
    arrays = [np.array([1000.0, value, 0], np.float32) for value in (one, other)]
    of_npz = []
    for array in arrays:
        np.savez(buffer := BytesIO(), layer=array)
        of_npz.append(buffer.getvalue())
    for name, old, new in (("raw.safetensors", *(save({"layer": array}) for array in arrays)), ("raw.npz", *of_npz)):
        if old != new:
            ((message, is_rounding),) = differences(name, old, new)
            if arrays[0].tobytes() != arrays[1].tobytes() and one != other:
                assert message.startswith("1 number differs, by up to ")
            assert is_rounding is not False or abs(one - other) > 0.99


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"min": 1.0}, {"min": 1.0001}, True),
        ({"min": 1.0}, {"min": 1.1}, None),
        ({"class": "star"}, {"class": "ring"}, None),
    ],
)
def test_numbers_in_texts_may_be_rounded(old, new, expected):
    ((_, is_rounding),) = differences("a.json", json.dumps(old).encode(), json.dumps(new).encode())
    assert bool(is_rounding) == bool(expected)


@pytest.mark.parametrize("name", ["a.png", *thorough("raw.safetensors", "raw.npz", "stats.parquet", "a.svg", "unknown")])
@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=80))
def test_no_content_makes_the_comparison_fail(name, data):
    whole = png.encode(np.zeros((3, 4), np.uint8))
    assert all(isinstance(message, str) for message, _ in differences(name, whole + data, data + whole))
    assert all(isinstance(message, str) for message, _ in differences(name, data, whole))


def test_the_same_pixels_in_other_bytes_are_no_other_content():
    pixels = np.arange(60, dtype=np.uint8).reshape(6, 10)
    Image.fromarray(pixels).save(buffer := BytesIO(), "PNG", compress_level=0)
    assert differences("a.png", png.encode(pixels), buffer.getvalue()) == [("the same content in other bytes", True)]
