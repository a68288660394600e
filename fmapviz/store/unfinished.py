"""Records of the commands that write to a run and have not finished, `unfinished-KEY.json`: one for each set of inputs.

A command writes its record when it begins, completes it when its inputs are counted, and removes it when all of them are
accounted for. So a run with such a record is being written, or was interrupted; a finished run has none.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.file_names import HIDDEN, RUN_FILE, UNIT_TABLE
from fmapviz.core.files import staging_folder
from fmapviz.errors import FmapvizError, RefusedError, RequestError
from fmapviz.events import Outcome, Staged
from fmapviz.store.run_files import count_images, has_units
from fmapviz.store.unit_table import write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.events import Event

State = Literal["finished", "running", "interrupted", "failed"]

_NAME = re.compile(r"unfinished-[0-9a-f]{12}\.json")
_ENDS = ("failed", "interrupted")
_LONGEST_REASON = 500
_WAIT_SECONDS = 0.8  # for the inputs of a command to be counted, when it is interrupted


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A command that has not finished.

    Attributes:
        inputs: Digest of its inputs, without the part that it does of them.
        part: The part, such as `1/3`; empty: all.
        alone: Whether all images of the run are among its inputs.
        found: Number of inputs of all parts; None: they were not counted.
        ended: Its end; None: it is running, or was killed.
        reason: Why.
    """

    inputs: str
    part: str = ""
    alone: bool = True
    found: int | None = None
    ended: str | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"unfinished-{hashlib.sha256(f'{self.inputs} {self.part}'.encode()).hexdigest()[:12]}.json"

    def write(self, run: Path) -> None:
        """Write the record, if that is possible: a run that is finished may be read-only, and a disk may be full."""
        if not files.exists(run / RUN_FILE):  # the run was removed, and another one may get its name
            return
        with suppress(OSError), staging_folder(run) as staging:
            files.write(staging / self.name, checksummed_json.dumps({"fmapviz": FORMAT, **asdict(self)}))
            files.replace(staging / self.name, run / self.name)


class CommandRecord:
    """The record of a command that is running.

    Args:
        run: The directory of the run.
        record: The initial record.
        before: Number of images that the run had before; they are skipped if they are among the inputs.
        total: Returns the number of inputs of all parts, after at most so many seconds; None if it is unknown.

    Attributes:
        is_stopped: Whether the command has ended with inputs left.
        has_drawn: Whether it has drawn an image.
    """

    def __init__(self, run: Path, record: Unfinished, before: int, total: Callable[[float], int | None]) -> None:
        self.is_stopped = self.has_drawn = False
        self._run = run
        self._record = record
        self._left = before
        self._total = total
        record.write(run)

    def note(self, event: Event) -> None:
        """Note an event."""
        known = replace(self._record, found=self._total(0))
        self.has_drawn |= isinstance(event, Staged) or (isinstance(event, Outcome) and event.status == "done")
        if isinstance(event, Outcome) and event.status == "skipped":
            self._left -= 1
            if self._left == 0:
                known = replace(known, alone=True)
        if known != self._record:
            self._record = known
            known.write(self._run)

    def end(self, how: State, reason: str) -> None:
        """Record how the command ended before all inputs were accounted for."""
        self.is_stopped = True
        known = replace(self._record, found=self._total(_WAIT_SECONDS), ended=how)
        replace(known, reason=reason.partition("\n")[0][:_LONGEST_REASON]).write(self._run)


@contextmanager
def unfinished(
    run: Path, inputs: Iterable[str], total: Callable[[float], int | None], *, part: str = ""
) -> Iterator[CommandRecord]:
    """Keep the record of a command in a run while it is running, and for as long as it has not finished.

    Args:
        run: The directory of the run.
        inputs: Identity of the inputs.
        total: Returns the number of inputs of all parts, for which it waits so many seconds; None if it is unknown.
        part: The part that it does of them.
    """
    digest = hashlib.sha256()
    for each in inputs:
        digest.update(each.encode("utf-8", "surrogatepass") + b"\0")
    record = Unfinished(digest.hexdigest(), part)
    former = list(read_unfinished(run))
    same = next((each for each in former if each.name == record.name), None)
    before = next((each.alone for each in former if each.inputs == record.inputs), None)
    images = 0 if before or not has_units(run) else count_images(run)
    for other in former:
        if other.inputs != record.inputs and other.alone:
            replace(other, alone=False).write(run)
    command = CommandRecord(run, replace(record, alone=bool(before) or not images), images, total)
    try:
        yield command
    except (RequestError, RefusedError) as error:
        if command.has_drawn:
            command.end("failed", str(error))
        elif same:
            same.write(run)
        else:
            _remove(run / record.name)
        raise
    except (KeyboardInterrupt, GeneratorExit) as error:
        command.end("interrupted", type(error).__name__)
        raise
    except Exception as error:
        command.end("failed", str(error) if isinstance(error, FmapvizError) else f"{type(error).__name__}: {error}")
        raise
    except BaseException as error:  # a signal, on the command line
        command.end("interrupted", str(error).removeprefix("interrupted by "))
        raise
    if not command.is_stopped:
        _remove(run / record.name)
        if command.has_drawn or not files.exists(run / UNIT_TABLE):
            write_table(run)


def is_record(name: str) -> bool:
    """Return True for the name of such a record."""
    return _NAME.fullmatch(name) is not None


def is_being_written(run: Path) -> bool:
    """Return True if a living process writes to a run."""
    return any(path.name.count("-") > 2 and not files.is_left_over(path) for path in run.glob(f"{HIDDEN}*"))


def read_unfinished(run: Path) -> list[Unfinished]:
    """Return the commands that have not finished; a damaged record has only a name."""
    records = []
    with suppress(OSError):
        for path in sorted(path for path in run.iterdir() if is_record(path.name)):
            known = checksummed_json.load(path, intact=True) or {}
            fields = {name: known[name] for name in Unfinished.__slots__ if name in known}
            records.append(Unfinished(**fields) if _is_sound(fields) else Unfinished(path.name, alone=False))
    return records


def state_of(run: Path, commands: Sequence[Unfinished]) -> tuple[State, str | None]:
    """Return the state of a run whose commands have not finished, and the reason if it is known."""
    if is_being_written(run):
        return "running", None
    if not commands:
        return "finished", None
    first = min(commands, key=lambda each: _ENDS.index(each.ended or "interrupted"))
    return cast("State", first.ended or "interrupted"), first.reason


def expected_images(commands: Sequence[Unfinished], images: int) -> int | None:
    """Return the number of inputs of a run's unfinished commands; None without such a command, or if it is unknown.

    Args:
        commands: The commands.
        images: Number of images that are finished.

    Example:
        >>> expected_images([Unfinished("a", found=300)], 7), expected_images([Unfinished("a")], 7), expected_images([], 7)
        (300, None, None)
    """
    counts = {each.found if each.alone else None for each in commands}
    found = counts.pop() if len(counts) == 1 and len({each.inputs for each in commands}) == 1 else None
    return found if found is not None and found >= images else None


def _is_sound(fields: Mapping[str, object]) -> bool:
    kinds = {"inputs": str, "part": str, "alone": bool, "found": int | None, "ended": str | None, "reason": str | None}
    return (
        "inputs" in fields
        and all(isinstance(value, kinds[name]) for name, value in fields.items())
        and (fields.get("ended") in {None, *_ENDS})
    )


def _remove(path: Path) -> None:
    with suppress(OSError):
        files.remove(path)
