"""Boxes are where rows, columns and margins put them."""

from __future__ import annotations

import numpy as np
import pytest

from fmapviz.draw.layout import BLACK, WHITE, Box, column, draw, picture, row


def plain(height, width, level=100):
    return picture(np.full((height, width), level, np.uint8))


def where(pixels, level):
    """Return left, top, width and height of the rectangle of one level."""
    rows, columns = (pixels == level).nonzero()
    assert (pixels[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] == level).all()
    return columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1


def test_boxes_are_side_by_side_or_below_each_other_with_gaps():
    boxes = [plain(4, 5, 1), plain(7, 2, 2), plain(3, 6, 3)]
    beside = draw(row(boxes, gap=10), WHITE)
    assert beside.shape == (7, 33)
    assert [where(beside, level) for level in (1, 2, 3)] == [(0, 0, 5, 4), (15, 0, 2, 7), (27, 0, 6, 3)]
    below = draw(column(boxes, gap=10), WHITE)
    assert below.shape == (34, 6)
    assert [where(below, level) for level in (1, 2, 3)] == [(0, 0, 5, 4), (0, 14, 2, 7), (0, 31, 6, 3)]


def test_an_empty_box_takes_no_gap():
    assert draw(row([Box(0, 3), plain(1, 5), Box(0, 9), plain(1, 5)], gap=4), WHITE).shape == (9, 14)
    assert draw(column([Box(3, 0), plain(5, 1), Box(9, 0), plain(5, 1)], gap=4), WHITE).shape == (14, 9)
    assert row([]).width == column([]).height == 0


@pytest.mark.parametrize(("x", "left"), [(0, 0), (0.5, 6), (1, 13), (0.499, 6)])
def test_a_box_is_aligned_within_a_larger_one(x, left):
    pixels = draw(plain(2, 7).within(20, 10, x=x, y=1), BLACK)
    assert pixels.shape == (10, 20)
    assert where(pixels, 100) == (left, 8, 7, 2)
    assert where(draw(plain(2, 7).padded(3), BLACK), 100) == (3, 3, 7, 2)


def test_later_parts_cover_earlier_ones_and_may_reach_beyond_their_box():
    framed = Box(3, 3, [(np.full((5, 5), 9, np.uint8), -1, -1), (np.full((3, 3), 8, np.uint8), 0, 0)])
    pixels = draw(framed.padded(2), WHITE)
    assert pixels.shape == (7, 7)
    assert [(pixels == level).sum() for level in (9, 8)] == [16, 9]


def test_a_page_is_in_colour_if_a_picture_is():
    red = picture(np.full((2, 2, 3), (255, 0, 0), np.uint8))
    assert draw(row([plain(2, 2), plain(2, 2)]), BLACK).shape == (2, 4)
    assert draw(plain(2, 2), BLACK, colour=True)[0, 0].tolist() == [100, 100, 100]
    assert draw(row([plain(2, 2), red]), BLACK)[0].tolist() == [[100] * 3, [100] * 3, [255, 0, 0], [255, 0, 0]]
