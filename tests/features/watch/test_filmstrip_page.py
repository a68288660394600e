"""Filmstrips: a row per step, a column per channel, each with one range."""

import numpy as np

from fmapviz.features.watch.filmstrip_page import CELL, draw_filmstrip

MARGIN, GAP = 8, 2


def cells(page, rows, columns, side=CELL):
    """Cut the cells out of a page, from its lower right corner."""
    height, width = page.shape
    tops = [height - MARGIN - (rows - row) * (side + GAP) for row in range(rows)]
    left = width - MARGIN - columns * (side + GAP)
    return np.stack(
        [[page[top : top + side, left + at * (side + GAP) :][:, :side] for at in range(columns)] for top in tops]
    )


def test_each_column_has_one_range_over_all_rows():
    maps = np.random.default_rng(0).normal(size=(5, 12, CELL, CELL)).astype(np.float32)
    maps[:, 3] *= 1000
    maps[2, 4] *= 0.1
    found = cells(draw_filmstrip(maps, range(5), range(12), title="layer"), 5, 12)
    low, high = maps.min((0, 2, 3), keepdims=True), maps.max((0, 2, 3), keepdims=True)
    expected = (maps - low) / (high - low) * 255
    assert np.abs(found - expected).max() <= 0.51
    assert found[2, 4].std() < 0.2 * found[1, 4].std()


def test_small_maps_are_enlarged_and_constant_ones_are_black():
    maps = np.zeros((2, 12, 8, 8), np.float32)
    maps[:, 1, 0, 0] = 1
    found = cells(draw_filmstrip(maps, [0, 7], range(12), title=""), 2, 12)
    assert (found[:, 0] == 0).all()
    assert (found[:, 1, :4, :4] == 255).all()
    assert found[:, 1].sum() == 2 * 16 * 255


def test_values_that_are_not_finite_are_a_checkerboard():
    maps = np.zeros((2, 12, CELL, CELL), np.float32)
    maps[1, 0] = np.nan
    maps[1, 1, :, 1:] = np.inf
    maps[0, 1] = 1
    found = cells(draw_filmstrip(maps, [0, 7], range(12), title=""), 2, 12)
    rows, columns = np.indices((CELL, CELL))
    assert np.array_equal(found[1, 0], (rows + columns) % 2 * 255)
    assert (found[0, 1] == 255).all()
    assert (found[1, 1, :, 0] == 0).all()


def test_long_titles_and_large_steps_have_room():
    maps = np.zeros((3, 1, 4, 40), np.float32)
    page = draw_filmstrip(maps, [0, 10**9, 2 * 10**9], [2047], title="a.very.long.name " * 30, note="note " * 50)
    assert page.shape[1] >= 336
    assert page.dtype == np.uint8
