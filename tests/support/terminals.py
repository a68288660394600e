"""A terminal for a command, as a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path

from waiting import PATIENCE
from warm import start_process


def in_terminal(warm, args, place, *, code=0, all_streams=False, environment=None):
    """Run the command with a terminal as its standard error, or as all its streams, and return what that gets."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **(environment or {})}
    with Path(os.devnull).open("r+b") as nothing:
        streams = [theirs] * 3 if all_streams else [nothing.fileno(), nothing.fileno(), theirs]
        process = start_process(warm, args, environment=environment, directory=place, streams=streams)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(PATIENCE) == code
    return shown.decode()
