"""Words of other tools have hints to existing words, and never hide one."""

import pytest
import torch

import fmapviz
from fmapviz.config import Engine, InputOptions, RunConfig, Style, options_of
from fmapviz.config.style import NORMS, check_norm
from fmapviz.core import registry
from fmapviz.core.synonyms import FAMILIES, MODELS, OPTIONS, meant_model
from fmapviz.errors import ArgumentError, RequestError, WeightsError
from fmapviz.models.load import is_model, load_model

FAMILY = {"view": registry.offered_views, "format": registry.offered_formats}
FIND = {"view": registry.view, "format": registry.form}
NAMES = {name for group in (RunConfig, Style, InputOptions, Engine) for name in options_of(group)}


@pytest.mark.parametrize("word", ["half", "fp16", "bf16", "precision", "amp"])
def test_the_precision_of_a_network_is_that_of_its_weights(word):
    assert ".half()" in OPTIONS[word]
    assert "stored values" in OPTIONS[word]


def test_each_option_in_the_tables_exists():
    assert {meant.partition("=")[0] for meant in OPTIONS.values() if " " not in meant} <= NAMES


def test_an_option_is_no_synonym_of_another():
    others = {
        *options_of(Engine),
        "model",
        "inputs",
    }  # no options of the command line
    for word, meant in OPTIONS.items():
        assert word.replace("-", "_") not in NAMES - others or meant == word, word


@pytest.mark.parametrize("family", FAMILIES)
def test_each_member_in_the_tables_exists_and_is_no_synonym(family):
    own = {"norm": NORMS, "weights": ("default", "random")}
    known = own[family] if family in own else FAMILY[family]()
    assert {meant for meant in FAMILIES[family].values() if " " not in meant} <= {*known}
    words = [
        *FAMILIES[family],
        *(word for each in (known.values() if family in FAMILY else ()) for word in each.words.split()),
    ]
    assert not {*words} & {*known}
    assert len(words) == len({*words})


@pytest.mark.parametrize(
    ("family", "word", "meant"),
    [
        ("view", "activations", "'maps'"),
        ("view", "Feature_Maps", "'maps'"),
        ("view", "filters", "'kernels'"),
        ("view", "grad-cam", "'gradcam'"),
        ("view", "attention-rollout", "'rollout'"),
        ("view", "png", "'png' is a format: to='png'"),
        ("format", "gradcam", "'gradcam' is a view: views='gradcam'"),
        ("format", "csv", "'stats'"),
        ("format", "jpeg", "'png'"),
        ("format", "video", "'mp4'"),
        ("format", "pdf", "svg has the pixels unchanged"),
        ("format", "pgn", "'png'"),  # a spelling
        ("view", "gradcampp", "did you mean 'gradcam++'?"),  # nearer to gradcam
        ("view", "score-cam", "there is no such method here"),
        ("view", "zzz", "there are: attention, "),
    ],
)
def test_a_view_or_format_of_another_tool_has_a_hint(family, word, meant):
    with pytest.raises(RequestError) as error:
        FIND[family](word)
    assert meant in error.value.hint


def test_hints_of_a_comparison_name_only_its_formats_and_ranges():
    for word, hint in {"csv": "did you mean 'numbers'?", "zzz": "there are: channels, gif, html, mp4, numbers, "}.items():
        with pytest.raises(RequestError, match="no such format") as error:
            RunConfig("shapesnet", "x.png", views="diff", to=word)
        assert error.value.hint.startswith(hint)
    with pytest.raises(RequestError, match="no such norm") as error:
        check_norm("global", ["channel", "layer"])
    assert error.value.hint == "one of channel, layer, fixed:LO,HI (LO below HI)"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("minmax", "'channel'"), ("global", "'run'"), ("abs", "'signed'"), ("clip", "fixed:LO,HI"), ("zz", "one of")],
)
def test_a_range_of_another_tool_has_a_hint(word, meant):
    with pytest.raises(RequestError, match="no such norm") as error:
        Style(norm=word)
    assert meant in error.value.hint


FAMILIES_OF_NETWORKS = [family for family, name in MODELS.items() if not name.startswith(("my_net", "hf:"))]


@pytest.mark.parametrize("family", FAMILIES_OF_NETWORKS)
def test_a_family_of_networks_has_a_hint_to_a_model(family):
    assert MODELS[family] in meant_model(family.upper())


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES_OF_NETWORKS)
def test_the_model_of_a_family_exists(family):
    pytest.importorskip("timm")
    assert is_model(MODELS[family])


@pytest.mark.parametrize(
    ("word", "meant"),
    [("dinov2_vits14", "hf:facebook/dinov2-small"), ("dino_vitb8", "timm:vit_small_patch16_224.dino"), ("detr_r50", "hf:")],
)
def test_a_size_of_a_family_has_a_hint_to_the_family(word, meant):
    assert meant_model(word).startswith(meant)


@pytest.mark.parametrize("spec", ["torchvision.models.resnet18", "models.resnet18", "torchvision.models.vit_b_16"])
def test_a_model_by_its_module_has_a_hint_to_its_name(spec):
    with pytest.raises(RequestError) as error:
        load_model(spec)
    assert error.value.hint == f"type {spec.rpartition('.')[2]}"


@pytest.mark.parametrize("word", ["yolov8n", "YOLO11m-seg", "yolo", "yolov5"])
def test_a_yolo_has_a_hint_to_its_source(word):
    assert meant_model(word).startswith("ultralytics:yolo11n.yaml is one")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("target_layer", "did you mean layer=?"),
        ("layers", "did you mean layer=?"),
        ("class_idx", "did you mean target=?"),
        ("targets", "did you mean target=?"),
        ("size", "load_model(NAME, preprocessing=InputOptions(size=...)) has it; prepared tensors are taken as they are"),
        (
            "img_size",
            "load_model(NAME, preprocessing=InputOptions(size=...)) has it; prepared tensors are taken as they are",
        ),
    ],
)
def test_hints_of_a_function_name_only_its_arguments(word, hint):
    with pytest.raises(ArgumentError) as error:
        fmapviz.cam(torch.nn.Conv2d(3, 4, 3), torch.rand(1, 3, 8, 8), **{word: 1})
    assert error.value.hint == hint


@pytest.mark.parametrize(("word", "meant"), [*FAMILIES["weights"].items(), ("None", "random"), ("Pretrained", "default")])
def test_a_word_for_weights_has_a_hint(word, meant):
    with pytest.raises(WeightsError, match="no such weights") as error:
        load_model("alexnet", weights=word)
    assert error.value.hint == f"did you mean '{meant}'?"
