"""The attention weights of one call, computed only as far as they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

_ALL = slice(None)
_PIECE = 2**18  # values

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Weights that the network has computed itself, `(N, heads, L, S)`."""

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        """`(N, heads, L, S)`."""
        return self.values.shape

    def row(self, query: int) -> Tensor:
        """Return the weights of one query, float32 `(N, heads, S)`."""
        return self.values[:, :, query].float()

    def of_heads(self, queries: slice = _ALL) -> Iterator[Tensor]:
        """Yield the weights of each head, float32 `(N, L, S)`, of all queries or some."""
        for head in range(self.values.shape[1]):
            yield self.values[:, head, queries].float()


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Weights that `scaled_dot_product_attention` does not return: `softmax(q k' scale + mask)`.

    Attributes:
        query: `(N, heads, L, d)`.
        key: `(N, heads or fewer, S, d)`; of fewer heads each serves several of the queries'.
        mask: Added to the scores, or True where a query sees a key; of a shape that expands to `(N, heads, L, S)`.
        causal: Whether a query sees only keys up to its own position.
        scale: Factor of the products.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    @property
    def shape(self) -> torch.Size:
        """`(N, heads, L, S)`."""
        return torch.Size([*self.query.shape[:3], self.key.shape[2]])

    def row(self, query: int) -> Tensor:
        """Return the weights of one query, float32 `(N, heads, S)`."""
        shared = self.shape[1] // self.key.shape[1]
        keys = self.key if shared == 1 else self.key.repeat_interleave(shared, 1)
        scores = self.query[:, :, query : query + 1].float() @ keys.float().mT
        return self._softmax(scores, slice(None), slice(query, query + 1))[:, :, 0]

    def of_heads(self, queries: slice = _ALL) -> Iterator[Tensor]:
        """Yield the weights of each head, float32 `(N, L, S)`, of all queries or some."""
        shared = self.shape[1] // self.key.shape[1]
        for head in range(self.shape[1]):
            keys = self.key[:, head // shared].float().mT
            scores = self.query[:, head, queries].float() @ keys
            yield self._softmax(scores[:, None], slice(head, head + 1), queries)[:, 0]

    def _softmax(self, scores: Tensor, heads: slice, queries: slice) -> Tensor:
        """Scale and mask scores `(N, heads, queries, S)` in place, and normalize them."""
        count, keys = self.shape[2:]
        scores *= self.scale
        if self.causal:
            seen = torch.arange(keys, device=scores.device) <= torch.arange(count, device=scores.device)[queries, None]
            scores.masked_fill_(~seen, -torch.inf)
        if self.mask is not None:
            mask = self.mask.expand(*self.shape[:2], count, keys)[:, heads, queries]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask
        return scores.softmax(-1)


# Attention weights `(N, heads, L, S)` of L queries and S keys; each row is a distribution over the keys.
Weights = Given | Fused


def mean_row(weights: Weights, queries: slice) -> Tensor:
    """Return the mean weights of several queries, float32 `(N, heads, S)`."""
    first, last, _ = queries.indices(weights.shape[2])
    total: Tensor | None = None
    for piece in _pieces(weights):
        chosen = slice(max(piece.start, first), min(piece.stop, last))
        if chosen.start < chosen.stop:
            sums = torch.stack([head.sum(1) for head in weights.of_heads(chosen)], 1)
            total = sums if total is None else total.add_(sums)
    assert total is not None
    return total.div_(last - first)


def mean_of_heads(weights: Weights) -> Tensor:
    """Return the mean over the heads, float32 `(N, L, S)`."""
    samples, heads, count, keys = weights.shape
    mean: Tensor | None = None
    for queries in _pieces(weights):
        for head in weights.of_heads(queries):
            mean = head.new_zeros(samples, count, keys) if mean is None else mean
            mean[:, queries] += head
    assert mean is not None
    return mean.div_(heads)


def _pieces(weights: Weights) -> Iterator[slice]:
    """Yield parts of the queries whose weights take a megabyte for each head: less memory, and in the cache of a core."""
    samples, _, count, keys = weights.shape
    step = max(1, _PIECE // (samples * keys))
    for first in range(0, count, step):
        yield slice(first, first + step)
