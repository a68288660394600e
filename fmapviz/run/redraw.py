"""Draw a sample of the images of finished runs again, and compare the files byte by byte.

Checksums prove that files are as they were written. This proves that they are what the network computes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fmapviz.core import checksummed_json, files, registry
from fmapviz.core.file_names import FILMSTRIP, RUN_FILE, RUN_FILES_RECORD, SURVEY_FILE, UNIT_FILE, draws_pictures
from fmapviz.errors import FmapvizError, RefusedError, RequestError, first_few, quote
from fmapviz.events import Notice, Outcome
from fmapviz.images.find import is_named_after, look_again
from fmapviz.images.memory.image import is_in_memory
from fmapviz.run.compared_files import FileDifference, compare_units
from fmapviz.run.load import load_session, moved
from fmapviz.run.model_views import KIND as MODEL
from fmapviz.run.model_views import draw_model
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.work import work
from fmapviz.run.publish import Publisher
from fmapviz.run.recorded import (
    check_same,
    config_of,
    device_of,
    execution_of,
    explanations,
    in_recorded_directory,
    only_recorded_code,
    threads_of,
    versions_of,
)
from fmapviz.store import run_files
from fmapviz.store.digest import is_of_other_command, units_of_other_commands
from fmapviz.store.remote.destination import LocalDestination
from fmapviz.store.run import IN_TRAINING, is_surveyed, load_run, open_run, settings_of, shares_values
from fmapviz.store.unit import Group, Member, discard, has_changed, holds_images, images_of, listed_images_of, read_unit
from fmapviz.store.unit_key import UnitKey, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fmapviz.config.sample import SampleSize
    from fmapviz.data import ImageFile
    from fmapviz.events import Event
    from fmapviz.run.session import Session
    from fmapviz.store.digest import Digests
    from fmapviz.store.remote.local_copy import LocalCopy

Status = Literal["same", "rounded", "differs", "undrawn"]
_GONE = "its image is gone"
_DEPENDS = "an image may depend on those before it"


@dataclass(frozen=True, slots=True)
class Redrawn:
    """A unit that was drawn again, or why it was not.

    Attributes:
        path: Its directory or address; that of the run if nothing of it could be drawn.
        status: `same` bytes; `rounded`: numbers and pixels differ as little as another processor or version makes them, and
            it is another; `differs`; or `undrawn`.
        images: Number of its images that belong to the sample; at least 1 if it is `undrawn` and should not be.
        differences: The files that differ, each with how much.
        reason: Why it was not drawn, or what may explain the differences; else empty.
    """

    path: Path
    status: Status
    images: int = 1
    differences: tuple[str, ...] = ()
    reason: str = ""

    def describe(self) -> str:
        """Return a sentence."""
        found = first_few(self.differences, separator="; ")
        if self.status == "undrawn":
            return f"not drawn again: {self.reason}{f' ({found})' if found else ''}"
        how = "drawn again, it differs within rounding" if self.status == "rounded" else "drawn again, it is another"
        return f"{how}: {'; '.join(filter(None, (found, self.reason)))}"


def redraw(copy: LocalCopy, digests: Digests, sample: SampleSize) -> Iterator[Redrawn]:
    """Draw a sample of the images of each run again in a temporary directory, and compare them with what the run holds.

    Sound units alone are drawn. The sample follows from the digest of the run.

    Args:
        copy: Runs that were verified.
        digests: Their contents.
        sample: The size of the sample of each run.

    Raises:
        RequestError: There is no run.
    """
    if not digests.runs:
        raise RequestError(f"no run of fmapviz: {quote(copy.address_of(copy.directory))}", hint=f"it holds {RUN_FILE}")
    for run in digests.runs:
        yield from _RunRedraw(copy, run).redraw(digests, sample)


class _RunRedraw:
    """Draws images of one run again."""

    def __init__(self, copy: LocalCopy, run: Path) -> None:
        self._copy, self._run = copy, run
        self._address = copy.address_of(run)
        self._notices: list[str] = []

    def redraw(self, digests: Digests, sample: SampleSize) -> Iterator[Redrawn]:
        """Draw and compare; see `redraw`."""
        units = {self._run / Path(path).parent: None for path in digests.contents(self._run) if path != RUN_FILE}
        records = {unit: record for unit in units if (record := read_unit(unit))}
        of_images = [unit for unit, record in records.items() if images_of(record)]
        chosen, number = self._choose(of_images, records, sample, seed=digests.digest(self._run, partial=True) or "")
        of_model = [unit for unit, record in records.items() if key_of(record).kind == MODEL]
        yield from self._of_others({unit: records[unit] for unit in records.keys() - {*of_images, *of_model}})
        names = [entry["name"] for entry in (run_files.read(self._run) or {"files": []})["files"]]
        if not chosen and not of_model:
            yield Redrawn(self._address, "undrawn", 0, reason="it holds no image that is finished and undamaged")
            if not names:
                return
        try:
            record = load_run(self._run)
            with self._session(record) as session:
                known = explanations(record, session)
                yield from self._of_model(session, of_model, known)
                if chosen:
                    yield from self._of_images(session, chosen, records, known)
                yield from self._of_run_files(session, record, names, known)
        except FmapvizError as error:
            reason = str(error).replace(f"{quote(self._address)} was", "it was", 1)
            yield Redrawn(self._address, "undrawn", number or len(of_model), reason=reason)
            yield from self._unproven(names)

    def _of_others(self, records: Mapping[Path, Mapping[str, Any]]) -> Iterator[Redrawn]:
        """Yield the units of which no image can be drawn, and that are not the model's.

        One that the run cannot have counts as an image.
        """
        found = (unit for name in units_of_other_commands() for unit in self._run.glob(f"{name}*"))
        others = {unit.name for unit in found if is_of_other_command(unit, self._run)}
        settings = settings_of(self._run)
        for unit, record in sorted(records.items()):
            kind = key_of(record).kind
            if unit.name == f"_{kind}" and _is_of_several(record, settings):
                others.add(self._name(unit))
            elif holds_images(record):  # a shard whose images all failed is not written
                reason = "by its record, none of its images was drawn"
                yield Redrawn(self._copy.address_of(unit), "undrawn", reason=reason)
            else:
                reason = f"its record says that it is of the kind {quote(kind)}, and the run has no such unit of this name"
                yield Redrawn(self._copy.address_of(unit), "undrawn", reason=reason)
        if others:
            reason = f"pictures of several images: {first_few(sorted(others))}"
            yield Redrawn(self._address, "undrawn", 0, reason=reason)

    def _choose(
        self, units: Sequence[Path], records: Mapping[Path, Mapping[str, Any]], sample: SampleSize, *, seed: str
    ) -> tuple[list[Path], int]:
        """Return units with at least as many images as the sample has, and the number of their images."""
        counts = {unit: len(images_of(records[unit])) for unit in units}
        left, chosen = sample.of(sum(counts.values())), list[Path]()
        in_random_order = sorted(units, key=lambda unit: hashlib.sha256(f"{seed}\n{self._name(unit)}".encode()).digest())
        for unit in in_random_order:
            if left > 0:
                chosen.append(unit)
                left -= counts[unit]
        return chosen, sum(counts[unit] for unit in chosen)

    def _name(self, unit: Path) -> str:
        return unit.relative_to(self._run).as_posix()

    @contextmanager
    def _session(self, record: Mapping[str, Any]) -> Iterator[Session]:
        """Load the network as the run recorded it, with a temporary directory for the results."""
        execution = execution_of(record)
        with tempfile.TemporaryDirectory(prefix="fmapviz-redraw-") as out:
            session = load_recorded(record, self._address, out=out)
            directory = open_run(Path(out), session.info, name="run")
            self._take_survey(session, directory)
            session = replace(session, output=LocalDestination(Path(out)), directory=directory)
            with moved(session.model.module, session.device), threads_of(execution.get("threads")):
                yield session

    def _take_survey(self, session: Session, directory: Path) -> None:
        """Copy the values that all images share: of the sample alone, they would be others.

        Raises:
            RefusedError: They are lost.
        """
        settings = session.info.settings
        if not (is_surveyed(settings) if any(map(draws_pictures, settings["formats"])) else shares_values(settings)):
            return
        try:
            data = checksummed_json.read(self._run / SURVEY_FILE)
        except OSError as error:
            raise RefusedError(f"{SURVEY_FILE}, which all its images share, is lost") from error
        files.write(directory / SURVEY_FILE, data)

    def _of_model(self, session: Session, units: Sequence[Path], known: Sequence[str]) -> Iterator[Redrawn]:
        if units:
            draw_model(session, self._note)
        for unit in units:
            again = session.directory / self._name(unit)
            if os.path.isfile(again / UNIT_FILE):
                yield self._compare(unit, again, known, images=0)
            else:
                reason = f"its record says that it is of the kind {quote(MODEL)}, and the network draws no such unit"
                yield Redrawn(self._copy.address_of(unit), "differs", reason=reason)

    def _of_images(
        self, session: Session, units: Sequence[Path], records: Mapping[Path, Mapping[str, Any]], known: Sequence[str]
    ) -> Iterator[Redrawn]:
        """Draw units one after the other, so that no more than one lies in the temporary directory, and compare each."""
        to_draw, left = dict[str, Path](), dict[Path, int]()
        items: list[ImageFile | Member] = []
        for unit in units:
            members = listed_images_of(records[unit])
            drawn = images_of(records[unit])
            if problem := _lost(members):
                yield Redrawn(self._copy.address_of(unit), "undrawn", len(drawn), reason=problem)
                continue
            to_draw |= {member.path: unit for member in members}
            left[unit] = len(drawn)
            items += _items(records[unit], members, session.config.shard)
        for stage in session.stages:
            session, _ = stage.before(
                session, [file for unit in left for file in listed_images_of(records[unit])], self._note
            )
        failures: dict[Path, str] = {}
        with closing(work(session, items, progress=Progress())) as events:
            for event in events:
                self._note(event)
                if not isinstance(event, Outcome) or (unit := to_draw[event.path]) not in left:
                    continue
                if event.failure:
                    failures[unit] = event.failure.message
                elif event.unit:
                    yield self._compare(unit, event.unit, known, images=left.pop(unit), classes=session.model.classes)
                    discard(event.unit, session.directory)
        for unit, images in left.items():
            yield Redrawn(self._copy.address_of(unit), "undrawn", images, reason=failures.get(unit, "it is empty"))

    def _of_run_files(
        self, session: Session, record: Mapping[str, Any], names: Sequence[str], known: Sequence[str]
    ) -> Iterator[Redrawn]:
        """Make the run-level files again from the units that the run holds, and compare their bytes."""
        made = run_files.read(self._run)
        if made is None:
            return
        if self._copy.store or not run_files.is_up_to_date(self._run):  # files of remote units are not all here
            yield from self._unproven(names)
            return
        config = replace(session.config, single_file=made.get("variant") == "single file")
        info = replace(session.info, config=config, versions=versions_of(record))
        contents = Publisher(replace(session, info=info, directory=self._run)).make_again()
        again = session.directory / RUN_FILES_RECORD
        for name in names:
            if name not in contents:
                reason = "; ".join(("the units of the run make no such file", *known))
                yield Redrawn(self._copy.address_of(self._run / name), "differs", 0, (name,), reason)
                continue
            content = contents[name]
            with files.create(again) as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
            measured = files.measure(again)
            files.remove(again)
            if measured != files.measure(self._run / name):
                reason = "; ".join(("the units of the run make another file", *known))
                yield Redrawn(self._copy.address_of(self._run / name), "differs", 0, (name,), reason)

    def _unproven(self, names: Sequence[str]) -> Iterator[Redrawn]:
        if names:
            yield Redrawn(
                self._address, "undrawn", 0, reason=f"files of all images, which are not proven: {first_few(names)}"
            )

    def _compare(
        self, unit: Path, again: Path, known: Sequence[str], *, images: int, classes: Sequence[str] = ()
    ) -> Redrawn:
        """Compare a unit with what was drawn again."""
        address = self._copy.address_of(unit)
        if not os.path.isfile(again / UNIT_FILE):
            return Redrawn(address, "differs", images, reason="the network draws nothing of it")
        found: list[FileDifference] = compare_units(unit, again, self._copy.open, classes=classes)
        if not found:
            return Redrawn(address, "same", images)
        reasons = [*known, *(notice for notice in self._notices if _DEPENDS in notice)]
        listed = tuple(str(each) for each in found)
        if changed := _changed(images_of(record) if (record := read_unit(unit)) else ()):
            return Redrawn(address, "undrawn", images, listed, changed)
        is_rounding = all(each.is_rounding for each in found)
        if is_rounding and not reasons:  # the same processor, versions and threads give the same bytes
            reason = "only another number of --workers in a later command for the run could explain it"
            return Redrawn(address, "differs", images, listed, reason)
        return Redrawn(address, "rounded" if is_rounding else "differs", images, listed, "; ".join(reasons))

    def _note(self, event: Event) -> None:
        if isinstance(event, Notice) and event.message not in self._notices:
            self._notices.append(event.message)


def load_recorded(record: Mapping[str, Any], run: Path | str, *, out: Path | str) -> Session:
    """Load the network and the settings of a run.

    Args:
        record: The content of its `run.json`.
        run: Its path or address.
        out: The directory of all runs, for the session.

    Raises:
        RequestError: What is needed is not recorded, or does not exist here.
        RefusedError: The network, its weights, code or preprocessing are others than those of the run.
    """
    execution = execution_of(record)
    workers, batch_size = (execution.get(name) for name in ("workers", "batch_size"))
    with in_recorded_directory(record), only_recorded_code(record, run):
        config = config_of(record, run)
        session, _ = load_session(replace(config, out=out, device=device_of(record), workers=workers, batch_size=batch_size))
        return check_same(record, run, session)


def _is_of_several(record: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return True for a unit of films or filmstrips if a run with these settings draws some."""
    if settings.get("weights") == IN_TRAINING:
        return key_of(record).kind == FILMSTRIP
    formats = settings.get("formats")  # Any: a record may hold anything
    known = [form for form in registry.formats().values() if isinstance(formats, list) and form.name in formats]
    films = [pattern for form in known if form.write_film for pattern in form.unit_files]
    return bool(films) and all(any(fnmatch(each["name"], film) for film in films) for each in record["files"])


def _items(record: Mapping[str, Any], members: Sequence[ImageFile], shard: int | None) -> Iterable[ImageFile | Member]:
    if not shard:
        return members
    key: UnitKey = key_of(record)
    group = Group(record["shard"], shard, [*members], replaced=key, complete=True)
    return [Member(group, position) for position in range(len(members))]


def _lost(members: Sequence[ImageFile]) -> str:
    """Return why images cannot be drawn again; empty if they can."""
    for file in members:
        if is_in_memory(file.path):
            return f"its image was given in Python: {quote(file.path)}"
        if not is_named_after(file):
            return f"its record calls it {quote(file.unit)}, and its image is {quote(file.path)}"
        now = look_again(file)
        if now is None:
            return f"{_GONE}: {quote(file.path)}"
        if has_changed(file, now):
            return f"its image has changed: {quote(file.path)}"
    return ""


def _changed(members: Sequence[ImageFile]) -> str:
    """Return which image may be another one by now, so that differences prove nothing; empty if there is none."""
    for file in members:
        if (now := look_again(file)) and now.version != file.version:
            return f"its image may have changed, the time of modification has: {quote(file.path)}"
    return ""
