"""Former names of arguments of `Watch` and of the trainers' callbacks are accepted with a warning."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

import fmapviz
from fmapviz.errors import ArgumentError

STAR = Path(__file__).parents[3] / "sample_images" / "shapes" / "star.jpg"
CALLBACKS = [("lightning", "FeatureMaps"), ("transformers", "FeatureMapsCallback")]


def test_watch_takes_its_directory_by_the_former_name(tmp_path):
    with pytest.warns(DeprecationWarning, match=r"^Watch\(\): to= is now out=$"):
        watch = fmapviz.Watch(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(3, 9, 9), to=tmp_path)
    assert watch.directory == tmp_path / "fmapviz"
    with pytest.raises(ArgumentError, match="both are given"):
        fmapviz.Watch(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(3, 9, 9), to=tmp_path, out=tmp_path)


@pytest.mark.parametrize(("module", "name"), CALLBACKS)
@pytest.mark.filterwarnings("ignore:::(?!fmapviz|test)")  # of other packages
def test_a_callback_takes_its_directory_by_the_former_name(module, name, tmp_path):
    pytest.importorskip(module)
    callback = getattr(importlib.import_module(f"fmapviz.integrations.{module}"), name)
    with pytest.warns(DeprecationWarning, match=rf"^{name}\(\): to= is now out=$"):
        callback(STAR, to=tmp_path)
    with pytest.raises(ArgumentError, match="both are given"):
        callback(STAR, to=tmp_path, out=tmp_path)
