"""The process of a command: signals, standard streams and exit."""

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
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fmapviz.core import platforms
from fmapviz.errors import RequestError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


GRACE_SECONDS = 1.7  # the guide promises two
RETRY_SECONDS = 0.02  # until a callback in which a signal was ignored has ended
_freeze = cache(gc.freeze)  # once: a second call would also keep garbage


class Interrupted(BaseException):
    """The process received a signal to end; no `Exception`, so that code in between does not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


def interruption_behind(error: BaseException) -> Interrupted | None:
    """Return the interruption that caused an exception, or None.

    Code that a signal interrupts may raise another exception while it unwinds: Python 3.11 wraps what is raised during the
    creation of a class, and `threading.Condition` releases a lock that it has not reacquired.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, Interrupted):
        seen = seen.__cause__ or seen.__context__
    return seen


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, which would take 0.1 s for each pass over the objects of torch.

    Raises:
        RequestError: PyTorch or torchvision cannot be imported.
    """
    check_directory()
    gc.disable()
    try:
        yield
    except Exception as error:
        if "torch" in sys.modules and "torchvision" in sys.modules:  # another import failed
            raise
        reason = printable(f"{type(error).__name__}: {error}".partition("\n")[0])
        command = platforms.python_in_shell("-c", "import torch, torchvision")
        hint = f"try {command}; their versions must match, and memory may be limited"
        raise RequestError(f"PyTorch and torchvision cannot be imported: {reason}", hint=hint) from error
    finally:
        _freeze()
        gc.enable()


def check_directory() -> None:
    """Refuse to import PyTorch in a working directory that was removed: oneMKL would end the process.

    Raises:
        RequestError: It was removed.
    """
    try:
        Path.cwd()
    except OSError as error:
        problem = "PyTorch cannot be imported: the working directory was removed"
        raise RequestError(problem, hint="change to a directory that exists") from error


def handle_signals(report: Callable[[Interrupted], int] | None = None) -> None:
    """Raise `Interrupted` at the first of `ENDING_SIGNALS` from now on; exit immediately at the second.

    The exception ends the command: `fmapviz.run.pipeline.scheduler` stops its threads, `fmapviz.store.unfinished` records
    the interruption, and `fmapviz.cli.app` removes staged files and exits with 130 after Ctrl-C.

    Python ignores what is raised in a finalizer or the callback of a weak reference: there the signal is sent once more. The
    process exits after `GRACE_SECONDS` in any case: foreign code may block or catch the exception.

    Args:
        report: Called before such an exit; returns its code.
    """
    seen: list[int] = []
    ignored: list[int] = []
    report_unraisable = sys.unraisablehook

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if ignored:
            raise Interrupted(ignored.pop())
        if seen:
            os._exit(128 + number)
        seen.append(number)
        interruption = Interrupted(number)
        threading.Thread(target=_end_soon, args=(interruption, report), daemon=True).start()
        raise interruption

    def send_again(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            report_unraisable(unraisable)
            return
        ignored.append(unraisable.exc_value.number)
        threading.Thread(target=_send, args=(ignored[-1],), daemon=True).start()

    for number in platforms.ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, interrupt)
    sys.unraisablehook = send_again


def _send(number: int) -> None:
    time.sleep(RETRY_SECONDS)
    platforms.send_to_main_thread(number)


def remove_staged() -> None:
    """Remove the staged files of threads that the process does not wait for."""
    files = sys.modules.get("fmapviz.core.files")  # imported if anything was written
    if files is not None:
        files.remove_staged()


def _end_soon(interruption: Interrupted, report: Callable[[Interrupted], int] | None) -> None:
    time.sleep(GRACE_SECONDS)
    remove_staged()
    code = 128 + interruption.number
    with suppress(Exception):
        if report:
            code = report(interruption)
    os._exit(code)


def exit_now(code: int) -> NoReturn:
    """End the process without finalizing the interpreter, which takes 0.7 s after torch was imported.

    An abandoned forward pass may still be running in a thread, and would crash in a finalized interpreter.
    """
    for number in platforms.ENDING_SIGNALS:  # the exit code is final
        with suppress(ValueError):  # not in the main thread
            signal.signal(number, lambda *_: os._exit(code))
    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # not public, but libraries rely on the functions they registered
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or its reader is gone
            stream.flush()
    os._exit(code)


def open_missing_streams() -> None:
    """Open closed standard streams on the null device, so that no other file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")
