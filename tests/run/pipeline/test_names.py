"""Names that macOS and Windows do not distinguish are distinguished by fmapviz, on every platform in the same way."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import paint

import fmapviz as package
from fmapviz.core.file_names import folded
from fmapviz.data import ImageFile
from fmapviz.errors import RefusedError
from fmapviz.run.pipeline.reader import Naming
from fmapviz.store.unit import read_unit
from fmapviz.store.verify import verify

parts = st.sampled_from(["a.jpg", "A.jpg", "a.JPG", "cats", "Cats", "é", "e\u0301", "É", "straße", "STRASSE"])
units = st.lists(parts, min_size=1, max_size=3).map("/".join)


def spellings(names):
    """Return how many spellings each directory has, by its folded path."""
    found = {}
    for name in names:
        for part in (name, *map(str, Path(name).parents)):
            found.setdefault(folded(part), set()).add(part)
    return {key: each for key, each in found.items() if len(each) > 1}


@pytest.mark.thorough
@settings(max_examples=40)
@given(st.lists(units, min_size=1, max_size=9, unique=True), st.integers(0, 3))
def test_no_two_directories_of_a_run_differ_in_case_or_normalization_alone(found, kept):
    with TemporaryDirectory() as directory:
        run = Path(directory)
        naming, names = Naming(run), []
        for number, unit in enumerate(found):
            file = naming.claim(ImageFile(f"/{number}/{unit}", unit, {}))
            names.append(file.unit)
            if number >= kept:  # an earlier one is finished by now
                (run / file.unit).mkdir(parents=True, exist_ok=True)
                naming.release(file)
            if number == len(found) // 2:
                for name in names:
                    (run / name).mkdir(parents=True, exist_ok=True)
                naming = Naming(run)  # another command continues
        assert not spellings(names)
        assert len({*names}) == len(names)


@pytest.fixture
def photos(tmp_path):
    """Images whose names differ in case or normalization alone, in one folder and in several."""
    names = [
        "A.png",
        "a.png",
        "Cats/x.png",
        "cats/x.png",
        "cats/y.png",
        normalize("NFC", "é.png"),
        normalize("NFD", "é.png"),
    ]
    for seed, name in enumerate(names):
        paint(tmp_path / "photos" / name, seed)
    return tmp_path / "photos", names


def draw(folder, out):
    options = {"weights": "random", "layers": "features.0", "to": "png", "out": out}
    return package.visualize("squeezenet1_1", folder, **options)


@pytest.mark.thorough
def test_images_whose_names_differ_in_case_alone_have_their_own_directories(photos, tmp_path):
    folder, names = photos
    first = draw(folder, tmp_path / "runs")
    assert (first.done, first.failed) == (len(names), 0)
    found = {path.parent.relative_to(first.directory).as_posix() for path in first.directory.rglob("unit.json")}
    assert not spellings(found)
    assert {read_unit(first.directory / each)["unit"]["path"] for each in found} == {str(folder / name) for name in names}
    assert {"A.png", "Cats/x.png"} <= found
    again = draw(folder, tmp_path / "runs")
    assert (again.done, again.skipped) == (0, len(names))
    assert not [problem for each in verify(first.directory) for problem in each.problems]


def test_a_run_is_found_by_any_spelling_of_its_name(photos, tmp_path):
    folder, _ = photos
    options = {"weights": "random", "layers": "features.0", "to": "png", "out": tmp_path / "runs"}
    first = package.visualize("squeezenet1_1", folder / "A.png", name="Cats", **options)
    again = package.visualize("squeezenet1_1", folder / "a.png", name="cats", **options)
    assert again.directory == first.directory
    with pytest.raises(RefusedError, match="Cats"):
        package.visualize("squeezenet1_1", folder / "a.png", name="CATS", **{**options, "layers": "features.3*"})
    assert json.loads((first.directory / "run.json").read_text())["settings"]["layers"] == ["features.0"]
