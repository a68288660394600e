"""Store small maps of some channels at up to 32 steps for filmstrips, which a resumed training continues."""

from __future__ import annotations

import io
import json
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from fmapviz.core import files
from fmapviz.draw.channel_choice import choose
from fmapviz.features.watch.filmstrip_page import CELL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.data import LayerResult

ROWS, COLUMNS = 32, 16
_FORMAT = 1
_MOST_BYTES = 2**31  # of the file

Key = tuple[str, str]  # feature map and image


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """The rows of one feature map of one image.

    Attributes:
        channels: Numbers of the channels.
        maps: By step, float32 `(K, h, w)`.
    """

    channels: tuple[int, ...]
    maps: dict[int, NDArray[np.float32]]

    @property
    def rows(self) -> NDArray[np.float32]:
        """All steps, float32 `(R, K, h, w)`: those of the shape of the last one."""
        return np.stack([self.maps[step] for step in self.steps])

    @property
    def steps(self) -> list[int]:
        """The steps in their order, without those of maps of another size."""
        last = self.maps[max(self.maps)].shape
        return [step for step in sorted(self.maps) if self.maps[step].shape == last]


class Filmstrips:
    """The strips of a training.

    Args:
        style: Which channels: those that it lists, or the strongest at the first step, `top:16`; 16 at most.
    """

    def __init__(self, style: Style) -> None:
        self.strips: dict[Key, Strip] = {}
        self._style = style
        self._own: dict[Key, None] = {}  # those that this training adds to, in the order of execution

    @property
    def own(self) -> dict[Key, Strip]:
        """The strips of this training; the file may hold strips of others."""
        return {key: self.strips[key] for key in self._own}

    def add(self, step: int, image: str, layers: Iterable[LayerResult]) -> None:
        """Add the maps of one step; drop maps of the same or later steps, from before the training went back."""
        for layer in layers:
            if layer.maps is None or layer.of != "output" or not layer.maps.shape[1]:
                continue
            self._own[layer.layer, image] = None
            strip = self.strips.get((layer.layer, image))
            if strip is None or max(strip.channels, default=0) >= layer.maps.shape[1]:
                strip = self.strips[layer.layer, image] = Strip(self._choose(layer), {})
            for later in [each for each in strip.maps if each >= step]:
                del strip.maps[later]
            strip.maps[step] = _reduced(layer.maps[0, list(strip.channels)])
            if len(strip.maps) > ROWS:
                del strip.maps[_least_missed(sorted(strip.maps))]

    def _choose(self, layer: LayerResult) -> tuple[int, ...]:
        """Return the channels of a strip."""
        assert layer.maps is not None
        count, style = layer.maps.shape[1], self._style
        if style.channels == "all" or layer.measures is None:
            return tuple(range(min(COLUMNS, count)))
        ranked = {"max": layer.measures.high, "mean": layer.measures.mean, "std": layer.measures.std}[style.rank]
        chosen: list[int] = choose(torch.from_numpy(ranked)[None], style)[0].tolist()
        return tuple(chosen[:COLUMNS])

    def save(self, path: Path) -> None:
        """Replace a file by all strips; strips of another watch in the file stay.

        Raises:
            OSError: It could not be written.
        """
        others = Filmstrips(self._style)
        others.load(path)
        strips = {**others.strips, **self.own}
        index = [[layer, image, strip.channels, sorted(strip.maps)] for (layer, image), strip in strips.items()]
        arrays = {
            f"{number}_{step}": maps
            for number, strip in enumerate(strips.values())
            for step, maps in sorted(strip.maps.items())
        }
        stream = io.BytesIO()
        np.savez_compressed(stream, index=np.array(json.dumps({"fmapviz": _FORMAT, "strips": index})), **arrays)  # type: ignore[arg-type]  # NumPy's types confuse names with options
        with files.staging_folder(path.parent) as staging:
            files.write(staging / path.name, stream.getvalue())
            files.replace(staging / path.name, path)

    def load(self, path: Path) -> None:
        """Load the strips of a file, unless it is missing, damaged or of another program."""
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, RecursionError):
            stream = io.BytesIO(files.read(path, most=_MOST_BYTES))
            with np.load(stream, allow_pickle=False) as arrays:
                self.strips |= dict(_read(arrays))


def _read(arrays: Mapping[str, NDArray[np.float32]]) -> list[tuple[Key, Strip]]:
    document = json.loads(str(arrays["index"]))
    if document["fmapviz"] != _FORMAT:
        raise ValueError("of another version")
    strips = []
    for number, (layer, image, channels, steps) in enumerate(document["strips"]):
        maps = {int(step): np.asarray(arrays[f"{number}_{step}"], np.float32) for step in steps}
        if not maps or any(each.ndim != 3 or len(each) != len(channels) for each in maps.values()):
            raise ValueError("not as it was written")
        strips.append(((str(layer), str(image)), Strip(tuple(map(int, channels)), maps)))
    return strips


def _least_missed(steps: list[int]) -> int:
    """Return the step without which the others are spread most evenly; neither the first nor the last.

    Example:
        >>> _least_missed([0, 10, 11, 30])
        10
    """
    gaps = [(after - before, step) for before, step, after in zip(steps, steps[1:], steps[2:], strict=False)]
    return min(gaps)[1]


def _reduced(maps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return maps of at most `CELL` pixels a side, each the mean of its part: float32 `(K, h, w)`."""
    height, width = maps.shape[1:]
    larger = max(height, width)
    if larger <= CELL:
        return maps.copy()
    size = max(1, round(height * CELL / larger)), max(1, round(width * CELL / larger))
    reduced: NDArray[np.float32] = functional.adaptive_avg_pool2d(torch.from_numpy(maps), size).numpy()
    return reduced
