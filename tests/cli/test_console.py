"""What a person, a log file and a script are shown of a run."""

import json
import re
from pathlib import Path

import pytest

from fmapviz import console as module
from fmapviz.console import DEAD_LAYERS, Console, dead_channels, say_json
from fmapviz.errors import printable
from fmapviz.options import Style
from fmapviz.values import Counted, Failure, Notice, Outcome, Prediction, RunInfo, RunSummary, Started

INFO = RunInfo(
    "alexnet", "random weights, seed 0", None, "as trained", ("Conv2d",), (), (), ("maps",), ("png", "tensorboard"), Style()
)
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


def story(console):
    with console:
        for event in (STARTED, Notice("twice the same"), DONE, FAILED):
            console.tell(event)
        console.finish(summary(), Path("my runs"))


def test_words(capsys):
    story(Console())
    out, err = capsys.readouterr()
    assert out.splitlines() == ["runs/alexnet", "tensorboard --logdir 'my runs'"]
    assert err.splitlines() == [
        "notice: twice the same",
        "notice: /a/x.png: first of 3 frames",
        r"error: no image: '/a/\x1b.png' [E_FORMAT]",
        "hint: look at it",
        "notice: not executed: 2 layers: aux1.conv, aux2.conv",
        "notice: not drawn: fc: a vector (1, 10)",
        "2 images: 1 done, 1 failed; 5 feature maps each, 6 pictures in 1.5 s",
    ]


def test_quiet_keeps_the_errors(capsys):
    story(Console(verbosity=-1))
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert [line.partition(":")[0] for line in err.splitlines()] == ["error", "hint"]


def test_verbose_has_a_line_per_image(capsys):
    story(Console(verbosity=1))
    assert "done /a/x.png (6 pictures, 0.25 s)" in capsys.readouterr().err.splitlines()


def seen_by(console):
    """Tell of one image in which something was seen, and of one in which the user's own code failed twice."""
    seen = (Prediction(3, "star\x1b", 0.987), Prediction(0, "sky", 0.01, "of the pixels"))
    report = 'Traceback (most recent call last):\n  File "net.py", line 3, in forward\nValueError: {}'
    with console:
        console.tell(Outcome("/a/x.png", "done", unit=Path("runs/net/x.png"), pictures=6, seconds=0.25, predictions=seen))
        for number in (1, 2):
            failure = Failure("/a/y.png", "E_MODEL", f"the model failed: {number}", report=report.format(number))
            console.tell(Outcome("/a/y.png", "failed", failure=failure))


def test_what_is_seen_is_told_once_per_image(capsys):
    seen_by(Console())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"/a/x.png: star\x1b 98.7 %, sky 1.0 % of the pixels"
    seen_by(Console(verbosity=1))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"done /a/x.png (6 pictures, 0.25 s): star\x1b 98.7 %, sky 1.0 % of the pixels"
    seen_by(Console(verbosity=-1))
    assert "star" not in capsys.readouterr().err
    seen_by(Console(json=True))
    assert json.loads(capsys.readouterr().out.splitlines()[0])["predictions"] == [
        {"index": 3, "class": "star\x1b", "score": 0.987},
        {"index": 0, "class": "sky", "score": 0.01},
    ]


def test_where_the_users_code_failed_is_shown_once(capsys):
    seen_by(Console())
    err = capsys.readouterr().err
    assert err.count("Traceback") == 1
    assert err.count('File "net.py", line 3') == 1
    assert err.count("[E_MODEL]") == 2


def test_json_is_one_object_per_line_and_ends_with_the_summary(capsys):
    story(Console(json=True))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["run", "notice", "image", "image", "summary"]
    assert events[0]["weights"] == "random weights, seed 0"
    assert events[2] == {
        "event": "image", "path": "/a/x.png", "status": "done", "unit": "runs/alexnet/x.png",
        "notices": ["first of 3 frames"], "pictures": 6, "seconds": 0.25, "predictions": [], "bytes": 0,
    }  # fmt: skip
    assert (events[3]["code"], events[3]["path"]) == ("E_FORMAT", "/a/\x1b.png")
    assert (events[4]["exit_code"], events[4]["tensorboard"]) == (3, "tensorboard --logdir 'my runs'")


@pytest.mark.parametrize("odd", ["\udcff", "\n", "ä", "\u202e"])
def test_json_is_ascii_and_keeps_odd_names(capsys, odd):
    say_json({"path": odd})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    assert json.loads(out)["path"] == odd


def test_in_a_log_file_a_line_now_and_then_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(module, "LOG_INTERVAL_SECONDS", 0.0)
    console = Console()
    console.tell(STARTED)
    console.tell(Counted(10))
    console.tell(DONE)
    err = capsys.readouterr().err
    assert re.search(r"^progress: 1 of 10 images, [\d.]+ images/s, about \d+ s left$", err, flags=re.MULTILINE)
    assert "\r" not in err


def test_in_a_log_file_it_is_silent_before_thirty_seconds(capsys):
    console = Console()
    for event in (STARTED, *[DONE] * 5):
        console.tell(event)
    assert "progress" not in capsys.readouterr().err
    assert module.LOG_INTERVAL_SECONDS == 30


@pytest.mark.parametrize(
    ("counts", "code"), [((1, 0, 0), 0), ((0, 1, 0), 0), ((1, 0, 1), 3), ((0, 1, 1), 3), ((0, 0, 2), 4)]
)
def test_the_exit_code_is_the_truth(counts, code):
    done, skipped, failed = counts
    assert summary(found=sum(counts), done=done, skipped=skipped, failed=failed).exit_code == code


def test_printable_keeps_what_can_be_read():
    assert printable("grün 図.png") == "grün 図.png"
    assert printable("a\tb\x7f\u2066") == r"a\tb\x7f\u2066"


def test_channels_that_never_vary_are_told_layer_by_layer_and_not_too_many():
    assert dead_channels({}) == []
    assert dead_channels({"conv1": (0, 0, 8), "conv2": (0, 0, 4)}) == ["every channel of all 2 layers varies"]
    assert dead_channels({"conv1": (0, 0, 8)}) == ["every channel of the 1 layer varies"]
    of_both = {"conv1": (0, 0, 8), "conv1 (gradient) top1": (0, 0, 8)}
    assert dead_channels(of_both) == ["every channel of all 2 feature maps varies"]
    assert dead_channels({"conv1": (0, 0, 8), "conv2": (3, 3, 4)}) == ["conv2: 3 of 4 channels never vary"]
    assert dead_channels({"conv": (1, 3, 4)}) == [
        "conv: 1 of 4 channels never vary",
        "conv: 2 of 4 channels are the same all over each image",
    ]
    many = {f"conv{number}": (1, 1, 8) for number in range(DEAD_LAYERS + 3)}
    told = dead_channels(many)
    assert told[:2] == ["conv0: 1 of 8 channels never vary", "conv1: 1 of 8 channels never vary"]
    assert told[-1] == "... and 3 more such lines: see stats.csv"
    assert len(told) == DEAD_LAYERS + 1


def test_a_run_without_images_tells_its_pictures(capsys):
    ended = summary(found=0, done=0, failed=0, pictures=8, complete=True, not_executed=(), undrawn={})
    with Console() as console:
        console.finish(ended, Path("out"))
    assert capsys.readouterr().err == "8 pictures of the model in 1.5 s\n"
    assert ended.exit_code == 0
