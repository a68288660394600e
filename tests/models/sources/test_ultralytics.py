"""The architectures of ultralytics, with random weights and files made here."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import types
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from PIL import Image
from sources import check_protocol
from yolo import CLASSES, TASKS, saved, tensors_in, train

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import RequestError, WeightsError, quote
from fmapviz.models.load import load_model, model_names, outline_model
from fmapviz.models.recognise import recognise
from fmapviz.observe.detectors import find_detector
from fmapviz.run.batch import load_image, make_batch

source = pytest.importorskip("fmapviz.models.sources.ultralytics")
ultralytics, unpatched = source.ultralytics, source.unpatched
with unpatched():
    from ultralytics.data import augment

pytestmark = needs("ultralytics", "ultralytics")


@pytest.mark.thorough
def test_an_architecture_has_random_weights_or_those_of_a_state_dict(tmp_path):
    first, again, other = (
        load_model("ultralytics:yolo11n.yaml", weights=each) for each in ("default", "random", "random:1")
    )
    weights = [each.module.model[0].conv.weight for each in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert any("random weights" in notice for notice in first.notices)
    torch.save(other.module.state_dict(), tmp_path / "own.pth")
    filled = load_model("ultralytics:yolo11n.yaml", weights=str(tmp_path / "own.pth"))
    assert torch.equal(filled.module.model[0].conv.weight, weights[2])
    with torch.no_grad():
        batch = torch.rand(1, 3, 64, 64)
        assert torch.equal(filled.module.eval()(batch)[0], other.module.eval()(batch)[0])


@pytest.mark.thorough
def test_sizes_and_arguments_reach_the_package():
    small, large = (outline_model(f"ultralytics:yolo11{size}.yaml").module for size in "nm")
    assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in large.parameters())
    assert load_model("ultralytics:yolo11n.yaml(nc=5)").module.model[-1].nc == 5
    assert load_model("ultralytics:yolov8n-cls.yaml").preparation.description.startswith("crop to 224x224")
    with pytest.raises(RequestError, match="ultralytics cannot build"):
        load_model("ultralytics:yolo11n.yaml(depth=5)")


@pytest.mark.thorough
def test_a_file_of_the_same_name_in_the_working_directory_is_not_read(tmp_path, monkeypatch):
    """ultralytics evaluates what such a file names as activation."""
    monkeypatch.chdir(tmp_path)
    activation = f"open({str(tmp_path / 'mark')!r}, 'w')"
    for name in ("yolo11n-cls.yaml", "yolo11-cls.yaml"):
        (tmp_path / name).write_text(f'nc: 2\nactivation: "{activation}"\nbackbone: [[-1, 1, Conv, [8, 3, 2]]]\nhead: []\n')
    network = outline_model("ultralytics:yolo11n-cls.yaml").module
    assert len(network.model) > 5
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("yolo11n.pt", "no such weights file", ""),
        ("yolo11n.yml", "no such architecture", "'yolo11n.yaml'"),
        ("../own.yaml", "no such architecture", ""),
    ],
)
def test_refused_names_have_a_hint(name, message, hint):
    with pytest.raises(RequestError, match=message) as caught:
        load_model(f"ultralytics:{name}")
    assert hint in (caught.value.hint or "")


# Files of trained networks


def assert_equals_own(path):
    """Check that a network has the tensors and the output that it has when ultralytics loads it."""
    with unpatched():
        own = ultralytics.YOLO(path).model.eval()
    model = load_model(str(path))
    state, expected = model.module.state_dict(), own.state_dict()
    assert [*state] == [*expected]
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert {each.dtype for each in state.values()} <= {torch.float32, torch.int64}
    batch = torch.rand(1, 3, 64, 64, generator=torch.manual_seed(0))
    with torch.no_grad():
        pairs = zip(tensors_in(model.module(batch)), tensors_in(own(batch)), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    assert not model.notices
    return model


def average(content):
    """As a file looks while the training goes on."""
    content.update(model=None, ema=content["model"], epoch=0)


def fuse(content):
    with unpatched():
        content["model"] = content["model"].fuse(verbose=False)


def hook(content):
    content["model"].model[0].register_forward_hook(print_nothing)
    content["model"].criterion = Exception("a loss")


def print_nothing(*_):
    """A hook of a test."""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("yolo11n.yaml", None),
        *thorough(
            ("yolov8n.yaml", fuse),
            ("yolo26n.yaml", average),
            *(("yolo11n.yaml", change) for change in (average, fuse)),
            *(("yolo26n.yaml", change) for change in (None, fuse)),
            *((f"{name}.yaml", None) for name in ("yolov5n", "yolov9t", "yolov10n", "yolo12n", "rtdetr-resnet50")),
        ),
    ],
)
def test_a_file_of_ultralytics_is_the_network_that_ultralytics_loads(name, change, tmp_path):
    path = saved(tmp_path, name, change)
    if not name.startswith("rtdetr"):
        assert assert_equals_own(path).preparation.description.startswith("pad to 96x96 on 114 of 255")
        return
    with unpatched():
        own = ultralytics.RTDETR(path).model
    assert all(map(torch.equal, load_model(str(path)).module.state_dict().values(), own.state_dict().values()))


@pytest.mark.thorough
@pytest.mark.parametrize("task", TASKS)
def test_a_trained_network_of_every_task_is_loaded(task, tmp_path):
    model = assert_equals_own(train(task, tmp_path))
    assert set(model.classes) == set(CLASSES)
    side = 224 if task == "classify" else 64
    assert f" to {side}x{side}" in model.preparation.description


@pytest.mark.thorough
def test_the_logits_of_a_classifier_are_its_scores():
    model = load_model("ultralytics:yolo11n-cls.yaml(nc=3)", weights="random")
    batch = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        probabilities, logits = model.module(batch)
    found = fmapviz.cam(model, batch, target=1)
    assert float(found.logit) == pytest.approx(float(logits[0, 1]), rel=1e-4, abs=1e-6)
    assert float(found.probability) == pytest.approx(float(probabilities[0, 1]), rel=1e-4)


def test_a_file_that_is_not_there_or_empty_is_named_so(tmp_path):
    with pytest.raises(RequestError, match="no such file"):
        load_model(str(tmp_path / "missing.pt"))
    (tmp_path / "empty.pt").touch()
    with pytest.raises(WeightsError, match="it is empty"):
        load_model(str(tmp_path / "empty.pt"))


@pytest.mark.parametrize("size", [(64, 31), *thorough(*((size,) for size in [(64, 64), (48, 64), (1, 64)]))])
def test_pictures_are_prepared_as_ultralytics_does(size, tmp_path):
    model = load_model("ultralytics:yolo11n.yaml", preprocessing=InputOptions(size=(64, 64)))
    picture = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    box = augment.LetterBox((64, 64), auto=False)(image=picture)
    assert np.array_equal(model.preparation.apply(Image.fromarray(picture)), np.float32(box).transpose(2, 0, 1) / 255)


def test_a_size_is_made_a_multiple_of_the_stride(tmp_path):
    model = load_model("ultralytics:yolo11n.yaml", preprocessing=InputOptions(size=(65, 64)))
    assert model.preparation.apply(Image.new("RGB", (10, 10))).shape == (3, 96, 64)


@pytest.mark.thorough
def test_a_file_needs_no_prefix_and_gives_its_weights_to_others(tmp_path):
    path = saved(tmp_path, nc=2)
    model, prefixed = load_model(str(path)), load_model(f"ultralytics:{path}")
    assert model.classes == CLASSES
    assert model.weights == prefixed.weights == "best.pt"
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    filled = load_model("ultralytics:yolo11n.yaml(nc=2)", weights=str(path))
    assert all(map(torch.equal, filled.module.state_dict().values(), model.module.state_dict().values()))
    others = [load_model(str(path), weights=f"random:{seed}").module.model[0].conv.weight for seed in (1, 1, 2)]
    assert torch.equal(others[0], others[1])
    assert not torch.equal(others[0], others[2])
    torch.save(model.module.state_dict(), tmp_path / "plain.pt")
    with pytest.raises(RequestError, match="not a model, but a weights file"):
        load_model(str(tmp_path / "plain.pt"))
    assert outline_model(str(path)).module.model[0].conv.weight.is_meta


class Canary:
    """Leaves a file when it is loaded."""

    def __init__(self, path, call=Path.touch):
        self.path, self.call = path, call

    def __reduce__(self):
        return self.call, (self.path,)


PLACES = {
    "beside": lambda content, canary: content.update(more=canary),
    "attribute": lambda content, canary: setattr(content["model"].model[0], "more", canary),
    "hook": lambda content, canary: content["model"].model[0]._forward_hooks.update({1: canary}),
    "module": lambda content, canary: content["model"].model[0]._modules.update(more=canary),
    "weight": lambda content, canary: content["model"].model[0]._buffers.update(more=canary),
    "yaml": lambda content, canary: content["model"].yaml.update(activation=canary),
    "names": lambda content, canary: content["model"].names.update({0: canary}),
}


@pytest.mark.parametrize("call", [Path.touch, *thorough(os.mkdir, open)], ids=lambda call: call.__name__)
@pytest.mark.parametrize("place", ["beside", *thorough(*sorted({*PLACES} - {"beside"}))])
def test_code_in_a_file_is_named_and_not_run(place, call, tmp_path):
    mark = tmp_path / "mark"
    if call is open:
        mark.write_text("x")
    path = saved(tmp_path, change=lambda content: PLACES[place](content, Canary(mark, call)))
    mark.exists() and (mark.unlink() if mark.is_file() else mark.rmdir())
    with pytest.raises(WeightsError, match=r"refused: .*(pathlib|posix|mkdir|open)"):
        load_model(str(path))
    assert not mark.exists()


class Own(torch.nn.Module):
    """A layer that ultralytics does not have."""


def test_a_class_that_is_not_of_ultralytics_is_named_and_not_run(tmp_path):
    def change(content):
        content["model"].model.append(Own())

    path = saved(tmp_path, change=change)
    with pytest.raises(WeightsError, match=f"objects that ultralytics does not save: {Own.__module__}.Own") as caught:
        load_model(str(path))
    assert "weights=" in caught.value.hint
    filled = load_model("ultralytics:yolo11n.yaml", weights=str(path))  # as the hint says
    assert filled.weights == "best.pt"


def test_a_layer_of_another_version_is_named(tmp_path, monkeypatch):
    path = saved(tmp_path)
    monkeypatch.delattr(ultralytics.nn.modules.block, "C3k2")
    with pytest.raises(WeightsError, match=r"has no ultralytics.nn.modules.block.C3k2") as caught:
        load_model(str(path))
    assert "version" in str(caught.value) or "newer" in caught.value.hint


def test_a_file_of_the_repository_of_yolov5_says_what_to_install(tmp_path, monkeypatch):
    home = types.ModuleType("models.yolo")
    home.DetectionModel = type("DetectionModel", (torch.nn.Module,), {"__module__": "models.yolo"})
    monkeypatch.setitem(sys.modules, "models", types.ModuleType("models"))
    monkeypatch.setitem(sys.modules, "models.yolo", home)
    torch.save({"model": home.DetectionModel()}, tmp_path / "yolov5s.pt")
    with pytest.raises(WeightsError, match="YOLOv5's own repository") as caught:
        load_model(str(tmp_path / "yolov5s.pt"))
    assert "git clone" in caught.value.hint


@pytest.mark.parametrize(("part", "name"), [("IDetect", "yolov7"), ("DualDDetect", "yolov9")])
def test_a_file_of_a_repository_made_from_yolov5_names_that_one(part, name, tmp_path, monkeypatch):
    home = types.ModuleType("models.yolo")
    home.Model, own = (type(each, (torch.nn.Module,), {"__module__": "models.yolo"}) for each in ("Model", part))
    setattr(home, part, own)
    monkeypatch.setitem(sys.modules, "models", types.ModuleType("models"))
    monkeypatch.setitem(sys.modules, "models.yolo", home)
    network = home.Model()
    network.head = own()
    torch.save({"model": network}, tmp_path / "best.pt")
    with pytest.raises(WeightsError, match="repository") as caught:
        load_model(str(tmp_path / "best.pt"))
    assert f"/{name}," in caught.value.hint


def test_a_file_of_another_package_says_what_is_not_installed(tmp_path, monkeypatch):
    path = tmp_path / "best.pt"
    with monkeypatch.context() as installed:
        home = types.ModuleType("yolov6")
        home.Model = type("Model", (torch.nn.Module,), {"__module__": "yolov6"})
        installed.setitem(sys.modules, "yolov6", home)
        torch.save({"model": home.Model()}, path)
        with pytest.raises(WeightsError, match=r"no network of ultralytics, but a yolov6\.Model") as caught:
            load_model(f"ultralytics:{path}")
        assert caught.value.hint.startswith("name what builds it")
    with pytest.raises(WeightsError, match=r"yolov6\.Model") as caught:
        load_model(f"ultralytics:{path}")
    assert caught.value.hint.startswith("get the code of yolov6, which is not installed, then name what builds it")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_after_reading_as_before(is_enabled, tmp_path):
    path = saved(tmp_path)
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        for name in (path, tmp_path / "none.pt"):
            with suppress(WeightsError):
                load_model(f"ultralytics:{name}")
            assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("nest", [lambda state: state, lambda state: {"model": state}])
def test_a_state_dict_in_place_of_a_network_is_named_so(nest, tmp_path):
    torch.save(nest(torch.nn.Conv2d(3, 2, 1).state_dict()), tmp_path / "weights.pt")
    with pytest.raises(WeightsError, match="has tensors, but no network") as caught:
        load_model(f"ultralytics:{tmp_path / 'weights.pt'}")
    assert "weights=" in caught.value.hint


@pytest.mark.thorough
def test_a_network_of_depths_is_no_detector():
    model = load_model("ultralytics:yolo26n-depth.yaml", weights="random")
    assert find_detector(model.module) is None
    assert fmapviz.cam(model, torch.rand(1, 3, 64, 64), target=0, scores="value").map.shape == (1, 64, 64)


@pytest.mark.thorough
def test_a_detection_transformer_is_built_whatever_its_name_begins_with():
    assert type(outline_model("ultralytics:yolov8n-rtdetr.yaml").module).__name__ == "RTDETRDetectionModel"


@pytest.mark.parametrize("share", [0.5, *thorough(0, 0.01, 0.999)])
def test_a_file_that_is_cut_off_is_damaged(share, tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    for name in (f"ultralytics:{path}", *([str(path)] if share else [])):
        with pytest.raises(WeightsError, match="cannot read"):
            load_model(name)


@pytest.mark.parametrize("kind", ["bomb", *thorough("self", "repeated")])
def test_a_file_that_would_fill_the_memory_is_refused(kind, tmp_path):
    def change(content):
        network, nested = content["model"], []
        if kind == "self":
            nested.append(nested)
        for _ in range(60 if kind == "bomb" else 0):
            nested = [nested, nested]
        network.yaml["more"] = nested
        if kind == "repeated":
            network.model[0].conv.weight = torch.nn.Parameter(torch.zeros(1).half().expand(10**6, 10**6, 1, 1))

    path = saved(tmp_path, change=change)
    if kind == "bomb":  # its lists are few
        assert len(load_model(str(path)).module.yaml["more"]) == 2
        return
    with pytest.raises(WeightsError, match="cannot read"):
        load_model(str(path))


def test_names_equal_those_of_the_package():
    assert {"ultralytics:yolo11n.yaml", "ultralytics:yolov8n-seg.yaml"} <= set(model_names("ultralytics:*"))


@pytest.mark.thorough
def test_other_packages_are_not_affected():
    """Importing ultralytics changes Pillow, PyTorch and the environment; the source puts all back."""
    program = (
        "import os, numpy, torch; from PIL import Image; import fmapviz; import fmapviz.models.load; "
        "printed = lambda: (repr(torch.ones(40) / 3), repr(numpy.ones(40) / 3), repr(torch._tensor_str.PRINT_OPTS)); "
        "state = lambda: (Image.open, torch.load, torch.save, torch.backends.nnpack.set_flags(True), printed(), "
        "{name: value for name, value in os.environ.items() if not name.startswith('YOLO_')}); "
        "state(); before = state(); fmapviz.load_model('ultralytics:yolo11n.yaml'); print(before == state())"
    )
    shown = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "True"


def test_the_source_has_the_functions_of_the_protocol():
    check_protocol("ultralytics")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "notice"),
    [
        ({0: "a", 1: "b"}, "2 class names for 3 classes of the network: none is used"),
        *thorough(
            (["a", "b", "c", "d"], "4 class names for 3 classes of the network: none is used"),
            (["a", "b", "c"], None),
            ({0: "a", 1: "b", 3: "c"}, "the class names are not used: no texts by consecutive indices from 0"),
            ({0: "a", 1: 2, 2: "c"}, "the class names are not used: no texts by consecutive indices from 0"),
            ("abc", "the class names are not used: no texts by consecutive indices from 0, but 'abc'"),
        ),
        (None, None),
    ],
)
@pytest.mark.parametrize("name", ["yolov8n.yaml", *thorough("yolov8n-cls.yaml", "rtdetr-resnet50.yaml")])
def test_class_names_that_do_not_fit_are_not_used_and_said(tmp_path, names, notice, name):
    path = saved(tmp_path, name, lambda content: setattr(content["model"], "names", names), nc=3)
    model = load_model(str(path))
    assert model.classes == (tuple(names) if names and notice is None else ())
    assert [each.startswith(f"'{path}': {notice}") for each in model.notices] == [True] * (notice is not None)


@pytest.mark.thorough
@pytest.mark.parametrize("size", ["640", *thorough(-5, 0, 320.5, [1, 2, 3], True, [96, 0], 10**9, ["96", 96])])
def test_a_size_that_is_none_is_not_used_and_said(tmp_path, size):
    path = saved(tmp_path, "yolov8n.yaml", lambda content: setattr(content["model"], "args", {"imgsz": size}))
    model = load_model(str(path))
    (notice,) = model.notices
    assert notice == f"'{path}': the size in the arguments of the training is not used: imgsz = {quote(size)}"
    assert "pad to 640x640" in model.preparation.description
    assert not load_model(str(path), preprocessing=InputOptions(size=96)).notices  # it would not be used anyway


@pytest.mark.parametrize("size", [96, *thorough([96], [96, 96], ((96, 96),), None)])
def test_a_size_is_used_in_each_form_that_the_trainer_saves(tmp_path, size):
    path = saved(tmp_path, "yolov8n.yaml", lambda content: setattr(content["model"], "args", {"imgsz": size}))
    model = load_model(str(path))
    assert not model.notices
    assert f"pad to {'96x96' if size else '640x640'}" in model.preparation.description


@pytest.mark.thorough
@pytest.mark.parametrize("stride", [None, *thorough(64, [8, 16, 64], torch.tensor([8.0, 16, 64]))])
def test_missing_strides_are_those_of_the_head(tmp_path, stride):
    path = saved(tmp_path, "yolov8n.yaml", lambda content: setattr(content["model"], "stride", stride))
    preparation = load_model(str(path), preprocessing=InputOptions(size=70)).preparation
    assert f"pad to {'96x96' if stride is None else '128x128'}" in preparation.description


@pytest.mark.parametrize(
    "stride", ["x", *thorough(torch.tensor([float("nan")]), 0, [], -8.0, 1e9, [8, None], torch.zeros(3), 12.5, {})]
)
def test_strides_that_are_no_numbers_of_pixels_are_named(tmp_path, stride):
    path = saved(tmp_path, "yolov8n.yaml", lambda content: setattr(content["model"], "stride", stride))
    with pytest.raises(WeightsError, match=r"the strides of '.*best.pt' are no numbers of pixels"):
        load_model(str(path))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["yolov8n.yaml", *thorough("yolov8n-cls.yaml", "rtdetr-resnet50.yaml", "yolo26n.yaml")])
@pytest.mark.parametrize("is_facade", [True, False])
def test_a_network_in_this_process_is_described_as_its_file(tmp_path, name, is_facade):
    path = saved(tmp_path, name, nc=len(CLASSES))
    with unpatched():
        facade = (ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO)(str(path))
    facade.model.args["imgsz"] = 96  # a training saves it twice, the file of this test once
    model, given = load_model(str(path)), facade if is_facade else facade.model
    batch = load_image("sample_images/shapes/star.jpg", model)
    assert torch.equal(load_image("sample_images/shapes/star.jpg", given), batch)
    made = [make_batch(images, given).model for images in (batch, "sample_images/shapes/star.jpg")]
    for own in made:
        assert own.module is facade.model
        assert own.classes == model.classes == CLASSES
        assert not own.assumption
        with torch.no_grad():
            outputs = [next(tensors_in(each.forward(each.module.eval(), batch))) for each in (own, model)]
        assert torch.equal(*outputs)


def test_names_that_do_not_fit_a_network_in_this_process_are_said(tmp_path):
    with unpatched():
        facade = ultralytics.YOLO(str(saved(tmp_path, "yolov8n.yaml", nc=len(CLASSES))))
    facade.model.names = {0: "one"}
    facade.model.args = {"imgsz": "large"}
    with pytest.warns(UserWarning, match=r"1 class name for 2 classes of the network: none is used.*imgsz = 'large'"):
        made = make_batch(torch.zeros(1, 3, 64, 64), facade)
    assert made.model.classes == ()


def test_a_part_of_a_network_is_no_network_of_ultralytics(tmp_path):
    network = load_model(str(saved(tmp_path, "yolov8n.yaml"))).module
    assert recognise(network.model[0], InputOptions()) is None
