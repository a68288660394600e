"""A format of the user is written of two networks if it takes any number of them."""

import pytest
from image_files import paint
from own_formats import FORMATS


@pytest.mark.thorough
def test_a_comparison_of_two_networks_writes_an_own_format(fmapviz, tmp_path):
    (tmp_path / "formats.py").write_text(FORMATS)
    paint(tmp_path / "0.png", size=(16, 16))
    compare = ("diff", "shapesnet", "0.png", "--against", "random", "--layers", "features.0.conv")
    result = fmapviz(*compare, "--to", "formats.py:Many", "--out", "out")
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "out").rglob("names.txt"))
    result = fmapviz(*compare, "--to", "formats.py:Values", "--out", "other")
    assert result.returncode == 2
    assert b"'Values' describes one network" in result.stderr
