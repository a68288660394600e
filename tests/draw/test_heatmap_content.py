"""Heat maps become pictures over the input that name their class and layer."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
from heat_maps import FOURTH, NAME, SEEN, SHEETS, STAR, content, drawn, heat, info, pictures
from PIL import Image
from results import drawn_layer, result_of, seen_of

from fmapviz.config import Style
from fmapviz.core.drawings import Grid, HeatMap
from fmapviz.draw.colormaps import table
from fmapviz.draw.facts import describe
from fmapviz.draw.picture import header_of, make_pictures
from fmapviz.draw.records import find_empty_maps, heat_records, layer_records, notices_of
from fmapviz.types import Statistics, Target

# --- drawings


@pytest.mark.parametrize(
    ("colormap", "alpha", "gray"),
    [(None, 0.5, True), (None, 0.5, False), ("jet", 0.3, True), ("viridis", 0, False), ("magma", 1, True)],
)
def test_a_heat_map_lies_in_colour_over_the_picture(colormap, alpha, gray):
    from extras import matplotlib as mpl

    one = heat()
    (picture,) = pictures(one, style={"colormap": colormap, "alpha": alpha, "gray_input": gray})
    colours = Image.fromarray(np.uint8(mpl.colormaps[colormap or "turbo"](content(one).pixels)[..., :3] * 255 + 0.5))
    below = Image.fromarray(SEEN).convert("L" if gray else "RGB").convert("RGB")
    expected = np.asarray(Image.blend(below, colours, alpha)).astype(int)
    assert picture.pixels.dtype == np.uint8
    assert abs(picture.pixels - expected).max() <= 1 + 4 * alpha
    if not alpha:
        assert np.array_equal(picture.pixels, SEEN)


@pytest.mark.parametrize("layer", ["layer4", ""], ids=["over the picture", "alone"])
def test_each_pixel_of_a_heat_map_is_enlarged(layer):
    one = heat(layer=layer, over=bool(layer))
    ((small,), (large,)) = (pictures(one, style={"scale": scale}) for scale in (1, 3))
    enlarged = Image.fromarray(small.pixels).resize((72, 48), Image.Resampling.NEAREST)
    assert np.array_equal(large.pixels, np.asarray(enlarged))


def test_a_heat_map_lies_over_a_grey_picture_too():
    (picture,) = pictures(heat(), seen=SEEN[..., 0])
    (coloured,) = pictures(heat(), seen=np.repeat(SEEN[..., :1], 3, 2))
    assert np.array_equal(picture.pixels, coloured.pixels)


def test_a_map_of_the_pictures_resolution_is_drawn_without_the_picture():
    one = heat("saliency", "", over=False)
    (grey,) = pictures(one)
    assert np.array_equal(grey.pixels, content(one).pixels)
    (coloured,) = pictures(one, style={"colormap": "jet"})
    assert np.array_equal(coloured.pixels, table("jet")[content(one).pixels])


def test_a_picture_is_named_after_its_place_and_class():
    found = pictures(
        heat(),
        heat("gradcam++", "a.b#2", index=7, target=FOURTH),
        heat("eigencam", index=123, target=None),
        heat("saliency", "", over=False),
    )
    assert [(picture.view, picture.name, picture.title) for picture in found] == [
        ("gradcam", "000 layer4.top1", "000 layer4: star"),
        ("gradcam++", "007 a.b#2.class4", "007 a.b#2: class 4"),
        ("eigencam", "123 layer4", ""),
        ("saliency", "000 input.top1", "000 input: star"),
    ]


def test_a_picture_describes_its_content():
    raw = [[-1.23456, 0.0, 5.4321]]
    (picture,) = pictures(heat(raw=raw, automatic=True), style={"alpha": 0.25})
    assert picture.facts == {
        "Layer": "layer4 (chosen automatically)",
        "Type": "Sequential",
        "Shape": "512 x 4 x 6",
        "Class": "star (number 3), top1, score 2.346",
        "Range": "-1.235 to 5.432",
        "Scaling": "negative values are zero, then 0 to 5.432, enlarged: turbo, 0.25 over the grey input",
    }
    (saliency,) = pictures(heat("saliency", "", raw=raw, target=FOURTH, over=False))
    assert list(saliency.facts) == ["Shape", "Class", "Range", "Scaling"]
    assert saliency.facts["Class"] == "class 4, score -0.5"
    assert saliency.facts["Scaling"].endswith(": grey")
    (free,) = pictures(heat("eigencam", target=None))
    assert "Class" not in free.facts


def test_a_class_without_a_name_is_labelled_by_its_number():
    assert str(Target("star", 3, "star", 10)) == "star (number 3), score 10"
    assert str(Target("top2", 7, "", 12345.678)) == "class 7, top2, score 1.235e+04"


# --- empty maps


def notices_about(result, **options):
    return notices_of(result, find_empty_maps(result, **options))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([[-3.5, -1.0]], "zero everywhere: nothing there speaks for the class (raw values -3.5 to -1)"),
        (
            [[0.0, 0.0]],
            "zero everywhere: so is the gradient of the class score, or what the layer returned (raw values 0 to 0)",
        ),
        ([[np.nan, 0.0]], "not finite: NaN and infinite values are drawn as zero (raw values nan to nan)"),
        ([[2.0, 2.0]], "the same everywhere (raw values 2 to 2)"),
    ],
)
def test_an_empty_map_is_reported_with_its_range(raw, said):
    empty = heat(raw=raw)
    assert content(empty).empty
    assert notices_about(drawn(empty, heat())) == [f"gradcam of layer4 for star is {said}"]
    (picture,) = pictures(empty)
    gray = np.asarray(Image.fromarray(SEEN).convert("L"))[..., None]
    assert picture.facts["Scaling"] == said.partition(" (raw")[0]
    assert len(np.unique(picture.pixels.astype(int) - np.rint(gray * 0.5).astype(int))) < 12  # one colour over all
    assert notices_about(drawn(heat("saliency", "", raw=raw, target=FOURTH))) == [f"saliency for class 4 is {said}"]
    assert notices_about(drawn(heat("eigencam", raw=raw, target=None))) == [f"eigencam of layer4 is {said}"]


def test_the_empty_cells_of_a_sheet_are_reported_in_one_line():
    cells = [heat("sheet", f"layer{number}", raw=[[-1.0]]) for number in range(6)]
    (notice,) = notices_about(drawn(*cells[:2], heat("sheet")), sheets=["sheet"])
    assert notice == "cells of the sheet with nothing to see: layer0 for star, layer1 for star"
    (notice,) = notices_about(drawn(*cells), sheets=["sheet"])
    assert notice.endswith("layer3 for star and 2 more")
    assert notices_about(drawn(heat(), heat("sheet")), sheets=["sheet"]) == []


# --- what unit.json tells


def test_records_are_plain_json_and_complete():
    one, free = heat(automatic=True, raw=[[-1, 2.5]]), heat("eigencam", "", target=None, raw=[[np.nan, 1]], index=3)
    records = heat_records(drawn(one, free))
    assert json.loads(json.dumps(records, allow_nan=False)) == [
        {
            "view": "gradcam",
            "layer": "layer4",
            "type": "Sequential",
            "shape": [512, 4, 6],
            "automatic": True,
            "target": "top1",
            "class": 3,
            "class_name": "star",
            "score": 2.34567,
            "logit": None,
            "probability": None,
            "min": -1,
            "max": 2.5,
        },
        {
            "view": "eigencam",
            "layer": None,
            "type": None,
            "shape": [512, 4, 6],
            "automatic": False,
            "min": None,
            "max": None,
        },
    ]


def test_a_score_that_is_no_number_does_not_break_the_record():
    (record,) = heat_records(drawn(heat(target=Target("top1", 0, "", float("nan")))))
    json.dumps(record, allow_nan=False)


# --- together with grids


def test_gradients_and_heat_maps_come_after_the_input_with_numbers_of_one_width():
    numbers = Statistics(-1, 1, 0, (), 0)
    grids = [
        drawn_layer(
            "conv",
            Grid(np.zeros((3, 3), np.uint8)),
            view="grads",
            index=index,
            shape=(2, 3),
            statistics=numbers,
            of="gradient",
            target=target,
        )
        for index, target in ((0, STAR), (100, FOURTH))
    ]
    found = list(
        make_pictures(drawn(heat(index=5), heat("contact"), drawings=grids), seen_of(SEEN), NAME, info(), sheets=SHEETS)
    )
    assert [(picture.tag, picture.title) for picture in found] == [
        ("input/input", ""),
        ("grads/000 conv.top1", "000 conv: star"),
        ("grads/100 conv.class4", "100 conv: class 4"),
        ("gradcam/005 layer4.top1", "005 layer4: star"),
        ("contact/contact", ""),
    ]
    assert [picture.file_name for picture in found] == [
        "input.png",
        "000_conv.top1.grads.png",
        "100_conv.class4.grads.png",
        "005_layer4.top1.gradcam.png",
        "contact.png",
    ]
    for picture in found:
        with Image.open(BytesIO(picture.png)) as image:
            image.load()
            assert image.text.items() >= picture.facts.items()
            assert image.text["Image"] == "cats/lena.png"
    records = layer_records(drawn(drawings=grids))
    assert [(record["of"], record["target"], record["class"], record["class_name"]) for record in records] == [
        ("gradient", "top1", 3, "star"),
        ("gradient", "class4", 4, None),
    ]


# --- values that are not finite


def reduced(view, layer, index, *, places, values):
    raw = np.arange(24, dtype=np.float32).reshape(4, 6)
    raw.flat[:places] = np.nan
    over = view != "contact"
    pixels = np.uint8(np.nan_to_num(raw)).repeat(4, 0).repeat(4, 1)
    heat_map = HeatMap(raw, pixels, over, "turbo" if over else "viridis", (0.0, 23.0), nonfinite=values)
    return drawn_layer(layer, heat_map, view=view, index=index, shape=(8, 4, 6))


def test_a_sheet_names_a_few_layers_with_values_that_are_not_finite():
    cells = [reduced("contact", f"conv{index}", index, places=index, values=8 * index) for index in range(7)]
    (sheet,) = pictures(*cells)
    assert sheet.facts["Not finite"] == (
        "take no part, drawn as a checkerboard where there is no other; "
        "conv1: 8 values, no other at 1 of 24 places; conv2: 16 values, no other at 2 of 24 places; "
        "conv3: 24 values, no other at 3 of 24 places; conv4: 32 values, no other at 4 of 24 places; 2 more layers"
    )
    (without,) = pictures(*[reduced("contact", f"conv{index}", index, places=0, values=0) for index in range(7)])
    assert "Not finite" not in without.facts
    assert np.array_equal(without.pixels[-20:-10], sheet.pixels[-20:-10])
    assert not np.array_equal(without.pixels[-45:], sheet.pixels[-45:])  # the note tells of the checkerboard


def test_ignored_values_are_reported_if_a_map_has_other_values():
    (picture,) = pictures(reduced("mean", "conv", 0, places=0, values=5))
    assert picture.facts["Not finite"] == "5 values are NaN or infinite and take no part"
    assert len(np.unique(picture.pixels.reshape(-1, 3), axis=0)) > 20
    (record,) = heat_records(drawn(reduced("mean", "conv", 0, places=3, values=30)))
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["min"], record["max"], record["nonfinite"], record["nonfinite_places"]) == (3, 23, 30, 3)
    nowhere = reduced("max", "conv", 0, places=24, values=192)
    (record,) = heat_records(drawn(nowhere))
    assert (record["min"], record["max"], record["nonfinite_places"]) == (None, None, 24)
    (picture,) = pictures(nowhere)
    assert {tuple(colour) for colour in picture.pixels.reshape(-1, 3).tolist()} == {(0, 0, 0), (255, 255, 255)}


def test_the_header_of_a_map_of_the_image_itself_begins_with_its_view():
    (layer,) = result_of(heat("saliency", "", over=False)).layers
    (drawing,) = layer.drawings
    lines = header_of(layer, drawing, describe(layer, drawing.content, Style()), info())
    assert lines[0] == "saliency  512 x 4 x 6"
    assert not lines[1].startswith("saliency")
    (layer,) = result_of(heat()).layers
    lines = header_of(layer, layer.drawings[0], describe(layer, layer.drawings[0].content, Style()), info())
    assert (lines[0], lines[1].split(":")[0]) == ("layer4  Sequential  512 x 4 x 6", "gradcam")
