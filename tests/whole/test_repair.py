"""`verify` finds each kind of damage of each kind of file, and its remedies help."""

from __future__ import annotations

import random
import shutil
from itertools import product

import pytest
from cases import each_once, often
from faults import Scenario
from image_files import paint
from trees import difference, problems, snapshot

from fmapviz.config import Style
from fmapviz.errors import RefusedError

EVERYTHING = Scenario(
    {
        "to": ["tensorboard", "png", "html", "raw", "npz", "stats"],
        "views": ["maps", "pca", "kernels"],
        "style": Style(norm="run", pca="shared"),
    }
)
UNIT = (
    "unit.json",
    "input.png",
    "00_first.maps.png",
    "events.out.tfevents.fmapviz",
    "report.js",
    "pixels.js",
    "raw.safetensors",
)
UNIT += ("raw.npz", "stats.safetensors")
RUN = ("run.json", "products.json", "survey.json", "failures.jsonl", "index.html", "stats.csv", "stats.json", "stats.js")
FILES = [*RUN, *(f"net/more/0.png/{name}" for name in UNIT), "net/_model/unit.json", "net/_model/report.js"]
FILES = [name if "/" in name else f"net/{name}" for name in FILES]


def flip(path):
    data = bytearray(path.read_bytes())
    data[random.Random(path.name).randrange(len(data))] ^= 4
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut": cut,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "one bit flipped": flip,
    "other content": lambda path: path.write_bytes(b"{}"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of three images, of which one could not be read."""
    place = tmp_path_factory.mktemp("whole")
    for number, name in enumerate(("more/0.png", "1.png")):
        paint(place / "in" / name, number)
    (place / "in/damaged.png").write_bytes(b"no image")
    EVERYTHING.run(place / "in", place / "out")
    assert problems(place / "out") == []
    return place


def test_the_cases_cover_all_kinds_of_files(whole):
    kinds = {path.name for path in whole.glob("out/**/*") if path.is_file() and path.suffix != ".png"}
    assert {path.rpartition("/")[2] for path in FILES if not path.endswith(".png")} == kinds


# Each file in two ways, and two of them in every way.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "damage"), often(each_once(FILES, DAMAGES), of=product(FILES, DAMAGES)))
def test_each_damage_is_found_and_the_suggested_command_repairs_it(name, damage, whole, tmp_path):
    expected = snapshot(whole / "out")
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    DAMAGES[damage](out / name)
    found = problems(out)
    if name.endswith("failures.jsonl") and damage in {"missing", "emptied", "cut"}:
        # It is a log: what is not in it any more was not noted, but for the report, which tells of it.
        name = "net/products.json"
    assert {problem.path for problem in found} == {out / name}
    follow(found, whole / "in", out)
    assert difference(snapshot(out), expected) == []


def follow(found, inputs, out):
    """Follow the remedies until no problem is left."""
    for _ in range(3):
        (remedy,) = {problem.remedy for problem in found} or {"again"}
        if remedy == "remove":
            for path in {problem.path for problem in found}:
                path.unlink()
        else:
            EVERYTHING.run(inputs, out, repair=remedy == "repair", force=remedy == "redraw")
        found = problems(out)
    assert found == []


@pytest.mark.thorough
def test_all_run_level_files_may_be_missing(whole, tmp_path):
    expected = snapshot(whole / "out")
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    for name in ("products.json", "index.html", "stats.csv", "stats.json", "stats.js"):
        (out / "net" / name).unlink()
    found = problems(out)
    assert [(problem.path, problem.remedy) for problem in found] == [(out / "net/products.json", "again")]
    follow(found, whole / "in", out)
    assert difference(snapshot(out), expected) == []


def test_a_unit_of_another_run_and_a_copy_are_found(whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    EVERYTHING.run(whole / "in", out, views=["maps"], name="other")
    shutil.copytree(out / "other/1.png", out / "net/3.png")
    shutil.copytree(out / "other/1.png", out / "other/copy/1.png")
    assert [(problem.path, problem.message, problem.remedy) for problem in problems(out)] == [
        (out / "net/3.png", "belongs to a run with other settings", "remove"),
        (out / "other/copy/1.png", "the unit '1.png' under another name", "remove"),
    ]


def test_a_unit_directory_of_another_run_is_replaced(whole, tmp_path):
    expected = snapshot(whole / "out")
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    EVERYTHING.run(whole / "in", tmp_path / "others", views=["maps"], name="net")
    shutil.rmtree(out / "net/1.png")
    shutil.copytree(tmp_path / "others/net/1.png", out / "net/1.png")
    assert {problem.message for problem in problems(out)} == {"belongs to a run with other settings"}
    assert EVERYTHING.run(whole / "in", out).done == 1
    assert problems(out) == []
    assert difference(snapshot(out), expected) == []


def test_run_level_files_with_a_removed_unit_are_found(whole, tmp_path):
    expected = snapshot(whole / "out")
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    shutil.copytree(out / "net/1.png", out / "net/copy.png")
    EVERYTHING.run(whole / "in", out)
    shutil.rmtree(out / "net/copy.png")
    assert [(problem.path, problem.remedy) for problem in problems(out)] == [(out / "net/products.json", "again")]
    EVERYTHING.run(whole / "in", out)
    assert problems(out) == []
    assert difference(snapshot(out), expected) == []


def test_a_folder_in_a_files_place_is_refused(whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    (out / "net/1.png/input.png").unlink()
    (out / "net/1.png/input.png").mkdir()
    (out / "net/1.png/input.png/notes.txt").write_text("mine")
    with pytest.raises(RefusedError, match=r"input\.png' was not made by fmapviz"):
        EVERYTHING.run(whole / "in", out, repair=True)
    assert list((out / "net").glob(".*")) == []
    (problem,) = problems(out)
    assert (problem.path / "notes.txt").read_text() == "mine"
