"""Measure each layer over a training: zeros, dead channels, and the change since the last drawn step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from fmapviz.data import ImageResult, LayerResult
    from fmapviz.features.watch.numbering import Numbering


class Curves:
    """Measures the layers of several images, step by step."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], NDArray[np.float32]] = {}  # by layer and image

    def measure(self, results: Sequence[ImageResult], numbers: Numbering) -> dict[str, float]:
        """Return the numbers of one step by their names: `zeros/NN LAYER`, `dead/NN LAYER`, `change/NN LAYER`.

        `zeros` is the share of values that are exactly zero, in all images; `dead` the share of channels that are constant
        in every image; `change` the Euclidean norm of the difference to the last step, divided by the norm of the values
        then: it is missing at the first step, and where a value is not finite.
        """
        layers: dict[str, list[tuple[int, LayerResult]]] = {}
        for image, result in enumerate(results):
            for layer in result.layers:
                if layer.of == "output" and layer.measures is not None and layer.target is None:
                    layers.setdefault(layer.layer, []).append((image, layer))
        return {
            f"{kind}/{numbers.name(layer)}": value
            for layer, found in layers.items()
            for kind, value in self._measure(layer, found)
        }

    def _measure(self, name: str, found: Sequence[tuple[int, LayerResult]]) -> Iterator[tuple[str, float]]:
        measures = [layer.measures for _, layer in found if layer.measures]
        values = sum(each.values * len(each.zeros) for each in measures)
        if not values:
            return
        yield "zeros", float(sum(each.zeros.sum() for each in measures) / values)
        if measures[0].values > 1 and len({len(each.low) for each in measures}) == 1:
            alive = np.stack([(each.low != each.high) | (each.nonfinite > 0) for each in measures])
            yield "dead", float(1 - alive.any(0).mean())
        squares, norm = 0.0, 0.0
        for image, layer in found:
            if layer.maps is None:
                return
            before = self._before.get((name, image))
            self._before[name, image] = layer.maps
            if before is None or before.shape != layer.maps.shape:
                squares = np.nan
                continue
            squares += float(np.square(layer.maps - before, dtype=np.float64).sum())
            norm += float(np.square(before, dtype=np.float64).sum())
        if np.isfinite(squares) and norm > 0 and np.isfinite(norm):
            yield "change", float(np.sqrt(squares / norm))
