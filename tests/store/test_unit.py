from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from races import EIGHT_AT_ONCE

from fmapviz.core import files
from fmapviz.core.checksummed_json import dumps
from fmapviz.core.files import staging_folder
from fmapviz.errors import RefusedError
from fmapviz.images.find import path_hash
from fmapviz.store.unit import check_only_own_files, commit, find_done, read_unit, sweep
from fmapviz.store.unit_key import image_key
from fmapviz.store.verify import verify
from fmapviz.types import ImageFile

HOST = sha256(socket.gethostname().encode()).hexdigest()[:6]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def source(path="/photos/lena.png", unit=None, size=1000, mtime_ns=123):
    return image_key(ImageFile(path, unit or Path(path).name, {"size": size, "mtime_ns": mtime_ns}))


def finish(run, file, content="pixels", *, force=False, name="input.png"):
    with staging_folder(run) as staging:
        (staging / name).write_text(content)
        return commit(staging, run, file, {"layers": []}, force=force)


def tree(run):
    """Return everything below a directory: a file's content, a link's target, None for a directory."""
    return {
        str(path.relative_to(run)): str(path.readlink())
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in run.rglob("*")
    }


def refused(run, file, foreign, **options):
    """Check that a unit is not replaced, because of a file in it, and that nothing changes."""
    before = tree(run)
    with pytest.raises(RefusedError, match=re.escape(f"'{foreign}' was not made by fmapviz")) as raised:
        finish(run, file, "new", **options)
    assert "move it away" in raised.value.hint
    assert tree(run) == before


def hidden(run):
    return [path.name for path in run.rglob(".*")]


def problems(run):
    found = [problem for place in verify(run) for problem in place.problems]
    return [
        f"{problem.path}: {problem.message}" for problem in found if problem.path != run / "run.json"
    ]  # there is none here


# --- a directory and its record


def test_the_record_of_a_unit_lists_its_source_and_files(run):
    with staging_folder(run) as staging:
        (staging / "input.png").write_bytes(b"input")
        (staging / "00_conv.maps.png").write_bytes(b"")
        directory = commit(staging, run, source(), {"model": "net (random)", "layers": [{"min": None}]})
    assert directory == run / "lena.png"
    record = json.loads((directory / "unit.json").read_bytes())
    assert {key: value for key, value in record.items() if key != "sha256"} == {
        "fmapviz": 2,
        "unit": {
            "kind": "image",
            "path": "/photos/lena.png",
            "name": "lena.png",
            "version": {"size": 1000, "mtime_ns": 123},
        },
        "model": "net (random)",
        "layers": [{"min": None}],
        "files": [
            {"name": "00_conv.maps.png", "size": 0, "sha256": sha256(b"").hexdigest()},
            {"name": "input.png", "size": 5, "sha256": sha256(b"input").hexdigest()},
        ],
    }
    assert read_unit(directory) == record
    assert sorted(tree(run)) == ["lena.png", "lena.png/00_conv.maps.png", "lena.png/input.png", "lena.png/unit.json"]


def test_a_unit_in_a_folder_keeps_the_tree(run):
    assert finish(run, source("/photos/cats/a/lena.png", "cats/a/lena.png")) == run / "cats/a/lena.png"
    assert finish(run, source("/photos/cats/b.png", "cats/b.png")) == run / "cats/b.png"
    assert problems(run) == []


def test_a_path_that_is_no_text_is_recorded(run):
    path = os.fsdecode(b"/photos/l\xe9na.png")
    finish(run, source(path, "l_na.png"))
    assert find_done(run, source(path, "l_na.png")) == run / "l_na.png"
    assert read_unit(run / "l_na.png")["unit"]["path"] == path


def test_a_staged_directory_is_hidden_and_names_host_and_process(run):
    with staging_folder(run) as staging:
        assert staging.parent == run
        assert staging.name.startswith(f".fmapviz-{HOST}-{os.getpid()}-")
        assert list(staging.iterdir()) == []


def test_an_exception_leaves_nothing_staged(run):
    class Stop(BaseException):
        pass

    def interrupted():
        with staging_folder(run) as staging:
            (staging / "input.png").write_text("half")
            raise Stop

    with pytest.raises(Stop):
        interrupted()
    assert tree(run) == {}


def test_a_record_that_json_cannot_hold_leaves_nothing(run):
    with pytest.raises(ValueError, match="not JSON compliant"), staging_folder(run) as staging:
        commit(staging, run, source(), {"layers": [{"min": float("nan")}]})
    assert tree(run) == {}


def test_nothing_is_staged_where_there_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError), staging_folder(tmp_path / "missing"):
        pass
    assert tree(tmp_path) == {}


# --- done or not


def test_a_finished_unit_is_found_if_its_source_is_unchanged(run):
    assert find_done(run, source()) is None
    directory = finish(run, source())
    assert find_done(run, source()) == directory
    assert find_done(run, source(size=1001)) is None
    assert find_done(run, source(mtime_ns=124)) is None
    assert find_done(run, source("/other/lena.png")) is None


KEY = source().record
DAMAGED = [
    b"\xff\xfe",
    b"[]",
    b"null",
    *(
        json.dumps(record).encode()
        for record in (
            {"unit": KEY},
            {"files": []},
            {"unit": "/photos/lena.png", "files": []},
            {"unit": {name: value for name, value in KEY.items() if name != "path"}, "files": []},
            {"unit": {**KEY, "path": 7}, "files": []},
            {"unit": {**KEY, "kind": ["image"]}, "files": []},
            {"unit": {**KEY, "more": 1}, "files": []},
            {"unit": {**KEY, "version": [1000]}, "files": []},
            {"unit": {**KEY, "version": {"size": 1000, "mtime_ns": [123]}}, "files": []},
            {"unit": {**KEY, "kind": "other", "version": {"size": 1.5}}, "files": []},
            {"unit": KEY, "files": ["input.png"]},
            {"unit": KEY, "files": [{"name": "input.png"}]},
        )
    ),
]


@pytest.mark.parametrize("record", DAMAGED)
def test_a_damaged_record_is_ignored_and_its_directory_kept(record, run):
    (run / "lena.png").mkdir()
    (run / "lena.png/unit.json").write_bytes(record)
    assert read_unit(run / "lena.png") is None
    assert find_done(run, source()) is None
    other = finish(run, source())
    assert other == run / f"lena.png~{path_hash('/photos/lena.png')}"
    assert find_done(run, source()) == other
    assert tree(run / "lena.png") == {"unit.json": record}


WHOLE = dumps({"fmapviz": 2, "unit": source(size=1, mtime_ns=1).record})
REMNANTS = [b"", bytes(500), b"{", WHOLE[:20], WHOLE[:-50], b"[" + WHOLE[1:]]


@pytest.mark.parametrize("record", REMNANTS)
def test_an_image_whose_record_a_power_failure_destroyed_is_redrawn(record, run):
    directory = finish(run, source(), "old")
    (directory / "unit.json").write_bytes(record)
    assert find_done(run, source()) is None
    assert finish(run, source(), "new") == directory
    assert (directory / "input.png").read_text() == "new"
    assert hidden(run) == []
    assert problems(run) == []


def test_a_unit_without_a_record_that_holds_a_foreign_file_is_not_replaced(run):
    directory = finish(run, source(), "old")
    (directory / "unit.json").write_bytes(b"")
    (directory / "notes.txt").write_text("mine")
    refused(run, source(), directory / "notes.txt")
    assert hidden(run) == []
    (directory / "notes.txt").unlink()
    assert finish(run, source(), "new") == directory
    assert problems(run) == []


def test_force_returns_an_image_to_its_plain_name(run):
    directory = finish(run, source(), "old")
    (directory / "unit.json").unlink()
    other = finish(run, source(), "other")
    assert other != directory
    assert finish(run, source(), "new", force=True) == directory
    assert not other.exists()
    assert hidden(run) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_unit_that_is_a_link_is_foreign(force, run, tmp_path):
    """The user may have moved the unit to another disk, and added files."""
    directory = finish(run, source(), "old")
    (directory / "notes.txt").write_text("mine")
    directory.rename(tmp_path / "other")
    directory.symlink_to(tmp_path / "other")
    before = tree(tmp_path / "other")
    assert find_done(run, source()) is None
    assert finish(run, source(), "new", force=force) == run / f"lena.png~{path_hash('/photos/lena.png')}"
    assert directory.is_symlink()
    assert tree(tmp_path / "other") == before
    assert hidden(run) == []


def test_nothing_is_written_through_a_folder_that_is_a_link(run, tmp_path):
    (tmp_path / "other").mkdir()
    (run / "cats").symlink_to(tmp_path / "other")
    file = source("/photos/cats/a.png", "cats/a.png")
    assert finish(run, file) == run / f"a.png~{path_hash('/photos/cats/a.png')}"
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("unit", ["../../outside", "/outside", "", ".", "a/../../b", ".hidden/a"])
def test_a_record_with_a_path_outside_of_the_run_is_not_restored(unit, run, tmp_path):
    """Another user with write access may have forged it."""
    left = run / f".fmapviz-{HOST}-{2**22 + 1}-abcdef-00000000-old"
    left.mkdir()
    record = {"fmapviz": 2, "unit": {**source("/a").record, "name": unit}, "files": []}
    (left / "unit.json").write_bytes(dumps(record))
    sweep(run)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in run.iterdir()] == [left.name]


def test_staged_files_of_another_host_are_removed_after_a_day(run):
    fresh, old = (run / f".fmapviz-ffffff-1-abcdef-0000000{number}" for number in range(2))
    for path in (fresh, old):
        path.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    sweep(run)
    assert list(run.iterdir()) == [fresh]


def test_staged_files_of_an_earlier_process_of_the_same_number_are_removed(run):
    """As in another container, whose processes have the same numbers."""
    left = run / f".fmapviz-{HOST}-{os.getpid()}-other0-00000000"
    left.mkdir()
    with staging_folder(run) as staging:
        sweep(run)
        assert list(run.iterdir()) == [staging]


FORCED = """
import sys
from pathlib import Path
from fmapviz.core.files import staging_folder
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.types import ImageFile

run = Path(sys.argv[1])
with staging_folder(run) as staging:
    (staging / "input.png").write_text("new")
    key = image_key(ImageFile("/photos/lena.png", "lena.png", {"size": 1000, "mtime_ns": 123}))
    print(commit(staging, run, key, {}, force=True).name)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["a damaged record", "no record"])
def test_force_replaces_a_unit_without_a_record(damage, run, run_python):
    directory = finish(run, source(), "old")
    if damage == "no record":
        (directory / "unit.json").unlink()
    else:
        (directory / "unit.json").write_text("{")
    result = run_python(FORCED, run)
    assert (result.stdout, result.stderr) == ("lena.png\n", "")
    sweep(run)
    assert (directory / "input.png").read_text() == "new"
    assert find_done(run, source()) == directory
    assert hidden(run) == []
    assert problems(run) == []


def test_the_first_of_two_units_is_kept(run):
    directory = finish(run, source(), "first")
    before = directory.stat().st_ino
    assert finish(run, source(), "second") == directory
    assert (directory / "input.png").read_text() == "first"
    assert directory.stat().st_ino == before
    assert hidden(run) == []


@pytest.mark.parametrize(("changes", "force"), [({}, True), ({"size": 7}, False), ({"mtime_ns": 7}, False)])
def test_a_changed_source_or_force_replaces_a_unit(changes, force, run):
    finish(run, source(), "old", name="01_gone.maps.png")
    directory = finish(run, source(**changes), "new", force=force)
    assert directory == run / "lena.png"
    assert sorted(tree(directory)) == ["input.png", "unit.json"]
    assert (directory / "input.png").read_text() == "new"
    assert find_done(run, source(**changes)) == directory
    assert problems(run) == []
    assert hidden(run) == []


@pytest.mark.parametrize("kind", ["file", "hidden file", "folder", "link"])
@pytest.mark.parametrize("reason", ["force", "a changed source"])
def test_a_unit_that_holds_a_foreign_file_is_not_replaced(reason, kind, run):
    directory = finish(run, source(), "old")
    foreign = directory / ("notes.txt" if kind == "file" else ".hidden")
    if kind == "folder":
        foreign.mkdir()
        (foreign / "unit.json").write_text("mine")
    elif kind == "link":
        foreign.symlink_to("/nowhere")
    else:
        foreign.write_text("mine")
    refused(run, source(mtime_ns=123 if reason == "force" else 7), foreign, force=reason == "force")
    assert find_done(run, source()) == directory
    assert [path.name for path in run.iterdir()] == ["lena.png"]


def test_a_foreign_file_with_the_name_of_a_file_of_the_new_unit_is_kept(run):
    directory = finish(run, source(), "old")
    (directory / "extra.png").write_text("mine")
    refused(run, source(), directory / "extra.png", force=True, name="extra.png")


def test_a_folder_with_the_name_of_one_of_the_files_is_foreign(run):
    directory = finish(run, source(), "old")
    (directory / "input.png").unlink()
    (directory / "input.png").mkdir()
    refused(run, source(), directory / "input.png", force=True)


LATE = """
import sys
from pathlib import Path
from fmapviz.errors import RefusedError
from fmapviz.types import ImageFile
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.core.files import staging_folder

run = Path(sys.argv[1])
done = False
def at(event, args):
    # What another process may do when the old unit has been looked through.
    global done
    if event == "os.rename" and str(args[0]) == str(run / "lena.png") and not done:
        done = True
        (run / "lena.png/notes.txt").write_text("mine")

sys.addaudithook(at)
with staging_folder(run) as staging:
    (staging / "input.png").write_text("new")
    try:
        commit(staging, run, image_key(ImageFile("/photos/lena.png", "lena.png", {"size": 1000, "mtime_ns": 7})), {})
    except RefusedError as error:
        print(error)
"""


def test_a_foreign_file_added_during_a_replacement_is_kept(run, run_python):
    directory = finish(run, source(), "old")
    before = tree(directory)
    result = run_python(LATE, run)
    assert result.stdout.startswith(f"'{directory}/notes.txt' was not made by fmapviz"), result.stderr
    assert tree(directory) == {**before, "notes.txt": b"mine"}
    assert [path.name for path in run.iterdir()] == ["lena.png"]


def test_a_unit_that_another_process_replaces_is_not_read(run):
    directory = finish(run, source())
    record = read_unit(directory)
    (directory / "notes.txt").write_text("mine")
    with pytest.raises(RefusedError, match=r"'.*/lena.png/notes.txt' was not made by fmapviz"):
        check_only_own_files(directory, record)
    directory.rename(run / "aside")
    check_only_own_files(directory, record)


# --- names that are taken


def test_a_second_source_of_the_same_name_has_another_directory(run):
    first, second = source("/a/lena.png"), source("/b/lena.png")
    assert finish(run, first, "a") == run / "lena.png"
    assert finish(run, second, "b") == run / f"lena.png~{path_hash('/b/lena.png')}"
    assert find_done(run, first) == run / "lena.png"
    assert find_done(run, second) == run / f"lena.png~{path_hash('/b/lena.png')}"
    for file in (first, second):
        assert finish(run, file, "again", force=True) == find_done(run, file)
    assert len(list(run.iterdir())) == 2
    assert problems(run) == []


def test_a_unit_never_lies_inside_another(run):
    outer = source("/one/a", "a")
    inner = source("/two/a/b/lena.png", "a/b/lena.png")
    assert finish(run, outer) == run / "a"
    assert finish(run, inner) == run / f"lena.png~{path_hash(inner.path)}"
    assert find_done(run, inner) == run / f"lena.png~{path_hash(inner.path)}"
    assert problems(run) == []


def test_a_unit_named_like_an_existing_folder_has_another_directory(run):
    outer = source("/one/a", "a")
    inner = source("/two/a/b/lena.png", "a/b/lena.png")
    assert finish(run, inner) == run / "a/b/lena.png"
    assert finish(run, outer) == run / f"a~{path_hash(outer.path)}"
    assert problems(run) == []


@pytest.mark.thorough
def test_units_and_folders_of_one_name_are_created_concurrently(run):
    """The folder is made, the unit takes its name while it is empty, and the other unit would come to lie inside."""

    barrier = threading.Barrier(2)

    def one(file):
        barrier.wait()
        return finish(run, file)

    with ThreadPoolExecutor(2) as pool:
        for name in map(str, range(200)):
            files = source(f"/one/{name}", name), source(f"/two/{name}/lena.png", f"{name}/lena.png")
            assert list(pool.map(one, files)) == [find_done(run, file) for file in files]
    assert problems(run) == []
    assert hidden(run) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link to a folder", "dangling link", "pipe"])
def test_foreign_files_are_not_changed(kind, run, tmp_path):
    taken = run / "lena.png"
    (tmp_path / "other").mkdir()
    if kind == "file":
        taken.write_text("mine")
    elif kind == "folder":
        taken.mkdir()
        (taken / "notes.txt").write_text("mine")
    elif kind == "pipe":
        os.mkfifo(taken)
    else:
        taken.symlink_to(tmp_path / ("other" if kind == "link to a folder" else "nowhere"))
    before = taken.lstat()
    directory = finish(run, source(), force=True)
    assert directory == run / f"lena.png~{path_hash('/photos/lena.png')}"
    assert find_done(run, source()) == directory
    assert (taken.lstat().st_ino, taken.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert tree(tmp_path / "other") == {}
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_file_in_place_of_a_folder_is_not_changed(depth, run):
    (run / "cats").write_text("mine")
    file = source(
        "/photos/cats/x/lena.png", "/".join(["cats", "x", "lena.png"][-depth - 1 :]).replace("x", "cats", depth == 1)
    )
    directory = finish(run, file)
    assert directory == run / f"lena.png~{path_hash(file.path)}"
    assert find_done(run, file) == directory
    assert (run / "cats").read_text() == "mine"


def test_an_empty_directory_may_be_used(run):
    (run / "lena.png").mkdir()
    assert finish(run, source()) == run / "lena.png"


def test_a_unit_without_a_free_name_is_an_error_and_changes_nothing(run):
    for name in ("lena.png", f"lena.png~{path_hash('/photos/lena.png')}"):
        (run / name).write_text("mine")
    before = tree(run)
    with pytest.raises(RefusedError, match=r"no free name for '/photos/lena\.png'"):
        finish(run, source())
    assert tree(run) == before


# --- what killed processes leave

KILLED = """
import os, signal, sys
from pathlib import Path
from fmapviz.core.files import staging_folder
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.types import ImageFile

run, moment, unit, path = Path(sys.argv[1]), *sys.argv[2:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

counts = {"os.rename": 0, "os.remove": 0}
def at(event, args):
    if event in counts:
        counts[event] += 1
        if moment == f"{event} {counts[event]}":
            die()

with staging_folder(run) as staging:
    (staging / "input.png").write_text("new")
    if moment == "writing":
        die()
    sys.addaudithook(at)
    commit(staging, run, image_key(ImageFile(path, unit, {"size": 1000, "mtime_ns": 999})), {"layers": []})
"""


@pytest.fixture
def kill(run, run_python):
    """Return a function that starts a process which is killed at a moment of its work on a unit."""

    def killed(moment, file):
        result = run_python(KILLED, run, moment, file.name, file.path)
        assert result.returncode == -signal.SIGKILL, result.stderr

    return killed


def test_staged_files_of_a_killed_process_are_removed(run, kill):
    kill("writing", source())
    assert len(hidden(run)) == 1
    sweep(run)
    assert tree(run) == {}


def test_staged_files_of_running_processes_and_other_hosts_are_kept(run):
    with staging_folder(run) as staging:
        (staging / "input.png").write_text("half")
        dead = subprocess.Popen(["true"])
        dead.wait()
        strange = [f".fmapviz-000000-{dead.pid}-abc", f".fmapviz-{HOST}", f".fmapviz-{HOST}-x-y", ".fmapviz", ".git"]
        for name in strange:
            (run / name).mkdir()
            (run / name / "x").write_text("x")
        before = tree(run)
        sweep(run)
        assert tree(run) == before


def test_a_unit_moved_aside_by_a_killed_process_is_restored(run, kill):
    directory = finish(run, source(), "old")
    before = tree(directory)
    kill("os.rename 3", source())  # the first finds the name taken, the second moves the old one aside
    assert not directory.exists()
    sweep(run)
    assert tree(directory) == before
    assert find_done(run, source()) == directory
    assert [path.name for path in run.iterdir()] == ["lena.png"]


def test_a_unit_moved_aside_is_restored_under_its_name(run, kill):
    """The name without a hash is another image's."""
    finish(run, source("/a/lena.png"), "a")
    second = source("/b/lena.png")
    directory = finish(run, second, "b")
    before = tree(directory)
    kill("os.rename 3", second)
    assert not directory.exists()
    sweep(run)
    assert tree(directory) == before
    assert hidden(run) == []


@pytest.mark.thorough
def test_a_unit_in_a_folder_is_restored(run, kill):
    file = source("/photos/cats/lena.png", "cats/lena.png")
    directory = finish(run, file)
    kill("os.rename 3", file)
    sweep(run)
    assert find_done(run, file) == directory
    assert hidden(run) == []


def test_a_unit_moved_aside_and_replaced_is_removed(run, kill):
    directory = finish(run, source(), "old")
    kill("os.rename 4", source())  # the new one is in its place
    assert (directory / "input.png").read_text() == "new"
    assert len(hidden(run)) == 1
    sweep(run)
    assert (directory / "input.png").read_text() == "new"
    assert [path.name for path in run.iterdir()] == ["lena.png"]


def test_a_foreign_file_in_a_unit_moved_aside_is_kept(run, kill):
    """Earlier versions moved such units aside."""
    finish(run, source(), "old")
    kill("os.rename 4", source())
    (left,) = run.glob(".fmapviz-*")
    (left / "notes.txt").write_text("mine")
    sweep(run)
    assert (left / "notes.txt").read_text() == "mine"


def test_a_unit_moved_aside_does_not_replace_a_newer_one(run, kill):
    finish(run, source(), "old")
    kill("os.rename 3", source())
    directory = finish(run, source(mtime_ns=7), "newer")
    sweep(run)
    assert (directory / "input.png").read_text() == "newer"
    assert [path.name for path in run.iterdir()] == ["lena.png"]


def test_a_partly_removed_unit_is_not_restored(run, kill):
    directory = finish(run, source(), "old")
    kill("os.remove 2", source())
    shutil.rmtree(directory)
    sweep(run)
    assert tree(run) == {}


def test_a_unit_that_cannot_be_restored_is_kept(run, kill):
    finish(run, source(), "old")
    kill("os.rename 3", source())
    for name in ("lena.png", f"lena.png~{path_hash('/photos/lena.png')}"):
        (run / name).write_text("mine")
    sweep(run)
    (kept,) = run.glob(".*/input.png")
    assert kept.read_text() == "old"
    assert (run / "lena.png").read_text() == "mine"
    (run / "lena.png").unlink()
    sweep(run)
    assert find_done(run, source()) == run / "lena.png"


# --- many processes

REPLACED = """
import os, sys
from pathlib import Path
from fmapviz.core.files import staging_folder
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.types import ImageFile

run, what = Path(sys.argv[1]), sys.argv[2]
mtime = {"the same": 999, "another": 7}.get(what)

def write(unit, content, mtime):
    with staging_folder(run) as staging:
        (staging / "input.png").write_text(content)
        return commit(staging, run, image_key(ImageFile("/photos/lena.png", unit, {"size": 1000, "mtime_ns": mtime})), {})

done = False
def at(event, args):
    # What another process may do at the moment when this one looks into the directory that is in its way.
    global done
    if event == "open" and str(args[0]) == str(run / "lena.png/unit.json") and not done:
        done = True
        os.rename(run / "lena.png", run / "moved aside")
        if mtime:
            os.rename(write("other", "theirs", mtime), run / "lena.png")

sys.addaudithook(at)
print(write("lena.png", "ours", 999).name)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("what", "content"), [("nothing yet", "ours"), ("the same", "theirs"), ("another", "ours")])
def test_a_unit_replaced_at_the_same_moment_is_found(what, content, run, run_python):
    finish(run, source(), "old")
    result = run_python(REPLACED, run, what)
    assert (result.stdout, result.stderr) == ("lena.png\n", "")
    assert sorted(path.name for path in run.iterdir()) == ["lena.png", "moved aside"]
    assert (run / "lena.png/input.png").read_text() == content


MANY = """
import os, sys
from pathlib import Path
from fmapviz.core.files import staging_folder
from fmapviz.store.unit import commit, sweep
from fmapviz.store.unit_key import image_key
from fmapviz.types import ImageFile

run, task, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def work(process):
    for number in range(rounds):
        if task == "sweep":
            sweep(run)
            continue
        # "same": all the same image; "newer": a source that changes all the time; "names": images of one name
        path, mtime = {"force": ("/a/lena.png", 1), "same": ("/a/lena.png", 1), "newer": ("/a/lena.png", number),
                       "names": (f"/{process}/lena.png", 1)}[task]
        with staging_folder(run) as staging:
            (staging / "input.png").write_text(f"{process} {number}")
            key = image_key(ImageFile(path, "lena.png", {"size": 1, "mtime_ns": mtime}))
            commit(staging, run, key, {}, force=task == "force")

"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["same", "force", "newer", "names"])
def test_eight_processes_finish_units_concurrently(task, run, run_python):
    finish(run, source("/a/lena.png"), "old")
    result = run_python(MANY + EIGHT_AT_ONCE, run, task, 20)
    assert (result.stdout, result.stderr) == ("", "")
    sweep(run)
    units_there = sorted(path.name for path in run.iterdir())
    if task == "names":
        assert units_there == sorted(["lena.png", *(f"lena.png~{path_hash(f'/{n}/lena.png')}" for n in range(8))])
    else:
        assert units_there == ["lena.png"]
    assert problems(run) == []


@pytest.mark.thorough
def test_eight_processes_remove_staged_files_concurrently(run, kill, run_python):
    files = [source(f"/photos/{n}.png") for n in range(6)]
    for file in files[:3]:
        kill("writing", file)
    for file in files[3:]:
        finish(run, file, "old")
        kill("os.rename 3" if file is not files[5] else "os.rename 4", file)
    result = run_python(MANY + EIGHT_AT_ONCE, run, "sweep", 1)
    assert (result.stdout, result.stderr) == ("", "")
    assert sorted(path.name for path in run.iterdir()) == ["3.png", "4.png", "5.png"]
    for name, content in (("3.png", "old"), ("4.png", "old"), ("5.png", "new")):
        assert (run / name / "input.png").read_text() == content


def test_a_directory_that_cannot_be_written_to_is_reported():
    with pytest.raises(FileNotFoundError):
        files.make_folders(Path("/proc/nothing/here"))


def test_units_does_not_load_torch(run_python):
    assert run_python("import sys, fmapviz.store.unit; print('torch' in sys.modules)").stdout == "False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it")
def test_staged_files_of_a_zombie_process_are_removed(run):
    """As in a container whose first process is no init."""
    process = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (run / f".fmapviz-{HOST}-{process.pid}-abcdef-00000000").mkdir()
        sweep(run)
        assert list(run.iterdir()) == []
    finally:
        process.wait()
