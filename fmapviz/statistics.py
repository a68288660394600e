"""What each channel's values are like over a whole run, put together from what is known of each image.

Every image's directory keeps what its own values are like. The run's statistics are made of these, always in the order of
the directories' names, so they are equal to the last digit however a run was divided, interrupted or resumed.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fmapviz.records import Json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.values import Drawn, Measures

FILE, CSV_FILE, JSON_FILE = "stats.safetensors", "stats.csv", "stats.json"
_Key = tuple[str, str, str, int]
_Described = tuple[str, str, str, str, int, int]  # the fields of a `Place`, and the number of a channel's values
_COUNTS = ("zeros", "nonfinite")
_COLUMNS = ("low", "high", "mean", "std", "zeros", "nonfinite")
_NONE = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Place:
    """Which feature map the statistics are of.

    Attributes:
        layer: Its name.
        of: What of the layer: `output`, `input`, `gradient`, `input gradient`.
        target: Of gradients what the class was asked for as, else empty.
        type: The layer's class.
        channels: How many.
    """

    layer: str
    of: str
    target: str
    type: str
    channels: int


@dataclass(eq=False)
class LayerStatistics:
    """What the channels of one feature map are like over all images.

    Attributes:
        place: Which feature map.
        images: Of how many images.
        values: How many values each channel had in all of them, those that are not finite included.
        low: Smallest finite value, float64 `(C)`; NaN where there is none.
        high: Largest finite value, likewise.
        mean: Of the finite values, likewise.
        scatter: Sum of their squared distances from the mean, float64 `(C)`.
        zeros: How many values are exactly zero, int64 `(C)`.
        nonfinite: How many are NaN or infinite, int64 `(C)`.
        dead: Whether all values were the same within every single image, bool `(C)`; where an image gives a channel a single
            value, whether it was the same in all images.
    """

    place: Place
    images: int
    values: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]
    zeros: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    dead: NDArray[np.bool_]
    single: bool

    @property
    def deviation(self) -> NDArray[np.float64]:
        """Standard deviation of the finite values, divided by their number, float64 `(C)`; NaN where there is none."""
        finite = self.values - self.nonfinite
        mean_square: NDArray[np.float64] = np.divide(
            self.scatter, finite, out=np.full(len(finite), np.nan), where=finite > 0
        )
        return np.sqrt(mean_square)

    @property
    def zero_share(self) -> NDArray[np.float64]:
        """Share of values that are exactly zero, 0..1, float64 `(C)`."""
        return self.zeros / self.values

    @cached_property
    def digits(self) -> dict[str, list[str]]:
        """The numbers of all channels as they are written, once for all files: to make text takes longest."""
        numbers = {"min": self.low, "max": self.high, "mean": self.mean, "std": self.deviation, "zeros": self.zero_share}
        return {name: _digits(values) for name, values in numbers.items()}

    @property
    def constant(self) -> list[int]:
        """The channels that never vary: all of their values, of all images, are the same."""
        same = (self.low == self.high) & (self.nonfinite == 0) & (self.values > 1)
        return [int(channel) for channel in same.nonzero()[0]]

    @property
    def flat(self) -> list[int]:
        """The channels that are constant on every image, those that never vary among them."""
        return self.constant if self.single else [int(channel) for channel in self.dead.nonzero()[0]]


def encode(drawn: Drawn) -> bytes:
    """Write what is known of one image's channels as a safetensors file.

    It holds `low`, `high`, `mean` and `std`, float32, and the numbers of `zeros` and of `nonfinite` values, uint32, of the
    channels of all layers one after the other; its metadata says which. Of these two, what is zero everywhere is left out.
    """
    layout, columns = columns_of(drawn)
    needed = {name: values for name, values in columns.items() if name not in _COUNTS or values.any()}
    return save(needed, {"layers": layout})


def columns_of(drawn: Drawn) -> tuple[str, dict[str, NDArray[Any]]]:
    """Give what is known of one image's channels, of all layers one after the other, and in JSON what they are of."""
    places: dict[_Described, Measures] = {}
    for drawing in drawn.drawings:
        measures = drawing.measures
        if measures is not None:
            label = drawing.target.label if drawing.target else ""
            place = (drawing.layer, drawing.of, label, drawing.type, len(measures.low), measures.values)
            places.setdefault(place, measures)
    columns = {
        column: np.concatenate(
            [_NONE, *(getattr(measures, column) for measures in places.values())],
            dtype=np.uint32 if column in _COUNTS else np.float32,
            casting="unsafe",
        )
        for column in _COLUMNS
    }
    return _describe(tuple(places)), columns


@lru_cache(maxsize=16)
def _describe(layout: tuple[_Described, ...]) -> str:
    """Say what the channels are of: most images of a run have the same layers."""
    names = ("layer", "of", "target", "type", "channels", "values")
    return json.dumps([dict(zip(names, place, strict=True)) for place in layout])


def gather(units: Iterable[Path]) -> tuple[int, list[LayerStatistics], list[Path]]:
    """Put together what is known of many images.

    Args:
        units: The images' directories, in a certain order: the last digits depend on it.

    Returns:
        The number of images, one entry for each feature map, in the order of execution, and the images that were left out
        because what is known of them is damaged or gone.
    """
    left_out = []
    gatherer = Gatherer()
    for unit in units:
        try:
            gatherer.add(*_read(unit / FILE))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError):
            left_out.append(unit)
    return gatherer.images, gatherer.layers(), left_out


class Gatherer:
    """Puts together what is known of many images, in a certain order: the last digits depend on it."""

    def __init__(self) -> None:
        self.images = 0
        self._groups: dict[str, _Group] = {}

    def add(self, layout: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add an image, as `columns_of` gives it.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: It is not what that gives.
        """
        if layout not in self._groups:
            self._groups[layout] = _Group(layout, len(columns["low"]))
        self._groups[layout].add(columns)
        self.images += 1

    def layers(self) -> list[LayerStatistics]:
        """Give one entry for each feature map, in the order of execution."""
        return merge(group.layers() for group in self._groups.values())


def merge(parts: Iterable[Iterable[LayerStatistics]]) -> list[LayerStatistics]:
    """Put together what is known of the feature maps of several sets of images, each in the order of execution."""
    order: list[_Key] = []
    merged: dict[_Key, LayerStatistics] = {}
    for layers in parts:
        place = 0
        for own in layers:
            key = (own.place.layer, own.place.of, own.place.target, own.place.channels)
            if key in merged:
                merged[key], place = _merge(merged[key], own), order.index(key) + 1
                continue
            merged[key] = own
            order.insert(place, key)  # behind what ran before it
            place += 1
    return [merged[key] for key in order]


def _read(path: Path) -> tuple[str, dict[str, NDArray[Any]]]:
    with safe_open(path, framework="numpy") as file:
        columns = {column: file.get_tensor(column) for column in file.keys()}  # noqa: SIM118  it is no dictionary
        none = np.zeros(len(columns["low"]), np.uint32)
        return file.metadata()["layers"], {**dict.fromkeys(_COUNTS, none), **columns}


def place_of(record: Mapping[str, Any]) -> Place:
    """Read of which feature map something is.

    Raises:
        ValueError: It does not say so as we do.
    """
    place = Place(record["layer"], record["of"], record["target"], record["type"], record["channels"])
    texts = (place.layer, place.of, place.target, place.type)
    if not all(isinstance(text, str) for text in texts) or place.of not in _SAID or type(place.channels) is not int:
        raise ValueError(record)
    return place


class _Group:
    """Images that have the same layers: their channels stand in one long row."""

    def __init__(self, layout: str, count: int) -> None:
        described = json.loads(layout)
        self._places = list(map(place_of, described))
        channels = [place.channels for place in self._places]
        if sum(channels) != count or min(channels, default=0) < 0:
            raise ValueError(channels)
        self._each = [int(each["values"]) for each in described]
        self._values = np.repeat(np.array(self._each, np.int64), channels)
        self._ends = np.cumsum(channels)
        self._images = 0
        self._low, self._high = np.full(count, np.nan, np.float32), np.full(count, np.nan, np.float32)
        self._so_far = _Moments(np.zeros(count, np.int64), np.zeros(count), np.zeros(count))
        self._zeros, self._nonfinite = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._dead = np.ones(count, bool)

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add one image.

        Raises:
            ValueError: Its columns are not as long as those of others with such layers.
        """
        if any(column.shape != self._low.shape or column.dtype.kind not in "fu" for column in columns.values()):
            raise ValueError(columns.keys())
        self._images += 1
        low, high, nonfinite = columns["low"], columns["high"], columns["nonfinite"]
        self._low, self._high = np.fmin(self._low, low), np.fmax(self._high, high)
        self._zeros += columns["zeros"]
        self._nonfinite += nonfinite
        self._dead &= (low == high) & (nonfinite == 0)
        self._so_far = self._so_far.with_more(_Moments.of(self._values - nonfinite, columns["mean"], columns["std"]))

    def layers(self) -> Iterator[LayerStatistics]:
        """Give what is known of each feature map."""
        mean, scatter = self._so_far.mean_or_nan, self._so_far.scatter
        mean = np.clip(mean, self._low, self._high)  # that of each image is rounded to float32
        for place, values, end in zip(self._places, self._each, self._ends, strict=True):
            own = slice(int(end) - place.channels, int(end))
            yield LayerStatistics(
                place=place,
                images=self._images,
                values=values * self._images,
                low=self._low[own].astype(np.float64),
                high=self._high[own].astype(np.float64),
                mean=mean[own],
                scatter=scatter[own],
                zeros=self._zeros[own],
                nonfinite=self._nonfinite[own],
                dead=self._dead[own],
                single=values == 1,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    """How many finite numbers there are, their mean, and the sum of their squared distances from it."""

    count: NDArray[np.int64]
    mean: NDArray[Any]
    scatter: NDArray[Any]

    @classmethod
    def of(cls, count: NDArray[np.int64], mean: NDArray[np.float32], std: NDArray[np.float32]) -> _Moments:
        """Take what is known of one image; where there are no numbers their mean is NaN."""
        known = count > 0
        return cls(count, np.where(known, mean, 0.0), np.where(known, std, 0.0).astype(np.float64) ** 2 * count)

    def with_more(self, other: _Moments) -> _Moments:
        """Put two sets of numbers together.

        Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
        """
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        apart = np.where(other.count > 0, other.mean, self.mean).astype(np.float64) - self.mean
        scatter = self.scatter + other.scatter + apart * apart * (self.count * share)
        return _Moments(count, self.mean + apart * share, scatter)

    @property
    def mean_or_nan(self) -> NDArray[Any]:
        """The mean, NaN where there are no numbers."""
        return np.where(self.count > 0, self.mean, np.nan)


def _merge(one: LayerStatistics, other: LayerStatistics) -> LayerStatistics:
    """Put together what is known of one feature map of images whose other feature maps, or whose sizes, differ."""
    first, second = (_Moments(each.values - each.nonfinite, np.nan_to_num(each.mean), each.scatter) for each in (one, other))
    both = first.with_more(second)
    return LayerStatistics(
        place=one.place,
        images=one.images + other.images,
        values=one.values + other.values,
        low=np.fmin(one.low, other.low),
        high=np.fmax(one.high, other.high),
        mean=both.mean_or_nan,
        scatter=both.scatter,
        zeros=one.zeros + other.zeros,
        nonfinite=one.nonfinite + other.nonfinite,
        dead=one.dead & other.dead,
        single=one.single and other.single,
    )


def as_rows(layers: Sequence[LayerStatistics]) -> str:
    """Write a table with a line for each channel, as CSV with a heading."""
    rows = [_row(_HEADING)]
    for each in layers:
        place, dead = each.place, set(each.flat)
        layer, all_values = _row((place.layer, place.of, place.target, place.type)), f"{each.images},{each.values}"
        numbers = zip(*each.digits.values(), each.nonfinite.tolist(), strict=True)
        rows.extend(
            f"{layer},{channel},{all_values},{low},{high},{mean},{std},{zeros},{nonfinite},{int(channel in dead)}"
            for channel, (low, high, mean, std, zeros, nonfinite) in enumerate(numbers)
        )
    return "\n".join(rows) + "\n"


_HEADING = (
    *("layer", "of", "class", "type", "channel", "images", "values"),
    *("min", "max", "mean", "std", "zeros", "nonfinite", "dead"),
)


def _row(cells: Sequence[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(cells)
    return written.getvalue()


def as_records(layers: Sequence[LayerStatistics]) -> Json:
    """Describe each feature map as an object of a JSON list, one to a line."""
    return Json("[\n  " + ",\n  ".join(map(_record, layers)) + "]" if layers else "[]")


_LAYER, _NUMBERS = (
    b'  {"layer": ',
    b', "min": [',
)  # how `_record` begins, and what is behind all that a person asks for first


def _record(each: LayerStatistics) -> str:
    place = each.place
    fields = {
        "layer": place.layer,
        "of": place.of,
        "class": place.target or None,
        "type": place.type,
        "channels": place.channels,
        "images": each.images,
        "values": each.values,
        "dead": each.flat,
        "constant": each.constant,
        "nonfinite": each.nonfinite.tolist(),
    }
    numbers = "".join(f', "{name}": [{", ".join(text or "null" for text in texts)}]' for name, texts in each.digits.items())
    return f"{json.dumps(fields).removesuffix('}')}{numbers}}}"


def read_dead(run: Path) -> dict[str, tuple[int, int, int]]:
    """Tell from a run's `stats.json` how many channels of each map never vary, are constant on every image, exist."""
    try:
        lines = (run / JSON_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    # The numbers of all channels, to parse which takes longest, are at the end of each layer's line.
    layers = [json.loads(line.partition(_NUMBERS)[0] + b"}") for line in lines if line.startswith(_LAYER)]
    named = ((f"{each['layer']}{_SAID[each['of']]}{each['class'] or ''}", each) for each in layers)
    return {name: (len(each["constant"]), len(each["dead"]), each["channels"]) for name, each in named}


_SAID = {"output": "", "input": " (input)", "gradient": " (gradient) ", "input gradient": " (input gradient) "}


def _digits(values: NDArray[np.float64]) -> list[str]:
    """Write as many digits as float32 has, nothing for what is not finite."""
    if not values.any():  # hardly any convolution returns exact zeros
        return ["0"] * len(values)
    return [f"{value:.9g}" if isfinite(value) else "" for value in values.tolist()]
