"""Networks and data in Python: declared and assumed inputs, and their notices."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import paint
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import models
from torchvision.transforms import functional

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.images.memory.inputs import resolve_inputs
from fmapviz.run.batch import describe_given, make_batch

CODE = """
import torch
from torch import nn
from torchvision.transforms.functional import to_tensor

classes = ["zero", "one", "two"]

def preprocess(image):
    return to_tensor(image.resize((20, 12)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import code of a user under a name of its own, and forget it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def load(code, name):
        (tmp_path / f"{name}.py").write_text(code)
        imported.append(name)
        return __import__(name)

    yield load
    for name in imported:
        sys.modules.pop(name, None)


@pytest.fixture
def fmapviz_command(request):
    """The command, whose fixture has the name of the package."""
    return request.getfixturevalue("fmapviz")


def size_of(path):
    with Image.open(path) as image:
        return image.size


def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


# --- whose preprocessing it is


def test_the_module_of_the_class_declares_preprocessing_and_class_names(module, tmp_path):
    net = module(CODE, "cnn_of_class").Net()
    path = paint(tmp_path / "a.png", size=(30, 40))
    expected = functional.to_tensor(Image.open(path).resize((20, 12)))
    batch, model, _ = make_batch(str(path), net)
    torch.testing.assert_close(batch[0], expected)
    assert model.classes == ("zero", "one", "two")
    found = fmapviz.cam(net, str(path), target="two", layer="conv")
    assert found.map.shape == (1, 12, 20)
    summary = fmapviz.visualize(net, path, out=tmp_path / "runs", to="png", progress=False)
    assert not [notice for notice in summary.notices if "assum" in notice]
    assert size_of(summary.directory / "a.png" / "input.png") == (20, 12)
    command = fmapviz.load_model(f"{tmp_path}/cnn_of_class.py:Net")
    assert torch.equal(command.preparation.apply(Image.open(path)), batch[0])


OTHER_KINDS = {
    "preprocess": ("'imagenet'", "a function of one picture"),
    "transforms": ("{'train': print, 'val': print}", "a function of one picture"),
    "classes": ("'abc'", "a list of names"),
    "class_names": ("(name for name in 'abc')", "a list of names"),
    "categories": ("{'a', 'b', 'c'}", "a list of names"),
    "class_to_idx": ("range(3)", "a list of names"),
    "idx_to_class": ("3", "a list of names"),
    "scores": ("['sigmoid']", "one word"),
    "inputs": ("20", "the shape of one input"),
}
BARE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head, self.scores = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), []
    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OTHER_KINDS)
def test_a_name_beside_the_network_of_another_type_is_reported_as_unused(name, module, tmp_path):
    value, expected = OTHER_KINDS[name]
    net = module(f"{BARE}{name} = {value}\n", f"cnn_of_other_{name}").Net()
    summary = fmapviz.visualize(net, paint(tmp_path / "a.png"), out=tmp_path / "runs", to="png", progress=False)
    (said,) = (notice for notice in summary.notices if "is not used" in notice)
    assert said.startswith(f"{name} = ")
    assert expected in said


def test_names_of_classes_may_be_an_array(module):
    net = module(f"{BARE}import numpy\nclasses = numpy.array(['a', 'b', 'c'])\n", "cnn_of_array").Net()
    assert fmapviz.cam(net, torch.rand(1, 3, 8, 8), target="b", layer="conv").names == ("b",)


def test_a_wrapper_of_library_classes_has_the_preprocessing_of_its_parts(module, tmp_path):
    net = nn.Sequential(module(CODE, "cnn_of_parts").Net(), nn.Identity())
    assert make_batch(str(paint(tmp_path / "a.png")), net)[0].shape == (1, 3, 12, 20)


def test_a_network_of_library_classes_uses_the_only_preprocessing_with_a_notice(module, tmp_path):
    built = module(CODE, "cnn_of_builder").build()
    path = str(paint(tmp_path / "a.png"))
    with pytest.warns(UserWarning, match=r"cnn_of_builder\.preprocess is taken for its preprocessing"):
        assert make_batch(path, built)[0].shape == (1, 3, 12, 20)
    module(CODE, "cnn_of_another")
    with pytest.warns(UserWarning, match=r"several preprocessings could be its own: .*cnn_of_another\.preprocess"):
        assert make_batch(path, built)[0].shape == (1, 3, 224, 224)


def test_a_network_of_the_main_module_has_its_preprocessing(monkeypatch, tmp_path):
    main = sys.modules["__main__"]
    kind = type("Net", (nn.Conv2d,), {"__module__": "__main__"})
    monkeypatch.setattr(main, "preprocess", lambda image: functional.to_tensor(image)[:, :7], raising=False)
    monkeypatch.setattr(main, "__file__", str(tmp_path / "script.py"), raising=False)
    assert make_batch(str(paint(tmp_path / "a.png", size=(9, 11))), kind(3, 4, 3))[0].shape == (1, 3, 7, 11)


# --- assumptions


def said_by(call):
    """Return the warnings of a call, and its lines and notices."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = call()
    return [*told, *(str(each.message) for each in caught)]


def watch(network, path, out, **options):
    with fmapviz.Watch(network, path, out=out / "watch", every=1, budget=1, **options) as watching:
        watching(0)


def say_by_run(network, path, out, **options):
    return fmapviz.visualize(network, path, out=out, to="png", progress=False, **options).notices


def say_by_event(network, path, out):
    events = []
    watch(network, path, out, on_event=events.append)
    return [event.message for event in events]


def say_by_line(network, path, out):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        watch(network, path, out)
    return stderr.getvalue().splitlines()


ENTRIES = {
    "visualize": say_by_run,
    "Watch, on_event": say_by_event,
    "Watch, standard error": say_by_line,
    "cam": lambda net, path, _: fmapviz.cam(net, path) and (),
    "diff": lambda net, path, _: list(fmapviz.diff(net, plain(), path)) and (),
    "load_image": lambda net, path, _: fmapviz.load_image(path, describe_given(net)) is None or (),
    "load_image, a picture": lambda net, path, _: fmapviz.load_image(Image.open(path), describe_given(net)) is None or (),
}


@pytest.mark.thorough
@pytest.mark.sampled(4)
@pytest.mark.parametrize("entry", ENTRIES)
def test_each_entry_reports_an_assumed_preprocessing_once_in_equal_words(entry, tmp_path):
    network, path = plain(), str(paint(tmp_path / "a.png"))
    sentence = describe_given(network).assumption
    assert "resized to 256 and cropped to 224 and normalised with ImageNet's mean and deviation, which is" in sentence
    said = said_by(lambda: ENTRIES[entry](network, path, tmp_path))
    remedy = "InputOptions(size=), InputOptions(mean=) and InputOptions(std=)"
    expected = sentence.replace(remedy, "prepared tensors") if entry == "cam" else sentence  # which takes no options
    assert remedy in sentence
    assert len([line for line in said if line.removeprefix("fmapviz: ") == expected]) == 1, said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 32}, "images are normalised with ImageNet's mean"),
        ({"mean": (0.5,), "std": (0.5,)}, "images are resized to 256 and cropped to 224, which"),
        ({"size": 32, "mean": (0.5,), "std": (0.5,)}, ""),
        ({"fit": "none", "mean": (0,), "std": (1,)}, ""),
    ],
)
def test_only_missing_declarations_are_assumed(options, words):
    model = describe_given(plain(), preprocessing=fmapviz.InputOptions(**options))
    assert (words in model.assumption) if words else model.assumption == ""


def test_nothing_is_assumed_about_prepared_tensors(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fmapviz.cam(plain(), torch.randn(1, 3, 16, 16))
        summary = fmapviz.visualize(plain(), torch.randn(2, 3, 16, 16), out=tmp_path, to="png", progress=False)
    assert not [notice for notice in summary.notices if "assum" in notice]


SAID = {
    "names of one logit": ('classes = ["no", "yes"]', 1, (0, 1, "no", "yes", "top1")),
    "several labels": ('classes = ["a", "b", "c"]\nscores = "sigmoid"', 3, (0, 2, "b", "top1")),
    "thresholds": ('classes = ["low", "middle", "high"]\nscores = "ordinal"', 2, (0, 2, "high")),
    "names alone": ('classes = ["a", "b", "c"]', 3, (1, "c", "top2")),
    "a value": ('scores = "value"', 1, (0, "top1")),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("home", ["class", "module"])
@pytest.mark.parametrize("kind", SAID)
def test_declarations_of_outputs_apply_to_tensors_and_paths(kind, home, module, tmp_path):
    said, outputs, targets = SAID[kind]
    inside = "".join(f"    {line}\n" for line in said.splitlines())
    code = CODE.replace('classes = ["zero", "one", "two"]', said if home == "module" else "").replace(
        "4, 3)\n\n    def", "4, 3)\n    def"
    )
    code = code.replace("self.head = nn.Linear(4, 3)", f"self.head = nn.Linear(4, {outputs})")
    code = code.replace("class Net(nn.Module):\n", f"class Net(nn.Module):\n{inside if home == 'class' else ''}")
    found = module(code, f"said_{kind.replace(' ', '_')}_{home}")
    torch.manual_seed(0)
    network = found.Net().eval()
    if kind == "thresholds":  # in order
        with torch.no_grad():
            network.head.weight[1] = network.head.weight[0]
            network.head.bias.copy_(torch.tensor([0.5, -0.5]))
    path = paint(tmp_path / "photo.png", size=(40, 30))
    with Image.open(path) as picture:
        prepared = found.preprocess(picture)[None]
    for target in targets:
        of_path, of_tensor = (fmapviz.cam(network, given, target=target) for given in (path, prepared))
        assert (of_path.target, of_path.kind) == (of_tensor.target, of_tensor.kind)
        assert torch.equal(of_path.raw, of_tensor.raw)
        assert torch.equal(of_path.score, of_tensor.score)


def test_declarations_from_a_guessed_module_are_reported_for_tensors(module):
    network = module(CODE, "said_by_guess").build()
    with pytest.warns(UserWarning, match="what said_by_guess says of the outputs is taken"):
        assert fmapviz.cam(network, torch.rand(1, 3, 12, 20), target="two").target == (2,)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("inputs", "times"),
    [
        (lambda: DataLoader(TensorDataset(torch.rand(3, 3, 16, 16), torch.arange(3)), batch_size=2), 0),
        (lambda: iter(torch.rand(3, 3, 16, 16)), 0),
        (lambda: iter([torch.rand(3, 16, 16), Image.new("RGB", (9, 9)), Image.new("RGB", (9, 8))]), 1),
    ],
)
def test_the_assumption_is_reported_for_an_iterator_that_is_preprocessed(inputs, times, tmp_path):
    summary = fmapviz.visualize(plain(), inputs(), out=tmp_path, to="png", progress=False)
    assert (summary.done, summary.failed) == (3, 0)
    assert sum("assum" in notice for notice in summary.notices) == times


@pytest.mark.thorough
def test_the_command_reports_its_assumptions(fmapviz_command, tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3))\n")
    paint(tmp_path / "a.png")
    done = fmapviz_command("net.py:build", "a.png", "--to", "png", cwd=tmp_path)
    assert b"which is an assumption" in done.stderr
    assert b"--mean" in done.stderr


# --- networks of libraries


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("resnet18", "IMAGENET1K_V1"),
        ("efficientnet_b0", "IMAGENET1K_V1"),
        ("mobilenet_v3_small", "IMAGENET1K_V1"),
        ("regnet_y_400mf", "IMAGENET1K_V2"),
    ],
)
def test_a_network_of_torchvision_is_prepared_as_its_weights(name, entry, tmp_path):
    network = getattr(models, name)()
    path = str(paint(tmp_path / "a.png", size=(60, 50)))
    with pytest.warns(UserWarning, match=f"taken for torchvision's {name}, prepared as for {entry}"):
        batch, _, _ = make_batch(path, network)
    torch.testing.assert_close(batch[0], models.get_model_weights(name)[entry].transforms()(Image.open(path)))


@pytest.mark.parametrize(("name", "classes"), [("resnet18", 7), *thorough(("vgg11", 2))])
def test_a_network_of_torchvision_with_another_head_is_recognised(name, classes):
    network = models.get_model(name, num_classes=classes)
    assert f"torchvision's {name}," in describe_given(network).assumption


def test_a_detector_of_torchvision_is_called_with_a_list(tmp_path):
    network = models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None).eval()
    summary = fmapviz.visualize(
        network,
        paint(tmp_path / "a.png", size=(80, 90)),
        out=tmp_path / "runs",
        to="png",
        layers=["backbone.body.0.0"],
        progress=False,
    )
    assert summary.done == 1
    assert size_of(summary.directory / "a.png" / "input.png") == (90, 80)


# --- inputs that the first convolution does not show


class Grey(nn.Module):
    """Repeats grey to three channels itself."""

    inputs = (1, 24, 32)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        assert x.shape[1] == 1
        return self.conv(x.repeat(1, 3, 1, 1))


class Split(nn.Module):
    """Splits colour and depth."""

    def __init__(self):
        super().__init__()
        self.colour, self.depth = nn.Conv2d(3, 4, 3), nn.Conv2d(1, 4, 3)

    def forward(self, x):
        return self.colour(x[:, :3]) + self.depth(x[:, 3:])


def test_inputs_beside_or_in_a_network_declare_channels_and_size(tmp_path):
    path = paint(tmp_path / "a.png", size=(60, 50))
    summary = fmapviz.visualize(Grey(), path, out=tmp_path / "runs", to="png", progress=False)
    assert summary.done == 1
    assert size_of(summary.directory / "a.png" / "input.png") == (32, 24)
    assert not any("resized to 256" in notice for notice in summary.notices)


def test_channels_in_declares_the_channels_of_a_network(tmp_path):
    np.save(tmp_path / "rgbd.npy", np.random.default_rng(0).random((30, 40, 4), np.float32))
    options = fmapviz.InputOptions(channels_in=4)
    summary = fmapviz.visualize(
        Split(), tmp_path / "rgbd.npy", out=tmp_path / "runs", to="png", preprocessing=options, progress=False
    )
    assert summary.done == 1
    failed = fmapviz.visualize(Split(), tmp_path / "rgbd.npy", out=tmp_path / "others", to="png", on_event=lambda _: None)
    assert "channels_in=" in failed.failures[0].hint


@pytest.mark.thorough
def test_the_command_accepts_channels_in(fmapviz_command, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 4, 3)\n"
        "    def forward(self, x):\n        return self.conv(x.expand(-1, 3, -1, -1))\n"
    )
    paint(tmp_path / "a.png")
    done = fmapviz_command("net.py:Net", "a.png", "--to", "png", "--channels-in", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


class Solid(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.conv = nn.Conv3d(channels, 4, 3, padding=1)

    def forward(self, x):
        assert x.ndim == 5
        return self.conv(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "channels"),
    [((6, 9, 8), 1), ((1, 6, 9, 8), 1), ((6, 9, 8, 1), 1), ((2, 6, 9, 8), 2), ((6, 9, 8, 2), 2), ((1, 2, 6, 9, 8), 2)],
)
def test_a_volume_is_an_input_of_a_network_of_three_dimensions(shape, channels, tmp_path):
    volume = np.random.default_rng(0).integers(-1000, 3000, shape).astype(np.int16)
    np.save(tmp_path / "v.npy", volume)
    expected = (volume.astype(float) - volume.min()) / (int(volume.max()) - int(volume.min()))
    expected = np.moveaxis(expected, -1, 0) if shape[-1] == channels else expected
    expected = expected.reshape(channels, 6, 9, 8)
    for given in (str(tmp_path / "v.npy"), volume):
        with pytest.warns(UserWarning, match="volumes are scaled to 0..1"):
            batch, _, _ = make_batch(given, Solid(channels))
        np.testing.assert_allclose(batch[0], expected, atol=1e-6)
    summary = fmapviz.visualize(Solid(channels), tmp_path / "v.npy", out=tmp_path / "runs", to="png", progress=False)
    assert (summary.done, summary.failed) == (1, 0)
    assert size_of(summary.directory / "v.npy" / "input.png") == (8, 9)


def test_a_picture_is_no_volume_and_the_hint_names_the_axes(tmp_path):
    summary = fmapviz.visualize(Solid(), paint(tmp_path / "a.png"), out=tmp_path / "runs", to="png", on_event=lambda _: None)
    (failure,) = summary.failures
    assert (failure.code, "(D, H, W)" in failure.hint) == ("E_CHANNELS", True)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_convolution_of_three_dimensions_alone_takes_volumes_and_no_batch_of_pictures(channels):
    """PyTorch takes as many pictures as there are channels for one volume without an axis of the batch."""
    model = describe_given(nn.Sequential(nn.Conv3d(channels, 4, 3, padding=1)))
    assert (model.preparation.volume, model.preparation.channels) == (True, channels)


class Repeats(nn.Module):
    """Makes clips of pictures itself."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv3d(channels, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x[:, :, None].repeat(1, 1, 5, 1, 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_network_that_repeats_pictures_to_clips_takes_pictures(channels, mode, tmp_path):
    net = Repeats(channels)
    before = {name: values.clone() for name, values in net.state_dict().items()}
    model = describe_given(net)
    assert (model.preparation.volume, model.preparation.channels) == (False, channels)
    assert "images are" in model.assumption
    assert all(torch.equal(values, before[name]) for name, values in net.state_dict().items())
    with Image.open(paint(tmp_path / "p.png", size=(30, 20))) as picture:
        picture.convert(mode).save(tmp_path / "a.png")
    summary = fmapviz.visualize(net, tmp_path / "a.png", out=tmp_path / "runs", to="png", on_event=lambda _: None)
    assert (summary.done, summary.failed, summary.pictures) == (1, 0, 6)


def test_a_picture_is_repeated_to_the_declared_depth_of_inputs(tmp_path):
    net = Solid(3)
    net.inputs = (3, 5, 16, 12)
    with pytest.warns(UserWarning, match="scaled to 0..1"):
        batch, model, _ = make_batch(Image.open(paint(tmp_path / "a.png", size=(30, 20))), describe_given(net))
    assert batch.shape == (1, 3, 5, 16, 12)
    assert torch.equal(batch[:, :, 0], batch[:, :, 4])
    assert model.preparation.frames == 5


def test_a_preprocessing_may_add_channels(tmp_path):
    net = nn.Sequential(nn.Conv2d(4, 2, 3))
    net.preprocess = lambda image: torch.cat([functional.to_tensor(image), functional.to_tensor(image.convert("L"))])
    batch, _, _ = make_batch(str(paint(tmp_path / "a.png", size=(9, 7))), net)
    assert batch.shape == (1, 4, 9, 7)


# --- data as people have it


class Pairs(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.make(index)


FLOATS = torch.randn(3, 3, 8, 8)
BYTES = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 2])
HELD = {
    "a batch with labels": (FLOATS, LABELS),
    "a batch with labels in a list": [FLOATS, LABELS],
    "a batch with names": (FLOATS, ["a", "b", "c"]),
    "a batch with boxes": (FLOATS, [{"boxes": torch.zeros(1, 4)}] * 3),
    "a dictionary": {"pixel_values": FLOATS, "labels": LABELS},
    "a dictionary with another key": {"image": BYTES, "mask": BYTES[:, 0].long()},
    "a loader": DataLoader(TensorDataset(FLOATS, LABELS), batch_size=2),
    "a loader of images alone": DataLoader(list(FLOATS), batch_size=2),
    "a loader of pairs": DataLoader(Pairs(lambda index: (FLOATS[index], index)), batch_size=2),
    "a loader of dictionaries": DataLoader(Pairs(lambda index: {"image": FLOATS[index], "label": index}), batch_size=3),
    "a loader of masks": DataLoader(Pairs(lambda index: (FLOATS[index], torch.ones(1, 8, 8))), batch_size=3),
    "a loader that does not collate": DataLoader(Pairs(lambda index: (FLOATS[index], index)), batch_size=2, collate_fn=list),
    "a data set": Pairs(lambda index: (FLOATS[index], index)),
    "a data set of pictures": Pairs(lambda index: (functional.to_pil_image(BYTES[index]), index)),
    "a list of pairs": [(FLOATS[index], index) for index in range(3)],
    "a list of dictionaries": [{"img": BYTES[index].permute(1, 2, 0).numpy(), "y": 1} for index in range(3)],
    "a list of tensors": list(FLOATS),
    "an iterator of batches": iter([(FLOATS[:2], LABELS[:2]), (FLOATS[2:], LABELS[2:])]),
}


@pytest.mark.filterwarnings("ignore:of each")
@pytest.mark.parametrize("name", [name for name in HELD if "iterator" not in name])
def test_the_images_of_a_batch_or_a_data_set_are_drawn(name):
    said = []
    images = [*resolve_inputs(HELD[name], said.append)]
    assert [image.name for image in images] == ["image_0", "image_1", "image_2"]
    for index, image in enumerate(images):
        value = image.value
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, (FLOATS if value.is_floating_point() else BYTES)[index])
        else:
            np.testing.assert_array_equal(np.asarray(value), BYTES[index].permute(1, 2, 0))
    assert bool(said) == (name not in {"a loader of images alone", "a list of tensors"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert make_batch(HELD[name], fmapviz.load_model("shapesnet", preprocessing=fmapviz.InputOptions(size=8)))[
            0
        ].shape == (
            3,
            3,
            8,
            8,
        )


def test_an_iterator_of_batches_is_read_as_it_yields():
    assert len([*resolve_inputs(HELD["an iterator of batches"], lambda _: None)]) == 3


def test_pairs_of_paths_and_labels_are_paths(tmp_path):
    path = str(paint(tmp_path / "a.png"))
    assert [*resolve_inputs([(path, 3), (path, "cat")], lambda _: None)] == [path, path]


def test_skipped_entries_of_a_data_set_are_reported_once(tmp_path):
    summary = fmapviz.visualize(
        "shapesnet", HELD["a loader"], out=tmp_path, to="png", preprocessing=fmapviz.InputOptions(size=8), progress=False
    )
    assert summary.done == 3
    assert len([notice for notice in summary.notices if "labels and the like are left out" in notice]) == 1


def test_a_dictionary_without_images_names_its_keys():
    with pytest.raises(RequestError, match="no image in a dictionary of the keys 'tokens, labels'") as caught:
        list(resolve_inputs({"tokens": LABELS, "labels": LABELS}))
    assert "pixel_values" in caught.value.hint


def test_load_image_takes_a_picture_an_array_and_a_tensor(tmp_path):
    model = fmapviz.load_model("shapesnet")
    path = paint(tmp_path / "a.png", size=(40, 50))
    expected = fmapviz.load_image(path, model)
    picture = Image.open(path)
    for given in (picture, np.asarray(picture), torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)):
        assert torch.equal(fmapviz.load_image(given, model), expected)


def test_floats_that_look_like_pixels_are_used_unchanged_with_a_notice(tmp_path):
    model = fmapviz.load_model("shapesnet")
    summary = fmapviz.visualize(model, torch.rand(2, 3, 96, 96), out=tmp_path, to="png", progress=False)
    assert [notice for notice in summary.notices if "floats are used as they are" in notice]
    with pytest.warns(UserWarning, match="floats are used as they are"):
        fmapviz.cam(model, torch.rand(1, 3, 96, 96))
    told = []
    with fmapviz.Watch(model, torch.rand(2, 3, 96, 96), out=tmp_path / "watch", on_event=told.append) as watch:
        watch(0)
    assert len([event for event in told if "floats are used as they are" in event.message]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fmapviz.cam(model, torch.randn(1, 3, 96, 96))


class Depth(nn.Module):
    """Prepares depth in millimetres itself."""

    def __init__(self, *, scale):
        super().__init__()
        self.conv, self.scale = nn.Conv2d(1, 2, 3), scale

    def forward(self, x):
        return self.conv(x)

    def preprocess(self, picture):
        return torch.from_numpy(np.asarray(picture, dtype=np.float32))[None] * self.scale


@pytest.mark.parametrize("scale", [1e-3, 1.1e-4])
def test_the_picture_of_an_input_describes_black_and_white(scale, tmp_path):
    low, high = 500 * scale, 1500 * scale
    for factor in (1, 2):
        depth = np.full((12, 12), 500 * factor, np.uint16)
        depth[4:8] = 1500 * factor
        Image.fromarray(depth).save(tmp_path / f"{factor}.png")
    paths = [tmp_path / "1.png", tmp_path / "2.png"]
    summary = fmapviz.visualize(Depth(scale=scale), paths, out=tmp_path, name="run", to="png", progress=False)
    said = [Image.open(summary.directory / path.name / "input.png").text["Scaling"] for path in paths]
    is_stretched = high > 1
    ends = [f"{low * factor:.4g} is black, {high * factor:.4g} white" for factor in (1, 2)]
    assert said == (ends if is_stretched else ["0 is black, 1 white"] * 2)
    assert sum("the input is shown from its smallest value" in notice for notice in summary.notices) == is_stretched
    middles = [np.asarray(Image.open(summary.directory / path.name / "input.png"))[5, 5] for path in paths]
    assert middles == ([255, 255] if is_stretched else [round(255 * high * factor) for factor in (1, 2)])
