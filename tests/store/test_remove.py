from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from itertools import count
from pathlib import Path

import pytest
from extras import needs
from failing_disk import CRASH, FULL, Crash, Disk, put_in
from faults import Net
from image_files import paint
from run_infos import changed, run_info
from tiny_runs import AS_IT_IS, runner
from trees import snapshot, stamps

from fmapviz.config import Style
from fmapviz.core.checksummed_json import dumps
from fmapviz.core.files import staging_folder
from fmapviz.errors import OutputError, RefusedError, RequestError
from fmapviz.store import remove
from fmapviz.store.failures import append_failure
from fmapviz.store.listing import describe_run
from fmapviz.store.remove import check_removable, find_run, remove_run
from fmapviz.store.run import is_run, open_run
from fmapviz.store.unit import commit, read_unit
from fmapviz.store.unit_key import image_key
from fmapviz.store.verify import verify
from fmapviz.types import Failure, ImageFile

INFO = run_info(to=("png", "stats"))
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
GONE = f".fmapviz-{HOST}-4194305-abc-1234"  # no process has this number
draw = runner(Net, preprocessing=AS_IT_IS, workers=1)


def finish(run, unit):
    with staging_folder(run) as staging:
        (staging / "input.png").write_bytes(b"x")
        (staging / "00.maps.png").write_bytes(b"y")
        return commit(
            staging,
            run,
            image_key(ImageFile(f"/photos/{unit}", unit, {"size": 10, "mtime_ns": 20})),
            {"run": INFO.fingerprint},
        )


@pytest.fixture
def run(tmp_path):
    """A run of two images and a failure, beside another one."""
    directory = open_run(tmp_path / "out", INFO)
    finish(directory, "a.png")
    finish(directory, "cats/deep/b.png")
    append_failure(directory, Failure("/photos/c.png", "E_DECODE", "damaged"))
    finish(open_run(tmp_path / "out", INFO, name="other"), "a.png")
    return directory


@pytest.fixture
def refused(run):
    """Expect a refusal that changes nothing."""

    def expect(message):
        before = stamps(run.parent)
        with pytest.raises(RefusedError, match=message) as caught:
            check_removable(run)
        assert (caught.value.exit_code, bool(caught.value.hint)) == (6, True)
        assert stamps(run.parent) == before

    return expect


def removed(run):
    check_removable(run)
    remove_run(run)
    return not os.path.lexists(run)


# --- removal


def test_a_run_is_removed_and_nothing_else(run):
    rest = {name: content for name, content in snapshot(run.parent).items() if name.split("/")[0] != "net"}
    assert len(rest) == 6
    assert removed(run)
    assert snapshot(run.parent) == rest


RUNS = {
    "pictures and a report": {"to": ["png", "html", "stats"], "views": ["maps", "kernels"]},
    "everything that is shared": {"views": ["maps", "pca"], "style": Style(norm="run", pca="shared"), "to": ["png", "html"]},
    "events and values": {"to": ["tensorboard", "raw", "npz"]},
    "top images": {"to": ["png", "html"], "views": ["top"]},
    "a film": {"to": ["gif"]},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", RUNS)
def test_all_files_of_a_real_run_are_removed(kind, tmp_path):
    for name in ("0.png", "more/1.png"):
        paint(tmp_path / "in" / name, len(name))
    (tmp_path / "in" / "damaged.png").write_bytes(b"no image")
    summary = draw(tmp_path / "in", out=tmp_path / "out", **RUNS[kind])
    assert (summary.done, summary.failed) == (2, 1)
    assert removed(summary.directory)
    assert snapshot(tmp_path / "out") == {}


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_a_run_of_shards_is_removed(tmp_path):
    for number in range(3):
        paint(tmp_path / "in" / f"{number}.png", number)
    summary = draw(tmp_path / "in", out=tmp_path / "out", shard=2, to=["tar", "tensorboard", "stats"])
    assert removed(summary.directory)


def test_missing_and_damaged_files_are_removed_if_a_record_lists_them(run):
    (run / "a.png" / "input.png").unlink()
    (run / "cats/deep/b.png/input.png").write_bytes(b"damaged")
    (run / "cats" / "empty").mkdir()
    (run / "products.json").write_bytes(b"")
    (run / "survey.json").write_bytes(b'{\n "fmapviz": 2')
    (run / "stats.csv").write_text("old")  # a format of the run makes it
    assert removed(run)


@pytest.mark.parametrize("content", [b"", bytes(99), b'{\n "fmapviz": 2, "settin'])
def test_a_run_whose_own_record_is_damaged_is_removed(content, run):
    (run / "run.json").write_bytes(content)
    assert removed(run)


def test_files_of_a_killed_command_are_removed(run):
    (run / GONE / "deep").mkdir(parents=True)
    (run / GONE / "deep" / "half.png").write_bytes(b"half")
    (run / "a.png").rename(run / f"{GONE}-old")
    assert removed(run)


def test_links_to_its_own_files_are_removed_and_not_followed(run, tmp_path):
    (tmp_path / "other.png").write_bytes(b"mine")
    (run / "a.png" / "input.png").unlink()
    (run / "a.png" / "input.png").symlink_to(tmp_path / "other.png")
    (run / GONE).mkdir()
    (run / GONE / "folder").symlink_to(tmp_path)
    assert removed(run)
    assert (tmp_path / "other.png").read_bytes() == b"mine"


# --- refusals

FOREIGN = {
    "notes.txt": lambda path: path.write_text("mine"),
    "cats/notes.txt": lambda path: path.write_text("mine"),
    "cats/deep/.hidden": lambda path: path.write_text("mine"),
    "a.png/notes.txt": lambda path: path.write_text("mine"),
    "a.png/folder": lambda path: path.mkdir(),
    "index.html": lambda path: path.write_text("mine"),  # the run has no report
    "film.npz": lambda path: path.write_text("mine"),  # nor is it of a training
    "events.out.tfevents.1": lambda path: path.write_text("mine"),
    "products.json": lambda path: path.write_text('{"products": []}'),
    "link": lambda path: path.symlink_to("cats"),
    "broken": lambda path: path.symlink_to("nowhere"),
    "cats/loop": lambda path: path.symlink_to(".."),
    ".fmapviz-x": lambda path: path.write_text("mine"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_run_with_a_file_that_is_not_its_own_is_refused(name, run, refused):
    FOREIGN[name](run / name)
    refused(rf"^'{run / name}' was not made by fmapviz")


def test_the_first_foreign_file_is_named(run, refused):
    for name in ("z.txt", "b.txt", "c.txt"):
        (run / name).write_text("mine")
    refused(r"net/b.txt' was not made")


@pytest.mark.parametrize("content", [b"", b'{\n "fmapviz": 2, "unit": {"kind": "', b"mine", b"[1]"])
def test_a_unit_whose_record_does_not_list_its_files_is_refused(content, run, refused):
    (run / "a.png" / "unit.json").write_bytes(content)
    refused(r"a.png/unit.json' is damaged, so that its own files are unknown")


def test_a_unit_without_a_record_is_refused(run, refused):
    (run / "a.png" / "unit.json").unlink()
    refused(r"a.png/00.maps.png' was not made")


def test_a_forged_record_removes_no_file_outside(run, tmp_path):
    (tmp_path / "out" / "precious.txt").write_text("mine")
    for name in ("../../precious.txt", str(tmp_path / "out" / "precious.txt")):
        record = json.loads((run / "a.png" / "unit.json").read_bytes())
        del record["sha256"]
        record["files"].append({"name": name, "size": 4, "sha256": "0"})
        (run / "a.png" / "unit.json").write_bytes(dumps(record))
        with pytest.raises(RefusedError, match="damaged"):
            check_removable(run)
    with pytest.raises(RefusedError, match="damaged"):
        remove_run(run)
    assert (tmp_path / "out" / "precious.txt").read_text() == "mine"


def test_removal_of_a_run_with_a_run_inside_is_refused(run, refused):
    open_run(run / "cats", INFO)
    refused(r"net/cats/net' is a run of its own")


def test_a_run_that_is_being_written_is_refused(run, refused):
    with staging_folder(run):
        refused(r"^a command is writing to '.*net'")
    (run / f".fmapviz-{HOST}-{os.getppid()}-abc-1234").mkdir()  # a process that runs
    refused(r"^a command is writing to")


def test_staged_files_of_another_host_are_kept_for_a_day(run, refused):
    foreign = run / ".fmapviz-000000-4194305-abc-1234"
    foreign.mkdir()
    refused(r"^a command is writing to")
    os.utime(foreign, (1000, 1000))
    assert removed(run)


@pytest.mark.parametrize(("version", "said"), [(1, "version 0.2.0 of fmapviz or an earlier one"), (3, "a newer version")])
def test_a_run_of_another_format_is_refused(version, said, run, refused):
    document = json.loads((run / "run.json").read_bytes())
    (run / "run.json").write_text(json.dumps({**document, "fmapviz": version}))
    refused(f"was made by {said}")


def test_a_file_added_during_removal_is_kept(run, monkeypatch):
    """After the check, and even after the unit has got its hidden name."""
    check_removable(run)
    rename = remove.files.rename

    def rename_late(source, target):
        rename(source, target)
        if source.name == "b.png":
            (target / "notes.txt").write_text("mine")

    monkeypatch.setattr(remove.files, "rename", rename_late)
    with pytest.raises(RefusedError, match=r"b.png/notes.txt' was not made by fmapviz"):
        remove_run(run)
    assert (run / "cats/deep/b.png/notes.txt").read_text() == "mine"
    assert read_unit(run / "cats/deep/b.png")
    assert is_run(run)


# --- interruptions


@pytest.mark.parametrize("fault", [CRASH, FULL])
def test_the_removal_can_be_repeated_after_any_failed_operation(fault, run, tmp_path, monkeypatch, record_property):
    shutil.copytree(run, tmp_path / "copy")
    others = {name for name in snapshot(run.parent) if name.split("/")[0] != "net"}
    for number in count(1):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(tmp_path / "copy", run)
        with put_in(monkeypatch, Disk(number, fault)) as disk:
            try:
                remove_run(run)
            except (Crash, OutputError) as error:
                assert isinstance(error, Crash) == (fault == CRASH)  # noqa: PT017
        if not disk.failed:
            break
        if run.exists() and [*run.iterdir()]:
            assert is_run(run)
            remedies = {problem.remedy for place in verify(run) for problem in place.problems}
            assert remedies <= {"again"}, disk.operations  # run-level files; units are complete
            with put_in(monkeypatch, Disk()):
                assert removed(run)
        assert {*snapshot(run.parent)} - {"net"} == others
    record_property("points", number - 1)
    assert number > 8


def test_a_file_that_cannot_be_removed_is_an_output_error_and_the_run_stays_valid(run, monkeypatch):
    monkeypatch.setattr(remove.files, "remove_tree", lambda _path: None)
    with pytest.raises(OutputError, match=r"cannot remove '.*net/.fmapviz-") as caught:
        remove_run(run)
    assert caught.value.hint
    assert is_run(run)


# --- which run is meant


def test_a_run_is_found_by_its_name_and_by_its_path(run, monkeypatch):
    out = run.parent
    monkeypatch.chdir(out.parent)
    assert find_run("net", "out") == Path("out/net")
    assert find_run("out/net", "none") == Path("out/net")
    assert find_run("out/net/", "out") == Path("out/net")
    assert find_run("./out/other", "out") == Path("out/other")
    assert find_run(str(run), "none") == run
    monkeypatch.setenv("HOME", str(out))
    assert find_run("~/net", "none") == run
    monkeypatch.chdir(out)
    assert find_run("net", "none") == Path("net")
    monkeypatch.chdir(run)
    assert find_run(".", "none") == run
    (run / "cats" / "deep").resolve()
    monkeypatch.chdir(run / "cats")
    assert find_run("..", "none") == run


def test_a_run_in_out_is_preferred_to_a_local_directory_of_that_name(run, monkeypatch):
    here = open_run(run.parent.parent, changed(INFO, model="other"))
    monkeypatch.chdir(here.parent)
    assert find_run("other", "out") == Path("out/other")


def test_the_run_that_is_the_working_directory_can_be_removed(run, monkeypatch):
    monkeypatch.chdir(run)
    assert removed(find_run(".", "none"))


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("nett", "no such run: 'out/nett'", "did you mean 'out/net'"),
        ("out", "no run of fmapviz: 'out/out'|no such run: 'out/out'", ""),
        ("out/", "no run of fmapviz: 'out'", "holds run.json"),
        ("./out/cats", "no such directory: 'out/cats'", ""),
        ("linked", "a link, which is not followed: 'out/linked'", "it leads to"),
        ("notes.txt", "not a directory: 'out/notes.txt'", ""),
        ("theirs", "no run of fmapviz: 'out/theirs'", ""),
        ("", "no path can hold this: ''", ""),
        ("a\0b", "no path can hold this", ""),
        ("s3://photos/runs/net", "in local directories only", ""),
        ("x" * 300, "no such run", ""),
    ],
)
def test_a_directory_that_is_no_run_is_a_wrong_request(typed, message, hint, run, monkeypatch):
    monkeypatch.chdir(run.parent.parent)
    (run.parent / "linked").symlink_to("net")
    (run.parent / "notes.txt").write_text("mine")
    (run.parent / "theirs").mkdir()
    (run.parent / "theirs" / "run.json").write_text('{"version": 1}')
    with pytest.raises(RequestError, match=message) as caught:
        find_run(typed, "out")
    assert hint in caught.value.hint


def test_names_in_a_remote_directory_are_a_wrong_request():
    with pytest.raises(RequestError, match="in local directories only: 's3://photos/runs'"):
        find_run("net", "s3://photos/runs")


def test_removal_of_a_running_run_is_refused_at_each_moment(tmp_path):
    """Also between two images, when none is staged."""
    paint(tmp_path / "in" / "0.png", 0)
    paint(tmp_path / "in" / "1.png", 1)
    seen = []

    def look(event):
        directory = tmp_path / "out" / "net"
        if getattr(event, "status", "") == "done":
            seen.append(describe_run(directory).being_written)
            with pytest.raises(RefusedError, match="a command is writing"):
                check_removable(directory)

    summary = draw(tmp_path / "in", out=tmp_path / "out", to=["png"], name="net", on_event=look)
    assert seen == [True, True]
    assert not describe_run(summary.directory).being_written
    assert removed(summary.directory)
