"""The process of a command: signals."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, os, signal, sys, time, weakref
from fmapviz.cli.process import Interrupted, handle_signals

class Thing:
    pass

def end(*_):
    signal.raise_signal(signal.SIGHUP)
    time.sleep(0)

begun = time.monotonic()
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
    print(interruption.number == signal.SIGHUP, time.monotonic() - begun < 1.5, flush=True)
    os._exit(7)
"""


@pytest.mark.parametrize("place", ["weakref", "del"])
def test_a_signal_is_heeded_where_python_ignores_exceptions(place):
    ended = subprocess.run([sys.executable, "-c", PROGRAM, place], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "True True\n", "")
