"""An unfinished run reports its number of images, its state and the reason."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from extras import needs
from failing_disk import CRASH, FULL, Crash, Disk, put_in
from faults import Net
from image_files import paint, save_pixels
from tiny_runs import AS_IT_IS, StopError, runner, stop_after_an_image
from torch import nn
from waiting import wait_until
from warm import HEEDING, start_process

from fmapviz.config import Part
from fmapviz.core import files
from fmapviz.core.file_names import RUN_FILE
from fmapviz.errors import OutputError, RequestError
from fmapviz.store.listing import list_runs
from fmapviz.store.verify import verify

draw = runner(Net, to=["png"], preprocessing=AS_IT_IS, workers=1, name="run")
HELD = """
import time
from pathlib import Path
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 2, 3))

    def forward(self, x):
        while Path("hold").exists() and len(list(Path("out/run").glob("*.png"))) > 2:
            time.sleep(0.01)
        return super().forward(x)
"""


def paint_some(folder, count, *, first=0):
    for number in range(first, first + count):
        paint(folder / f"{number}.png", number)
    return folder


def stop_after(count):
    """Interrupt a run, as its `on_event`, when some images are done."""
    seen = []

    def on_event(event):
        seen.extend([event] * (getattr(event, "status", "") == "done"))
        if len(seen) == count:
            raise KeyboardInterrupt

    return on_event


def listed(place):
    (run,) = list_runs(place / "out")
    return run


def shown(place):
    run = listed(place)
    return run.images, run.expected, run.state


def names(place):
    return sorted(path.name for path in (place / "out" / "run").iterdir() if path.is_file())


# --- commands that end before their time


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP"), (signal.SIGKILL, None)],
)
def test_a_command_that_is_interrupted_leaves_an_interrupted_run(number, reason, tmp_path, warm, fmapviz):
    paint_some(tmp_path / "in", 60)
    (tmp_path / "net.py").write_text(HELD)
    (tmp_path / "hold").touch()
    command = ["net.py:Net", "in", "--to", "png,stats", "--fit", "none", "--out", "out", "--name", "run", "--workers", "1"]
    with Path(os.devnull).open("r+b") as nothing:
        streams = [nothing.fileno()] * 3
        process = start_process(warm, ["-c", HEEDING, *command], directory=tmp_path, streams=streams)
        assert wait_until(lambda: len(list(tmp_path.glob("out/run/*.png"))) > 2)
        assert wait_until(lambda: listed(tmp_path).expected)
        assert shown(tmp_path)[1:] == (60, "running")
        process.send_signal(number)
        process.wait()
    images, *others = shown(tmp_path)
    assert 2 < images < 60
    assert images == len(list(tmp_path.glob("out/run/*.png")))
    assert others == [60, "interrupted"]
    assert listed(tmp_path).reason == reason
    table = fmapviz("runs", "out").stdout.decode().splitlines()
    assert f"{images} of 60" in table[1]
    assert re.search(r"interrupted( \(SIG\w+\))?$", table[1])
    record = json.loads(fmapviz("runs", "out", "--json").stdout.splitlines()[0])
    assert (record["images"], record["expected"], record["state"]) == (images, 60, "interrupted")
    (tmp_path / "hold").unlink()
    assert fmapviz(*command).returncode == 0
    assert (*shown(tmp_path), listed(tmp_path).killed) == (60, None, "finished", False)
    assert names(tmp_path) == ["products.json", RUN_FILE, "stats.csv", "stats.json"]
    assert not [problem for each in verify(tmp_path / "out") for problem in each.problems]


@pytest.mark.thorough
def test_a_full_disk_leaves_a_run_listed_as_unfinished(tmp_path, monkeypatch):
    inputs = paint_some(tmp_path / "in", 4)
    with put_in(monkeypatch, Disk()) as disk:
        draw(inputs, out=tmp_path / "probe")
    with put_in(monkeypatch, Disk(len(disk.operations) // 2, FULL)), pytest.raises(OutputError):
        draw(inputs, out=tmp_path / "out")
    images, expected, state = shown(tmp_path)
    assert (0 < images < 4, state) == (True, "interrupted")  # nothing more can be recorded
    assert expected in {4, None}
    draw(inputs, out=tmp_path / "out")
    assert shown(tmp_path) == (4, None, "finished")


@pytest.mark.thorough
def test_a_failure_to_write_leaves_a_failed_run_with_the_reason(tmp_path):
    inputs = paint_some(tmp_path / "in", 4)
    save_pixels(inputs / "3.png", np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OutputError):
            draw(inputs, out=tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert shown(tmp_path)[1:] == (4, "failed")
    assert "File too large" in listed(tmp_path).reason
    draw(inputs, out=tmp_path / "out")
    assert shown(tmp_path) == (4, None, "finished")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.95])
def test_a_process_killed_at_any_operation_leaves_a_run_listed_as_unfinished(share, tmp_path, monkeypatch):
    inputs = paint_some(tmp_path / "in", 3)
    with put_in(monkeypatch, Disk()) as disk:
        draw(inputs, out=tmp_path / "probe")
    with put_in(monkeypatch, Disk(int(len(disk.operations) * share), CRASH)), pytest.raises(Crash):
        draw(inputs, out=tmp_path / "out")
    assert shown(tmp_path)[2] == "interrupted"
    assert shown(tmp_path)[1] in {3, None}
    draw(inputs, out=tmp_path / "out")
    assert shown(tmp_path) == (3, None, "finished")


def test_an_error_in_user_code_is_a_failure_of_the_run(tmp_path):
    with pytest.raises(StopError):
        draw(paint_some(tmp_path / "in", 3), out=tmp_path / "out", on_event=stop_after_an_image)
    assert shown(tmp_path)[2] == "failed"
    assert listed(tmp_path).reason == "StopError: "


def test_a_run_that_strict_stops_is_not_finished(tmp_path):
    inputs = paint_some(tmp_path / "in", 5)
    (inputs / "2.png").write_bytes(b"no image")
    assert draw(inputs, out=tmp_path / "out", strict=True).stopped
    assert shown(tmp_path)[2] == "failed"
    assert listed(tmp_path).reason == "stopped at the first failure"


def test_failed_inputs_do_not_make_a_run_unfinished(tmp_path):
    inputs = paint_some(tmp_path / "in", 3)
    (inputs / "2.png").write_bytes(b"no image")
    draw(inputs, out=tmp_path / "out")
    assert shown(tmp_path) == (2, None, "finished")
    assert listed(tmp_path).failures == 1


def test_a_wrong_request_leaves_no_run_and_keeps_an_interrupted_one(tmp_path):
    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 2, 3)

        def forward(self, x):
            return self.first(x)

    inputs = paint_some(tmp_path / "in", 3)
    with pytest.raises(KeyboardInterrupt):
        draw(inputs, out=tmp_path / "out", on_event=stop_after(1))
    before = shown(tmp_path)
    with pytest.raises(RequestError):
        draw(inputs, Mask(), out=tmp_path / "other", views=["gradcam"], target=7)
    assert not list((tmp_path / "other").glob("*"))
    assert shown(tmp_path) == before


# --- how many images there will be


def test_a_run_that_was_interrupted_twice_has_the_number_of_its_inputs(tmp_path):
    inputs = paint_some(tmp_path / "in", 6)
    for count in (2, 2):
        with pytest.raises(KeyboardInterrupt):
            draw(inputs, out=tmp_path / "out", on_event=stop_after(count))
        assert shown(tmp_path)[1:] == (6, "interrupted")


def test_a_grown_folder_has_its_current_number_of_inputs(tmp_path):
    inputs = paint_some(tmp_path / "in", 3)
    draw(inputs, out=tmp_path / "out")
    paint_some(inputs, 4, first=3)
    with pytest.raises(KeyboardInterrupt):
        draw(inputs, out=tmp_path / "out", on_event=stop_after(2))
    assert shown(tmp_path)[1:] == (7, "interrupted")


@pytest.mark.thorough
def test_the_number_of_other_inputs_is_unknown(tmp_path):
    draw(paint_some(tmp_path / "in", 3), out=tmp_path / "out")
    more = paint_some(tmp_path / "more", 4, first=10)
    with pytest.raises(KeyboardInterrupt):
        draw(more, out=tmp_path / "out", on_event=stop_after(2))
    assert shown(tmp_path)[1:] == (None, "interrupted")
    draw(tmp_path / "in", out=tmp_path / "out")  # does not finish the others
    assert shown(tmp_path)[1:] == (None, "interrupted")
    draw(more, out=tmp_path / "out")
    assert shown(tmp_path) == (7, None, "finished")


def test_images_interrupted_while_redrawn_are_counted_once(tmp_path):
    inputs = paint_some(tmp_path / "in", 4)
    draw(inputs, out=tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        draw(inputs, out=tmp_path / "out", force=True, on_event=stop_after(2))
    assert shown(tmp_path) == (4, None, "interrupted")


@pytest.mark.thorough
def test_a_run_in_parts_is_finished_when_each_part_is(tmp_path):
    inputs = paint_some(tmp_path / "in", 9)
    with pytest.raises(KeyboardInterrupt):
        draw(inputs, out=tmp_path / "out", part=Part(1, 3), on_event=stop_after(1))
    draw(inputs, out=tmp_path / "out", part=Part(2, 3))
    assert shown(tmp_path)[1:] == (9, "interrupted")
    draw(inputs, out=tmp_path / "out", part=Part(1, 3))
    assert shown(tmp_path) == (6, None, "finished")


def test_inputs_that_can_be_read_once_are_not_counted(tmp_path):
    inputs = paint_some(tmp_path / "in", 4)
    with pytest.raises(KeyboardInterrupt):
        draw((path for path in sorted(inputs.iterdir())), out=tmp_path / "out", on_event=stop_after(1))
    assert shown(tmp_path)[1:] == (None, "interrupted")


@needs("pyarrow", "scale")
def test_images_in_shards_are_counted(tmp_path):
    inputs = paint_some(tmp_path / "in", 9)
    with pytest.raises(KeyboardInterrupt):
        draw(inputs, out=tmp_path / "out", to=["tar"], shard=2, on_event=stop_after(2))
    images, *others = shown(tmp_path)
    assert 0 < images < 9
    assert others == [9, "interrupted"]


# --- records that are damaged or made up


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "content",
    [b"", bytes(300), b"{", b"[]", b'{\n "fmapviz": 2, "inputs": 7}', b'{\n "fmapviz": 2, "inputs": "x", "found": "many"}'],
)
def test_a_damaged_record_counts_as_an_interrupted_command(content, tmp_path):
    draw(paint_some(tmp_path / "in", 2), out=tmp_path / "out")
    (tmp_path / "out" / "run" / "unfinished-0123456789ab.json").write_bytes(content)
    assert shown(tmp_path) == (2, None, "interrupted")


def test_a_reused_process_number_does_not_mark_a_run_as_running(tmp_path):
    directory = draw(paint_some(tmp_path / "in", 1), out=tmp_path / "out").directory
    ours = files.hidden(directory).name.split("-")
    left = directory / "-".join([*ours[:2], str(os.getppid()), *ours[3:]])  # a living process, which began later
    left.mkdir()
    assert listed(tmp_path).state == "running"
    os.utime(left, (time.time() - 10**7, time.time() - 10**7))
    assert (listed(tmp_path).state, listed(tmp_path).killed) == ("finished", True)
