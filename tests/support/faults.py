"""Runs in which each disk operation fails in turn."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from itertools import count

import torch
from extras import require
from failing_disk import ENDS, FULL, NAMES, PART, POWER, Crash, Disk, put_in
from image_files import paint
from torch import nn
from trees import SAME_COMMAND, difference, problems, snapshot

from fmapviz.config import InputOptions, Style
from fmapviz.errors import OutputError
from fmapviz.events import Outcome
from fmapviz.run.loop import visualize
from fmapviz.store.unit import images_of, read_unit

NOTES = "notes.txt"  # a foreign file in a run
IGNORED = {"link", "rmtree", "unlink", "rmdir"}  # a run goes on if one of these fails on a full disk


class Net(nn.Module):
    """Two convolutions."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Conv2d(3, 2, 3), nn.Conv2d(2, 3, 3)

    def forward(self, x):
        return self.second(self.first(x))


@dataclass
class Scenario:
    """A run.

    Attributes:
        options: Options of `visualize`.
        finished: Whether a finished run exists.
        grown: Whether one image has changed since, and another was added.
    """

    options: dict = field(default_factory=dict)
    finished: bool = False
    grown: bool = False

    def run(self, inputs, out, **options):
        given = {
            "to": ["tensorboard", "png", "html", "raw", "stats"],
            "views": ["maps", "kernels"],
            "preprocessing": InputOptions(fit="none"),
            "workers": 1,
            "batch_size": 1,
        }
        given = {**given, **self.options, **options}
        if "shard" in given:
            require("pyarrow", "scale")
        return visualize(Net(), inputs, out=out, **given)


SHARDS = {"shard": 2, "to": ["tar", "tensorboard", "stats"]}
SCENARIOS = {
    "a new run": Scenario(),
    "a new run by what its images have in common": Scenario(
        {"views": ["maps", "pca"], "style": Style(norm="run", pca="shared"), "to": ["png", "html"]}
    ),
    "a finished run that has grown": Scenario(finished=True, grown=True),
    "a finished run that is drawn anew": Scenario({"force": True}, finished=True),
    "a new run that is synchronized": Scenario({"fsync": True}),
    "a new run of shards": Scenario(SHARDS),
    "a finished run of shards that has grown": Scenario(SHARDS, finished=True, grown=True),
    "a finished run of shards that is drawn anew": Scenario({**SHARDS, "force": True}, finished=True),
    "a new run of shards that is synchronized": Scenario({**SHARDS, "fsync": True}),
    "a finished run that is drawn anew and synchronized": Scenario({"fsync": True, "force": True}, finished=True),
}


def disturb(scenario, fault, images, place, monkeypatch, *, step=1, repair=False):
    """Run a scenario once for each operation, which fails; run it again, and compare the files.

    Args:
        scenario: The scenario.
        fault: How operations fail.
        images: Number of good images; there is a damaged one, too.
        place: Empty directory.
        monkeypatch: Pytest's fixture.
        step: 1: each operation; 3: the first, the fourth, the seventh, ...
        repair: Whether the second run repairs.

    Returns:
        Number of operations that failed, and number of runs that were damaged.
    """
    begun, reference = _begin(scenario, images, place)
    expected = snapshot(reference)
    points = damaged = 0
    for number in count(1, step):
        out = place / f"out{number}"
        if begun.exists():
            shutil.copytree(begun, out)
        told = []
        with put_in(monkeypatch, Disk(number, fault)) as disk:
            error = _end(scenario, place / "in", out, told)
        if not disk.failed:
            assert error is None
            break
        points += 1
        where = f"{fault} at operation {number}: {disk.failed}"
        _check_end(error, fault, disk.failed, where)
        if fault in {POWER, NAMES}:
            disk.cut_power(out, names=fault == NAMES)
        damaged += not _is_whole(out, told, where, may_be_damaged=repair)
        with put_in(monkeypatch, Disk()):
            scenario.run(place / "in", out, repair=repair)
        if repair and scenario.grown and "shard" in scenario.options:
            # A lost record does not tell where its shard ended: old and new images may share a shard.
            assert _images(out) == _images(reference), where
        else:
            assert difference(snapshot(out), expected) == [], where
        assert _problems(out) == [], where
        shutil.rmtree(out)
    return points, damaged


def _images(out):
    """Return the paths of the images in all shards."""
    records = (read_unit(unit.parent) for unit in out.glob("net/[!.]*/unit.json"))
    return sorted(image.path for record in records for image in images_of(record))


def _problems(out):
    return [problem for problem in problems(out) if problem.path.name != NOTES]


def _begin(scenario, images, place):
    """Write the inputs; return the output before the run, and after it if nothing fails."""
    inputs, begun, reference = place / "in", place / "begun", place / "reference"
    for number in range(images):
        paint(inputs / ("" if number else "more") / f"{number}.png", number)
    (inputs / "damaged.png").write_bytes(b"no image")
    if scenario.finished:
        scenario.run(inputs, begun, force=False)
        (begun / "net" / NOTES).write_text("mine")
        shutil.copytree(begun, reference)
    if scenario.grown:
        paint(inputs / "more/0.png", 100)
        paint(inputs / "new.png", 101)
    scenario.run(inputs, reference)
    return begun, reference


def _end(scenario, inputs, out, told):
    """Run a scenario; return the exception that ended it."""
    try:
        scenario.run(inputs, out, on_event=told.append)
    except (Crash, OutputError) as error:
        return error
    return None


def _check_end(error, fault, operation, where):
    if fault in ENDS:
        assert isinstance(error, Crash), where
    elif operation not in IGNORED and not (fault == PART and operation != "write"):
        assert isinstance(error, OutputError), where
        assert "No space left" in str(error), where
        assert fault in {FULL, PART}


def _is_whole(out, told, where, *, may_be_damaged):
    """Return whether all files under final names are complete, or remade by the same command."""
    if not any(not path.name.startswith(".") for path in out.glob("*")):
        return True
    remedies = {problem.remedy for problem in _problems(out)}
    assert remedies <= {*SAME_COMMAND, *(["repair"] if may_be_damaged else [])}, where
    done = {event.unit for event in told if isinstance(event, Outcome) and event.status == "done"}
    assert may_be_damaged or all(read_unit(unit) for unit in done), where
    return "repair" not in remedies
