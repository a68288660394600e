"""A directory is the register of a family."""

from __future__ import annotations

import subprocess
import sys

import pytest
from extras import needs, needs_of
from waiting import PATIENCE

from fmapviz.core import registry
from fmapviz.errors import RequestError

FAMILIES = {"fmapviz.models.sources": "torchvision", "fmapviz.views": "maps", "fmapviz.formats": "png"}
MEMBERS = [
    pytest.param(package, name, marks=needs_of(package, name)) for package in FAMILIES for name in registry.names(package)
]


@pytest.fixture
def family(tmp_path, monkeypatch):
    """A package with members of many kinds."""
    package = tmp_path / "zoo_of_animals"
    package.mkdir()
    for name, content in {
        "__init__.py": "",
        "sea_lion.py": '"""Barks under water.\n\nAnd more."""\nnoise = "arf"\n',
        "ant.py": 'r"""Says \\nothing."""\n',
        "ant_pp.py": '"""Two ants, and a plus."""\nnoise = "pp"\n',
        "pp_bird.py": '"""Not two."""\n',
        "broken.py": '"""Cannot be imported."""\nraise RuntimeError\n',
        "_helper.py": "",
        "names.txt": "",
    }.items():
        (package / name).write_text(content, encoding="utf-8")
    (package / "__pycache__").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    yield package.name
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


@pytest.mark.parametrize(("package", "name"), FAMILIES.items())
def test_every_family_has_members(package, name):
    assert name in registry.names(package)
    assert registry.names(package) == sorted(registry.names(package))


@pytest.mark.parametrize(("package", "name"), MEMBERS)
def test_every_member_can_be_described_and_fetched(package, name):
    line = registry.describe(package, name)
    assert line.endswith(".")
    assert 10 < len(line) < 125
    registry.check(package, name)
    module = registry.fetch(package, name)
    assert module.__name__ == f"{package}.{name.replace('-', '_').replace('++', '_pp')}"
    assert module.__doc__.startswith(line)


def test_members_are_the_files_that_are_not_private(family):
    assert registry.names(family) == ["ant", "ant++", "broken", "pp-bird", "sea-lion"]


def test_a_member_is_described_without_importing_it(family):
    assert registry.describe(family, "sea-lion") == "Barks under water."
    assert registry.describe(family, "ant++") == "Two ants, and a plus."
    assert registry.describe(family, "broken") == "Cannot be imported."
    assert registry.describe(family, "ant") == r"Says \nothing."
    registry.check(family, "broken")
    assert f"{family}.sea_lion" not in sys.modules


def test_a_member_is_imported_when_it_is_asked_for(family):
    assert registry.fetch(family, "sea-lion").noise == "arf"
    assert registry.fetch(family, "ant++").noise == "pp"


@pytest.mark.parametrize(
    "name",
    ["sealion", "sea_lion", "ant-pp", "ant_pp", "ant+", "_helper", "__init__", "names", "../ant", "ant.py", "", "Ant"],
)
def test_nothing_else_is_a_member(family, name):
    for look_up in (registry.check, registry.fetch):
        with pytest.raises(RequestError) as caught:
            look_up(family, name)
        assert str(caught.value) == f"no such zoo_of_animal: '{name}'"
        assert caught.value.hint
    assert f"{family}.ant" not in sys.modules


@pytest.mark.parametrize(
    ("package", "name", "message", "hint"),
    [
        ("fmapviz.views", "mpas", "no such view: 'mpas'", "did you mean 'maps', 'pca', 'max'?"),
        ("fmapviz.formats", "tensorbord", "no such format: 'tensorbord'", "did you mean 'tensorboard'?"),
        ("fmapviz.formats", "zzz", "no such format: 'zzz'", f"there are: {', '.join(registry.names('fmapviz.formats'))}"),
        (
            "fmapviz.models.sources",
            "torchvison",
            "no such model source: 'torchvison'",
            "did you mean 'torchvision', 'python'?",
        ),
    ],
)
def test_an_unknown_member_is_an_error_with_the_nearest_ones(package, name, message, hint):
    with pytest.raises(RequestError) as caught:
        registry.check(package, name)
    assert (str(caught.value), caught.value.hint) == (message, hint)


@needs("timm", "timm")
def test_nothing_of_this_needs_torch():
    code = f"""
import sys
from fmapviz.core import registry
for package in {list(FAMILIES)}:
    for name in registry.names(package):
        registry.check(package, name)
        registry.describe(package, name)
assert not {{"torch", "torchvision", "numpy", "PIL"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
