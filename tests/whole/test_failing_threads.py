"""Errors and interruptions in one of several threads end the run, and leave no partial unit."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from contextlib import contextmanager
from itertools import count, product

import pytest
from allpairspy import AllPairs
from cases import each_once, often, thorough
from image_files import save_picture
from tiny_models import TwoConvolutions
from trees import problems
from waiting import PATIENCE, wait_until
from warm import start_process

from fmapviz.config import InputOptions
from fmapviz.draw import picture as encoding
from fmapviz.draw import png
from fmapviz.errors import OutputError
from fmapviz.formats import png as png_writer
from fmapviz.run.loop import visualize

IMAGES = 12
IN_FOLDER = 40  # images of the command
PICTURES = 3  # of each: the input and two layers
SMALL = InputOptions(size=(16, 16))

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def inputs(tmp_path):
    for seed in range(IMAGES):
        save_picture(tmp_path / "pictures" / f"{seed}.png", seed)
    return tmp_path / "pictures"


@pytest.fixture
def look(inputs, tmp_path):
    def run(**options):
        return visualize(
            TwoConvolutions(), inputs, **{"out": tmp_path / "out", "preprocessing": SMALL, "to": ["png"], **options}
        )

    return run


def assert_whole(out):
    """Nothing is staged, and what stands there is complete."""
    assert list(out.rglob(".*")) == []
    assert problems(out) == []
    for unit in finished(out):
        assert (unit / "unit.json").is_file()


def finished(out):
    return [path for path in out.glob("*/*") if path.is_dir()]


def raising(function, number, error):
    """Make of a function one that raises at its n-th call."""
    calls = count(1)

    def call(*args, **kwargs):
        if next(calls) == number:
            raise error
        return function(*args, **kwargs)

    return call


def full_disk(number):
    """Make a writer of PNG files whose disk is full at the n-th picture."""
    pictures = count(1)

    def full():
        if next(pictures) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return disturbed(full)


def disturbed(disturb):
    """Make a writer of PNG files that does something before each picture."""

    @contextmanager
    def open_writer(directory, *, many=False):
        with original(directory, many=many) as writer:

            def add(image, made):
                for picture in made:
                    disturb()
                    add_all(image, [picture])
                return ()

            add_all, writer.add = writer.add, add
            yield writer

    original = png_writer.open_writer
    return open_writer


# --- in this process


ENCODERS = [(encoding, "encode"), (png, "is_noise")]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "workers", "broken"),
    often(
        each_once([1, 11, IMAGES * PICTURES], [4, 1], ENCODERS),
        of=map(tuple, AllPairs([[2, 11, IMAGES * PICTURES], [1, 2, 4], ENCODERS])),
    ),
)
def test_an_encoder_that_fails_ends_the_run(number, workers, broken, look, monkeypatch, tmp_path):  # noqa: PLR0917
    (module, place), error = broken, RuntimeError("a broken encoder")
    with monkeypatch.context() as patch:
        patch.setattr(module, place, raising(getattr(module, place), number, error))
        with pytest.raises(RuntimeError) as caught:
            look(workers=workers)
    assert caught.value is error
    assert_whole(tmp_path / "out")
    before = len(finished(tmp_path / "out"))
    assert before < IMAGES
    summary = look(workers=workers)
    assert (summary.found, summary.skipped, summary.failed) == (IMAGES, before, 0)
    assert_whole(tmp_path / "out")
    assert len(finished(tmp_path / "out")) == IMAGES


def test_an_exception_of_a_thread_is_no_failure_of_an_image(look, monkeypatch):
    told = []
    monkeypatch.setattr(encoding, "encode", raising(encoding.encode, 10, ValueError("a broken encoder")))
    with pytest.raises(ValueError, match="a broken encoder"):
        look(workers=2, on_event=told.append)
    assert all(getattr(event, "status", "done") == "done" for event in told)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "workers"), often([(1, 4), (11, 1), (IMAGES * PICTURES, 2)], of=product([1, 2, 11], [1, 2, 4]))
)
def test_a_full_disk_ends_the_run_and_the_same_call_continues(workers, number, look, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(png_writer, "open_writer", full_disk(number))
        with pytest.raises(
            OutputError, match=f"cannot write to '{tmp_path}/out/twoconvolutions': {os.strerror(errno.ENOSPC)}"
        ) as caught:
            look(workers=workers)
    assert "make room, and the same call continues" in caught.value.hint
    assert_whole(tmp_path / "out")
    before = len(finished(tmp_path / "out"))
    assert before < IMAGES
    summary = look(workers=workers)
    assert (summary.found, summary.skipped, summary.done) == (IMAGES, before, IMAGES - before)
    assert_whole(tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_disk_full_on_commit_ends_the_run(workers, look, monkeypatch, tmp_path):
    from fmapviz.run import units

    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(units, "commit", raising(units.commit, 5, error))
        with pytest.raises(OutputError, match=os.strerror(errno.ENOSPC)):
            look(workers=workers)
    assert_whole(tmp_path / "out")
    before = len(finished(tmp_path / "out"))
    assert 4 <= before < IMAGES
    assert look(workers=workers).skipped == before


def test_all_writers_may_fail_at_once(look, monkeypatch, tmp_path):
    def full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(png_writer, "open_writer", disturbed(full))
        with pytest.raises(OutputError):
            look(workers=4)
    assert_whole(tmp_path / "out")
    assert finished(tmp_path / "out") == []


@pytest.mark.thorough
def test_leaving_a_run_whose_writers_are_slow_leaves_nothing_staged(look, monkeypatch, tmp_path):
    told = []

    def tell(event):
        told.append(event)
        if len(told) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(png_writer, "open_writer", disturbed(lambda: time.sleep(0.05)))
        with pytest.raises(KeyboardInterrupt):
            look(workers=4, on_event=tell)
    assert_whole(tmp_path / "out")
    assert look().found == IMAGES


# --- the command, with something made slow or broken in it

COMMAND = """
import signal, sys, time
from itertools import count
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_DFL)  # see HEEDING in warm.py

import torch
from torch import nn
from fmapviz.cli.app import main
from fmapviz.formats import base

torch.set_num_threads(2)
reached, calls = Path("reached"), count(1)
pool, add = nn.MaxPool2d.forward, base.SeparateFiles.add


def add_slowly(self, image, pictures):
    for picture in pictures:
        if next(calls) == 100:  # of 27 pictures each
            reached.touch()
        time.sleep(0.05)
        add(self, image, [picture])
    return ()


def add_or_fail(self, image, pictures):
    for picture in pictures:
        if next(calls) == 100:
            raise OSError(28, "No space left on device")
        add(self, image, [picture])
    return ()


def hang(work):
    # squeezenet has three of these
    def forward(self, x):
        if next(calls) <= 9:
            return pool(self, x)
        reached.touch()
        while True:
            work()
    return forward


what = sys.argv.pop(1)
if what == "slow writer":
    base.SeparateFiles.add = add_slowly
elif what == "failing writer":
    base.SeparateFiles.add = add_or_fail
elif what == "endless sleep":
    nn.MaxPool2d.forward = hang(lambda: time.sleep(1000))
elif what == "endless computation":
    x = torch.ones(1, 16, 64, 64)
    nn.MaxPool2d.forward = hang(lambda: torch.conv2d(x, torch.ones(16, 16, 3, 3)))
main()
"""

ARGUMENTS = ["squeezenet1_1", "pictures", "--weights", "random", "--size", "64", "--to", "png", "--json"]


@pytest.fixture
def begin_disturbed(inputs, tmp_path, warm):
    """Begin the command with something in it made slow or broken."""
    for seed in range(IMAGES, IN_FOLDER):
        save_picture(inputs / f"{seed}.png", seed)

    @contextmanager
    def begun(what, *options):
        arguments = ["-c", COMMAND, what, *ARGUMENTS, *options]
        with (tmp_path / "output").open("w") as output, (tmp_path / "errors").open("w") as errors:
            streams = [0, output.fileno(), errors.fileno()]
            process = start_process(warm, arguments, directory=tmp_path, streams=streams)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)

    return begun


def ended(process, tmp_path):
    """Wait; return what a command printed on standard output and standard error."""
    process.wait(PATIENCE)
    return (tmp_path / "output").read_text(), (tmp_path / "errors").read_text()


def last_object(output):
    return json.loads(output.splitlines()[-1])


@pytest.mark.thorough
def test_a_full_disk_is_one_line_and_exit_code_5_and_the_same_command_continues(begin_disturbed, tmp_path):
    with begin_disturbed("failing writer") as process:
        output, errors = ended(process, tmp_path)
    assert process.returncode == 5
    (line,) = [line for line in errors.splitlines() if line.startswith("error:")]
    assert line == "error: cannot write to 'runs/squeezenet1_1': No space left on device"
    assert "Traceback" not in errors
    assert last_object(output)["exit_code"] == 5
    assert_whole(tmp_path / "runs")
    before = len(finished(tmp_path / "runs"))
    assert 1 <= before <= 4  # three are complete by then, and the other thread may just have finished its own
    with begin_disturbed("nothing") as process:
        output, errors = ended(process, tmp_path)
    assert process.returncode == 0, errors
    summary = last_object(output)
    assert (summary["found"], summary["skipped"], summary["done"]) == (IN_FOLDER, before, IN_FOLDER - before)
    assert_whole(tmp_path / "runs")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "number", "code"),
    [
        ("endless computation", signal.SIGINT, 130),
        *thorough(("slow writer", signal.SIGINT, 130), ("endless sleep", signal.SIGTERM, 143)),
    ],
)
def test_a_signal_ends_a_command_at_each_phase_of_its_threads(what, number, code, begin_disturbed, tmp_path):
    with begin_disturbed(what, "--workers", "4") as process:
        assert wait_until(lambda: (tmp_path / "reached").exists() or process.poll() is not None)
        time.sleep(0.3)  # until all threads are at it
        assert process.poll() is None
        process.send_signal(number)
        output, errors = ended(process, tmp_path)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted")
    assert last_object(output)["exit_code"] == code
    assert_whole(tmp_path / "runs")
    assert 1 <= len(finished(tmp_path / "runs")) < IN_FOLDER  # it did not go on to the end
