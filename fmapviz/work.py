"""Take each image through reading, drawing and writing, several at a time.

Reading and writing happen in threads, since decoding, compressing and writing release the interpreter's lock; the forward
pass and the drawing happen in the caller's thread. At most `2 x workers` images are read ahead, and at most `workers` wait
to be written, so memory does not grow with the number of images.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from queue import Empty, Full, Queue
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING

import torch

from fmapviz.drawing import ForwardError, MixedBatchError, draw, is_out_of_memory
from fmapviz.errors import InputError, quote
from fmapviz.images import read_image
from fmapviz.inputs import path_hash
from fmapviz.pictures import layer_records, make_pictures
from fmapviz.preparation import as_seen
from fmapviz.runs import writing_to
from fmapviz.units import commit, find_done, find_own, stage
from fmapviz.values import Drawn, Failure, Image, ImageFile, Notice, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import Tensor

    from fmapviz.drawing import View
    from fmapviz.values import Layer, Model, Picture, RunInfo

    OpenWriter = Callable[[Path], AbstractContextManager[Callable[[Picture], None]]]

PATIENCE_SECONDS = 0.1  # how long an incomplete batch waits for another image


@dataclass(slots=True, eq=False)
class Job:
    """What every step needs to know, and what they find out together."""

    model: Model
    layers: Sequence[Layer]
    views: Mapping[str, View]
    writers: Mapping[str, OpenWriter]
    info: RunInfo
    directory: Path
    device: torch.device
    batch_size: int
    workers: int
    force: bool
    found: int = 0
    last_drawn: int = 0
    not_executed: set[str] = field(default_factory=set)
    undrawn: dict[str, str] = field(default_factory=dict)
    stopped: Flag = field(default_factory=Flag)
    names: dict[str, str] = field(default_factory=dict)  # of the units being written, with their sources


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """An image, and what the network is given of it."""

    image: Image
    values: Tensor


_Arrival = Future[_Prepared | Outcome]
_Arrivals = Queue[_Arrival | None]


class _StoppedError(Exception):
    """The run has ended; what is in flight is dropped."""


def work(job: Job, found: Iterable[ImageFile | Failure]) -> Generator[Outcome | Notice, None, None]:
    """Do all of it, and tell of each input how it ended, in no certain order.

    Raises:
        OutputError: The output could not be written.
    """
    writing: deque[Future[Outcome]] = deque()
    batch: list[_Prepared] = []
    with _threads(job) as pool:
        for arrival in _arrivals(job, pool, found):
            if isinstance(arrival, Outcome):
                yield arrival
            elif arrival is not None:
                if batch and batch[0].values.shape != arrival.values.shape:
                    yield from _draw_and_write(job, pool, batch, writing)
                batch.append(arrival)
            if arrival is None or len(batch) >= job.batch_size:
                yield from _draw_and_write(job, pool, batch, writing)
            while writing and (writing[0].done() or len(writing) > job.workers):
                yield writing.popleft().result()
        yield from _draw_and_write(job, pool, batch, writing)
        while writing:
            yield writing.popleft().result()


@contextmanager
def _threads(job: Job) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of threads; on the way out nothing in it goes on."""
    pool = ThreadPoolExecutor(job.workers, thread_name_prefix="fmapviz")
    try:
        yield pool
    finally:
        job.stopped.set()
        pool.shutdown(cancel_futures=True)


def _arrivals(
    job: Job, pool: ThreadPoolExecutor, found: Iterable[ImageFile | Failure]
) -> Iterator[_Prepared | Outcome | None]:
    """Read images ahead, in order; None says that for the moment there is no other.

    Inputs are listed in a thread of their own: a list on standard input may be slow to arrive.
    """
    queue: _Arrivals = Queue(2 * job.workers)
    Thread(target=_list, args=(job, pool, found, queue), name="fmapviz-list", daemon=True).start()
    while True:
        try:
            arrival = queue.get(timeout=PATIENCE_SECONDS)
        except Empty:
            yield None
            continue
        if arrival is None:
            return
        yield arrival.result()


def _list(
    job: Job,
    pool: ThreadPoolExecutor,
    found: Iterable[ImageFile | Failure],
    queue: _Arrivals,
) -> None:
    try:
        for item in found:
            job.found += 1
            _put(job, queue, pool.submit(_prepare, job, item))
    except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
        failed: _Arrival = Future()
        failed.set_exception(error)
        _put(job, queue, failed)
    _put(job, queue, None)


def _put(job: Job, queue: _Arrivals, item: _Arrival | None) -> None:
    while not job.stopped.is_set():
        try:
            queue.put(item, timeout=PATIENCE_SECONDS)
        except Full:
            continue
        return


def _prepare(job: Job, item: ImageFile | Failure) -> _Prepared | Outcome:
    """Read one image, unless it is finished already or cannot be read."""
    if isinstance(item, Failure):
        return Outcome(item.path, "failed", failure=item)
    done = None if job.force else find_done(job.directory, item)
    if done is not None:
        return Outcome(item.path, "skipped", unit=done)
    try:
        image = read_image(item)
        return _Prepared(image, job.model.preparation.apply(image.pixels))
    except InputError as error:
        return Outcome(item.path, "failed", failure=Failure(item.path, error.code, str(error), error.hint))


def _draw_and_write(
    job: Job, pool: ThreadPoolExecutor, batch: list[_Prepared], writing: deque[Future[Outcome]]
) -> Iterator[Outcome | Notice]:
    """Draw a batch, and leave it to the threads to write it; the batch is empty afterwards."""
    begun = time.monotonic()
    for prepared, drawn in _draw(job, batch[:]):
        if isinstance(drawn, Notice):
            yield drawn
        elif isinstance(drawn, Failure):
            yield Outcome(drawn.path, "failed", failure=drawn)
        elif not drawn.drawings:
            yield Outcome(prepared.image.file.path, "failed", failure=_nothing_drawn(prepared, drawn))
        else:
            job.last_drawn = len({drawing.layer for drawing in drawn.drawings})
            job.not_executed.update(drawn.not_executed)
            job.undrawn.update(drawn.undrawn)
            writing.append(pool.submit(_write, job, prepared, drawn, _told_apart(job, prepared.image.file), begun))
    batch.clear()


def _draw(job: Job, batch: list[_Prepared]) -> Iterator[tuple[_Prepared, Drawn | Failure | Notice]]:
    """Draw a batch; where it fails, its halves, down to the single image that is to blame."""
    if not batch:
        return
    try:
        values = torch.stack([prepared.values for prepared in batch]).to(job.device, _dtype(job.model))
        drawn = draw(job.model, job.layers, job.views, job.info.style, values)
    except Exception as error:
        memory = is_out_of_memory(error)
        if not memory and not isinstance(error, ForwardError | MixedBatchError):
            raise
        if len(batch) == 1:
            path = batch[0].image.file.path
            code, reason = ("E_MEMORY", "out of memory") if memory else ("E_MODEL", str(error))
            yield batch[0], Failure(path, code, f"{reason}: {quote(path)}")
            return
    else:
        yield from zip(batch, drawn, strict=True)
        return
    half = len(batch) // 2
    if memory and job.batch_size > half:
        job.batch_size = half
        yield batch[0], Notice(f"out of memory with {len(batch)} images at once: going on with {half}")
    yield from _draw(job, batch[:half])
    yield from _draw(job, batch[half:])


def _told_apart(job: Job, file: ImageFile) -> ImageFile:
    """Let the first of several sources with one name have it, whichever of them is written first."""
    if job.names.setdefault(file.unit, file.path) == file.path or find_own(job.directory, file):
        return file
    return replace(file, unit=f"{file.unit}~{path_hash(file.path)}")


def _nothing_drawn(prepared: _Prepared, drawn: Drawn) -> Failure:
    """Say why no chosen layer gave a picture, by the example of the first."""
    path = prepared.image.file.path
    name, reason = next(iter(drawn.undrawn.items()), (drawn.not_executed[0], "not executed"))
    return Failure(path, "E_NOTHING", f"no layer gave a picture: {quote(name)}: {reason}: {quote(path)}")


def _dtype(model: Model) -> torch.dtype:
    """Give the type of the numbers the network computes with."""
    floating = (values.dtype for values in model.module.parameters() if values.is_floating_point())
    return next(floating, torch.float32)


def _write(job: Job, prepared: _Prepared, drawn: Drawn, place: ImageFile, begun: float) -> Outcome:
    """Encode and write one image's pictures, and commit its directory under the name of `place`."""
    file, pictures = prepared.image.file, 0
    seen = as_seen(prepared.values, job.model.preparation)
    with writing_to(job.directory), stage(job.directory) as staging:
        with ExitStack() as writers:
            writes = [writers.enter_context(open_writer(staging)) for open_writer in job.writers.values()]
            for picture in make_pictures(drawn, seen, file, job.info):
                if job.stopped.is_set():
                    raise _StoppedError
                for write in writes:
                    write(picture)
                pictures += 1
        record = {
            "run": job.info.fingerprint,
            "model": job.info.label,
            "weights": job.info.weights,
            "notices": list(prepared.image.notices),
            "layers": layer_records(drawn),
            "not_executed": list(drawn.not_executed),
            "undrawn": dict(drawn.undrawn),
        }
        unit = commit(staging, job.directory, place, record, force=job.force)
    if job.names.get(file.unit) == file.path:
        del job.names[file.unit]  # from here on the disk knows it
    seconds = time.monotonic() - begun
    return Outcome(file.path, "done", unit=unit, notices=prepared.image.notices, pictures=pictures, seconds=seconds)
