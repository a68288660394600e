"""Values refuse invalid fields with hints."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_infos import changed, run_info
from torch import nn

from fmapviz.cli.options import read_options
from fmapviz.config import InputOptions, Style
from fmapviz.errors import (
    FmapvizError,
    InputError,
    NothingToDoError,
    OutputError,
    RefusedError,
    RequestError,
    WeightsError,
    printable,
    quote,
    suggest,
    suggest_file,
)
from fmapviz.events import RunSummary
from fmapviz.types import FeatureMap, Layer, Picture, Target


def refusal(make, *args, **kwargs):
    with pytest.raises(RequestError) as caught:
        make(*args, **kwargs)
    assert caught.value.exit_code == 2
    assert str(caught.value).isprintable()
    return str(caught.value), caught.value.hint


# Style


@pytest.mark.parametrize(
    ("norm", "limits"),
    [
        ("channel", None),
        ("layer", None),
        ("fixed:0,1", (0.0, 1.0)),
        ("fixed:-1,1", (-1.0, 1.0)),
        ("fixed:-.5,+2.", (-0.5, 2.0)),
        ("fixed:1e-3,2.5E+2", (0.001, 250.0)),
    ],
)
def test_norms_are_parsed(norm, limits):
    assert Style(norm=norm).limits == limits


@pytest.mark.parametrize(
    "norm",
    ["", "channels", "Layer", "fixed", "fixed:", "fixed:1", "fixed:1,1", "fixed:2,1", "fixed:0,1,2", "fixed:a,b",
     "fixed:0;1", "fixed: 0,1", "fixed:nan,1", "fixed:0,inf", "fixed:0,1e999", "fixed:-1e999,0", "fixed:0x1,2",
     "layer\x1b[31m"],
)  # fmt: skip
def test_invalid_norms_are_refused(norm):
    message, hint = refusal(Style, norm=norm)
    assert message == f"no such norm: {quote(norm)}"
    if norm in {"channels", "fixed"}:  # words of other tools
        assert (
            hint
            == {"channels": "did you mean 'channel'?", "fixed": "norm='fixed:LO,HI' draws the values from LO to HI"}[norm]
        )
        return
    assert hint == "one of channel, layer, run, signed, signed-layer, signed-run, fixed:LO,HI (LO below HI)"


@pytest.mark.parametrize(
    ("channels", "top", "listed"),
    [
        ("all", None, None),
        ("top:1", 1, None),
        ("top:16", 16, None),
        ("0", None, (0,)),
        ("0,3,8-10", None, (0, 3, 8, 9, 10)),
        ("5,1, 3", None, (5, 1, 3)),
        ("3,1-4,3,2", None, (3, 1, 2, 4)),
        ("7-7", None, (7,)),
    ],
)
def test_channels_are_parsed(channels, top, listed):
    style = Style(channels=channels)
    assert (style.strongest, style.listed) == (top, listed)


@pytest.mark.parametrize(
    "channels",
    ["", "none", "All", "-1", "1-", "-3-5", "8-3", "1,,2", "1,", ",1", "top", "top:", "top:0", "top:-1", "top:x", "top:1.5",
     "1.5", "a", "0 1", "1-2-3", "12345678"],
)  # fmt: skip
def test_invalid_channels_are_refused(channels):
    assert refusal(Style, channels=channels) == (
        f"no such channels: '{channels}'",
        "one of all, 0,3,8-15, top:16, top:16:mean, top:16:std",
    )


@pytest.mark.parametrize("style", [{"columns": 1}, {"columns": 5000}, {"padding": 0}, {"padding": 1000}, {"scale": 64}])
def test_numbers_of_a_style_are_accepted(style):
    (name,) = style
    assert getattr(Style(**style), name) == style[name]


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ({"columns": 0}, "columns must be at least 1: '0'"),
        ({"columns": -3}, "columns must be at least 1: '-3'"),
        ({"padding": -1}, "padding must be 0 to 1000 pixels: '-1'"),
        ({"padding": 1001}, "padding must be 0 to 1000 pixels: '1001'"),
        ({"scale": 0}, "scale must be a whole number from 1 to 64: '0'"),
        ({"scale": 65}, "scale must be a whole number from 1 to 64: '65'"),
    ],
)
def test_invalid_numbers_of_a_style_are_refused(style, message):
    assert refusal(Style, **style)[0] == message


# Input options


def parse(**typed):
    return InputOptions(**read_options(typed)[InputOptions])


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ({}, {}),
        ({"size": "224"}, {"size": (224, 224)}),
        ({"size": "240x320"}, {"size": (240, 320)}),
        ({"size": "1X16384"}, {"size": (1, 16384)}),
        ({"fit": "crop"}, {"fit": "crop"}),
        ({"fit": "squash"}, {"fit": "squash"}),
        ({"fit": "pad", "size": "8"}, {"fit": "pad", "size": (8, 8)}),
        ({"fit": "none"}, {"fit": "none"}),
        ({"mean": "0"}, {"mean": (0.0,)}),
        ({"mean": "0.485,0.456,0.406"}, {"mean": (0.485, 0.456, 0.406)}),
        ({"mean": "-1, 0,1e-3"}, {"mean": (-1.0, 0.0, 0.001)}),
        ({"std": "0.5"}, {"std": (0.5,)}),
        ({"std": ".1,.2,.3"}, {"std": (0.1, 0.2, 0.3)}),
    ],
)
def test_input_options_are_parsed(typed, options):
    assert parse(**typed) == InputOptions(**options)


@pytest.mark.parametrize("size", ["", "x", "224x", "x224", "1x2x3", "-5", "22.4", "224 x 224", "224px", "1e3", "1234567"])
def test_invalid_sizes_are_refused(size):
    assert refusal(parse, size=size) == (f"no such size: '{size}'", "a number of pixels, or HEIGHTxWIDTH such as 240x320")


@pytest.mark.parametrize("size", ["0", "0x5", "5x0", "16385", "1x999999"])
def test_impossible_sizes_are_refused(size):
    assert refusal(parse, size=size)[0] == f"size must be 1 to 16384 pixels: '{size}'"


@pytest.mark.parametrize("fit", ["", "Crop", "stretch", "None", "\x1b[1m"])
def test_invalid_fits_are_refused(fit):
    assert refusal(parse, fit=fit) == (f"no such fit: {quote(fit)}", "one of crop, squash, pad, none")


def test_fit_none_with_a_size_is_refused():
    message, hint = refusal(parse, fit="none", size="224")
    assert message == "fit none keeps the size of each image"
    assert "size=" in hint


@pytest.mark.parametrize("option", ["mean", "std"])
class TestMeanAndDeviation:
    @pytest.mark.sampled
    @pytest.mark.parametrize(
        "text", ["", "a", "1,", "0.5;0.5;0.5", "0.5 0.5 0.5", "1,2,x", "nan", "inf", "0.5,-inf,1", "1e999"]
    )
    def test_texts_that_are_no_numbers_are_refused(self, option, text):
        assert refusal(parse, **{option: text}) == (
            f"{option} is not a list of numbers: '{text}'",
            f"one number, or one for each channel: {option}=(0.485, 0.456, 0.406)",
        )

    @pytest.mark.parametrize("numbers", [(0.1, 0.2), (0.1, 0.2, 0.3, 0.4)])
    def test_numbers_of_other_channels_are_refused(self, option, numbers):
        text = ",".join(map(str, numbers))
        assert parse(**{option: text}) == InputOptions(**{option: numbers})

    def test_empty_lists_of_numbers_are_refused(self, option):
        assert refusal(InputOptions, **{option: ()})[0] == f"{option} must be one or more numbers: ''"


@pytest.mark.parametrize("std", ["0", "-1", "0.2,0,0.2", "1,1,-0.5"])
def test_deviations_of_zero_are_refused(std):
    message, _ = refusal(parse, std=std)
    assert message == f"std must be above 0: '{std}'"


# Pictures' names

names = st.text(st.characters(), max_size=300).map(lambda name: f"07 {name}")


@given(names, names)
def test_a_picture_has_a_distinct_safe_file_name(one, other):
    first, second = (Picture("maps", name, b"", 1, 1, {}).file_name for name in (one, other))
    assert re.fullmatch(r"07(_[\w.\-#+%~]+\.maps)?\.png", first, re.ASCII)
    assert len(first) <= 255
    assert Path(first).name == first
    assert (first == second) == (one == other)


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("letter", ["a", "é", "/", "😀"])
def test_file_names_of_long_layer_names_fit_a_file_system(letter):
    longs = [Picture("spectrum", f"123 {letter * length}", b"", 1, 1, {}).file_name for length in range(1, 400)]
    assert max(map(len, longs)) <= 255
    assert len(set(longs)) == len(longs)


def test_names_of_layers_stay_readable():
    names = {"00 features.0": "00_features.0.maps.png", "12 layer1.0.relu#2": "12_layer1.0.relu#2.maps.png",
             "03 head['out'][0]": "03_head+out+0.maps.png", "04 a/b": "04_a%2Fb.maps.png",
             "input": "input.png"}  # fmt: skip
    assert {name: Picture("maps", name, b"", 1, 1, {}).file_name for name in names} == names


def test_names_that_look_the_same_have_different_files():
    names = [unicodedata.normalize(form, "00 é") for form in ("NFC", "NFD")]
    assert len({Picture("maps", name, b"", 1, 1, {}).file_name for name in names}) == 2


def test_a_feature_map_has_the_shape_of_its_values():
    layer = Layer("relu", "ReLU", nn.ReLU())
    assert FeatureMap(layer, "relu", 1, 0, torch.zeros(2, 3, 4, 5)).shape == (2, 3, 4, 5)


# Runs

INFO = run_info("alexnet", preparation="as trained", to="png")


def test_runs_have_the_same_fingerprint_exactly_when_their_settings_are_equal():
    others = [
        changed(INFO, model="vgg11"),
        changed(INFO, weights="IMAGENET1K_V1"),
        changed(INFO, sha256="00"),
        changed(INFO, preparation="crop to 8x8"),
        changed(INFO, types=("Conv2d", "ReLU")),
        changed(INFO, layers=("features.*",)),
        changed(INFO, exclude=("features.*",)),
        changed(INFO, views=("maps", "max")),
        changed(INFO, to=("tensorboard",)),
        *(changed(INFO, style=Style(**style)) for style in (
            {"norm": "layer"}, {"columns": 3}, {"padding": 3}, {"channels": "0"}, {"scale": 2}, {"colormap": "jet"},
            {"alpha": 1})),
        changed(INFO, predictions=1),
        changed(INFO, targets=("top1",)),
        changed(INFO, targets=("top1", "star")),
        changed(INFO, output="out"),
    ]  # fmt: skip
    fingerprints = {info.fingerprint for info in (INFO, *others)}
    assert len(fingerprints) == 1 + len(others)
    assert all(re.fullmatch("[0-9a-f]{16}", fingerprint) for fingerprint in fingerprints)
    newer = changed(INFO, versions={"torch": "9.0"})
    assert newer == INFO
    assert newer.fingerprint == INFO.fingerprint == changed(INFO, style=Style()).fingerprint


def test_a_runs_settings_survive_json():
    assert json.loads(json.dumps(INFO.settings))["style"]["norm"] == "channel"
    assert "versions" not in INFO.settings
    assert INFO.label == "alexnet (random weights, seed 0)"


@pytest.mark.parametrize(
    ("done", "skipped", "failed", "code"),
    [(2, 0, 0, 0), (0, 2, 0, 0), (1, 1, 1, 3), (0, 1, 1, 3), (0, 0, 3, 4), (0, 0, 0, 4)],
)
def test_a_summary_has_an_exit_code(done, skipped, failed, code):
    summary = RunSummary(Path(), done + skipped + failed, done, skipped, failed, 0, 0, (), {}, (), 0.0)
    assert summary.exit_code == code


# Errors


def test_errors_carry_their_exit_code_and_hint():
    codes = {RequestError: 2, WeightsError: 2, NothingToDoError: 4, OutputError: 5, RefusedError: 6}
    for kind, code in codes.items():
        error = kind("what failed", hint="what to do")
        assert (str(error), error.hint, error.exit_code) == ("what failed", "what to do", code)
        assert isinstance(error, FmapvizError)
    error = InputError("E_DECODE", "what failed")
    assert (str(error), error.hint, error.exit_code, error.code) == ("what failed", None, 3, "E_DECODE")


@given(st.text(st.characters()))
def test_quoted_texts_are_printable(text):
    assert quote(text).isprintable()
    quote(text).encode()
    assert printable(text) == text or not text.isprintable()


def test_quoted_texts_are_unambiguous():
    assert quote(Path("/a b/ä.png")) == "'/a b/ä.png'"
    assert printable("a\nb\u202ec\udcff") == "a\\nb\\u202ec\\udcff"


def test_near_words_are_suggested():
    known = ["alexnet", "vgg11", "vgg11_bn", "vgg13"]
    assert suggest("alexnt", known) == "did you mean 'alexnet'?"
    assert suggest("vgg12", iter(known)).startswith("did you mean 'vgg1")
    assert suggest("zzz", known) is None
    assert suggest("", known) is None
    assert suggest("x", []) is None


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target("top1", 5, "ring", 2.5), "ring (number 5), top1, score 2.5"),
        (Target("ring", 5, "Ring", 2.5), "Ring (number 5), score 2.5"),
        (Target("class5", 5, "ring", 2.5), "ring (number 5), score 2.5"),
        (Target("class5", 5, "", 2.5), "class 5, score 2.5"),
    ],
)
def test_a_class_is_named_by_its_first_name(target, text):
    assert str(target) == text


def test_files_of_the_same_name_in_other_folders_are_suggested_the_newest_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, folder in enumerate(("runs/detect/train/weights", "runs/detect/train2/weights", ".hidden", ".")):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "best.pt").touch()
        os.utime(Path(folder, "best.pt"), (1e9 - age, 1e9 - age))
    Path("other/best.pt").mkdir(parents=True)
    expected = "'runs/detect/train/weights/best.pt', 'runs/detect/train2/weights/best.pt', 'best.pt'"
    assert suggest_file("weights/best.pt") == f"did you mean {expected}?"
    assert suggest_file("/none/best.pt") == f"did you mean {expected}?"
    assert suggest_file("none/best.pt", lambda name: not name.endswith(".pt")) == f"no similar name in '{tmp_path}'"
    assert suggest_file("none/last.pt").startswith("no similar name")
