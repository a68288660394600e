"""The process of a command: signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from cases import often
from waiting import PATIENCE

from fmapviz.cli import app, printing, process, progress
from fmapviz.cli.commands import commands
from fmapviz.cli.process import Interrupted, interruption_behind
from fmapviz.errors import RequestError
from fmapviz.run.pipeline import scheduler

PROGRAM = """
import gc, os, signal, sys, time, weakref
from fmapviz.cli import process
from fmapviz.cli.process import Interrupted, handle_signals

process.GRACE_SECONDS = 60  # on a busy machine, printing may take longer than the promised time

class Thing:
    pass

def end(*_):
    signal.raise_signal(signal.SIGHUP)
    time.sleep(0)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
try:
    handle_signals()
    thing = Thing()
    if sys.argv[1] == "weakref":
        reference = weakref.ref(thing, end)
    else:
        Thing.__del__ = end
    del thing
    while True:
        time.sleep(0.01)
except Interrupted as interruption:
    print(interruption.number == signal.SIGHUP, flush=True)
    os._exit(7)  # after the grace period it would be 129
"""


@pytest.mark.parametrize("place", ["weakref", "del"])
def test_a_signal_is_handled_where_python_ignores_exceptions(place):
    command = [sys.executable, "-c", PROGRAM, place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "True\n", "")


def test_a_run_ends_its_threads_within_two_seconds():
    assert scheduler.PARTING_SECONDS < process.GRACE_SECONDS < 2


def raised_by(code):
    """Return the exception that a function raises."""
    try:
        code()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def unlock_twice():
    """Raise as `threading.Condition.wait` does if a signal arrives while it waits for its lock."""
    lock = threading.Lock()
    try:
        raise Interrupted(signal.SIGINT)
    finally:
        lock.release()


def create_class():
    """Raise as Python 3.11 does if a signal arrives while a class is created."""

    class Hook:
        def __set_name__(self, *_):
            raise Interrupted(signal.SIGINT)

    type("Thing", (), {"hook": Hook()})


def clean_up():
    """Raise an error of fmapviz while an interruption unwinds."""
    try:
        raise Interrupted(signal.SIGINT)
    finally:
        with suppress(KeyError):
            {}["missing"]
        raise RequestError("no longer there")


@pytest.mark.parametrize("code", [unlock_twice, create_class, clean_up])
def test_an_exception_caused_by_an_interruption_ends_as_interruption(code, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_begun", [])
    monkeypatch.setattr(app, "summaries", [])  # of commands in other tests
    error = raised_by(code)
    assert interruption_behind(error).number == signal.SIGINT
    assert app._end_after(error) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_unrelated_exception_is_no_interruption():
    assert interruption_behind(raised_by(lambda: {}["missing"])) is None


def test_a_signal_after_the_summary_adds_no_second_one(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fmapviz", "verify", "runs", "--json"])
    monkeypatch.setattr(progress, "_begun", [])
    monkeypatch.setattr(printing, "summaries", [])
    monkeypatch.setattr(app, "summaries", printing.summaries)
    assert app._end_after(Interrupted(signal.SIGTERM)) == 143
    assert json.loads(capsys.readouterr().out)["exit_code"] == 143
    printing.summaries[:] = [3]
    assert app._end_after(Interrupted(signal.SIGTERM)) == 3
    assert capsys.readouterr() == ("", "")


REMOVED = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); from fmapviz.__main__ import main; main()"
WORDS = {
    "run": ["shapesnet", "x.png"],
    "layers": ["shapesnet"],
    "models": ["timm:x"],
    "diff": ["shapesnet", "x.png", "--against", "random"],
    "top": ["runs/x"],
    "report": ["runs/x"],
    "rerun": ["runs/x"],
    "extract": ["runs/x", "--image", "x", "--layer", "y"],
    "verify": ["runs/x"],
    "guide": ["weights"],
    "completion": ["bash"],
}


@pytest.mark.parametrize("command", often(["run", "guide"], of=commands()))
def test_a_command_in_a_removed_directory_reports_an_error_or_works(command, command_line_alone):
    """`import torch` would end the process there, with words of oneMKL."""
    done = command_line_alone(REMOVED, command, *WORDS.get(command, []))
    lines = done.stderr.decode().splitlines()
    if done.returncode:
        assert (done.returncode, [line.partition(":")[0] for line in lines]) == (2, ["error", "hint"])
        assert "the working directory was removed" in f"{lines}"
    assert done.returncode or command in {"runs", "guide", "help", "completion"}
