"""Surveyed images are drawn from kept outputs, as if they went through the network again."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from image_files import save_pixels
from tiny_runs import AS_IT_IS, runner
from torch import nn
from trees import difference

from fmapviz.config import Style
from fmapviz.run.kept_passes import KeptPass, KeptPasses
from fmapviz.types import FeatureMap, Layer

RUNS = {
    "norm run": {"style": Style(norm="run")},
    "shared components": {"views": ["pca", "maps"], "style": Style(pca="shared")},
    "clusters": {"views": "clusters", "style": Style(clusters=3)},
    "similarity": {"views": "similarity", "style": Style(anchor="0.png:3,3")},
    "statistics too": {"to": ["png", "stats", "raw"], "style": Style(norm="run")},
}


class Net(nn.Module):
    """Overwrites what its first layer returns, and calls its second one twice."""

    passes = 0

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.unused = nn.Conv2d(6, 6, 3)

    def forward(self, x):
        Net.passes += 1
        x = nn.functional.relu_(self.first(x))
        return self.second(self.second(x)).mean((2, 3))


@pytest.fixture
def folder(tmp_path):
    for seed in range(5):
        save_pixels(
            tmp_path / "in" / f"{seed}.png", np.random.default_rng(seed).integers(0, 256, (16, 20, 3)).astype(np.uint8)
        )
    (tmp_path / "in" / "again.png").write_bytes((tmp_path / "in" / "0.png").read_bytes())
    (tmp_path / "in" / "damaged.png").write_bytes(b"no picture")
    return tmp_path / "in"


@pytest.fixture
def look(tmp_path):
    return runner(Net, out=tmp_path / "out", preprocessing=AS_IT_IS, workers=1, batch_size=1, to=["png"])


def contents(summary):
    files = (path for path in sorted(summary.directory.rglob("*")) if path.is_file() and path.name != "failures.jsonl")
    return {str(path.relative_to(summary.directory)): path.read_bytes() for path in files}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("most", [512 * 2**20, 100_000])
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_kept_passes_have_the_files_of_a_second_pass(options, most, folder, look, monkeypatch):
    monkeypatch.setattr("fmapviz.features.tokens.survey.first_pass.KeptPasses", partial(KeptPasses, 0))
    Net.passes = 0
    expected, before = look([folder], **options, out=folder.parent / "twice"), Net.passes
    monkeypatch.setattr("fmapviz.features.tokens.survey.first_pass.KeptPasses", partial(KeptPasses, most))
    Net.passes = 0
    found = look([folder], **options, out=folder.parent / "once")
    assert difference(contents(found), contents(expected)) == []
    assert found.not_executed == expected.not_executed == ("unused",)
    spared = 6 if most > 100_000 else 2  # of 43 kB each
    spared = min(spared, 1) if "anchor" in str(options) and options["style"].anchor else spared
    assert before - Net.passes >= spared


def test_passes_are_kept_up_to_a_limit():
    layer = Layer("first", "Conv2d", nn.Conv2d(1, 1, 1))
    passes, images = KeptPasses(2000), torch.randn(4, 1, 10, 10)

    def keep(batch):
        made = KeptPass()
        made.add(FeatureMap(layer, "first", 1, 0, batch * 2))
        passes.keep(batch, made, [()] * len(batch))

    keep(images[:2])
    keep(images[:2])  # the same again takes no room
    keep(images[2:3])
    assert passes.has_room
    assert passes.find(images[0]) is None  # the survey is not over
    keep(images[3:])
    keep(torch.randn(1, 1, 20, 20))
    assert not passes.has_room
    passes.end()
    for image in images:
        assert torch.equal(passes.find(image).feature_maps[0].values[0], image * 2)
    assert passes.find(torch.zeros(1, 10, 10)) is None


def test_passes_that_cannot_be_copied_are_not_kept():
    made = KeptPass()
    layer = Layer("first", "Conv2d", nn.Conv2d(1, 1, 1))
    made.add(FeatureMap(layer, "first", 1, 0, torch.ones(1, 2, 3, 3)))
    made.give_up()
    made.add(FeatureMap(layer, "third", 1, 2, torch.ones(1, 2, 3, 3)))
    passes, image = KeptPasses(), torch.ones(1, 3, 3)
    passes.keep(image[None], made, [()])
    passes.end()
    assert passes.find(image) is None
    assert not made.feature_maps
