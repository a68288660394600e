from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from extras import needs
from faults import Net
from image_files import paint
from run_infos import changed, run_info
from tiny_runs import AS_IT_IS, runner

from fmapviz.config import Style
from fmapviz.core.files import staging_folder
from fmapviz.errors import OutputError, RequestError
from fmapviz.store import listing
from fmapviz.store.failures import append_failure
from fmapviz.store.listing import describe_run, list_runs
from fmapviz.store.run import differences, open_run
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import UnitKey
from fmapviz.types import Failure

INFO = run_info(to=("png", "stats"))
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
GONE = f".fmapviz-{HOST}-4194305-abc-1234"  # no process has this number
draw = runner(Net, to=["png"], preprocessing=AS_IT_IS, workers=1)


def finish(run, unit, kind="image"):
    with staging_folder(run) as staging:
        (staging / "input.png").write_bytes(b"x" * 5000)
        key = UnitKey(kind, f"/photos/{unit}", unit, {"size": 10, "mtime_ns": 20})
        return commit(staging, run, key, {"run": INFO.fingerprint})


@pytest.fixture
def run(tmp_path):
    directory = open_run(tmp_path / "out", INFO)
    finish(directory, "a.png")
    finish(directory, "cats/b.png")
    return directory


def names(directory):
    return [run.name for run in list_runs(directory)]


# --- what a run holds


def test_a_run_is_listed_with_its_settings_and_contents(run):
    (listed,) = list_runs(run.parent)
    assert (listed.name, listed.directory, listed.model, listed.weights) == ("net", run, "net", "random weights, seed 0")
    assert (listed.formats, listed.images, listed.failures) == (("png", "stats"), 2, 0)
    assert (listed.damaged, listed.being_written, listed.killed, listed.first, listed.differences) == (
        *[False] * 3,
        None,
        (),
    )
    assert listed == describe_run(run)


def test_the_listed_size_is_the_disk_usage(run):
    everything = [run, *run.rglob("*")]
    files = [path for path in everything if path.is_file()]
    folders = [path for path in everything if path.is_dir()]
    assert len(folders) == 4
    in_blocks = sum(-(-path.stat().st_size // 4096) * 4096 for path in files)
    assert describe_run(run).bytes == in_blocks + 4096 * len(folders) > 2 * 8192


def test_the_time_of_a_run_is_that_of_its_newest_file(run):
    for number, path in enumerate(sorted(path for path in run.rglob("*") if path.is_file())):
        os.utime(path, (1000, 1000 + number))
    assert describe_run(run).written == 1004


def test_a_real_run_of_images_shards_and_the_model_is_counted(tmp_path):
    for number in range(3):
        paint(tmp_path / "in" / f"{number}.png", number)
    (tmp_path / "in" / "damaged.png").write_bytes(b"no image")
    summary = draw(tmp_path / "in", out=tmp_path / "out", to=["png", "html", "stats"], views=["maps", "kernels"])
    assert (summary.done, summary.failed) == (3, 1)
    listed = describe_run(summary.directory)
    assert (summary.directory / "_model").is_dir()
    assert (listed.images, listed.failures, listed.formats) == (3, 1, ("html", "png", "stats"))


@needs("pyarrow", "scale")
def test_only_drawn_images_of_shards_are_counted(tmp_path):
    for number in range(3):
        paint(tmp_path / "in" / f"{number}.png", number)
    (tmp_path / "in" / "damaged.png").write_bytes(b"no image")
    summary = draw(tmp_path / "in", out=tmp_path / "out", shard=2, to=["tar"])
    assert {path.name for path in summary.directory.glob("shard-*")} == {"shard-000000", "shard-000001"}
    listed = describe_run(summary.directory)
    assert (listed.images, listed.failures) == (3, 1)


def test_an_image_in_a_folder_with_a_reserved_name_is_counted(tmp_path):
    for name in ("_top/a.png", "shard-1/a.png", "_model.png", "x/_film/a.png"):
        paint(tmp_path / "in" / name, 1)
    summary = draw(tmp_path / "in", out=tmp_path / "out", views=["maps", "kernels"])
    assert describe_run(summary.directory).images == summary.done == 4


def test_an_input_that_failed_and_was_finished_since_is_no_failure(run):
    for path in ("/photos/a.png", "/photos/c.png", "/photos/c.png"):
        append_failure(run, Failure(path, "E_DECODE", "damaged"))
    assert describe_run(run).failures == 2
    now = time.time() + 10
    os.utime(run / "a.png" / "unit.json", (now, now))
    listed = describe_run(run)
    assert (listed.failures, listed.images) == (1, 2)


def test_a_forged_log_of_failures_is_read(run):
    lines = [{"path": 7, "time": "x"}, {"path": None, "time": 10**400}, {}, {"path": "/photos/a.png", "time": [1]}]
    (run / "failures.jsonl").write_text("\n".join([*map(json.dumps, lines), "[", "{"]))
    assert describe_run(run).failures == 2  # 7 and None; the third is None again, and the last has no time


def test_records_are_not_read_if_nothing_failed(run, monkeypatch):
    read = []
    monkeypatch.setattr(listing, "read_unit", lambda unit: read.append(unit.name))
    finish(run, "_film", kind="film")
    assert describe_run(run).images == 2
    assert read == ["_film"]


# --- which directories are runs


def test_runs_are_in_natural_order_and_other_directories_are_not_listed(run):
    out = run.parent
    for seed in range(1, 11):
        open_run(out, changed(INFO, weights=f"random weights, seed {seed}"))
    (out / "notes").mkdir()
    (out / "other").mkdir()
    (out / "other" / "run.json").write_text('{"version": "1"}')
    (out / "list").mkdir()
    (out / "list" / "run.json").write_text("[1]")
    (out / "run.json.txt").write_text("{}")
    (out / "deep").mkdir()
    open_run(out / "deep", INFO)
    (out / "loop").symlink_to(out)
    (out / "nowhere").symlink_to("nothing")
    (out / "folder").mkdir()
    (out / "folder" / "run.json").symlink_to(run / "run.json")
    (out / "pipe").mkdir()
    os.mkfifo(out / "pipe" / "run.json")
    (out / "dir" / "run.json").mkdir(parents=True)
    assert names(out) == ["net", *(f"net-{number}" for number in range(2, 12))]


def test_a_run_may_be_a_link_and_no_link_in_it_is_followed(run, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "link").symlink_to(run)
    (run / "loop").symlink_to(run)
    (listed,) = list_runs(tmp_path / "links")
    assert (listed.name, listed.images) == ("link", 2)


def test_a_directory_that_is_a_run_is_listed(run, monkeypatch):
    assert names(run) == ["net"]
    open_run(run, changed(INFO, model="inner"))
    assert names(run) == ["net", "inner"]
    monkeypatch.chdir(run)
    assert names(".") == ["net", "inner"]


def test_a_directory_without_runs_has_none(tmp_path):
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("none", "no such directory: 'none'"),
        ("x" * 300, "no such directory"),
        ("file", "not a directory: 'file'"),
        ("file/x", "no such directory: 'file/x'"),
        ("", "no path can hold this: ''"),
        ("a\0b", "no path can hold this"),
        ("s3://photos/runs", "in local directories only: 's3://photos/runs'"),
        ("s4://photos/runs", "in local directories only: 's4://photos/runs'"),
    ],
)
def test_addresses_and_files_are_refused_with_a_hint(typed, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(RequestError, match=message) as caught:
        names(typed)
    assert caught.value.hint


def test_a_tilde_is_the_home_directory(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.parent.parent))
    assert names("~/out") == ["net"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_is_an_output_error(run):
    run.parent.chmod(0)
    try:
        with pytest.raises(OutputError, match="cannot read"):
            names(run.parent)
    finally:
        run.parent.chmod(0o700)


# --- damaged runs, and those at work


@pytest.mark.parametrize(
    ("content", "model"),
    [
        (b"", None),
        (bytes(300), None),
        (b'{\n "fmapviz": 2,\n "fing', None),
        (b'{\n "fmapviz": 2}', None),
        (b'{\n "fmapviz": 2, "settings": 7}', None),
        (b'{\n "fmapviz": 2, "settings": {"model": 7, "weights": ["x"], "formats": "png", "style": []}}', None),
        (b'{\n "fmapviz": 2, "settings": {"model": "net", "formats": [null, {}], "style": {"norm": [1]}}}', "net"),
        (b'{\n "fmapviz": 99, "settings": {"model": "net"}}', "net"),
    ],
)
def test_a_run_with_a_damaged_record_is_listed_as_damaged(run, content, model):
    (run / "run.json").write_bytes(content)
    open_run(run.parent, changed(INFO, weights="w"), name="z")
    damaged, other = list_runs(run.parent)
    assert (damaged.name, damaged.damaged, damaged.model, damaged.images) == ("net", True, model, 2)
    assert not other.damaged
    assert damaged.first == (model and "z")  # its record was written later


def test_a_flipped_byte_is_listed_as_damage(run):
    assert not describe_run(run).damaged
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"Conv2d"', '"Conv3d"'))
    assert describe_run(run).damaged


def test_staged_files_show_whether_a_command_runs_or_was_killed(run):
    with staging_folder(run) as staging:
        (staging / "unit.json").write_text("{}")
        listed = describe_run(run)
        assert (listed.being_written, listed.killed, listed.images) == (True, False, 2)
        (run / GONE).mkdir()
        listed = describe_run(run)
        assert (listed.being_written, listed.killed) == (True, True)
    listed = describe_run(run)
    assert (listed.being_written, listed.killed) == (False, True)


# --- how runs of one model differ


def test_runs_of_one_model_differ_from_the_first(run):
    out = run.parent
    open_run(out, changed(INFO, style=Style(norm="layer", clusters=8)))
    open_run(out, changed(INFO, weights="best.pth", sha256="0" * 64))
    open_run(out, changed(INFO, model="vgg11"), name="net-x")
    open_run(out, INFO, name="same")
    found = {each.name: (each.first, each.differences) for each in list_runs(out)}
    assert found == {
        "net": (None, ()),
        "net-2": ("net", ("norm: layer, not channel", "clusters: 8, not 6")),
        "net-3": ("net", ("weights: best.pth, not random weights, seed 0",)),
        "net-x": (None, ()),
        "same": ("net", ()),
    }


def test_comparisons_are_listed_with_their_other_network(run):
    out = run.parent
    other = {"model": "net", "weights": "b.pth", "sha256": "b" * 64}
    open_run(out, changed(INFO, against=other))
    open_run(out, changed(INFO, against=other | {"weights": "c.pth", "sha256": "c" * 64}))
    series = {"series": "epoch_*.pt", "reference": "first"}
    open_run(out, changed(INFO, against=series, style=Style(norm="layer")))
    found = {each.name: (each.first, each.differences) for each in list_runs(out)}
    assert found == {
        "net": (None, ()),
        "net-diff": (None, ()),
        "net-diff-2": ("net-diff", ("against: net (c.pth, cccccccc), not net (b.pth, bbbbbbbb)",)),
        "net-diff-3": ("net-diff", ("against: the first, not net (b.pth, bbbbbbbb)", "norm: layer, not channel")),
    }


def test_a_comparison_and_a_run_differ_in_the_other_network():
    plain = {"model": "net", "views": ["maps"], "predictions": None, "types": ["Conv2d"]}
    compared = {**plain, "views": ["diff"], "predictions": 0, "types": [], "against": {"model": "net", "weights": "b.pth"}}
    assert differences(compared, plain) == ["against: net (b.pth), not nothing"]
    assert differences(plain, compared) == ["against: nothing, not net (b.pth)"]


def test_the_differences_of_damaged_settings_are_safe_to_show():
    hostile = {"model": "net", "x\x1b[31m": "\u202e", "style": {"norm": [[1]], "alpha": {"a": "\n"}}}
    plain = {"model": "net", "x\x1b[31m": 1, "style": {"norm": "channel", "alpha": 0.5}}
    for settings, others in ((hostile, plain), (plain, hostile), (None, plain), ([], hostile), ("x", 7)):
        assert all(each.isprintable() for each in differences(settings, others))
    assert len(differences(hostile, plain)) == 3
    assert differences(plain, plain) == []


def test_runs_are_yielded_as_soon_as_they_are_measured(run):
    """A run that is removed meanwhile is left out."""
    out = run.parent
    other = open_run(out, changed(INFO, model="vgg"))
    listed = list_runs(out)
    assert next(listed).name == "net"
    (other / "run.json").unlink()
    other.rmdir()
    assert list(listed) == []


def test_a_run_without_images_has_an_age(tmp_path):
    directory = open_run(tmp_path, INFO)
    listed = describe_run(directory)
    assert listed.images == 0
    assert abs(listed.written - (directory / "run.json").stat().st_mtime) < 1e-6
    assert replace(listed, images=1) != listed
