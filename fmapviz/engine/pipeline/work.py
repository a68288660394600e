"""Take each image of a run through reading, drawing and writing, several at a time."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch

from fmapviz.engine.pipeline.batch_runner import BatchRunner, Network
from fmapviz.engine.pipeline.batching import Sharing
from fmapviz.engine.pipeline.reader import ImageReader, Naming, UnitProbe, counted
from fmapviz.engine.pipeline.scheduler import Schedule, Stop
from fmapviz.engine.pipeline.stages import Processed
from fmapviz.engine.pipeline.unit_writer import UnitOutput, UnitWriter
from fmapviz.images.decode_pool import DecodePool
from fmapviz.inspection.random_state import undisturbed
from fmapviz.runs.shard_grouping import Grouping, of_part

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from fmapviz.core.events import Notice, Outcome, Staged
    from fmapviz.core.types import Failure, ImageFile, ImageResult
    from fmapviz.engine.pipeline.stages import Progress, Result
    from fmapviz.engine.session import Session
    from fmapviz.runs.shard_grouping import Item


def work(
    session: Session,
    items: Iterable[Item],
    *,
    progress: Progress,
    on_begun: Callable[[ImageFile], None] | None = None,
    on_drawn: Callable[[ImageFile, ImageResult], None] | None = None,
) -> Generator[Outcome | Notice | Staged, None, None]:
    """Read, draw and write all inputs; yield events, in no certain order.

    Args:
        session: What to draw, and with what.
        items: The inputs, from `group`.
        progress: Counts them.
        on_begun: Called with each image before it is read.
        on_drawn: Called with the results of each image, which are then not written; None: they are written.

    Raises:
        OutputError: The output could not be written.
    """
    cores = torch.get_num_threads()
    stop = Stop()
    names = Naming(session.directory)
    shareable = session.batch_size is None and session.several and not session.plan.of_classes
    network = Network(
        model=session.model,
        layers=session.layers,
        plan=session.plan,
        style=session.config.style,
        top=session.config.top or 0,
        device=session.device,
        early_stop=session.early_stop,
        choices=session.choices,
    )
    try:
        with (
            undisturbed(),
            closing(
                BatchRunner(
                    network,
                    progress,
                    workers=session.workers,
                    batch_size=session.batch_size,
                    sharing=(session.sharing or Sharing(session.model.module)) if shareable else None,
                    check=stop.check,
                )
            ) as runner,
            DecodePool() as decode_pool,
            closing(_Callback(on_drawn) if on_drawn else _writer(session, names, stop)) as writer,
        ):
            reader = ImageReader(
                session.model.preparation,
                decode_pool,
                probe=None if on_drawn else _probe(session),
                release=names.release,
                on_begun=on_begun,
                cores=max(1, cores // session.workers),
            )
            listed = counted(items, progress)
            schedule = Schedule(reader, runner, writer, stop=stop)
            with closing(schedule.run(listed if on_drawn else map(names.claim, listed))) as events:
                yield from events
    finally:
        torch.set_num_threads(cores)  # the setting of a thread holds for new threads as well


def group(session: Session, found: Iterable[ImageFile | Failure]) -> Iterable[Item]:
    """Assign the inputs of a run to units, and decide what is done with them; leave out those of other parts."""
    if not session.config.shard:
        return of_part(found, session.config.part) if session.config.part else found
    grouping = Grouping(
        session.directory,
        session.info.fingerprint,
        session.config.shard,
        part=session.config.part,
        force=session.config.force,
        is_intact=session.output.is_intact if session.config.repair else None,
    )
    return grouping.items(found)


class _Callback:
    """Passes results on instead of writing them."""

    held = 0

    def __init__(self, on_drawn: Callable[[ImageFile, ImageResult], None]) -> None:
        self._on_drawn = on_drawn

    def write(self, result: Result, _tell: object) -> None:
        if isinstance(result, Processed):
            self._on_drawn(result.image.member.file, result.drawn)

    def close(self) -> None:
        pass


def _writer(session: Session, names: Naming, stop: Stop) -> UnitWriter:
    upload = None if session.output.is_local else session.output.upload
    output = UnitOutput(session.directory, session.info, session.writers, upload, names.release, session.config.fsync)
    return UnitWriter(output, session.model.preparation, plan=session.plan, check=stop.check)


def _probe(session: Session) -> UnitProbe:
    is_intact = session.output.is_intact if session.config.repair else None
    return UnitProbe(session.directory, session.info.fingerprint, force=session.config.force, is_intact=is_intact)
