"""The file of the differences between the layers of two networks for one image."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fmapviz.core import files
from fmapviz.data import DIFFERENCES
from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.data import ImageResult

FILE = "diff.safetensors"
_WIDTH = len(DIFFERENCES)


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """A layer that at least one of two networks has.

    Attributes:
        name: Of the layer, or of a frame of it.
        first: Its position in the order of execution of A; None if A lacks it.
        second: That of B.
        channels: Number of channels that are compared; 0 if one network lacks it, or it is no map.
        whole: Whether it is compared as a whole.
        means: Number of channels whose means are known, of A and of B.
    """

    name: str
    first: int | None
    second: int | None
    channels: int
    whole: bool
    means: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class UnitDifferences:
    """The numbers that a unit stores of all layers.

    Attributes:
        layers: In the order of execution.
        channels: See `fmapviz.types.Difference`; the rows of all layers, float64 `(R, 8)`.
        whole: Likewise, a row for each layer that is compared, float64 `(P, 8)`.
        powers: Likewise, float64 `(P, 2)`.
        first: Means of A, of all layers, float64.
        second: Means of B.
    """

    layers: tuple[ComparedLayer, ...]
    channels: NDArray[np.float64]
    whole: NDArray[np.float64]
    powers: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]

    @property
    def rows(self) -> Iterator[tuple[ComparedLayer, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
        """Iterate over each compared layer, its numbers as a whole, those of its channels, and its powers."""
        start, number = 0, 0
        for layer in self.layers:
            if layer.whole:
                yield layer, self.whole[number], self.channels[start : start + layer.channels], self.powers[number]
                number += 1
            start += layer.channels

    def features(self, network: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Iterate over the layers of A (0) or B (1) that have channels, in its order of execution, and their means."""
        own, start = (self.first, self.second)[network], 0
        found = []
        for layer in self.layers:
            index, count = (layer.first, layer.second)[network], layer.means[network]
            if index is not None and count:
                found.append((index, layer.name, own[start : start + count]))
            start += count
        yield from ((name, means) for _, name, means in sorted(found, key=lambda each: each[:2]))


def write_unit(directory: Path, image: ImageResult) -> None:
    """Write `diff.safetensors` of one image: arrays named as in `UnitDifferences`, and its layers as metadata.

    Raises:
        OSError: The disk is full, for example, or the file exists.
    """
    known = [(layer.layer, layer.difference) for layer in image.layers if layer.difference]
    described = [
        [
            name,
            *each.indices,
            0 if each.channels is None else len(each.channels),
            each.whole is not None,
            *(0 if means is None else len(means) for means in each.means),
        ]
        for name, each in known
    ]
    arrays = {
        "channels": _joined([each.channels for _, each in known], _WIDTH),
        "whole": _joined([each.whole[None] for _, each in known if each.whole is not None], _WIDTH),
        "powers": np.array([each.powers for _, each in known if each.whole is not None]).reshape(-1, 2),
        **{
            name: _joined([each.means[at] for _, each in known if each.means[at] is not None], 0)
            for at, name in enumerate(("first", "second"))
        },
    }
    files.write(directory / FILE, save(arrays, {"layers": json.dumps(described)}))


open_writer = base.separate_files(lambda directory, image, _pictures: write_unit(directory, image.result))


def read_unit_differences(directory: Path) -> UnitDifferences:
    """Read `diff.safetensors`.

    Raises:
        OSError, KeyError, TypeError, ValueError, OverflowError: The file is missing or damaged.
    """
    try:
        with safe_open(directory / FILE, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in ("channels", "whole", "powers", "first", "second")}
            layers = _load_layers(file.metadata()["layers"])
    except SafetensorError as error:
        raise ValueError(directory) from error
    shapes = {
        "channels": (sum(layer.channels for layer in layers), _WIDTH),
        "whole": (sum(layer.whole for layer in layers), _WIDTH),
        "powers": (sum(layer.whole for layer in layers), 2),
        "first": (sum(layer.means[0] for layer in layers),),
        "second": (sum(layer.means[1] for layer in layers),),
    }
    if any(arrays[name].shape != shape or arrays[name].dtype != np.float64 for name, shape in shapes.items()):
        raise ValueError(directory)
    return UnitDifferences(layers, **arrays)


def _joined(parts: list[Any], width: int) -> NDArray[np.float64]:  # Any: arrays, or None
    shape = (0, width) if width else (0,)
    return np.concatenate([np.zeros(shape), *(each for each in parts if each is not None)])


@lru_cache(maxsize=16)  # most images of a run have the same layers
def _load_layers(text: str) -> tuple[ComparedLayer, ...]:
    layers = []
    entry: list[Any]  # Any: of a file that may have been tampered with
    for entry in json.loads(text):
        name, first, second, channels, whole, own, theirs = entry
        counts = [channels, own, theirs, *(index for index in (first, second) if index is not None)]
        if type(name) is not str or type(whole) is not bool or any(type(each) is not int or each < 0 for each in counts):
            raise ValueError(entry)
        layers.append(ComparedLayer(name, first, second, channels, whole, (own, theirs)))
    return tuple(layers)
