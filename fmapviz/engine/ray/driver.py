"""Have the work of a run done by Ray: actors with the model, each of which is given one task after the other.

Only what tasks are about and receipts of how they ended travel. An actor that dies is replaced, and its task given to
another one; which image is to blame is found out with `Ledger`, an actor that outlives the others.

These are plain actors and not Ray Data's `map_batches`: there all tasks have to be known before the first can begin, and an
actor that has died for good stays in the pool and fails tasks that never harmed anybody (Ray 2.60).
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
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz import decoding, files
from fmapviz.distribution import Deaths, Receipt, Task, account, divide, do
from fmapviz.errors import FmapvizError, OutputError, RequestError, quote
from fmapviz.jobs import make_job, moved
from fmapviz.ledger import Ledger
from fmapviz.naming import Naming
from fmapviz.outputs import opened
from fmapviz.shards import Member
from fmapviz.sharing import Sharing
from fmapviz.staging import HIDDEN, is_running
from fmapviz.units import sweep
from fmapviz.urls import is_url
from fmapviz.values import ImageFile, Notice, Outcome, Staged

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from fmapviz.grouping import Item
    from fmapviz.jobs import Asked
    from fmapviz.options import Engine
    from fmapviz.work import Job

_START_SECONDS = 120.0  # how long no worker at all may be there
_POLL_SECONDS = 0.2
_PARTING_SECONDS = 5.0
_SWEEP_SECONDS = 1.0
_REACH_SECONDS = 10.0
_TELL_SECONDS = 1.0  # between two words of a worker on how far it is
_STORE_BYTES = 200 * 2**20  # nothing large is ever put into it
_PLACES = "fmapviz-ray-"
_MOST_BARREN = 12  # deaths before anything has come of any task


@dataclass(frozen=True, slots=True, eq=False)
class _Recipe:
    """What a worker makes its job of."""

    asked: Asked
    out: Path | str
    name: str
    fingerprint: str
    here: Path
    force: bool
    repair: bool
    sync: bool


class _Worker:
    """Does tasks; an actor."""

    # Any: Ray makes its classes on the way.
    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._job: Job | None = None
        self._open = ExitStack()  # as long as this process lives

    def node(self) -> str:
        return str(_ray().get_runtime_context().get_node_id())

    def do(self, task: Task, ledger: Any) -> Receipt:
        try:
            if self._job is None:  # not before: whatever happens now happens to a task
                self._job = self._make_job()
            output = self._job.output
            output.look_up(self._job.directory, map(_identify, task.items))
        except FmapvizError as error:
            return Receipt(task.number, (), 0, accepted=False, not_executed=frozenset(), undrawn={}, error=error)

        def note(file: ImageFile) -> None:
            with suppress(_ray().exceptions.RayActorError):
                _ray().get(ledger.note.remote(task.number, file.path))

        staged: list[Staged] = []
        told = -inf

        def tell(event: Staged) -> None:
            nonlocal told
            staged.append(event)
            if time.monotonic() > told + _TELL_SECONDS:
                ledger.tell.remote(task.number, staged)
                staged.clear()
                told = time.monotonic()

        receipt = do(self._job, task, note, tell)
        addressed = (
            replace(event, unit=output.told(event.unit)) if isinstance(event, Outcome) and event.unit else event
            for event in receipt.events
        )
        return replace(receipt, events=tuple(addressed))

    def _make_job(self) -> Job:
        recipe = self._recipe
        with suppress(OSError):
            os.chdir(recipe.here)  # what was typed is relative to that
        decoding.start()
        job, _ = make_job(recipe.asked)
        if job.info.fingerprint != recipe.fingerprint:
            raise RequestError(
                f"a worker on {quote(os.uname().nodename)} has other weights or other code than this machine",
                hint="all nodes need the same files under the same paths",
            )
        job.output = self._open.enter_context(opened(recipe.out))
        job.directory = job.output.join_run(recipe.name)
        job.force, job.repair, job.sync = recipe.force, recipe.repair, recipe.sync
        self._open.enter_context(moved(job.model.module, job.device))
        job.sharing = Sharing(job.model.module)  # proven once, and not for each task
        return job


def work(
    job: Job, items: Iterable[Item], *, asked: Asked, engine: Engine
) -> Generator[Outcome | Notice | Staged, None, None]:
    """Do what `fmapviz.work.work` does.

    Raises:
        RequestError: There is no such cluster, or not so many GPUs in it.
        OutputError: The output could not be written, or workers die all the time.
    """
    recipe = _Recipe(
        replace(asked, workers=engine.cpus),
        job.output.address if is_url(job.output.address) else job.directory.parent.absolute(),
        job.directory.name,
        job.info.fingerprint,
        Path.cwd(),
        job.force,
        job.repair,
        job.sync,
    )
    pool = _Pool(job, items, recipe, engine)
    try:
        yield from pool.run()
    finally:
        pool.stop()


def _identify(item: Member | ImageFile) -> ImageFile:
    """Give what a directory is told by, an image's or a shard's."""
    return item.shard.identify(()) if isinstance(item, Member) else item


class _Pool:
    """Lists what there is to do in one thread, has it done in another, and tells in the caller's own what comes of it.

    Only so signals are heeded at once: Python heeds none while Ray waits.
    """

    def __init__(self, job: Job, items: Iterable[Item], recipe: _Recipe, engine: Engine) -> None:
        self._job = job
        self._items = items
        self._recipe = recipe
        self._engine = engine
        self._naming = Naming(job.directory)
        self._stopped = False
        self._staged: set[str] = set()  # told already, of tasks that are not yet done
        self._tasks: queue.Queue[Task | None] = queue.Queue(64)
        self._told: queue.Queue[Outcome | Staged | tuple[Task, Receipt] | BaseException | None] = queue.Queue(10_000)
        self._threads = [
            threading.Thread(target=self._guard, args=(do,), daemon=True) for do in (self._list, self._have_done)
        ]

    def run(self) -> Iterator[Outcome | Notice | Staged]:
        """Give what is told of each input."""
        for thread in self._threads:
            thread.start()
        while True:
            try:
                event = self._told.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Outcome):
                yield event
                continue
            if isinstance(event, Staged):
                if event.path not in self._staged:  # a worker that had told it may have died
                    self._staged.add(event.path)
                    yield event
                continue
            yield from self._finish(*event)

    def _finish(self, task: Task, receipt: Receipt) -> Iterator[Outcome | Notice | Staged]:
        """Give what is told of a task, but for what was told meanwhile."""
        for event in account(self._job, receipt):
            if isinstance(event, Staged) and event.path in self._staged:
                self._staged.discard(event.path)
            elif isinstance(event, Outcome) and event.unit and not is_url(self._recipe.out):
                run = Path(self._recipe.out, self._recipe.name)
                yield replace(event, unit=self._job.directory / event.unit.relative_to(run))  # as it was typed
            else:
                yield event
        self._staged.difference_update(task.paths)
        for item in task.items:
            if isinstance(item, ImageFile):
                self._naming.release(item)

    def stop(self) -> None:
        """End it; workers that are at something are killed."""
        self._stopped = True
        until = time.monotonic() + _PARTING_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _guard(self, do_it: Any) -> None:
        try:
            do_it()
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._put(self._told, error)

    def _put(self, where: queue.Queue[Any], what: object) -> None:
        """Hand something over, unless nobody wants it any more."""
        while not self._stopped:
            with suppress(queue.Full):
                where.put(what, timeout=_POLL_SECONDS)
                return

    def _list(self) -> None:
        for each in divide(map(self._naming.claim, self._items)):
            if self._stopped:
                return
            self._job.found += 1 if isinstance(each, Outcome) else each.counted
            self._put(self._told if isinstance(each, Outcome) else self._tasks, each)
        self._put(self._tasks, None)

    def _have_done(self) -> None:
        first = None
        while first is None and not self._stopped:  # Ray takes seconds to start: not for nothing
            with suppress(queue.Empty):
                first = self._tasks.get(timeout=_POLL_SECONDS)
                if first is None:
                    break
        if first is not None:
            with _connected(self._engine), _explained():
                _Crew(self, first).work()
        self._put(self._told, None)


class _Crew:
    """The actors of a run, and what each of them is at."""

    def __init__(self, pool: Any, first: Task) -> None:
        self._pool = pool
        self._engine: Engine = pool._engine
        self._size = _size(self._engine)
        self._ledger = self._open_ledger()
        self._recipe = _ray().put(pool._recipe)
        self._waiting = deque([first])
        self._listing = True
        self._hired: dict[Any, Any] = {}
        self._idle: list[tuple[Any, str]] = []
        self._busy: dict[Any, tuple[Any, str, Task]] = {}
        self._news: Any = None
        self._deaths = Deaths()
        self._barren = 0
        self._last = self._heard = time.monotonic()

    def work(self) -> None:
        """Have everything done."""
        try:
            while not self._pool._stopped:
                self._look_for_tasks()
                self._hand_out()
                if not (self._waiting or self._busy or self._listing):
                    return
                self._hire()
                self._wait()
        finally:
            for actor in (*self._hired.values(), *(actor for actor, *_ in (*self._idle, *self._busy.values()))):
                _ray().kill(actor)
            _ray().kill(self._ledger)
            self._sweep()

    def _sweep(self) -> None:
        """Remove what workers that were at something had staged, as soon as they are gone."""
        until = time.monotonic() + _SWEEP_SECONDS
        directory = self._pool._job.directory
        while any(directory.glob(f"{HIDDEN}*")) and time.monotonic() < until:
            with suppress(OSError):
                sweep(directory)
            time.sleep(_POLL_SECONDS / 4)

    def _look_for_tasks(self) -> None:
        while self._listing and len(self._waiting) < self._size:
            try:
                task = self._pool._tasks.get_nowait()
            except queue.Empty:
                return
            if task is None:
                self._listing = False
            else:
                self._waiting.append(task)

    def _hand_out(self) -> None:
        while self._idle and self._waiting:
            (actor, node), task = self._idle.pop(), self._waiting.popleft()
            self._busy[actor.do.remote(replace(task, accepted=self._pool._job.accepted), self._ledger)] = (actor, node, task)

    def _hire(self) -> None:
        there = len(self._hired) + len(self._idle) + len(self._busy)
        wanted = min(self._size - there, len(self._waiting) - len(self._hired) - len(self._idle))
        options = {"num_cpus": self._engine.cpus, "num_gpus": self._engine.gpus, "max_restarts": 0, "max_task_retries": 0}
        for _ in range(wanted):
            actor: Any = _ray().remote(_Worker).options(scheduling_strategy="SPREAD", **options)
            actor = actor.remote(self._recipe)
            self._hired[actor.node.remote()] = actor

    def _wait(self) -> None:
        if self._busy or self._idle or not self._hired:
            self._last = time.monotonic()
        if time.monotonic() > self._last + _START_SECONDS:
            raise OutputError(
                f"Ray has started no worker in {_START_SECONDS:.0f} s: its nodes have no room", hint="ray status tells why"
            )
        self._ask_for_news()
        refs = [*self._hired, *self._busy, *filter(None, [self._news])]
        if not refs:
            time.sleep(_POLL_SECONDS / 4)  # for what is still to be found
            return
        for ref in _ray().wait(refs, num_returns=1, timeout=_POLL_SECONDS)[0]:
            if ref == self._news:
                self._pass_on()
            elif ref in self._hired:
                self._begin(ref)
            else:
                self._end(ref)

    def _ask_for_news(self) -> None:
        if self._busy and self._news is None and time.monotonic() > self._heard + _TELL_SECONDS:
            self._news = self._ledger.told.remote()

    def _pass_on(self) -> None:
        """Tell how far tasks are that are not yet done."""
        ref, self._news, self._heard = self._news, None, time.monotonic()
        try:
            told: list[tuple[int, Staged]] = _ray().get(ref)
        except _ray().exceptions.RayActorError:  # its node was lost
            self._ledger = self._open_ledger()
            return
        at_work = {task.number for _, _, task in self._busy.values()}
        for number, event in told:
            if number in at_work:
                self._pool._put(self._pool._told, event)

    def _begin(self, ref: Any) -> None:
        actor = self._hired.pop(ref)
        try:
            self._idle.append((actor, _ray().get(ref)))
        except _ray().exceptions.RayActorError as error:
            self._note_barren(error)

    def _end(self, ref: Any) -> None:
        actor, node, task = self._busy.pop(ref)
        try:
            receipt = _ray().get(ref)
        except _ray().exceptions.RayActorError as error:
            self._note_barren(error)
            if not _is_alive(node):
                self._waiting.appendleft(task)  # no image is to blame
                return
            self._waiting.appendleft(self._deaths.note(task, self._under_way(task)))
            return
        self._barren = -1
        self._idle.append((actor, node))
        self._pool._put(self._pool._told, (task, receipt))

    def _open_ledger(self) -> Any:
        return _ray().remote(Ledger).options(num_cpus=0).remote()

    def _under_way(self, task: Task) -> str | None:
        """Say which image of a task was begun last, if that is known."""
        try:
            path: str | None = _ray().get(self._ledger.take.remote(task.number))
        except _ray().exceptions.RayActorError:  # its node was lost
            self._ledger = self._open_ledger()
            return None
        return path

    def _note_barren(self, error: Exception) -> None:
        """Give up if nothing ever comes of anything."""
        if self._barren < 0:
            return
        self._barren += 1
        if self._barren >= _MOST_BARREN:
            raise OutputError(
                f"Ray's workers died {self._barren} times before anything was drawn: {str(error).strip().splitlines()[-1]}",
                hint="memory that runs out as the model is loaded, say; the workers' logs may tell",
            ) from error


@contextmanager
def _explained() -> Iterator[None]:
    """Tell Ray's own failures from those of what it runs.

    Raises:
        OutputError: A part of Ray that everything needs is gone, say.
    """
    failures = import_module("ray.exceptions")
    try:
        yield
    except failures.RayTaskError:
        raise  # a bug of ours, with its traceback
    except failures.RayError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OutputError(f"Ray failed: {said}", hint="the same command continues") from error


def _is_alive(node: str) -> bool:
    return any(each["NodeID"] == node and each["Alive"] for each in _ray().nodes())


@contextmanager
def _connected(engine: Engine) -> Iterator[None]:
    """Have a Ray, quietly, and leave nothing of one of our own.

    Raises:
        RequestError: There is none at that address.
    """
    if _ray(own=engine.address is None).is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        try:
            if engine.address is None:
                place = _make_place()
                stack.callback(files.remove_tree, Path(place))
                _ray().init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=place,
                )
            else:
                _reach(engine.address)
                _ray().init(address=engine.address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise RequestError(
                f"no Ray at {quote(engine.address or 'this machine')}: {str(error).strip().splitlines()[0]}",
                hint="ray starts one on this machine, ray:auto takes the one that runs here, ray:HOST:PORT another one",
            ) from error
        stack.callback(_ray().shutdown)
        yield


def _reach(address: str) -> None:
    """Make sure that there is something at an address: Ray itself would try for minutes.

    Raises:
        OSError: There is not.
    """
    found = re.fullmatch(r"(?:ray://)?\[?([^/\]]+?)\]?:(\d+)", address)
    if found:
        socket.create_connection((found[1], int(found[2])), timeout=_REACH_SECONDS).close()


def _make_place() -> str:
    """Make a directory for Ray's own files, and remove those that killed processes have left.

    Its path has to be short: sockets have names in it.
    """
    parent = Path("/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir())  # noqa: S108
    for old in parent.glob(f"{_PLACES}*"):
        pid = old.name.removeprefix(_PLACES).partition("-")[0]
        if pid.isdecimal() and not is_running(int(pid)):
            files.remove_tree(old)
    return tempfile.mkdtemp(prefix=f"{_PLACES}{os.getpid()}-", dir=parent)


def _ray(*, own: bool = False) -> Any:
    """Import Ray, quietly: nobody is told anything, and its own processes do not write to the terminal.

    Args:
        own: Whether it will be started here: then nobody else is let in.
    """
    if "ray" not in sys.modules:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        if own and "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    return import_module("ray")


def _size(engine: Engine) -> int:
    """Say how many workers there will be.

    Raises:
        RequestError: There is room for none.
    """
    nodes = [each["Resources"] for each in _ray().nodes() if each["Alive"]]
    room = sum(_room(int(node.get("CPU", 0)), int(node.get("GPU", 0)), engine) for node in nodes)
    if not room:
        cpus, gpus = (sum(int(node.get(kind, 0)) for node in nodes) for kind in ("CPU", "GPU"))
        where = f" in {len(nodes)} nodes" if len(nodes) > 1 else ""
        raise RequestError(
            f"each worker wants {engine.cpus} cores and {engine.gpus:g} GPUs, Ray has {cpus} and {gpus}{where}",
            hint="--worker-cpus and --worker-gpus say how many",
        )
    return min(engine.workers or room, room)


def _room(cpus: int, gpus: int, engine: Engine) -> int:
    """Say how many workers a node has room for; a part of a GPU is a part of one."""
    room = cpus // engine.cpus
    if engine.gpus:
        room = min(room, gpus * int(1 / engine.gpus) if engine.gpus < 1 else gpus // int(engine.gpus))
    return room
