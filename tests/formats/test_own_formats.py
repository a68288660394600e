"""Own formats write files of units like formats of the catalogue; an error is a failure of its image."""

from __future__ import annotations

import csv
import errno
import json

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from image_files import paint
from own_formats import FORMATS
from tiny_runs import SAID, runner
from torch import nn

from fmapviz.errors import OutputError, RequestError, UserCodeError
from fmapviz.store.remove import check_removable, remove_run
from fmapviz.store.verify import verify


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU())


run = runner(network, preprocessing=SAID)
CSV = """
import csv
from pathlib import Path

class Csv:
    needs = "pictures", "values", "measures"

    def __init__(self, directory):
        assert isinstance(directory, Path) and directory.is_dir()
        self.file = open(directory / "layers.csv", "w", newline="")
        self.rows = csv.writer(self.file)

    def add(self, image, pictures):
        for layer in image.result.layers:
            row = [image.name, layer.layer, layer.type, layer.shape, layer.values.array.mean()]
            self.rows.writerow([*row, layer.statistics.mean, layer.measures.std.shape])
        for picture in pictures:
            assert picture.png.startswith(b"\\x89PNG")
            self.rows.writerow([image.name, picture.file_name])

    def close(self):
        self.file.close()
"""
# A method of a format that fails for the image `1.png`, and the message.
BAD = {
    "add": ("raise ValueError('of mine')", "ValueError: of mine (bad.py, line 6)"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3 (bad.py, line 6)"),
    "missing": ("open(self.directory / 'input.png')", "input.png' (bad.py, line 6)"),
    "elsewhere": ("raise OSError(28, 'No space left on device', '/mnt/x')", "'/mnt/x' (bad.py, line 6)"),
    "folder": ("(self.directory / 'folder').mkdir()", "made 'folder' in the directory"),
    "link": ("(self.directory / 'link').symlink_to('/')", "made 'link' in the directory"),
    "hidden": ("(self.directory / '.hidden').write_text('')", "made '.hidden' in the directory"),
    "record": ("(self.directory / 'unit.json').write_text('{}')", "made 'unit.json' in the directory"),
    "close": ("self.close = lambda: 1 / 0", "ZeroDivisionError: division by zero (bad.py, line 6)"),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "formats.py").write_text(FORMATS + CSV)
    for number in range(3):
        paint(tmp_path / f"{number}.png", number, (16, 16))
    return tmp_path


def problems(directory):
    return [problem for each in verify(directory) for problem in each.problems]


def names(directory):
    return {path.name for path in directory.iterdir()}


def test_an_own_format_receives_what_it_declares(place):
    summary = run("0.png", to="formats.py:Csv,formats.py:Values,png")
    unit = summary.directory / "0.png"
    with (unit / "layers.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert [row[:4] for row in rows[:2]] == [
        ["0.png", "0", "Conv2d", "(4, 16, 16)"],
        ["0.png", "2", "Conv2d", "(6, 7, 7)"],
    ]
    for row in rows[:2]:
        assert np.isclose(float(row[4]), float(row[5]), atol=1e-6)
    assert {row[1] for row in rows[2:]} == {name for name in names(unit) if name.endswith(".png")}
    assert (unit / "values.txt").read_text() == "2"
    assert {entry["name"] for entry in json.loads((unit / "unit.json").read_bytes())["files"]} == names(unit) - {"unit.json"}
    assert run("0.png", to="formats.py:Csv,formats.py:Values,png").skipped == 1
    assert problems(summary.directory) == []
    (unit / "layers.csv").write_text("")
    assert [problem.path.name for problem in problems(summary.directory)] == ["layers.csv"]


def test_a_run_with_files_of_an_own_format_is_removed(place):
    directory = run("0.png", to="formats.py:Csv").directory
    assert names(directory / "0.png") == {"layers.csv", "unit.json"}
    check_removable(directory)
    remove_run(directory)
    assert not directory.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "kind", ["add", "exits", "missing", "elsewhere", "folder", "close", *thorough("link", "hidden", "record")]
)
def test_an_image_on_which_an_own_format_fails_fails_alone(kind, place):
    code, said = BAD[kind]
    (place / "bad.py").write_text(
        "class Bad:\n    def __init__(self, directory):\n        self.directory = directory\n"
        "    def add(self, image, pictures):\n        if image.name == '1.png':\n"
        f"            {code}\n        (self.directory / 'x.txt').write_text('x')\n"
    )
    summary = run(["0.png", "1.png", "2.png"], to="bad.py:Bad,png", on_event=print)
    assert (summary.done, summary.failed, summary.exit_code) == (2, 1, 3)
    (failure,) = summary.failures
    assert failure.code == "E_CODE"
    assert said in failure.message
    assert failure.path.endswith("1.png")
    assert {path.name for path in summary.directory.iterdir() if path.is_dir()} == {"0.png", "2.png"}
    assert problems(summary.directory) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("code", "said"),
    {
        f"raise OSError({errno.ENOSPC}, 'No space left on device')": "No space left",
        f"raise OSError({errno.EROFS}, 'Read-only file system', str(self.directory / 'x'))": "Read-only",
        "shutil.rmtree(self.directory); open(self.directory / 'x', 'w')": "No such file",  # as another command may
    }.items(),
)
def test_a_failure_of_the_output_ends_the_run(code, said, place):
    (place / "full.py").write_text(
        "import shutil\nclass Full:\n    def __init__(self, directory): self.directory = directory\n"
        f"    def add(self, image, pictures):\n        {code}\n"
    )
    with pytest.raises(OutputError, match=f"cannot write to .*: {said}"):
        run("0.png", to="full.py:Full")


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_shards_accept_an_own_format_that_declares_it(place):
    with pytest.raises(RequestError, match="'Csv' does not support shards") as caught:
        run(["0.png", "1.png", "2.png"], to="formats.py:Csv", shard=2)
    assert "many = True" in caught.value.hint
    assert not (place / "runs").exists()
    directory = run(["0.png", "1.png", "2.png"], to="formats.py:Many,tar", shard=2).directory
    written = [path.read_text().splitlines() for path in sorted(directory.glob("shard-*/names.txt"))]
    assert written == [["0 0.png 3", "1 1.png 3"], ["2 2.png 3"]]
    assert problems(directory) == []
    (place / "formats.py").write_text(FORMATS.replace("{image.key}", "{1 / 0}"))
    with pytest.raises(UserCodeError, match="the format Many failed: ZeroDivisionError"):
        run(["0.png"], to="formats.py:Many", shard=2, name="other")


WRONG = """
number = 5
class NoAdd:
    def __init__(self, directory): pass
class NoDirectory:
    def add(self, image, pictures): pass
class Add:
    def __init__(self, directory): pass
    def add(self, image): pass
class Needs(Add):
    needs = "everything"
    def add(self, image, pictures): pass
class Several(Needs):
    needs = "pictures"
    many = 3
class png(Needs): pass
class maps(Needs): pass
"""
REFUSED = {
    "wrong.py:number": "is no format, but of type int",
    "wrong.py:NoAdd": "it has no method add",
    "wrong.py:NoDirectory": "it is called as NoDirectory(directory)",
    "wrong.py:Add": "it is called as Add.add(image, pictures)",
    "wrong.py:Needs": "Needs.needs is ('everything',)",
    "wrong.py:Several": "Several.many is 3",
    "wrong.py:png": "there is a format of the name 'png'",
    "wrong.py:maps": "there is a view of the name 'maps'",
    "wrong.py:Cvs": "no 'Cvs'",
    "wrong.py": "type one of wrong.py:NoAdd",
    "none.py:Csv": "no such file",
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_value_that_is_no_format_is_refused_before_anything_is_written(form, place):
    (place / "wrong.py").write_text(WRONG)
    with pytest.raises(RequestError) as caught:
        run("0.png", to=f"png,{form}")
    assert REFUSED[form] in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint
    assert not (place / "runs").exists()


def test_an_own_format_in_python_is_a_class_or_a_function(place):
    made = []

    class Names:
        def __init__(self, directory, suffix=".txt"):
            self.file = directory / f"names{suffix}"

        def add(self, image, pictures):
            made.append(image.name)
            self.file.write_text("\n".join(picture.file_name for picture in pictures))

    def listed(directory):
        return Names(directory, suffix=".list")

    summary = run(["0.png", "1.png"], to=["png", Names, listed])
    assert sorted(made) == ["0.png", "0.png", "1.png", "1.png"]
    assert {"names.txt", "names.list"} <= names(summary.directory / "1.png")


@pytest.mark.thorough
def test_changed_user_code_makes_another_run(place):
    first = run("0.png", network(), to="formats.py:Values").directory
    (place / "formats.py").write_text(FORMATS.replace("values.txt", "numbers.txt"))
    second = run("0.png", network(), to="formats.py:Values").directory
    assert first != second
    assert {"values.txt", "numbers.txt"} <= names(first / "0.png") | names(second / "0.png")


def test_an_own_format_receives_pictures_of_the_model(place):
    summary = run((), to="formats.py:Many", views="kernels")
    (file,) = summary.directory.rglob("names.txt")
    assert file.read_text().endswith(" 2\n")


@pytest.mark.thorough
def test_a_dry_run_counts_files_of_an_own_format(fmapviz):
    result = fmapviz("shapesnet", "0.png", "1.png", "--to", "formats.py:Many", "--plan")
    assert result.returncode == 0, result.stderr
