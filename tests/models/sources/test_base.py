"""The catalogue lists the sources; no other module has their names."""

from __future__ import annotations

import sys

import pytest
import torch
from sources import check_protocol
from torch import nn

from fmapviz.core import registry
from fmapviz.errors import RequestError
from fmapviz.models import load

IMPORTED_LATE = {"timm", "hf", "ultralytics"}  # their packages take seconds to import: their own tests check them

SOURCE = '''"""Networks of one convolution."""

from torch import nn

from fmapviz.core.members import Contribution, Source
from fmapviz.models.network import describe_network
from fmapviz.models.weights.fit import load_weights

CONTRIBUTION = Contribution(
    sources=(Source(name="tiny", help="Networks of one convolution.", spelling=r"tiny:\\d+", module=__name__),)
)


def model_names():
    return ["4", "8"]


def load(name, *, weights, preprocessing):
    loaded = load_weights("random" if weights == "default" else weights, lambda: nn.Conv2d(3, int(name), 3))
    return describe_network(loaded, name=f"tiny:{name}", preprocessing=preprocessing, code=None)
'''


@pytest.mark.parametrize("name", sorted(registry.sources().keys() - IMPORTED_LATE))
def test_a_source_has_the_functions_of_the_protocol(name):
    check_protocol(name)


def test_a_source_needs_only_a_module_and_a_line_of_the_catalogue(tmp_path, monkeypatch):
    name = "sources_of_one_test"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "PACKAGES", (*registry.PACKAGES, name))
    forget()
    try:
        load.check_name("tiny:4")
        assert load.model_names("tiny:*") == ["tiny:4", "tiny:8"]
        model = load.load_model("tiny:4")
        assert (model.name, model.module.out_channels) == ("tiny:4", 4)
        assert load.outline_model("tiny:8").module.weight.is_meta
        with pytest.raises(RequestError):
            load.check_name("tiny:x")
    finally:
        sys.modules.pop(name, None)
        monkeypatch.undo()
        forget()
    assert isinstance(model.module, nn.Module)
    assert model.module(torch.zeros(1, 3, 8, 8)).shape == (1, 4, 6, 6)


def forget():
    """Read the catalogue again."""
    registry.contributions.cache_clear()
    registry.sources.cache_clear()
