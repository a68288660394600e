"""Former names of arguments of `Watch` are accepted with a warning."""

import pytest
import torch
from torch import nn

import fmapviz
from fmapviz.errors import ArgumentError


def test_watch_accepts_the_former_name_of_out(tmp_path):
    with pytest.warns(DeprecationWarning, match=r"^Watch\(\): to= is now out=$"):
        watch = fmapviz.Watch(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(3, 9, 9), to=tmp_path)
    assert watch.directory == tmp_path / "fmapviz"
    with pytest.raises(ArgumentError, match="both are given"):
        fmapviz.Watch(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(3, 9, 9), to=tmp_path, out=tmp_path)
