"""Rank methods over the images of a run, and tell which of them the images distinguish."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import nan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.words import counted
from fmapviz.features.trust.judgement import ALIKE, against_chance, in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

LEAST = 6  # images: of five, the same sign in all of them happens by chance more often than once in twenty times
_RESAMPLED = 2000
_AT_ONCE = 2**20  # numbers of resampled images in memory
_TAIL = 2.5  # percent on either side of an interval of 95 %

Key = tuple[str, str, str]  # target, view and layer


@dataclass(frozen=True, slots=True, eq=False)
class MethodSamples:
    """The numbers of one method for one target.

    Attributes:
        images: Numbers of the images that have them, int64 `(N,)`, ascending.
        deletion: Areas, float64 `(N,)`.
        insertion: Likewise.
        chance_deletion: Areas of random orders, float64 `(N, 10)`.
        chance_insertion: Likewise.
        last: Rank correlations with the last layer random, float64 `(N,)`; NaN where one is unknown.
        all: With all layers random.
        of_class: Whether its map depends on the class.
        copies: Number of further images with the same pixels as one of these. They are left out: a bootstrap takes its
            samples for independent.
        flat: Number of images in which all values of its map are equal, so that it has no order.
    """

    images: NDArray[np.int64]
    deletion: NDArray[np.float64]
    insertion: NDArray[np.float64]
    chance_deletion: NDArray[np.float64]
    chance_insertion: NDArray[np.float64]
    last: NDArray[np.float64]
    all: NDArray[np.float64]
    of_class: bool
    copies: int = 0
    flat: int = 0

    @property
    def gain(self) -> NDArray[np.float64]:
        """Insertion minus deletion, by which methods are ranked."""
        return self.insertion - self.deletion


@dataclass(frozen=True, slots=True)
class RankedMethod:
    """A row of `trust.csv`.

    Attributes:
        target: As the user requested the class.
        method: Name of the view.
        layer: Name of the feature map; empty of a map of the input.
        rank: 1 and the number of methods that are better; None: the images are too few.
        images: Number of images, each counted once however many copies it has.
        compared: Number of those in which all methods have a map.
        copies: Number of copies of these images, which are left out.
        deletion: Mean area.
        deletion_error: Its standard error; NaN of a single image.
        insertion: Mean area.
        insertion_error: Its standard error.
        chance_deletion: Mean area of random orders.
        chance_deletion_low: Smallest mean of a random order.
        chance_deletion_high: Largest one.
        chance_insertion: As of deletion.
        chance_insertion_low: Likewise.
        chance_insertion_high: Likewise.
        verdict: How it compares with chance, in words.
        last_random: Mean rank correlation with the map of the network whose last layer has random weights.
        all_random: With all weights random.
        note: What must be known of it, in words.
    """

    target: str
    method: str
    layer: str
    rank: int | None
    images: int
    compared: int
    copies: int
    deletion: float
    deletion_error: float
    insertion: float
    insertion_error: float
    chance_deletion: float
    chance_deletion_low: float
    chance_deletion_high: float
    chance_insertion: float
    chance_insertion_low: float
    chance_insertion_high: float
    verdict: str
    last_random: float
    all_random: float
    note: str


def samples_of(images: Sequence[Mapping[str, Any]]) -> dict[Key, MethodSamples]:
    """Return the numbers of each method, of images as `fmapviz.features.trust.unit_judgements` records them."""
    rows: dict[Key, list[tuple[Any, ...]]] = {}
    seen, copies = set[tuple[str, str]](), Counter[Key]()
    for number, image in enumerate(images):
        for target in image["targets"]:
            chance, pixels = target["chance"], (target["target"], target.get("pixels") or str(number))
            is_copy = pixels in seen
            seen.add(pixels)
            for method in target["methods"]:
                key = target["target"], method["method"], method["layer"] or ""
                if is_copy:
                    copies[key] += 1
                    continue
                areas = method["deletion"], method["insertion"], chance["deletion"], chance["insertion"]
                correlations = (nan if method[name] is None else method[name] for name in ("last_random", "all_random"))
                others = method["of_class"], method.get("sign") == "zero"
                rows.setdefault(key, []).append((number, *areas, *correlations, *others))
    return {key: _samples(own, copies[key]) for key, own in rows.items()}


def _samples(rows: Sequence[tuple[Any, ...]], copies: int) -> MethodSamples:
    images, *numbers, of_class, flat = zip(*rows, strict=True)
    deletion, insertion, below, above, last, everything = (np.array(each, np.float64) for each in numbers)
    own = np.array(images, np.int64)
    return MethodSamples(own, deletion, insertion, below, above, last, everything, any(of_class), copies, sum(flat))


def rank(samples: Mapping[Key, MethodSamples]) -> list[RankedMethod]:
    """Rank the methods of each target by insertion minus deletion.

    A method is behind another one if that is better in 95 % of the resampled sets of images, on either side: a paired
    bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993). It is of the images for which all methods
    have a map.

    Returns:
        For each target, in the order of the images, the rows, the largest mean first.
    """
    ranked = []
    for target in dict.fromkeys(key[0] for key in samples):
        own = {key: each for key, each in samples.items() if key[0] == target}
        common = _common(list(own.values()))
        behind = _behind(list(own.values()), common)
        rows = [
            _row(key, each, None if behind is None else 1 + int(behind[at].sum()), compared=len(common))
            for at, (key, each) in enumerate(own.items())
        ]
        ranked += sorted(rows, key=lambda each: (each.rank or 0, each.deletion - each.insertion))
    return ranked


def _common(samples: Sequence[MethodSamples]) -> NDArray[np.int64]:
    """Return the numbers of the images in which all methods have a map."""
    common = samples[0].images
    for each in samples[1:]:
        common = np.intersect1d(common, each.images)
    return common


def _behind(samples: Sequence[MethodSamples], common: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Return which methods, the columns, are better than each, the rows; None if the images are too few."""
    if len(common) < LEAST:
        return None
    gains = np.stack([each.gain[np.isin(each.images, common)] for each in samples], 1)
    means = resampled_means(gains)
    low = np.percentile(means[:, None, :] - means[:, :, None], _TAIL, axis=0)
    better: NDArray[np.bool_] = low > 0
    return better


def resampled_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of sets of as many rows, drawn with replacement, the same for all columns.

    Args:
        values: float64 `(N, M)`.

    Returns:
        float64 `(2000, M)`; the same each time.

    Example:
        >>> resampled_means(np.ones((4, 2))).shape
        (2000, 2)
    """
    numbers, count = np.random.default_rng(0), len(values)
    many = max(1, _AT_ONCE // count)
    parts = [min(many, _RESAMPLED - begin) for begin in range(0, _RESAMPLED, many)]
    return np.concatenate([values[numbers.integers(count, size=(part, count))].mean(1) for part in parts])


def _row(key: Key, own: MethodSamples, place: int | None, *, compared: int) -> RankedMethod:
    deletion, insertion = own.chance_deletion.mean(0), own.chance_insertion.mean(0)
    words = in_words(
        _verdict(own.deletion, own.chance_deletion, lower=True), _verdict(own.insertion, own.chance_insertion, lower=False)
    )
    target, method, layer = key
    return RankedMethod(
        target=target,
        method=method,
        layer=layer,
        rank=place,
        images=len(own.images),
        compared=compared,
        copies=own.copies,
        deletion=float(own.deletion.mean()),
        deletion_error=_error(own.deletion),
        insertion=float(own.insertion.mean()),
        insertion_error=_error(own.insertion),
        chance_deletion=float(deletion.mean()),
        chance_deletion_low=float(deletion.min()),
        chance_deletion_high=float(deletion.max()),
        chance_insertion=float(insertion.mean()),
        chance_insertion_low=float(insertion.min()),
        chance_insertion_high=float(insertion.max()),
        verdict=words,
        last_random=_mean(own.last),
        all_random=_mean(own.all),
        note="; ".join(_notes(own)),
    )


def _verdict(areas: NDArray[np.float64], chance: NDArray[np.float64], *, lower: bool) -> str:
    """Compare the mean area with those of random orders; of enough images the difference must also be no chance."""
    word = against_chance(float(areas.mean()), chance.mean(0).tolist(), lower=lower)
    if word == "within" or len(areas) < LEAST:
        return word
    low, high = np.percentile(resampled_means((areas - chance.mean(1))[:, None]), [_TAIL, 100 - _TAIL])
    return word if low > 0 or high < 0 else "within"


def _notes(own: MethodSamples) -> list[str]:
    notes = [] if own.of_class else ["the same for every class"]
    if _mean(own.all) >= ALIKE:
        notes.append("does not depend on what was learnt")
    elif own.of_class and _mean(own.last) >= ALIKE:
        notes.append("hardly depends on the last layer")
    if own.flat:
        notes.append(f"empty in {counted(own.flat, 'image')}: all values are equal")
    if unknown := int(np.isnan(own.all).sum()):
        notes.append(f"unknown with random weights in {counted(unknown, 'image')}")
    return notes


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else nan


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else nan


def summary_of(rows: Sequence[RankedMethod]) -> str:
    """Return in words what the ranking of one target says.

    Args:
        rows: All of the target.
    """
    copies = max(each.copies for each in rows)
    once = f"; {counted(copies, 'image')} not counted, with the same pixels as another one" if copies else ""
    return _ranked_in_words(rows) + once


def _ranked_in_words(rows: Sequence[RankedMethod]) -> str:
    images = counted(rows[0].compared, "image")
    if rows[0].rank is None:
        return f"{images} in which all methods have a map: not ranked, which takes {LEAST}"
    if len(rows) == 1:
        return f"{named(rows[0])}: {rows[0].verdict}"
    first = [each for each in rows if each.rank == 1]
    names = ", ".join(map(named, first))
    if len(first) == len(rows):
        return f"{images} do not tell the methods apart: {names}"
    if len(first) > 1:
        return f"no method is before {names}, and {images} do not tell them apart"
    return f"{names} is before the other{'s' if len(rows) > 2 else ''} over {images}"


def named(row: RankedMethod) -> str:
    """Return the method, and the layer that it draws."""
    return f"{row.method} of {row.layer}" if row.layer else row.method
