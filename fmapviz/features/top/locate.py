"""Find the position of a channel's value in its feature map, and the receptive field there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.receptive_field import clipped
from fmapviz.store.aggregates.unit_ranking import COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.data import LayerResult
    from fmapviz.features.top.options import TopOptions
    from fmapviz.observe.receptive_field import ReceptiveField
    from fmapviz.store.aggregates.ranking import By

    Map = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a value in a feature map.

    Attributes:
        y: Row.
        x: Column.
        box: The receptive field, left, top, right and bottom in prepared pixels, right and bottom exclusive; it may extend
            beyond the picture.
        picture: Height and width of the prepared picture, pixels.
        sample: Number of the sample that it is in, from 1, and how many there are; None if there is one.
    """

    y: int
    x: int
    box: tuple[int, int, int, int]
    picture: tuple[int, int]
    sample: tuple[int, int] | None = None

    @property
    def visible(self) -> tuple[int, int, int, int]:
        """The part of the box that is in the picture."""
        return clipped(self.box, self.picture)


def first_maximum(values: Map, by: By) -> tuple[int, int]:
    """Return row and column of the largest finite value, or of the smallest; among equal values the first one, row by row.

    Args:
        values: float32 `(h, w)`, with a finite value.
        by: `min` looks for the smallest value.

    Example:
        >>> first_maximum(np.array([[1.0, np.nan], [3.0, 3.0]], np.float32), "max")
        (1, 0)
    """
    signed = -values if by == "min" else values
    finite = np.where(np.isfinite(signed), signed, -np.inf)
    y, x = divmod(int(finite.argmax()), values.shape[1])
    return y, x


def inside_values(layer: LayerResult, by: By, field: ReceptiveField | None) -> Map:
    """Return the value of each channel over the positions whose fields lie within the picture.

    Returns:
        float32 `(C,)`; NaN without such a position, or without a finite value.
    """
    assert layer.measures
    field = fitting(field, layer)
    if layer.maps is None or field is None or len(layer.maps) > 1:  # a vector, or of several regions
        return np.full(len(layer.measures.low), np.nan, np.float32)
    values = layer.maps[0][:, _inside(field, layer.maps.shape[2:])].astype(np.float32)
    finite = np.isfinite(values)
    known = finite.any(1)
    if by == "mean":
        sums, counts = np.where(finite, values, 0).sum(1, dtype=np.float64), finite.sum(1)
        found = np.divide(sums, counts, out=np.full(len(values), np.nan), where=known).astype(np.float32)
    elif by == "max":
        found = np.where(finite, values, -np.inf).max(1, initial=-np.inf)
    else:
        found = np.where(finite, values, np.inf).min(1, initial=np.inf)
    return np.where(known, found, np.float32(np.nan)).astype(np.float32)


def measured(layer: LayerResult, options: TopOptions, field: ReceptiveField | None, channel: int) -> np.float32:
    """Return the ranked value of a channel in this forward pass."""
    assert layer.measures
    if not options.inside:
        return np.float32(getattr(layer.measures, COLUMNS[options.by])[channel])
    return np.float32(inside_values(layer, options.by, field)[channel])


def locate(
    layer: LayerResult, options: TopOptions, field: ReceptiveField | None, channel: int, *, picture: tuple[int, int]
) -> tuple[Map, Position]:
    """Find the largest value of a channel, or with `min` the smallest.

    Args:
        layer: The feature map of an image, with all its values; those of a vector are one each.
        options: Which positions count.
        field: The fields of the positions; None if they are not known.
        channel: The channel.
        picture: Height and width of the prepared picture, pixels.

    Returns:
        The channel's map, float32 `(h, w)`, and the first position of the value, row by row. A layer that runs on regions of
        the picture has a map for each; it is that of the region with the value.
    """
    if layer.maps is None:
        assert layer.measures
        regions = np.full((1, 1, 1), layer.measures.high[channel], np.float32)
    else:
        regions = layer.maps[:, channel].astype(np.float32)
    if len(regions) > 1:
        field = None
    allowed = regions
    if options.inside and field is not None:
        allowed = np.where(_inside(field, regions.shape[1:]), regions, np.float32(np.nan))
    row, x = first_maximum(allowed.reshape(-1, regions.shape[2]), options.by)
    region, y = divmod(row, regions.shape[1])
    box = (0, 0, picture[1], picture[0]) if field is None else field.box(y, x)
    return regions[region], Position(y, x, box, picture, (region + 1, len(regions)) if len(regions) > 1 else None)


def fitting(field: ReceptiveField | None, layer: LayerResult) -> ReceptiveField | None:
    """Return the fields of a map's positions; None if the map is put together from windows with other fields."""
    if field is None or layer.maps is None or field.is_whole:
        return field
    return field if (field.rows.shape[1], field.columns.shape[1]) == layer.maps.shape[2:] else None


def _inside(field: ReceptiveField, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the positions of a map whose fields lie within the picture, boolean `(h, w)`."""
    rows, columns = (
        (ends[0] >= 0) & (ends[1] < side) for ends, side in zip((field.rows, field.columns), field.picture, strict=True)
    )
    return np.broadcast_to(rows[:, None] & columns[None, :], shape)
