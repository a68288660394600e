"""`fmapviz runs`, as people and scripts type it."""

import json
import os
import pty
import re
import select
import time

import pytest
from fake_terminal import COMMAND, PLAIN, run_in_terminal
from run_infos import changed, run_info
from waiting import PATIENCE
from warm import HEEDING, start_process

from fmapviz.cli.runs import format_age
from fmapviz.config import Style
from fmapviz.core.files import staging_folder
from fmapviz.store.failures import append_failure
from fmapviz.store.run import open_run
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import image_key
from fmapviz.types import Failure, ImageFile

INFO = run_info("alexnet", to=("png",))


def finish(run, unit):
    with staging_folder(run) as staging:
        (staging / "input.png").write_bytes(b"x" * 100_000)
        return commit(
            staging,
            run,
            image_key(ImageFile(f"/photos/{unit}", unit, {"size": 10, "mtime_ns": 20})),
            {"run": INFO.fingerprint},
        )


@pytest.fixture
def out(tmp_path):
    """Two runs of one network, one of another, and a directory that is none."""
    first = open_run(tmp_path / "runs", INFO)
    finish(first, "a.png")
    finish(first, "b.png")
    append_failure(first, Failure("/photos/c.png", "E_DECODE", "damaged"))
    finish(open_run(tmp_path / "runs", changed(INFO, style=Style(norm="layer"))), "a.png")
    open_run(tmp_path / "runs", changed(INFO, model="vgg11"))
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def lines(data):
    return data.decode().splitlines()


def objects(data):
    return [json.loads(line) for line in lines(data)]


# --- the list


@pytest.mark.parametrize("words", [(), ("runs",), ("./runs",), ("--out", "runs"), ("runs/",)])
def test_runs_are_listed_as_a_table(words, out, fmapviz):
    shown = fmapviz("runs", *words)
    assert shown.returncode == 0
    table = lines(shown.stdout)
    assert table[0].split() == ["run", "model", "weights", "images", "failed", "size", "age", "formats", "state", "settings"]
    cells = [re.split(r" {2,}", line) for line in table[1:4]]
    assert [row[:5] for row in cells] == [
        ["alexnet", "alexnet", "random weights, seed 0", "2", "1"],
        ["alexnet-2", "alexnet", "random weights, seed 0", "1", "0"],
        ["vgg11", "vgg11", "random weights, seed 0", "0", "0"],
    ]
    assert [row[5] for row in cells] == ["233 kB", "119 kB", "8.19 kB"]
    assert all(re.fullmatch(r"\d+ (s|min)", row[6]) and row[7] == "png" for row in cells)
    assert [row[8:] for row in cells] == [["reference"], ["norm: layer, not channel"], []]
    assert len(table) == 4
    assert lines(shown.stderr) == ["3 runs: 3 images, 360 kB"]


def test_columns_are_aligned_for_names_of_any_length(out, fmapviz):
    open_run(out, changed(INFO, model="m" * 150), name="n" * 150)
    header, *rows = lines(fmapviz("runs").stdout)[:5]
    ends = [header.index("images") + len("images"), header.index("size") + len("size")]
    assert all(row[end - 1] != " " == row[end] for row in rows for end in ends)
    assert len({row.index("png") for row in rows}) == 1
    assert header.index("formats") == rows[0].index("png") > 300


def test_json_has_an_object_per_run_and_a_summary(out, fmapviz):
    (out / "alexnet" / ".fmapviz-000000-1-2-3").mkdir()
    shown = fmapviz("runs", "--json")
    assert (shown.returncode, shown.stderr) == (0, b"")
    first, second, third, summary = objects(shown.stdout)
    assert abs(first.pop("written") - time.time()) < PATIENCE
    assert first == {
        "event": "run", "name": "alexnet", "directory": "runs/alexnet", "model": "alexnet",
        "weights": "random weights, seed 0", "formats": ["png"], "images": 2, "expected": None,
        "state": "running", "reason": None, "failures": 1, "bytes": 237_568,
        "damaged": False, "being_written": True, "killed": False, "first": None, "differences": [],
    }  # fmt: skip
    assert (second["first"], second["differences"]) == ("alexnet", ["norm: layer, not channel"])
    assert (third["first"], third["images"]) == (None, 0)
    assert summary == {
        "event": "summary", "directory": "runs", "runs": 3, "images": 3, "failures": 1,
        "bytes": sum(each["bytes"] for each in (first, second, third)), "exit_code": 0,
    }  # fmt: skip


def test_the_state_of_a_run_is_marked(out, fmapviz):
    (out / "alexnet" / ".fmapviz-000000-1-2-3").mkdir()
    os.utime(out / "alexnet" / ".fmapviz-000000-1-2-3", (1000, 1000))
    (out / "alexnet-2" / "run.json").write_bytes(b"")
    with staging_folder(out / "vgg11"):
        table = lines(fmapviz("runs").stdout)
    assert [re.split(r" {2,}", line)[-1] for line in table[1:4]] == ["killed", "damaged", "running"]
    assert re.split(r" {2,}", table[2])[:4] == ["alexnet-2", "-", "-", "1"]
    assert len(table) == 4


def test_runs_of_the_same_settings_are_named(out, fmapviz):
    open_run(out, INFO, name="same")
    assert [line for line in lines(fmapviz("runs").stdout) if line.startswith("same ") and line.endswith("  as alexnet")]


def test_many_runs_have_one_line_each_with_their_differences_from_common_settings(tmp_path, fmapviz):
    """The run whose name comes first has settings of its own."""
    open_run(tmp_path / "runs", changed(INFO, style=Style(norm="signed", columns=3)), name="a")
    for number in range(12):
        open_run(tmp_path / "runs", changed(INFO, style=Style(scale=2 if number % 3 else 3)), name=f"b{number}")
    header, first, *others = lines(fmapviz("runs").stdout)
    assert len(others) == 12
    assert first.endswith("  norm: signed, not channel; columns: 3, not default; scale: 1, not 2")
    ends = [line[header.index("settings") :] for line in others]
    assert [ends[0], ends[1], ends[2], ends[3]] == ["scale: 3, not 2", "reference", "as b1", "scale: 3, not 2"]


def test_in_a_terminal_the_settings_are_shortened_to_its_width(tmp_path, fmapviz, warm):
    open_run(tmp_path / "runs", INFO, name="a")
    open_run(tmp_path / "runs", changed(INFO, style=Style(norm="signed", columns=3, scale=2, colormap="gray")), name="b")
    whole = lines(fmapviz("runs").stdout)
    ended = run_in_terminal(warm, COMMAND, "runs", place=tmp_path, answer=PLAIN, TERM="xterm", COLUMNS="110")
    shown = [
        line
        for line in re.sub(r"\x1b\[K|\r", "\n", ended.shown.decode()).splitlines()
        if line.startswith(("run ", "a ", "b "))
    ]
    assert len(whole[2]) > 110 == len(shown[2])
    assert shown[2].endswith("...")
    assert whole[2].startswith(shown[2][:-3])
    assert shown[:2] == whole[:2]


def test_runs_of_different_networks_have_no_column_of_settings(tmp_path, fmapviz):
    open_run(tmp_path / "runs", INFO)
    open_run(tmp_path / "runs", changed(INFO, model="vgg11"))
    assert "settings" not in lines(fmapviz("runs").stdout)[0]


def test_names_are_safe_to_show(out, fmapviz):
    (out / "alexnet").rename(out / "a\x1b[31m\n\u202eb")
    shown = fmapviz("runs")
    assert r"a\x1b[31m\n\u202eb  alexnet" in lines(shown.stdout)[1]
    assert all(line.isprintable() for line in lines(shown.stdout))


def test_a_directory_without_runs_is_an_empty_list(out, fmapviz):
    shown = fmapviz("runs", "runs/notes")
    assert (shown.returncode, shown.stdout, lines(shown.stderr)) == (0, b"", ["no runs in 'runs/notes'"])
    assert objects(fmapviz("runs", "runs/notes", "--json").stdout)[0]["runs"] == 0


def test_before_the_first_run_nothing_is_listed(tmp_path, fmapviz):
    shown = fmapviz("runs")
    assert (shown.returncode, shown.stdout) == (0, b"")
    assert lines(shown.stderr) == ["nothing was drawn here yet: no runs in 'runs'"]
    assert objects(fmapviz("runs", "--json").stdout)[0]["runs"] == 0
    assert fmapviz("runs", "runs").returncode == 2  # that directory was asked for
    (tmp_path / "runs").mkdir()
    assert lines(fmapviz("runs").stderr) == ["no runs in 'runs'"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["none"], "no such directory: 'none'", ""),
        (["runs", "notes"], "one directory at a time: 'runs', 'notes'", "`fmapviz runs remove NAME...`"),
        (["runs", "--out", "x"], "one directory at a time: 'runs', 'x'", ""),
        (["remvoe", "alexnet"], "one directory at a time: 'remvoe', 'alexnet'", "`fmapviz runs remove NAME...`"),
        (["--yes"], "--yes needs something to remove", ""),
        (["remove"], "missing argument 'NAME'", "./remove is a directory of that name"),
        (["remove", "--yes"], "missing argument 'NAME'", ""),
        (["s3://photos/runs"], "in local directories only: 's3://photos/runs'", ""),
        ([""], "no path can hold this: ''", ""),
        (["--out", ""], "no path can hold this: ''", ""),
        (["remove", "alexnet", "--out", "s3://photos/runs", "--yes"], "in local directories only", ""),
        (["remove", "alexnt", "--yes"], "no such run: 'runs/alexnt'", "did you mean 'runs/alexnet'"),
        (["remove", "alexnet", "notes", "--yes"], "no run of fmapviz: 'runs/notes'", ""),
        (["remove", "alexnet"], "cannot ask without a terminal", "--yes removes them without asking"),
    ],
)
def test_a_wrong_word_is_exit_2_without_a_removal(words, error, hint, out, fmapviz):
    result = fmapviz("runs", *words)
    assert (result.returncode, result.stdout) == (2, b"")
    first, *more = lines(result.stderr)
    assert first.startswith("error: ")
    assert error in first
    assert more
    assert hint in more[0]
    assert len([*out.iterdir()]) == 4


def test_help_names_runs_and_remove(fmapviz):
    shown = fmapviz("runs", "--help").stdout.decode()
    assert "[DIR] | remove NAME..." in shown
    assert "--yes" in shown


# --- removing


def test_runs_are_removed_without_a_question_with_yes(out, fmapviz):
    result = fmapviz("runs", "remove", "alexnet", "runs/vgg11", "--yes")
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == ["removed runs/alexnet (2 images, 233 kB)", "removed runs/vgg11 (0 images, 8.19 kB)"]
    assert sorted(path.name for path in out.iterdir()) == ["alexnet-2", "notes"]
    again = fmapviz("runs", "remove", "alexnet", "--yes")
    assert again.returncode == 2


def test_a_run_that_is_named_twice_is_removed_once(out, fmapviz):
    result = fmapviz("runs", "remove", "alexnet", "runs/alexnet", "./runs/alexnet/", "--yes", "--json")
    removed, summary = objects(result.stdout)
    assert (removed["event"], removed["directory"], removed["images"]) == ("removed", "runs/alexnet", 2)
    assert summary == {"event": "summary", "removed": 1, "kept": 0, "bytes": removed["bytes"], "exit_code": 0}


@pytest.mark.thorough
def test_a_directory_named_remove_is_a_path(out, fmapviz):
    out.rename(out.parent / "remove")
    assert len(lines(fmapviz("runs", "./remove").stdout)) == 4
    assert fmapviz("runs", "remove", "alexnet", "--out", "remove", "--yes").returncode == 0
    assert not (out.parent / "remove" / "alexnet").exists()


def test_a_foreign_file_is_exit_6_and_no_run_is_removed(out, fmapviz):
    (out / "vgg11" / "notes.txt").write_text("mine")
    result = fmapviz("runs", "remove", "alexnet", "vgg11", "--yes", "--json")
    assert result.returncode == 6
    assert lines(result.stderr) == [
        "error: 'runs/vgg11/notes.txt' was not made by fmapviz",
        "hint: move it away, and the same command continues",
    ]
    assert objects(result.stdout)[-1]["exit_code"] == 6
    assert (out / "alexnet" / "a.png" / "unit.json").exists()
    (out / "vgg11" / "notes.txt").unlink()
    assert fmapviz("runs", "remove", "alexnet", "vgg11", "--yes").returncode == 0


def test_a_damaged_unit_names_the_option_that_repairs_it(out, fmapviz):
    (out / "alexnet" / "a.png" / "unit.json").write_bytes(b"")
    result = fmapviz("runs", "remove", "alexnet", "--yes")
    assert result.returncode == 6
    assert "repairs it with --repair" in lines(result.stderr)[1]


def test_a_run_that_is_being_written_is_refused(out, fmapviz):
    with staging_folder(out / "alexnet"):
        result = fmapviz("runs", "remove", "alexnet", "--yes")
    assert result.returncode == 6
    assert "error: a command is writing to 'runs/alexnet'" in lines(result.stderr)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("answer", "is_removed"),
    [(b"y\n", True), (b"YES\n", True), (b"\n", False), (b"n\n", False), (b"yep\n", False), (b"\x04", False)],
)
def test_removal_asks_in_a_terminal(answer, is_removed, out, warm, tmp_path):
    code, shown = type_at(warm, tmp_path, ["runs", "remove", "alexnet"], b"[y/N] ", answer)
    assert code == 0
    assert b"remove runs/alexnet (2 images, 233 kB)? [y/N] " in shown
    assert (b"removed runs/alexnet" in shown) == is_removed
    assert (b"kept runs/alexnet" in shown) != is_removed
    assert shown.endswith(b"\n")
    assert b"kept" not in shown.splitlines()[-2]
    assert (out / "alexnet").exists() != is_removed
    assert (out / "alexnet-2").exists()


def type_at(warm, place, arguments, prompt, answer):
    """Run a command in a terminal, type an answer at its prompt; return its exit code and what the terminal shows."""
    ours, theirs = pty.openpty()
    words = ["-c", HEEDING, *arguments]
    process = start_process(warm, words, directory=place, streams=[theirs, theirs, theirs])
    os.close(theirs)
    shown, answered = b"", False
    while select.select([ours], [], [], PATIENCE)[0]:
        try:
            shown += os.read(ours, 1000)
        except OSError:  # the other end is closed
            break
        if prompt in shown and not answered:
            os.write(ours, answer)
            answered = True
    os.close(ours)
    return process.wait(PATIENCE), shown


def test_ages_have_one_unit():
    shown = {0: "0 s", -5: "0 s", 59.9: "59 s", 60: "1 min", 3599: "59 min", 3600: "1 h", 86_399: "23 h", 86_400: "1 day"}
    assert {seconds: format_age(seconds) for seconds in shown} == shown
    assert format_age(400 * 86_400) == "400 days"
