"""The command, killed and interrupted at random moments, and many of them at once. `make torture` does more of it."""

from __future__ import annotations

import signal

import pytest
from cases import thorough
from killing import ARGUMENTS, SHARDS, House


@pytest.fixture(scope="module")
def house(tmp_path_factory, warm, request):
    return House(tmp_path_factory.mktemp("house"), 12, server=warm, arguments=request.param)


@pytest.mark.thorough
@pytest.mark.parametrize("house", [ARGUMENTS, *thorough((SHARDS,))], ids=["single", "shards"], indirect=True)
def test_a_command_may_be_killed_at_any_moment(house):
    at_work = [house.kill_one(*options) for options in [(), (), ("--force",), ("--repair",), ("--workers", "4"), ()]]
    assert any(at_work)
    house.finish()


@pytest.mark.thorough
@pytest.mark.parametrize("house", [ARGUMENTS, *thorough((SHARDS,))], ids=["single", "shards"], indirect=True)
def test_eight_commands_at_once_survive_three_kills(house):
    codes = house.kill_some(8, 3)
    assert codes.count(3) >= 5, codes
    house.finish()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("house", "number"),
    [
        (SHARDS, signal.SIGINT),
        *thorough(
            (ARGUMENTS, signal.SIGINT),
            (SHARDS, signal.SIGTERM),
            (ARGUMENTS, signal.SIGTERM),
            (ARGUMENTS, signal.SIGHUP),
            (SHARDS, signal.SIGHUP),
        ),
    ],
    indirect=["house"],
)
def test_a_command_interrupted_at_any_moment_leaves_nothing_staged(house, number):
    for _ in range(4):
        house.interrupt(number, "--force")
    house.finish()
