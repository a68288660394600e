"""Compare the files of a unit with those of the same unit drawn again, and describe the differences."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from io import BytesIO
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import safetensors.numpy
from PIL import Image as PillowImage

from fmapviz.core.file_names import UNIT_FILE
from fmapviz.core.members import load
from fmapviz.core.words import counted
from fmapviz.errors import printable
from fmapviz.store.digest import lasting_files
from fmapviz.store.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

# What rounding changes at most: a grey level, which is several levels of a colour in a colour map; digits of a number.
_GREY, _COLOUR, _RELATIVE, _ABSOLUTE = 1, 8, 1e-3, 1e-4
_PNG = re.compile(rb"\x89PNG\r\n\x1a\n.*?IEND\xaeB`\x82", re.DOTALL)
_NUMBER = re.compile(r"(-?\d+(?:\.\d*)?(?:e[-+]?\d+)?)")
_NOT_COMPARED = ("files", "sha256")  # of a record: its files are compared one by one


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that differs.

    Attributes:
        name: Its name.
        message: How much.
        is_rounding: Whether rounding may explain it; None: unknown, so that the other files of the unit decide.
    """

    name: str
    message: str
    is_rounding: bool | None = False

    def __str__(self) -> str:
        return f"{printable(self.name)}: {self.message}"


def compare_units(unit: Path, again: Path, open_file: Callable[[Path], BinaryIO]) -> list[FileDifference]:
    """Return the files in which a unit and the same unit drawn again differ; times in event files do not count.

    Args:
        unit: The unit, whose files are as its record lists them.
        again: The other one, in a local directory.
        open_file: Opens a file of the unit.
    """
    mine, theirs = read_unit(unit), read_unit(again)
    if mine is None or theirs is None:
        return [FileDifference(UNIT_FILE, "damaged")]
    before, after = ({entry["name"]: entry["sha256"] for entry in record["files"]} for record in (mine, theirs))
    found: list[FileDifference] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            found.append(
                FileDifference(name, "only the network draws it" if name not in before else "the network draws none")
            )
        elif before[name] != after[name]:
            with open_file(unit / name) as file:
                found += compare_files(name, file.read(), (again / name).read_bytes())
    records = ({name: value for name, value in record.items() if name not in _NOT_COMPARED} for record in (mine, theirs))
    old, new = (json.dumps(record, indent=0) for record in records)
    if old != new:
        found.append(_compare_texts(UNIT_FILE, old, new))
    if any(each.is_rounding is False for each in found) or not any(each.is_rounding for each in found):
        return found
    return [each if each.is_rounding else FileDifference(each.name, each.message, is_rounding=True) for each in found]


def compare_files(name: str, old: bytes, new: bytes) -> Iterator[FileDifference]:
    """Yield the differences of two files of a name, whatever they hold."""
    lasting = lasting_files().get(name)
    if old == new:
        return
    if lasting and load(lasting)(BytesIO(old)) == load(lasting)(BytesIO(new)):
        return  # times alone differ
    try:
        if pictures := _compare_pictures(name, old, new):
            yield from pictures
        elif name.endswith((".safetensors", ".npz", ".parquet")):
            yield _compare_arrays(name, _arrays_in(name, old), _arrays_in(name, new))
        else:
            yield _compare_texts(name, old.decode("latin-1"), new.decode("latin-1"), unknown=True)
    except Exception as error:  # noqa: BLE001  of a decoder; the file may be forged
        yield FileDifference(name, f"cannot be compared: {type(error).__name__}")


def _compare_pictures(name: str, old: bytes, new: bytes) -> list[FileDifference]:
    """Compare the pictures in two files; nothing if there is none, or the pictures are equal."""
    pairs = list(zip_longest(_PNG.findall(old), _PNG.findall(new)))
    if name.endswith(".js"):  # the report's copies of pictures, which are not written as they are
        return []
    named = [name if len(pairs) == 1 else f"{name}, picture {number}" for number in range(1, len(pairs) + 1)]
    found = (
        FileDifference(place, "one picture more or less") if None in pair else _compare_png(place, *pair)
        for place, pair in zip(named, pairs, strict=True)
        if pair[0] != pair[1]
    )
    return list(found)


def _compare_png(name: str, old: bytes, new: bytes) -> FileDifference:
    first, second = (PillowImage.open(BytesIO(data)) for data in (old, new))
    texts = [json.dumps(getattr(picture, "text", {})) for picture in (first, second)]
    is_grey = first.mode == second.mode == "L"
    mine, theirs = (np.asarray(picture.convert("L" if is_grey else "RGBA"), np.int16) for picture in (first, second))
    if mine.shape != theirs.shape:
        sizes = [f"{pixels.shape[1]} x {pixels.shape[0]}" for pixels in (mine, theirs)]
        return FileDifference(name, f"{sizes[0]} pixels, not {sizes[1]}")
    apart = np.abs(mine - theirs)
    pixels = int((apart if is_grey else apart.max(2)).astype(bool).sum())
    if not pixels:
        return _compare_texts(name, *texts, what="the facts in it")
    most = int(apart.max())
    levels = f"{'grey ' if is_grey else ''}level{'' if most == 1 else 's'}"
    in_all = apart.shape[0] * apart.shape[1]
    message = f"{pixels:,} of {counted(in_all, 'pixel')} {'differs' if pixels == 1 else 'differ'}, by up to {most} {levels}"
    return FileDifference(name, message, is_rounding=most <= (_GREY if is_grey else _COLOUR))


def _arrays_in(name: str, data: bytes) -> dict[str, NDArray[Any]]:  # Any: of several types
    """Return the arrays of numbers in a file by name."""
    if name.endswith(".safetensors"):
        return dict(safetensors.numpy.load(data))
    if name.endswith(".npz"):
        with np.load(BytesIO(data)) as arrays:
            return {each: arrays[each] for each in arrays.files}
    import pyarrow.parquet  # noqa: PLC0415  of an extra, which only shards need

    table = pyarrow.parquet.read_table(BytesIO(data))
    return {each: table.column(each).to_numpy() for each in table.column_names}


def _compare_arrays(name: str, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> FileDifference:
    if old.keys() != new.keys() or any(old[key].shape != new[key].shape for key in old):
        return FileDifference(name, "other arrays")
    unequal = [key for key in old if old[key].tobytes() != new[key].tobytes()]
    if any(old[key].dtype.kind not in "fiu" for key in unequal):
        unequal = [key for key in unequal if old[key].tolist() != new[key].tolist()]
    if not unequal:
        return FileDifference(name, "the facts in it", is_rounding=None)
    if any(old[key].dtype.kind not in "fiu" for key in unequal):
        return FileDifference(name, f"other values of {printable(unequal[0])}")
    apart = {key: _distance(old[key].astype(np.float64), new[key].astype(np.float64)) for key in unequal}
    key = max(apart, key=apart.__getitem__)
    numbers = int(sum((old[each] != new[each]).sum() for each in unequal))
    verb = "differs" if numbers == 1 else "differ"
    message = f"{counted(numbers, 'number')} {verb}, by up to {apart[key]:.1e} of the largest in {printable(key)}"
    return FileDifference(name, message, is_rounding=apart[key] <= _RELATIVE)


def _distance(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Return the largest difference, relative to the largest finite number."""
    finite = np.isfinite(old) & np.isfinite(new)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return float("inf")
    old, new = old[finite], new[finite]
    return float(np.abs(old - new).max(initial=0) / (np.abs(old).max(initial=0) or 1))


def _compare_texts(name: str, old: str, new: str, *, what: str = "", unknown: bool = False) -> FileDifference:
    """Compare texts with numbers in them; `unknown`: other words may follow from other files."""
    mine, theirs = _NUMBER.split(old), _NUMBER.split(new)
    if mine[::2] != theirs[::2]:
        line = next((each for each, other in zip_longest(old.splitlines(), new.splitlines()) if each != other), None)
        shown = f": {printable(line[:60])}" if line and not unknown else ""
        return FileDifference(name, f"{what or 'another text'}{shown}", is_rounding=None if unknown else False)
    pairs = [(float(one), float(other)) for one, other in zip(mine[1::2], theirs[1::2], strict=True) if one != other]
    if not pairs:
        return FileDifference(name, "the same content in other bytes", is_rounding=True)
    far = [abs(one - other) > max(_ABSOLUTE, _RELATIVE * max(abs(one), abs(other))) for one, other in pairs]
    verb = "differs" if len(pairs) == 1 else "differ"
    one, other = next((pair for pair, is_far in zip(pairs, far, strict=True) if is_far), pairs[0])
    message = f"{f'{what}: ' if what else ''}{counted(len(pairs), 'number')} {verb}: {one:g}, not {other:g}"
    return FileDifference(name, message, is_rounding=not any(far))
