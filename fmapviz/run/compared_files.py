"""Compare the files of a unit with those of the same unit drawn again, and describe the differences."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core import checksummed_json
from fmapviz.core.file_names import RUN_FILE, UNIT_FILE
from fmapviz.core.members import load
from fmapviz.core.words import counted
from fmapviz.errors import printable
from fmapviz.formats.tensorboard.image_summary import literal
from fmapviz.run.file_contents import Floats, Pixels, Text, content_of, record_of
from fmapviz.run.recorded import versions_of
from fmapviz.store.digest import lasting_files
from fmapviz.store.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from fmapviz.run.file_contents import Tree

    Pairs = frozenset[tuple[str, str]]

# What rounding changes at most: a grey level, which is several levels of a colour in a colour map; digits of a number.
_GREY, _COLOUR, _RELATIVE = 1, 8, 1e-3
_NUMBER = re.compile(r"(?<![\w.+-])(-?\d+(?:\.\d+)?(?:e[+-]\d+)?)(?!\w|\.\w)")
_POINT = re.compile(r"[.e]")  # of a number that is no integer
_FIXED = re.compile(r"-?\d\.\d{3}")  # a cosine
_PERCENT = re.compile(r"\d+\.\d")


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that differs.

    Attributes:
        name: Its name.
        message: How much.
        is_rounding: Whether rounding may explain it.
    """

    name: str
    message: str
    is_rounding: bool = False

    def __str__(self) -> str:
        return f"{printable(self.name)}: {self.message}"


def compare_units(
    unit: Path, again: Path, open_file: Callable[[Path], BinaryIO], *, classes: Iterable[str] = ()
) -> list[FileDifference]:
    """Return the files in which a unit and the same unit drawn again differ; times in event files do not count.

    Args:
        unit: The unit, whose files are as its record lists them.
        again: The other one, in a local directory.
        open_file: Opens a file of the unit.
        classes: Names of the network's classes, in which numbers are no results.
    """
    names = tuple(classes)
    records = read_unit(unit), read_unit(again)
    if records[0] is None or records[1] is None:
        return [FileDifference(UNIT_FILE, "damaged")]

    def read(name: str) -> bytes:
        with open_file(unit / name) as file:
            return file.read()

    def read_again(name: str) -> bytes:
        return (again / name).read_bytes()

    versions = _versions(unit, again)
    before, after = ({entry["name"]: entry["sha256"] for entry in record["files"]} for record in records if record)
    found: list[FileDifference] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            found.append(
                FileDifference(name, "only the network draws it" if name not in before else "the network draws none")
            )
        elif before[name] != after[name]:
            found += compare_files(name, read, read_again, versions=versions, classes=names)
    kept = [checksummed_json.read(each / UNIT_FILE) for each in (unit, again)]
    comparison = _Comparison(UNIT_FILE, versions, _Names.of(names))
    return found + list(_compare_contents(comparison, lambda: (record_of(kept[0]), record_of(kept[1]))))


def _versions(unit: Path, again: Path) -> Pairs:
    """Return the texts by which the versions that drew two units are named in them, each with that of the other unit."""
    runs = [
        next(filter(None, (checksummed_json.load(path / RUN_FILE) for path in each.parents)), {}) for each in (unit, again)
    ]
    there, here = map(versions_of, runs)
    pairs = {(there[name], here[name]) for name in here if name in there}
    old, new = there.get("fmapviz", ""), here.get("fmapviz", "")
    return frozenset({*pairs, *([] if "+" in old else [(f"fmapviz {old}", f"fmapviz {new}")])})  # free words follow a plus


def compare_files(
    name: str,
    read: Callable[[str], bytes],
    read_again: Callable[[str], bytes],
    *,
    versions: Pairs = frozenset(),
    classes: Iterable[str] = (),
) -> Iterator[FileDifference]:
    """Yield the differences of two files of a name, whatever they hold.

    Only numbers that a network computes, and pixels that are drawn of them, may be rounded. All else must be the same.

    Args:
        name: The name.
        read: Returns the bytes of a file of the unit.
        read_again: Returns the bytes of a file of the unit that was drawn again.
        versions: Texts in the one that may stand for others in the other one.
        classes: Names of the network's classes.
    """
    old, new = read(name), read_again(name)
    if old == new:
        return
    comparison = _Comparison(name, versions, _Names.of(classes))
    found = list(_compare_contents(comparison, lambda: (content_of(name, old, read), content_of(name, new, read_again))))
    lasting = lasting_files().get(name)
    if not found and not (lasting and load(lasting)(BytesIO(old)) == load(lasting)(BytesIO(new))):  # not times alone
        found.append(FileDifference(name, "the same content in other bytes", is_rounding=True))
    yield from found


def _compare_contents(comparison: _Comparison, parse: Callable[[], tuple[Tree, Tree]]) -> Iterator[FileDifference]:
    try:
        comparison.compare(*parse(), "")
        yield from comparison.differences()
    except Exception as error:  # noqa: BLE001  of a decoder; the file may be forged
        yield FileDifference(comparison.name, f"cannot be compared: {printable(str(error))[:80] or type(error).__name__}")


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of classes, as texts hold them.

    Attributes:
        pattern: Matches such a name, where a name may stand, or as the group `number` a number that is no part of one.
        numbers: The numbers in names.
    """

    pattern: re.Pattern[str]
    numbers: frozenset[str]

    @classmethod
    def of(cls, classes: Iterable[str]) -> _Names:
        known = [name for name in classes if any(map(str.isdigit, name))]
        forms = (str, printable, literal, lambda name: escape(printable(name), quote=False))  # of SVG and TensorBoard, too
        written = sorted({form(name) for form in forms for name in known}, key=len, reverse=True)
        any_name = "|".join([*map(re.escape, written), r"class \d+"])
        pattern = rf"(?:^|(?<=, )|(?<=: ))(?:{any_name})(?=[ ,:(]|$)|(?P<number>{_NUMBER.pattern})"
        return cls(re.compile(pattern), frozenset(_NUMBER.findall("\n".join(known))))

    def split(self, text: str) -> tuple[list[str], list[str]]:
        """Return what is around the numbers of a text, one more than these, and the numbers."""
        found = [match for match in self.pattern.finditer(text) if match["number"]]
        ends = [0, *(match.end() for match in found)]
        begins = [*(match.start() for match in found), len(text)]
        return [text[end:begin] for end, begin in zip(ends, begins, strict=True)], [match["number"] for match in found]


@dataclass(slots=True)
class _Comparison:
    """Collects the differences of two contents of a file."""

    name: str
    versions: Pairs
    names: _Names
    pictures: list[FileDifference] = field(default_factory=list)
    others: list[FileDifference] = field(default_factory=list)
    numbers: int = 0
    worst: tuple[bool, float, str] = (False, 0.0, "")  # whether it is too far, relative to the largest, and where

    def differences(self) -> Iterator[FileDifference]:
        yield from self.pictures
        yield from self.others[:1]
        is_far, ratio, place = self.worst
        if self.numbers:
            verb = "differs" if self.numbers == 1 else "differ"
            named = printable(place.removeprefix("arrays.").removesuffix(".values"))
            of = f" in {named}" if named else ""
            message = f"{counted(self.numbers, 'number')} {verb}, by up to {ratio:.1e} of the largest{of}"
            yield FileDifference(self.name, message, is_rounding=not is_far)

    def compare(self, old: Tree, new: Tree, place: str) -> None:
        """Compare two trees at a place."""
        if type(old) is not type(new):
            self._differ(old, new, place)
        elif isinstance(old, dict):
            if list(old) != list(new):
                self._differ(", ".join(map(str, old)), ", ".join(map(str, new)), place)
                return
            for key in old:
                self.compare(old[key], new[key], f"{place}.{key}".lstrip("."))
        elif isinstance(old, list | tuple):
            if len(old) != len(new):
                self._differ(f"{len(old)} entries", len(new), place)
                return
            for one, other in zip(old, new, strict=True):
                self.compare(one, other, place)
        elif isinstance(old, Pixels):
            self._compare_pixels(old, new, place)
        elif isinstance(old, Floats):
            self._compare_numbers(old, new, place)
        elif isinstance(old, Text):
            self._compare_texts(old, new, place)
        elif old != new and not (isinstance(old, str) and (old, new) in self.versions):
            self._differ(old, new, place)

    def _differ(self, old: Any, new: Any, place: str) -> None:  # Any: of any type
        values = [each.values.tolist() if isinstance(each, Floats) else each for each in (old, new)]
        words = [printable(str(each))[:60] for each in values if not isinstance(each, bytes)]
        shown = ", not ".join(words) if words else "other bytes"
        self.others.append(FileDifference(self.name, f"{f'{printable(place)}: ' if place else ''}{shown}"))

    def _compare_pixels(self, one: Pixels, other: Pixels, place: str) -> None:
        old, new = (each.values.astype(np.int16) for each in (one, other))
        if old.shape != new.shape:
            return  # the header differs, too
        apart = np.abs(old - new)
        is_grey = apart.ndim == 2
        pixels = int((apart if is_grey else apart.max(2)).astype(bool).sum())
        if not pixels:
            return
        most = int(apart.max())
        levels = f"{'grey ' if is_grey else ''}level{'' if most == 1 else 's'}"
        in_all, verb = apart.shape[0] * apart.shape[1], "differs" if pixels == 1 else "differ"
        message = f"{pixels} of {counted(in_all, 'pixel')} {verb}, by up to {most} {levels}"
        name = f"{self.name}, {place.removesuffix('.pixels')}" if place != "pixels" else self.name
        self.pictures.append(FileDifference(name, message, is_rounding=most <= (_GREY if is_grey else _COLOUR)))

    def _compare_numbers(self, old: Floats, new: Floats, place: str) -> None:
        before, after = (np.asarray(each.values, np.float64) for each in (old, new))
        finite = np.isfinite(after)
        if before.shape != after.shape or not np.array_equal(before[~finite], after[~finite], equal_nan=True):
            self._differ("other numbers", "those", place)
            return
        before, after = before[finite], after[finite]
        scale = np.broadcast_to(new.scale, finite.shape)[finite]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            apart = np.abs(before - after)
            ratio = np.where(apart > 0, apart / scale, 0)
        is_near = apart <= np.maximum(_RELATIVE * scale, new.absolute)  # False for NaN
        self._count(int((before != after).sum()), is_far=not is_near.all(), ratio=float(ratio.max(initial=0)), place=place)

    def _compare_texts(self, old: Text, new: Text, place: str) -> None:
        (around, mine), (expected, theirs) = self.names.split(old.text), self.names.split(new.text)
        if around != expected:
            self._differ(old.text, new.text, place)
            return
        of_names = new.names | self.names.numbers if new.is_line else new.names
        of_shares = (behind.startswith(" %") for behind in expected[1:])
        scaling = [each for each, is_share in zip(theirs, of_shares, strict=True) if not is_share]
        scaling += self.names.split(new.scale)[1]
        scale = max((abs(float(each)) for each in scaling if not each.isdigit()), default=0.0)
        for one, other, behind in zip(mine, theirs, expected[1:], strict=True):
            if one != other:
                form = _PERCENT if behind.startswith(" %") else _FIXED if new.is_fixed and _FIXED.fullmatch(other) else None
                are_computed = all(form.fullmatch(each) if form else _is_computed(each) for each in (one, other))
                if other in of_names or not are_computed or not (_POINT.search(one) or _POINT.search(other)):
                    self._differ(old.text, new.text, place)
                    return
                apart = abs(float(one) - float(other))
                is_near = apart <= 1.001 * (0.1 if form is _PERCENT else 1e-3 if form is _FIXED else _RELATIVE * scale)
                self._count(1, is_far=not is_near, ratio=apart / scale if scale else float("inf"), place=place)

    def _count(self, numbers: int, *, is_far: bool, ratio: float, place: str) -> None:
        self.numbers += numbers
        self.worst = max(self.worst, (is_far, ratio, place))


def _is_computed(text: str) -> bool:
    """Return True for a number with the digits that computed numbers are written with; a name may be 2.10."""
    return any(f"{float(text):.{digits}g}" == text for digits in (4, 9))
