"""Read images: count and name the listed ones, find out whether they are finished, decode and preprocess them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fmapviz.core.errors import InputError
from fmapviz.core.events import Outcome
from fmapviz.core.types import Failure, ImageFile
from fmapviz.engine.pipeline.scheduler import Preprocessed
from fmapviz.models.user_code import report_of
from fmapviz.runs.shard_grouping import Failed
from fmapviz.runs.unit import Group, Member, check_only_own_files, distinction, find_done, find_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.engine.pipeline.scheduler import Result, Tell
    from fmapviz.engine.pipeline.work import Progress
    from fmapviz.engine.session import Session
    from fmapviz.images.decode_pool import DecodePool
    from fmapviz.runs.shard_grouping import Item


class Naming:
    """Resolves output-name collisions in listing order, whichever image finishes first."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._names: dict[str, str] = {}  # of the units in work, and their images

    def claim(self, item: Item) -> Item:
        """Return the image with a unique name; call it in listing order."""
        if not isinstance(item, ImageFile) or self._names.setdefault(item.unit, item.path) == item.path:
            return item
        return item if find_own(self._run, item) else replace(item, unit=item.unit + distinction(item))

    def release(self, file: ImageFile) -> None:
        """Forget the name of an image whose unit is finished: from then on its record holds it."""
        if self._names.get(file.unit) == file.path:
            del self._names[file.unit]


def counted(items: Iterable[Item], progress: Progress) -> Iterator[Item]:
    """Count the inputs; an image that was reported as finished before its shard is redrawn counts once."""
    for item in items:
        progress.found += not (isinstance(item, Member) and item.position in item.group.reported)
        yield item


class ImageReader:
    """Reads images; its method may be called by several threads at once.

    Args:
        session: Preprocesses the images, and knows which are finished.
        decode_pool: Decodes images.
        release: Called with each image that is finished; None: finished images are read too.
        on_begun: Called with each image, and with what reports events, before it is read.
    """

    def __init__(
        self,
        session: Session,
        decode_pool: DecodePool,
        *,
        release: Callable[[ImageFile], None] | None,
        on_begun: Callable[[ImageFile, Tell], None] | None,
    ) -> None:
        self._session = session
        self._decode_pool = decode_pool
        self._release = release
        self._on_begun = on_begun
        self._cores = max(1, torch.get_num_threads() // session.workers)

    def read(self, item: Item, tell: Tell) -> tuple[Preprocessed | None, Result | None]:
        """Read one input.

        Returns:
            The image, if it is to be drawn, and what is to be written without drawing.

        Raises:
            RefusedError: The unit that would be replaced holds files that fmapviz did not make.
        """
        if isinstance(item, Failure):
            tell(Outcome(item.path, "failed", failure=item))
        elif isinstance(item, Outcome):
            tell(item)
        elif isinstance(item, Failed):
            return None, item
        elif isinstance(item, Member):
            return self._decode(item, tell)
        elif self._release is None:
            return self._decode(Member(Group.of_one(item), 0), tell)
        else:
            unit, redraw = self._find_done(item)
            if unit is None:
                return self._decode(Member(Group.of_one(item, redraw=redraw), 0), tell)
            self._release(item)
            tell(Outcome(item.path, "skipped", unit=unit))
        return None, None

    def _find_done(self, file: ImageFile) -> tuple[Path | None, bool]:
        """Return the finished unit, None if the image is to be drawn, and whether an up-to-date unit is replaced."""
        run, config, fingerprint = self._session.directory, self._session.info.config, self._session.info.fingerprint
        is_intact = self._session.output.is_intact if config.repair else None
        done = None if config.force else find_done(run, file, fingerprint, is_intact=is_intact)
        if done is None and (existing := find_own(run, file)):
            check_only_own_files(*existing)  # before the image is drawn in vain
        return done, config.force or (config.repair and done is None)

    def _decode(self, member: Member, tell: Tell) -> tuple[Preprocessed | None, Failed | None]:
        torch.set_num_threads(self._cores)
        file, preparation = member.file, self._session.model.preparation
        if self._on_begun:
            self._on_begun(file, tell)
        try:
            image = self._decode_pool.read(file, channels=preparation.channels, notify=tell)
            return Preprocessed(member, image.notices, preparation.apply(image.pixels)), None
        except InputError as error:
            report = report_of(error.__cause__) if error.code == "E_PREPARE" and error.__cause__ else None
            return None, Failed(member, Failure(file.path, error.code, str(error), error.hint, report))
