"""Networks that the user's own code builds."""

from __future__ import annotations

import json
import operator
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import RequestError, UserCodeError, WeightsError
from fmapviz.events import Notice, Outcome
from fmapviz.models.load import check_name, load_model, outline_model
from fmapviz.run.layer_list import list_layers
from fmapviz.run.loop import visualize

CODE = """
import torch
from torch import nn

from parts import block

class Net(nn.Module):
    def __init__(self, num_classes=5, width=4):
        super().__init__()
        self.body = nn.Sequential(block(3, width), block(width, 2 * width))
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

    @classmethod
    def wide(cls):
        return cls(width=9)

def build(num_classes=5, *, width=4):
    print("a word from the builder")
    return Net(num_classes, width)

net = Net()
"""
PARTS = """
from torch import nn

def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
"""


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    """A directory with `net.py`, which needs `parts.py` beside it, and a picture."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("net", "parts", "package", "own"):  # Ray's tests import a `net` of their own
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    write("net.py", CODE)
    write("parts.py", PARTS)
    Image.new("RGB", (40, 30), (200, 30, 30)).save("red.png")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"net", "parts", "package", "own"} or name.startswith("net_"):
            del sys.modules[name]


def write(name, text):
    Path(name).write_text(textwrap.dedent(text))


def widths(model):
    return [module.out_channels for module in model.module.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize(
    ("spec", "expected", "outputs"),
    [
        ("net.py:build", [4, 8], 5),
        ("./net.py:Net", [4, 8], 5),
        ("net.py:build(num_classes=2, width=6)", [6, 12], 2),
        ("net:Net(width=3)", [3, 6], 5),
        ("net.py:Net.wide", [9, 18], 5),
        ("net.py:net", [4, 8], 5),
    ],
)
def test_functions_classes_and_networks_are_accepted(spec, expected, outputs):
    model = load_model(spec)
    assert widths(model) == expected
    assert model.module.head.out_features == outputs
    assert (model.name, model.weights, model.own) == (spec, "weights as built", True)
    assert model.notices == (f"weights as built by {spec.partition('(')[0]}; weights=FILE loads a checkpoint",)
    assert not load_model(spec, weights="random").notices
    assert widths(outline_model(spec)) == expected


def test_a_file_without_a_name_is_refused_with_its_names():
    for load in (check_name, load_model):
        with pytest.raises(RequestError, match=r"the name of a function or class is missing: 'net\.py'") as caught:
            load("net.py")
        assert caught.value.hint.startswith("type one of net.py:Net, net.py:build")
        with pytest.raises(RequestError, match=r"no such file: 'nett\.py'") as caught:
            load("nett.py:Net")
        assert caught.value.hint.startswith("did you mean 'net.py'")
    write("net.py", "def broken(")
    with pytest.raises(RequestError, match="the name of a function or class is missing"):
        check_name("net.py")


def test_output_of_a_builder_is_no_result(capsys):
    load_model("net.py:build")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a word from the builder" in captured.err


def test_a_file_in_a_package_is_imported_as_part_of_it(code):
    (code / "package" / "nets").mkdir(parents=True)
    for name in ("package/__init__.py", "package/nets/__init__.py"):
        write(name, "")
    write("package/parts.py", PARTS)
    write("package/nets/net.py", CODE.replace("from parts import", "from ..parts import"))
    for spec in ("package/nets/net.py:build", "package.nets.net:build", str(code / "package/nets/net.py:Net")):
        assert widths(load_model(spec)) == [4, 8]


def test_a_file_named_like_an_existing_module_does_not_replace_it(code):
    import json as known

    write("json.py", CODE)
    write("not-a-name.py", CODE)
    for spec in ("json.py:Net", "not-a-name.py:Net"):
        assert widths(load_model(spec)) == [4, 8]
    assert sys.modules["json"] is known


def test_a_changed_file_is_run_again_and_changes_the_digest(code):
    first = load_model("net.py:Net")
    assert load_model("net.py:Net").sha256 == first.sha256
    write("net.py", CODE.replace("self.body(x).mean((2, 3))", "self.body(x).amax((2, 3))"))
    second = load_model("net.py:Net")
    assert second.sha256 != first.sha256  # the same layers and the same weights, but another forward pass
    write("parts.py", PARTS + "\ndef factor():\n    return 2\n")  # what a forward pass might call
    assert load_model("net.py:Net").sha256 != second.sha256


def test_weights_are_repeatable_random_or_those_of_a_file(code):
    numbers = load_model("net.py:net").module.state_dict()
    torch.save({"state_dict": {f"module.{key}": value + 1 for key, value in numbers.items()}}, "net.pth")
    state = {name: load_model("net.py:Net", weights=name).module.state_dict() for name in ("default", "random", "random:7")}
    assert torch.equal(state["default"]["head.weight"], state["random"]["head.weight"])
    assert not torch.equal(state["default"]["head.weight"], state["random:7"]["head.weight"])
    assert load_model("net.py:Net", weights="random:7").weights == "random weights, seed 7"
    before = torch.get_rng_state()
    loaded = load_model("net.py:Net", weights="net.pth")
    assert torch.equal(before, torch.get_rng_state())
    assert loaded.weights == "net.pth"
    assert any("module." in notice for notice in loaded.notices)
    content = torch.load("net.pth", weights_only=True)["state_dict"]
    assert all(torch.equal(value, content[f"module.{key}"]) for key, value in loaded.module.state_dict().items())
    with pytest.raises(WeightsError, match="do not fit"):
        load_model("net.py:build(width=5)", weights="net.pth")
    with pytest.raises(WeightsError, match="no such weights"):
        load_model("net.py:build", weights="IMAGENET1K_V1")


# --- errors


def test_an_exception_of_user_code_has_only_its_own_traceback():
    write("net.py", CODE + "\ndef inner():\n    raise KeyError('width')\n\ndef broken():\n    return inner()\n")
    with pytest.raises(UserCodeError) as caught:
        load_model("net.py:broken")
    assert str(caught.value) == "'net.py:broken' failed: KeyError: 'width'"
    lines = caught.value.report.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", in ")[1] for line in lines if line.startswith("  File ")] == ["broken", "inner"]
    assert "fmapviz" not in caught.value.report
    assert lines[-1] == "KeyError: 'width'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def build(:\n", "SyntaxError: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("raise RuntimeError('\\x1b[31mred\\n')\n", "RuntimeError: \\x1b[31mred"),
    ],
)
@pytest.mark.parametrize("spec", ["own.py:build", "own:build"])
def test_a_file_that_cannot_be_run_is_the_users_failure(text, message, spec):
    write("own.py", text)
    with pytest.raises(UserCodeError) as caught:
        load_model(spec)
    assert message in repr(str(caught.value)) or message in str(caught.value)
    assert "\x1b" not in caught.value.report
    assert "own" not in sys.modules


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("net.py:bild", "no 'bild' in 'net.py'", "did you mean 'build'?"),
        ("net.py:Net.narrow", "no 'Net.narrow' in 'net.py'", "Net"),
        ("net.py:xyz", "no 'xyz' in 'net.py'", "there are: Net, build, net"),
        ("net.py:torch", "not a function, class or network: 'net.py:torch' is of type module", None),
        (
            "net.py:build(depth=3)",
            "cannot call net.py:build this way: got an unexpected keyword argument 'depth'",
            "build(num_classes=5, *, width=4)",
        ),
        (
            "net.py:build(num_clases=3)",
            "cannot call net.py:build this way: got an unexpected keyword argument 'num_clases'",
            "its signature is build(num_classes=5, *, width=4); did you mean 'num_classes'?",
        ),
        ("net.py:net(width=3)", "is a network already", None),
        (
            "parts.py:block",
            "cannot call parts.py:block this way: missing a required argument: 'before'",
            "block(before, after); pass arguments as 'parts.py:block(before=...)'",
        ),
        ("net", "no such model: 'net'", "code of yours is named with a function: net.py:build"),
        ("net.bild", "no such model: 'net.bild'", "code of yours is named with a function: net.py:bild"),
        ("net.py:nn.Identity", None, None),
        ("no_such_module:build", "no such module: 'no_such_module'", "working directory"),
        ("net.inner:build", "no such module: 'net.inner'", "working directory"),
    ],
)
def test_a_wrong_request_is_an_error_of_one_line(spec, message, hint):
    if message is None:
        assert load_model(spec).module is not None
        return
    with pytest.raises(RequestError) as caught:
        load_model(spec)
    assert not isinstance(caught.value, UserCodeError)
    assert message in str(caught.value)
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize(
    ("body", "given"),
    [("return 5", "int"), ("return Net(), None", "tuple"), ("return None", "NoneType"), ("return Net", "type")],
)
def test_a_builder_that_returns_no_network_is_an_error(body, given):
    write("net.py", CODE + f"\ndef other():\n    {body}\n")
    with pytest.raises(RequestError, match=f"returned an object of type {given}, not an nn.Module"):
        load_model("net.py:other")


def test_a_network_of_two_inputs_is_refused_with_its_signature():
    write(
        "net.py",
        CODE + "\nclass Two(Net):\n    def forward(self, image, mask, *, scale=1.0):\n        return image * mask\n",
    )
    with pytest.raises(RequestError) as caught:
        load_model("net.py:Two")
    assert "forward(image, mask, *, scale=1.0)" in str(caught.value)
    assert "call(network, images) beside the function that builds it" in caught.value.hint


# --- a function that calls the network

PAIR = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.other = nn.Linear(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, batch, scale):
        return {"logits": self.head(self.conv(batch["image"]).mean((2, 3)) + self.other(batch["meta"])) * scale}

def build():
    return Pair()

def call(network, images):
    return network({"image": images, "meta": images.new_ones(len(images), 2)}, scale=2.0)
"""


def test_a_function_beside_the_builder_calls_a_network_of_several_inputs(code):
    write("net.py", PAIR)
    model = load_model("net.py:build")
    batch = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        outputs = model.module({"image": batch, "meta": torch.ones(2, 2)}, scale=2.0)["logits"]
        assert torch.equal(model.forward(model.module, batch)["logits"], outputs)
    with fmapviz.capture(model.module) as maps:
        model.forward(model.module, batch)
    found = fmapviz.cam(model, batch, target=[1, 2])
    assert (found.layer, found.target) == ("conv", (1, 2))
    torch.testing.assert_close(found.score, outputs[[0, 1], [1, 2]])
    summary, _ = run("net.py:build", code, views=["maps", "gradcam"], workers=3)  # in threads, each with its replica
    assert (summary.done, summary.failed) == (1, 0)
    assert [layer.name for layer in list_layers("net.py:build")] == ["conv"]
    assert list_layers("net.py:Pair")[0].shape == (4, 222, 222)  # of the meta device
    assert fmapviz.receptive_field("net.py:build")["conv"].size == (3, 3)
    assert maps["conv"].shape == (2, 4, 14, 14)


def test_a_changed_call_is_another_network(code):
    write("net.py", PAIR)
    before = load_model("net.py:build").sha256
    write("net.py", PAIR.replace("scale=2.0", "scale=3.0"))
    assert load_model("net.py:build").sha256 != before


def test_a_network_that_takes_a_batch_may_have_a_call_function(code):
    write("net.py", CODE + "\ndef call(network, images):\n    return network(images.flip(3))\n")
    model = load_model("net.py:build")
    batch = torch.rand(1, 3, 8, 9)
    with torch.no_grad():
        assert torch.equal(model.forward(model.module.eval(), batch), model.module(batch.flip(3)))


@pytest.mark.parametrize("signature", ["network", "network, images, extra", "*, network, images", ""])
def test_a_call_function_of_another_signature_is_refused_before_the_builder_runs(signature):
    write("net.py", PAIR.replace("def call(network, images)", f"def call({signature})").replace("return Pair()", "1 / 0"))
    for load in (load_model, outline_model):
        with pytest.raises(RequestError, match="does not take a network and a batch of images") as caught:
            load("net.py:build")
        assert f"call({signature})" in str(caught.value)
        assert caught.value.hint == "def call(network, images): return network(images, ...)"


def test_other_objects_named_call_are_ignored():
    for other in ("from unittest.mock import call", "from subprocess import call", "call = 3", "class call: pass"):
        write("net.py", f"{CODE}\n{other}\n")
        assert load_model("net.py:build").forward is operator.call


def test_a_method_named_call_is_not_used():
    write("net.py", CODE.replace("    @classmethod", "    def call(self, images):\n        1 / 0\n\n    @classmethod"))
    assert load_model("net.py:build").forward is operator.call


def test_a_failing_call_function_has_its_traceback_in_the_failure(code):
    write("net.py", PAIR.replace("scale=2.0)", ")"))
    summary, _ = run("net.py:build", code)
    (failure,) = summary.failures
    assert failure.code == "E_MODEL"
    assert "missing 1 required positional argument: 'scale'" in failure.message
    assert "in call\n    return network(" in failure.report


# --- the preparation


PREPARED = """
from torchvision import transforms

preprocess = transforms.Compose([
    transforms.Resize((20, 24)), transforms.ToTensor(), transforms.Normalize([0.1, 0.2, 0.3], [0.5, 0.5, 0.25])])
classes = ["red", "green", "blue", "black", "white"]
"""


@pytest.mark.parametrize("place", ["module", "network", "method"])
def test_the_preprocessing_of_the_user_is_used(place):
    setting = {
        "module": "",
        "network": "net.transforms = preprocess; del preprocess\n",
        "method": "own = preprocess; del preprocess\nNet.preprocess = lambda self, picture: own(picture)\n",
    }[place]
    write(
        "net.py",
        CODE
        + PREPARED.replace("from torchvision import transforms", "from torchvision import transforms as T").replace(
            "transforms.", "T."
        )
        + setting,
    )
    model = load_model("net.py:net")
    picture = Image.open("red.png")
    prepared = model.preparation.apply(picture)
    assert prepared.shape == (3, 20, 24)
    level = torch.tensor([200, 30, 30]) / 255
    expected = (level - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.5, 0.5, 0.25])
    assert torch.allclose(prepared, expected[:, None, None].expand(3, 20, 24), atol=1e-5)
    assert model.classes == ("red", "green", "blue", "black", "white")


def test_options_override_the_preprocessing_of_the_user():
    write("net.py", CODE + PREPARED)
    model = load_model("net.py:net", preprocessing=InputOptions(size=(16, 16)))
    assert model.preparation.apply(Image.open("red.png")).shape == (3, 16, 16)


def test_a_part_of_the_network_is_no_preprocessing():
    write("net.py", CODE + "\nnet.preprocess = nn.Conv2d(3, 3, 1)\n")
    assert "crop to 224, bilinear" in load_model("net.py:net").preparation.description


def run(spec, tmp_path, **options):
    events = []
    summary = visualize(spec, "red.png", out=tmp_path / "out", to="png", on_event=events.append, **options)
    return summary, events


def test_a_failing_preprocessing_fails_the_image_with_the_reason(code):
    write(
        "net.py",
        CODE
        + "\ndef preprocess(picture):\n    return help_out(picture)\n"
        + "\ndef help_out(picture):\n    return picture.no_such_thing\n",
    )
    summary, _ = run("net.py:net", code)
    (failure,) = summary.failures
    assert failure.code == "E_PREPARE"
    assert "no_such_thing" in failure.message
    assert "in help_out" in failure.report
    assert "fmapviz" not in failure.report


def test_a_failing_forward_pass_has_its_traceback_in_the_failure(code):
    write("net.py", CODE + "\nclass Late(Net):\n    def forward(self, x):\n        return self.head(self.body(x))\n")
    summary, events = run("net.py:Late", code)
    (failure,) = summary.failures
    assert failure.code == "E_MODEL"
    assert "after layer 'body.1.0'" in failure.message
    assert "in forward\n    return self.head(self.body(x))" in failure.report
    assert str(Path(fmapviz.__file__).parent) not in failure.report  # a clone may be in a folder of that name
    row = json.loads((summary.directory / "failures.jsonl").read_text())
    assert row["report"] == failure.report
    assert [event.status for event in events if isinstance(event, Outcome)] == ["failed"]


# --- the command


@pytest.fixture
def command(fmapviz):
    def run(*arguments):
        done = fmapviz(*arguments, cwd=Path.cwd())
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def test_the_command_draws_a_network_of_user_code_and_reports_its_preprocessing(command):
    write("net.py", CODE + PREPARED)
    done = command("net.py:build(width=2)", "red.png", "--to", "png", "--json", "--name", "mine")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]  # the builder's word is not among them
    image = next(line for line in lines if line["event"] == "image")
    seen = image["predictions"]
    assert sorted(seen[0]) == ["class", "index", "logit", "probability", "score", "scores"]
    assert seen == json.loads(Path("runs/mine/red.png/unit.json").read_text())["predictions"]
    assert f"red.png: {seen[0]['class']} " in done.stderr
    assert (
        command("net.py:build(width=2)", "red.png", "--to", "png", "-q", "--name", "mine").stderr
        == "a word from the builder\n"
    )


def test_the_command_shows_a_traceback_of_the_users_code_once_and_exits_with_2(command):
    write("net.py", CODE + "\ndef broken():\n    raise KeyError('width')\n")
    failed = command("net.py:broken", "red.png")
    assert failed.returncode == 2
    assert failed.stderr.count("Traceback") == 1
    assert failed.stderr.endswith("KeyError: 'width'\nerror: 'net.py:broken' failed: KeyError: 'width'\n")
    wrong = command("net.py:build(width=os.getcwd())", "red.png")
    assert (wrong.returncode, wrong.stderr.count("Traceback")) == (2, 0)
    assert "not a literal" in wrong.stderr


@pytest.mark.thorough
def test_a_forward_pass_that_fails_for_every_image_shows_its_traceback_once(command):
    write("net.py", CODE + "\nclass Late(Net):\n    def forward(self, x):\n        return self.head(self.body(x))\n")
    Image.new("RGB", (40, 30)).save("black.png")
    failed = command("net.py:Late", "red.png", "black.png")
    assert failed.returncode == 4
    assert failed.stderr.count("Traceback") == 1
    assert failed.stderr.count("[E_MODEL]") == 2


@pytest.mark.thorough
def test_output_of_a_forward_pass_is_no_result_and_its_exit_is_a_failure(command, code):
    write(
        "net.py",
        CODE
        + PREPARED
        + """
class Prints(Net):
    def forward(self, x):
        print("a word", x.shape)
        return super().forward(x)

class Exits(Net):
    def forward(self, x):
        raise SystemExit(0)
""",
    )
    done = command("net.py:Prints", "red.png", "--scores", "softmax", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["run", "notice", "image", "summary"]
    assert "a word torch.Size" in done.stderr
    listed = command("layers", "net.py:Exits")
    assert (listed.returncode, listed.stdout) == (2, "")
    assert "SystemExit: 0" in listed.stderr
    assert listed.stderr.count("Traceback") == 1
    (failure,) = run("net.py:Exits", code)[0].failures
    assert failure.code == "E_MODEL"
    assert "SystemExit: 0" in failure.report


def test_lazy_layers_are_refused_with_the_remedy(code):
    write("net.py", "from torch import nn\ndef build():\n    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU())\n")
    for look in (lambda: load_model("net.py:build"), lambda: list_layers("net.py:build"), lambda: run("net.py:build", code)):
        with pytest.raises(RequestError, match="lazy layers") as caught:
            look()
        assert "torch.zeros(1, 3, 224, 224)" in caught.value.hint
    with Path("net.py").open("a", encoding="utf-8") as file:
        file.write("inputs = (1, 28, 28)\n")
    with pytest.raises(RequestError, match="lazy layers") as caught:
        load_model("net.py:build")
    assert "torch.zeros(1, 1, 28, 28)" in caught.value.hint


def test_options_that_replace_a_preprocessing_and_wrong_class_names_are_reported(code):
    write("net.py", CODE + PREPARED.replace('"red", ', ""))
    _, events = run("net.py:net", code, preprocessing=InputOptions(size=(16, 16)))
    told = " ".join(event.message for event in events if isinstance(event, Notice))
    assert "the input options replace the network" in told
    assert "4 class names for 5 outputs: the order of names and outputs is unknown" in told


def test_class_names_may_be_a_dictionary_of_numbers():
    write("net.py", CODE + "\nclasses = {4: 'e', 0: 'a', 1: 'b', 2: 'c', 3: 'd'}\n")
    assert load_model("net.py:net").classes == tuple("abcde")


def test_layers_are_listed_without_weights():
    rows = list_layers("net.py:build(width=6)")
    assert [(row.name, row.shape) for row in rows] == [("body.0.0", (6, 112, 112)), ("body.1.0", (12, 56, 56))]


def test_notices_about_weights_are_events(code):
    torch.save({f"model.{key}": value for key, value in load_model("net.py:net").module.state_dict().items()}, "net.pth")
    _, events = run("net.py:build", code, weights="net.pth")
    assert any("model." in event.message for event in events if isinstance(event, Notice))
