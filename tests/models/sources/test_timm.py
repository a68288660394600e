"""The models of timm, with random weights and with files made here; nothing is downloaded."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from threading import Thread

import pytest
import torch
from cases import thorough
from extras import needs
from PIL import Image
from safetensors.torch import save_file
from sources import check_protocol
from torch import nn

from fmapviz.config import InputOptions
from fmapviz.errors import RequestError, WeightsError
from fmapviz.events import Outcome
from fmapviz.models.load import check_name, load_model, model_names, outline_model
from fmapviz.run.layer_list import list_layers
from fmapviz.run.loop import visualize

pytestmark = needs("timm", "timm")

# A small one of some families, and classes of its layers that are no convolutions with how many there are.
FAMILIES = {
    "resnet10t": {"BasicBlock": 4},
    "vit_tiny_patch16_224": {"Block": 12},
}
MORE = {
    "convnext_atto": {"ConvNeXtBlock": 12},
    "mobilenetv3_small_050": {"SqueezeExcite": 9},
    "mixer_s32_224": {"MixerBlock": 8},
    "hrnet_w18_small": {"HighResolutionModule": 8},
    "deit_tiny_distilled_patch16_224": {"Block": 12},
    "swin_tiny_patch4_window7_224": {"SwinTransformerBlock": 12},
    "maxvit_rmlp_pico_rw_256": {"MaxxVitBlock": 7},
}


@pytest.fixture(scope="module")
def timm():
    from extras import timm  # takes a second and a half

    return timm


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "gradient.png"
    Image.radial_gradient("L").resize((300, 260)).convert("RGB").save(path)
    return path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*FAMILIES, *thorough(*MORE)])
def test_a_model_of_each_family_is_drawn(timm, name, tmp_path, picture):
    layers = (FAMILIES | MORE)[name]
    types = ["Conv2d", *layers]
    summary = visualize(f"timm:{name}", picture, weights="random", types=types, out=tmp_path / "out", to="png")
    assert (summary.done, dict(summary.undrawn)) == (1, {})
    record = json.loads((summary.directory / picture.name / "unit.json").read_text())
    drawn = {layer["name"].partition("#")[0].partition("[")[0] for layer in record["layers"]}
    network = timm.create_model(name)
    kinds = {base.__name__: base for module in network.modules() for base in type(module).__mro__}
    wanted = {
        layer
        for layer, module in network.named_modules()
        if layer and isinstance(module, tuple(kinds[kind] for kind in types))
    }
    assert drawn | set(record["not_executed"]) == wanted
    assert len(record["not_executed"]) <= 2
    for kind, count in layers.items():
        assert sum(layer["type"] == kind for layer in record["layers"]) >= count


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", *thorough("vit_tiny_patch16_224", "convnext_atto")])
def test_the_input_is_preprocessed_as_by_timm(timm, name, picture):
    model = load_model(f"timm:{name}", weights="random")
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(timm.create_model(name)), is_training=False)
    with Image.open(picture) as image:
        pixels = image.convert("RGB")
    assert torch.equal(model.preparation.apply(pixels), transform(pixels))


@pytest.mark.thorough
def test_options_change_the_preprocessing_of_timm(picture):
    with Image.open(picture) as image:
        pixels = image.convert("RGB")
    name = "timm:resnet10t"
    sizes = {
        (176, 176): InputOptions(),
        (96, 96): InputOptions(size=(96, 96)),
        (64, 128): InputOptions(size=(64, 128), fit="pad"),
    }
    for size, options in sizes.items():
        assert load_model(name, weights="random", preprocessing=options).preparation.apply(pixels).shape == (3, *size)
    grey = load_model(name, weights="random", preprocessing=InputOptions(mean=(0.5,), std=(0.25,))).preparation
    assert (grey.mean, grey.std) == ((0.5,) * 3, (0.25,) * 3)
    wide = load_model("timm:vit_tiny_patch16_224", weights="random", preprocessing=InputOptions(size=(96, 160)))
    assert wide.module(wide.preparation.apply(pixels)[None]).shape == (1, 1000)


@pytest.mark.thorough
def test_arguments_in_parentheses_reach_the_builder(picture, tmp_path):
    model = load_model("timm:resnet10t(in_chans=1, num_classes=7)", weights="random:3")
    assert (model.module.conv1[0].in_channels, model.module.num_classes, model.preparation.channels) == (1, 7, 1)
    summary = visualize(model, picture, out=tmp_path / "out", to="png")
    assert (summary.done, summary.layers) == (1, 14)
    assert list_layers("timm:resnet10t(in_chans=4)")[0].shape == (24, 88, 88)
    with pytest.raises(RequestError, match="timm cannot build"):
        load_model("timm:resnet10t(no_such_argument=1)", weights="random")
    with pytest.raises(RequestError, match="not a literal"):
        load_model("timm:resnet10t(num_classes=f())", weights="random")


@pytest.mark.thorough
def test_random_weights_are_repeatable_and_keep_the_random_state():
    before = torch.get_rng_state()
    first, again, other = (load_model("timm:resnet10t", weights=each) for each in ("random", "random:0", "random:1"))
    assert torch.equal(before, torch.get_rng_state())
    weights = [each.module.conv1[0].weight for each in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.label == "timm:resnet10t (random weights, seed 0)"


# --- weights


def test_a_file_of_other_classes_and_channels_is_loaded(timm, tmp_path):
    torch.manual_seed(5)
    there = timm.create_model("resnet10t", num_classes=5, in_chans=2)
    torch.save({"state_dict": {f"module.{key}": value for key, value in there.state_dict().items()}}, tmp_path / "my.pth")
    model = load_model("timm:resnet10t", weights=str(tmp_path / "my.pth"))
    assert model.weights == "my.pth"
    assert any("num_classes=5, in_chans=2" in notice for notice in model.notices)
    state = model.module.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in there.state_dict().items())
    with pytest.raises(WeightsError, match="do not fit"):
        load_model("timm:convnext_atto", weights=str(tmp_path / "my.pth"))


def test_a_small_file_whose_tensors_claim_terabytes_is_refused(timm, tmp_path):
    state = timm.create_model("resnet10t").state_dict()
    torch.save(state | {"fc.weight": torch.zeros(1).expand(2**40, 512)}, tmp_path / "my.pth")
    with pytest.raises(WeightsError, match="cannot build a network for the weights in"):
        load_model("timm:resnet10t", weights=str(tmp_path / "my.pth"))


@pytest.fixture
def hub(timm, tmp_path, monkeypatch):
    """A cache of the Hugging Face hub with one model's weights in it."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    torch.manual_seed(9)
    network = timm.create_model("resnet10t")
    home = tmp_path / "hub" / "models--timm--resnet10t.c3_in1k"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    (home / "snapshots" / "abc").mkdir(parents=True)
    save_file(network.state_dict(), home / "snapshots" / "abc" / "model.safetensors")
    return network


@pytest.mark.thorough
def test_published_weights_and_class_names_come_from_the_hubs_cache(hub, tmp_path, picture):
    events = []
    for name in ("timm:resnet10t", "timm:resnet10t.c3_in1k"):
        model = load_model(name)
        state = model.module.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in hub.state_dict().items())
        assert (model.weights, len(model.sha256), len(model.classes)) == ("c3_in1k", 64, 1000)
        assert model.classes[:4] == ("tench", "goldfish", "great white shark", "tiger shark")
    visualize(model, picture, out=tmp_path / "out", to="png", on_event=events.append)
    (outcome,) = (event for event in events if isinstance(event, Outcome))
    with Image.open(picture) as image, torch.no_grad():
        scores = hub.eval()(model.preparation.apply(image.convert("RGB"))[None]).softmax(1)[0]
    assert outcome.predictions[0].index == scores.argmax().item()
    assert outcome.predictions[0].score == pytest.approx(scores.max().item(), rel=1e-4)


@pytest.mark.thorough
def test_a_new_head_on_published_weights_is_initialised_and_nameless(hub):
    model = load_model("timm:resnet10t(num_classes=3)")
    assert torch.equal(model.module.conv1[0].weight, hub.conv1[0].weight)
    assert model.module.fc.weight.abs().max() < 1
    assert model.classes == ()


@pytest.fixture
def requests(tmp_path, monkeypatch):
    """The requests to a hub that closes each connection without an answer."""
    import huggingface_hub

    received = []
    with socket.create_server(("127.0.0.1", 0)) as hub:

        def serve():
            while True:
                try:
                    connection, _ = hub.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(4096))

        thread = Thread(target=serve)
        thread.start()
        template = f"http://127.0.0.1:{hub.getsockname()[1]}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield received
        hub.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_unavailable_weights_are_an_error_after_few_requests(timm, requests):
    with pytest.raises(WeightsError, match=r"cannot download .*resnet10t\.c3_in1k.*model\.safetensors"):
        load_model("timm:resnet10t")
    assert 1 <= len(requests) <= 4
    with pytest.raises(WeightsError, match="no such weights or file: 'IMAGENET1K_V1'"):
        load_model("timm:resnet10t", weights="IMAGENET1K_V1")
    with pytest.raises(WeightsError, match="no published weights"):
        load_model(f"timm:{next(name for name in timm.list_models() if not timm.list_pretrained(f'{name}.*'))}")


# --- names


def test_names_are_listed_with_their_tags():
    names = model_names("timm:*resnet10t*")
    assert names == ["timm:resnet10t", "timm:resnet10t.c3_in1k"]
    assert set(model_names("timm:vit_tiny_patch16_224*")) >= {
        "timm:vit_tiny_patch16_224",
        "timm:vit_tiny_patch16_224.augreg_in21k",
    }
    assert not any(name.startswith("timm:") for name in model_names())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnt10t", "'resnet10t'"),
        ("resnet10t.c9_in1k", "resnet10t.c3_in1k"),
        ("zzz", "fmapviz.model_names('timm:*zzz*')"),
        ("../x", "timm"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_ones(name, hint):
    for look_up in (lambda spec: load_model(spec, weights="random"), outline_model):
        with pytest.raises(RequestError, match="no such model in timm") as caught:
            look_up(f"timm:{name}")
        assert hint in caught.value.hint


@pytest.mark.thorough
def test_layers_are_listed_without_weights():
    rows = list_layers("timm:vit_tiny_patch16_224", types=["Block"])
    assert [row.shape for row in rows] == [(197, 192)] * 12


@pytest.mark.parametrize(
    "arguments", [["timm:resnet18", "x.png"], *thorough(["layers", "timm:resnet18"], ["models", "timm:*"])], ids=" ".join
)
def test_without_timm_the_hint_installs_it(arguments):
    # A Python that cannot find timm, as one where it is not installed.
    script = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = classmethod(lambda c, n, *a: None if n.split('.')[0] == 'timm' else find(n, *a))\n"
        "from fmapviz.cli.app import main\n"
        "main()\n"
    )
    run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == ("error: the model source 'timm' needs the package timm\nhint: pip install 'fmapviz[timm]'\n")


@pytest.mark.thorough
def test_the_spelling_is_checked_without_importing_anything():
    script = (
        "import sys; from fmapviz.models.load import check_name; check_name('timm:resnet18'); "
        "assert not {'timm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    check_name("timm:whatever")  # whether timm knows it, timm tells
    assert isinstance(load_model("timm:resnet10t", weights="random").module, nn.Module)


def test_the_source_has_the_functions_of_the_protocol():
    check_protocol("timm")
