"""Let Ray do the work of a run: plain tasks, a bounded number in flight, the model cached in each worker process.

A task streams back its events, and at last its receipt. If its worker dies, the task is tried again; which image is to blame
is known because a second attempt reports each image before it is begun.

Ray Data's `map_batches` was tried: all rows must be known before the first begins, 12 ms a row against 1.5, and rows of an
actor that died for good fail without a name (Ray 2.60). Actors of our own took 130 lines more and an actor that remembered
who had begun what.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz.core import files
from fmapviz.core.errors import FmapvizError, OutputError, RequestError, quote
from fmapviz.core.events import Notice, Outcome, Staged
from fmapviz.core.layout import HIDDEN
from fmapviz.core.types import ImageFile
from fmapviz.core.urls import is_url
from fmapviz.engine.pipeline.batching import Sharing
from fmapviz.engine.pipeline.reader import Naming
from fmapviz.engine.ray.tasks import Begun, Deaths, Receipt, Task, account, divide, do
from fmapviz.engine.session import load_session, moved
from fmapviz.images import decode_pool
from fmapviz.runs.shards import identify
from fmapviz.runs.storage.destination import open_destination
from fmapviz.runs.unit import Member, sweep

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from fmapviz.core.config import Engine, RunConfig
    from fmapviz.engine.pipeline.work import Progress
    from fmapviz.engine.session import Session
    from fmapviz.runs.shard_grouping import Item

_START_SECONDS = 120.0  # without any worker
_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0
_SWEEP_SECONDS = 1.0
_CONNECT_SECONDS = 10.0
_OBJECT_STORE_BYTES = 200 * 2**20  # only paths and events travel
_FOLDERS = "fmapviz-ray-"
_MOST_EARLY_DEATHS = 12  # of workers, before any task has ended


@dataclass(frozen=True, slots=True, eq=False)
class _Recipe:
    """What a worker makes its session of."""

    config: RunConfig
    out: Path | str
    name: str
    fingerprint: str
    working_directory: Path


@dataclass(slots=True, eq=False)
class _Call:
    """A task in flight.

    Attributes:
        node: Where it runs, as soon as it does.
        begun: The image that it began last, if it reports that.
    """

    task: Task
    node: str | None = None
    begun: str | None = None


def work(session: Session, items: Iterable[Item], *, progress: Progress) -> Generator[Outcome | Notice | Staged, None, None]:
    """Read, draw and write all inputs on a cluster, as `fmapviz.engine.pipeline.work.work` does here.

    Raises:
        RequestError: There is no such cluster, or it has too few GPUs.
        OutputError: The output could not be written, or workers die all the time.
    """
    engine = session.request.engine
    assert engine
    recipe = _Recipe(
        replace(session.request, inputs=(), on_event=None, engine=None, workers=engine.cpus),
        session.output.address if is_url(session.output.address) else session.directory.parent.absolute(),
        session.directory.name,
        session.info.fingerprint,
        Path.cwd(),
    )
    driver = _Driver(session, items, recipe, engine, progress)
    try:
        yield from driver.run()
    finally:
        driver.stop()


class _Driver:
    """Lists the inputs in one thread, waits for Ray in another, and reports in the caller's own.

    Only so signals are heeded at once: Python handles none while Ray waits.
    """

    def __init__(self, session: Session, items: Iterable[Item], recipe: _Recipe, engine: Engine, progress: Progress) -> None:
        self._session = session
        self._items = items
        self._recipe = recipe
        self._engine = engine
        self._progress = progress
        self._names = Naming(session.directory)
        self._stopped = False
        self._staged: set[str] = set()  # reported already, of tasks that have not ended
        self._tasks: queue.Queue[Task | None] = queue.Queue(64)
        self._reports: queue.Queue[Outcome | Staged | tuple[Task, Receipt] | BaseException | None] = queue.Queue(10_000)
        targets = (self._list, self._drive)
        self._threads = [threading.Thread(target=self._guard, args=(target,), daemon=True) for target in targets]

    def run(self) -> Iterator[Outcome | Notice | Staged]:
        """Yield the events of all inputs."""
        for thread in self._threads:
            thread.start()
        while True:
            try:
                report = self._reports.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if report is None:
                return
            if isinstance(report, BaseException):
                raise report
            if isinstance(report, tuple):
                yield from self._end(*report)
            elif isinstance(report, Outcome):
                yield report
            elif report.path not in self._staged:  # a worker that had reported it may have died
                self._staged.add(report.path)
                yield report

    def stop(self) -> None:
        """End it; the workers of tasks in flight are killed."""
        self._stopped = True
        until = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _end(self, task: Task, receipt: Receipt) -> Iterator[Outcome | Notice | Staged]:
        """Yield the events of a task, except those that were reported meanwhile."""
        for event in account(self._progress, receipt):
            if isinstance(event, Staged) and event.path in self._staged:
                self._staged.discard(event.path)
            elif isinstance(event, Outcome) and event.unit and not is_url(self._recipe.out):
                run = Path(self._recipe.out, self._recipe.name)
                yield replace(event, unit=self._session.directory / event.unit.relative_to(run))  # as it was typed
            else:
                yield event
        self._staged.difference_update(task.paths)
        for item in task.items:
            if isinstance(item, ImageFile):
                self._names.release(item)

    # Any: a method of this class.
    def _guard(self, target: Any) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            self._put(self._reports, error)

    def _put(self, where: queue.Queue[Any], what: object) -> None:
        while not self._stopped:
            with suppress(queue.Full):
                where.put(what, timeout=_POLL_SECONDS)
                return

    def _list(self) -> None:
        for each in divide(map(self._names.claim, self._items)):
            if self._stopped:
                return
            self._progress.found += 1 if isinstance(each, Outcome) else each.counted
            self._put(self._reports if isinstance(each, Outcome) else self._tasks, each)
        self._put(self._tasks, None)

    def _drive(self) -> None:
        first = None
        while first is None and not self._stopped:  # Ray takes seconds to start: not for nothing
            with suppress(queue.Empty):
                first = self._tasks.get(timeout=_POLL_SECONDS)
                if first is None:
                    break
        if first is not None:
            with _connected(self._engine), _explained():
                try:
                    self._keep_busy(deque([first]))
                finally:
                    self._sweep()
        self._put(self._reports, None)

    def _keep_busy(self, waiting: deque[Task]) -> None:  # noqa: PLR0912  one loop, which shares eight names
        """Keep as many tasks in flight as there is room for, until all have ended."""
        ray, size, listing = _ray(), _size(self._engine), True
        died = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
        recipe = ray.put(self._recipe)
        calls: dict[Any, _Call] = {}
        deaths, early_deaths, idle_since = Deaths(), 0, time.monotonic()
        try:
            while not self._stopped:
                while listing and len(waiting) < size:
                    try:
                        task = self._tasks.get_nowait()
                    except queue.Empty:
                        break
                    listing = task is not None
                    if task is not None:
                        waiting.append(task)
                while waiting and len(calls) < size:
                    task = replace(waiting.popleft(), accepted=self._progress.accepted)
                    calls[_submit(self._engine, recipe, task)] = _Call(task)
                if not calls:
                    if not listing:
                        return
                    time.sleep(_POLL_SECONDS / 4)  # for what is still to be found
                    continue
                for stream in ray.wait(list(calls), num_returns=1, timeout=_POLL_SECONDS)[0]:
                    idle_since = time.monotonic()
                    try:
                        ended = self._receive(stream, calls[stream])
                    except died as error:
                        call = calls.pop(stream)
                        if early_deaths >= 0:
                            early_deaths += 1
                        _check_deaths(early_deaths, error)
                        lost_node = call.node is not None and not _is_alive(call.node)  # then no image is to blame
                        waiting.appendleft(call.task if lost_node else deaths.note(call.task, call.begun))
                    else:
                        if ended:
                            del calls[stream]
                            early_deaths = -1
                if any(call.node for call in calls.values()):
                    idle_since = time.monotonic()
                if time.monotonic() > idle_since + _START_SECONDS:
                    message = f"Ray has started no worker in {_START_SECONDS:.0f} s: its nodes have no room"
                    raise OutputError(message, hint="ray status shows why")
        finally:
            for stream in calls:
                with suppress(Exception):
                    ray.cancel(stream, force=True)

    # Any: Ray's stream of object references.
    def _receive(self, stream: Any, call: _Call) -> bool:
        """Take the next report of a task; return True if it was the last."""
        report = _ray().get(next(stream))
        if isinstance(report, Receipt):
            self._put(self._reports, (call.task, report))
            return True
        if isinstance(report, Begun):
            call.begun = report.path
        elif isinstance(report, Staged):
            self._put(self._reports, report)
        else:
            call.node = report
        return False

    def _sweep(self) -> None:
        """Remove what killed workers had staged, as soon as they are gone."""
        until = time.monotonic() + _SWEEP_SECONDS
        directory = self._session.directory
        while any(directory.glob(f"{HIDDEN}*")) and time.monotonic() < until:
            with suppress(OSError):
                sweep(directory)
            time.sleep(_POLL_SECONDS / 4)


def _check_deaths(early: int, error: Exception) -> None:
    """Give up if every worker dies before any task has ended.

    Raises:
        OutputError: That many have.
    """
    if early >= _MOST_EARLY_DEATHS:
        raise OutputError(
            f"Ray's workers died {early} times before anything was drawn: {str(error).strip().splitlines()[-1]}",
            hint="they may run out of memory as the model is loaded; see the workers' logs",
        ) from error


# Any: Ray's stream of object references.
def _submit(engine: Engine, recipe: Any, task: Task) -> Any:
    function: Any = _ray().remote(_work)
    function = function.options(
        num_cpus=engine.cpus,
        num_gpus=engine.gpus,
        max_retries=0,  # deaths are counted by image, see `Deaths`
        num_returns="streaming",
        scheduling_strategy="SPREAD",
        # A careful task goes on only when its report has arrived.
        **({"_generator_backpressure_num_objects": 1} if task.careful else {}),
    )
    return function.remote(recipe, task)


_sessions: dict[str, tuple[Session, ExitStack]] = {}  # of this worker process, by fingerprint and directory


def _work(recipe: _Recipe, task: Task) -> Iterator[str | Begun | Staged | Receipt]:
    """Do a task in a worker: yield its node, what it reports, and its receipt."""
    yield str(_ray().get_runtime_context().get_node_id())
    try:
        session = _load(recipe)
        session.output.fetch_records(session.directory, map(_identity, task.items))
    except FmapvizError as error:
        yield Receipt(error=error)
        return
    for report in do(session, task):
        if isinstance(report, Receipt):
            yield replace(report, events=tuple(_with_address(session, event) for event in report.events))
        else:
            yield report


def _with_address(session: Session, event: Outcome | Notice | Staged) -> Outcome | Notice | Staged:
    if isinstance(event, Outcome) and event.unit:
        return replace(event, unit=session.output.address_of(event.unit))
    return event


def _load(recipe: _Recipe) -> Session:
    """Return this process's session, which lasts as long as the process.

    Raises:
        RequestError: The files on this node are not those of the machine that began the run.
    """
    key = f"{recipe.fingerprint} {recipe.out}/{recipe.name}"
    if key not in _sessions:
        with suppress(OSError):
            os.chdir(recipe.working_directory)  # paths were typed relative to it
        decode_pool.start()
        session, _ = load_session(recipe.config)
        if session.info.fingerprint != recipe.fingerprint:
            raise RequestError(
                f"a worker on {quote(os.uname().nodename)} has other weights or other code than this machine",
                hint="all nodes need the same files under the same paths",
            )
        stack = ExitStack()
        output = stack.enter_context(open_destination(recipe.out))
        stack.enter_context(moved(session.model.module, session.device))
        sharing = Sharing(session.model.module)  # found out once, not for each task
        _sessions[key] = replace(session, output=output, directory=output.join_run(recipe.name), sharing=sharing), stack
    return _sessions[key][0]


def _identity(item: Member | ImageFile) -> ImageFile:
    """Return what identifies the unit of an item."""
    return identify(item.group, ()) if isinstance(item, Member) else item


@contextmanager
def _explained() -> Iterator[None]:
    """Turn Ray's own failures into an `OutputError`.

    Raises:
        OutputError: Ray itself failed.
    """
    failures = import_module("ray.exceptions")
    try:
        yield
    except failures.RayTaskError:
        raise  # a bug, with its traceback
    except failures.RayError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OutputError(f"Ray failed: {said}", hint="the same command continues") from error


def _is_alive(node: str) -> bool:
    return any(each["NodeID"] == node and each["Alive"] for each in _ray().nodes())


@contextmanager
def _connected(engine: Engine) -> Iterator[None]:
    """Connect to Ray without output; a Ray started here leaves no files.

    Raises:
        RequestError: There is no Ray at that address.
    """
    if _ray(own=engine.address is None).is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        try:
            if engine.address is None:
                folder = _make_folder()
                stack.callback(files.remove_tree, Path(folder))
                _ray().init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=folder,
                )
            else:
                _check_address(engine.address)
                _ray().init(address=engine.address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise RequestError(
                f"no Ray at {quote(engine.address or 'this machine')}: {str(error).strip().splitlines()[0]}",
                hint="ray starts one on this machine, ray:auto uses the one that runs here, ray:HOST:PORT another",
            ) from error
        stack.callback(_ray().shutdown)
        yield


def _check_address(address: str) -> None:
    """Check that something listens at an address; Ray itself would try for minutes.

    Raises:
        OSError: Nothing does.
    """
    found = re.fullmatch(r"(?:ray://)?\[?([^/\]]+?)\]?:(\d+)", address)
    if found:
        socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_SECONDS).close()


def _make_folder() -> str:
    """Create a directory for Ray's own files, and remove those of killed processes.

    Its path must be short, because Ray's sockets are in it.
    """
    parent = Path("/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir())  # noqa: S108
    for old in parent.glob(f"{_FOLDERS}*"):
        pid = old.name.removeprefix(_FOLDERS).partition("-")[0]
        if pid.isdecimal() and not files.is_running(int(pid)):
            files.remove_tree(old)
    return tempfile.mkdtemp(prefix=f"{_FOLDERS}{os.getpid()}-", dir=parent)


def _ray(*, own: bool = False) -> Any:
    """Import Ray without telemetry and without output to the terminal.

    Args:
        own: Whether Ray will be started here; then it lets in no other process.
    """
    if "ray" not in sys.modules:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        if own and "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    return import_module("ray")


def _size(engine: Engine) -> int:
    """Return the number of workers.

    Raises:
        RequestError: No node has room for one.
    """
    nodes = [each["Resources"] for each in _ray().nodes() if each["Alive"]]
    room = sum(_room(int(node.get("CPU", 0)), int(node.get("GPU", 0)), engine) for node in nodes)
    if not room:
        cpus, gpus = (sum(int(node.get(kind, 0)) for node in nodes) for kind in ("CPU", "GPU"))
        where = f" in {len(nodes)} nodes" if len(nodes) > 1 else ""
        raise RequestError(
            f"each worker needs {engine.cpus} cores and {engine.gpus:g} GPUs, Ray has {cpus} and {gpus}{where}",
            hint="see --worker-cpus and --worker-gpus",
        )
    return min(engine.workers or room, room)


def _room(cpus: int, gpus: int, engine: Engine) -> int:
    """Return the number of workers that a node has room for; a fraction of a GPU is on one GPU."""
    room = cpus // engine.cpus
    if engine.gpus:
        room = min(room, gpus * int(1 / engine.gpus) if engine.gpus < 1 else gpus // int(engine.gpus))
    return room
