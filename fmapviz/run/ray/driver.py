"""Run the work on Ray: plain tasks, one at a time for each worker, with the session cached in the worker process.

A task streams its events and finally its receipt. If its worker dies, the task is retried. A retried task reports each image
before it reads it, so that the image at which workers die is known.

Ray Data's `map_batches` was tried: all rows must be known before the first begins, 12 ms a row against 1.5, and rows of an
actor that died for good fail without a name (Ray 2.60). Actors of our own took 130 lines more and an actor that remembered
who had begun what.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz.core import files, platforms
from fmapviz.core.file_names import HIDDEN
from fmapviz.core.urls import is_url
from fmapviz.data import ImageFile
from fmapviz.errors import FmapvizError, OutputError, RequestError, quote
from fmapviz.events import Notice, Outcome, Staged
from fmapviz.images import decode_pool
from fmapviz.run.load import load_session, moved
from fmapviz.run.pipeline.reader import Naming, counted
from fmapviz.run.ray.tasks import Begun, Receipt, Task, after_death, divide, do
from fmapviz.store.remote.destination import open_destination
from fmapviz.store.shards.shard import shard_key
from fmapviz.store.unit import Member, sweep
from fmapviz.store.unit_key import image_key

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from fmapviz.config import Engine, RunConfig
    from fmapviz.draw.grid import Shared
    from fmapviz.run.pipeline.progress import Progress
    from fmapviz.run.session import Session
    from fmapviz.store.shards.grouping import Item

_SLOW_START_SECONDS = 60.0  # without any worker, until a notice
_START_SECONDS = 600.0  # without any worker, until the run ends
_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0
_SWEEP_SECONDS = 1.0
_CONNECT_SECONDS = 10.0
_OBJECT_STORE_BYTES = 200 * 2**20  # only paths and events travel
_FOLDERS = "fmapviz-ray-"
_OWN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}  # access to a Ray that this process starts
_MOST_EARLY_DEATHS = 12  # of workers, before any task has ended


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The data from which a worker loads its session: equal for all tasks of a run.

    Attributes:
        config: The configuration, which names the run's directory.
        options: The same as text, without a network.
        fingerprint: Of the run.
        working_directory: The driver's.
        shared: Values that all images of the run share, and the path of the anchor's image.
    """

    config: RunConfig = field(compare=False)
    options: str
    fingerprint: str
    working_directory: Path
    shared: tuple[Mapping[tuple[str, str, str], Shared], str] = field(compare=False)


def work(session: Session, items: Iterable[Item], *, progress: Progress) -> Generator[Outcome | Notice | Staged, None, None]:
    """Read, draw and write all inputs on a cluster, as `fmapviz.run.pipeline.work.work` does here.

    Raises:
        RequestError: There is no such cluster, or it has too few GPUs.
        OutputError: The output could not be written, or workers die all the time.
    """
    assert session.request.engine
    yield from _Driver(session, items, session.request.engine, progress).run()


@dataclass(slots=True, eq=False)
class _Attempt:
    """A task in flight.

    Attributes:
        task: The task.
        node: The worker's; None until it has begun.
        under_way: The image that it has begun last, if that is known.
    """

    task: Task
    node: str | None = None
    under_way: str | None = None


class _Driver:
    """Lists the inputs in one thread, waits for workers in another, and reports in the caller's own.

    So signals are handled at once: Python handles none while Ray waits, and Ray takes over SIGTERM in the main thread.
    """

    def __init__(self, session: Session, items: Iterable[Item], engine: Engine, progress: Progress) -> None:
        self._session = session
        self._items = items
        self._engine = engine
        self._progress = progress
        self._names = Naming(session.directory)
        self._stopped = False
        self._threads: list[threading.Thread] = []
        self._tasks: queue.Queue[Task | None] = queue.Queue(64)
        self._reports: queue.Queue[Outcome | Notice | Staged | BaseException | None] = queue.Queue(10_000)  # None: the end
        self._reported: set[str] = set()  # notices, and images that are staged in tasks that have not ended
        self._attempts: dict[Any, _Attempt] = {}  # by Ray's stream of object references
        self._idle_since = time.monotonic()
        self._any_ended = False
        self._early_deaths: list[Exception] = []  # of workers, before any task has ended

    def run(self) -> Iterator[Outcome | Notice | Staged]:
        """Yield the events of all inputs; at the end, workers of tasks in flight are killed."""
        self._start(self._list)
        try:
            while True:
                try:
                    report = self._reports.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                if report is None:
                    return
                if isinstance(report, BaseException):
                    raise report
                yield report
        finally:
            self._stopped = True
            until = time.monotonic() + _STOP_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()))

    def _start(self, target: Callable[[], None]) -> None:
        def run() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
                self._put(self._reports, error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _put(self, where: queue.Queue[Any], what: object) -> None:
        while not self._stopped:
            with suppress(queue.Full):
                where.put(what, timeout=_POLL_SECONDS)
                return

    def _list(self) -> None:
        """Divide the inputs into tasks; Ray, which takes seconds to start, is started for the first of them."""
        is_first = True
        for each in divide(map(self._names.claim, counted(self._items, self._progress))):
            if self._stopped:
                return
            if isinstance(each, Outcome):
                self._put(self._reports, each)
                continue
            if is_first:
                is_first = False
                self._start(self._serve)
            self._put(self._tasks, each)
        self._put(self._reports if is_first else self._tasks, None)

    def _serve(self) -> None:
        """Keep the workers busy until all tasks have ended."""
        with _connected(self._engine), _explained():
            size, ray = _size(self._engine), _ray()
            recipe = ray.put(_make_recipe(self._session, self._engine))
            is_listed = False
            try:
                while not (self._stopped or (is_listed and not self._attempts)):
                    if not is_listed and len(self._attempts) < size:
                        with suppress(queue.Empty):
                            task = self._tasks.get(timeout=0 if self._attempts else _POLL_SECONDS)
                            if task:
                                self._submit(recipe, task)
                            is_listed = task is None
                            continue
                    for stream in ray.wait([*self._attempts], timeout=_POLL_SECONDS)[0] if self._attempts else ():
                        self._receive(recipe, stream)
                    self._check_workers()
            finally:
                for stream in self._attempts:
                    with suppress(Exception):
                        ray.cancel(stream, force=True)
                self._sweep()
        self._put(self._reports, None)

    # Any: Ray's reference to the recipe.
    def _submit(self, recipe: Any, task: Task) -> None:
        """Send a task to a worker."""
        function: Any = _ray().remote(_work)
        function = function.options(
            num_cpus=self._engine.cpus,
            num_gpus=self._engine.gpus,
            max_retries=0,  # deaths are counted by image, see `after_death`
            num_returns="streaming",
            scheduling_strategy="SPREAD",
            # A careful task continues only when its report has arrived.
            **({"_generator_backpressure_num_objects": 1} if task.careful else {}),
        )
        self._attempts[function.remote(recipe, replace(task, accepted=self._progress.accepted))] = _Attempt(task)

    # Any: likewise, and its stream of references.
    def _receive(self, recipe: Any, stream: Any) -> None:
        """Receive a worker's next report; if the worker has died, retry its task."""
        ray, attempt = _ray(), self._attempts[stream]
        try:
            report = ray.get(next(stream))
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
            del self._attempts[stream]
            if not self._any_ended:
                self._early_deaths.append(error)
            alive = [each["NodeID"] for each in ray.nodes() if each["Alive"]]
            is_lost = attempt.node and attempt.node not in alive  # with its node: no image is to blame
            self._submit(recipe, attempt.task if is_lost else after_death(attempt.task, attempt.under_way))
            return
        if isinstance(report, Receipt):
            del self._attempts[stream]
            self._any_ended = True
            self._end(attempt.task, report)
        elif isinstance(report, Begun):
            attempt.under_way = report.message
        elif isinstance(report, Staged):
            self._report(report)
        else:
            attempt.node = report

    def _end(self, task: Task, receipt: Receipt) -> None:
        """Add the progress of a task to that of the run, and report its events.

        Raises:
            FmapvizError: The error that ended the task.
        """
        self._progress.add(receipt.progress)
        for event in receipt.events:
            self._report(event)
        self._reported.difference_update(task.paths)
        if receipt.error:
            raise receipt.error
        for item in task.items:
            if isinstance(item, ImageFile):
                self._names.release(item)

    def _report(self, event: Outcome | Notice | Staged) -> None:
        """Report a worker's event, unless it was reported before: by another worker, or when it happened."""
        if isinstance(event, Staged | Notice):
            subject = event.path if isinstance(event, Staged) else event.message
            if subject in self._reported:
                return
            self._reported.add(subject)
        elif event.unit:
            event = replace(event, unit=self._session.directory / event.unit)
        self._put(self._reports, event)

    def _check_workers(self) -> None:
        """Check that some worker starts, and that not all die.

        Raises:
            OutputError: None has started for a while, or all have died before any task has ended.
        """
        if not self._attempts or any(attempt.node for attempt in self._attempts.values()):
            self._idle_since = time.monotonic()
        elif (idle := time.monotonic() - self._idle_since) > _START_SECONDS:
            message = f"Ray has started no worker in {_START_SECONDS:.0f} s: its nodes are full or too slow"
            raise OutputError(message, hint="`ray status` shows why")
        elif idle > _SLOW_START_SECONDS:
            message = f"Ray has started no worker for {_SLOW_START_SECONDS:.0f} s: its nodes are full or slow; waiting"
            self._report(Notice(message))
        if not self._any_ended and len(self._early_deaths) >= _MOST_EARLY_DEATHS:
            error = self._early_deaths[-1]
            said = str(error).strip().splitlines()[-1]
            raise OutputError(
                f"Ray's workers died {len(self._early_deaths)} times before anything was drawn: {said}",
                hint="they may run out of memory as the model is loaded; see the workers' logs",
            ) from error

    def _sweep(self) -> None:
        """Remove the staged files of killed workers, as soon as these have ended."""
        until = time.monotonic() + _SWEEP_SECONDS
        directory = self._session.directory
        while any(directory.glob(f"{HIDDEN}*")) and time.monotonic() < until:
            with suppress(OSError):
                sweep(directory)
            time.sleep(_POLL_SECONDS / 4)


def _make_recipe(session: Session, engine: Engine) -> _Recipe:
    address = session.output.address
    config = replace(
        session.request,
        inputs=(),
        on_event=None,
        engine=None,
        workers=engine.cpus,
        out=address if is_url(address) else session.directory.parent.absolute(),
        name=session.directory.name,
    )
    return _Recipe(
        config,
        repr(replace(config, model="")),
        session.info.fingerprint,
        Path.cwd(),
        (session.plan.shared, session.plan.anchor_path),
    )


_opened = ExitStack()  # for the sessions of this worker process, as long as it lasts


def _work(recipe: _Recipe, task: Task) -> Iterator[str | Begun | Staged | Receipt]:
    """Execute a task in a worker: yield its node, its events and its receipt, with units relative to the run."""
    yield str(_ray().get_runtime_context().get_node_id())
    try:
        session = _load(recipe)
        shared, anchor_path = recipe.shared
        session = replace(session, plan=replace(session.plan, shared=shared, anchor_path=anchor_path))
        groups = {item.group for item in task.items if isinstance(item, Member)}
        units = (image_key(item) for item in task.items if isinstance(item, ImageFile))
        session.output.fetch_records(session.directory, [*units, *(shard_key(group, ()) for group in groups)])
    except FmapvizError as error:
        yield Receipt(error=error)
        return
    yield from do(session, task)


@cache
def _load(recipe: _Recipe) -> Session:
    """Return this process's session, which lasts as long as the process.

    Raises:
        RequestError: The files on this node are not those of the machine that began the run.
    """
    config = recipe.config
    with suppress(OSError):
        os.chdir(recipe.working_directory)  # paths were typed relative to it
    decode_pool.start()
    session, _ = load_session(config)
    if recipe.fingerprint != session.info.fingerprint:
        raise RequestError(
            f"a worker on {quote(os.uname().nodename)} has other weights or other code than this machine",
            hint="all nodes need the same files under the same paths",
        )
    output = _opened.enter_context(open_destination(config.out))
    _opened.enter_context(moved(session.model.module, session.device))
    assert config.name
    directory = output.join_run(config.name)
    return replace(session, output=output, directory=directory)


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
        raise OutputError(f"Ray failed: {said}", hint="the same call continues") from error


@contextmanager
def _connected(engine: Engine) -> Iterator[None]:
    """Connect to Ray without output; a Ray started here leaves no files.

    Raises:
        RequestError: There is no Ray at that address, or this process has started one of its own before.
    """
    if _ray(own=engine.address is None).is_initialized():
        yield
        return
    if engine.address is None and "RAY_AUTH_MODE" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", _OWN["RAY_AUTH_TOKEN"])  # Ray itself would write one into the home directory
    if engine.address is not None and _OWN.items() <= os.environ.items():
        # Ray keeps a token as long as the process lasts, and rejects the reports of workers without it, with no word.
        raise RequestError(
            f"this process has started a Ray of its own, and cannot be reached from another one, {quote(engine.address)}",
            hint="use that one in another process",
        )
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
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
        except Exception as error:  # Ray raises a bare one where its processes start slowly
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
    parent = Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())  # noqa: S108
    for old in parent.glob(f"{_FOLDERS}*"):
        pid = old.name.removeprefix(_FOLDERS).partition("-")[0]
        if pid.isdecimal() and not platforms.is_running(int(pid)):
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
            os.environ |= _OWN
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
            hint="see Engine(cpus=) and Engine(gpus=)",
        )
    return min(engine.workers or room, room)


def _room(cpus: int, gpus: int, engine: Engine) -> int:
    """Return the number of workers that a node has room for; a fraction of a GPU is on one GPU."""
    room = cpus // engine.cpus
    if engine.gpus:
        room = min(room, gpus * int(1 / engine.gpus) if engine.gpus < 1 else gpus // int(engine.gpus))
    return room
