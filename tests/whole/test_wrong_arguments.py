"""Wrong types and values of arguments in Python: each is a `FmapvizError` with a hint in Python's terms."""

import inspect
import shutil
import tempfile
import traceback
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.public_names import HOMES

NAN = float("nan")
NO = "no_list no_array"  # a list without any name
NET = nn.Sequential(nn.Conv2d(3, 2, 3))
MODEL = fmapviz.load_model("shapesnet")
X = torch.rand(1, 3, 96, 96)
STAR = "sample_images/shapes/star.jpg"

# Of all kinds; each call has a new generator.
VALUES = {
    "None": None,
    "bool": True,
    "int": -7,
    "float": 2.5,
    "nan": NAN,
    "str": "no such --thing",
    "empty": "",
    "bytes": b"alexnet",
    "list": [[]],
    "no_list": [],
    "tuple": (0.5, "x"),
    "dict": {"a": 1},
    "set": {3.5},
    "generator": lambda: (each for each in [object()]),
    "array": np.zeros((2, 2)),
    "no_array": np.zeros(0),
    "tensor": torch.full((2, 2), torch.nan),
    "scalar": torch.tensor(1.5),
    "picture": Image.new("RGB", (4, 4)),
    "enum": torchvision.models.ResNet18_Weights.IMAGENET1K_V1,
    "class": nn.Conv2d,
    "path": Path("no such file"),
    "object": object(),
    "style": fmapviz.Style(),
    "options": fmapviz.InputOptions(),
    "module": nn.ReLU(),
}

# What a parameter takes of these.
TAKEN = {
    "cam": {
        **dict.fromkeys(("model", "target", "layer", "method"), ""),
        "x": "array picture",
        "output": "None",
        "scores": "None",
        "confidence": "None",
        **dict.fromkeys(("patch", "steps"), ""),
        "baseline": "scalar",
        **dict.fromkeys(("stride", "samples"), "None"),
        "style": "None style",
    },
    "capture": {"model": "", "layers": NO, "exclude": f"{NO} str", "types": NO, "gradients": "bool"},
    "capture_attention": {"model": "module", "layers": NO, "exclude": f"{NO} str"},
    "list_layers": {"model": "", "layers": NO, "exclude": f"{NO} str", "types": NO, "preprocessing": "None options"},
    "receptive_field": {
        "model": "",
        "size": "None",
        "layers": NO,
        "exclude": f"{NO} str",
        "types": NO,
        "preprocessing": "None options",
    },
    "load_image": {"path": "array picture", "model": "module"},
    "load_model": {"spec": "", "weights": "", "preprocessing": "None options"},
    "model_names": {"pattern": "str empty"},
    "diff": {
        "model_a": "",
        "model_b": "",
        "images": "array picture",
        **dict.fromkeys(("layers", "types"), NO),
        "exclude": f"{NO} str",
        "preprocessing": "None options",
    },
    "tile": {"maps": "", "style": "style"},
    "trust": {
        "model": "module",
        **dict.fromkeys(("target", "layer", "x"), ""),
        "methods": NO,
        "output": "None",
        "scores": "None",
        "confidence": "None",
        **dict.fromkeys(("patch", "steps", "baseline"), ""),
        **dict.fromkeys(("stride", "samples"), "None"),
    },
    "top_images": {
        **dict.fromkeys(("run", "k", "by", "crop", "channels", "device"), ""),
        "layers": NO,
        "exclude": f"{NO} str",
        "inside": "bool",
        "to": NO,
        "force": "bool",
        "model": "",
        "weights": "None",
        "preprocessing": "None options",
        "workers": "None",
        "on_event": "None class module",
    },
}


@cache
def ranked():
    """Return the directory of a run that keeps statistics."""
    return fmapviz.visualize(NET, STAR, out=tempfile.mkdtemp(), to="stats", name="ranked").directory


CALLS = {
    "cam": lambda **changed: fmapviz.cam(**{"model": MODEL, "x": X, **changed}),
    "capture_attention": lambda **changed: fmapviz.capture_attention(**{"model": NET, **changed}).__enter__(),
    "capture": lambda **changed: fmapviz.capture(**{"model": NET, **changed}).__enter__(),
    "list_layers": lambda **changed: fmapviz.list_layers(**{"model": NET, **changed}),
    "receptive_field": lambda **changed: fmapviz.receptive_field(**{"model": NET, **changed}),
    "load_image": lambda **changed: fmapviz.load_image(**{"path": STAR, "model": MODEL, **changed}),
    "load_model": lambda **changed: fmapviz.load_model(**{"spec": "shapesnet", **changed}),
    "model_names": fmapviz.model_names,
    "diff": lambda **changed: list(fmapviz.diff(**{"model_a": NET, "model_b": "dtype:float64", "images": X, **changed})),
    "tile": lambda **changed: fmapviz.tile(**{"maps": X, **changed}),
    "trust": lambda **changed: fmapviz.trust(**{"model": MODEL, "x": X, "methods": ["saliency"], **changed}),
    "top_images": lambda **changed: fmapviz.top_images(**{"run": ranked(), "model": NET, **changed}),
}
for name in CALLS.keys() - HOMES:  # of features that are not there
    del CALLS[name], TAKEN[name]


def refused(call, *args, **kwargs):
    """Return the error of a call, whose hint is there and in Python's terms; None if there is none."""
    try:
        call(*args, **kwargs)
    except fmapviz.FmapvizError as refusal:
        error = refusal
    else:
        return None
    said = f"{error} {error.hint}".replace("no such --thing", "")
    assert error.hint, error
    assert "--" not in said
    assert "`fmapviz " not in said
    return error


def each_value(call, name, taken):
    for kind, value in VALUES.items():
        error = refused(call, **{name: value() if kind == "generator" else value})
        assert (error is None) == (kind in taken.split()), (name, kind, error)


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("function", "name"), [(function, name) for function, names in TAKEN.items() for name in names])
def test_a_function_refuses_wrong_arguments(function, name):
    each_value(CALLS[function], name, TAKEN[function][name])


def test_the_cases_cover_all_functions_and_parameters():
    functions = {name for name in HOMES if inspect.isfunction(getattr(fmapviz, name))} - {"visualize"}
    assert functions == TAKEN.keys() == CALLS.keys()
    for name, names in TAKEN.items():
        assert inspect.signature(getattr(fmapviz, name)).parameters.keys() == names.keys()


@pytest.mark.thorough
def test_valid_arguments_are_accepted():
    for call in CALLS.values():
        assert refused(call) is None


# --- options

VISUALIZE = {
    **dict.fromkeys(("fsync", "strict", "force", "repair", "progress"), "bool"),
    **dict.fromkeys(("layers", "exclude", "types"), f"{NO} str"),
    **dict.fromkeys(("views", "to", "dtype", "device", "single_file", "every", "patch", "baseline", "steps"), ""),
    **dict.fromkeys(
        ("predictions", "confidence", "stride", "samples", "batch_size", "workers", "shard", "part", "engine"), "None"
    ),
    "weights": "str empty dict enum",  # whether they are of the model is known when it is loaded
    "off": "str",  # a path, which the view effect reads
    "name": "None str",
    "frames": "None empty",
    "output": "None str empty",
    "scores": "None",
    "targets": f"{NO} str empty int",
    "out": "str empty path",
    "style": "style",
    "preprocessing": "options",
    "on_event": "None class module",
}
OPTIONS = {
    fmapviz.Style: {
        **dict.fromkeys(("norm", "channels", "pca", "padding", "scale", "alpha", "clusters", "background", "text_size"), ""),
        **dict.fromkeys(("columns", "colormap", "query"), "None"),
        "labels": "None bool",
        **dict.fromkeys(("gray_input", "colorbar", "smooth", "foreground", "with_input"), "bool"),
        "anchor": "None str",
    },
    fmapviz.InputOptions: dict.fromkeys(("size", "fit", "mean", "std", "channels_in"), "None"),
    fmapviz.types.Engine: {"address": "None str empty", "workers": "None", "cpus": "", "gpus": ""},
    fmapviz.types.Part: {"number": "", "count": ""},
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", VISUALIZE)
def test_visualize_refuses_wrong_values_of_options(name, tmp_path):
    def call(**changed):
        with suppress(fmapviz.errors.NothingToDoError):  # the options are right
            fmapviz.visualize(**{"model": NET, "inputs": [], "out": tmp_path, **changed})

    each_value(call, name, VISUALIZE[name])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("name", "taken"), [("model", ""), ("inputs", "array picture")])
def test_visualize_refuses_values_that_are_no_model_or_image(name, taken, tmp_path):
    def call(**changed):
        summary = fmapviz.visualize(**{"model": NET, "inputs": STAR, "out": tmp_path, **changed})
        shutil.rmtree(summary.directory)

    each_value(call, name, taken)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OPTIONS.items() for name in names])
def test_a_group_of_options_refuses_wrong_values(kind, name):
    def call(**changed):
        return kind(**({"number": 1, "count": 2} if kind is fmapviz.types.Part else {}) | changed)

    each_value(call, name, OPTIONS[kind][name])


def test_the_cases_cover_all_options():
    assert VISUALIZE.keys() | {"model", "inputs"} == inspect.signature(fmapviz.visualize).parameters.keys()
    for kind, names in OPTIONS.items():
        assert inspect.signature(kind).parameters.keys() == names.keys()


# --- other names and values


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("view", "did you mean views=?"),
        ("layrs", "did you mean layers=?"),
        ("columns", "style=Style(columns=...)"),
        ("size", "preprocessing=InputOptions(size=...)"),
        ("gpus", "engine=Engine(gpus=...)"),
        ("worker_cpus", "engine=Engine(cpus=...)"),
        ("column", "did you mean style=Style(columns=...)?"),
        ("zzzz", "help(fmapviz.visualize)"),
    ],
)
def test_an_unknown_argument_of_visualize_is_refused_with_the_likely_one(argument, hint):
    error = refused(fmapviz.visualize, NET, STAR, **{argument: 1})
    assert isinstance(error, TypeError)
    assert f"'{argument}'" in str(error)
    assert hint in error.hint


def test_too_few_and_too_many_arguments_are_refused_too():
    assert isinstance(refused(fmapviz.visualize), TypeError)
    assert isinstance(refused(fmapviz.visualize, NET, STAR, "random"), TypeError)
    for name in CALLS:
        function = getattr(fmapviz, name)
        assert isinstance(refused(function, *[None] * 9), TypeError)
        assert name == "model_names" or isinstance(refused(function), TypeError)
    for kind in OPTIONS:
        assert isinstance(refused(kind, *[None] * 99), TypeError)
    assert str(refused(fmapviz.types.Part, 1)) == "Part(): missing a required argument: 'count'"
    assert refused(fmapviz.load_model, "alexnet", "random").hint == "these need their names: weights=, preprocessing="


@pytest.mark.parametrize(
    ("function", "argument", "hint"),
    [
        (fmapviz.capture, "layer", "did you mean layers=?"),
        *(
            (fmapviz.cam, argument, hint)
            for argument, hint in (("layers", "did you mean layer=?"), ("colormap", "style=Style(colormap=...)"))
            if "cam" in HOMES
        ),
        (fmapviz.tile, "columns", "style=Style(columns=...)"),
        (fmapviz.tile, "column", "did you mean style=Style(columns=...)?"),
        (fmapviz.list_layers, "layer", "did you mean layers=?"),
        (fmapviz.load_model, "weight", "did you mean weights=?"),
        (fmapviz.load_model, "size", "preprocessing=InputOptions(size=...)"),
        (fmapviz.load_image, "pth", "did you mean path=?"),
        (fmapviz.model_names, "zzzz", "help(fmapviz.model_names) lists its arguments"),
        (fmapviz.Style, "column", "did you mean columns=?"),
        (fmapviz.InputOptions, "sise", "did you mean size=?"),
        (fmapviz.types.Engine, "x", "help(fmapviz.types.Engine) lists its arguments"),
        (fmapviz.types.Part, "self_", "help(fmapviz.types.Part) lists its arguments"),
    ],
)
def test_any_function_refuses_an_argument_that_it_does_not_have(function, argument, hint):
    error = refused(function, **{argument: "x"})
    assert isinstance(error, TypeError)
    assert str(error).startswith(f"{function.__name__}(): ")
    assert error.hint == hint


def test_a_type_error_inside_a_function_is_not_changed():
    class Fails(nn.Conv2d):
        def forward(self, x):
            raise TypeError(tuple(x.shape))

    with pytest.raises(TypeError, match=r"^\(1, 3, 96, 96\)$") as caught:
        fmapviz.cam(nn.Sequential(Fails(3, 2, 3)), X)
    assert not isinstance(caught.value, fmapviz.FmapvizError)


@pytest.mark.parametrize(
    "maps",
    [
        X.to_sparse(),
        X[..., :0],
        X.to(torch.complex64),
        X[0, 0],
    ],
)
def test_maps_that_are_no_dense_numbers_cannot_be_tiled(maps):
    assert refused(fmapviz.tile, maps)


@pytest.mark.parametrize("path", ["sample_images", "README.md", "", "a\0b", "no/such/folder/x.png", "foo://bar.png"])
def test_a_path_that_is_no_image_is_refused_with_a_hint(path):
    assert isinstance(refused(fmapviz.load_image, path, MODEL), fmapviz.errors.InputError)


@pytest.mark.parametrize("weights", ["", "none.pth", "a\0b.pth", ".", "random:x", "file:///none.pth"])
def test_weights_that_do_not_exist_are_refused_with_a_hint(weights):
    assert isinstance(refused(fmapviz.load_model, "alexnet", weights=weights), fmapviz.errors.WeightsError)


@pytest.mark.parametrize(
    "changed",
    [{"name": "a/b"}, {"out": "a\0b"}, {"out": "README.md"}, {"device": "cuda:77"}, {"weights": "random"},
     {"views": "gradcam", "targets": [99]}, {"views": "gradcam", "targets": -1}, {"views": "cam", "output": "x"},
     {"views": "mapz"}, {"to": "jpeg"}, {"shard": 2, "to": "png"}, {"types": "Linearr"}, {"exclude": "*"}, {"layers": "x"},
     {"inputs": iter([STAR, 3])}, {"inputs": STAR + "x"}, {"inputs": "a\0b"}],
)  # fmt: skip
def test_a_value_that_visualize_cannot_use_is_refused_with_a_hint(changed, tmp_path):
    assert refused(fmapviz.visualize, **{"model": MODEL, "inputs": STAR, "out": tmp_path, "to": "png"} | changed)


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        (torchvision.models.resnet18, "what it returns: resnet18()"),
        (nn.Conv2d, "create an instance: Conv2d()"),
        (NET.state_dict(), "network.load_state_dict"),
        (torchvision.models.ResNet18_Weights.DEFAULT, "load_model(NAME, weights='IMAGENET1K_V1')"),
        (None, "a torch.nn.Module"),
    ],
)
def test_a_value_that_is_no_model_is_refused_with_a_hint(model, hint):
    for call in (CALLS["capture"], CALLS["cam"], CALLS["list_layers"]):
        assert hint in refused(call, model=model).hint


PLAIN = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 6))  # class names are unknown
NO_OTHER = "another target=, or top1"


@pytest.mark.parametrize(
    ("model", "target", "message", "hint"),
    [
        (MODEL, "star,ring", "several classes: 'star,ring'", "call once for each"),
        (MODEL, "top1,top2", "several classes: 'top1,top2'", "call once for each"),
        (MODEL, "star,top1", "several classes: 'star,top1'", "call once for each"),
        (MODEL, ["top1,top2"], "several classes: 'top1,top2'", "call once for each"),
        (MODEL, "top9", "nothing is drawn for top9: the network has only 6 classes", NO_OTHER),
        (PLAIN, ["top9"], "nothing is drawn for top9: the network has only 6 classes", NO_OTHER),
        (MODEL, -1, "no such class: '-1'", "from 0 to 5"),
        (PLAIN, -1, "no class -1: the network has 6 outputs", "from 0 to 5, or top1"),
        (PLAIN, ["-1"], "no class -1: the network has 6 outputs", "from 0 to 5, or top1"),
        (PLAIN, 7, "no class 7: the network has 6 outputs", "from 0 to 5, or top1"),
    ],
)
def test_a_class_that_cam_cannot_show_is_refused_with_a_hint_about_classes(model, target, message, hint):
    error = refused(fmapviz.cam, model, X, target=target)
    assert (str(error), error.hint) == (message, hint)


def test_a_class_that_one_image_does_not_have_is_named():
    error = refused(fmapviz.cam, MODEL, torch.rand(2, 3, 96, 96), target=[0, "top9"])
    assert (str(error), error.hint) == ("nothing is drawn for top9 in image 1: the network has only 6 classes", NO_OTHER)


def test_one_rank_is_one_class_in_cam():
    best = fmapviz.cam(MODEL, X, target="top1")
    third = fmapviz.cam(MODEL, X, target="top3")
    assert third.target == fmapviz.cam(MODEL, X, target="TOP3").target != best.target
    assert third.score < best.score


def test_a_value_that_is_no_image_is_refused_with_a_hint(tmp_path):
    for given in (None, b"photo.jpg", [3]):
        for call in (lambda x: fmapviz.cam(MODEL, x), lambda x: fmapviz.visualize(NET, x, out=tmp_path)):
            assert "a Pillow picture, a NumPy array (H, W, C), a uint8 tensor (C, H, W)" in refused(call, given).hint
    for given in (X.to(torch.complex64), X[0, 0], X.to(torch.int64)):
        for call in (lambda x: fmapviz.cam(MODEL, x), lambda x: fmapviz.visualize(NET, [STAR, x], out=tmp_path)):
            assert "uint8 pixels (C, H, W), or prepared floats" in refused(call, given).hint
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("model", "inputs", "call"),
    [
        ("photo.jpg", ["shapesnet"], "visualize('shapesnet', 'photo.jpg')"),
        (STAR, ["shapesnet"], f"visualize('shapesnet', '{STAR}')"),
        (Path(STAR), ["shapesnet"], f"visualize('shapesnet', '{STAR}')"),
        ("sample_images", ["resnet18(num_classes=5)"], "visualize('resnet18(num_classes=5)', 'sample_images')"),
        ("photo.jpg", [MODEL], "visualize(model, 'photo.jpg')"),
        ("photo.jpg", [NET], "visualize(model, 'photo.jpg')"),
        ("photo.jpg", [STAR], "visualize(model, 'photo.jpg')"),
        ("photo.jpg", [], "visualize(model, 'photo.jpg')"),
        ([STAR, "photo.jpg"], ["shapesnet"], "visualize('shapesnet', inputs)"),
    ],
)
def test_inputs_in_place_of_the_model_are_refused_with_the_right_order(model, inputs, call):
    error = refused(fmapviz.visualize, model, *inputs)
    path = model[0] if isinstance(model, list) else model
    assert (str(error), error.hint) == (f"no such model: '{path}'", f"the model comes first: {call}")


def test_an_empty_list_of_inputs_is_named(tmp_path):
    for inputs in ([], (), set()):
        error = refused(fmapviz.visualize, NET, inputs, out=tmp_path)
        assert isinstance(error, fmapviz.errors.NothingToDoError)
        assert (str(error), error.hint) == (
            "no image among the inputs: the list is empty",
            "files or folders, such as 'photo.jpg'",
        )
    assert "folders are searched" in refused(fmapviz.visualize, NET, tmp_path, out=tmp_path).hint


def test_texts_are_parsed_from_strings_only():
    for call, name in ((fmapviz.types.Part.parse, "text"), (fmapviz.types.Engine.parse, "text")):
        each_value(call, name, "")
    each_value(fmapviz.types.Part(1, 2).has, "index", "int")


def test_a_feature_map_that_was_not_captured_is_a_key_error_with_the_nearest_names():
    with fmapviz.capture(NET) as maps:
        assert refused(maps.__getitem__, "0").hint == "run the model inside the with block"
        NET(X)
    error = refused(maps.__getitem__, "0#")
    assert isinstance(error, KeyError)
    assert (str(error), error.hint) == ("no feature map of '0#' was captured", "did you mean '0'?")
    error = refused(maps.__getitem__, 0)
    assert (str(error), error.hint) == ("names are texts, not int", "['0']")
    assert "1" not in maps
    assert maps.get("1") is None
    for score in VALUES.values():
        assert refused(maps.backward, score)


def test_a_hint_is_below_the_message_of_a_traceback():
    error = refused(fmapviz.Style, columns="x")
    *_, message, hint = "".join(traceback.format_exception(error)).splitlines()
    assert message == "fmapviz.errors.RequestError: columns must be int or None, not 'x'"
    assert hint == "hint: columns: Tiles per row."


def test_one_number_is_a_square_size():
    assert repr(fmapviz.InputOptions(size=64)) == "InputOptions(size=(64, 64))"
    assert fmapviz.list_layers("alexnet", preprocessing=fmapviz.InputOptions(size=64))[0].shape == (64, 15, 15)
    for size in (0, 16385):
        assert str(refused(fmapviz.InputOptions, size=size)) == f"size must be 1 to 16384 pixels: '{size}'"


def test_numbers_of_numpy_are_accepted_as_numbers():
    style = fmapviz.Style(columns=np.int64(3), alpha=np.float32(0.5))
    assert (style, type(style.columns), type(style.alpha)) == (fmapviz.Style(columns=3, alpha=0.5), int, float)
    assert fmapviz.InputOptions(size=np.int64(8)) == fmapviz.InputOptions(size=(8, 8))
    assert fmapviz.InputOptions(size=np.array([8, 9]), mean=[0.5]) == fmapviz.InputOptions(size=(8, 9), mean=(0.5,))


def test_values_of_another_type_are_refused_with_a_correction():
    member = torchvision.models.ResNet18_Weights.IMAGENET1K_V1
    for value in (member, Path("net.pth")):
        assert refused(fmapviz.Style, columns=value).hint == "columns: Tiles per row."
    assert refused(fmapviz.model_names, member).hint == "pattern='IMAGENET1K_V1'"
    assert refused(fmapviz.load_model, "resnet18", weights=Path("net.pth")).hint == "weights='net.pth'"


def test_failed_inputs_warn_unless_events_are_handled(tmp_path):
    inputs = [STAR, tmp_path / "none.png"]
    with pytest.warns(UserWarning, match=r"^1 of 2 inputs failed, .* no such file: '.*none.png' \[E_MISSING\]$") as told:
        summary = fmapviz.visualize(MODEL, inputs, out=tmp_path, to="png")
    assert told[0].filename == __file__
    assert (summary.done, summary.failed, summary.exit_code) == (1, 1, 3)
    assert "skipped=0" not in repr(summary)
    assert "failed=1" in repr(summary)
    with warnings.catch_warnings(record=True, action="always") as told:
        again = fmapviz.visualize(MODEL, inputs, out=tmp_path, to="png", predictions=0, on_event=bool)
    assert (again.failed, told) == (1, [])
    (notice,) = again.notices
    assert str(again.directory) in notice  # shapesnet-2
    assert "predictions" in notice
