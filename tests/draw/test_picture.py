from __future__ import annotations

import json
import shlex
import string
import subprocess
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from results import drawn_layer, result_of, seen_of
from run_infos import run_info

import fmapviz
from fmapviz.config import Style
from fmapviz.core.drawings import Grid, Rendered
from fmapviz.draw.picture import make_pictures
from fmapviz.draw.records import find_empty_maps, layer_records, remark_on_channels
from fmapviz.types import CustomContent, Picture, Statistics

NAME = "cats/lena.png"
PIXELS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
SEEN = seen_of(PIXELS)
NUMBERS = Statistics(minimum=-1.23456, maximum=2.0, mean=0.5, constant=(), nonfinite=0)
COMMON = {
    "Model": "net (random weights, seed 0)",
    "Weights": "random weights, seed 0",
    "Image": "cats/lena.png",
    "Software": f"fmapviz {fmapviz.__version__}",
}


def info(**style):
    return run_info(to="png", style=Style(**style))


def drawing(layer="features.0", index=0, *, statistics=NUMBERS, view="maps", **others):
    pixels = np.random.default_rng(index).integers(0, 256, (6, 7), np.uint8)
    grid = Grid(pixels, channels=others.pop("channels", None))
    fields = {"shape": (8, 6, 7), "of": "input" if view == "inputs" else "output", **others}
    return drawn_layer(layer, grid, view=view, index=index, statistics=statistics, **fields)


def pixels_of(layer):
    return layer.drawings[0].content.pixels


def drawn(*drawings):
    return result_of(*drawings)


def facts_of(one, **style):
    _, picture = make_pictures(drawn(one), SEEN, NAME, info(**style))
    return picture.facts


# --- pictures


def test_the_input_comes_first_and_then_every_drawing_in_order():
    drawings = [drawing("a", 0), drawing("b", 1), drawing("b", 1, view="inputs"), drawing("a#2", 2, call=2)]
    first, *others = make_pictures(drawn(*drawings), SEEN, NAME, info())
    assert (first.group, first.name, first.tag, first.file_name) == ("input", "input", "input/input", "input.png")
    assert [picture.tag for picture in others] == ["maps/00 a", "maps/01 b", "inputs/01 b", "maps/02 a#2"]
    assert [picture.file_name for picture in others] == [
        "00_a.maps.png",
        "01_b.maps.png",
        "01_b.inputs.png",
        "02_a#2.maps.png",
    ]
    for picture, pixels in zip([first, *others], [PIXELS, *map(pixels_of, drawings)], strict=True):
        image = Image.open(BytesIO(picture.png))
        assert np.array_equal(np.asarray(image), pixels)
        assert image.size == (picture.width, picture.height) == (pixels.shape[1], pixels.shape[0])


def test_an_image_without_drawings_shows_its_input():
    (only,) = make_pictures(drawn(), SEEN, NAME, info())
    assert only.name == "input"


def test_pictures_are_encoded_one_at_a_time():
    """Not all of a large network's pictures lie in memory at once."""
    broken = drawing("b", 1, view="maps")
    pictures = make_pictures(drawn(drawing(), broken), SEEN, NAME, info())
    next(pictures)
    pixels_of(broken).fill(7)
    next(pictures)
    assert np.asarray(Image.open(BytesIO(next(pictures).png))).max() == 7


@pytest.mark.parametrize(("count", "first", "last"), [(2, "00", "01"), (100, "00", "99"), (101, "000", "100")])
def test_indices_have_as_many_digits_as_they_need(count, first, last):
    names = [picture.name for picture in make_pictures(drawn(*(drawing("a", n) for n in range(count))), SEEN, NAME, info())]
    assert (names[1], names[-1]) == (f"{first} a", f"{last} a")
    assert names[1:] == sorted(names[1:])


def test_a_picture_describes_its_content():
    assert facts_of(drawing()) == {
        "Layer": "features.0",
        "Type": "Conv2d",
        "Shape": "8 x 6 x 7",
        "Range": "-1.235 to 2",
        "Mean": "0.5",
        "Scaling": "each channel's minimum is black, its maximum white",
        **COMMON,
    }


@pytest.mark.parametrize(("of", "whose"), [("output", "of all channels"), ("attention", "of all heads")])
def test_the_range_of_more_than_the_chosen_channels_is_described(of, whose):
    assert facts_of(drawing(of=of, channels=(0, 1)))["Range"] == f"-1.235 to 2, {whose}"


def test_the_input_describes_its_content():
    (picture,) = make_pictures(drawn(), SEEN, NAME, info())
    assert picture.facts == {"Shows": "the input as the network saw it", "Shape": "4 x 5 pixels", **COMMON}


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        ("channel", "each channel's minimum is black, its maximum white"),
        ("layer", "the layer's minimum is black, its maximum white"),
        ("fixed:-1,2.5", "-1 is black, 2.5 is white"),
    ],
)
def test_the_scaling_is_put_into_words(norm, words):
    assert facts_of(drawing(), norm=norm)["Scaling"] == words


def test_maps_of_heads_are_not_described_as_channels():
    facts = facts_of(drawing(of="attention", channels=(2, 1)))
    assert facts["Scaling"] == "each head's minimum is black, its maximum white"
    assert facts["Heads"] == "2, 1"
    assert "Channels" not in facts


def test_unusual_values_are_described():
    statistics = Statistics(None, None, None, constant=(0, 3), nonfinite=12)
    facts = facts_of(drawing(statistics=statistics, channels=(7, 1), samples=1000))
    assert facts["Range"] == "no finite value"
    assert facts["Mean"] == "none"
    assert facts["Dead channels"] == "0, 3"
    assert facts["Not finite"].startswith("12 values are NaN or infinite")
    assert facts["Channels"] == "7, 1"
    assert facts["Samples"].startswith("the layer saw 1000 samples")


def test_long_lists_of_channels_are_cut():
    statistics = Statistics(0.0, 0.0, 0.0, constant=tuple(range(512)), nonfinite=0)
    facts = facts_of(drawing(statistics=statistics, channels=tuple(range(32))))
    assert facts["Channels"] == ", ".join(map(str, range(32)))
    assert facts["Dead channels"] == ", ".join(map(str, range(32))) + ", ... (512 in all)"


def test_pillow_reads_the_description_of_a_picture():
    for picture in make_pictures(drawn(drawing(), drawing("schicht ä 層 \x1b", 1)), SEEN, NAME, info()):
        assert Image.open(BytesIO(picture.png)).text == dict(picture.facts)


def test_a_notebook_shows_a_picture():
    (picture,) = make_pictures(drawn(), SEEN, NAME, info())
    assert picture._repr_png_() is picture.png


# --- file names

LAYERS = [
    *("..", ".", "", "a/b", "a%2Fb", "a b", "a_b", "a\\b", "a\0b", "a\nb", "ä", "a\u0308", "\udce9", "x" * 10_000),
    *("y" * 10_000, "out['aux']", "b#2", "con", "<img src=x>", "~", "$(ls)"),
]


def file_name(layer, number="03"):
    return Picture("maps", f"{number} {layer}", b"", 1, 1, {}).file_name


@pytest.mark.parametrize("layer", LAYERS)
def test_file_names_are_safe_for_any_layer_name(layer, tmp_path):
    name = file_name(layer)
    assert "/" not in name
    assert name.startswith("03")
    assert name.endswith(".png")
    assert name.isascii()
    assert name.isprintable()
    assert len(name) < 220
    (tmp_path / name).write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("layer", ["head['aux']['emb']", "out[0]", "l['a b']", "l['$(ls)']", "l['it']", 'l["x"]'])
def test_a_file_name_needs_no_quotes_in_a_shell(layer):
    name = file_name(layer)
    assert shlex.quote(name) == name or set(name) <= {*string.ascii_letters, *string.digits, *"._-+#~%"}
    assert subprocess.run(["sh", "-c", f"printf %s {name}"], capture_output=True, check=True).stdout == name.encode()


def test_two_layers_never_have_the_same_file_name():
    assert len({file_name(layer) for layer in LAYERS}) == len(LAYERS)


@pytest.mark.thorough
@given(st.sets(st.text(max_size=20) | st.text("a0.+'[]", max_size=12), min_size=2, max_size=5))
@example({"h['a']", "h.a", "h+a", "h[0]", "h['0']", "h['a.b']", "h['a'].b", "h['']", "h[00]"})
def test_no_two_layers_ever_have_the_same_file_name(layers):
    assert len({file_name(layer) for layer in layers}) == len(layers)


# --- records


def test_every_layer_is_recorded_once_in_plain_json():
    statistics = Statistics(-1.0, 2.0, 0.5, constant=(1, 2), nonfinite=3)
    drawings = [
        drawing("a", 0, statistics=statistics),
        drawing("a", 0, statistics=statistics, view="again"),
        drawing("b#2", 4, statistics=Statistics(None, None, None, (), 9), call=2, channels=(5, 0), samples=7, type="ReLU"),
    ]
    records = layer_records(drawn(*drawings))
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    assert records == [
        {
            "index": 0,
            "name": "a",
            "type": "Conv2d",
            "shape": [8, 6, 7],
            "call": 1,
            "samples": 1,
            "min": -1.0,
            "max": 2.0,
            "mean": 0.5,
            "dead_channels": [1, 2],
            "nonfinite": 3,
        },
        {
            "index": 4,
            "name": "b#2",
            "type": "ReLU",
            "shape": [8, 6, 7],
            "call": 2,
            "samples": 7,
            "min": None,
            "max": None,
            "mean": None,
            "dead_channels": [],
            "nonfinite": 9,
            "channels": [5, 0],
        },
    ]


def test_no_drawings_make_no_records():
    assert layer_records(drawn()) == []


# --- contents that draw themselves


@dataclass(frozen=True, slots=True, eq=False)
class Stripes(CustomContent):
    """Stripes as high as the input, each as wide as the style's scale, in two colours."""

    count: int

    def render(self, _layer, seen, style, /):
        width = style.scale * self.count
        pixels = np.zeros((len(seen), width, 3), np.uint8)
        pixels[:, :: 2 * style.scale] = 255
        return Rendered(pixels, legend={"on": np.uint8([255] * 3), "off": np.uint8([0] * 3)}, has_input=self.count > 5)

    def describe(self, layer, _style, /):
        return {"Scaling": f"{self.count} stripes of {layer.layer}", "Nothing": None}


@dataclass(frozen=True, slots=True, eq=False)
class Dark(Stripes):
    why_empty = "dark"
    total = 3

    @property
    def record(self):
        return {"stripes": self.count}

    @property
    def values(self):
        return {"": np.arange(self.count), ".width": np.ones(self.count)}


def test_a_content_draws_and_describes_itself():
    facts = facts_of(drawn_layer("a", Stripes(6), view="stripes"))
    assert list(facts)[:4] == ["Layer", "Type", "Shape", "Scaling"]
    assert facts["Scaling"] == "6 stripes of a"
    assert "Nothing" not in facts
    for style, size in (({}, (6, 4)), ({"scale": 2}, (12, 4)), ({"with_input": True}, (6, 4))):
        _, picture = make_pictures(drawn(drawn_layer("a", Stripes(6))), SEEN, NAME, info(**style))
        assert (picture.width, picture.height) == size
        assert picture.drawing.content.count == 6


@pytest.mark.parametrize("style", [{"with_input": True}, {"colorbar": True}, {"labels": True}])
def test_a_content_that_draws_itself_gets_the_frame_of_the_style(style):
    _, picture = make_pictures(drawn(drawn_layer("a", Stripes(5), view="stripes")), SEEN, NAME, info(**style))
    assert (picture.width, picture.height) != (5, 4)


def test_a_content_has_values_a_record_and_a_notice_only_if_it_declares_them():
    plain, dark = drawn_layer("a", Stripes(6), view="stripes"), drawn_layer("b", Dark(2), view="stripes")
    result = drawn(plain, dark)
    assert [(layer.layer, view, {**values}) for layer, view, values in result.valued if not values] == [("a", "stripes", {})]
    (values,) = (values for _, _, values in result.valued if values)
    assert [*values] == ["", ".width"]
    assert ["stripes" in record for record in layer_records(result)] == [False, True]
    assert [each.text for each in find_empty_maps(result)] == ["stripes of b is dark"]
    assert remark_on_channels([plain, dark], Style(channels="7")) == remark_on_channels([dark], Style(channels="7")) != ""
    assert remark_on_channels([plain], Style(channels="7")) == ""
