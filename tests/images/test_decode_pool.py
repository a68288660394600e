"""Decoding in helper processes: it gives what decoding in a thread gives, and survives decoders that do not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import bad_images
import numpy as np
import pytest
from bad_images import encoded, oriented
from conftest import dismiss_helpers, save_picture
from PIL import Image as PillowImage
from PIL.PngImagePlugin import PngInfo
from test_failing_threads import Net
from warm import ask

from fmapviz import decoding, nursery
from fmapviz.decoding import Decoding
from fmapviz.errors import InputError
from fmapviz.images import read_image
from fmapviz.options import InputOptions
from fmapviz.pipeline import visualize
from fmapviz.pixels import Bands
from fmapviz.values import ImageFile, Notice

SHARED = "/memfd:fmapviz (deleted)"
LONG = 60  # seconds that nothing takes, unless something is wrong

# Found by every interpreter that starts with its folder on PYTHONPATH: the nursery's. What a picture says is done by C code
# where Pillow decodes it, as a broken decoder would.
BROKEN_DECODER = """
import ctypes, os
from pathlib import Path
from PIL.PngImagePlugin import PngImageFile

whole = PngImageFile.load
libc = ctypes.CDLL(None)


def load(self):
    match self.info.get("do", "").split(" ", 1):
        case ["crash"]:
            ctypes.memset(8, 0, 8)
        case ["abort"]:
            libc.abort()
        case ["leave"]:
            libc._exit(7)
        case ["hang"]:
            libc.pause()
        case ["wait", path]:
            while not os.path.exists(path):
                libc.usleep(1000)
        case ["print"]:
            libc.write(1, b"out", 3), libc.write(2, b"err", 3)
        case ["write", path]:
            with open(path, "wb") as file:
                file.write(b"anything")
        case ["say", words]:
            for descriptor in range(3, 30):
                libc.write(descriptor, words.encode() + b"\\n", len(words) + 1)
            libc._exit(0)
    return whole(self)


PngImageFile.load = load
"""


class Reader:
    """Reads files, and knows the processes that do it."""

    def __init__(self, helpers):
        self.helpers = helpers

    def __call__(self, path, channels=3):
        return self.helpers.read(file_of(path), channels=channels, tell=unexpected)

    @property
    def nursery(self):
        return self.helpers._nursery._process.pid

    @property
    def pids(self):
        return offspring(self.nursery)


@pytest.fixture(scope="module", autouse=True)
def broken(tmp_path_factory):
    """Start a nursery for all tests that want no other. All decoders in new processes do what a picture says."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "sitecustomize.py").write_text(BROKEN_DECODER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setattr(decoding, "_started", [])
        decoding.start()
        (kept,) = decoding._started
        yield
        assert decoding._started == [kept]
        kept.close()


@pytest.fixture
def anew(monkeypatch):
    """Use no nursery but one of the test's own."""
    monkeypatch.setattr(decoding, "_started", [])


@pytest.fixture
def reading():
    """Read files in helpers."""
    with Decoding() as helpers:
        yield Reader(helpers)


@pytest.fixture(autouse=True)
def nothing_is_left(broken):
    """No process, and no open file, but of helpers that wait for the next run."""
    dismiss_helpers()
    before = descriptors(), {*offspring()}
    yield
    dismiss_helpers()
    assert descriptors() <= before[0]
    assert wait_until(lambda: {*offspring()} <= before[1])  # the server of `warm.py` has others


def descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def opened_by(pid):
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def file_of(path):
    return ImageFile(str(path), "unit", 0, 0)


def unexpected(notice):
    raise AssertionError(notice)


def saying(path, words):
    """Save a picture that tells a broken decoder what to do."""
    info = PngInfo()
    info.add_text("do", words)
    PillowImage.new("RGB", (8, 8), "red").save(path, pnginfo=info)
    return path


def parents():
    """Give the parent of every process, but of those that only their parents have to take note of."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
            except OSError:
                continue
            if state != "Z" or int(parent) == os.getpid():
                found[int(entry.name)] = int(parent)
    return found


def offspring(root=None):
    """Give the processes that one has started, and those that these have started, the nearest first."""
    known, found = parents(), [root or os.getpid()]
    for pid in found:
        found += [child for child, parent in known.items() if parent == pid]
    return found[1:]


def wait_until(true):
    deadline = time.monotonic() + LONG
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def contents(image):
    planes = image.pixels.planes if isinstance(image.pixels, Bands) else [image.pixels]
    return image.notices, [(plane.mode, plane.size, plane.tobytes()) for plane in planes]


def answer(read, *arguments):
    """Give whatever comes of a file."""
    try:
        return contents(read(*arguments))
    except InputError as error:
        return error.code, str(error), error.hint


# --- what is read


def test_pixels_come_as_they_were_stored(reading, tmp_path):
    for number in range(8):
        pixels = bad_images.picture(number)
        (tmp_path / "a.png").write_bytes(oriented(pixels, number + 1, "PNG"))
        read = reading(tmp_path / "a.png")
        np.testing.assert_array_equal(np.asarray(read.pixels), pixels)
        assert type(read.pixels) is PillowImage.Image
        assert read.pixels.info == {}
        assert not read.pixels.readonly


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 5000, 3), (5000, 1, 3), (2500, 2700, 3)])
def test_pixels_of_any_shape(shape, reading, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    PillowImage.fromarray(pixels).save(tmp_path / "a.bmp")
    np.testing.assert_array_equal(np.asarray(reading(tmp_path / "a.bmp").pixels), pixels)
    grey = np.asarray(PillowImage.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(np.asarray(reading(tmp_path / "a.bmp", 1).pixels), grey)


@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_bands_come_as_they_were_stored(channels, reading, tmp_path):
    values = np.random.default_rng(0).random((channels, 40, 30), dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    bands = reading(tmp_path / "a.npy", channels).pixels
    np.testing.assert_array_equal([np.asarray(plane) for plane in bands.planes], values)


def test_grey_values_are_repeated_for_red_green_and_blue(reading, tmp_path):
    values = np.random.default_rng(0).random((40, 30), dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    planes = reading(tmp_path / "a.npy").pixels.planes
    assert len(planes) == 3
    for plane in planes:
        np.testing.assert_array_equal(np.asarray(plane), values)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the tests of `fmapviz.images` read and have refused."""
    folder = tmp_path_factory.mktemp("files")
    bad_images.make_zoo(folder)
    picture = bad_images.picture()
    for form in ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "TGA"):
        (folder / form).write_bytes(encoded(picture, form))
    (folder / "exif").write_bytes(bad_images.broken_exif())
    (folder / "animation").write_bytes(bad_images.animation("GIF"))
    (folder / "deep").write_bytes(encoded(PillowImage.fromarray(picture[..., 0].astype(np.uint16) * 9), "PNG"))
    (folder / "clear").write_bytes(encoded(PillowImage.fromarray(picture).convert("LA"), "PNG"))
    (folder / "samples.tif").write_bytes(b"II*\0" + bytes(40))
    np.save(folder / "six.npy", np.zeros((6, 5, 4), np.int16))
    np.save(folder / "cut.npy", np.zeros((60, 50, 3)))
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:900])
    (folder / "link.png").symlink_to("nowhere")
    (folder / "fol\udcffder\n").mkdir()
    os.mkfifo(folder / "fifo.png")
    return sorted([*folder.iterdir(), folder / "missing"])


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_whatever_a_file_holds_the_answer_is_that_of_a_thread(channels, files, reading):
    expected = [answer(lambda path: read_image(file_of(path), channels=channels), path) for path in files]
    assert len({result[0] for result in expected if len(result) == 3}) >= 7  # codes
    assert [answer(reading, path, channels) for path in files] == expected


def test_threads_read_like_one(files, reading):
    expected = [answer(lambda path: read_image(file_of(path)), path) for path in files]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda path: answer(reading, path), files * 3)) == expected * 3
    assert 1 <= len(reading.pids) <= 6


def test_a_helper_is_used_again_and_memory_that_one_large_picture_took_is_given_back(reading, tmp_path):
    save_picture(tmp_path / "small.png")
    PillowImage.new("RGB", (5000, 4000)).save(tmp_path / "large.png", compress_level=1)

    def helper(name):
        reading(tmp_path / name)
        (pid,) = reading.pids
        return pid

    first = helper("small.png")
    assert helper("small.png") == helper("large.png") == helper("large.png") == first
    reading(tmp_path / "small.png")
    assert reading.pids == []
    assert helper("small.png") != first


def test_a_helper_has_not_imported_torch_and_is_small(reading, picture):
    reading(picture)
    for pid in (reading.nursery, *reading.pids):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "_imaging" in maps
        assert "torch" not in maps
        threads = Path(f"/proc/{pid}/task").iterdir()
        assert len([*threads]) == 1


def test_a_helper_has_nothing_open_that_it_needs_not(reading, picture):
    reading(picture)
    for pid in (reading.nursery, *reading.pids):
        assert wait_until(lambda pid=pid: str(picture) not in opened_by(pid))
        assert {re.sub(r"\d+", "", place) for place in opened_by(pid)} <= {"/dev/null", "socket:[]", SHARED}
        limits = Path(f"/proc/{pid}/limits").read_text()
        for name, value in (("core file size", 0), ("file size", 0), ("address space", nursery.MEMORY_BYTES)):
            assert re.search(rf"Max {name} +{value} +{value} ", limits), limits


# --- decoders that fail


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        ("crash", "crashed (SIGSEGV)"),
        ("abort", "crashed (SIGABRT)"),
        ("leave", "ended with exit code 7"),
        ("hang", "did not come to an end within 0.3 s"),
        ("say [[1, 2], 3]", "gave no answer that makes sense"),
        ("say " + "[" * 5000, "gave no answer that makes sense"),
        ("say " + "1" * 5000, "gave no answer that makes sense"),
        ('say ["RGB", 100000, 100000, 1, []]', "gave no answer that makes sense"),
        ('say ["RGB", 8, -8, 1, []]', "gave no answer that makes sense"),
        ('say ["CMYK", 8, 8, 1, []]', "gave no answer that makes sense"),
        ('say ["L", 8, 8, 1, []]', "gave no answer that makes sense"),
        ('say ["F", 9000, 9000, 4, []]', "gave no answer that makes sense"),
        ('say ["../..", "message", null]', "gave no answer that makes sense"),
    ],
)
def test_a_decoder_that_fails_costs_one_image(words, ended, reading, picture, tmp_path, monkeypatch):  # noqa: PLR0917
    hostile = saying(tmp_path / "hostile.png", words)
    expected = contents(reading(picture))
    monkeypatch.setattr(nursery, "TIMEOUT_SECONDS", 0.3)
    code, message, _ = answer(reading, hostile)
    assert (code, message) == ("E_DECODE", f"the decoder {ended}: '{hostile}'")
    assert reading.pids == []
    monkeypatch.setattr(nursery, "TIMEOUT_SECONDS", 10.0)
    assert contents(reading(picture)) == expected
    assert len(reading.pids) == 1


def test_what_a_helper_says_reaches_no_terminal_as_it_is(reading, tmp_path):
    refused = saying(tmp_path / "a.png", 'say ["E_FORMAT", "no\\u001b[31m", "hint\\n"]')
    assert answer(reading, refused) == ("E_FORMAT", r"no\x1b[31m", r"hint\n")
    assert wait_until(lambda: reading.pids == [])
    told = saying(tmp_path / "b.png", 'say ["RGB", 8, 8, 1, ["\\u202enotice"]]')
    assert reading(told).notices == (r"\u202enotice",)


def test_what_a_decoder_prints_is_not_seen_and_it_writes_nothing(reading, tmp_path, capfd):
    assert reading(saying(tmp_path / "a.png", "print")).pixels.size == (8, 8)
    code, message, _ = answer(reading, saying(tmp_path / "b.png", f"write {tmp_path}/written"))
    assert (code, message) == ("E_READ", f"cannot be read (File too large): '{tmp_path}/b.png'")
    assert (tmp_path / "written").read_bytes() == b""
    assert capfd.readouterr() == ("", "")


def test_more_time_for_more_pixels_and_for_larger_files(reading, tmp_path, monkeypatch):
    monkeypatch.setattr(nursery, "TIMEOUT_SECONDS", 0.1)
    info = PngInfo()
    info.add_text("do", "hang")
    PillowImage.new("L", (1100, 1000)).save(tmp_path / "a.png", pnginfo=info)
    with (tmp_path / "a.png").open("ab") as file:
        file.truncate(100_000)
    assert "did not come to an end within 1.3 s" in answer(reading, tmp_path / "a.png")[1]


def test_memory_is_bounded(anew, monkeypatch, tmp_path):
    monkeypatch.setattr(nursery, "MEMORY_BYTES", 450 * 2**20)
    PillowImage.new("RGB", (9000, 9000)).save(tmp_path / "large.png", compress_level=1)
    PillowImage.new("RGB", (900, 900)).save(tmp_path / "small.png")
    with Decoding() as helpers:
        for _ in range(2):
            with pytest.raises(InputError, match="not enough memory: ") as caught:
                helpers.read(file_of(tmp_path / "large.png"), channels=3, tell=unexpected)
            assert caught.value.code == "E_TOO_LARGE"
            assert helpers.read(file_of(tmp_path / "small.png"), channels=3, tell=unexpected).pixels.size == (900, 900)


def test_no_format_needs_all_of_pillow():
    program = """
from PIL import Image
from fmapviz.images import FORMATS
from fmapviz.nursing import _import_decoders
_import_decoders()
assert {*FORMATS} <= {*Image.OPEN}, {*FORMATS} - {*Image.OPEN}
assert "EPS" not in Image.OPEN
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG)


# --- processes that fail


def test_a_nursery_that_was_killed_is_replaced(anew, reading, picture):
    expected = contents(reading(picture))
    (helper,) = reading.pids
    first = reading.nursery
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: helper not in parents())
    assert contents(reading(picture)) == expected
    assert reading.nursery != first
    assert len(reading.pids) == 1


def test_a_nursery_that_is_killed_while_its_helper_is_at_work_costs_no_image(anew, reading, tmp_path):
    path = saying(tmp_path / "a.png", f"wait {tmp_path}/go")
    with ThreadPoolExecutor(1) as thread:
        image = thread.submit(reading, path)
        assert wait_until(lambda: reading.helpers._nursery is not None and reading.pids)
        time.sleep(0.1)
        os.kill(reading.nursery, signal.SIGKILL)
        (tmp_path / "go").touch()
        assert image.result().pixels.size == (8, 8)


def test_a_nursery_that_does_not_answer_is_replaced(anew, reading, picture, monkeypatch):
    expected = contents(reading(picture))
    (helper,) = reading.pids
    first = reading.nursery
    monkeypatch.setattr(nursery, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(nursery, "_PARTING_SECONDS", 0.3)
    os.kill(first, signal.SIGSTOP)
    os.kill(helper, signal.SIGKILL)
    assert contents(reading(picture)) == expected
    assert reading.nursery != first


def test_a_helper_that_was_killed_while_it_had_nothing_to_do_costs_nothing(reading, picture):
    expected = contents(reading(picture))
    (helper,) = reading.pids
    os.kill(helper, signal.SIGKILL)
    assert wait_until(lambda: helper not in reading.pids)
    assert contents(reading(picture)) == expected
    assert len(reading.pids) == 1


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/nowhere/python", "No such file or directory"),
        ("/bin/false", "it has ended by itself"),
        ("", "no Python interpreter"),
    ],
)
def test_without_helpers_images_are_decoded_in_the_thread_with_one_notice(  # noqa: PLR0917
    program, reason, anew, folder, monkeypatch, tmp_path
):
    (folder / "text.png").write_text("nothing to see")
    monkeypatch.setattr(sys, "executable", program)
    told = []
    summary = visualize(
        Net(), folder, out=tmp_path / "out", options=InputOptions(size=(16, 16)), to=["png"], workers=2, on_event=told.append
    )
    assert (summary.done, summary.failed) == (3, 1)
    assert summary.failures[0].code == "E_FORMAT"
    (notice,) = [event.message for event in told if isinstance(event, Notice) and "decode" in event.message]
    assert reason in notice


def test_without_memory_files_of_linux(monkeypatch, reading, files):
    monkeypatch.delattr(os, "memfd_create")
    expected = [answer(lambda path: read_image(file_of(path)), path) for path in files]
    assert [answer(reading, path) for path in files] == expected


def test_in_a_process_that_ignores_its_children(picture):
    program = """
import signal, sys
from fmapviz.decoding import Decoding
from fmapviz.values import ImageFile
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
with Decoding() as helpers:
    print(helpers.read(ImageFile(sys.argv[1], "", 0, 0), channels=3, tell=print).pixels.size)
"""
    process = subprocess.run([sys.executable, "-c", program, picture], capture_output=True, check=True, timeout=LONG)
    assert (process.stdout, process.stderr) == (b"(80, 60)\n", b"")


# --- its end


@pytest.mark.parametrize("kept", [True, False])
def test_closing_does_not_wait_for_a_decoder(kept, monkeypatch, tmp_path):
    if not kept:
        monkeypatch.setattr(decoding, "_started", [])
    before, answers = offspring(), []
    hostile = saying(tmp_path / "hostile.png", "hang")
    with Decoding() as helpers:
        read = Reader(helpers)
        thread = threading.Thread(target=lambda: answers.append(answer(read, hostile)))
        thread.start()
        assert wait_until(lambda: helpers._at_work)
    assert offspring() == before
    thread.join(LONG)
    assert answers[0][0] == "E_DECODE"
    with pytest.raises(InputError, match="the run has ended"):
        read(hostile)


def test_a_helper_that_comes_back_when_all_is_closed_leaves_nothing_open():
    """A thread that has just been told that the run goes on is overtaken by the one that ends it."""
    before = descriptors()
    nest = nursery.Nursery()
    helper = nest.take()
    nest.close()
    nest.put_back(helper)
    assert descriptors() == before


def test_a_nursery_that_was_started_before_serves_all_runs(picture):
    before = offspring()
    decoding.start()
    assert offspring() == before
    with Decoding() as one, Decoding() as other:
        for read in (Reader(one), Reader(other)) * 2:
            read(picture)
            assert read.nursery in before
        assert len(offspring()) == len(before) + 1  # they take turns


@pytest.mark.parametrize("words", ["", "leave"])
def test_helpers_wait_for_the_next_run(words, picture, tmp_path):
    expected = [contents(read_image(file_of(picture)))] * 8
    with Decoding() as helpers, ThreadPoolExecutor(2) as threads:
        read = Reader(helpers)
        assert [*threads.map(lambda _: contents(read(picture)), range(8))] == expected
        if words:
            assert answer(read, saying(tmp_path / "a.png", words))[0] == "E_DECODE"
            assert [contents(read(picture))] == expected[:1]
        waiting = read.pids
    assert 1 <= len(waiting) <= 2
    with Decoding() as helpers:
        read = Reader(helpers)
        assert [contents(read(picture))] == expected[:1]
        assert read.pids == waiting


def test_helpers_that_have_grown_do_not_wait_for_the_next_run(picture, tmp_path):
    PillowImage.new("RGB", (1600, 1500)).save(tmp_path / "large.png", compress_level=1)
    with Decoding() as helpers:
        read = Reader(helpers)
        read(tmp_path / "large.png")
        read(picture)
        assert len(read.pids) == 1
    assert read.pids == []


def test_a_nursery_that_was_started_before_and_killed_is_replaced(anew, picture):
    decoding.start()
    (kept,) = decoding._started
    os.kill(kept._process.pid, signal.SIGKILL)
    with Decoding() as helpers:
        assert contents(Reader(helpers)(picture)) == contents(read_image(file_of(picture)))
    assert decoding._started == []


def test_a_forked_process_leaves_the_helpers_alone(picture):
    program = """
import os, sys
from fmapviz import decoding
from fmapviz.values import ImageFile
decoding.start()
read = lambda helpers: helpers.read(ImageFile(sys.argv[1], "", 0, 0), channels=3, tell=print).pixels.size
with decoding.Decoding() as helpers:
    read(helpers)
    child = os.fork()
    if child == 0:
        helpers.__exit__()
        with decoding.Decoding() as others:
            read(others)
        sys.exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), read(helpers), len(helpers._nursery._idle))
"""
    process = subprocess.run([sys.executable, "-c", program, picture], capture_output=True, check=True, timeout=LONG)
    assert (process.stdout, process.stderr) == (b"5 (80, 60) 1\n", b"")


COMMAND = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_DFL)  # see HEEDING in warm.py
os.setsid()
Path("pid").write_text(str(os.getpid()))
from fmapviz import nursery
from fmapviz.cli import main
nursery.TIMEOUT_SECONDS = float(sys.argv.pop(1))
main()
"""
NETWORK = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(3, 2, 3))
"""


@pytest.fixture
def pictures(tmp_path):
    """Four good pictures, one that crashes a broken decoder and one that stops it."""
    (tmp_path / "my_net.py").write_text(NETWORK)
    for seed, name in enumerate("acdf"):
        save_picture(tmp_path / "pictures" / f"{name}.png", seed)
    saying(tmp_path / "pictures" / "b.png", "crash")
    saying(tmp_path / "pictures" / "e.png", "hang")
    return tmp_path / "pictures"


ARGUMENTS = ["my_net.py:build", "pictures", "--weights", "random", "--size", "16", "--to", "png", "--name", "run"]


@pytest.fixture
def command(warm, pictures, tmp_path):
    """Run the command in a process of its own, and give its exit code and what it says on standard error."""

    def run(seconds):
        arguments = ["-c", COMMAND, str(seconds), *ARGUMENTS, "--workers", "2"]
        with (tmp_path / "streams").open("w+b") as streams, (tmp_path / "errors").open("w+b") as errors:
            places = [streams.fileno(), streams.fileno(), errors.fileno()]
            code = ask(warm, arguments, directory=tmp_path, streams=places, timeout=LONG)
        return code, (tmp_path / "errors").read_text()

    return run


def test_a_run_with_a_crash_and_a_hang(command, pictures, tmp_path):
    code, errors = command(0.5)
    assert code == 3
    assert "Traceback" not in errors
    rows = [json.loads(row) for row in (tmp_path / "runs/run/failures.jsonl").read_text().splitlines()]
    assert sorted((row["path"], row["code"], row["message"]) for row in rows) == [
        (f"{pictures}/b.png", "E_DECODE", f"the decoder crashed (SIGSEGV): '{pictures}/b.png'"),
        (f"{pictures}/e.png", "E_DECODE", f"the decoder did not come to an end within 0.5 s: '{pictures}/e.png'"),
    ]
    assert sorted(path.name for path in (tmp_path / "runs/run").iterdir() if path.is_dir()) == [f"{n}.png" for n in "acdf"]


@contextmanager
def hanging(command, tmp_path):
    """Begin a command, and give its process when only the decoder that hangs is left; wait until that has gone as well."""
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(command, LONG)
        assert wait_until(lambda: (tmp_path / "runs/run/f.png").exists() or ended.done())
        assert not ended.done(), ended.result()
        pid = int((tmp_path / "pid").read_text())
        processes = offspring(pid)
        assert len(processes) >= 2
        yield pid, ended
        assert wait_until(lambda: not {*processes} & {*parents()})


def test_a_run_that_is_killed_leaves_no_process(command, tmp_path):
    with hanging(command, tmp_path) as (pid, ended):
        os.kill(pid, signal.SIGKILL)
    assert ended.result()[0] == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_at_the_terminal_leaves_no_process(number, command, tmp_path):
    with hanging(command, tmp_path) as (pid, ended):
        sent = time.monotonic()
        os.killpg(pid, number)  # as a terminal does
        code, errors = ended.result()
        assert time.monotonic() - sent < 3
    assert code == 128 + number
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted")


def test_signals_of_the_terminal_do_not_reach_helpers(reading, picture):
    reading(picture)
    assert {os.getpgid(pid) for pid in (reading.nursery, *reading.pids)} == {reading.nursery}


def test_a_run_that_ends_with_an_error_leaves_no_process(anew, picture, tmp_path):
    before = offspring()

    def fail(event):
        assert not hasattr(event, "status"), "that will do"

    with pytest.raises(AssertionError, match="that will do"):
        visualize(Net(), picture, out=tmp_path, options=InputOptions(size=(16, 16)), to=["png"], on_event=fail)
    assert offspring() == before
