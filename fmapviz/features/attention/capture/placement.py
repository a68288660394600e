"""Find where in the picture the tokens of an attention are, and draw the weights of a query there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.config.positions import cell_of
from fmapviz.features.attention.capture.weights import mean_row
from fmapviz.observe.layouts.tracking import CLASS_TOKEN
from fmapviz.observe.reshape import NotAMapError, picture_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from fmapviz.features.attention.capture.observe import Attention
    from fmapviz.observe.layouts.tokens import TokenGrid


@dataclass(frozen=True, slots=True)
class Query:
    """The token whose attention is drawn.

    Attributes:
        position: Row and column of a pixel of the network's input, for the patch there; None for the class token.
        mean: Whether the mean over all patches is requested.
    """

    position: tuple[int, int] | None = None
    mean: bool = False


@dataclass(frozen=True, slots=True)
class TokenInput:
    """The input that tokens come from.

    Attributes:
        images: Number of images in the batch.
        size: Height and width, pixels; None if it is not a picture.
        has_class: Whether the network has a class token, by the names of its parameters.
    """

    images: int
    size: tuple[int, int] | None
    has_class: bool = False

    @classmethod
    def of(cls, pixels: Tensor, *, has_class: bool) -> TokenInput:
        """Return the input of a network, `(N, ...)`."""
        return cls(len(pixels), picture_size(pixels), has_class)

    def check(self, query: Query) -> None:
        """Raise PositionError if the query lies outside the picture."""
        if query.position and self.size:
            cell_of(query.position, picture=self.size, grid=self.size)


def has_class_token(network: nn.Module) -> bool:
    """Return True if a parameter is a class token by its name."""
    return any(CLASS_TOKEN.fullmatch(name.rpartition(".")[2]) for name, _ in network.named_parameters())


def map_of(attention: Attention, picture: TokenInput, query: Query) -> tuple[Tensor, str]:
    """Return the weights of one query as a map for each head.

    A patch within a window sees the patches of that window, so that the attention of one is zero elsewhere.

    Returns:
        float32 `(N, heads, h, w)`, the rows and columns those of the keys, without other tokens; and whose attention it is,
        in words.

    Raises:
        NotAMapError: The keys are no patches, or the query is none of the queries, with the reason.
    """
    count, heads, queries, keys = attention.weights.shape
    shown = f"attention weights ({', '.join(map(str, attention.weights.shape))})"
    own, other = attention.grids
    if other.refused:
        raise NotAMapError(f"{shown} {other.refused}")
    if other.order is None:
        raise NotAMapError(f"{shown} to {keys} tokens that are no patches of the picture")
    if count != picture.images * other.parts or keys != other.length or own.parts not in {1, other.parts}:
        raise NotAMapError(f"{shown}: the positions of its {count // picture.images} parts of an image are unknown")
    part, tokens, words = rows_of(own, queries, picture, query)
    if other.parts > 1 and part is None and own.order is not None and own.parts > 1:
        seen = _sum_of_patches(attention, own, picture.images) / len(own.order)
    else:
        seen = _mean_over(attention, tokens)
    seen = seen.view(picture.images, other.parts, heads, keys)
    if part is not None and other.parts > 1:  # the other windows do not attend to it
        seen = seen * (torch.arange(other.parts, device=seen.device) == part).view(1, -1, 1, 1)
    flat = seen.transpose(1, 2).reshape(picture.images, heads, -1)
    return flat[:, :, other.order.tolist()].view(picture.images, heads, *other.grid), words


def rows_of(tokens: TokenGrid, count: int, picture: TokenInput, query: Query) -> tuple[int | None, Sequence[int], str]:
    """Return which of the queries are meant: the part of the image, None for all; the queries; and in words.

    Raises:
        NotAMapError: There is no such query.
    """
    if count == 1 and tokens.parts == 1:
        if query.position or query.mean:
            raise NotAMapError("its only query is one token, not the patches")
        return None, [0], "its only query"
    if query.position:
        if tokens.refused or tokens.order is None:
            raise NotAMapError(tokens.refused or f"its {count} queries are no patches of the picture")
        height, width = tokens.grid
        row, column = tokens.cell(query.position, picture.size or tokens.grid)
        part, token = divmod(int(tokens.order[row * width + column]), tokens.length)
        window = ", which sees its window" if tokens.parts > 1 else ""
        named = f"the patch at row {query.position[0]}, column {query.position[1]}"
        return part, [token], f"{named} (patch {row}, {column} of {height} x {width}{window})"
    if tokens.refused:
        raise NotAMapError(tokens.refused)
    if tokens.parts > 1 and tokens.order is not None:
        return None, range(count), f"the mean of {len(tokens.order)} patches, each of which sees its window"
    if tokens.order is None:
        return None, range(count), f"the mean of {count} learnt queries"
    chosen = _class_token(tokens, picture)
    if chosen is not None and not query.mean:
        return None, [chosen[0]], chosen[1]
    reason = ""
    if not query.mean:
        # Another token may as well be a register.
        unknown = ", whether another token is a class token is not known: no parameter has such a name, as cls_token"
        reason = unknown if tokens.others else ", there is no class token"
    return None, np.sort(tokens.order).tolist(), f"the mean of {len(tokens.order)} patches{reason}"


def _class_token(tokens: TokenGrid, picture: TokenInput) -> tuple[int, str] | None:
    """Return the class token and its description: by its parameter, else the first token that is no patch."""
    if tokens.classes:
        return tokens.classes[0], "the class token"
    if not tokens.others or not picture.has_class:
        return None
    if len(tokens.others) == 1:
        return tokens.others[0], "the class token"
    return tokens.others[0], f"the first of {len(tokens.others)} tokens that are no patches, taken to be the class token"


def _sum_of_patches(attention: Attention, tokens: TokenGrid, images: int) -> Tensor:
    """Return the sum of the weights of the patches in each window, float32 `(N, heads, S)`; padding is no patch."""
    assert tokens.order is not None
    of_patch = torch.zeros(tokens.parts * tokens.length)
    of_patch[tokens.order.tolist()] = 1
    mask = of_patch.view(1, tokens.parts, tokens.length, 1).expand(images, -1, -1, -1).flatten(0, 1)
    heads = attention.weights.of_heads()
    return torch.stack([(head * mask.to(head.device)).sum(1) for head in heads], 1)


def _mean_over(attention: Attention, queries: Sequence[int]) -> Tensor:
    """Return the mean weights of some queries, float32 `(N, heads, S)`."""
    weights = attention.weights
    if len(queries) == 1:
        return weights.row(queries[0])
    total: Tensor | None = None
    for _, group in groupby(enumerate(queries), key=lambda pair: pair[1] - pair[0]):  # of neighbours
        run = [query for _, query in group]
        mean = mean_row(weights, slice(run[0], run[-1] + 1))
        if len(run) == len(queries):
            return mean
        total = mean * len(run) if total is None else total + mean * len(run)
    assert total is not None
    return total / len(queries)
