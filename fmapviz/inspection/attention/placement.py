"""Find where in the picture the tokens of an attention are: its class token, grids of patches, and windows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import torch

from fmapviz.core.config.positions import cell_of
from fmapviz.inspection.attention.weights import mean_row
from fmapviz.inspection.reshape import NotAMapError, is_unrolled, picture_size, token_grid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from fmapviz.inspection.attention.observe import Attention, Running

# Names of parameters that are a class token: `cls_token` (timm), `class_token` (torchvision), `class_embedding` (CLIP).
_CLASS_TOKEN = re.compile(r"cls(_tokens?|_pos)?|class_(tokens?|embedding|embed|emb)")

_LEARNT_QUERIES = re.compile(r"(query|queries|object)_?\w*(embed|token|queries|feat)\w*(\.weight)?$")


@dataclass(frozen=True, slots=True)
class Query:
    """Whose attention is drawn.

    Attributes:
        position: Row and column of a pixel of the network's input, for the patch there; None for the class token.
        mean: Whether the mean over all patches is requested.
    """

    position: tuple[int, int] | None = None
    mean: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is known of a network's tokens.

    Attributes:
        has_class: Whether the first one may be a class token.
        learnt: Numbers of tokens that are learnt queries, such as those of a detector, not patches.
        ordered: Whether they are in the order of rows and columns.
    """

    has_class: bool = False
    learnt: frozenset[int] = frozenset()
    ordered: bool = True

    @classmethod
    def of(cls, network: nn.Module) -> Tokens:
        """Find it out by the names of parameters and modules."""
        names = {name.rpartition(".")[2] for name, _ in network.named_parameters()}
        has_class = any(_CLASS_TOKEN.fullmatch(name) for name in names)
        return cls(has_class, frozenset(_learnt_queries(network)), not is_unrolled(network.modules()))


@dataclass(frozen=True, slots=True)
class Picture:
    """The input that tokens come from.

    Attributes:
        images: Number of images in the batch.
        size: Height and width, pixels; None if it is not a picture.
        tokens: What is known of them.
    """

    images: int
    size: tuple[int, int] | None
    tokens: Tokens

    @classmethod
    def of(cls, pixels: Tensor, tokens: Tokens) -> Picture:
        """Return the input of a network, `(N, ...)`."""
        return cls(len(pixels), picture_size(pixels), tokens)

    def check(self, query: Query) -> None:
        """Raise PositionError if the query lies outside the picture."""
        if query.position and self.size:
            cell_of(query.position, picture=self.size, grid=self.size)


def _learnt_queries(network: nn.Module) -> Iterator[int]:
    """Yield how many learnt queries a network has, by the names of such parameters: `query_embed.weight`, `query_tokens`."""
    for name, values in network.named_parameters():
        if _LEARNT_QUERIES.search(name) and values.ndim in {2, 3}:
            yield values.shape[-2]


def map_of(attention: Attention, picture: Picture, query: Query) -> tuple[Tensor, str]:
    """Return the weights of one query as a map for each head.

    Returns:
        float32 `(N, heads, h, w)`, the rows and columns those of the keys, without prefix tokens; and whose attention it is,
        in words.

    Raises:
        NotAMapError: The keys are no patches, or the query is none of the queries, with the reason.
    """
    count, heads, queries, keys = attention.weights.shape
    if not picture.tokens.ordered:
        raise NotAMapError(f"attention between {keys} tokens grouped by the units of a mask: not a map of the image")
    if count != picture.images or _window_of(attention) == keys == queries:
        return _map_of_windows(attention, picture, query)
    prefix, height, width = _grid(attention, picture, keys)
    row, shown = _row(attention, picture, query)
    return row[:, :, prefix:].reshape(count, heads, height, width), shown


def row_of(query: Query, count: int, picture: Picture) -> tuple[slice, str]:
    """Return which of the queries are meant, as a slice, and in words.

    Raises:
        NotAMapError: There is no such query.
    """
    if count == 1:
        if query.position or query.mean:
            raise NotAMapError("its only query is one token, not the patches")
        return slice(0, 1), "its only query"
    if count in picture.tokens.learnt:
        if query.position:
            raise NotAMapError(f"its {count} queries are learnt, and not the patches")
        return slice(0, count), f"the mean of {count} learnt queries"
    grid = token_grid(count, picture.size)
    if grid is None:
        raise NotAMapError(f"{count} queries do not form a grid of patches")
    prefix, height, width = grid
    if query.position:
        row, column = cell_of(query.position, picture=picture.size or (height, width), grid=(height, width))
        first = prefix + row * width + column
        return slice(first, first + 1), f"{_name(query)} (patch {row}, {column} of {height} x {width})"
    if prefix and picture.tokens.has_class and not query.mean:
        return slice(0, 1), "the class token"
    reason = "" if query.mean else ", there is no class token"
    return slice(prefix, None), f"the mean of {count - prefix} patches{reason}"


def _row(attention: Attention, picture: Picture, query: Query) -> tuple[Tensor, str]:
    chosen, shown = row_of(query, attention.weights.shape[2], picture)
    if chosen.stop == chosen.start + 1:
        return attention.weights.row(chosen.start), shown
    return mean_row(attention.weights, chosen), shown


def _grid(attention: Attention, picture: Picture, keys: int) -> tuple[int, int, int]:
    grid = token_grid(keys, picture.size)
    queries = attention.weights.shape[2]
    shapes = attention.running[-1].shapes
    received = {length for shape in shapes if len(shape) == 3 for length in shape[:2]}
    cuts_itself = any(len(shape) != 3 for shape in shapes)  # patches out of maps
    if not cuts_itself and not {keys, queries} & received:
        raise NotAMapError(
            f"attention weights {_shape(attention)} that are not between the {_listed(received)} tokens of the layer"
        )
    if keys in picture.tokens.learnt:
        raise NotAMapError(f"attention to {keys} learnt queries, not to patches")
    if grid is None:
        raise NotAMapError(f"attention to {keys} tokens, which do not form a grid of patches")
    return grid


def _map_of_windows(attention: Attention, picture: Picture, query: Query) -> tuple[Tensor, str]:
    """Return the attention within windows, put back where the windows were cut out.

    A patch sees the patches of its own window, so that the attention of one is zero elsewhere.
    """
    heads, queries = attention.weights.shape[1:3]
    windows = _windows(attention, picture)
    high, wide = windows.size
    each = (picture.images, windows.down, windows.across, heads)
    if query.position:
        row, column = cell_of(query.position, picture=picture.size or windows.grid, grid=windows.grid)
        down, inner_row = divmod((row - windows.shift[0]) % (windows.down * high), high)
        across, inner_column = divmod((column - windows.shift[1]) % (windows.across * wide), wide)
        seen = attention.weights.row(inner_row * wide + inner_column).view(*each, high, wide)
        maps = torch.zeros_like(seen)
        maps[:, down, across] = seen[:, down, across]
        shown = f"{_name(query)} (patch {row}, {column} of {windows.grid[0]} x {windows.grid[1]}, which sees its window)"
    else:
        count = windows.down * windows.across
        maps = (
            mean_row(attention.weights, slice(None)).view(*each, high, wide) / count
        )  # the other windows see nothing of it
        shown = f"the mean of {count * queries} patches, each of which sees its window"
    whole = maps.permute(0, 3, 1, 4, 2, 5).reshape(picture.images, heads, windows.down * high, windows.across * wide)
    whole = whole.roll(windows.shift, (2, 3))
    return whole[:, :, : windows.grid[0], : windows.grid[1]], shown


@dataclass(frozen=True, slots=True)
class _Windows:
    """How a grid of patches was cut into windows.

    Attributes:
        grid: Rows and columns of patches; windows may extend beyond their end.
        size: Rows and columns of a window.
        shift: By how many rows and columns the grid was rolled up and left before.
    """

    grid: tuple[int, int]
    size: tuple[int, int]
    shift: tuple[int, int]

    @property
    def down(self) -> int:
        return ceil(self.grid[0] / self.size[0])

    @property
    def across(self) -> int:
        return ceil(self.grid[1] / self.size[1])


def _windows(attention: Attention, picture: Picture) -> _Windows:
    """Return the windows that the attributes of the running modules describe.

    Raises:
        NotAMapError: None describes them, with the reason.
    """
    count, _, queries, keys = attention.weights.shape
    what = f"attention within parts of the image {_shape(attention)}"
    if count % picture.images:
        raise NotAMapError(f"{what}, {count} for {picture.images} images")
    size = _innermost(attention, "window_size")
    if size is None:
        raise NotAMapError(f"{what}: no module says by window_size and shift_size where they are")
    if not queries == keys == size[0] * size[1]:
        raise NotAMapError(f"{what}: these are not the {size[0]} x {size[1]} patches of a window")
    shift = _innermost(attention, "shift_size") or (0, 0)
    for grid in _grids(attention.running, picture):
        # Windows are not shifted along a side that has only one.
        moved = tuple(by if side > window else 0 for by, side, window in zip(shift, grid, size, strict=True))
        windows = _Windows(grid, size, (moved[0], moved[1]))
        if windows.down * windows.across == count // picture.images:
            return windows
    raise NotAMapError(
        f"{what}: {count // picture.images} windows of {size[0]} x {size[1]} do not tile what the layer received"
    )


def _innermost(attention: Attention, name: str) -> tuple[int, int] | None:
    """Return the two numbers that the innermost running module has under a name, of those that have it."""
    pairs = (_pair(each.layer.module, name) for each in reversed(attention.running))
    return next(filter(None, pairs), None)


def _window_of(attention: Attention) -> int:
    """Return the number of patches of a window; 0 if no module has windows."""
    rows, columns = _innermost(attention, "window_size") or (0, 0)
    return rows * columns


def _grids(running: Sequence[Running], picture: Picture) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of patches as the running modules received them, innermost first."""
    for each in reversed(running):
        for shape in each.shapes:
            if shape[0] != picture.images:
                continue
            if len(shape) == 4:
                yield shape[1], shape[2]
                yield shape[2], shape[3]
            elif len(shape) == 3:
                yield from (pair for pair in each.numbers if pair[0] * pair[1] == shape[1])
                if (grid := token_grid(shape[1], picture.size)) and not grid[0]:
                    yield grid[1], grid[2]


def _pair(module: nn.Module, name: str) -> tuple[int, int] | None:
    """Return a whole number, or two, that a module has under a name, as rows and columns."""
    value = getattr(module, name, None)
    sides = [value, value] if type(value) is int else [*value] if isinstance(value, list | tuple) else []
    return (sides[0], sides[1]) if [*map(type, sides)] == [int, int] and min(sides) >= 0 and value != 0 else None


def _name(query: Query) -> str:
    row, column = query.position or (0, 0)
    return f"the patch at row {row}, column {column}"


def _listed(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers))) or "unknown"


def _shape(attention: Attention) -> str:
    return f"({', '.join(map(str, attention.weights.shape))})"
