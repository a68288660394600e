"""The attention of all blocks of a forward pass, for what flows from one token to all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fmapviz.inspection.attention.placement import row_of
from fmapviz.inspection.attention.weights import Fused, mean_of_heads
from fmapviz.inspection.gradients import edge_of
from fmapviz.inspection.reshape import NotAMapError, token_grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.inspection.attention.observe import Attention
    from fmapviz.inspection.attention.placement import Picture, Query


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The attention of one block.

    Attributes:
        name: Of the attention.
        shape: Of its weights, `(N, heads, L, S)`.
        matrix: Mean of its heads, float32 `(N, L, S)`, unless gradients are requested.
        attention: As it was computed, if gradients are requested; it keeps queries and keys in memory.
        edge: Position of its output in the graph, if gradients are requested; None if it is outside of one.
        versions: Of the tensors from which weights are computed after the pass.
    """

    name: str
    shape: torch.Size
    matrix: Tensor | None = None
    attention: Attention | None = None
    edge: GradientEdge | None = None
    versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, attention: Attention, *, differentiated: bool) -> Block:
        """Keep what is needed of an attention: its matrix, or its position in the graph."""
        known = attention.name, attention.weights.shape
        if not differentiated:
            return cls(*known, matrix=mean_of_heads(attention.weights))
        return cls(*known, attention=attention, edge=edge_of(attention.output), versions=_versions(attention))

    def with_gradient(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the gradient with respect to them, float32 `(N, heads, L, S)` each.

        A fused operation returns the weights times the values, so that by the chain rule the gradient with respect to the
        weights is the gradient at its output times the transposed values.

        Args:
            gradient: Of a score with respect to what the operation returned.

        Raises:
            NotAMapError: The network has overwritten what the weights are computed from.
        """
        own = self.attention
        assert own
        if _versions(own) != self.versions:
            raise NotAMapError(f"the network has overwritten what the attention weights of {own.name} are computed from")
        weights = torch.stack(list(own.weights.of_heads()), 1)
        if own.value is None:
            return weights, gradient.float().view(weights.shape)
        shared = weights.shape[1] // own.value.shape[1]
        values = own.value.repeat_interleave(shared, 1) if shared > 1 else own.value
        return weights, gradient.float().view(*weights.shape[:3], -1) @ values.float().mT


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The blocks that a flow passes, and where it begins.

    Attributes:
        blocks: The first one first.
        query: `(N, 1, L)`, 1 for the token that the flow is of.
        grid: Number of prefix tokens, rows and columns of patches.
        shown: Whose flow it is, in words.
    """

    blocks: Sequence[Block]
    query: Tensor
    grid: tuple[int, int, int]
    shown: str

    def as_maps(self, row: Tensor) -> Tensor:
        """Return a row of all tokens, `(N, 1, L)`, as maps `(N, h, w)`."""
        prefix, height, width = self.grid
        return row[:, 0, prefix:].reshape(len(row), height, width)


def flow_through(blocks: Sequence[Block], picture: Picture, query: Query, device: torch.device) -> Flow:
    """Return the flow through all blocks whose tokens are the same.

    Poolings by a single query behind the blocks, as in SigLIP, are left out.

    Raises:
        NotAMapError: The tokens of two blocks differ, or are no patches, with the reason.
    """
    if not picture.tokens.ordered:
        raise NotAMapError("the tokens are grouped by the units of a mask")
    blocks = [block for block in blocks if block.shape[2] > 1]
    if not blocks:
        raise NotAMapError("no attention between patches")
    count = blocks[0].shape[2]
    for block in blocks:
        samples, _, queries, keys = block.shape
        if samples != picture.images:
            raise NotAMapError(f"attention of {block.name} is within parts of the image {tuple(block.shape)}")
        if not queries == keys == count:
            other = f"{blocks[0].name} has {count} tokens, " if block is not blocks[0] else ""
            here = f"{other}{block.name} has {queries} queries and {keys} keys"
            raise NotAMapError(f"the tokens are not the same in all blocks: {here}")
    grid = token_grid(count, picture.size)
    if grid is None:
        raise NotAMapError(f"{count} tokens do not form a grid of patches")
    chosen, shown = row_of(query, count, picture)
    begin = torch.zeros(picture.images, 1, count, device=device)
    begin[:, :, chosen] = 1 / len(range(count)[chosen])
    return Flow(blocks, begin, grid, shown)


def _versions(attention: Attention) -> tuple[int, ...]:
    own = attention.weights
    used = [own.query, own.key] if isinstance(own, Fused) else [attention.output]
    used += [] if attention.value is None else [attention.value]
    return tuple(0 if values.is_inference() else values._version for values in used)
