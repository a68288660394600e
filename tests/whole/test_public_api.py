"""The package as it is imported."""

import subprocess
import sys

import pytest
import torch

import fmapviz
from fmapviz.inputs import path_hash, unit_name


def test_every_public_name_is_there_and_documented():
    for name in fmapviz.__all__:
        assert getattr(fmapviz, name).__doc__, name
    assert set(fmapviz.__all__) <= set(dir(fmapviz))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fmapviz.nonsense


def test_importing_the_package_loads_no_torch():
    code = "import fmapviz, sys; fmapviz.Style(); fmapviz.known_names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_bears_the_name_of_a_public_function():
    """Python would hand out the module where the function is wanted."""
    modules = {path.stem for path in (__import__("pathlib").Path(fmapviz.__file__).parent).glob("*.py")}
    assert not modules & set(fmapviz.__all__)


def test_a_picture_shows_itself_in_a_notebook():
    picture = fmapviz.Picture("maps", "00 features.0", b"\x89PNG", 1, 1, {})
    assert picture._repr_png_() == b"\x89PNG"


def test_tile_takes_one_image_or_several():
    maps = torch.randn(2, 5, 4, 3)
    both = fmapviz.tile(maps)
    assert torch.equal(fmapviz.tile(maps[1]), both[1])


@pytest.mark.parametrize(
    "maps", [torch.zeros(4, 4), torch.zeros(0, 4, 4), torch.zeros(1, 2, 3, 4, 5), torch.zeros(2, 4, 4) * 1j]
)
def test_tile_refuses_what_is_no_maps(maps):
    with pytest.raises(fmapviz.RequestError, match="no maps"):
        fmapviz.tile(maps)


@pytest.mark.parametrize("name", ['q"uote.png', "back\\slash.png"])
def test_units_have_no_name_of_which_tensorboard_shows_no_pictures(name):
    unit = unit_name(name, f"/pictures/{name}")
    assert not set(unit) & {'"', "\\"}
    assert unit.endswith(f"~{path_hash(f'/pictures/{name}')}")
