"""Measure how the values of a layer differ between two networks.

All sums are in float64. The signal-to-quantization-noise ratio is `10 log10(sum(a ** 2) / sum((b - a) ** 2))` dB: infinite
where nothing differs, and -infinite where A is zero everywhere and B is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.core.types import Difference

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Sums = NDArray[np.float64]

_CHUNK = 65536  # values: about what a core's cache holds in float64
# The columns of sums over positions.
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
    sums = np.concatenate([_sums(*parts) for parts in zip(*map(_chunks, rows), strict=True)])
    sums[:, _CENTRED] = _correlate(sums)
    for part in _chunks(np.flatnonzero(_cancels(sums))[:, None], width=rows[0].shape[1]):
        chosen = part[:, 0].astype(int)
        sums[chosen, _CENTRED] = _correlate_centred(rows[0][chosen], rows[1][chosen])
    counts = np.maximum(sums[:, _COUNT], 1)
    known = sums[:, _COUNT] > 0
    means = tuple(np.where(known, sums[:, column] / counts, np.nan) for column in (_A, _B))
    whole = _pool(sums, *rows)
    return Difference((means[0], means[1]), _numbers(sums), _numbers(whole[None])[0], (float(whole[_AA]), float(whole[_DD])))


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


def _chunks(rows: NDArray[Any], *, width: int | None = None) -> list[NDArray[Any]]:
    """Divide rows into parts of about the same number of values; each row has the width, if it is not its own."""
    size = max(1, _CHUNK // max(1, rows.shape[1] if width is None else width))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _sums(first: NDArray[np.generic], second: NDArray[np.generic]) -> Sums:
    """Return the sums over the positions of some channels, float64 `(C, 11)`."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    bad = np.zeros(len(a))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = b - a
        squares = np.einsum("ij,ij->i", difference, difference)
    differing = np.count_nonzero(difference, 1)
    if not np.isfinite(squares).all():
        usable = np.isfinite(a) & np.isfinite(b)
        bad = (~usable).sum(1)
        differing = ((a != b) & ~(np.isnan(a) & np.isnan(b))).sum(1)
        a, b = np.where(usable, a, 0), np.where(usable, b, 0)
        difference = b - a
        squares = np.einsum("ij,ij->i", difference, difference)
    sums = np.zeros((len(a), 11))
    sums[:, _COUNT] = a.shape[1] - bad
    sums[:, _A], sums[:, _B] = a.sum(1), b.sum(1)
    for column, (one, other) in {_AA: (a, a), _BB: (b, b), _AB: (a, b)}.items():
        sums[:, column] = np.einsum("ij,ij->i", one, other)
    sums[:, _DD] = squares
    if a.shape[1]:
        sums[:, _LARGEST] = np.maximum(difference.max(1), -difference.min(1)) + 0.0  # no negative zero
    sums[:, _DIFFERING], sums[:, _BAD] = differing, bad
    return sums


def _pool(sums: Sums, first: NDArray[np.generic], second: NDArray[np.generic]) -> Sums:
    """Return the sums over all channels."""
    whole: Sums = sums.sum(0)
    whole[_LARGEST] = sums[:, _LARGEST].max(initial=0)
    whole[_CENTRED] = _correlate(whole[None])[0]
    if _cancels(whole[None])[0]:
        whole[_CENTRED] = _correlate_centred(first.reshape(1, -1), second.reshape(1, -1))[0]
    return whole


def _correlate(sums: Sums) -> Sums:
    """Return Pearson's correlation; NaN where one of the two is constant."""
    count = np.maximum(sums[:, _COUNT], 1)
    variance = [np.maximum(sums[:, square] - sums[:, one] ** 2 / count, 0) for one, square in ((_A, _AA), (_B, _BB))]
    shared = sums[:, _AB] - sums[:, _A] * sums[:, _B] / count
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation: Sums = np.clip(shared / (np.sqrt(variance[0]) * np.sqrt(variance[1])), -1, 1)
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
    count = np.maximum(sums[:, _COUNT], 1)
    cancels = np.zeros(len(sums), bool)
    for one, square in ((_A, _AA), (_B, _BB)):
        power = sums[:, one] ** 2 / count
        cancels |= (power > 0) & (power > _CANCELS * (sums[:, square] - power))
    return cancels & (sums[:, _COUNT] > 1)


def _numbers(sums: Sums) -> Sums:
    """Return the numbers of rows of sums, float64 `(R, 8)`, in the order of `DIFFERENCES`."""
    count = sums[:, _COUNT]
    all_values = np.maximum(count + sums[:, _BAD], 1)
    none = count == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        same = sums[:, _DD] == 0
        relative = np.where(same, 0.0, np.sqrt(sums[:, _DD]) / np.sqrt(sums[:, _AA]))
        cosine = np.clip(sums[:, _AB] / (np.sqrt(sums[:, _AA]) * np.sqrt(sums[:, _BB])), -1, 1)
        sqnr = np.where(same, np.inf, 10 * (np.log10(sums[:, _AA]) - np.log10(sums[:, _DD])))
        columns = [
            sums[:, _LARGEST],
            np.sqrt(sums[:, _DD] / np.maximum(count, 1)),
            relative,
            cosine,
            sums[:, _CENTRED],
            sqnr,
            sums[:, _DIFFERING] / all_values,
            sums[:, _BAD],
        ]
    numbers = np.stack(columns, 1)
    numbers[none, :6] = np.nan
    return numbers
