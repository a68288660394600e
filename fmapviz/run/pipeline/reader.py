"""Read images: count and name listed images, skip finished ones, decode and preprocess the others."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fmapviz.core.file_names import folded
from fmapviz.core.user_code import report_of
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import InputError
from fmapviz.events import Notice, Outcome
from fmapviz.images.load import read_input
from fmapviz.images.memory.image import memory_image
from fmapviz.observe.randomness import gate, seeded_by
from fmapviz.run.kept_passes import ReadImage
from fmapviz.run.pipeline.scheduler import Preprocessed
from fmapviz.store.shards.grouping import Failed
from fmapviz.store.unit import Group, Member, check_only_own_files, find_done, find_own, has_intact_record
from fmapviz.store.unit_key import image_key, possible_names
from fmapviz.store.unit_table import UnitTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from PIL import Image as PillowImage
    from torch import Tensor

    from fmapviz.core.samples import Samples
    from fmapviz.images.decode_pool import DecodePool
    from fmapviz.run.pipeline.progress import Progress
    from fmapviz.run.pipeline.scheduler import Result, Tell
    from fmapviz.run.session import Session
    from fmapviz.store.shards.grouping import Item


class Naming:
    """Resolves output-name collisions in listing order, whichever image finishes first.

    Names that macOS and Windows do not distinguish collide on every platform, so that a run can be copied.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._names: dict[str, str] = {}  # of the units in work, and their images
        self._listed: set[str] = set()  # directories of the run whose names are known
        self._spelled: dict[int, int] = {}  # names in them that folding changes; as hashes, since there may be many

    def claim(self, item: Item) -> Item:
        """Return the image with a unique name; call it in listing order."""
        if not isinstance(item, ImageFile):
            return item
        is_free = not self._is_spelled_otherwise(item.unit)
        if (is_free and self._names.setdefault(item.unit, item.path) == item.path) or find_own(self._run, image_key(item)):
            return item
        names = possible_names(item.unit, item.path)[1:]
        free = (name for name in names if not self._is_spelled_otherwise(name))
        return replace(item, unit=next(free, names[-1]))

    def release(self, file: ImageFile) -> None:
        """Forget the name of an image whose unit is finished; from then on the unit's record holds the name."""
        if self._names.get(file.unit) == file.path:
            del self._names[file.unit]

    def _is_spelled_otherwise(self, name: str) -> bool:
        """Return True if macOS and Windows take a name, or a folder in it, for another one of the run; otherwise note it."""
        above = ""
        for part in name.split("/"):
            if above not in self._listed:
                self._listed.add(above)
                with suppress(OSError):
                    for entry in os.listdir(self._run / above):  # noqa: PTH208  a `Path` takes longer to make
                        self._spell(f"{above}{entry}")
            if self._spell(f"{above}{part}"):
                return True
            above = f"{above}{part}/"
        return False

    def _spell(self, name: str) -> bool:
        """Return True if another spelling of a name is in use; otherwise note it, unless it is the folded one."""
        common = folded(name)
        if name == common:
            return hash(name) in self._spelled
        is_used = hash(common) not in self._spelled and (
            any(f"{each}/".startswith(f"{common}/") for each in self._names) or os.path.lexists(self._run / common)
        )
        return is_used or self._spelled.setdefault(hash(common), hash(name)) != hash(name)


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
        self._table = UnitTable(session.directory)
        self._has_remarked = False  # on prepared tensors, which are much alike
        self._is_random: bool | None = None  # the preprocessing; None before the first image
        self._cores = max(1, torch.get_num_threads() // max(1, session.workers))

    def read(self, number: int, item: Item, tell: Tell) -> tuple[list[Preprocessed], list[Result]]:
        """Read the input at a position of the list.

        Returns:
            The image, if it is to be drawn, and what is to be written without drawing.

        Raises:
            RefusedError: The unit that would be replaced holds files that fmapviz did not make.
        """
        if isinstance(item, ImageFile):
            item = self._look_up(item)
        if isinstance(item, Failed):
            return [], [item]
        if not isinstance(item, Member):
            tell(Outcome(item.path, "failed", failure=item) if isinstance(item, Failure) else item)
            return [], []
        try:
            return [self._decode(number, item, tell)], []
        except InputError as error:
            report = report_of(error.__cause__) if error.code == "E_PREPARE" and error.__cause__ else None
            return [], [Failed(item, Failure(item.file.path, error.code, str(error), error.hint, report))]

    def _prepare(self, pixels: PillowImage.Image | Samples, file: ImageFile, tell: Tell) -> Tensor:
        """Preprocess an image; a user function that draws random numbers runs alone, seeded by the image's name."""
        apply = self._session.model.preparation.apply
        if not self._session.model.own or self._is_random is False:
            return apply(pixels)
        with gate.alone(), seeded_by(file.unit) as numbers:
            values = apply(pixels)
        if self._is_random is None:
            with gate.alone(), seeded_by(file.unit):
                repeated = apply(pixels)
            if not torch.equal(values.nan_to_num(), repeated.nan_to_num()):
                tell(Notice("the preprocessing returns other values for the same image and seeds: two runs will differ"))
            elif numbers.drawn:
                tell(Notice("the preprocessing draws random numbers: they are seeded for each image by its name"))
            self._is_random = numbers.drawn
        return values

    def _look_up(self, file: ImageFile) -> Member | Outcome:
        """Return the outcome of a finished image, or the member that is to be drawn."""
        if self._release is None:
            return Member(Group.of_one(file), 0)
        run, config, fingerprint = self._session.directory, self._session.info.config, self._session.info.fingerprint
        key, is_intact = image_key(file), self._session.output.is_intact if config.repair else None
        if not (config.force or config.repair) and self._table.is_done(key, fingerprint):
            done: Path | None = run / file.unit
        else:
            done = None if config.force else find_done(run, key, fingerprint, is_intact=is_intact)
        if done:
            self._release(file)
            return Outcome(file.path, "skipped", unit=done)
        if (existing := find_own(run, key)) and has_intact_record(existing[0]):
            check_only_own_files(*existing)  # before the image is drawn in vain
        return Member(Group.of_one(file, redraw=config.force or config.repair), 0)

    def _decode(self, number: int, member: Member, tell: Tell) -> Preprocessed:
        torch.set_num_threads(self._cores)
        if self._on_begun:
            self._on_begun(member.file, tell)
        preparation = self._session.model.preparation
        if isinstance(given := member.file.content, ReadImage):
            values, facts, kept = given.read()
            return Preprocessed(number, member, (), values, (values.shape[-1], values.shape[-2]), 1, facts=facts, kept=kept)
        ready = read_input(
            member.file,
            preparation,
            read=partial(self._decode_pool.read, notify=tell),
            apply=lambda pixels: self._prepare(pixels, member.file, tell),
        )
        given = memory_image(member.file)
        as_given = given is not None and given.kind == "prepared"
        if as_given and ready.notices and not self._has_remarked:
            self._has_remarked = True
            tell(Notice(ready.notices[0]))
        return Preprocessed(number, member, ready.notices, ready.values, ready.size, ready.orientation, as_given)
