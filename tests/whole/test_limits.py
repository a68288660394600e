"""Limits of the system: space, open files, writable directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import thorough
from killing import ARGUMENTS, House
from trees import difference, snapshot
from waiting import PATIENCE
from warm import ask

MAIN = "from fmapviz.cli.app import main; main()"
LIMIT = "from resource import *; setrlimit({what}, ({number}, {number})); " + MAIN


@pytest.fixture(scope="module")
def house(tmp_path_factory, warm):
    return House(tmp_path_factory.mktemp("house"), 8, server=warm)


@pytest.fixture
def run(house, warm):
    """Run the command under a limit; return its exit code and its lines on standard error."""
    shutil.rmtree(house.out, ignore_errors=True)

    def limited(program=MAIN, *options, out=os.devnull):
        told = house.place / "told"
        with told.open("wb") as errors, Path(os.devnull).open("rb") as given, Path(out).open("wb") as results:
            streams = [given.fileno(), results.fileno(), errors.fileno()]
            code = ask(warm, ["-c", program, *ARGUMENTS, *options], directory=house.place, streams=streams)
        lines = [
            line
            for line in told.read_text().splitlines()
            if "damaged.png" not in line and "cannot start a process to decode in" not in line
        ]
        assert not any("Traceback" in line or "Exception" in line for line in lines), lines
        return code, lines

    return limited


@pytest.mark.thorough
@pytest.mark.parametrize("size", [500, *thorough(1000, 2000, 5000, 20_000)])
def test_a_limit_of_file_size_is_an_output_error(size, house, run):
    code, lines = run(LIMIT.format(what="RLIMIT_FSIZE", number=size))
    assert code == 5
    assert lines[0] == "error: cannot write to 'out/net.py_build': File too large"
    assert len(lines) <= 2
    house.check_whole()
    assert house.hidden() == []
    house.finish()


@pytest.mark.thorough
def test_a_limit_of_file_size_that_no_file_reaches_changes_nothing(house, run):
    code, lines = run(LIMIT.format(what="RLIMIT_FSIZE", number=200_000))
    assert code == 3, lines
    assert difference(snapshot(house.out), house.expected) == []


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [(), ("--workers", "8", "--batch-size", "8")])
def test_a_low_limit_of_open_files_suffices(options, house, run):
    code, lines = run(LIMIT.format(what="RLIMIT_NOFILE", number=64), *options)
    assert code == 3, lines
    assert difference(snapshot(house.out), house.expected) == []


@pytest.mark.thorough
def test_results_on_a_full_device_are_an_output_error(house, run):
    code, lines = run(MAIN, out="/dev/full")
    assert code == 5
    assert [line for line in lines if line.startswith("error")] == [
        "error: cannot write to standard output: No space left on device"
    ]
    house.finish()


@pytest.mark.thorough
def test_errors_on_a_full_device_keep_the_exit_code(house, warm):
    shutil.rmtree(house.out, ignore_errors=True)
    with Path("/dev/full").open("wb") as full, Path(os.devnull).open("rb") as given:
        streams = [given.fileno(), full.fileno(), full.fileno()]
        assert ask(warm, ["-c", MAIN, *ARGUMENTS], directory=house.place, streams=streams) == 5
    house.finish()


def mount(options, place):
    """Say how to have a file system of one's own, of a certain kind, while a command runs."""
    mounting = f"mount -t tmpfs -o {options} tmpfs {place}"
    for outside in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which("unshare") and subprocess.run(
            [*outside, "sh", "-c", mounting], capture_output=True, check=False
        ).returncode == 0:  # fmt: skip
            return [*outside, "sh", "-c", f'{mounting} && "$@"; code=$?; cp -a {place} {place}-after; exit $code', "sh"]
    pytest.skip("nobody may mount a file system here")


@pytest.mark.thorough
def test_a_full_small_file_system_is_an_output_error(house):
    shutil.rmtree(house.out, ignore_errors=True)
    house.out.mkdir()
    begin = mount("size=320k", house.out)
    command = [*begin, sys.executable, "-c", MAIN, *ARGUMENTS, "--force"]  # without, it would be refused before
    ended = subprocess.run(command, cwd=house.place, capture_output=True, text=True, check=False, timeout=PATIENCE)
    after = house.out.with_name("out-after")
    house.out.rmdir()  # where nothing was mounted any more
    after.rename(house.out)
    assert ended.returncode == 5, ended.stderr
    first, hint = [line for line in ended.stderr.splitlines() if "damaged.png" not in line]
    assert first.startswith("error: cannot write to 'out")
    assert first.endswith(": No space left on device")
    assert hint.endswith("make room, and the same command continues")
    assert house.hidden() == []
    house.check_whole()
    house.finish()


@pytest.mark.thorough
def test_a_read_only_file_system_is_an_output_error(house):
    shutil.rmtree(house.out, ignore_errors=True)
    house.out.mkdir()
    begin = mount("ro", house.out)
    command = [*begin, sys.executable, "-c", MAIN, *ARGUMENTS]
    ended = subprocess.run(command, cwd=house.place, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr.splitlines()) == (
        5, [f"error: cannot write to '{house.out}': read-only, or not permitted", "hint: choose another --out"],
    )  # fmt: skip
