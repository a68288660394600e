"""What takes minutes: `make torture`. The short forms of all this are among the tests."""

from __future__ import annotations

import random
import signal

import pytest
import test_remote
from failing_disk import CRASH, FULL, NAMES, PART, POWER, TORN
from faults import SCENARIOS, Scenario, disturb
from forking import begin_early
from killing import ARGUMENTS, SHARDS, House
from test_remote import FAULTS

from fmapviz.core import platforms
from fmapviz.run import forks
from fmapviz.store.remote import run_sync

ROUNDS = 200
INTERRUPTIONS = 60


@pytest.mark.parametrize("fault", [CRASH, TORN, FULL, PART])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_failing_disk_operation_leaves_a_run_that_continues(name, fault, tmp_path, monkeypatch, record_property):
    points, damaged = disturb(SCENARIOS[name], fault, 4, tmp_path, monkeypatch)
    record_property("points", points)
    assert not damaged


@pytest.mark.skipif(not platforms.FORKS, reason="this system draws in threads")
@pytest.mark.parametrize("fault", [FULL, PART])
def test_each_failing_disk_operation_of_forks_leaves_a_run_that_continues(fault, tmp_path, monkeypatch, record_property):
    monkeypatch.setattr(forks, "suit", lambda _session: True)
    begin_early(monkeypatch)
    images = forks.FIRST + 3
    points, _ = disturb(Scenario({"workers": 2}), fault, images, tmp_path, monkeypatch, step=3)
    record_property("points", points)
    assert points > images


# A disk may keep that a directory was removed, and not the name of what has replaced it: without fsync nothing is promised.
SAFE = [name for name, scenario in SCENARIOS.items() if "fsync" in scenario.options or not scenario.finished]


@pytest.mark.parametrize(("name", "fault"), [*((name, POWER) for name in SCENARIOS), *((name, NAMES) for name in SAFE)])
def test_power(name, fault, tmp_path, monkeypatch, record_property):
    synchronized = "fsync" in SCENARIOS[name].options
    points, damaged = disturb(SCENARIOS[name], fault, 4, tmp_path, monkeypatch, repair=not synchronized)
    record_property("points", points)
    assert not (damaged and synchronized)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if "fsync" not in scenario.options])
def test_each_failing_remote_write_leaves_a_run_that_continues(
    *, name, fault, bucket, proxy, tmp_path, monkeypatch, record_property
):
    monkeypatch.setattr(run_sync, "FOREIGN_SECONDS", 0)
    record_property("points", test_remote.disturb(bucket, proxy, tmp_path, SCENARIOS[name], FAULTS[fault]))


@pytest.mark.parametrize("part", range(4))
def test_killed_commands_leave_a_run_that_continues(part, tmp_path, record_property):
    house = House(tmp_path, 40, seed=part, arguments=[ARGUMENTS, SHARDS][part % 2])
    at_work = 0
    for number in range(ROUNDS // 4):
        at_work += house.kill_one(*random.Random(number).choice([(), ("--force",), ("--workers", "4"), ("--repair",)]))
        if number % 10 == 9:
            house.finish()
    record_property("kills", at_work)
    assert at_work > ROUNDS / 4 / 2


@pytest.mark.parametrize("seed", range(4))
def test_eight_concurrent_commands_share_a_run(seed, tmp_path):
    house = House(tmp_path, 40, seed=seed, arguments=[ARGUMENTS, SHARDS][seed % 2])
    codes = house.kill_some(8, 3, *(["--force"] if seed % 2 else []))
    assert codes.count(3) >= 5, codes
    house.finish()


def test_signals_end_commands_without_staged_files(tmp_path, record_property):
    house = House(tmp_path, 40)
    interrupted = 0
    for round_number in range(INTERRUPTIONS):
        interrupted += house.interrupt(random.choice([signal.SIGINT, signal.SIGTERM]), "--force")
        if round_number % 10 == 9:
            house.finish()
    record_property("interrupted", interrupted)
    assert interrupted > INTERRUPTIONS / 4
