"""The process around a command: its signals and its standard streams."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


class Interrupted(BaseException):
    """A signal asks to end; not an Exception, so that nothing on the way takes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def loading() -> Iterator[None]:
    """Import what stays to the end: to look through hundreds of thousands of objects for garbage takes 0.1 s each time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def signals_heeded() -> Iterator[None]:
    """Leave everything whole at the first Ctrl-C or SIGTERM; end at once at the second."""
    seen: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        raise Interrupted(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(code: int) -> NoReturn:
    """End the process without taking the interpreter apart, which takes 0.7 s once torch has been imported.

    If a forward pass goes on for which nobody waits, it must not lose the interpreter at all.
    """
    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # there is no public way; what others have registered is theirs to rely on
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # whoever read it has gone, or it was closed from the start
            stream.flush()
    os._exit(code)


def open_missing_streams() -> None:
    """Give closed standard streams a place, so that no file of ours takes their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")
