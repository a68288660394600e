"""Write films of a run: each layer and view over the frames of a film, or over all images if none is a frame.

They are made of the pictures of finished units, so that a run that was divided or interrupted has the same films. A film
that shows the frames that the run has now is not written again. One frame is in memory for each film that is being written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from PIL import Image as PillowImage

from fmapviz.core import files, registry
from fmapviz.core.checksummed_json import CHECKSUM_BYTES
from fmapviz.core.file_names import UNIT_FILE
from fmapviz.core.files import staging_folder, writing_to
from fmapviz.core.members import load
from fmapviz.core.words import are, counted
from fmapviz.errors import quote
from fmapviz.events import Notice
from fmapviz.images.films import rate_of, times_of
from fmapviz.images.frames import frames_of
from fmapviz.run.session import Stage
from fmapviz.run.units import finish_unit
from fmapviz.store.run_files import find_units
from fmapviz.store.unit import find_done, images_of, read_unit
from fmapviz.store.unit_key import IMAGE, UnitKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.events import Event
    from fmapviz.run.session import Session

    WriteFilm = Callable[..., None]  # see `fmapviz.formats.base`

UNIT = "_film"
KIND = "film"
RATE = Fraction(10)  # frames per second, of images and of a film that is gone
LEAST, MOST = 480, 4096  # pixels of the longer side: smaller pictures are enlarged, larger ones reduced
_SUFFIX = ".png"
_FRAME = re.compile(r"(\.t\d+)((\.[^.]+){1,2}\.png)$")  # of a clip, before view and perhaps class


@dataclass(frozen=True, slots=True)
class _Shown:
    """The units that a film shows, in their order.

    Attributes:
        source: Path of the film that was read; empty for images.
        name: Name of the unit that holds the films.
        units: Directories of the frames.
        numbers: Numbers of the frames.
        digest: Of the records of the units.
    """

    source: str
    name: str
    units: Sequence[Path]
    numbers: Sequence[int]
    digest: str


class FilmStage(Stage):
    """Writes films when the images of a run are drawn."""

    def after(self, session: Session, on_event: Callable[[Event], None]) -> int:
        """Write the films of a run's formats, unless that is done; they are no pictures.

        Raises:
            OutputError: They could not be written.
        """
        config, run, fingerprint = session.config, session.directory, session.info.fingerprint
        writers: dict[str, WriteFilm] = {
            form.name: load(form.write_film) for form in map(registry.form, config.to) if form.write_film
        }
        if not writers:
            return 0
        is_intact = session.output.is_intact if config.repair else None
        for shown in _find_shown(run, fingerprint):
            key = UnitKey(KIND, f"film:{shown.source or run.name}", shown.name, {"records": shown.digest})
            if not config.force and find_done(run, key, fingerprint, is_intact=is_intact):
                continue
            rate, times, name = _rate_of(shown), _times_of(shown), quote(shown.source) if shown.source else "all images"
            frames = counted(len(shown.units), "frame")
            speed = "the times of the film, whose rate varies" if times else f"{float(rate):.4g} a second"
            on_event(Notice(f"writing films of {name}, one for each layer and view: {frames} at {speed}"))
            with writing_to(run), staging_folder(run) as staging:
                damaged = _write(staging, shown, writers, rate=rate, times=times, workers=session.workers)
                unit = finish_unit(session, staging, key, {"rate": [rate.numerator, rate.denominator]})
            if damaged:
                left_out = f"{counted(damaged, 'picture')} {are(damaged)} damaged, and not in {quote(unit)}"
                on_event(Notice(f"{left_out}: see `fmapviz verify`"))
        return 0


def _find_shown(run: Path, fingerprint: str) -> Iterator[_Shown]:
    """Yield the pictures of each film: the frames of one film in one state, or all images if none is a frame."""
    frames: dict[tuple[str, object], list[tuple[int, Path]]] = {}
    images: list[tuple[int, Path]] = []
    for unit in find_units(run):
        record = read_unit(unit)
        if record is None or record["unit"]["kind"] != IMAGE or record.get("run") != fingerprint:
            continue
        (image,) = images_of(record)
        if found := frames_of(image.path):
            frames.setdefault((found.film, tuple(image.version.items())), []).append((found.first, unit))
        else:
            images.append((len(images), unit))
    states: dict[str, list[tuple[int, Path]]] = {}
    for (film, _), units in sorted(frames.items(), key=lambda item: len(item[1])):
        states[film] = units  # of several states of a film, the one with most frames
    for film, units in sorted(states.items()):
        yield _show(run, film, units)
    if images and not states:
        yield _show(run, "", images)


def _show(run: Path, source: str, units: list[tuple[int, Path]]) -> _Shown:
    units.sort()
    digest = hashlib.sha256()
    for _, unit in units:
        digest.update(unit.relative_to(run).as_posix().encode(errors="surrogateescape") + b"\0")
        digest.update(files.read(unit / UNIT_FILE, start=-CHECKSUM_BYTES))
    above = units[0][1].parent.relative_to(run).as_posix()
    name = f"{above}/{UNIT}" if source and above != "." else UNIT
    places = [unit for _, unit in units]
    return _Shown(source, name, places, [number for number, _ in units], digest.hexdigest())


def _rate_of(shown: _Shown) -> Fraction:
    """Return the frames per second: those of the film, divided by the step between frames."""
    steps = Counter(after - before for before, after in zip(shown.numbers, shown.numbers[1:], strict=False))
    step = max(1, steps.most_common(1)[0][0]) if steps and shown.source else 1
    return (rate_of(shown.source) or RATE if shown.source else RATE) / step


def _times_of(shown: _Shown) -> list[float]:
    """Return the time at which each unit begins and the last one ends, in seconds; empty if the rate is constant."""
    times = times_of(shown.source) if shown.source else []
    if not times or shown.numbers[-1] >= len(times) - 1:
        return []
    step = shown.numbers[-1] - shown.numbers[-2] if len(shown.numbers) > 1 else 1
    chosen = [times[number] for number in (*shown.numbers, min(shown.numbers[-1] + step, len(times) - 1))]
    return [each - chosen[0] for each in chosen]


def _write(
    staging: Path,
    shown: _Shown,
    writers: Mapping[str, WriteFilm],
    *,
    rate: Fraction,
    times: Sequence[float],
    workers: int,
) -> int:
    """Write all films, several at a time; return the number of pictures that cannot be read."""
    names = {path.name for unit in shown.units for path in unit.iterdir() if path.suffix == _SUFFIX}
    frames: dict[str, list[str]] = {}
    for name in sorted(names):
        frames.setdefault(_FRAME.sub(r"\2", name), []).append(name)
    series = {name if len(parts) > 1 else parts[0]: parts for name, parts in frames.items()}

    def write(name: str) -> int:
        parts = series[name]
        film = _Pictures([unit / part for unit in shown.units for part in parts])
        if film.size is None:
            return film.damaged
        for form, write_film in writers.items():
            target = staging / f"{name.removesuffix(_SUFFIX)}.{form}"
            write_film(target, film.pictures(), size=film.size, rate=rate * len(parts), times=_divided(times, len(parts)))
        return film.damaged

    with ThreadPoolExecutor(workers) as threads:
        return sum(threads.map(write, series))


def _divided(times: Sequence[float], parts: int) -> list[float]:
    """Return the times at which the parts of all units begin and the last one ends."""
    begins = (before + (after - before) * part / parts for before, after in pairwise(times) for part in range(parts))
    return [*begins, times[-1]] if times else []


class _Pictures:
    """The same picture of several images, read one by one.

    Attributes:
        size: Width and height of the largest one as it is shown; None if there is none.
        damaged: Number of those that cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.damaged = 0
        self._paths: list[Path | None] = []
        sizes = []
        for path in paths:
            size = _size_of(path)
            self.damaged += size is None and os.path.exists(path)
            self._paths.append(path if size else None)
            sizes += [size] if size else []
        self.size: tuple[int, int] | None = None
        if sizes:
            width, height = (max(sides) for sides in zip(*sizes, strict=True))
            self._enlarged = max(1, LEAST // max(width, height))
            self._reduced = -(-max(width, height) // MOST)
            self.size = self._shown((width, height))

    def pictures(self) -> Iterator[PillowImage.Image]:
        """Yield the picture of each image; where it is missing, the previous one, or the first."""
        last = self._read(next(path for path in self._paths if path))
        for path in self._paths:
            last = self._read(path) if path else last
            yield last

    def _read(self, path: Path) -> PillowImage.Image:
        with PillowImage.open(path, formats=("PNG",)) as picture:
            rgb = picture.convert("RGB")
        if self._reduced > 1:
            return rgb.reduce(self._reduced)
        return rgb if self._enlarged == 1 else rgb.resize(self._shown(rgb.size), PillowImage.Resampling.NEAREST)

    def _shown(self, size: tuple[int, int]) -> tuple[int, int]:
        across, down = (-(-side // self._reduced) * self._enlarged for side in size)
        return across, down


def _size_of(path: Path) -> tuple[int, int] | None:
    """Return width and height of a picture; None if it cannot be read."""
    try:
        with PillowImage.open(path, formats=("PNG",)) as picture:
            picture.verify()
            return picture.size
    except Exception:  # noqa: BLE001  a damaged file may raise anything
        return None
