"""Dry run: estimate the size and time of a run from a small sample of its images (`--plan`)."""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from heapq import nsmallest
from itertools import count
from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.files import format_bytes, size_in_blocks
from fmapviz.core.words import counted, plural
from fmapviz.data import Failure
from fmapviz.errors import printable
from fmapviz.events import Outcome, Staged, Started
from fmapviz.images.films import FrameChoice, check_readable, list_frames
from fmapviz.images.find import find_images
from fmapviz.images.memory.inputs import only_files, resolve_inputs
from fmapviz.images.preprocess import clip_length
from fmapviz.run.disk_space import count_unfinished, free_space
from fmapviz.run.load import load_session
from fmapviz.run.loop import no_image, require_one, run
from fmapviz.store.remote.destination import open_destination
from fmapviz.store.run import check_name, is_surveyed
from fmapviz.store.run_files import find_units
from fmapviz.store.unfinished import read_unfinished, state_of
from fmapviz.store.unit import holds_images, images_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.config import RunConfig, RunInfo
    from fmapviz.config.positions import Anchor
    from fmapviz.data import ImageFile
    from fmapviz.events import Event
    from fmapviz.run.loop import Load
    from fmapviz.store.remote.destination import Destination

SAMPLE = 24  # images
SAMPLE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """The size and duration of a run.

    Attributes:
        directory: The run directory, which may not exist yet.
        model: Name and weights.
        images: Inputs found; 0 if the run draws the model only.
        to_draw: Those of them that are not finished.
        failing: Share of images of the sample that failed, 0..1.
        sampled: Images drawn for this estimate.
        pictures: In all.
        bytes: By format, in whole blocks of the file system; `records` are the files that describe units.
        files: In all.
        seconds: On this machine.
        free: Free bytes; None if unknown.
        free_files: Free inodes; None if unknown.
    """

    directory: Path
    model: str
    images: int
    to_draw: int
    failing: float
    sampled: int
    pictures: int
    bytes: Mapping[str, int]
    files: int
    seconds: float
    free: int | None
    free_files: int | None

    @property
    def is_done(self) -> bool:
        """True if nothing is left to draw."""
        return not self.to_draw and not self.files

    @property
    def all_bytes(self) -> int:
        """Bytes in all formats together."""
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool:
        """True if there is room for it."""
        fit_bytes = self.free is None or self.all_bytes <= self.free
        return fit_bytes and (self.free_files is None or self.files <= self.free_files)

    def lines(self) -> list[str]:
        """Format the estimate as text."""
        there = self.images - self.to_draw
        what = f"{self.images:,} {plural(self.images, 'image')}" if self.images else "pictures of the model"
        target = f"{printable(self.model)} into {printable(str(self.directory))}"
        if self.is_done:
            return [f"{what}, already done: nothing to draw", target]
        lines = [
            f"{what}{f', {there:,} of them finished already or in other parts' if there else ''}",
            target,
            f"{self.pictures:,} {plural(self.pictures, 'picture')} in {self.files:,} files and directories",
            *(f"  {form:<12}{format_bytes(size):>10}" for form, size in self.bytes.items()),
            f"  {'in all':<12}{format_bytes(self.all_bytes):>10}",
        ]
        if self.free is not None:
            lines.append(f"  {'free':<12}{format_bytes(self.free):>10}{'' if self.fits else ': it does not fit'}")
        if self.free_files is not None and self.files > self.free_files:
            lines.append(f"only {self.free_files:,} more files fit on that disk: --shard N puts N images into a few files")
        if self.failing:
            lines.append(f"{self.failing:.0%} of the sample could not be drawn")
        rate = f", {self.to_draw / self.seconds:.3g} images/s" if self.to_draw and self.seconds else ""
        lines.append(f"about {_format_time(self.seconds)} on this machine{rate}")
        sample = counted(self.sampled, "image") if self.images else what
        lines.append(f"from {sample} drawn into a temporary directory; nothing was written to the one above")
        return lines


def estimate(config: RunConfig, *, images: Sequence[ImageFile] = (), open_session: Load = load_session) -> Estimate:
    """Estimate the size and duration of a run without writing to its `out`.

    All inputs are listed, and a random sample of them is drawn into a temporary directory.

    Args:
        config: The configuration of the run.
        images: Its images; empty: they are listed from the inputs.
        open_session: Loads the network.

    Raises:
        FmapvizError: As `run` does.
    """
    with open_destination(config.out) as destination:
        destination.check()
        check_name(config.name)
        inputs = [*only_files(resolve_inputs(config.inputs))]  # which may be an iterator
        find = partial(iter, images) if images else partial(find_images, inputs, avoid=destination.address)
        return _estimate(config, inputs, destination, find, open_session)


def _estimate(
    config: RunConfig,
    inputs: Sequence[str | Path],
    destination: Destination,
    find: Callable[[], Iterator[ImageFile | Failure]],
    open_session: Load,
) -> Estimate:
    start, stop = config.frame_range
    choice = FrameChoice(start, stop, config.every)
    sample: list[ImageFile] = []
    images = 0
    if config.needs_images:
        check_readable(inputs)
        found = require_one(find(), inputs)
        # A single frame takes as long as a clip, and as much space.
        sample, images = _sample(list_frames(found, choice, decode=False), config.style.start)
        if not sample:
            raise no_image(inputs)
    shard, parts = config.shard, config.part.count if config.part else 1
    clock = _Clock(config.on_event)
    with tempfile.TemporaryDirectory(prefix="fmapviz-plan-") as directory:
        summary = run(
            replace(
                config,
                inputs=clock.until_time_is_up(file.path for file in sample),
                out=directory,
                name=None,
                shard=min(shard, len(sample)) if shard else None,
                on_event=clock.note,
                part=None,
                engine=None,
                force=False,
                repair=False,
            ),
            open_session=open_session,
        )
        clock.ended = time.monotonic()
        formats = clock.info.config.to
        units = list(find_units(summary.directory))
        of_images = [unit for unit in units if holds_images(read_unit(unit))]
        bytes_each, files_each = _measure(of_images, formats, shard=shard)
        # The others, such as the model's, are as large for any number of images.
        others = [unit for unit in units if unit not in of_images]
        bytes_once, files_once = _sizes(others, formats)
    info = replace(clock.info, config=replace(clock.info.config, shard=shard))
    run_directory = destination.find_run(info, name=config.name)
    choice = replace(choice, clip=clip_length(info.preparation))
    if images and choice.clip > 1:
        images = sum(1 for _ in list_frames(find(), choice, decode=False))
    to_draw, is_begun = images, os.path.exists(run_directory) and not config.force
    if images and is_begun:
        images, to_draw = count_unfinished(
            list_frames(find(), choice, decode=False), run_directory, info.fingerprint, shards=shard is not None
        )
    to_draw = -(-to_draw // parts)
    each = clock.seconds_each(summary.seconds, surveyed=is_surveyed(info.settings))
    succeeding = summary.done / summary.found if summary.found else 1.0
    free, free_files = free_space(destination.directory) if destination.is_local else (None, None)
    expected = Estimate(
        directory=destination.address_of(run_directory),
        model=info.label,
        images=images,
        to_draw=to_draw,
        failing=1 - succeeding,
        sampled=summary.done,
        pictures=round(to_draw * succeeding * (summary.pictures - summary.once) / max(1, summary.done)) + summary.once,
        bytes={
            form: round(bytes_each.get(form, 0) * to_draw * succeeding) + bytes_once.get(form, 0)
            for form in bytes_each | bytes_once
        },
        files=round(files_each * to_draw * succeeding) + files_once,
        seconds=each * to_draw + clock.seconds_after if images else summary.seconds,
        free=free,
        free_files=free_files,
    )
    if is_begun and not to_draw and not config.repair and _is_finished(run_directory):
        nothing = dict.fromkeys(expected.bytes, 0)
        return replace(expected, failing=0.0, pictures=0, bytes=nothing, files=0, seconds=0.0)
    return expected


def _is_finished(run: Path) -> bool:
    """Return True if no command is writing to a run, or was interrupted."""
    return state_of(run, read_unfinished(run))[0] == "finished"


class _Clock:
    """Measures the time per image, and ends the sample when its time is up."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self.info: RunInfo
        self.ended = 0.0
        self._on_event = on_event
        self._times: list[float] = []

    def note(self, event: Event) -> None:
        if isinstance(event, Started):
            self.info = event.info
        elif isinstance(event, Staged) or (
            isinstance(event, Outcome) and (event.status == "failed" or not self.info.config.shard)
        ):
            self._times.append(time.monotonic())
        if self._on_event:
            self._on_event(event)

    @property
    def seconds_after(self) -> float:
        """Seconds from the last image to the end of the run, in which run-level results are drawn."""
        return self.ended - self._times[-1] if self._times else 0.0

    def until_time_is_up(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            if self._times and time.monotonic() > self._times[0] + SAMPLE_SECONDS:
                return
            yield path

    def seconds_each(self, all_seconds: float, *, surveyed: bool) -> float:
        """Return the seconds per image, measured from the first finished image to the last."""
        if len(self._times) < 3 or surveyed:  # a survey goes through all images twice
            return all_seconds / max(1, len(self._times))
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1)


def _sample(found: Iterable[ImageFile | Failure], anchor: Anchor | None) -> tuple[list[ImageFile], int]:
    """Sample images uniformly and reproducibly, the image of the anchor first; return them and the number of inputs."""
    chance, number = random.Random(0), count()  # noqa: S311  not for a secret
    needed: dict[str, ImageFile] = {}

    def images() -> Iterator[ImageFile]:
        for file, _ in zip(found, number, strict=False):
            if isinstance(file, Failure):
                continue
            if anchor and anchor.image and (anchor.is_path(file.path) or anchor.names(file.path, file.unit)):
                needed[file.path] = file
            yield file

    chosen = nsmallest(SAMPLE, images(), key=lambda _: chance.random())
    return [*needed.values(), *(file for file in chosen if file.path not in needed)], next(number)


def _measure(units: Sequence[Path], formats: Iterable[str], *, shard: int | None) -> tuple[dict[str, float], float]:
    """Return the bytes by format and the number of files per image."""
    sizes, files = _sizes(units, formats, in_blocks=not shard)
    images = len(units)
    if shard:
        images = sum(len(images_of(read_unit(unit))) for unit in units)
    each = {form: size / max(1, images) for form, size in sizes.items()}
    return each, files / max(1, images) if not shard else files / max(1, len(units)) / shard


def _sizes(units: Iterable[Path], formats: Iterable[str], *, in_blocks: bool = True) -> tuple[dict[str, int], int]:
    """Return the bytes of units by format, the largest first, and the number of files and directories."""
    patterns = [(pattern, form) for form in formats for pattern in registry.form(form).unit_files]
    sizes: dict[str, int] = {}
    files = 0
    for unit in units:
        for path in unit.iterdir():
            form = next((form for pattern, form in patterns if fnmatchcase(path.name, pattern)), "records")
            size = path.stat().st_size
            sizes[form] = sizes.get(form, 0) + (size_in_blocks([size]) if in_blocks else size)
            files += 1
        files += 1  # the directory itself
    return dict(sorted(sizes.items(), key=lambda item: -item[1])), files


def _format_time(seconds: float) -> str:
    """Format a duration.

    Example:
        >>> _format_time(42), _format_time(100), _format_time(9000), _format_time(400_000)
        ('42 s', '2 min', '2.5 h', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.2g} h" if seconds < 172_800 else f"{seconds / 86400:.2g} days"
