"""The public names of the package."""

import ast
import dataclasses
import inspect
import pydoc
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fmapviz
from fmapviz.config import RunConfig
from fmapviz.images.find import path_hash, unit_name
from fmapviz.public_names import FORMER, HOMES, TYPES

NAMES = {*HOMES}


def test_every_public_name_exists_and_is_documented():
    for name in NAMES:
        assert getattr(fmapviz, name).__doc__, name
    assert set(dir(fmapviz)) > NAMES
    assert {name for name in dir(fmapviz) if not name.startswith("_")} == NAMES | {"errors", "events", "types"}


def test_help_begins_with_the_purpose_and_has_a_line_for_each_public_name(request):
    program = "import runpy, sys; sys.argv[1:] = ['fmapviz']; runpy.run_module('pydoc', run_name='__main__', alter_sys=True)"
    shown = request.getfixturevalue("fmapviz")("-c", program).stdout.decode()
    assert len(shown.splitlines()) <= 100
    assert shown.splitlines()[3] == "    fmapviz - See what every layer of a vision network computes."
    described = re.findall(r"^    (\w+) {2,}[A-Z].*\.$", fmapviz.__doc__, re.MULTILINE)
    assert sorted(described) == sorted(NAMES)
    assert max(map(len, shown.splitlines())) <= 130
    assert fmapviz.visualize.__doc__.splitlines()[0] in pydoc.render_doc(fmapviz.visualize, renderer=pydoc.plaintext)


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_is_accepted_with_a_warning_that_names_the_new_module(name):
    message = rf"^fmapviz\.{name} is now fmapviz\.{FORMER[name]}\.{name}$"
    with pytest.warns(DeprecationWarning, match=message) as told:
        value = getattr(fmapviz, name)
    assert told[0].filename == __file__
    assert value is getattr(getattr(fmapviz, FORMER[name]), name)
    assert value.__doc__


def test_the_former_name_of_model_names_is_accepted_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"^fmapviz\.known_names is now fmapviz\.model_names$"):
        assert fmapviz.known_names is fmapviz.model_names


@pytest.mark.parametrize(("module", "names"), [(fmapviz, NAMES | {"errors", "events", "types"}), (fmapviz.types, {*TYPES})])
def test_type_checkers_see_the_public_names(module, names):
    """They read the imports for types, each with its name as an alias."""
    tree = ast.parse(Path(module.__file__).read_text())
    conditional = [each for node in tree.body if isinstance(node, ast.If) for each in node.body]
    imported = [alias for each in conditional if isinstance(each, ast.ImportFrom) for alias in each.names]
    assert {alias.asname for alias in imported if alias.asname == alias.name} == names
    for each in conditional:
        for alias in each.names if isinstance(each, ast.ImportFrom) else ():
            if alias.asname in names - {"errors", "events", "types"}:
                assert getattr(module, alias.name) is getattr(import_module(each.module), alias.name)
    with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_the_parameters_of_visualize_are_those_of_the_configuration():
    parameters = inspect.signature(fmapviz.visualize).parameters
    assert [*parameters][:3] == ["model", "inputs", "weights"]
    assert {*parameters} == {field.name for field in dataclasses.fields(RunConfig)}
    assert parameters["to"].default == ("tensorboard",)
    described = inspect.getdoc(fmapviz.visualize)
    assert all(f"\n    {name}: " in described for name in parameters)
    assert "Default: None (square root of their number)." in fmapviz.Style.__doc__
    assert re.findall(r"^\w+:$", described, re.MULTILINE) == ["Args:", "Returns:", "Raises:", "Example:"]
    assert re.findall(r"^\w+:$", inspect.getdoc(fmapviz.Style), re.MULTILINE) == ["Attributes:", "Raises:", "Example:"]
    assert max(map(len, described.partition("Example:")[0].splitlines())) <= 72  # 76 with the indentation of pydoc
    with pytest.raises(TypeError, match="layrs"):
        fmapviz.visualize("alexnet", layrs="x")


def test_a_style_prints_its_differences_from_the_default():
    assert repr(fmapviz.Style()) == "Style()"
    assert repr(fmapviz.Style(norm="layer", scale=2)) == "Style(norm='layer', scale=2)"
    assert repr(fmapviz.InputOptions(size=(8, 9))) == "InputOptions(size=(8, 9))"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fmapviz.nonsense


def test_importing_the_package_loads_no_torch():
    code = "import fmapviz, sys; fmapviz.Style(); fmapviz.model_names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_has_the_name_of_a_public_function():
    """Importing the module would replace the function."""
    modules = {path.stem for path in (__import__("pathlib").Path(fmapviz.__file__).parent).glob("*.py")}
    assert not modules & NAMES


def test_a_picture_shows_itself_in_a_notebook():
    picture = fmapviz.types.Picture("maps", "00 features.0", b"\x89PNG", 1, 1, {})
    assert picture._repr_png_() == b"\x89PNG"


def test_tile_takes_one_image_or_several():
    maps = torch.randn(2, 5, 4, 3)
    both = fmapviz.tile(maps)
    assert torch.equal(fmapviz.tile(maps[1]), both[1])


def test_tile_takes_feature_maps_arrays_and_lists():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3))
    with fmapviz.capture(net) as captured:
        net(torch.randn(2, 3, 8, 9))
    values = captured["0"].values
    grids = fmapviz.tile(values)
    array = values.numpy()
    for maps in (captured["0"], array, [*values], [*array], (values[:1], values[1:]), [captured["0"]]):
        assert torch.equal(fmapviz.tile(maps), grids)
    assert torch.equal(fmapviz.tile([*values[0]]), grids[0])  # channels
    for view in (array[:, :, ::-1][:, :, ::-1], array.astype(">f4"), np.broadcast_to(array, array.shape)):
        assert torch.equal(fmapviz.tile(view), grids)
    before = array.copy()
    fmapviz.tile(array, fmapviz.Style(norm="layer"))
    assert np.array_equal(array, before)


@pytest.mark.parametrize(
    ("maps", "message", "hint"),
    [
        (Image.new("RGB", (4, 4)), "maps must be a tensor, not 'Image'", "fmapviz.cam take pictures"),
        ([torch.zeros(3, 4, 4), torch.zeros(3, 5, 5)], "maps of different shapes", "draw each alone"),
        ([], "maps must be a tensor, not 'list'", "fmapviz.capture"),
        ([torch.zeros(3, 4, 4), "x"], "maps must be a tensor, not 'str'", "fmapviz.capture"),
        (np.array(["a"]), "maps must be an array of numbers, not of '<U1'", "fmapviz.capture"),
        (np.zeros((2, 4, 4), complex), "maps must be real", "fmapviz.capture"),
    ],
)
def test_tile_refuses_other_values_with_a_hint(maps, message, hint):
    with pytest.raises(fmapviz.errors.RequestError, match=message) as caught:
        fmapviz.tile(maps)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "maps", [torch.zeros(4, 4), torch.zeros(0, 4, 4), torch.zeros(1, 2, 3, 4, 5), torch.zeros(2, 4, 4) * 1j]
)
def test_tile_refuses_tensors_that_are_no_maps(maps):
    with pytest.raises(fmapviz.errors.RequestError, match="maps must be real"):
        fmapviz.tile(maps)


@pytest.mark.parametrize("name", ['q"uote.png', "back\\slash.png"])
def test_names_of_units_avoid_characters_that_tensorboard_cannot_show(name):
    unit = unit_name(name, f"/pictures/{name}")
    assert not set(unit) & {'"', "\\"}
    assert unit.endswith(f"~{path_hash(f'/pictures/{name}')}")
