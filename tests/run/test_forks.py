"""Images drawn in forks have the files, events and counts of images drawn in threads; nothing of a fork outlives the run."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import queue
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from cases import thorough
from failing_disk import FULL, PART, Disk, put_in
from forking import begin_early
from image_files import paint
from PIL import Image
from trees import HIDDEN, difference, problems, snapshot
from waiting import PATIENCE, wait_until
from warm import HEEDING, start_process

import fmapviz
from fmapviz.config import Part, Style
from fmapviz.core import platforms
from fmapviz.errors import OutputError
from fmapviz.events import Notice, Outcome
from fmapviz.images import decode_pool
from fmapviz.run import disk_space, forks
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.pipeline.unit_writer import UnitWriter
from fmapviz.store.listing import list_runs

pytestmark = pytest.mark.skipif(not platforms.FORKS, reason="this system draws in threads")
IMAGES = 12


@pytest.fixture(scope="module")
def network():
    return fmapviz.load_model("shapesnet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("in")
    for number in range(IMAGES):
        paint(place / f"{number:02}.png", number, (96, 96))
    return place


@pytest.fixture
def begun(monkeypatch):
    """Return a list that grows by each fork, also on a machine with a single core."""
    started = []
    original = forks._Fork.__init__
    monkeypatch.setattr(forks._Fork, "__init__", lambda self, *rest: (original(self, *rest), started.append(self))[0])
    begin_early(monkeypatch)
    cores = torch.get_num_threads()
    torch.set_num_threads(2)
    yield started
    torch.set_num_threads(cores)


@pytest.fixture
def drawn_in(network, folder, begun, tmp_path, monkeypatch):
    """Return a function that draws all images in "forks" or "threads"."""

    def run(how, *, inputs=folder, **options):
        begun.clear()
        with monkeypatch.context() as patch:
            if how == "threads":
                patch.setattr(forks, "suit", lambda _session: False)
            drawn = draw(network, inputs, tmp_path / how, **options)
        assert len(begun) == (2 if how == "forks" else 0)
        return drawn

    return run


def draw(network, inputs, out, **options):
    events = []
    given = {"out": out, "name": "run", "on_event": events.append, "workers": 2, **options}
    return fmapviz.visualize(network, inputs, **given), events


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"to": ["tensorboard", "png", "html", "stats", "npz"]},
        *thorough(
            {"views": ["maps", "mean", "kernels"], "style": Style(channels="top:4"), "to": ["png", "npz"]},
            {"predictions": 3, "to": ["png", "html"]},
        ),
    ],
    ids=str,
)
def test_forks_leave_the_files_of_threads(drawn_in, tmp_path, options):
    (summary, events), (expected, told) = (drawn_in(how, **options) for how in ("forks", "threads"))
    assert difference(snapshot(tmp_path / "forks"), snapshot(tmp_path / "threads")) == []
    assert problems(tmp_path / "forks") == []
    of_place = {"seconds": 0, "directory": "", "units": (), "results": ()}
    assert replace(summary, **of_place) == replace(expected, **of_place)
    outcomes, others = ([each.path for each in some if isinstance(each, Outcome)] for some in (events, told))
    assert sorted(outcomes) == sorted(others)


@pytest.mark.thorough
def test_threads_draw_as_many_layers_as_forks_take_time_to_start(network, folder, begun, tmp_path, monkeypatch):
    inputs = sorted(folder.iterdir())
    monkeypatch.setattr(forks, "LAYERS", 24)  # of eight for each image
    for count, layers, started in [(3, "*", 0), (4, "*", 2), (4, "features.[0-3].*", 0), (7, "features.[0-3].*", 2)]:
        draw(network, inputs[:count], tmp_path / f"{count}{started}", layers=[layers], to="png")
        assert len(begun) == started
        begun.clear()


@pytest.mark.thorough
def test_a_second_call_skips_what_forks_drew(network, folder, begun, tmp_path):
    draw(network, folder, tmp_path, to="png")
    summary, _ = draw(network, folder, tmp_path, to="png")
    assert (summary.done, summary.skipped) == (0, IMAGES)


@pytest.mark.thorough
def test_failures_are_counted_and_the_first_ends_a_strict_run(network, folder, begun, tmp_path):
    inputs = sorted(folder.iterdir())
    for number in (forks.FIRST + 2, forks.FIRST + 5):
        damaged = tmp_path / f"damaged{number}.png"
        damaged.write_bytes(b"no image")
        inputs.insert(number, damaged)
    summary, _ = draw(network, inputs, tmp_path / "out", to="png")
    assert (summary.done, summary.failed) == (IMAGES, 2)
    summary, events = draw(network, inputs, tmp_path / "strict", to="png", strict=True)
    assert summary.stopped
    done = {each.path for each in events if isinstance(each, Outcome) and each.status == "done"}
    assert done >= {str(path) for path in inputs[: forks.FIRST + 2]}
    assert problems(tmp_path / "strict") == []
    assert not any(process_exists(each) for each in begun)


@pytest.mark.thorough
@pytest.mark.parametrize("part", [None, *thorough(Part(1, 2), Part(2, 2))], ids=str)
def test_what_forks_cannot_read_is_drawn_by_threads(folder, drawn_in, tmp_path, monkeypatch, part):
    given, give = [], forks._Forks._give
    monkeypatch.setattr(forks._Forks, "_give", lambda self, item: (given.append(item), give(self, item))[1])
    paths, of_film = sorted(folder.iterdir()), forks.FIRST + 4
    frames = [Image.open(path) for path in paths[:3]]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:], duration=100)
    inputs = [*paths[:of_film], tmp_path / "film.gif", paths[of_film], Image.new("RGB", (96, 96)), *paths[of_film + 1 :]]
    (summary, events), (expected, _) = (
        drawn_in(how, inputs=inputs, part=part, to=["png", "html"]) for how in ("forks", "threads")
    )
    assert {Path(each.path).parent for each in given} <= {folder}
    outcomes = [each.path for each in events if isinstance(each, Outcome)]
    assert len(outcomes) == len(set(outcomes)) == summary.done == expected.done == (IMAGES + 4) // (2 if part else 1)
    assert difference(snapshot(tmp_path / "forks"), snapshot(tmp_path / "threads")) == []


@pytest.mark.thorough
def test_what_waits_for_a_slow_disk_is_bounded(folder, drawn_in, tmp_path, monkeypatch):
    own, original = os.getpid(), UnitWriter.write
    most = 2 * forks._AHEAD + 1  # what the forks have, and one that waits for them
    all_are_busy, listed, ahead = multiprocessing.Event(), [], []

    def write(self, result, tell):
        if os.getpid() != own:
            all_are_busy.wait(PATIENCE)
        original(self, result, tell)

    def find():
        for path in sorted(folder.iterdir()):
            listed.append(path)
            if len(listed) == forks.FIRST + most:
                all_are_busy.set()
            yield path

    def see(event):
        if isinstance(event, Outcome):
            ahead.append(len(listed) - len(ahead))

    drawn_in("threads", to="png")
    monkeypatch.setattr(UnitWriter, "write", write)
    drawn_in("forks", inputs=find(), to="png", on_event=see)
    assert len(ahead) == IMAGES
    assert max(ahead) <= most
    assert difference(snapshot(tmp_path / "forks"), snapshot(tmp_path / "threads")) == []


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [FULL, *thorough(PART)])
def test_a_disk_that_fills_in_a_fork_ends_the_run_which_the_next_call_continues(drawn_in, tmp_path, monkeypatch, fault):
    own, out = os.getpid(), tmp_path / "forks"

    class DiskOfForks(Disk):
        def _operate(self, operation, do, *half):
            return do() if os.getpid() == own else super()._operate(operation, do, *half)

    with (
        put_in(monkeypatch, DiskOfForks(30, fault)) as disk,
        pytest.raises(OutputError, match=f"^cannot write to '{out}/run': No space left") as caught,
    ):
        drawn_in("forks", to="png")
    assert disk.failed
    assert re.fullmatch(
        r"\d+ of the \d+ images listed so far are done; make room, and the same .* continues", caught.value.hint
    )
    assert problems(out) == []
    assert not [*out.rglob(f"{HIDDEN}*")]
    for how in ("forks", "threads"):
        drawn_in(how, to="png")
    assert difference(snapshot(out), snapshot(tmp_path / "threads")) == []


@pytest.mark.thorough
def test_forks_draw_while_the_reader_of_standard_output_is_gone(network, folder, begun, tmp_path, monkeypatch):
    ours, theirs = os.pipe()
    os.close(ours)
    with suppress(BrokenPipeError), os.fdopen(theirs, "w") as lost:
        lost.write("unread")
        monkeypatch.setattr(sys, "stdout", lost)
        draw(network, folder, tmp_path, to="stats")
    assert len(begun) == 2


@pytest.mark.thorough
def test_a_notice_of_several_forks_is_reported_once_with_their_sum(network, folder, begun, tmp_path):
    state = network.module.state_dict()
    last = [name for name in state if name.endswith("conv.weight")][-1]
    state[last] = torch.full_like(state[last], torch.nan)
    broken = fmapviz.load_model("shapesnet", weights=state)
    summary, events = draw(broken, folder, tmp_path, to="png")
    messages = [each.message for each in events if isinstance(each, Notice)]
    assert len(messages) == len(set(messages))
    assert any(f"in {IMAGES} images" in message for message in messages), messages
    assert summary.done == IMAGES


@pytest.mark.thorough
def test_the_same_notice_of_each_fork_is_reported_once(network, folder, begun, tmp_path, monkeypatch):
    own, original = os.getpid(), decode_pool.start_worker

    def start_worker():
        if os.getpid() != own:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return original()

    monkeypatch.setattr(decode_pool, "start_worker", start_worker)
    _, events = draw(network, folder, tmp_path, to="stats")
    (message,) = [each.message for each in events if isinstance(each, Notice)]
    assert message.startswith("cannot start a process to decode in")


@pytest.mark.thorough
def test_a_killed_fork_ends_the_run_which_the_next_call_continues(network, folder, begun, tmp_path, monkeypatch):
    own, original = os.getpid(), UnitWriter.write

    def write(self, result, tell):
        if os.getpid() != own and result.image.member.file.path.endswith(f"{IMAGES - 1:02}.png"):
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, result, tell)

    monkeypatch.setattr(UnitWriter, "write", write)
    with pytest.raises(OutputError, match=r"a process that draws images was killed \(SIGKILL\)") as caught:
        draw(network, folder, tmp_path, to="png")
    assert "continues" in caught.value.hint
    assert not any(map(process_exists, begun))
    assert problems(tmp_path) == []
    monkeypatch.undo()
    summary, _ = draw(network, folder, tmp_path, to="png")
    assert (summary.done + summary.skipped, summary.failed) == (IMAGES, 0)


@pytest.mark.thorough
def test_an_error_in_a_fork_is_raised_here_with_its_traceback(network, folder, begun, tmp_path, monkeypatch):
    own, original = os.getpid(), UnitWriter.write

    class UnsendableError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} {two}")

    def write(self, result, tell):
        if os.getpid() != own:
            raise UnsendableError(1, 2)
        original(self, result, tell)

    monkeypatch.setattr(UnitWriter, "write", write)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*in write.*UnsendableError: 1 2"):
        draw(network, folder, tmp_path, to="png")


@pytest.mark.thorough
def test_what_a_fork_has_no_memory_for_is_drawn_by_threads(network, folder, begun, tmp_path, monkeypatch):
    own, original = os.getpid(), Drawer.draw

    def draw_all_but_one(self, batch, **options):
        if os.getpid() != own and batch.sum() == short:
            raise torch.OutOfMemoryError
        return original(self, batch, **options)

    file = Image.open(folder / f"{forks.FIRST + 1:02}.png")
    short = network.preparation.apply(file.convert("RGB"))[None].sum()
    monkeypatch.setattr(Drawer, "draw", draw_all_but_one)
    summary, _ = draw(network, folder, tmp_path, to="png")
    assert (summary.done, summary.failed, summary.found) == (IMAGES, 0, IMAGES)


LONG = """
import signal
import sys
import torch
import fmapviz
from fmapviz.run import forks
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
torch.set_num_threads(2)
forks.LAYERS = 0
network = fmapviz.load_model("shapesnet")
for number in range(1000):
    fmapviz.visualize(network, sys.argv[1], out=sys.argv[2], name=f"run{number}", to="png", workers=2)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, *thorough(signal.SIGTERM, signal.SIGINT)], ids=lambda each: each.name)
def test_no_fork_outlives_a_process_that_is_ended(folder, tmp_path, warm, number):
    process = begin(warm, LONG, folder, tmp_path)
    found = wait_until(lambda: forks_of(process))
    process.send_signal(number)
    process.wait()
    assert found
    assert wait_until(lambda: not any(map(exists, found)))


STOPPING = f"""
import os, signal, time, torch
from fmapviz.run import forks
from fmapviz.run.pipeline.unit_writer import _Unit
own, original, are_waiting = os.getpid(), _Unit.write, forks._are_others_waiting
def write(self, page, tell):
    original(self, page, tell)
    if os.getpid() != own:
        signal.raise_signal(signal.SIGSTOP)  # os.kill may stop another thread first, while this one finishes the image
_Unit.write = write
def wait_for_others():  # threads draw twice as many images while a process to decode is being started
    while not are_waiting():
        time.sleep(0.001)
    return True
forks._are_others_waiting = wait_for_others
forks.LAYERS = 0
torch.set_num_threads(2)
{HEEDING}
"""


@pytest.mark.thorough
def test_ctrl_c_ends_forks_that_are_stopped_and_what_they_have_staged(folder, tmp_path, warm):
    arguments = ("shapesnet", folder, "--to", "png", "--out", tmp_path, "--name", "run", "--workers", "2")
    process = begin(warm, STOPPING, *arguments)
    found = wait_until(lambda: [each for each in forks_of(process) if state_of(each) == "T"][1:] and forks_of(process))
    assert all([*tmp_path.glob(f"run/{HIDDEN}*-{each}-*")] for each in found)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert wait_until(lambda: not any(map(exists, found)))
    assert not [*tmp_path.glob(f"run/{HIDDEN}*")]
    (run,) = list_runs(tmp_path)
    assert (run.state, run.reason, run.images) == ("interrupted", "SIGINT", forks.FIRST)


def begin(warm, program, *arguments):
    with Path(os.devnull).open("r+b") as nothing:
        return start_process(warm, ["-c", program, *map(str, arguments)], streams=[nothing.fileno()] * 3)


def forks_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [each for each in children if "decode_worker" not in Path(f"/proc/{each}/cmdline").read_text()]


def exists(number):
    return Path(f"/proc/{number}").exists() and state_of(number) != "Z"


def state_of(number):
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


@pytest.mark.thorough
def test_inputs_that_fail_are_all_counted_when_the_forks_have_ended(network, folder, begun, tmp_path):
    missing = [tmp_path / f"missing{number}.png" for number in range(60)]

    def see(event):
        if isinstance(event, Outcome) and event.failure:
            time.sleep(0.005)

    inputs = [*sorted(folder.iterdir())[: forks.FIRST + 1], *missing]
    summary = fmapviz.visualize(network, inputs, out=tmp_path, name="run", on_event=see, workers=2, to="png")
    assert (summary.done, summary.failed, len(begun)) == (forks.FIRST + 1, len(missing), 2)


@pytest.mark.thorough
def test_threads_draw_if_no_process_can_be_started(network, folder, begun, tmp_path, monkeypatch):
    original, left = os.fork, [1]  # the first fork can be started

    def refuse():
        if not left:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left.pop()
        return original()

    monkeypatch.setattr(os, "fork", refuse)
    summary, events = draw(network, folder, tmp_path, to="png")
    assert summary.done == summary.found == IMAGES
    assert [each.message for each in events if isinstance(each, Notice) and "cannot start a process" in each.message] == [
        f"cannot start a process to draw in ({os.strerror(errno.EAGAIN)}): drawing in threads"
    ]
    assert not any(map(process_exists, begun))


@pytest.mark.thorough
def test_threads_draw_if_a_fork_may_have_no_threads(network, folder, begun, tmp_path, monkeypatch):
    own, original = os.getpid(), threading.Thread.start

    def start(self):
        if os.getpid() != own:
            raise RuntimeError("can't start new thread")
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    summary, events = draw(network, folder, tmp_path, to="png")
    assert summary.done == summary.found == IMAGES
    assert any("drawing in threads" in each.message for each in events if isinstance(each, Notice))
    assert not any(map(process_exists, begun))


@pytest.mark.thorough
def test_no_fork_is_made_while_a_thread_that_has_drawn_still_ends(network, folder, begun, tmp_path, monkeypatch):
    library, key, milliseconds = ctypes.CDLL(None), ctypes.c_uint(), 100
    library.pthread_key_create(ctypes.byref(key), library.usleep)  # called at the end of each thread that has a value
    drew, remaining, draw_one, begin_forks = set(), set(), Drawer.draw, forks._Forks.__init__

    def draw_and_end_slowly(self, batch, **options):
        drew.add(threading.get_native_id())
        library.pthread_setspecific(key, ctypes.c_void_p(1000 * milliseconds))
        return draw_one(self, batch, **options)

    def begin(self, *rest):
        remaining.update(drew & {int(each.name) for each in Path("/proc/self/task").iterdir()})
        begin_forks(self, *rest)

    monkeypatch.setattr(Drawer, "draw", draw_and_end_slowly)
    monkeypatch.setattr(forks._Forks, "__init__", begin)
    draw(network, folder, tmp_path, to="stats")
    library.pthread_key_delete(key)
    assert drew
    assert (len(begun), remaining) == (2, set())


def draw_random_numbers(lock):
    while lock.locked():
        torch.randn(1000)


def wait(lock):
    lock.acquire()


@pytest.mark.thorough
@pytest.mark.parametrize("doing", [draw_random_numbers, *thorough(wait, None)], ids=["PyTorch", "waiting", "a call into C"])
def test_threads_draw_while_a_thread_of_the_user_may_hold_a_lock(network, folder, begun, tmp_path, doing):
    taken = threading.Lock()
    taken.acquire()
    thread = threading.Thread(target=partial(doing, taken) if doing else taken.acquire)
    thread.start()
    inputs = sorted(folder.iterdir())[: forks.FIRST + 1]
    summary, _ = draw(network, inputs, tmp_path, to="stats")
    taken.release()
    thread.join()
    assert (summary.done, begun) == (len(inputs), [])


@pytest.mark.thorough
def test_forks_begin_when_a_thread_of_the_user_has_ended(network, folder, begun, tmp_path):
    taken = threading.Lock()
    taken.acquire()
    thread = threading.Thread(target=wait, args=[taken])
    thread.start()
    seen = []

    def see(event):
        seen.append(isinstance(event, Outcome))
        if sum(seen) == forks.FIRST + 1 and taken.locked():
            taken.release()
            thread.join()

    summary, _ = draw(network, folder, tmp_path, to="png", on_event=see)
    assert (summary.done, sum(seen), len(begun)) == (IMAGES, IMAGES, 2)


@pytest.mark.thorough
def test_forks_begin_while_the_inputs_are_counted(network, folder, begun, tmp_path, monkeypatch):
    unknown = queue.SimpleQueue()
    monkeypatch.setattr(disk_space, "find_images", lambda *_, **__: iter(unknown.get, None))
    draw(network, [folder], tmp_path, to="stats")
    unknown.put(None)
    assert len(begun) == 2


@pytest.mark.thorough
def test_idle_threads_of_an_executor_are_no_obstacle(network, folder, begun, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        draw(network, folder, tmp_path, to="stats")
    assert len(begun) == 2


def test_threads_draw_in_a_process_that_may_have_no_other(network, folder, begun, tmp_path, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    summary, _ = draw(network, folder, tmp_path, to="stats")
    assert (summary.done, begun) == (IMAGES, [])


def strongest(maps):
    return maps.amax(1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"shard": 4, "to": "stats"},
        {"views": "gradcam"},
        {"views": strongest},
        *thorough({"workers": 1}, {"batch_size": 2}, {"style": Style(norm="run")}),
    ],
    ids=["shards", "gradients", "a view of the user's own", "one worker", "batches", "passes kept from a survey"],
)
def test_threads_draw_what_forks_cannot(network, folder, begun, tmp_path, options):
    summary = fmapviz.visualize(network, folder, **{"to": "png", "workers": 2, "out": tmp_path, **options})
    assert (summary.done, begun) == (IMAGES, [])


@pytest.mark.thorough
def test_threads_draw_with_a_network_that_has_hooks(folder, begun, tmp_path):
    seen, hooked = [], fmapviz.load_model("shapesnet")
    hooked.module.register_forward_hook(lambda *_: seen.append(0))
    draw(hooked, folder, tmp_path, to="png")
    assert begun == []
    assert len(seen) >= IMAGES


def process_exists(fork):
    return fork._process.is_alive()
