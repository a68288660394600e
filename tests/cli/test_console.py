"""The output of a run in a terminal, in a log file and as JSON."""

import json
import re
import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_infos import run_info

from fmapviz.cli import progress
from fmapviz.cli.console import Console
from fmapviz.cli.printing import print_json
from fmapviz.errors import printable
from fmapviz.events import Counted, Notice, Outcome, RunSummary, Started
from fmapviz.types import Failure, Prediction

INFO = run_info("alexnet", preparation="as trained", to=("png", "tensorboard"))
STARTED = Started(Path("runs/alexnet"), INFO)
DONE = Outcome("/a/x.png", "done", unit=Path("runs/alexnet/x.png"), notices=("first of 3 frames",), pictures=6, seconds=0.25)
FAILED = Outcome(
    "/a/\x1b.png", "failed", failure=Failure("/a/\x1b.png", "E_FORMAT", "no image: '/a/\x1b.png'", "look at it")
)


def summary(**changes):
    fields = {
        "directory": Path("runs/alexnet"), "found": 2, "done": 1, "skipped": 0, "failed": 1, "pictures": 6, "layers": 5,
        "not_executed": ("aux1.conv", "aux2.conv"), "undrawn": {"fc": "a vector (1, 10)"}, "failures": (FAILED.failure,),
        "seconds": 1.5,
    }  # fmt: skip
    return RunSummary(**{**fields, **changes})


def show_run(console):
    with console:
        for event in (STARTED, Notice("twice the same"), DONE, FAILED):
            console.show(event)
        console.show_summary(summary(), Path("my runs"))


def test_summaries_use_singular_and_plural(capsys):
    show_run(Console())
    out, err = capsys.readouterr()
    assert out.splitlines() == ["runs/alexnet", "tensorboard --logdir 'my runs'"]
    assert err.splitlines() == [
        "notice: twice the same",
        "notice: /a/x.png: first of 3 frames",
        r"error: no image: '/a/\x1b.png' [E_FORMAT]",
        "hint: look at it",
        "notice: not executed: 2 layers: aux1.conv, aux2.conv",
        "notice: not drawn: fc: a vector (1, 10)",
        "2 images: 1 done, 1 failed; 5 layers, 6 pictures in 1.5 s",
    ]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"done": 6}, "2 images at 3 checkpoints done: 5 layers, 6 pictures in 1.5 s"),
        ({"skipped": 6}, "2 images at 3 checkpoints already done in 1.5 s"),
        ({"skipped": 6, "unread": 1}, "2 images at 3 checkpoints already done, 1 checkpoint failed in 1.5 s"),
        (
            {"done": 6, "failed": 1, "unread": 1},
            "comparisons of an image at 3 checkpoints: 6 done, 1 failed, 1 checkpoint failed; 5 layers, 6 pictures in 1.5 s",
        ),
    ],
)
def test_images_and_checkpoints_of_a_series_are_counted_apart(counts, sentence, capsys):
    numbers = {"done": 0, "skipped": 0, "failed": 0, "unread": 0, **counts}
    unread = (Failure("epoch_1.pt", "E_WEIGHTS", "damaged"),) * numbers.pop("unread")
    numbers["failed"] += len(unread)
    shown = summary(**numbers, found=sum(numbers.values()), failures=unread, steps=3, not_executed=(), undrawn={})
    Console().show_summary(shown, Path("runs"))
    assert capsys.readouterr().err.splitlines() == [sentence]


def test_layers_that_are_not_drawn_for_one_reason_are_one_notice(capsys):
    Console().show_summary(
        summary(undrawn={**dict.fromkeys("abcdef", "a vector (1, 10)"), "g": "3 dimensions"}), Path("runs")
    )
    assert [line for line in capsys.readouterr().err.splitlines() if "not drawn" in line] == [
        "notice: not drawn: a, b, c, d and 2 more: a vector (1, 10)",
        "notice: not drawn: g: 3 dimensions",
    ]


def test_quiet_keeps_the_errors(capsys):
    show_run(Console(verbosity=-1))
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert [line.partition(":")[0] for line in err.splitlines()] == ["error", "hint"]


def test_verbose_has_a_line_per_image(capsys):
    show_run(Console(verbosity=1))
    assert "done /a/x.png (6 pictures, 0.25 s)" in capsys.readouterr().err.splitlines()


def show_predictions_and_failures(console):
    """Show one image with predictions, and two in which user code failed."""
    seen = (Prediction(3, "star\x1b", 0.987), Prediction(0, "sky", 0.01, "of the pixels"))
    report = 'Traceback (most recent call last):\n  File "net.py", line 3, in forward\nValueError: {}'
    with console:
        console.show(Outcome("/a/x.png", "done", unit=Path("runs/net/x.png"), pictures=6, seconds=0.25, predictions=seen))
        for number in (1, 2):
            failure = Failure("/a/y.png", "E_MODEL", f"the model failed: {number}", report=report.format(number))
            console.show(Outcome("/a/y.png", "failed", failure=failure))


def test_predictions_are_shown_once_per_image(capsys):
    show_predictions_and_failures(Console())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"/a/x.png: star\x1b 98.7 %, sky 1.0 % of the pixels"
    show_predictions_and_failures(Console(verbosity=1))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"done /a/x.png (6 pictures, 0.25 s): star\x1b 98.7 %, sky 1.0 % of the pixels"
    show_predictions_and_failures(Console(verbosity=-1))
    assert "star" not in capsys.readouterr().err
    show_predictions_and_failures(Console(json=True))
    assert json.loads(capsys.readouterr().out.splitlines()[0])["predictions"] == [
        {"index": 3, "class": "star\x1b", "score": 0.987, "probability": None, "logit": None, "scores": "softmax"},
        {"index": 0, "class": "sky", "score": 0.01, "probability": None, "logit": None, "scores": "softmax"},
    ]


def test_predictions_of_many_images_do_not_flood_the_terminal(capsys):
    seen = (Prediction(3, "star", 0.987),)
    for verbosity, lines in ((0, 20), (1, 30)):
        with Console(verbosity=verbosity) as console:
            for number in range(30):
                console.show(Outcome(f"/a/{number}.png", "done", pictures=1, predictions=seen))
        told = capsys.readouterr().err
        assert told.count("star 98.7 %") == lines
        assert told.count("predictions of further images are in unit.json") == (verbosity == 0)


def test_the_traceback_of_user_code_is_shown_once(capsys):
    show_predictions_and_failures(Console())
    err = capsys.readouterr().err
    assert err.count("Traceback") == 1
    assert err.count('File "net.py", line 3') == 1
    assert err.count("[E_MODEL]") == 2


def test_a_format_is_opened_by_this_python_if_its_program_is_not_found(capsys, tmp_path, monkeypatch):
    """As with pipx, `uv tool`, or an environment that is not active."""
    monkeypatch.setenv("PATH", str(tmp_path))
    show_run(Console())
    printed = shlex.split(capsys.readouterr().out.splitlines()[1])
    assert printed == [sys.executable, "-m", "tensorboard.main", "--logdir", "my runs"]
    assert find_spec(printed[2])
    show_run(Console(json=True))
    assert shlex.split(json.loads(capsys.readouterr().out.splitlines()[-1])["tensorboard"]) == printed
    (tmp_path / "tensorboard").touch(mode=0o755)
    show_run(Console())
    assert capsys.readouterr().out.splitlines()[1] == "tensorboard --logdir 'my runs'"


def test_json_is_one_object_per_line_and_ends_with_the_summary(capsys):
    show_run(Console(json=True))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["run", "notice", "image", "image", "summary"]
    assert events[0]["weights"] == "random weights, seed 0"
    assert events[2] == {
        "event": "image", "path": "/a/x.png", "status": "done", "unit": "runs/alexnet/x.png",
        "notices": ["first of 3 frames"], "pictures": 6, "seconds": 0.25, "predictions": [], "bytes": 0,
    }  # fmt: skip
    assert (events[3]["code"], events[3]["path"]) == ("E_FORMAT", "/a/\x1b.png")
    assert (events[4]["exit_code"], events[4]["tensorboard"]) == (3, "tensorboard --logdir 'my runs'")


@pytest.mark.parametrize("json_lines", [False, True])
def test_options_in_all_messages_of_a_run_are_those_of_the_command_line(capsys, json_lines):
    advice = "the highest is 0.284; confidence=0.28 shows it"
    path = "/a/confidence=0.28.png"
    with Console(json=json_lines) as console:
        console.show(STARTED)
        console.show(Notice(advice))
        console.show(Outcome(path, "done", notices=(advice,)))
        console.show(Outcome(path, "failed", failure=Failure(path, "E_NOTHING", "nothing", "confidence=0.28 shows it")))
        console.show_summary(summary(undrawn={"fc": advice}), Path("runs"))
    out, err = capsys.readouterr()
    shown = [line for line in (out + err).replace(path, "PATH").splitlines() if "0.28 shows it" in line]
    assert len(shown) == 4 + 3 * json_lines
    assert all("--confidence 0.28 shows it" in line for line in shown)


@pytest.mark.parametrize("odd", ["\udcff", "\n", "ä", "\u202e"])
def test_json_is_ascii_and_keeps_odd_names(capsys, odd):
    print_json({"path": odd})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    assert json.loads(out)["path"] == odd


def test_a_log_file_gets_a_line_of_progress_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    console = Console()
    console.show(STARTED)
    console.show(Counted(10))
    console.show(DONE)
    err = capsys.readouterr().err
    assert re.search(r"^progress: 1 of 10 images, [\d.]+ images/s, about \d+ s left$", err, flags=re.MULTILINE)
    assert "\r" not in err


@pytest.mark.parametrize("terminal", [False, True])
def test_the_time_left_counts_only_images_that_are_drawn_now(capsys, monkeypatch, terminal):
    """Of 1,000 images 900 were finished before: looking for them took 2 s, and each of the others takes 1 s."""
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    shown = progress.ProgressLine(shown=True)
    shown.total = 1000
    shown.start()
    for _ in range(900):
        shown.skipped += 1
        now += 2 / 900
        shown.update()
    for _ in range(60):
        shown.drawn += 1
        now += 1
        shown.update()
    expected = "1.0 images/s, about 40 s left"
    if terminal:
        assert shown._bar.tasks[0].fields["speed"] == expected
    shown.stop()
    lines = capsys.readouterr().err.splitlines()
    assert terminal or lines[-1] == "progress: 958 of 1000 images, 1.0 images/s, about 42 s left"  # a line in 30 s


@pytest.mark.parametrize("terminal", [False, True])
def test_the_passes_of_an_image_that_takes_many_are_shown(capsys, monkeypatch, terminal):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    shown = progress.ProgressLine(shown=True)
    shown.total = 2
    shown.start()
    for done in (1, 500, 1200):
        now += 40
        shown.advance("photos/a.jpg", done, 1000)
        assert not terminal or shown._bar.tasks[0].completed == min(done / 1000, 0.99)
    if terminal:
        assert shown._bar.tasks[0].fields["speed"] == "a.jpg: 1,200 of 1,200 passes"
    shown.leave("photos/a.jpg")
    shown.drawn += 1
    now += 40
    shown.update()
    if terminal:
        assert "passes" not in shown._bar.tasks[0].fields["speed"]
    shown.stop()
    lines = capsys.readouterr().err.splitlines()
    assert terminal or "progress: 0 of 2 images, a.jpg: 500 of 1,000 passes" in lines
    assert terminal or lines[-1] == "progress: 1 of 2 images, 40 s for each image, about 40 s left"


def test_a_log_file_gets_no_progress_before_thirty_seconds(capsys):
    console = Console()
    for event in (STARTED, *[DONE] * 5):
        console.show(event)
    assert "progress" not in capsys.readouterr().err
    assert progress.LOG_INTERVAL_SECONDS == 30


@pytest.mark.parametrize(
    ("counts", "code"), [((1, 0, 0), 0), ((0, 1, 0), 0), ((1, 0, 1), 3), ((0, 1, 1), 3), ((0, 0, 2), 4)]
)
def test_the_exit_code_follows_the_outcome(counts, code):
    done, skipped, failed = counts
    assert summary(found=sum(counts), done=done, skipped=skipped, failed=failed).exit_code == code


def test_printable_keeps_readable_characters():
    assert printable("grün 図.png") == "grün 図.png"
    assert printable("a\tb\x7f\u2066") == r"a\tb\x7f\u2066"


def test_a_run_without_images_counts_its_pictures(capsys):
    ended = summary(found=0, done=0, failed=0, pictures=8, model_pictures=True, not_executed=(), undrawn={})
    with Console() as console:
        console.show_summary(ended, Path("out"))
        console.show_summary(replace(ended, pictures=0), Path("out"))
    assert capsys.readouterr().err.splitlines() == [
        "8 pictures of the model in 1.5 s",
        "pictures of the model already done in 1.5 s",
    ]
    assert ended.exit_code == 0


def test_images_below_the_working_directory_are_named_as_typed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "photos" / "a.png", Path("/a/b.png"), "s3://photos/c.png"):
        seen = (Prediction(3, "star", 0.9),)
        Console().show(Outcome(str(path), "done", unit=Path("runs/net/x.png"), predictions=seen))
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["photos/a.png: star 90.0 %", "/a/b.png: star 90.0 %", "s3://photos/c.png: star 90.0 %"]
