"""The process around a command: its signals and its standard streams."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from fmapviz.errors import RequestError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


GRACE_SECONDS = 1.7  # two are promised
_FOUNDATIONS = {"torch", "torchvision"}
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks to end; not an Exception, so that nothing on the way takes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def loading() -> Iterator[None]:
    """Import what stays to the end: to look through hundreds of thousands of objects for garbage takes 0.1 s each time.

    Raises:
        RequestError: PyTorch or torchvision is broken, does not fit the other, or gets no memory.
    """
    gc.disable()
    try:
        yield
    except Exception as error:
        if sys.modules.keys() >= _FOUNDATIONS:  # what could not be imported is none of them
            raise
        reason = printable(f"{type(error).__name__}: {error}".partition("\n")[0])
        hint = "python -c 'import torch, torchvision' shows where; the two must fit each other, and memory may be limited"
        raise RequestError(f"PyTorch and torchvision cannot be imported: {reason}", hint=hint) from error
    finally:
        _freeze()
        gc.enable()


@cache
def _freeze() -> None:
    """Keep all that there is; a second time would keep what has become garbage since."""
    gc.freeze()


@contextmanager
def signals_heeded(farewell: Callable[[Interrupted], int] | None = None) -> Iterator[None]:
    """Leave everything whole at the first Ctrl-C, SIGTERM or SIGHUP; end at once at the second.

    The first raises `Interrupted`. Whoever does not end within `GRACE_SECONDS` all the same, because it is deep in foreign
    code, or because that has swallowed the exception, is ended then.

    Args:
        farewell: Says in this case that the process ends.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    seen: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        interruption = Interrupted(number)
        threading.Thread(target=_end_soon, args=(interruption, farewell), daemon=True).start()
        raise interruption

    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_staged() -> None:
    """Remove what is being written by a thread that the process does not wait for."""
    staging = sys.modules.get("fmapviz.staging")  # imported by whatever writes
    if staging is not None:
        staging.remove_staged()


def _end_soon(interruption: Interrupted, farewell: Callable[[Interrupted], int] | None) -> None:
    time.sleep(GRACE_SECONDS)
    remove_staged()
    with suppress(Exception):
        if farewell:
            farewell(interruption)
    os._exit(128 + interruption.number)


def leave(code: int) -> NoReturn:
    """End the process without taking the interpreter apart, which takes 0.7 s once torch has been imported.

    If a forward pass goes on for which nobody waits, it must not lose the interpreter at all.
    """
    for number in _ENDING:  # nothing is left to be interrupted
        with suppress(ValueError):  # not in the main thread
            signal.signal(number, lambda *_: os._exit(code))
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
