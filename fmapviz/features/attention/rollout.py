"""Attention of all blocks, multiplied, over the input (rollout); with `--target` weighted by gradients.

Each block passes on the mean attention of its heads, and as much of its own input, around which the block is a residual
connection: `R = B_n ... B_1`, `B = (mean_h(A_h) + I) / 2`. A_h are the attention weights of head h. Drawn is the row of R of
the class token, or of the patch at `--query`; without a class token the mean of all rows.

For a class, each weight counts as much as the class's score grows with it: `B = I + mean_h(max(0, G_h A_h))`, G_h the
gradient of the class's logit with respect to A_h. Drawn is the row of R - I.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", 2020; Chefer, Gur and Wolf, "Generic Attention-model
Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers", 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


def flow(query: Tensor, blocks: Iterable[Tensor]) -> Tensor:
    """Follow attention from one token through all blocks.

    Args:
        query: `(N, 1, L)`, 1 for the token that the flow is of.
        blocks: Of each block, the last one first, the mean attention of its heads, float32 `(N, L, L)`.

    Returns:
        float32 `(N, 1, L)`, the token's row of R.

    Example:
        >>> import torch
        >>> flow(torch.eye(2)[None, :1], [torch.full((1, 2, 2), 0.5)])
        tensor([[[0.7500, 0.2500]]])
    """
    for block in blocks:
        query = (query @ block + query) / 2
    return query


def flow_of_class(query: Tensor, blocks: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Follow attention from one token through all blocks, weighted by the gradients of a class's score.

    Args:
        query: See `flow`.
        blocks: Of each block, the last one first, its attention weights and the gradient with respect to them, float32
            `(N, heads, L, L)` each.

    Returns:
        float32 `(N, 1, L)`, the token's row of R - I.
    """
    row = query
    for weights, gradient in blocks:
        row = row + row @ (weights * gradient).clamp_(min=0).mean(1)
    return row - query
