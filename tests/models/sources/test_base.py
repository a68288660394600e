"""The folder of sources is the registry: a file in it is a source, and no other module knows its name."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest
import torch
from extras import needs_of
from torch import nn

import fmapviz
from fmapviz.core import registry
from fmapviz.core.registry import SOURCES
from fmapviz.errors import RequestError
from fmapviz.models import load
from fmapviz.models.sources.base import ModelSource

ALL = registry.names(SOURCES)
INSTALLED = [pytest.param(source, marks=needs_of(SOURCES, source)) for source in ALL]
PACKAGE = Path(fmapviz.__file__).parent
CONSTANTS = {"NAMES", "SPELLING", "IS_CODE", "TAKES_ARGUMENTS", "REQUIRES"}

SOURCE = '''"""Networks of one convolution."""

from torch import nn

from fmapviz.models.network import describe_network
from fmapviz.models.weights.fit import load_weights

SPELLING = r"tiny:\\d+"


def known_names():
    return ["4", "8"]


def load(name, *, weights, options):
    loaded = load_weights("random" if weights == "default" else weights, lambda: nn.Conv2d(3, int(name), 3))
    return describe_network(loaded, name=f"tiny:{name}", options=options, code=None)
'''


@pytest.mark.parametrize("source", INSTALLED)
def test_a_source_has_the_functions_of_the_protocol(source):
    module = registry.fetch(SOURCES, source)
    wanted = {name: member for name, member in vars(ModelSource).items() if inspect.isfunction(member) and name[0] != "_"}
    assert sorted(wanted) == ["load"]
    for name, member in wanted.items():
        signature = inspect.signature(member)
        parameters = [each for each in signature.parameters.values() if each.name != "self"]
        assert inspect.signature(getattr(module, name)) == signature.replace(parameters=parameters)


@pytest.mark.parametrize("source", INSTALLED)
def test_the_constants_of_a_source_are_read_without_importing_it(source):
    module = registry.fetch(SOURCES, source)
    for constant in CONSTANTS & vars(module).keys():
        assert registry.constant(SOURCES, source, constant) == str(getattr(module, constant))
    assert not (hasattr(module, "NAMES") and hasattr(module, "known_names"))  # the latter would not be called


def test_a_file_in_the_folder_is_all_that_a_source_needs(tmp_path, monkeypatch):
    folder = tmp_path / "sources_of_one_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "tiny.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(load, "SOURCES", folder.name)
    try:
        load.check_name("tiny:4")
        assert load.known_names("tiny:*") == ["tiny:4", "tiny:8"]
        model = load.load_model("tiny:4")
        assert (model.name, model.module.out_channels) == ("tiny:4", 4)
        assert load.outline_model("tiny:8").module.weight.is_meta
        with pytest.raises(RequestError, match="no such model"):
            load.check_name("tiny:x")
    finally:
        for name in [name for name in sys.modules if name.startswith(folder.name)]:
            del sys.modules[name]
    assert isinstance(model.module, nn.Module)
    assert model.module(torch.zeros(1, 3, 8, 8)).shape == (1, 4, 6, 6)


def _strings(path):
    tree = ast.parse(path.read_bytes())
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    yield from (alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)


def test_no_central_module_names_a_source():
    central = [
        *(path for path in PACKAGE.glob("cli/*.py") if path.name != "guide.py"),  # a page has the name of a source
        PACKAGE / "models/load.py",
        PACKAGE / "models/user_code.py",
        PACKAGE / "core/registry.py",
    ]
    own = {*ALL} - {"torchvision", "python"}  # a library that `cli.process` imports, and the language of code in the guide
    for path in central:
        found = [each for each in _strings(path) if each in own or each.startswith(f"{SOURCES}.")]
        assert [each for each in found if not each.endswith(".base")] == [], path
