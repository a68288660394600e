"""Watch the free space during a run, and end the run early if the rest will not fit."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from fmapviz.core import platforms
from fmapviz.core.files import format_bytes
from fmapviz.data import Failure
from fmapviz.errors import RefusedError, quote
from fmapviz.events import Counted, Outcome, Staged
from fmapviz.images.films import list_frames
from fmapviz.images.find import find_images
from fmapviz.run.load import frame_choice
from fmapviz.store.shards.shard import KnownImages
from fmapviz.store.unit import find_done
from fmapviz.store.unit_key import image_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.data import ImageFile
    from fmapviz.events import Event
    from fmapviz.run.session import Session

_ENOUGH = 8  # images of an estimate


class RunWatch:
    """Forwards the events of a run, reports the number of inputs once they are counted, and ends a run that will not fit.

    Inputs that can be listed only once are not counted, and their run is not ended.

    Args:
        session: The run.
        on_event: Receives the events.
    """

    def __init__(self, session: Session, on_event: Callable[[Event], object]) -> None:
        config = session.config
        self._session = session
        self._on_event = on_event
        self._parts = config.part.count if config.part else 1
        self._total: int | None = None
        self._total_shown = False
        self._images = self._bytes = self._accounted = self._staged = 0
        self._next = _ENOUGH
        self._counting: threading.Thread | None = None
        listable = isinstance(session.inputs, Sequence) and session.plan.of_images
        # Units that are replaced free their space.
        self._is_bounded = listable and session.output.is_local and not (config.force or config.repair)
        if listable:
            # The run begins before it is known how many inputs there are.
            self._counting = threading.Thread(target=self._count, daemon=True)
            self._counting.start()

    def count(self, seconds: float = 0.0) -> int | None:
        """Return the number of inputs of all parts; None until they are counted, for which it may wait."""
        if seconds and self._counting:
            self._counting.join(seconds)
        return self._total

    def note(self, event: Event) -> None:
        """Forward an event.

        Raises:
            RefusedError: The images that are still to be written will not fit on the disk.
        """
        self._on_event(event)
        total = self._total
        if total is not None and not self._total_shown:
            self._total_shown = True
            self._on_event(Counted(-(-total // self._parts)))
        if self._is_bounded and isinstance(event, Staged | Outcome) and self._add(event) and total is not None:
            self._check(total)

    def _list(self) -> Iterator[ImageFile | Failure]:
        if self._session.images is not None:
            return iter(self._session.images)
        found = find_images(self._session.inputs, avoid=self._session.output.address)
        return list_frames(found, frame_choice(self._session), decode=False)

    def _count(self) -> None:
        try:
            self._total = self._session.times * sum(1 for _ in self._list())
        except Exception:  # noqa: BLE001  only the remaining time would be missing; the run itself reports the failure
            return

    def _add(self, event: Staged | Outcome) -> bool:
        """Add the bytes written for an image; return True if another check is due."""
        done = isinstance(event, Staged) or event.status == "done"
        if isinstance(event, Staged):
            self._staged += 1
        elif done and self._staged:
            self._staged -= 1  # it was counted when it was staged
            return False
        self._accounted += 1
        if done:
            self._images += 1
            self._bytes += event.bytes
        return done

    def _check(self, total: int) -> None:
        if self._images < min(self._next, total):
            return
        self._next *= 2
        directory, info = self._session.directory, self._session.info
        free = free_space(directory)[0]
        each = self._bytes / self._images
        if free is None or each * (total / self._parts - self._accounted) <= free:
            return
        shards = info.config.shard is not None
        unfinished = count_unfinished(self._list(), directory, info.fingerprint, shards=shards)[1]
        left = ceil(unfinished / self._parts)  # some may be finished already
        if each * left > free:
            raise RefusedError(
                f"{left:,} more images will not fit: {format_bytes(each * left)} at {format_bytes(each)} each, "
                f"and {format_bytes(free)} are free in {quote(directory)}",
                hint="another out=, to='stats', fewer layers=; force=True continues regardless",
            )


def count_unfinished(found: Iterable[ImageFile | Failure], run: Path, fingerprint: str, *, shards: bool) -> tuple[int, int]:
    """Count the inputs, and the unfinished ones.

    Args:
        found: The inputs.
        run: The run directory.
        fingerprint: That of the run.
        shards: Whether many images share a directory.
    """
    known = KnownImages(run, fingerprint) if shards else None
    images = unfinished = 0
    for file in found:
        images += 1
        if isinstance(file, Failure):
            continue
        if known:
            entry = known.find(file)
            unfinished += entry is None or entry.shard < 0 or not entry.same
        else:
            unfinished += find_done(run, image_key(file), fingerprint) is None
    return images, unfinished


def free_space(path: Path) -> tuple[int | None, int | None]:
    """Return the free bytes and inodes where a directory is or will be; None if unknown."""
    while not os.path.exists(path):
        path = path.parent
    try:
        return platforms.free_space(path)
    except OSError:
        return None, None
