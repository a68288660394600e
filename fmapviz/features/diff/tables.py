"""Write how two networks differ as tables: a row for each layer of each image, and below it one for each of its channels."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import orjson

from fmapviz.data import DIFFERENCES
from fmapviz.features.diff.unit_differences import read_unit_differences
from fmapviz.store.aggregates.csv_rows import csv_row

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Compared = tuple[Path, str, int | None]  # a unit, the name of its image, and its step

_HEADING = ("layer", "channel", "image", "step", *DIFFERENCES)
_SMALLEST, _LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max  # between them, float32 has all its digits
_LARGEST_TEXT = orjson.dumps(_LARGEST, option=orjson.OPT_SERIALIZE_NUMPY)


def write_csv(units: Iterable[Compared], file: BinaryIO) -> None:
    """Write a CSV file; `channel` is empty for the layer as a whole, and so is a number that does not exist."""
    file.write(",".join(_HEADING).encode())
    for unit, image, step in units:
        known = [
            (layer.name, np.concatenate([whole[None], channels]))
            for layer, whole, channels, _ in read_unit_differences(unit).rows
        ]
        if not known:
            continue
        beginnings = chain.from_iterable(_beginnings(name, len(numbers)) for name, numbers in known)
        own = encode("," + csv_row([image, "" if step is None else str(step)]) + ",")
        numbers = _written(np.concatenate([each for _, each in known]))
        file.write(b"".join(chain.from_iterable(zip(beginnings, repeat(own), numbers, strict=False))))
    file.write(b"\n")


@lru_cache(maxsize=512)  # most images of a run have the same layers
def _beginnings(layer: str, count: int) -> list[bytes]:
    first = encode(f"\n{csv_row([layer])},")
    return [first, *(first + str(channel).encode() for channel in range(count - 1))]


def encode(text: str) -> bytes:
    r"""Encode text as UTF-8; bytes of a file name that are no text become `\udc..`."""
    return text.encode("utf-8", "backslashreplace")


def _written(numbers: Numbers) -> list[bytes]:
    """Return rows of numbers as text, with enough digits for float32; the last number is a count.

    Most of the time is what it takes to turn numbers into text, of which orjson needs a twentieth of Python's. It writes
    null for what is not finite, so infinity is written as the largest number of float32.
    """
    with np.errstate(over="ignore", under="ignore"):
        short = numbers.astype(np.float32)
    size = np.abs(short)
    infinite = np.isinf(numbers)
    short[infinite] = np.copysign(_LARGEST, short[infinite])
    text = orjson.dumps(short, option=orjson.OPT_SERIALIZE_NUMPY)[2:].removesuffix(b".0]]")
    rows = text.replace(b"null", b"").replace(_LARGEST_TEXT, b"inf").split(b".0],[")
    # Numbers for which float32 has too few digits, or none.
    exact = ((size >= _SMALLEST) & (size < _LARGEST)) | (numbers == 0) | ~np.isfinite(numbers)
    for at in np.flatnonzero(~exact.all(1)):
        values = [*numbers[at, :-1].tolist(), int(numbers[at, -1])]
        rows[at] = b",".join(b"" if np.isnan(value) else b"%.9g" % value for value in values)
    return rows
