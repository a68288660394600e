"""A random sample of the channel vectors of many images: bounded in size, independent of their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES = 8 * 2**20  # of a sample of one layer
_FEWEST, _MOST = 1024, 4096  # vectors
_LARGER = 4  # times as much for a foreground, which needs no search


class Sample:
    """Keeps the vectors with the smallest random numbers, which depend only on the image and the position.

    Every vector of all images is kept with the same probability; all of them while there are few.

    Args:
        channels: Length of a vector.
        large: Whether to keep more.

    Attributes:
        most: Largest number of vectors that are kept.
        fewer: Number of vectors of a sample that is not large.
        seen: Number of finite vectors that were added.

    Example:
        >>> sample = Sample(3)
        >>> sample.add(np.ones((1, 3, 4, 5), np.float32), digest="ab")
        >>> sample.vectors.shape, int(sample.at_border.sum())
        ((20, 3), 14)
    """

    def __init__(self, channels: int, *, large: bool = False) -> None:
        self.fewer = min(_MOST, max(_FEWEST, _BYTES // (4 * channels)))
        self.most = max(self.fewer, _LARGER * _BYTES // (4 * channels)) if large else self.fewer
        self.seen = 0
        self._limit = 2**64  # numbers from here on are too large
        self._count = 0
        self._pieces: list[tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.bool_]]] = []
        self._channels = channels
        self._sorted = False

    def add(self, maps: NDArray[np.float32], *, digest: str) -> None:
        """Add the vectors of an image.

        Args:
            maps: `(N, C, h, w)` of N samples of the image. Vectors with a value that is NaN or infinite are left out;
                channels without any finite value count as zero.
            digest: Of the image, hexadecimal.
        """
        samples, _, height, width = maps.shape
        finite = np.isfinite(maps)
        usable: NDArray[np.bool_] = np.ones((samples, height, width), np.bool_)
        if not finite.all():
            known = np.logical_or.reduce(finite, (2, 3), keepdims=True)
            silent = ~known & known.any(1, keepdims=True)
            maps, usable = np.where(silent, np.float32(0), maps), np.logical_and.reduce(finite | silent, 1)
        self.seen += int(np.count_nonzero(usable))
        numbers = np.random.default_rng(int(digest, 16)).integers(0, 2**64, samples * height * width, np.uint64)
        chosen = np.flatnonzero(numbers < self._limit) if self._limit < 2**64 else np.arange(len(numbers))
        if len(chosen) > self.most:
            chosen = np.sort(chosen[np.argpartition(numbers[chosen], self.most - 1)[: self.most]])
        chosen = chosen[usable.flat[chosen]]
        if not len(chosen):
            return
        sample, row, column = np.unravel_index(chosen, (samples, height, width))
        vectors = maps[sample, :, row, column].astype(np.float32)
        borders = (row == 0) | (row == height - 1) | (column == 0) | (column == width - 1)
        self._sorted = False
        self._pieces.append((numbers[chosen], vectors, borders))
        self._count += len(chosen)
        if self._count > 2 * self.most:
            self._reduce()

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors in the order of their numbers, float32 `(n, C)`."""
        return self._reduce()[1]

    @property
    def at_border(self) -> NDArray[np.bool_]:
        """Which of them are at the border of their map, boolean `(n)`."""
        return self._reduce()[2]

    def _reduce(self) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.bool_]]:
        """Keep the vectors with the smallest numbers, in their order."""
        if not self._sorted:
            none = np.zeros(0, np.uint64), np.zeros((0, self._channels), np.float32), np.zeros(0, np.bool_)
            numbers, vectors, borders = (np.concatenate(parts) for parts in zip(none, *self._pieces, strict=True))
            kept = np.argsort(numbers, kind="stable")[: self.most]
            self._pieces = [(numbers[kept], vectors[kept], borders[kept])]
            self._count = len(kept)
            self._sorted = True
            if self._count == self.most:
                self._limit = int(self._pieces[0][0][-1])
        return self._pieces[0]
