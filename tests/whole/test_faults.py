"""Each operation of a run fails in turn: nothing is lost or partial, and the same command continues.

Some operations of some runs fail, in some ways; `make test-all` lets more of them fail, and `make torture` each in each way
in each run, with more images.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from cases import thorough
from failing_disk import CRASH, FULL, NAMES, PART, POWER, TORN
from faults import SCENARIOS, disturb

import fmapviz

POINTS = [
    ("a new run", CRASH, 17),
    ("a new run of shards", FULL, 29),
]
MORE_POINTS = [
    ("a new run", CRASH, 1),
    ("a new run", TORN, 3),
    ("a new run", FULL, 3),
    ("a new run by what its images have in common", CRASH, 3),
    ("a finished run that has grown", PART, 3),
    ("a finished run that has grown", PART, 29),
    ("a finished run that is drawn anew", CRASH, 4),
    ("a new run of shards", CRASH, 1),
    ("a new run of shards", TORN, 3),
    ("a new run of shards", FULL, 3),
    ("a finished run of shards that has grown", PART, 3),
    ("a finished run of shards that is drawn anew", CRASH, 3),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "fault", "step"), [*POINTS, *thorough(*MORE_POINTS)])
def test_a_command_repeated_after_any_failed_operation_has_the_same_tree(  # noqa: PLR0917
    name, fault, step, tmp_path, monkeypatch, record_property
):
    images = 2 if "shards" in name else 1
    points, damaged = disturb(SCENARIOS[name], fault, images, tmp_path, monkeypatch, step=step)
    record_property("points", points)
    assert points * step > 25
    assert not damaged


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "fault", "step"),
    [
        ("a new run that is synchronized", NAMES, 29),
        *thorough(
            ("a new run that is synchronized", NAMES, 4), ("a finished run that is drawn anew and synchronized", POWER, 4)
        ),
    ],
)
def test_a_power_failure_keeps_synchronized_files(  # noqa: PLR0917
    name, fault, step, tmp_path, monkeypatch, record_property
):
    points, damaged = disturb(SCENARIOS[name], fault, 1, tmp_path, monkeypatch, step=step)
    record_property("points", points)
    assert points * step > 80
    assert not damaged


@pytest.mark.thorough
def test_a_power_failure_damages_other_files_which_repair_restores(tmp_path, monkeypatch, record_property):
    points, damaged = disturb(SCENARIOS["a new run"], POWER, 1, tmp_path, monkeypatch, step=3, repair=True)
    record_property("points", points)
    assert damaged > points / 4


# --- there is no other way to the disk

FORBIDDEN = {
    "os": {"mkdir", "makedirs", "rename", "renames", "replace", "link", "symlink", "unlink", "remove", "rmdir", "removedirs"}
    | {"open", "write", "pwrite", "truncate", "ftruncate", "fsync", "mkfifo", "mknod"},
    "shutil": {"rmtree", "copy", "copy2", "copyfile", "copytree", "move"},
    "Path": {"mkdir", "rename", "unlink", "rmdir", "touch", "write_text", "write_bytes", "symlink_to", "hardlink_to"},
}
READING = {
    "fmapviz/cli/app.py",  # standard input
    "fmapviz/cli/printing.py",  # broken standard output becomes /dev/null
    "fmapviz/cli/process.py",  # standard streams that are closed
    "fmapviz/cli/settings_file.py",
    "fmapviz/images/decode_pool.py",
}
NO_OUTPUT = {
    "fmapviz/core/platforms.py",  # locks, a directory's handle, the terminal
    "fmapviz/core/files.py",
    "fmapviz/models/weights/download.py",  # weights
    "fmapviz/images/decode_worker.py",  # memory
}


NAMES_OF_WRITING = set().union(*FORBIDDEN.values())


def calls(path):
    """Yield each call that may write: what its function is of, its name, and the call."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr in NAMES_OF_WRITING:
                yield ast.unparse(function.value), function.attr, node
            elif isinstance(function, ast.Name) and function.id in NAMES_OF_WRITING:
                yield "", function.id, node


def is_writing(of, name, call):
    if of in {"os", "shutil"}:
        return name in FORBIDDEN[of]
    if name == "open":
        given = call.args[0 if of else 1 :][:1] + [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
        return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wxa+") for mode in given)
    return of != "files" and name in FORBIDDEN["Path"]


@pytest.mark.thorough
def test_only_one_module_writes_to_the_disk():
    root = Path(fmapviz.__file__).parent.parent
    found = [
        f"{path.relative_to(root)}:{call.lineno} {of}.{name}"
        for path in sorted(root.glob("fmapviz/**/*.py"))
        if str(path.relative_to(root)) not in NO_OUTPUT
        for of, name, call in calls(path)
        if is_writing(of, name, call) and not (of == "os" and name == "open" and str(path.relative_to(root)) in READING)
    ]
    assert found == []
    assert {name for of, name, call in calls(root / "fmapviz/core/files.py") if is_writing(of, name, call)} >= {
        "open", "write", "mkdir", "rename", "replace", "link", "unlink", "rmdir", "rmtree", "fsync",
    }  # fmt: skip
