"""A format of the user is written of two networks if it takes any number of them."""

from image_files import paint

FORMATS = """
class Names:
    many = True

    def __init__(self, directory):
        self.file = open(directory / "names.txt", "w")

    def add(self, image, pictures):
        self.file.write(f"{image.key} {image.name} {len(pictures)}\\n")

    def close(self):
        self.file.close()


class Values:
    needs = "values"

    def __init__(self, directory):
        self.directory = directory

    def add(self, image, pictures):
        raise AssertionError
"""


def test_a_comparison_of_two_networks_writes_it(fmapviz, tmp_path):
    (tmp_path / "formats.py").write_text(FORMATS)
    paint(tmp_path / "0.png", size=(16, 16))
    compare = ("diff", "shapesnet", "0.png", "--against", "random", "--layers", "features.0.conv")
    result = fmapviz(*compare, "--to", "formats.py:Names", "--out", "out")
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "out").rglob("names.txt"))
    result = fmapviz(*compare, "--to", "formats.py:Values", "--out", "other")
    assert result.returncode == 2
    assert b"'Values' describes one network" in result.stderr
