"""Draw images in forks of this process, each with an interpreter of its own.

A process has one interpreter, for which its threads wait. A network of many small layers keeps it so busy that two threads
draw no faster than one. A fork has the network, its weights, and what the first images showed about it; it takes some
milliseconds, and half a second until it draws at full speed. This process lists the inputs, hands them out one by one and
passes the events on; a fork reads, draws and writes. Time for an image of MobileNetV3-large on two cores of an Intel Xeon:
112 ms in threads, 69 in forks; of ResNet-50 150 and 121.

Python's own pools of processes pass results, not events, and give out inputs ahead of the listing.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from itertools import chain, islice
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

import torch

from fmapviz.core import platforms
from fmapviz.core.own import OwnName
from fmapviz.core.urls import is_url
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import FmapvizError, OutputError
from fmapviz.events import Notice, Outcome
from fmapviz.images import decode_pool
from fmapviz.images.frames import frames_of
from fmapviz.models.replicas import is_modified
from fmapviz.run.pipeline import work as in_threads
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.reader import Naming, counted
from fmapviz.run.pipeline.scheduler import PARTING_SECONDS
from fmapviz.store.run import remedy_of
from fmapviz.store.unit import sweep

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from types import FrameType

    from fmapviz.run.pipeline.scheduler import Event
    from fmapviz.run.session import Session
    from fmapviz.store.shards.grouping import Item

FIRST = 2  # images that threads draw, for forks to start with what these have shown about the network
LAYERS = 400  # that threads draw first: with a few times as many, forks save the time that they take to start
_AHEAD = 3  # images that a fork has been given, of which it draws one and reads another
_SIGNAL_SECONDS = 0.25  # worst-case signal latency
_START_SECONDS = 10.0  # for a fork to start its threads
_END_SECONDS = 0.5  # for a fork to remove what is not finished, before the command must have ended
# Packages whose threads wait, or show a progress bar: Python's own but for imports, and those of terminals and notebooks.
_WAITING = sys.stdlib_module_names - {"importlib"} | {"IPython", "ipykernel", "rich", "tornado", "tqdm", "traitlets", "zmq"}
# Modules that count the inputs in a thread, and take no lock that a fork needs; those that decode do.
_COUNTING = {"fmapviz.run.disk_space", *(f"fmapviz.images.{name}" for name in ("films", "find", "frames"))}


def suit(session: Session) -> bool:
    """Return True if forks draw the images of a session as its threads would.

    The user's own code, a hook for one, may count on what it did with other images. A fork cannot use the threads of PyTorch
    that this process has started, neither for operations nor for gradients. The threads that draw a shard share its files.
    """
    config, plan = session.config, session.plan
    named = (*config.views, *config.to)
    return (
        platforms.FORKS
        and session.device.type == "cpu"
        and session.workers > 1
        and torch.get_num_threads() <= session.workers
        and session.batch_size == 1
        and session.kept is None
        and session.output.is_local
        and not (config.shard or plan.of_classes or session.model.own or any(isinstance(name, OwnName) for name in named))
        and not is_modified(session.model.module)
        and not multiprocessing.current_process().daemon  # which may have no processes
    )


def work(session: Session, items: Iterable[Item], *, progress: Progress) -> Generator[Event, None, None]:
    """Read, draw and write all inputs as `fmapviz.run.pipeline.work.work` does; threads draw the first, forks the others.

    Threads also draw what a fork had no memory for, and all from the first input on that a fork cannot read: one in memory,
    of a film, or remote; more while another thread of this process may be using PyTorch; and all if there can be no fork.

    Raises:
        OutputError: The output could not be written, or a fork was killed.
    """
    names = Naming(session.directory)
    listed = map(names.claim, counted(items, progress))
    files: dict[str, ImageFile] = {}  # that are not finished

    def noted(some: Iterable[Item]) -> Iterator[Item]:
        for item in some:
            if isinstance(item, ImageFile):
                files[item.path] = item
            yield item

    def draw_in_threads(some: Iterable[Item]) -> Iterator[Event]:
        own = Progress(accepted=progress.accepted, reported=progress.reported)
        with closing(in_threads.work(session, noted(some), progress=own)) as events:
            yield from events
        progress.add(own)

    def draw() -> Iterator[Event]:
        count = max(FIRST, LAYERS // max(1, len(session.layers)))
        others: Iterator[Item] = listed
        while True:
            yield from draw_in_threads(islice(others, count))
            if (item := next(listed, None)) is None:
                return
            others = chain([item], listed)
            if _are_others_waiting():
                break
            count *= 2
        try:
            processes = _Forks(session, noted(others), progress)
        except OSError as error:
            yield Notice(f"cannot start a process to draw in ({error.strerror or error}): drawing in threads")
            yield from draw_in_threads(others)
            return
        with closing(processes) as forks:
            yield from forks.events()
        if rest := [*(files[path] for path in forks.without_memory), *islice(forks.rest, 1)]:
            yield from draw_in_threads(chain(rest, forks.rest))

    for event in draw():
        if isinstance(event, Outcome) and (file := files.pop(event.path, None)):
            names.release(file)
        yield event


def _are_others_waiting() -> bool:
    """Return True if no other thread of this process can be using PyTorch.

    A fork waits forever for a lock that such a thread has, for example that of the random generator.
    """
    return all(_is_waiting(frame) for thread, frame in sys._current_frames().items() if thread != threading.get_ident())


def _is_waiting(frame: FrameType) -> bool:
    """Return True if a thread runs no code but that of packages whose threads wait, or counts the inputs of a run."""
    if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") in {"threading", "concurrent.futures.thread"}:
        return False  # it has called a function that is not Python's
    stack = (each.f_globals.get("__name__", "") for each, _ in traceback.walk_stack(frame))
    return all(name.partition(".")[0] in _WAITING or name in _COUNTING for name in stack)


class _Fork:
    """A process that draws.

    Attributes:
        connection: To it.
        given: Number of images that it has been given and has not reported.
        ended: Whether it has reported everything.
    """

    def __init__(self, session: Session, progress: Progress, others: Sequence[_Fork]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.given, self.ended = 0, False
        begin = multiprocessing.get_context("fork").Process
        ours = [self.connection, *(fork.connection for fork in others)]  # a connection ends when no process has it open
        self._process = begin(target=_serve, args=(session, theirs, progress, ours), daemon=True)
        with platforms.signals_blocked(), _without_lost_streams(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which all wait
            self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Wait until the process has its threads.

        Raises:
            OSError: It cannot have them.
        """
        try:
            if self.connection.poll(_START_SECONDS):
                self.connection.recv()
                return
        except EOFError:
            pass
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def end(self) -> None:
        """Ask the process to end."""
        self.connection.close()
        if not self.ended:
            self._process.terminate()

    def wait(self, until: float) -> None:
        """Wait until the process has removed what is not finished; kill it at some time, see `time.monotonic`."""
        self._process.join(max(0.0, until - time.monotonic()))
        self._process.kill()
        self._process.join()

    def describe_end(self) -> str:
        """Return how the process ended."""
        self._process.join(PARTING_SECONDS)
        code = self._process.exitcode or 0
        names = {number.value: number.name for number in signal.Signals}
        return f"was killed ({names.get(-code, f'signal {-code}')})" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _without_lost_streams() -> Iterator[None]:
    """Set aside the standard streams whose reader is gone: Python flushes them before a fork, which would fail."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            try:
                with suppress(AttributeError, ValueError):  # there is none, or it is closed
                    stream.flush()
            except OSError:
                stack.enter_context(redirect(None))
        yield


class _Forks:
    """The processes of a run, and the thread that lists the inputs for them.

    Attributes:
        without_memory: Paths of the images that a fork had no memory for.
        rest: The inputs from the first one on that a fork cannot read.
    """

    def __init__(self, session: Session, items: Iterator[Item], progress: Progress) -> None:
        self.without_memory: list[str] = []
        self.rest: Iterator[Item] = iter(())
        self._session = session
        self._items = items
        self._progress = progress
        self._own: deque[Event | BaseException] = deque()  # of the listing
        self._wake, self._woken = multiprocessing.Pipe(duplex=False)[::-1]
        self._changed = threading.Condition()
        self._stopped = False
        known = Progress(accepted=progress.accepted, reported={*progress.reported})
        self._forks: list[_Fork] = []
        platforms.trim_memory()
        try:
            for _ in range(session.workers):
                self._forks.append(_Fork(session, known, self._forks))
            for fork in self._forks:
                fork.wait_until_ready()
            for fork in self._forks:
                fork.connection.send(None)
        except BaseException:
            self.close()
            raise

    def events(self) -> Iterator[Event]:
        """Yield the events of the inputs.

        Raises:
            BaseException: An exception of a process or of the listing.
        """
        threading.Thread(target=self._list, daemon=True).start()
        while open_ends := {fork.connection: fork for fork in self._forks if not fork.ended}:
            for connection in wait([*open_ends, self._woken], _SIGNAL_SECONDS):
                if fork := open_ends.get(connection):  # type: ignore[call-overload]
                    yield from self._receive(fork)
                else:
                    self._woken.recv_bytes()
                    yield self._reported(self._own.popleft())
        yield from map(self._reported, self._own)  # the listing has ended

    def close(self) -> None:
        """End the processes, and remove what they leave."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        are_done = all(fork.ended for fork in self._forks)
        for fork in self._forks:
            fork.end()
        until = time.monotonic() + _END_SECONDS
        for fork in self._forks:
            fork.wait(until)
        self._woken.close()  # of a listing that goes on
        if not are_done:
            with suppress(OSError):
                sweep(self._session.directory)

    def _receive(self, fork: _Fork) -> Iterator[Event]:
        try:
            report = fork.connection.recv()
        except (EOFError, OSError):
            ended = f"a process that draws images {fork.describe_end()}"
            raise OutputError(ended, hint="the same command continues; --workers 1 draws in one process") from None
        if isinstance(report, Progress):
            fork.ended = True
            self._progress.add(report)
            return
        if isinstance(report, BaseException):
            fork.ended = True
        if isinstance(report, Outcome):
            with self._changed:
                fork.given -= 1
                self._changed.notify_all()
            if report.failure and report.failure.code == "E_MEMORY":
                self.without_memory.append(report.path)
                return
        yield self._reported(report)

    def _reported(self, report: Event | BaseException) -> Event:
        """Return an event; raise an exception."""
        if isinstance(report, BaseException):
            raise report
        return report

    def _list(self) -> None:
        """Send each input to the process that has the fewest, as soon as one has room."""
        try:
            for item in self._items:
                if isinstance(item, Failure):
                    self._tell(Outcome(item.path, "failed", failure=item))
                elif not (isinstance(item, ImageFile) and _is_file(item)):
                    self.rest = chain([item], self._items)
                    break
                elif not self._give(item):
                    return
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._tell(error)
        for fork in self._forks:
            with suppress(OSError):
                fork.connection.send(None)

    def _give(self, item: ImageFile) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or any(fork.given < _AHEAD for fork in self._forks))
            if self._stopped:
                return False
            fork = min(self._forks, key=lambda each: each.given)
            fork.given += 1
        with suppress(OSError):  # a killed one is reported by `_receive`
            fork.connection.send(item)
        return True

    def _tell(self, report: Event | BaseException) -> None:
        self._own.append(report)
        with suppress(OSError):
            self._wake.send_bytes(b"")


def _is_file(image: ImageFile) -> bool:
    """Return True if a fork can read an image: forks share neither the workers of films nor the positions in open files."""
    return image.content is None and not is_url(image.path) and frames_of(image.path) is None


def _serve(session: Session, connection: Connection, progress: Progress, inherited: Sequence[Connection]) -> None:
    """Draw the images that arrive, in a fork; send their events, and at the end the progress or the error."""
    platforms.follow(multiprocessing.parent_process())
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    decode_pool.start()
    try:
        with _reserved_threads():
            connection.send(None)
            connection.recv()
        drawn = in_threads.work(replace(session, workers=1), iter(connection.recv, None), progress=progress)
        with closing(drawn) as events:
            for event in events:
                connection.send(event)
        connection.send(progress)
    except (EOFError, BrokenPipeError):  # the run has ended
        return
    except Exception as error:  # noqa: BLE001  it is raised again in the process that started this one
        connection.send(_portable(error))


@contextmanager
def _reserved_threads() -> Iterator[None]:
    """End this process unless it may have a thread that reads, and one that draws."""
    is_over = threading.Event()
    threads = [threading.Thread(target=is_over.wait, daemon=True) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        sys.exit(1)
    yield
    is_over.set()
    for thread in threads:
        thread.join()


def _portable(error: Exception) -> Exception:
    """Return an error as it can be sent; its cause does not travel."""
    if isinstance(error, OutputError):
        error.advise(error.hint or remedy_of(error))
    elif not isinstance(error, FmapvizError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  of this process
    except Exception:  # noqa: BLE001  an error of any class may raise any
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
