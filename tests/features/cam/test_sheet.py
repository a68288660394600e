"""The sheet of class activation maps of several layers and classes."""

import numpy as np
from heat_maps import FOURTH, STAR, heat, pictures

from fmapviz.features.cam import sheet
from fmapviz.types import Prediction

SHEETS = {"sheet": sheet.compose}


def test_the_maps_of_a_sheet_are_one_picture_at_the_end():
    cells = [heat("sheet", layer, target=target) for layer in ("layer1", "layer4") for target in (STAR, FOURTH)]
    found = pictures(cells[0], heat(), *cells[1:], predictions=(Prediction(3, "star", 0.98765),), sheets=SHEETS)
    assert [(picture.view, picture.name) for picture in found] == [("gradcam", "00 layer4.top1"), ("sheet", "sheet")]
    sheet = found[-1]
    assert sheet.facts["Rows"] == "layer1, layer4"
    assert sheet.facts["Columns"] == "star (number 3), top1, score 2.346; class 4, score -0.5"
    assert sheet.pixels.ndim == 3
    assert min(sheet.pixels.shape[:2]) > 2 * 16
    (alone,) = pictures(*[heat("sheet", automatic=True)], sheets=SHEETS)
    assert alone.facts["Rows"] == "layer4 (chosen automatically)"
    assert not np.array_equal(alone.pixels.shape, sheet.pixels.shape)


def test_a_cell_without_a_map_is_labelled():
    full = [heat("sheet", layer, target=target) for layer in ("layer1", "layer4") for target in (STAR, FOURTH)]
    (with_all,), (with_three,) = pictures(*full, sheets=SHEETS), pictures(*full[:3], sheets=SHEETS)
    assert with_all.pixels.shape == with_three.pixels.shape
    assert not np.array_equal(with_all.pixels, with_three.pixels)
    assert with_all.facts == with_three.facts
