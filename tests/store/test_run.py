from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from races import EIGHT_AT_ONCE
from run_infos import changed, run_info
from waiting import PATIENCE

from fmapviz.config import Style
from fmapviz.core.checksummed_json import dumps
from fmapviz.core.files import staging_folder
from fmapviz.errors import OutputError, RefusedError, RequestError
from fmapviz.store.failures import append_failure
from fmapviz.store.run import check_output, describe_contents, differences, open_run, read_run
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.store.verify import verify
from fmapviz.types import Failure, ImageFile

INFO = run_info(preparation="crop to 16x16", layers=("features.*",), to=("png",), versions={"fmapviz": "0.1.0"})
OTHERS = [
    changed(INFO, weights="random weights, seed 1"),
    changed(INFO, sha256="0" * 64),
    changed(INFO, preparation="crop to 32x32"),
    changed(INFO, types=("ReLU",)),
    changed(INFO, layers=()),
    changed(INFO, exclude=("features.0",)),
    changed(INFO, views=("maps", "inputs")),
    changed(INFO, to=("png", "tensorboard")),
    changed(INFO, style=Style(scale=2)),
]


def tree(directory):
    return {
        str(path.relative_to(directory)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    }


@pytest.fixture
def refused(tmp_path):
    """Expect a refusal that touches nothing."""

    def expect(message, info=INFO, name="mine"):
        before = tree(tmp_path)
        with pytest.raises(RefusedError, match=message) as caught:
            open_run(tmp_path, info, name=name)
        assert caught.value.exit_code == 6
        assert caught.value.hint
        assert tree(tmp_path) == before

    return expect


# --- one run


def test_a_run_records_its_request(tmp_path):
    directory = open_run(tmp_path / "new" / "out", INFO)
    assert directory == tmp_path / "new" / "out" / "net"
    assert [path.name for path in directory.iterdir()] == ["run.json"]
    document = json.loads((directory / "run.json").read_bytes())
    assert {key: value for key, value in document.items() if key != "sha256"} == {
        "fmapviz": 2,
        "fingerprint": INFO.fingerprint,
        "settings": {
            "model": "net",
            "weights": "random weights, seed 0",
            "sha256": None,
            "preparation": "crop to 16x16",
            "types": ["Conv2d"],
            "layers": ["features.*"],
            "exclude": [],
            "views": ["maps"],
            "formats": ["png"],
            "style": {
                "norm": "channel",
                "columns": None,
                "padding": 2,
                "channels": "all",
                "scale": 1,
                "colormap": None,
                "alpha": 0.5,
                "gray_input": True,
                "labels": None,
                "colorbar": False,
                "background": "black",
                "text_size": 13,
                "with_input": False,
                "pca": "image",
                "smooth": False,
                "query": None,
                "anchor": None,
                "clusters": 6,
                "foreground": False,
            },
            "predictions": 0,
            "targets": [],
            "output": None,
            "scores": None,
            "confidence": None,
            "patch": 32,
            "stride": None,
            "baseline": "mean",
            "steps": 32,
            "samples": None,
            "off": "zero",
            "dtype": "float32",
            "shard": None,
        },
        "versions": {"fmapviz": "0.1.0"},
    }
    assert read_run(directory) == document
    assert [path.name for path in (tmp_path / "new" / "out").iterdir()] == ["net"]


def test_the_same_settings_find_their_run_again(tmp_path):
    directory = open_run(tmp_path, INFO)
    before = tree(tmp_path)
    assert open_run(tmp_path, changed(INFO, versions={"fmapviz": "0.2.0"})) == directory
    assert tree(tmp_path) == before


def test_other_settings_never_mix(tmp_path):
    everyone = [INFO, *OTHERS]
    directories = [open_run(tmp_path, info) for info in everyone]
    assert [directory.name for directory in directories] == ["net", *(f"net-{number}" for number in range(2, 11))]
    assert [open_run(tmp_path, info) for info in reversed(everyone)] == directories[::-1]
    assert {path.name for path in tmp_path.iterdir()} == {directory.name for directory in directories}


def test_a_gap_in_the_numbers_of_runs_is_used(tmp_path):
    for info in OTHERS[:3]:
        open_run(tmp_path, info)
    (tmp_path / "net-2/run.json").unlink()
    (tmp_path / "net-2").rmdir()
    assert open_run(tmp_path, INFO) == tmp_path / "net-2"


def test_a_named_run_is_found_again(tmp_path):
    assert open_run(tmp_path, INFO, name="mine") == tmp_path / "mine"
    assert open_run(tmp_path, INFO, name="mine") == tmp_path / "mine"
    assert open_run(tmp_path, INFO) == tmp_path / "net"


def test_a_named_run_with_other_settings_is_refused(tmp_path, refused):
    open_run(tmp_path, INFO, name="mine")
    differences = [
        "weights: random weights, seed 0, not random weights, seed 1",
        "network: other weights, code, attributes or hooks",
        "another preprocessing",
        "types: Conv2d, not ReLU",
        "layers: features.*, not all",
        "exclude: none, not features.0",
        "views: maps, not maps,inputs",
        "formats: png, not png,tensorboard",
        "scale: 1, not 2",
    ]
    for info, difference in zip(OTHERS, differences, strict=True):
        refused(re.escape(f"mine' holds a run with other settings ({difference})"), info)


def test_of_many_other_settings_the_first_three_are_named(tmp_path):
    run = open_run(tmp_path, INFO)
    other = changed(INFO, weights="best", sha256="0", views=("mean",), to=("npz",), style=Style(columns=4), targets="dog")
    expected = "weights: random weights, seed 0, not best; views: maps, not mean; formats: png, not npz; 2 more"
    assert describe_contents(run, other) == f"a run with other settings ({expected})"
    assert (
        describe_contents(run, changed(INFO, layers=(), predictions=3))
        == "a run with other settings (layers: features.*, not all)"
    )
    assert describe_contents(run, changed(other, model="vgg")) == "a run with other settings (model: net, not vgg)"


def test_of_all_settings_only_those_that_differ_are_named(tmp_path):
    options = {
        "layers": ("0", "1"),
        "exclude": ("2",),
        "views": ("maps", "gradcam"),
        "targets": ("top1", "3"),
        "to": ("png", "raw"),
    }
    given = run_info(types=("Conv2d", "Linear"), sha256="0" * 64, style=Style(norm="fixed:0,1"), **options)
    info = replace(given, code={"energy": "abc"}, against={"model": "other", "weights": "random", "sha256": None})
    recorded = read_run(open_run(tmp_path, info))["settings"]
    assert recorded == info.settings
    assert differences(recorded, info.settings) == []
    style = info.settings["style"]
    changes = [{"style": {**style, name: "another"}} for name in style]
    changes += [{name: "another"} for name in info.settings.keys() - {"style", "against"}]
    for change in changes:
        assert len(differences({**recorded, **change}, info.settings)) == 1, change


def test_an_empty_directory_may_be_used(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "mine").mkdir()
    assert open_run(tmp_path, INFO) == tmp_path / "net"
    assert open_run(tmp_path, INFO, name="mine") == tmp_path / "mine"
    assert (tmp_path / "mine" / "run.json").is_file()


FOREIGN = {
    "files": lambda place: (place.mkdir(), (place / "notes.txt").write_text("mine")),
    "a damaged run.json": lambda place: (place.mkdir(), (place / "run.json").write_text('{"fmapviz": 2, "fing')),
    "another program's run.json": lambda place: (place.mkdir(), (place / "run.json").write_text('{"version": "1"}')),
    "a run.json that is a list": lambda place: (place.mkdir(), (place / "run.json").write_text("[1]")),
    "a run.json of binary data": lambda place: (place.mkdir(), (place / "run.json").write_bytes(b"\xff\0")),
    "a run.json that is a directory": lambda place: (place / "run.json").mkdir(parents=True),
    "a file in its place": lambda place: place.write_text("mine"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_not_changed(kind, tmp_path, refused):
    FOREIGN[kind](tmp_path / "net")
    FOREIGN[kind](tmp_path / "net-2")
    FOREIGN[kind](tmp_path / "mine")
    refused(r"mine' holds files that fmapviz did not make")
    before = tree(tmp_path)
    assert open_run(tmp_path, INFO) == tmp_path / "net-3"
    assert open_run(tmp_path, INFO) == tmp_path / "net-3"
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("left", [b"", bytes(300), b'{\n "fmapviz": 2,\n "finger'])
@pytest.mark.parametrize("images", [0, 1])
def test_a_run_whose_record_a_power_failure_destroyed_continues(left, images, tmp_path):
    directory = open_run(tmp_path, INFO)
    whole = (directory / "run.json").read_bytes()
    for number in range(images):
        with staging_folder(directory) as staging:
            commit(
                staging,
                directory,
                image_key(ImageFile(f"/{number}", f"{number}", {"size": 1, "mtime_ns": 1})),
                {"run": INFO.fingerprint},
            )
    (directory / "run.json").write_bytes(left)
    if images:
        assert open_run(tmp_path, changed(INFO, weights="others")) == tmp_path / "net-2"
    assert (directory / "run.json").read_bytes() == left
    assert open_run(tmp_path, INFO) == directory
    assert (directory / "run.json").read_bytes() == whole


def test_a_run_whose_record_was_deleted_continues_if_a_unit_identifies_it(tmp_path):
    directory = open_run(tmp_path, INFO)
    with staging_folder(directory) as staging:
        commit(staging, directory, image_key(ImageFile("/a", "a", {"size": 1, "mtime_ns": 1})), {"run": INFO.fingerprint})
    (directory / "run.json").unlink()
    assert open_run(tmp_path, INFO) == directory
    assert next(iter(verify(tmp_path))).problems == ()


def test_any_flipped_byte_of_a_run_is_repaired(tmp_path):
    directory = open_run(tmp_path, INFO)
    with staging_folder(directory) as staging:
        commit(staging, directory, image_key(ImageFile("/a", "a", {"size": 1, "mtime_ns": 1})), {"run": INFO.fingerprint})
    whole = (directory / "run.json").read_bytes()
    for position in (*range(40), *range(40, len(whole), 11)):
        damaged = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        (directory / "run.json").write_bytes(damaged)
        open_run(tmp_path, INFO, name="net")
        assert (directory / "run.json").read_bytes() == whole


def test_a_dangling_link_in_place_of_a_run_is_not_changed(tmp_path, refused):
    (tmp_path / "mine").symlink_to(tmp_path / "nowhere")
    refused(r"mine' holds files that fmapviz did not make")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("version", "said"), [(1, "version 0.2.0 of fmapviz or an earlier one"), (3, "a newer version of")])
def test_a_run_of_another_format_is_refused(version, said, tmp_path, refused):
    for name in ("net", "mine"):
        document = json.loads((open_run(tmp_path, INFO, name=name) / "run.json").read_bytes())
        (tmp_path / name / "run.json").write_bytes(dumps({**document, "fmapviz": version, "fingerprint": ["other"]}))
        with pytest.raises(RefusedError, match=f"{name}' was made by {said}"):
            list(verify(tmp_path / name))
    refused(f"mine' was made by {said}")
    refused(f"net' was made by {said}", name=None)


@pytest.mark.parametrize("name", ["o" * 300, "o/" * 5000])
def test_a_directory_of_too_long_a_name_is_an_output_error(name, tmp_path):
    with pytest.raises(OutputError, match="File name too long"):
        check_output(tmp_path / name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a\\b", "a\nb", "a\x1b[31m"])
def test_an_invalid_name_is_a_wrong_request(name, tmp_path):
    with pytest.raises(RequestError, match="not a directory name"):
        open_run(tmp_path / "out", INFO, name=name)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("model", "directory"),
    [
        ("timm:resnet18.a1_in1k", "timm_resnet18.a1_in1k"),
        ("../my nets/my_net.py:build(path='a/b')", "my_net.py_build_path__a_b"),
        ("../../etc", "_.._etc"),
        ("..", "model"),
        ("", "model"),
        ("my net/v2", "my_net_v2"),
        ("a\nb", "a_b"),
        ("netz-ä_2", "netz-ä_2"),
    ],
)
def test_the_directory_of_a_model_stays_inside_out(model, directory, tmp_path):
    assert open_run(tmp_path / "out", changed(INFO, model=model)) == tmp_path / "out" / directory
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- where nothing can be written


@pytest.mark.parametrize("out", [".", "a", "a/b/c", "a/../b"])
def test_a_check_of_a_writable_directory_leaves_no_trace(out, tmp_path):
    check_output(tmp_path / out)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("out", ["file", "file/a", "file/a/b", "link", "link/a"])
def test_a_directory_in_or_below_a_file_is_an_output_error(out, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=rf"not a directory: '{tmp_path}/{out.split('/')[0]}'") as caught:
        check_output(tmp_path / out)
    assert (caught.value.exit_code, caught.value.hint) == (5, "choose another out=")
    with pytest.raises(OutputError):
        open_run(tmp_path / out, INFO)
    assert tree(tmp_path) == before


def test_a_directory_behind_a_link_is_accepted(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_output(tmp_path / "link")
    assert open_run(tmp_path / "link", INFO) == tmp_path / "link" / "net"
    assert (tmp_path / "real/net/run.json").is_file()


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from fmapviz.errors import FmapvizError
from fmapviz.store.run import check_output, describe_contents, open_run
from fmapviz.config import RunConfig, RunInfo, Style
from fmapviz.types import Failure, ImageFile

info = RunInfo("net", "", None, "", RunConfig("net"))
if os.getuid() == 0:
    os.setuid(65534)
out = Path(sys.argv[1])
for step in (lambda: check_output(out / "sealed"), lambda: open_run(out / "sealed", info), lambda: open_run(out, info).name):
    try:
        print(step())
    except FmapvizError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.thorough
def test_permissions_are_checked(run_python):
    """A place that is read-only, and one where a directory of that name cannot be looked into."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own cannot be entered by other users
        out = Path(folder)
        (out / "net/secret").mkdir(parents=True)
        (out / "sealed").mkdir()
        for path, mode in ((out / "net", 0o000), (out / "sealed", 0o555), (out, 0o777)):
            path.chmod(mode)
        result = run_python(UNPRIVILEGED, out)
        (out / "net").chmod(0o700)
        assert result.stderr == ""
        assert result.stdout.splitlines() == [
            f"OutputError cannot write to '{out}/sealed': read-only, or not permitted",
            f"OutputError cannot write to '{out}/sealed/net': Permission denied",
            "net-2",
        ]


# --- failures


def test_failures_are_appended_line_by_line(tmp_path):
    first = Failure("/photos/a.png", "E_DECODE", "image is damaged: '/photos/a.png'")
    second = Failure(os.fsdecode(b"/photos/\xe9\n.png"), "E_FORMAT", "not an image", "look at it")
    for failure in (first, second):
        append_failure(tmp_path, failure)
    lines = (tmp_path / "failures.jsonl").read_text(encoding="ascii").splitlines()
    noted = [json.loads(line) for line in lines]
    assert all(entry.pop("time") > 1.7e9 for entry in noted)
    assert all(len(entry.pop("sha256")) == 64 for entry in noted)
    assert noted == [
        {"path": "/photos/a.png", "code": "E_DECODE", "message": "image is damaged: '/photos/a.png'", "hint": None},
        {"path": "/photos/\udce9\n.png", "code": "E_FORMAT", "message": "not an image", "hint": "look at it"},
    ]


FULL = """
import os, resource, sys
from pathlib import Path
from fmapviz.errors import OutputError
from fmapviz.store.failures import append_failure
from fmapviz.types import Failure

run, limit = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    append_failure(run, Failure("a.png", "E_DECODE", "x" * 100))
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("room", [0, 50])
def test_a_failure_that_cannot_be_recorded_is_an_output_error(room, tmp_path):
    """A limit on the size of a file stands for the full disk; it holds for files of standard streams, too."""
    (tmp_path / "failures.jsonl").write_text("{}\n")
    command = [sys.executable, "-c", FULL, tmp_path, str(room + 3)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert result.stderr == ""
    assert result.stdout.startswith(f"cannot write to '{tmp_path}")


def test_a_failure_in_a_removed_run_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="No such file"):
        append_failure(tmp_path / "gone", Failure("a.png", "E_DECODE", "damaged"))


# --- many processes

MANY = """
import os, sys
from dataclasses import replace
from pathlib import Path
from fmapviz.store.failures import append_failure
from fmapviz.store.run import open_run
from fmapviz.config import RunConfig, RunInfo, Style
from fmapviz.types import Failure, ImageFile

out, task = Path(sys.argv[1]), sys.argv[2]
info = RunInfo("net", "", None, "", RunConfig("net"))

def work(process):
    directory = open_run(out, replace(info, weights=str(process)) if task == "others" else info)
    for number in range(25):
        append_failure(directory, Failure(f"{process} {number}", "E_DECODE", "x" * 5000))
    (out.parent / f"{process}").write_text(directory.name)

"""


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["same", "others"])
def test_eight_processes_begin_a_run_concurrently(task, tmp_path, run_python):
    result = run_python(MANY + EIGHT_AT_ONCE, tmp_path / "out", task)
    assert (result.stdout, result.stderr) == ("", "")
    chosen = sorted((tmp_path / str(process)).read_text() for process in range(8))
    expected = ["net"] * 8 if task == "same" else sorted(["net", *(f"net-{number}" for number in range(2, 9))])
    assert chosen == expected
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(set(expected))
    noted = [
        json.loads(line)["path"] for path in tmp_path.glob("out/*/failures.jsonl") for line in path.read_text().splitlines()
    ]
    assert sorted(noted) == sorted(f"{process} {number}" for process in range(8) for number in range(25))


KILLED = """
import os, signal, sys
from pathlib import Path
from fmapviz.core.files import staging_folder

left = [staging_folder(Path(place)) for place in sys.argv[1:]]
for staged in left:
    staged.__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_staged_files_of_killed_processes_are_removed(tmp_path, run_python):
    directory = open_run(tmp_path, INFO)
    run_python(KILLED, tmp_path, directory)
    assert len([path for path in tmp_path.rglob("*") if path.name.startswith(".fmapviz-")]) == 2
    assert open_run(tmp_path, INFO) == directory
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["net", "net/run.json"]
