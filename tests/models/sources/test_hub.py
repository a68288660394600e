"""Entries of torch.hub, in a cache made here; nothing is downloaded."""

from __future__ import annotations

import socket
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fmapviz.errors import RequestError, UserCodeError, WeightsError
from fmapviz.models.load import load_model, model_names, outline_model
from fmapviz.run.loop import visualize

CONF = """
dependencies = ["torch"]
import torch
from torch import hub, nn
from parts import head

open(__file__ + ".ran", "a").close()
classes = ["cat", "dog"]


def tiny(pretrained=True, width=4):
    net = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(width))
    if pretrained:
        net.load_state_dict(hub.load_state_dict_from_url("https://example.org/tiny.pth"))
    return net


def broken():
    raise ValueError("no such thing")


def nothing():
    return 3


def _helper():
    pass
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one repository and the weights of its entry."""
    folder = tmp_path / "hub" / "some_nets_main"
    folder.mkdir(parents=True)
    (folder / "hubconf.py").write_text(CONF)
    (folder / "parts.py").write_text("from torch import nn\n\ndef head(width):\n    return nn.Linear(width, 2)\n")
    (tmp_path / "hub" / "checkpoints").mkdir()
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", None)
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    yield folder
    sys.modules.pop("parts", None)


def weights(cache, width=4):
    torch.manual_seed(3)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3),
        torch.nn.Identity(),
        torch.nn.Identity(),
        torch.nn.Identity(),
        torch.nn.Linear(width, 2),
    )
    return net.state_dict()


def test_an_entry_is_built_with_its_cached_weights_and_drawn(cache, tmp_path):
    torch.save(weights(cache), cache.parent / "checkpoints" / "tiny.pth")
    for name in ("hub:some/nets:tiny", "hub:some/nets:main:tiny"):
        model = load_model(name)
        assert torch.equal(model.module[0].weight, weights(cache)["0.weight"])
        assert (model.name, model.classes, len(model.sha256)) == (name, ("cat", "dog"), 64)
    picture = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(picture)
    summary = visualize("hub:some/nets:tiny", picture, to="png", out=tmp_path / "out")
    assert (summary.done, summary.layers) == (1, 1)


def test_weights_that_are_not_cached_are_not_downloaded(cache):
    with pytest.raises(WeightsError, match=r"needs 'https://example\.org/tiny\.pth', which is not in torch\.hub's cache"):
        load_model("hub:some/nets:tiny")
    assert torch.hub.download_url_to_file.__module__ == "torch.hub"
    first, again, other = (load_model("hub:some/nets:tiny", weights=f"random:{seed}") for seed in (1, 1, 2))
    assert torch.equal(first.module[0].weight, again.module[0].weight)
    assert not torch.equal(first.module[0].weight, other.module[0].weight)


def test_arguments_and_a_file_of_weights_are_accepted(cache, tmp_path):
    assert load_model("hub:some/nets:tiny(width=6)", weights="random").module[0].out_channels == 6
    torch.save(weights(cache, 6), tmp_path / "own.pth")
    model = load_model("hub:some/nets:tiny(width=6)", weights=str(tmp_path / "own.pth"))
    assert torch.equal(model.module[0].weight, weights(cache, 6)["0.weight"])
    assert outline_model("hub:some/nets:tiny").module[0].weight.is_meta
    with pytest.raises(RequestError, match=r"cannot call .*/hubconf\.py:tiny this way"):
        load_model("hub:some/nets:tiny(depth=6)", weights="random")


def test_changed_code_of_an_entry_is_another_model(cache):
    before = load_model("hub:some/nets:tiny", weights="random").sha256
    (cache / "hubconf.py").write_text(CONF + "\n# another\n")
    assert load_model("hub:some/nets:tiny", weights="random").sha256 != before


def test_an_entry_that_is_not_cached_is_an_error_with_the_command_that_caches_it(cache):
    with pytest.raises(RequestError, match=r"is not in torch\.hub's cache") as caught:
        load_model("hub:facebookresearch/dinov2:dinov2_vits14")
    assert 'python -c \'import torch; torch.hub.load("facebookresearch/dinov2", "dinov2_vits14")\'' in caught.value.hint
    with pytest.raises(RequestError, match=r"'some/nets:v2' is not in torch\.hub's cache"):
        load_model("hub:some/nets:v2:tiny")
    assert not (cache / "hubconf.py.ran").exists()


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("hub:some/nets:tny", "no entry 'tny'", "'tiny'"),
        ("hub:some/nets", "not an entry of torch.hub", "some/nets:tiny"),
        ("hub:../x:y", "not an entry of torch.hub", "hub:OWNER"),
        ("hub:some/nets:_helper", "no entry '_helper'", ""),
        ("hub:some/nets:nothing", "returned an object of type int", "tiny"),
    ],
)
def test_a_wrong_name_is_an_error_with_a_hint(cache, name, message, hint):
    with pytest.raises(RequestError, match=message) as caught:
        load_model(name)
    assert hint in caught.value.hint


def test_a_failure_of_an_entrys_code_has_its_traceback(cache):
    with pytest.raises(UserCodeError, match="no such thing") as caught:
        load_model("hub:some/nets:broken")
    assert "hubconf.py" in caught.value.report


def test_names_are_listed_without_running_anything(cache):
    assert model_names("hub:*tiny") == ["hub:some/nets:tiny"]
    assert not (cache / "hubconf.py.ran").exists()
