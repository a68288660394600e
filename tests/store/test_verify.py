from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from faults import Net
from image_files import paint
from made_units import make_unit
from run_infos import run_info
from tiny_runs import AS_IT_IS, runner

from fmapviz.core import checksummed_json, files, registry
from fmapviz.core.checksummed_json import dumps
from fmapviz.core.files import staging_folder
from fmapviz.core.members import load
from fmapviz.draw import png
from fmapviz.errors import RequestError
from fmapviz.store.failures import append_failure, read_failures
from fmapviz.store.run import open_run
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.store.verify import verify
from fmapviz.types import Failure, ImageFile, Picture

INFO = run_info(to=("png", "tensorboard"))
FILES = ["00_conv.maps.png", "events.out.tfevents.fmapviz", "unit.json"]

KEY = '{"kind": "image", "path": "/a", "name": "a", "version": {"size": 1, "mtime_ns": 1}}'


def finish(run, unit):
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    picture = Picture("maps", "00 conv", png.encode(pixels, {"Layer": "conv"}), 4, 3, {"Layer": "conv"})
    with staging_folder(run) as staging:
        for form in INFO.config.to:
            with load(registry.form(form).open_writer)(staging) as writer:
                writer.add(make_unit(), [picture])
        key = image_key(ImageFile(f"/photos/{unit}", unit, {"size": 10, "mtime_ns": 20}))
        return commit(staging, run, key, {"run": INFO.fingerprint, "model": "net"})


@pytest.fixture
def out(tmp_path):
    """Two runs, one of them with a folder and a failure."""
    first = open_run(tmp_path / "out", INFO)
    finish(first, "a.png")
    finish(first, "cats/b.png")
    append_failure(first, Failure("/photos/c.png", "E_DECODE", "damaged"))
    finish(open_run(tmp_path / "out", INFO, name="other"), "a.png")
    return tmp_path / "out"


@pytest.fixture
def unit(out):
    return out / "net/cats/b.png"


def problems(directory):
    return [(str(problem.path), problem.message) for place in verify(directory) for problem in place.problems]


# --- valid trees


def test_a_whole_tree_has_no_problems(out):
    assert sorted((str(place.directory.relative_to(out)), place.files, place.problems) for place in verify(out)) == [
        ("net", 1, ()),
        ("net/a.png", 2, ()),
        ("net/cats/b.png", 2, ()),
        ("other", 1, ()),
        ("other/a.png", 2, ()),
    ]


def test_a_run_or_a_unit_is_verified_alone(out, unit):
    assert [str(place.directory.relative_to(out)) for place in verify(out / "other")] == ["other", "other/a.png"]
    assert [(place.directory, place.files) for place in verify(unit)] == [(unit, 2)]
    assert [place.directory for place in verify(unit.parent)] == [unit]


def test_a_moved_tree_is_valid(out, unit, tmp_path):
    shutil.copytree(out, tmp_path / "copy")
    shutil.copytree(unit, tmp_path / "single")
    assert problems(tmp_path / "copy") == []
    assert problems(tmp_path / "single") == []


def test_staged_files_are_not_verified(out):
    with staging_folder(out) as in_out, staging_folder(out / "net") as in_run:
        (in_out / "run.json").write_text("{")
        (in_run / "unit.json").write_text("{")
        (in_run / "00.png").write_text("half")
        assert problems(out) == []
        assert [place.hidden for place in verify(out)] == [1, 0, 0, 0, 0]  # of the run


def test_the_command_reports_staged_files(out, fmapviz):
    (out / "net/.fmapviz-0").mkdir()
    done = fmapviz("verify", out)
    assert (done.returncode, done.stderr.decode().splitlines()) == (
        0, ["notice: 1 hidden directory of running or killed commands; the next run removes the latter"],
    )  # fmt: skip


def test_a_run_without_an_image_is_valid(tmp_path):
    directory = open_run(tmp_path, INFO)
    assert [(place.directory, place.problems) for place in verify(tmp_path)] == [(directory, ())]


def test_folders_that_are_empty_are_no_problem(out):
    (out / "net/dogs").mkdir()
    assert problems(out) == []


# --- damage


def remedies(directory):
    return {problem.remedy for place in verify(directory) for problem in place.problems}


def test_a_unit_of_another_run_is_named(out, unit):
    other = open_run(out, replace(INFO, weights="others"), name="third")
    shutil.copytree(unit, other / "cats/b.png")
    assert problems(out) == [(str(other / "cats/b.png"), "belongs to a run with other settings")]
    assert remedies(out) == {"remove"}


def test_a_copy_of_a_unit_in_its_own_run_is_named(out, unit):
    shutil.copytree(unit, out / "net/b copy.png")
    assert problems(out) == [(str(out / "net/b copy.png"), "the unit 'cats/b.png' under another name")]


def test_an_image_may_have_the_name_of_a_record(out):
    finish(out / "net", "folder/input.png")
    finish(out / "net", "folder/b.png")
    assert problems(out) == []
    (out / "net/folder/b.png/00_conv.maps.png").write_bytes(b"")
    assert problems(out) == [(str(out / "net/folder/b.png/00_conv.maps.png"), "0 bytes instead of 96")]


def test_a_record_of_many_gigabytes_is_refused(unit, monkeypatch):
    monkeypatch.setattr(checksummed_json, "MAX_BYTES", 2**20)
    monkeypatch.setattr(checksummed_json, "read", partial(files.read, most=2**20 + 1))
    os.truncate(unit / "unit.json", 40 * 2**30)
    assert problems(unit) == [(str(unit / "unit.json"), "damaged")]


@pytest.mark.parametrize("name", ["run.json", "products.json", "failures.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_other_objects_in_place_of_a_record_are_reported_for_removal(name, make, out):
    (out / "net" / name).unlink(missing_ok=True)
    make(out / "net" / name)
    assert {path for path, _ in problems(out)} == {str(out / "net" / name)}
    assert remedies(out) == {"remove"}


def test_a_link_in_a_run_is_named_and_not_followed(out, unit, tmp_path):
    (out / "net/link.png").symlink_to(unit)
    (out / "net/loop").symlink_to(out)
    (unit / "00_conv.maps.png").rename(tmp_path / "other.png")
    (unit / "00_conv.maps.png").symlink_to(tmp_path / "other.png")
    assert problems(out) == [
        (str(out / "net/link.png"), "not made by fmapviz"),
        (str(out / "net/loop"), "not made by fmapviz"),
        (str(unit / "00_conv.maps.png"), "not a regular file"),
    ]


@pytest.mark.parametrize("name", ["00_conv.maps.png", "unit.json"])
def test_a_pipe_in_place_of_a_file_does_not_block(name, unit):
    (unit / name).unlink()
    os.mkfifo(unit / name)
    assert problems(unit) == [(str(unit / name), "not a regular file")]


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "", ".", "..", "a\0b"])
def test_a_record_with_a_path_outside_of_its_directory_is_not_followed(name, unit, tmp_path):
    (tmp_path / "secret").write_text("secret")
    entry = {"name": name, "size": 6, "sha256": sha256(b"secret").hexdigest()}
    record = json.loads((unit / "unit.json").read_bytes())
    record["files"].append(entry)
    del record["sha256"]
    (unit / "unit.json").write_bytes(dumps(record))
    assert [message for _, message in problems(unit)] == ["damaged"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"fmapviz": NaN}', '{"fmapviz": 1e999}', "9" * 10_000])
def test_invalid_json_is_damaged(text, out, unit):
    (unit / "unit.json").write_text(text)
    (out / "net/run.json").write_text(text)
    assert problems(out) == [(str(out / "net/run.json"), "damaged"), (str(unit / "unit.json"), "damaged")]


def test_without_hashing_only_sizes_are_compared(out, unit):
    picture = unit / "00_conv.maps.png"
    whole = picture.read_bytes()
    picture.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert list(verify(out, hashed=False)) == [replace(place, problems=(), content="") for place in verify(out)]
    picture.write_bytes(whole[:-1])
    assert [problem.path for place in verify(out, hashed=False) for problem in place.problems] == [picture]


@pytest.mark.thorough
def test_each_flipped_byte_of_a_failure_is_reported_and_a_truncated_line_is_not(out):
    path = out / "net/failures.jsonl"
    append_failure(out / "net", Failure("/photos/d.png", "E_FORMAT", "not an image"))
    whole = path.read_bytes()
    for position in range(0, len(whole) - 1, 2):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        (message,) = [message for _, message in problems(out)]
        assert message in {f"line {line} is damaged: remove it" for line in (1, 2)}, position
    second = whole.index(b"\n") + 1
    for length in range(second, len(whole) - 1, 3):
        path.write_bytes(whole[:length])
        assert problems(out) == [], length
    append_failure(out / "net", Failure("/photos/e.png", "E_FORMAT", "not an image"))
    assert problems(out) == []
    assert [failure["path"] for failure in read_failures(out / "net")] == ["/photos/c.png", "/photos/e.png"]


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda run: (run / "a.png/00_conv.maps.png").unlink(), "repair"),
        (lambda run: (run / "a.png/unit.json").write_bytes(b""), "repair"),
        (lambda run: (run / "a.png/unit.json").unlink(), "repair"),
        (lambda run: (run / "run.json").write_bytes(b""), "again"),
        (lambda run: (run / "products.json").write_bytes(b""), "again"),
        (lambda run: (run / "survey.json").write_bytes(b""), "redraw"),
        (lambda run: (run / "notes.txt").write_bytes(b""), "remove"),
    ],
)
def test_each_problem_has_a_remedy(change, remedy, out):
    change(out / "net")
    assert remedies(out) == {remedy}


@pytest.mark.thorough
def test_problems_of_many_directories_are_sorted(out):
    for number in range(200):
        finish(out / "net", f"x{number:03}.png")
    (out / "net/x150.png/00_conv.maps.png").unlink()
    found = [place.directory.name for place in verify(out / "net")]
    assert found == ["net", "a.png", "b.png", *(f"x{number:03}.png" for number in range(200))]
    assert [path for path, _ in problems(out)] == [str(out / "net/x150.png/00_conv.maps.png")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_named(name, unit):
    path = unit / name
    whole = path.read_bytes()
    message = "damaged" if name == "unit.json" else "changed since it was written"
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert (str(path), message) in problems(unit), position
    path.write_bytes(whole)
    assert problems(unit) == []


@pytest.mark.thorough
def test_every_flipped_byte_of_a_run_is_named(out):
    path = out / "net/run.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert problems(out) == [(str(path), "damaged")], position


@pytest.mark.sampled
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "longer", "emptied"])
def test_a_file_of_another_length_is_named(name, change, unit):
    path = unit / name
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-1], "longer": whole + b"\n", "emptied": b""}[change])
    found = "damaged" if name == "unit.json" else f"{path.stat().st_size} bytes instead of {len(whole)}"
    assert problems(unit) == [(str(path), found)]


@pytest.mark.parametrize("name", FILES[:2])
def test_a_missing_file_is_named(name, unit):
    (unit / name).unlink()
    assert problems(unit) == [(str(unit / name), "missing")]


def test_a_unit_without_its_record_is_named(out, unit):
    (unit / "unit.json").unlink()
    assert problems(out) == [(str(unit / "unit.json"), "missing")]


@pytest.mark.parametrize("name", FILES[:2])
@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_other_objects_in_place_of_a_file_are_named(name, kind, unit):
    (unit / name).unlink()
    if kind == "folder":
        (unit / name).mkdir()
    else:
        (unit / name).symlink_to("nowhere")
    assert [path for path, _ in problems(unit)] == [str(unit / name)]


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{",
        "[]",
        f'{{"unit": {KEY}, "files": ["a"]}}',
        f'{{"unit": {KEY}, "files": [{{"name": "a"}}]}}',
        f'{{"unit": {KEY}, "files": {{}}}}',
        f'{{"unit": {KEY}, "files": []}}',
    ],
)
def test_a_damaged_record_is_named_and_the_rest_is_verified(record, out, unit):
    (unit / "unit.json").write_text(record)
    (out / "other/a.png/00_conv.maps.png").unlink()
    found = problems(out)
    assert (str(unit / "unit.json"), "damaged") in found
    assert (str(out / "other/a.png/00_conv.maps.png"), "missing") in found


@pytest.mark.parametrize("record", ["", "{", "[]", "{}", '{"fmapviz": "1"}', '{"fmapviz": 2, "fingerprint": "x"}'])
def test_a_damaged_run_is_named_and_its_units_are_verified(record, out, unit):
    (out / "net/run.json").write_text(record)
    (unit / "00_conv.maps.png").unlink()
    assert problems(out) == [(str(out / "net/run.json"), "damaged"), (str(unit / "00_conv.maps.png"), "missing")]


def test_foreign_files_are_named(out, unit):
    for path in (unit / "notes.txt", unit / ".hidden", unit.parent / "notes.txt", out / "net/notes.txt"):
        path.write_text("mine")
    (unit / "more").mkdir()
    assert sorted(problems(out)) == [
        (str(path), "not made by fmapviz")
        for path in (unit / ".hidden", unit / "more", unit / "notes.txt", unit.parent / "notes.txt", out / "net/notes.txt")
    ]


@pytest.mark.thorough
def test_a_foreign_file_is_not_called_damage(out, unit, fmapviz):
    for path in (unit / "notes.txt", unit / "more.txt", out / "net/notes.txt"):
        path.write_text("mine")
    done = fmapviz("verify", out)
    places = len({place.directory for place in verify(out)})
    assert done.returncode == 3
    assert done.stderr.decode().splitlines() == [
        f"2 of {places} directories hold files that fmapviz did not make",
        "hint: foreign files: remove them, or move them away",
    ]
    *_, summary = map(json.loads, fmapviz("verify", out, "--json").stdout.splitlines())
    assert (summary["damaged"], summary["exit_code"]) == (2, 3)


def test_the_worst_problem_of_a_directory_counts(out, unit):
    (unit / "notes.txt").write_text("mine")
    assert [place.worst for place in verify(out) if place.problems] == ["foreign"]
    (unit / "00_conv.maps.png").unlink()
    assert [place.worst for place in verify(out) if place.problems] == ["damaged"]
    assert {place.worst for place in verify(out) if not place.problems} == {""}


def test_an_unknown_record_in_a_run_does_not_hide_its_units(out, unit):
    (out / "net/unit.json").write_bytes(dumps({"unit": json.loads(KEY), "files": []}))
    (unit / "00_conv.maps.png").unlink()
    assert problems(out) == [
        (str(out / "net/unit.json"), "not made by fmapviz"),
        (str(unit / "00_conv.maps.png"), "missing"),
    ]


def test_other_files_beside_the_runs_are_ignored(out):
    (out / "notes.txt").write_text("mine")
    (out / "thesis/figures").mkdir(parents=True)
    (out / "thesis/figures/one.png").write_text("mine")
    assert problems(out) == []


@pytest.mark.parametrize("kind", ["empty", "foreign", "missing", "file"])
def test_a_foreign_directory_is_a_wrong_request(kind, tmp_path):
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("mine")
    elif kind != "missing":
        place.mkdir()
        if kind == "foreign":
            (place / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match=f"no run of fmapviz: '{place}'"):
        list(verify(place))


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from fmapviz.core import file_names
from fmapviz.store.verify import verify

file_names.own_run_files(), file_names.signatures()  # reads what a process without rights may not be able to read

if os.getuid() == 0:
    os.setuid(65534)
for place in verify(Path(sys.argv[1])):
    for problem in place.problems:
        print(problem.path.relative_to(sys.argv[1]), problem.message, sep=": ")
"""


def test_unreadable_directories_are_named(run_python):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own cannot be entered by other users
        out = Path(folder)
        run = open_run(out, INFO)
        closed = [finish(run, "a.png"), finish(run, "b.png") / "00_conv.maps.png", finish(run, "c.png") / "unit.json"]
        out.chmod(0o755)
        for path in closed:
            path.chmod(0)
        result = run_python(UNPRIVILEGED, folder)
        for path in closed:
            path.chmod(0o700)
    assert sorted(result.stdout.splitlines()) == [
        "net/a.png: Permission denied",
        "net/b.png/00_conv.maps.png: Permission denied",
        "net/c.png/unit.json: Permission denied",
    ]


def test_a_path_that_is_no_text_is_named(out, unit):
    name = os.fsdecode(b"\xe9")
    (unit / name).write_text("mine")
    assert problems(unit) == [(str(unit / name), "not made by fmapviz")]


def test_verification_changes_nothing(out):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in out.rglob("*")}

    before = state()
    list(verify(out))
    assert state() == before


def test_records_are_plain_json(out, unit):
    for path in (out / "net/run.json", unit / "unit.json"):
        record = json.loads(path.read_bytes())
        first, *_, last = record
        assert (first, last) == ("fmapviz", "sha256")
        assert path.read_bytes().isascii()


@pytest.mark.thorough
def test_a_run_that_is_not_finished_is_not_damaged(tmp_path, fmapviz):
    for number in range(4):
        paint(tmp_path / "in" / f"{number}.png", number)
    run = runner(Net, to=["png", "stats"], preprocessing=AS_IT_IS, workers=1, name="run", out=tmp_path / "out")
    shown = []

    def interrupt(event):
        if getattr(event, "status", "") == "done":
            shown.append(fmapviz("verify", "out"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "in", on_event=interrupt)
    shown.append(fmapviz("verify", "out"))
    for done, state in zip(shown, ("is running", "was interrupted"), strict=True):
        assert done.returncode == 0
        assert done.stdout.decode().strip().endswith("all finished ones are unchanged")
        assert f"notice: 'out/run' {state}: only what is finished was checked" in done.stderr.decode()
    (next((tmp_path / "out" / "run").glob("*.png")) / "input.png").write_bytes(b"x")
    damaged = fmapviz("verify", "out")
    assert damaged.returncode == 3
    assert "1 of " in damaged.stderr.decode()
    run(tmp_path / "in", repair=True)
    assert fmapviz("verify", "out").stderr == b""


@pytest.mark.parametrize(
    ("typed", "hint"), [("nodir", "no similar name in"), ("out2", "did you mean 'out'"), (".", "run.json")]
)
def test_a_directory_without_runs_has_a_hint(typed, hint, tmp_path, fmapviz):
    (tmp_path / "out").mkdir()
    done = fmapviz("verify", typed)
    assert done.returncode == 2
    assert hint in done.stderr.decode().splitlines()[1]
