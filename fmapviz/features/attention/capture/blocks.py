"""The attention of all blocks of a forward pass, for what flows from one token to all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.words import counted
from fmapviz.features.attention.capture.placement import rows_of
from fmapviz.features.attention.capture.weights import Fused, mean_of_heads
from fmapviz.observe.gradients import edge_of
from fmapviz.observe.reshape import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.features.attention.capture.observe import Attention
    from fmapviz.features.attention.capture.placement import Query, TokenInput
    from fmapviz.observe.layouts.tokens import TokenGrid


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The attention of one block.

    Attributes:
        name: Of the attention.
        shape: Of its weights, `(N, heads, L, S)`.
        grids: Positions of its queries and keys.
        matrix: Mean of its heads, float32 `(N, L, S)`, unless gradients are requested.
        attention: As it was computed, if gradients are requested; it keeps queries and keys in memory.
        edge: Position of its output in the graph, if gradients are requested; None if it is outside of one.
        versions: Of the tensors from which weights are computed after the pass.
    """

    name: str
    shape: torch.Size
    grids: tuple[TokenGrid, TokenGrid]
    matrix: Tensor | None = None
    attention: Attention | None = None
    edge: GradientEdge | None = None
    versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, attention: Attention, *, differentiated: bool) -> Block:
        """Keep an attention's matrix, or its position in the graph."""
        known = attention.name, attention.weights.shape, attention.grids
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
        tokens: Their positions.
        shown: Description of its query.
    """

    blocks: Sequence[Block]
    query: Tensor
    tokens: TokenGrid
    shown: str

    def as_maps(self, row: Tensor) -> Tensor:
        """Return a row of all tokens, `(N, 1, L)`, as maps `(N, h, w)`."""
        assert self.tokens.order is not None
        return row[:, 0, self.tokens.order.tolist()].view(len(row), *self.tokens.grid)

    def matrices(self) -> list[Tensor]:
        """Return the mean attention of the heads of each block, the last one first, `(N, L, L)`."""
        return [block.matrix for block in reversed(self.blocks) if block.matrix is not None]

    def gradients(self, gradients: Mapping[int, Tensor | None]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the weights of each block, the last one first, and the gradient with respect to them.

        Args:
            gradients: Of a score with respect to the output of each block, by the block's identity; None adds nothing.

        Raises:
            NotAMapError: There is no gradient at all.
        """
        found = [(block, gradients.get(id(block))) for block in reversed(self.blocks)]
        if all(gradient is None for _, gradient in found):
            raise NotAMapError("the class score does not depend on any attention")
        for block, gradient in found:
            if gradient is not None:
                yield block.with_gradient(gradient)


def flow_through(blocks: Sequence[Block], picture: TokenInput, query: Query, device: torch.device) -> Flow:
    """Return the flow through all blocks whose tokens are the same.

    Poolings by a single query behind the blocks, as in SigLIP, are left out.

    Raises:
        NotAMapError: The tokens of two blocks differ, or are no patches, with the reason.
    """
    blocks = [block for block in blocks if block.shape[2] > 1]
    if not blocks:
        raise NotAMapError("no attention between patches")
    count = blocks[0].shape[2]
    for block in blocks:
        samples, _, queries, keys = block.shape
        if samples != picture.images:
            parts = f"{samples} samples for {counted(picture.images, 'image')}, which are parts of the image, or heads"
            raise NotAMapError(
                f"attention of {block.name} {tuple(block.shape)}: {parts}; num_heads of its module says how many"
            )
        if not queries == keys == count:
            other = f"{blocks[0].name} has {count} tokens, " if block is not blocks[0] else ""
            here = f"{other}{block.name} has {queries} queries and {keys} keys"
            raise NotAMapError(f"the tokens are not the same in all blocks: {here}")
    tokens = blocks[0].grids[1]
    for block in blocks:
        for grid in block.grids:
            if grid.refused or grid.order is None:
                reason = grid.refused or f"to {count} tokens that are no patches of the picture"
                raise NotAMapError(f"attention weights of {block.name} {reason}")
            if tokens.order is None or grid.grid != tokens.grid or not np.array_equal(grid.order, tokens.order):
                raise NotAMapError(f"the patches of {blocks[0].name} are not those of {block.name}")
    _, chosen, shown = rows_of(blocks[-1].grids[0], count, picture, query)
    begin = torch.zeros(picture.images, 1, count, device=device)
    begin[:, :, list(chosen)] = 1 / len(chosen)
    return Flow(blocks, begin, tokens, shown)


def _versions(attention: Attention) -> tuple[int, ...]:
    own = attention.weights
    used = [own.query, own.key] if isinstance(own, Fused) else [attention.output]
    used += [] if attention.value is None else [attention.value]
    return tuple(0 if values.is_inference() else values._version for values in used)
