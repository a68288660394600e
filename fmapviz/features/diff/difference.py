"""Measure how the values of a layer differ between two networks.

All sums are in float64. The signal-to-quantization-noise ratio is `10 log10(sum(a ** 2) / sum((b - a) ** 2))` dB: infinite
where nothing differs, -infinite where A is zero everywhere and B is not, and NaN where all that differs is not finite. A
position with NaN differs, also if it is NaN in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.data import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    Sums = NDArray[np.float64]

_CHUNK = 65536  # values: about what a core's cache holds in float64
_WIDTH = 8192  # positions; of more, OpenBLAS would sum parts in other threads, and their number would change the last digit
# The rows of sums over positions.
_COUNT, _A, _B, _AA, _BB, _AB, _DD, _LARGEST, _DIFFERING, _BAD, _CENTRED = range(11)
_CANCELS = 1e6  # squared mean over variance above which Pearson's correlation is computed from centred values


def compare(first: Tensor, second: Tensor) -> Difference:
    """Compare values of a layer in two networks.

    Args:
        first: Of A, any shape `(N, C, ...)`, any real type; N samples of one image.
        second: Of B, of the same shape; not necessarily of the same type.

    Example:
        >>> numbers = compare(torch.ones(1, 2, 3, 3), 1.01 * torch.ones(1, 2, 3, 3)).numbers
        >>> round(numbers["sqnr"], 3), round(numbers["max_abs"], 5), numbers["differing"]
        (40.0, 0.01, 1.0)
    """
    rows = [_rows(values) for values in (first, second)]
    sums = _with_whole(_sum(*rows))
    sums[_CENTRED] = _correlate(sums)
    large = np.flatnonzero(_cancels(sums))
    if large.size and large[-1] == len(rows[0]):  # the whole
        sums[_CENTRED, -1:] = _correlate_centred(*(own.reshape(1, -1) for own in rows))
        large = large[:-1]
    for part in _parts(len(large), _CHUNK // max(1, rows[0].shape[1])):
        sums[_CENTRED, large[part]] = _correlate_centred(rows[0][large[part]], rows[1][large[part]])
    counts = np.maximum(sums[_COUNT, :-1], 1)
    known = sums[_COUNT, :-1] > 0
    means = tuple(np.where(known, sums[own, :-1] / counts, np.nan) for own in (_A, _B))
    numbers = _numbers(sums)
    return Difference((means[0], means[1]), numbers[:-1], numbers[-1], (float(sums[_AA, -1]), float(sums[_DD, -1])))


def means_of(values: Tensor) -> NDArray[np.float64]:
    """Return the mean of the finite values of each channel of `(N, C, ...)`, float64 `(C)`; NaN where there is none."""
    rows = _rows(values)
    finite = np.isfinite(rows)
    counts = finite.sum(1)
    sums = np.where(finite, rows, 0).sum(1, dtype=np.float64)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _rows(values: Tensor) -> NDArray[np.generic]:
    """Return values `(N, C, ...)` as rows of channels, float32 or float64 `(C, M)`."""
    plain = values.detach()
    plain = plain.dequantize() if plain.is_quantized else plain
    if plain.dtype not in {torch.float32, torch.float64}:
        plain = plain.to(torch.float32 if plain.is_floating_point() else torch.float64)
    by_channel = plain.transpose(0, 1).reshape(plain.shape[1], -1) if plain.ndim > 1 else plain[None]
    rows: NDArray[np.generic] = by_channel.cpu().numpy()
    return rows


def _parts(count: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, start + size) for start in range(0, count, size))


def _sum(first: NDArray[np.generic], second: NDArray[np.generic]) -> Sums:
    """Return the sums over the positions of channels `(C, M)`, float64 `(11, C)`."""
    count, positions = first.shape
    sums = np.zeros((11, count))
    width = min(positions, _WIDTH)
    height = _CHUNK // max(1, width)
    memory = np.empty(3 * max(1, min(height, count)) * width)  # for all parts: memory that is new is slow
    for rows in _parts(count, height):
        for columns in _parts(positions, width):
            part = first[rows, columns]
            buffers = memory[: 3 * part.size].reshape(3, *part.shape)
            _add(sums[:, rows], part, second[rows, columns], buffers)
    return sums


def _add(sums: Sums, first: NDArray[np.generic], second: NDArray[np.generic], buffers: Sums) -> None:
    """Add the sums over some positions of some channels."""
    a, b, difference = buffers
    np.copyto(a, first)
    np.copyto(b, second)
    differing, bad = _count_differing(first, second), np.zeros(len(a))  # of NaN as NumPy: it differs from everything
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(b, a, out=difference)
        squares = np.vecdot(difference, difference)
    if not np.isfinite(squares).all():
        usable = np.isfinite(a) & np.isfinite(b)
        bad = (~usable).sum(1)
        for values in (a, b):
            np.copyto(values, 0, where=~usable)
        np.subtract(b, a, out=difference)
        squares = np.vecdot(difference, difference)
    sums[_COUNT] += a.shape[1] - bad
    sums[_BAD] += bad
    sums[_A] += a.sum(1)
    sums[_B] += b.sum(1)
    sums[_AA] += np.vecdot(a, a)
    sums[_BB] += np.vecdot(b, b)
    sums[_AB] += np.vecdot(a, b)
    sums[_DD] += squares
    sums[_DIFFERING] += differing
    np.maximum(sums[_LARGEST], np.abs(difference, out=difference).max(1), out=sums[_LARGEST])


def _count_differing(first: NDArray[np.generic], second: NDArray[np.generic]) -> Sums | int:
    """Return how many values of each row differ; usually all, which is faster to check."""
    differ = first != second
    if np.count_nonzero(differ) == differ.size:
        return len(differ[0])
    counts: Sums = differ.sum(1).astype(np.float64)
    return counts


def _with_whole(sums: Sums) -> Sums:
    """Return the sums `(11, C + 1)` of channels, and of all of them together."""
    whole = sums.sum(1, keepdims=True)
    whole[_LARGEST] = sums[_LARGEST].max(initial=0)
    return np.concatenate([sums, whole], 1)


def _correlate(sums: Sums) -> Sums:
    """Return Pearson's correlation; NaN where one of the two is constant."""
    count = np.maximum(sums[_COUNT], 1)
    variance = [np.maximum(sums[square] - sums[one] ** 2 / count, 0) for one, square in ((_A, _AA), (_B, _BB))]
    shared = sums[_AB] - sums[_A] * sums[_B] / count
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation: Sums = np.clip(shared / (np.sqrt(variance[0]) * np.sqrt(variance[1])), -1, 1)
    correlation[(sums[_DD] == 0) & (shared > 0)] = 1
    return correlation


def _correlate_centred(first: NDArray[np.generic], second: NDArray[np.generic]) -> Sums:
    """Return Pearson's correlation of rows `(R, M)`, accurate also if their means are large."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    usable = np.isfinite(a) & np.isfinite(b)
    count = np.maximum(usable.sum(1, keepdims=True), 1)
    varies = np.ones(len(a), bool)
    centred = []
    for values in (a, b):
        known = np.where(usable, values, 0)
        varies &= np.where(usable, values, -np.inf).max(1) > np.where(usable, values, np.inf).min(1)
        centred.append(np.where(usable, known - known.sum(1, keepdims=True) / count, 0))
    norms = np.sqrt(np.einsum("ij,ij->i", centred[0], centred[0]) * np.einsum("ij,ij->i", centred[1], centred[1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation: Sums = np.clip(np.einsum("ij,ij->i", *centred) / norms, -1, 1)
    return np.where(varies, correlation, np.nan)


def _cancels(sums: Sums) -> NDArray[np.bool_]:
    """Return True where the mean of one of the two is so large that the difference of two sums is not accurate."""
    count = np.maximum(sums[_COUNT], 1)
    cancels = np.zeros(sums.shape[1], bool)
    for one, square in ((_A, _AA), (_B, _BB)):
        power = sums[one] ** 2 / count
        cancels |= (power > 0) & (power > _CANCELS * (sums[square] - power))
    cancels &= sums[_COUNT] > 1
    return cancels


def _numbers(sums: Sums) -> Sums:
    """Return the numbers of columns of sums, float64 `(R, 8)`, in the order of `DIFFERENCES`."""
    count = sums[_COUNT]
    same = sums[_DD] == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        rms = np.sqrt(sums[_DD] / np.maximum(count, 1))
        relative = np.where(same, 0.0, np.sqrt(sums[_DD]) / np.sqrt(sums[_AA]))
        cosine = np.clip(sums[_AB] / (np.sqrt(sums[_AA]) * np.sqrt(sums[_BB])), -1, 1)
        sqnr = np.where(same, np.inf, 10 * (np.log10(sums[_AA]) - np.log10(sums[_DD])))
    sqnr[same & (sums[_DIFFERING] > 0)] = np.nan  # only values differ that are not finite
    cosine[same & (sums[_AA] > 0)] = 1
    numbers = np.stack([sums[_LARGEST], rms, relative, cosine, sums[_CENTRED], sqnr])
    numbers[:, count == 0] = np.nan
    differing = sums[_DIFFERING] / np.maximum(count + sums[_BAD], 1)
    # Contiguous: it is stored and written.
    return np.concatenate([numbers, [differing, sums[_BAD]]]).T.copy()
