"""Find out what a run will write, and how long it will take, by drawing a few of its images somewhere else."""

from __future__ import annotations

import random
import re
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fmapviz import records
from fmapviz.errors import NothingToDoError
from fmapviz.forecast import Forecast, count_to_draw, free_space, room_of
from fmapviz.inputs import find_images
from fmapviz.outputs import opened
from fmapviz.pipeline import visualize
from fmapviz.products import find_units
from fmapviz.runs import check_name, is_surveyed, name_run
from fmapviz.units import UNIT_FILE
from fmapviz.values import Failure, Outcome, Staged, Started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.options import Part
    from fmapviz.outputs import Output
    from fmapviz.values import Event, ImageFile, RunInfo

SAMPLE = 24  # images
SAMPLE_SECONDS = 20.0
_FORMATS = (
    (r"events\.out\.tfevents\..*", "tensorboard"),
    (r".*\.tar", "tar"),
    (r"stats\..*", "stats"),
    (r"report\.js", "html"),
    (r"raw\.safetensors", "raw"),
    (r"raw\.npz", "npz"),
    (r".*\.png", "png"),
)


def forecast(
    model: str,
    inputs: Iterable[str],
    *,
    out: str | Path,
    name: str | None,
    shard: int | None,
    part: Part | None,
    force: bool,
    on_event: Callable[[Event], None],
    **options: Any,
) -> Forecast:
    """Say what `visualize` would do with the same arguments; nothing is written to `out`.

    All inputs are listed, and a random sample of them is drawn into a temporary directory.

    Raises:
        FmapvizError: What `visualize` would raise.
    """
    with opened(out) as destination:
        destination.check()
        check_name(name)
        return _forecast(
            model, list(inputs), destination, name=name, shard=shard, part=part, force=force, on_event=on_event, **options
        )


def _forecast(
    model: str,
    typed: list[str],
    destination: Output,
    *,
    name: str | None,
    shard: int | None,
    part: Part | None,
    force: bool,
    on_event: Callable[[Event], None],
    **options: Any,
) -> Forecast:
    sample, count = _sample(find_images(typed, avoid=destination.address))
    if not sample:
        raise NothingToDoError("no image among the inputs", hint="folders are searched for files such as .jpg, .png, .webp")
    clock = _Clock(on_event)
    with tempfile.TemporaryDirectory(prefix="fmapviz-plan-") as place:
        summary = visualize(
            model,
            clock.while_there_is_time(file.path for file in sample),
            out=place,
            shard=min(shard, len(sample)) if shard else None,
            on_event=clock.tell,
            **options,
        )
        bytes_each, files_each = _measure(summary.directory, shard=shard)
    info = replace(clock.info, shard=shard)
    run = destination.find_run(info, name=name)
    images, to_draw = count, count
    if run and not force:
        images, to_draw = count_to_draw(
            find_images(typed, avoid=destination.address), run, info.fingerprint, shards=shard is not None
        )
    if part:
        to_draw = -(-to_draw // part.count)
    drawn = max(1, summary.done)
    share = summary.done / max(1, summary.found)
    free, free_files = free_space(destination.place) if destination.limited else (None, None)
    return Forecast(
        directory=destination.told(run or destination.place / (name or name_run(destination.place, info))),
        model=info.label,
        images=images,
        to_draw=to_draw,
        failing=1 - share,
        sampled=summary.done,
        pictures=round(to_draw * share * summary.pictures / drawn),
        bytes={form: round(size * to_draw * share) for form, size in bytes_each.items()},
        files=round(files_each * to_draw * share),
        seconds=clock.seconds_each(summary.seconds, surveyed=is_surveyed(info.settings)) * to_draw,
        free=free,
        free_files=free_files,
    )


class _Clock:
    """Measures how long each image of a run takes, and ends the run in time."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.info: RunInfo
        self._tell = tell
        self._times: list[float] = []

    def tell(self, event: Event) -> None:
        if isinstance(event, Started):
            self.info = event.info
        elif isinstance(event, Staged) or (isinstance(event, Outcome) and (event.status == "failed" or not self.info.shard)):
            self._times.append(time.monotonic())
        self._tell(event)

    def while_there_is_time(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            if self._times and time.monotonic() > self._times[0] + SAMPLE_SECONDS:
                return
            yield path

    def seconds_each(self, all_seconds: float, *, surveyed: bool) -> float:
        """Give the time of one of many images: from the first that was finished to the last."""
        if len(self._times) < 3 or surveyed:  # which goes through all images twice
            return all_seconds / max(1, len(self._times))
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1)


def _sample(found: Iterable[ImageFile | Failure]) -> tuple[list[ImageFile], int]:
    """Choose some images, each with the same probability, and count all inputs; always alike for the same inputs.

    Vitter, "Random Sampling with a Reservoir", 1985, algorithm R.
    """
    chance = random.Random(0)  # noqa: S311  nothing is to be kept secret
    sample: list[ImageFile] = []
    images = count = 0
    for file in found:
        count += 1
        if isinstance(file, Failure):
            continue
        images += 1
        if len(sample) < SAMPLE:
            sample.append(file)
        elif (place := chance.randrange(images)) < SAMPLE:
            sample[place] = file
    return sample, count


def _measure(run: Path, *, shard: int | None) -> tuple[dict[str, float], float]:
    """Give the bytes by format, and the number of files, that a run has for each image."""
    images = files = 0
    sizes: dict[str, int] = {}
    for unit in find_units(run):
        record = records.load(unit / UNIT_FILE) or {}
        images += sum("failed" not in image for image in record["images"]) if shard else record.get("kind") is None
        for path in unit.iterdir():
            form = next((form for pattern, form in _FORMATS if re.fullmatch(pattern, path.name)), "records")
            size = path.stat().st_size
            sizes[form] = sizes.get(form, 0) + (size if shard else room_of([size]))
            files += 1
        files += 1  # the directory itself
    each = {form: size / max(1, images) for form, size in sorted(sizes.items(), key=lambda item: -item[1])}
    return each, files / max(1, images) if not shard else files / max(1, len(find_units(run))) / shard
