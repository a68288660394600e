"""The digest of a run is that of its settings and contents, and nothing else changes it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import thorough
from documents import blocks_of
from faults import SHARDS, Scenario
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_files import paint
from recorded_runs import digest_of, forge
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from fmapviz.config import Part, Style
from fmapviz.core import checksummed_json
from fmapviz.formats.tensorboard.event_file import lasting_digest
from fmapviz.store.digest import Digests, content_of
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.verify import verify_copy

KINDS = {
    "everything": {"to": ["tensorboard", "png", "html", "raw", "npz", "stats", "tar", "svg"]},
    "events alone": {"to": ["tensorboard"], "views": ["maps"]},
    "an archive": {"to": ["tar"], "views": ["maps"]},
    "shared ranges": {"to": ["png", "html"], "style": Style(norm="run")},
    "shards": SHARDS,
}
NOT_COUNTED = {"report.js", "index.parquet", "ranking.parquet"}  # they name images by their paths


def paint_all(folder, *, later=0):
    for number, name in enumerate(("a.png", "b.png", "more/c.png")):
        path = paint(folder / name, number)
        os.utime(path, ns=(10**18 + later, 10**18 + later))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind, by its name."""
    place = tmp_path_factory.mktemp("runs")
    paint_all(place / "in")
    return {kind: Scenario(options).run(place / "in", place / kind).directory for kind, options in KINDS.items()}


@pytest.fixture
def copied(runs, tmp_path):
    """Copy a run of a kind."""
    return lambda kind: shutil.copytree(runs[kind], tmp_path / "copy")


# --- what does not change it


@pytest.mark.parametrize("kind", ["everything", *thorough("events alone", "an archive", "shared ranges", "shards")])
def test_another_time_place_and_number_of_workers_do_not_change_it(kind, runs, tmp_path):
    paint_all(tmp_path / "elsewhere", later=7)
    other = Scenario(KINDS[kind]).run(tmp_path / "elsewhere", tmp_path / "out", workers=2, name="other")
    assert digest_of(other.directory) == digest_of(runs[kind]) != None  # noqa: E711  not None


@pytest.mark.thorough
def test_parts_and_another_order_do_not_change_it(runs, tmp_path):
    folder = paint_all(tmp_path / "in")
    for number in (2, 1):
        Scenario(KINDS["events alone"]).run([folder], tmp_path / "parts", part=Part(number, 2))
    for inputs in (folder, [folder / "b.png", folder]):
        Scenario(KINDS["events alone"]).run(inputs, tmp_path / "order")
    assert digest_of(tmp_path / "parts") == digest_of(tmp_path / "order") == digest_of(runs["events alone"])


@pytest.mark.thorough
def test_shards_in_parts_have_the_same_digest(runs, tmp_path):
    paint_all(tmp_path / "in")
    for number in (2, 1):
        Scenario(SHARDS).run([tmp_path / "in"], tmp_path / "out", part=Part(number, 2))
    assert digest_of(tmp_path / "out") == digest_of(runs["shards"])


@pytest.mark.thorough
def test_a_remote_run_has_the_digest_of_a_local_one(bucket, runs, tmp_path):
    options = {"to": ["tensorboard", "png", "stats", "tar"]}
    paint_all(tmp_path / "in")
    local = Scenario(options).run(tmp_path / "in", tmp_path / "out")
    Scenario(options).run(tmp_path / "in", "s3://photos/out")
    assert digest_of("s3://photos/out") == digest_of(local.directory)


def test_other_settings_change_it(runs, tmp_path):
    paint_all(tmp_path / "in")
    other = Scenario({**KINDS["events alone"], "predictions": 2}).run(tmp_path / "in", tmp_path / "out")
    assert digest_of(other.directory) != digest_of(runs["events alone"])


# --- what changes it


@pytest.mark.parametrize(
    ("kind", "unit"), [("everything", "a.png"), *thorough(("everything", "_model"), ("shards", "shard-000000"))]
)
def test_each_file_of_a_unit_counts(kind, unit, copied):
    run = copied(kind)
    expected = digest_of(run)
    for path in sorted((run / unit).iterdir()):
        if path.name in {"unit.json", "events.out.tfevents.fmapviz", "pictures.tar"}:
            continue
        before = {name: (run / unit / name).read_bytes() for name in ("unit.json", path.name)}
        forge(run / unit, path.name, before[path.name][:-1] + bytes([before[path.name][-1] ^ 1]))
        assert (digest_of(run, partial=True) == expected) == (path.name in NOT_COUNTED), path.name
        for name, data in before.items():
            (run / unit / name).write_bytes(data)


@pytest.mark.parametrize(("kind", "unit"), [("events alone", "a.png"), ("shards", "shard-000000")])
def test_a_picture_in_an_event_file_counts_and_the_time_does_not(kind, unit, copied):
    run = copied(kind)
    expected, name = digest_of(run), "events.out.tfevents.fmapviz"
    data = (run / unit / name).read_bytes()
    picture = data.index(b"IDAT")
    for position, is_counted in ((picture + 9, True), (12 + 3, False)):  # the first field of the first event is its time
        forge(run / unit, name, data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert (digest_of(run, partial=True) != expected) == is_counted


def test_a_picture_in_an_archive_counts(copied):
    run = copied("an archive")
    expected, data = digest_of(run), (run / "a.png/pictures.tar").read_bytes()
    position = data.index(b"IDAT") + 9
    forge(run / "a.png", "pictures.tar", data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    assert digest_of(run) not in {expected, None}
    forge(run / "a.png", "pictures.tar", b"no archive" * 100)
    assert digest_of(run) is None


# --- others compute it


def shell_digest(place):
    """Return what the lines of the guide print for the run `runs/shapesnet` in a directory."""
    (script,) = [block.text for block in blocks_of("reliability") if block.kind == "bash" and "sha256sum" in block.text]
    found = subprocess.run(["bash", "-c", script], cwd=place, capture_output=True, text=True, check=True)
    return f"sha256:{found.stdout.split()[0]}"


def test_the_guide_computes_it_with_shell_tools(runs, tmp_path):
    place = tmp_path / "runs"
    paint_all(tmp_path / "in")
    for name in ("_top/a.png", "unit.json/a.png", "report.js/a.png"):
        paint(tmp_path / "in" / name, 5)
    shutil.copy(tmp_path / "in/a.png", tmp_path / "_top")
    Scenario({"to": ["png", "html", "stats"]}).run([tmp_path / "in", tmp_path / "_top"], place, name="shapesnet")
    assert shell_digest(tmp_path) == digest_of(place)


NAMES = st.sampled_from(
    ["report.js", "unit", "images", "files", 'a"path', '{"path": "x", ', "settings", "unit.json", "\n", "\\", "ü", "}", "  "]
) | st.text(max_size=9)
ITEMS = st.lists(st.dictionaries(st.sampled_from(["path", "name", "size", "object"]) | NAMES, NAMES, max_size=3), max_size=3)
FILES = st.lists(st.sampled_from(["report.js", "00_0.maps.png", "report.json", "xreport.js"]), unique=True)
FIELDS = st.dictionaries(st.sampled_from(["layers", "images", "model"]) | NAMES, ITEMS | NAMES, max_size=4)


def record_of(fields, listed, kind="image"):
    key = {"kind": kind, "path": "/a.png", "name": "a.png", "version": {"size": 1}}
    entries = [{"name": name, "size": 1, "sha256": "ab"} for name in listed]
    fixed = {"fmapviz": 2, "unit": key, "files": entries}
    return checksummed_json.dumps(
        {
            "fmapviz": 2,
            "unit": key,
            **{name: fields[name] for name in fields if name not in {*fixed, "sha256"}},
            "files": entries,
        }
    )


@pytest.mark.thorough
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=FIELDS, listed=FILES, kind=st.sampled_from(["image", "top"]), other=st.sampled_from(["_top", "_top~1", "_top/a"])
)
def test_the_shell_tools_agree_whatever_a_record_holds(fields, listed, kind, other, tmp_path):
    run = tmp_path / "runs/shapesnet"
    shutil.rmtree(run, ignore_errors=True)
    digests = Digests()
    for name, record in {
        "run.json": checksummed_json.dumps({**fields, "fmapviz": 2, "settings": fields}),
        "a.png/unit.json": record_of(fields, listed),
        f"{other}/unit.json": record_of({}, listed, kind),
    }.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record)
        digests.note(path.parent, content_of(path.parent, Path.open), is_run=path.name == "run.json")
    assert shell_digest(tmp_path) == digests.digest(run)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=FIELDS, other=FIELDS, listed=FILES)
def test_each_field_of_a_record_counts_but_the_images_of_a_shard(fields, other, listed, tmp_path):
    contents = []
    for each in (fields, other):
        (tmp_path / "unit.json").write_bytes(record_of(each, listed))
        contents.append(content_of(tmp_path, Path.open))
    kept = [
        [(name, "items" if name == "images" and has_objects(value) else value) for name, value in each.items()]
        for each in (fields, other)
    ]  # fmt: skip
    reserved = {"fmapviz", "unit", "files", "sha256"}
    one, two = ([entry for entry in each if entry[0] not in reserved] for each in kept)
    assert (contents[0] == contents[1]) == (one == two)


def has_objects(value):
    return isinstance(value, list) and bool(value)


FORMS = {
    "a path in the entry of a file": lambda data: data.replace(b'{"name": ', b'{"path": "x", "name": '),
    "another key in the entry of a file": lambda data: data.replace(b', "size": ', b', "more": 1, "size": ', 1),
    "all in one line": lambda data: data.replace(b"\n", b" "),
    "files in the line of the unit": lambda data: data.replace(b',\n "run": ', b', "run": '),
    "more spaces": lambda data: data.replace(b'\n "layers": ', b'\n  "layers": '),
    "a key twice": lambda data: data.replace(b'\n "run": ', b'\n "model": "x",\n "run": '),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_record_of_another_form_is_named_and_has_no_digest(form, copied):
    run = copied("everything")
    record = run / "a.png/unit.json"
    body = FORMS[form](record.read_bytes().rpartition(b',\n "sha256": "')[0])
    record.write_bytes(body + b',\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n')
    assert checksummed_json.is_intact(record.read_bytes())
    with local_copy(run) as copy:
        digests = Digests()
        problems = [problem for each in verify_copy(copy, digests=digests) for problem in each.problems]
    assert [each.path.relative_to(run).as_posix() for each in problems] == ["a.png/unit.json"]
    assert problems[0].kind == "damaged"
    assert digests.digest(run) is None


def test_tensorboard_reads_the_events_that_count(runs):
    path = runs["everything"] / "a.png/events.out.tfevents.fmapviz"
    digest = hashlib.sha256()
    for record in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(record)
        event.ClearField("wall_time")
        digest.update(event.SerializeToString(deterministic=True))
    with path.open("rb") as file:
        assert lasting_digest(file) == digest.hexdigest()


def test_a_name_that_is_two_lines_of_the_list_is_named(copied):
    run = copied("events alone")
    name = f"c.png/unit.json\n{hashlib.sha256(b'').hexdigest()}  ./b.png"
    (run / name).parent.mkdir(parents=True)
    shutil.move(run / "b.png", run / name)
    record = json.loads((run / name / "unit.json").read_bytes())
    del record["sha256"]
    record["unit"]["name"] = name
    (run / name / "unit.json").write_bytes(checksummed_json.dumps(record))
    assert digest_of(run) is None


# --- the command


@pytest.mark.thorough
def test_the_command_prints_it(runs, fmapviz, tmp_path):
    shutil.copytree(runs["events alone"], tmp_path / "runs/one")
    shutil.copytree(runs["an archive"], tmp_path / "runs/two")
    first, second = digest_of(tmp_path / "runs/one"), digest_of(tmp_path / "runs/two")
    done = fmapviz("verify", "runs")
    assert done.stdout.decode().splitlines()[1:] == [f"{first}  runs/one", f"{second}  runs/two"]
    assert fmapviz("verify", "runs/one", "-q").stdout.decode() == f"{first}\n"
    summary = json.loads(fmapviz("verify", "runs/one", "--json").stdout.splitlines()[-1])
    assert (summary["digest"], summary["digests"]) == (first, {"runs/one": first})
    summary = json.loads(fmapviz("verify", "runs", "--json", "--no-hash").stdout.splitlines()[-1])
    assert (summary["digest"], summary["digests"]) == (None, {})


def test_a_damaged_or_unfinished_run_has_none(copied):
    run = copied("everything")
    (run / "unfinished-0123456789ab.json").write_bytes(checksummed_json.dumps({"fmapviz": 2, "inputs": "a"}))
    assert digest_of(run) is None
    (run / "unfinished-0123456789ab.json").unlink()
    assert digest_of(run)
    (run / "a.png/input.png").unlink()
    assert digest_of(run) is None
    (run / "run.json").unlink()
    with local_copy(run) as copy:
        digests = Digests()
        list(verify_copy(copy, digests=digests))
    assert not any(digests.runs.values())
