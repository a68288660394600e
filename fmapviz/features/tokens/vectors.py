"""Channel vectors of maps: their directions, and cosines between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST, _MOST = 1e-12, 1e12  # lengths whose squares float32 holds


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """The channel vectors of maps, each up to a positive factor.

    Attributes:
        values: float32 `(N, C, h * w)`.
        lengths: float32 `(N, h * w)`; NaN for a vector with a value that is NaN or infinite.
    """

    values: Tensor
    lengths: Tensor

    @property
    def units(self) -> Tensor:
        """The vectors divided by their lengths, `(N, C, h * w)`; zeros stay zero, NaN where a value is not finite."""
        return self.values / self.lengths.where(self.lengths != 0, 1)[:, None]

    def products(self, directions: Tensor) -> Tensor:
        """Return the products `(N, K, h * w)` of `directions`, `(K, C)` or `(N, K, C)`, and the vectors of length one."""
        return (directions @ self.values) / self.lengths.where(self.lengths != 0, 1)[:, None]


def vectors_of(maps: Tensor) -> Vectors:
    """Return the channel vectors of maps `(N, C, h, w)`, any floating type, any range.

    Channels without any finite value count as zero, unless there is no other.
    """
    values = maps.detach().float().flatten(2)
    lengths: Tensor = torch.linalg.vector_norm(values, dim=1)
    if lengths.is_cpu and bool(((lengths > _LEAST) & (lengths < _MOST)).all()):  # asking a GPU would mean waiting for it
        return Vectors(values, lengths)
    values = values.masked_fill(silent_channels(values.isfinite()), 0)
    known = values.isfinite().all(1)
    peaks = values.abs().amax(1, keepdim=True)
    values = (values / peaks.where(peaks > 0, 1)).where(known[:, None], 0)
    return Vectors(values, torch.linalg.vector_norm(values, dim=1).where(known, torch.nan))


def silent_channels(finite: Tensor) -> Tensor:
    """Return which channels have no finite value while another has, of `(N, C, n)`: boolean `(N, C, 1)`.

    They count as zero: a NaN in each vector would exclude all positions.
    """
    none = ~finite.any(2, keepdim=True)
    return none & ~none.all(1, keepdim=True)


def direction_at(maps: Tensor, row: int, column: int) -> Tensor:
    """Return the vector at a position of maps `(N, C, h, w)`, divided by its length: float32 `(N, C)`."""
    vectors, place = vectors_of(maps), row * maps.shape[3] + column
    return Vectors(vectors.values[..., place : place + 1], vectors.lengths[:, place : place + 1]).units[..., 0]


def cosines(maps: Tensor, directions: Tensor) -> Tensor:
    """Return the cosine of the vector at each position to a direction.

    Args:
        maps: `(N, C, h, w)`, any floating type, any range. Channels without any finite value count as zero.
        directions: Of length one, `(N, C)`, or `(1, C)` for all images.

    Returns:
        float32 `(N, h, w)`, -1..1; zero for a vector of zeros; NaN where a value is NaN or infinite.

    Example:
        >>> maps = torch.tensor([[[[1.0, 0.0, 2.0]], [[0.0, 3.0, 2.0]]]])
        >>> cosines(maps, direction_at(maps, 0, 0)).round(decimals=3)
        tensor([[[1.0000, 0.0000, 0.7070]]])
    """
    vectors = vectors_of(maps)
    found = vectors.products(directions.to(maps.device).float()[:, None])[:, 0]
    return found.clamp_(-1, 1).view(-1, *maps.shape[2:])
