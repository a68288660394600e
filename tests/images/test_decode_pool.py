"""Decoding in worker processes: same result as in a thread, and a broken decoder costs one image."""

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
from itertools import chain, repeat
from pathlib import Path

import bad_images
import numpy as np
import pytest
import tifffile
from bad_images import encoded, oriented
from cases import thorough
from conftest import end_idle_workers
from image_files import save_picture
from PIL import Image as PillowImage
from PIL.PngImagePlugin import PngInfo
from tiny_models import TwoConvolutions
from waiting import PATIENCE, wait_until
from warm import ask

from fmapviz.config import InputOptions
from fmapviz.core.samples import Samples
from fmapviz.errors import InputError
from fmapviz.events import Notice
from fmapviz.images import decode_pool
from fmapviz.images.arrays import scale
from fmapviz.images.decode_pool import DecodePool, read_image
from fmapviz.images.decode_worker import SHARED_BYTES
from fmapviz.run.loop import visualize
from fmapviz.types import ImageFile

SHARED = "/memfd:fmapviz (deleted)"

# The sitecustomize.py of every worker: it does what a picture says, in C code where Pillow decodes, like a broken decoder.
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
            for descriptor in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2}:
                libc.write(descriptor, words.encode() + b"\\n", len(words) + 1)
            libc._exit(0)
    return whole(self)


PngImageFile.load = load
"""


class Reader:
    """Reads files in workers, whose processes it lists."""

    def __init__(self, pool):
        self.pool = pool

    def __call__(self, path, channels=3):
        return self.pool.read(file_of(path), channels=channels, notify=unexpected)

    @property
    def pids(self):
        processes = [worker._process for worker in (*self.pool._idle, *self.pool._busy)]
        return [process.pid for process in processes if process.poll() is None]


@pytest.fixture(scope="module", autouse=True)
def broken(tmp_path_factory):
    """Let decoders of workers execute commands in pictures, and keep workers between pools."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "sitecustomize.py").write_text(BROKEN_DECODER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        end_idle_workers()
        yield
        end_idle_workers()


@pytest.fixture(autouse=True)
def killed_processes_end(monkeypatch):
    """Wait for a killed process as long as tests wait."""
    monkeypatch.setattr(decode_pool, "_KILL_SECONDS", PATIENCE)


@pytest.fixture
def own_workers(monkeypatch):
    """Keep no workers between pools."""
    monkeypatch.setattr(decode_pool, "_keeps_workers", threading.Event())


@pytest.fixture
def reading():
    """Read files in workers."""
    with DecodePool() as pool:
        yield Reader(pool)


@pytest.fixture(autouse=True)
def nothing_is_left(broken):
    """Check that no process and no open file is left but those of idle workers that are kept."""
    end_idle_workers()
    OTHERS.update(child for child, parent in parents().items() if parent == os.getpid())
    before = descriptors(), {*offspring()}
    yield
    end_idle_workers()
    assert descriptors() <= before[0]
    assert wait_until(lambda: {*offspring()} <= before[1])  # the server of `warm.py` has others


@pytest.fixture
def plain_malloc(monkeypatch):
    """Let malloc return memory as it does outside of `make test`."""
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)


def descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def opened_by(pid):
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def file_of(path):
    return ImageFile(str(path), "unit")


def unexpected(notice):
    raise AssertionError(notice)


def saying(path, words):
    """Save a picture with a command for a broken decoder."""
    info = PngInfo()
    info.add_text("do", words)
    PillowImage.new("RGB", (8, 8), "red").save(path, pnginfo=info)
    return path


def parents():
    """Return the parent of every process, but of those that only their parents have to take note of."""
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


OTHERS = set()  # what this process had started before, as a browser whose own processes come and go


def offspring(root=None):
    """The processes that one has started, and those that these have started, the nearest first, without others'."""
    known, found = parents(), [root or os.getpid()]
    for pid in found:
        found += [child for child, parent in known.items() if parent == pid and child not in OTHERS]
    return found[1:]


def contents(image):
    pixels = image.pixels
    if isinstance(pixels, Samples):
        facts = pixels.values.dtype, pixels.values.shape, pixels.black, pixels.white, pixels.nodata, pixels.is_picture
        return image.notices, image.orientation, facts, pixels.values.tobytes()
    return image.notices, image.orientation, (pixels.mode, pixels.size), pixels.tobytes()


def answer(read, *arguments):
    """Return what is read from a file, or the error."""
    try:
        return contents(read(*arguments))
    except InputError as error:
        return error.code, str(error), error.hint


# --- reading


@pytest.mark.thorough
def test_the_decode_pool_returns_stored_pixels(reading, tmp_path):
    for number in range(8):
        pixels = bad_images.picture(number)
        (tmp_path / "a.png").write_bytes(oriented(pixels, number + 1, "PNG"))
        read = reading(tmp_path / "a.png")
        np.testing.assert_array_equal(np.asarray(read.pixels), pixels)
        assert type(read.pixels) is PillowImage.Image
        assert read.pixels.info == {}
        assert not read.pixels.readonly


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [6, *thorough(1, 2, 3, 4, 5, 7, 8)])
def test_the_decode_pool_returns_the_orientation_of_the_file(form, orientation, reading, tmp_path):
    (tmp_path / "file").write_bytes(oriented(bad_images.picture(), orientation, form))
    assert reading(tmp_path / "file").orientation == orientation
    assert reading(tmp_path / "file", 1).orientation == orientation


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("orientation", [1, 8])
def test_the_decode_pool_returns_the_orientation_of_bands(orientation, reading, tmp_path):
    bands = np.zeros((6, 5, 4), np.uint8)
    tifffile.imwrite(tmp_path / "six.tif", bands, photometric="minisblack", extratags=[(274, 3, 1, orientation, True)])
    np.save(tmp_path / "six.npy", bands)
    assert reading(tmp_path / "six.tif", 6).orientation == orientation
    assert reading(tmp_path / "six.npy", 6).orientation == 1


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["JPEG", *thorough("PNG", "WEBP")])
def test_damaged_exif_data_have_no_orientation(form, reading, tmp_path):
    (tmp_path / "file").write_bytes(bad_images.broken_exif(form))
    assert reading(tmp_path / "file").orientation == 1


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 5000, 3), (5000, 1, 3), (2500, 2700, 3)])
def test_the_decode_pool_returns_pixels_of_any_shape(shape, reading, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    PillowImage.fromarray(pixels).save(tmp_path / "a.bmp")
    np.testing.assert_array_equal(np.asarray(reading(tmp_path / "a.bmp").pixels), pixels)
    grey = np.asarray(PillowImage.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(np.asarray(reading(tmp_path / "a.bmp", 1).pixels), grey)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_the_decode_pool_returns_stored_samples(channels, reading, tmp_path):
    values = np.random.default_rng(0).random((channels, 40, 30), dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    samples = reading(tmp_path / "a.npy", channels).pixels
    np.testing.assert_array_equal(samples.values, values)


@pytest.mark.thorough
def test_grey_values_are_repeated_for_red_green_and_blue(reading, tmp_path):
    values = np.random.default_rng(0).random((40, 30), dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    planes = scale(reading(tmp_path / "a.npy").pixels).planes
    assert len(planes) == 3
    for plane in planes:
        np.testing.assert_array_equal(np.asarray(plane), values)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the tests of `fmapviz.images.decode` read and have refused."""
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


@pytest.mark.parametrize("channels", [3, *thorough(1, 6)])
def test_a_worker_and_a_thread_decode_each_file_equally(channels, files, reading):
    expected = [answer(lambda path: read_image(file_of(path), channels=channels), path) for path in files]
    assert len({result[0] for result in expected if isinstance(result[0], str)}) >= 7  # codes
    assert [answer(reading, path, channels) for path in files] == expected


@pytest.mark.thorough
def test_several_threads_read_the_same_as_one(files, reading):
    expected = [answer(lambda path: read_image(file_of(path)), path) for path in files]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda path: answer(reading, path), files * 3)) == expected * 3
    assert 1 <= len(reading.pids) <= 6


@pytest.mark.usefixtures("plain_malloc")
@pytest.mark.thorough
def test_a_worker_is_reused_and_returns_the_memory_of_a_large_picture(reading, tmp_path):
    save_picture(tmp_path / "small.png")
    PillowImage.new("RGB", (5000, 4000), "white").save(tmp_path / "large.png", compress_level=1)

    def worker(name):
        reading(tmp_path / name)
        (pid,) = reading.pids
        return pid

    first = worker("small.png")
    least = resident(first)
    assert worker("small.png") == worker("large.png") == worker("large.png") == first
    assert resident(first) > least + 50e6
    assert worker("small.png") == first
    assert wait_until(lambda: resident(first) < least + 10e6)
    assert contents(reading(tmp_path / "large.png")) == contents(read_image(file_of(tmp_path / "large.png")))


def resident(pid):
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) * 1024


def test_a_worker_imports_no_torch_and_is_small(reading, picture):
    reading(picture)
    (pid,) = reading.pids
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "_imaging" in maps
    assert "torch" not in maps
    assert len([*Path(f"/proc/{pid}/task").iterdir()]) == 1
    assert resident(pid) < 50e6


@pytest.mark.thorough
def test_a_worker_has_only_the_descriptors_that_it_needs(reading, picture):
    reading(picture)
    (pid,) = reading.pids
    assert wait_until(lambda: str(picture) not in opened_by(pid))
    assert {re.sub(r"\d+", "", target) for target in opened_by(pid)} <= {"/dev/null", "socket:[]", SHARED}
    limits = Path(f"/proc/{pid}/limits").read_text()
    for name, value in (("core file size", 0), ("file size", 0), ("address space", decode_pool.MEMORY_BYTES)):
        assert re.search(rf"Max {name} +{value} +{value} ", limits), limits


@pytest.mark.thorough
def test_a_worker_does_not_import_the_main_module(picture, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "print('imported')\n"
        "from fmapviz.types import ImageFile\n"
        "from fmapviz.images.decode_pool import DecodePool\n"
        "with DecodePool() as pool:\n"
        "    print(pool.read(ImageFile(sys.argv[1], ''), channels=3, notify=print).pixels.size)\n"
    )
    process = subprocess.run([sys.executable, script, picture], capture_output=True, check=True, timeout=PATIENCE)
    assert (process.stdout, process.stderr) == (b"imported\n(80, 60)\n", b"")


# --- decoders that fail


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "ended"),
    [
        ("crash", "crashed (SIGSEGV)"),
        ("abort", "crashed (SIGABRT)"),
        ("leave", "exited with code 7"),
        ("say " + "[" * 5000, "returned an invalid answer"),
        ('say ["RGB", 100000, 100000, 1, [], 1]', "returned an invalid answer"),
        ('say ["RGB", 8, 8, 1, [], 9]', "returned an invalid answer"),
        *thorough(
            ("say [[1, 2], 3]", "returned an invalid answer"),
            ("say " + "1" * 5000, "returned an invalid answer"),
            ('say ["RGB", 8, -8, 1, [], 1]', "returned an invalid answer"),
            ('say ["CMYK", 8, 8, 1, [], 1]', "returned an invalid answer"),
            ('say ["L", 8, 8, 1, [], 1]', "returned an invalid answer"),
            ('say ["F", 9000, 9000, 4, [], 1]', "returned an invalid answer"),
            ('say ["RGB", 8, 8, 1, []]', "returned an invalid answer"),
            ('say ["RGB", 8, 8, 1, [], 0]', "returned an invalid answer"),
            ('say ["RGB", 8, 8, 1, [], 6.0]', "returned an invalid answer"),
            ('say ["../..", "message", null]', "returned an invalid answer"),
        ),
    ],
)
def test_a_decoder_that_fails_costs_one_image(words, ended, reading, picture, tmp_path):
    hostile = saying(tmp_path / "hostile.png", words)
    expected = contents(reading(picture))
    code, message, _ = answer(reading, hostile)
    assert (code, message) == ("E_DECODE", f"the decoder {ended}: '{hostile}'")
    assert reading.pids == []
    assert contents(reading(picture)) == expected
    assert len(reading.pids) == 1


@pytest.mark.thorough
def test_a_decoder_that_hangs_costs_one_image(reading, picture, tmp_path, monkeypatch):
    hostile = saying(tmp_path / "hostile.png", "hang")
    expected = contents(reading(picture))
    with monkeypatch.context() as patch:
        patch.setattr(decode_pool, "TIMEOUT_SECONDS", 0.3)
        assert answer(reading, hostile)[:2] == ("E_DECODE", f"the decoder did not finish within 0.3 s: '{hostile}'")
    assert reading.pids == []
    assert contents(reading(picture)) == expected
    assert len(reading.pids) == 1


def test_messages_of_a_worker_are_made_printable(reading, tmp_path):
    refused = saying(tmp_path / "a.png", 'say ["E_FORMAT", "no\\u001b[31m", "hint\\n"]')
    assert answer(reading, refused) == ("E_FORMAT", rf"no\x1b[31m: '{refused}'", r"hint\n")
    assert wait_until(lambda: reading.pids == [])
    told = saying(tmp_path / "b.png", 'say ["RGB", 8, 8, 1, ["\\u202enotice"], 1]')
    assert reading(told).notices == (r"\u202enotice",)


@pytest.mark.thorough
def test_output_of_a_decoder_is_discarded(reading, tmp_path, capfd):
    assert reading(saying(tmp_path / "a.png", "print")).pixels.size == (8, 8)
    code, message, _ = answer(reading, saying(tmp_path / "b.png", f"write {tmp_path}/written"))
    assert (code, message) == ("E_READ", f"cannot be read (File too large): '{tmp_path}/b.png'")
    assert (tmp_path / "written").read_bytes() == b""
    assert capfd.readouterr() == ("", "")


@pytest.mark.thorough
def test_the_time_limit_grows_with_pixels_and_file_size(reading, tmp_path, monkeypatch):
    monkeypatch.setattr(decode_pool, "TIMEOUT_SECONDS", 0.1)
    info = PngInfo()
    info.add_text("do", "hang")
    PillowImage.new("L", (1100, 1000)).save(tmp_path / "a.png", pnginfo=info)
    with (tmp_path / "a.png").open("ab") as file:
        file.truncate(100_000)
    assert "did not finish within 1.3 s" in answer(reading, tmp_path / "a.png")[1]


@pytest.mark.thorough
def test_the_memory_of_a_worker_is_bounded(own_workers, monkeypatch, tmp_path):
    monkeypatch.setattr(decode_pool, "MEMORY_BYTES", SHARED_BYTES + 250 * 2**20)
    PillowImage.new("1", (9000, 9000)).save(tmp_path / "large.png")
    PillowImage.new("RGB", (900, 900)).save(tmp_path / "small.png")
    with DecodePool() as pool:
        for _ in range(2):
            with pytest.raises(InputError, match="not enough memory: ") as caught:
                pool.read(file_of(tmp_path / "large.png"), channels=3, notify=unexpected)
            assert caught.value.code == "E_TOO_LARGE"
            assert pool.read(file_of(tmp_path / "small.png"), channels=3, notify=unexpected).pixels.size == (900, 900)


@pytest.mark.thorough
def test_no_format_needs_all_of_pillow():
    program = """
from PIL import Image
from fmapviz.images.decode import FORMATS
from fmapviz.images.decode_worker import _import_decoders
_import_decoders()
assert {*FORMATS} <= {*Image.OPEN}, {*FORMATS} - {*Image.OPEN}
assert "EPS" not in Image.OPEN
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


# --- processes that fail


@pytest.mark.thorough
def test_an_idle_worker_that_was_killed_is_replaced(reading, picture):
    expected = contents(reading(picture))
    (worker,) = reading.pids
    os.kill(worker, signal.SIGKILL)
    assert wait_until(lambda: reading.pids == [])
    assert contents(reading(picture)) == expected
    assert len(reading.pids) == 1
    assert reading.pids != [worker]


@pytest.mark.thorough
def test_a_worker_that_was_killed_before_its_first_image_costs_no_image(own_workers, picture):
    decode_pool.start()
    (worker,) = decode_pool._kept
    os.kill(worker._process.pid, signal.SIGKILL)
    with DecodePool() as pool:
        assert contents(Reader(pool)(picture)) == contents(read_image(file_of(picture)))
    decode_pool.stop()


class FirstOne:
    """Added to a time, another number of seconds the first time than later."""

    def __init__(self, first, later):
        self._seconds = chain([first], repeat(later))

    def __radd__(self, time):
        return time + next(self._seconds)


@pytest.mark.thorough
def test_a_worker_that_does_not_start_in_time_is_replaced(own_workers, picture, monkeypatch):
    decode_pool.start()
    (worker,) = decode_pool._kept
    os.kill(worker._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(decode_pool, "START_SECONDS", FirstOne(0.5, PATIENCE))
    with DecodePool() as pool:
        assert contents(Reader(pool)(picture)) == contents(read_image(file_of(picture)))
    decode_pool.stop()


@pytest.mark.thorough
def test_a_worker_that_was_killed_at_work_costs_its_image(reading, picture, tmp_path):
    path = saying(tmp_path / "a.png", "hang")
    expected = contents(reading(picture))
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(answer, reading, path)
        assert wait_until(lambda: reading.pool._busy)
        (worker,) = reading.pids
        time.sleep(0.1)
        os.kill(worker, signal.SIGKILL)
        assert result.result()[:2] == ("E_DECODE", f"the decoder crashed (SIGKILL): '{path}'")
    assert contents(reading(picture)) == expected


@pytest.mark.thorough
def test_a_worker_outlives_the_thread_that_needed_it_first(reading, picture):
    with ThreadPoolExecutor(1) as thread:
        expected = thread.submit(lambda: contents(reading(picture))).result()
        workers = reading.pids
    assert contents(reading(picture)) == expected
    assert reading.pids == workers


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/nowhere/python", "No such file or directory"),
        ("/bin/false", "it ended at once"),
        ("", "not a Python interpreter"),
    ],
)
def test_without_workers_images_are_decoded_in_the_thread_with_one_notice(  # noqa: PLR0917
    program, reason, own_workers, folder, monkeypatch, tmp_path
):
    (folder / "text.png").write_text("nothing to see")
    monkeypatch.setattr(sys, "executable", program)
    told = []
    summary = visualize(
        TwoConvolutions(),
        folder,
        out=tmp_path / "out",
        preprocessing=InputOptions(size=(16, 16)),
        to=["png"],
        workers=2,
        on_event=told.append,
    )
    assert (summary.done, summary.failed) == (3, 1)
    assert summary.failures[0].code == "E_FORMAT"
    (notice,) = [event.message for event in told if isinstance(event, Notice) and "decode" in event.message]
    assert reason in notice


@pytest.mark.thorough
def test_a_worker_decodes_without_memory_files_of_linux(monkeypatch, reading, files):
    monkeypatch.delattr(os, "memfd_create")
    expected = [answer(lambda path: read_image(file_of(path)), path) for path in files]
    assert [answer(reading, path) for path in files] == expected


@pytest.mark.thorough
def test_a_worker_decodes_in_a_process_that_ignores_its_children(picture):
    program = """
import signal, sys
from fmapviz.images.decode_pool import DecodePool
from fmapviz.types import ImageFile
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
with DecodePool() as pool:
    print(pool.read(ImageFile(sys.argv[1], ""), channels=3, notify=print).pixels.size)
"""
    process = subprocess.run([sys.executable, "-c", program, picture], capture_output=True, check=True, timeout=PATIENCE)
    assert (process.stdout, process.stderr) == (b"(80, 60)\n", b"")


# --- its end


@pytest.mark.parametrize("kept", [True, False])
def test_closing_does_not_wait_for_a_decoder(kept, monkeypatch, tmp_path):
    if not kept:
        monkeypatch.setattr(decode_pool, "_keeps_workers", threading.Event())
    before, answers = offspring(), []
    hostile = saying(tmp_path / "hostile.png", "hang")
    with DecodePool() as pool:
        read = Reader(pool)
        thread = threading.Thread(target=lambda: answers.append(answer(read, hostile)))
        thread.start()
        assert wait_until(lambda: pool._busy)
    assert offspring() == before
    thread.join(PATIENCE)
    assert answers[0][0] == "E_DECODE"
    with pytest.raises(InputError, match="the run has ended"):
        read(hostile)


@pytest.mark.thorough
@pytest.mark.usefixtures("own_workers")
def test_a_worker_returned_after_closing_leaves_nothing_open(picture):
    """A reading thread may be overtaken by the thread that closes the pool."""
    before = descriptors(), offspring()
    with DecodePool() as pool:
        Reader(pool)(picture)
        worker = pool._claim()
    pool._put_back(worker)
    assert (descriptors(), offspring()) == before


@pytest.mark.thorough
def test_a_worker_that_was_started_before_serves_all_runs(picture):
    decode_pool.start()
    before = offspring()
    decode_pool.start()
    assert offspring() == before
    with DecodePool() as one, DecodePool() as other:
        for read in (Reader(one), Reader(other)) * 2:
            read(picture)
            assert read.pids == [before[-1]]  # they take turns
    assert offspring() == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", ["", "leave"])
def test_workers_wait_for_the_next_run(words, picture, tmp_path):
    expected = [contents(read_image(file_of(picture)))] * 8
    with DecodePool() as pool, ThreadPoolExecutor(2) as threads:
        read = Reader(pool)
        assert [*threads.map(lambda _: contents(read(picture)), range(8))] == expected
        if words:
            assert answer(read, saying(tmp_path / "a.png", words))[0] == "E_DECODE"
            assert [contents(read(picture))] == expected[:1]
        waiting = read.pids
    assert 1 <= len(waiting) <= 2
    with DecodePool() as pool:
        read = Reader(pool)
        assert [contents(read(picture))] == expected[:1]
        assert sorted(read.pids) == sorted(waiting)


@pytest.mark.thorough
@pytest.mark.usefixtures("plain_malloc")
def test_workers_return_their_memory_before_the_next_run(tmp_path):
    PillowImage.new("RGB", (3000, 2000), "white").save(tmp_path / "large.png", compress_level=1)
    with DecodePool() as pool:
        read = Reader(pool)
        read(tmp_path / "large.png")
        (pid,) = read.pids
        assert resident(pid) > 50e6
    assert wait_until(lambda: resident(pid) < 50e6)


@pytest.mark.thorough
def test_a_forked_process_does_not_use_the_workers_of_its_parent(picture):
    program = """
import os, sys
from fmapviz.images import decode_pool
from fmapviz.images.arrays import scale
from fmapviz.types import ImageFile
decode_pool.start()
read = lambda pool: pool.read(ImageFile(sys.argv[1], ""), channels=3, notify=print).pixels.size
with decode_pool.DecodePool() as pool:
    read(pool)
    child = os.fork()
    if child == 0:
        pool.__exit__()
        with decode_pool.DecodePool() as other:
            read(other)
        sys.exit(5)
    pids = lambda: [worker._process.pid for worker in pool._idle]
    before = pids()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), read(pool), pids() == before)
"""
    quiet = ("-W", "ignore:This process:DeprecationWarning")  # since Python 3.12, of a fork beside threads
    process = subprocess.run(
        [sys.executable, *quiet, "-c", program, picture], capture_output=True, check=True, timeout=PATIENCE
    )
    assert (process.stdout, process.stderr) == (b"5 (80, 60) True\n", b"")


COMMAND = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_DFL)  # see HEEDING in warm.py
os.setsid()
Path("pid").write_text(str(os.getpid()))
from fmapviz.images import decode_pool
from fmapviz.images.arrays import scale
from fmapviz.cli.app import main
decode_pool.TIMEOUT_SECONDS = float(sys.argv.pop(1))
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
    """Run the command in a process of its own; return its exit code and what it says on standard error."""

    def run(seconds):
        arguments = ["-c", COMMAND, str(seconds), *ARGUMENTS, "--workers", "2"]
        with (tmp_path / "streams").open("w+b") as streams, (tmp_path / "errors").open("w+b") as errors:
            places = [streams.fileno(), streams.fileno(), errors.fileno()]
            code = ask(warm, arguments, directory=tmp_path, streams=places, timeout=PATIENCE)
        return code, (tmp_path / "errors").read_text()

    return run


@pytest.mark.thorough
def test_a_run_continues_after_a_crash_and_a_hang_of_a_decoder(command, pictures, tmp_path):
    code, errors = command(0.5)
    assert code == 3
    assert "Traceback" not in errors
    rows = [json.loads(row) for row in (tmp_path / "runs/run/failures.jsonl").read_text().splitlines()]
    assert sorted((row["path"], row["code"], row["message"]) for row in rows) == [
        (f"{pictures}/b.png", "E_DECODE", f"the decoder crashed (SIGSEGV): '{pictures}/b.png'"),
        (f"{pictures}/e.png", "E_DECODE", f"the decoder did not finish within 0.5 s: '{pictures}/e.png'"),
    ]
    assert sorted(path.name for path in (tmp_path / "runs/run").iterdir() if path.is_dir()) == [f"{n}.png" for n in "acdf"]


@contextmanager
def hanging(command, tmp_path):
    """Begin a command; return its process when only the decoder that hangs is left; wait until that has gone as well."""
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(command, 10 * PATIENCE)  # whoever waits for that decoder hangs
        assert wait_until(lambda: (tmp_path / "runs/run/f.png").exists() or ended.done())
        assert not ended.done(), ended.result()
        pid = int((tmp_path / "pid").read_text())
        processes = offspring(pid)
        assert processes
        yield pid, ended
        assert wait_until(lambda: not {*processes} & {*parents()})


@pytest.mark.thorough
def test_a_run_that_is_killed_leaves_no_process(command, tmp_path):
    with hanging(command, tmp_path) as (pid, ended):
        os.kill(pid, signal.SIGKILL)
    assert ended.result()[0] == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, *thorough(signal.SIGTERM)])
@pytest.mark.thorough
def test_a_run_that_is_interrupted_at_the_terminal_leaves_no_process(number, command, tmp_path):
    with hanging(command, tmp_path) as (pid, ended):
        os.killpg(pid, number)  # as a terminal does
        code, errors = ended.result()
    assert code == 128 + number
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted")


@pytest.mark.thorough
def test_signals_of_the_terminal_do_not_reach_workers(reading, picture):
    reading(picture)
    assert [os.getpgid(pid) for pid in reading.pids] == reading.pids


@pytest.mark.thorough
def test_a_run_that_ends_with_an_error_leaves_no_process(own_workers, picture, tmp_path):
    before = offspring()

    def fail(event):
        assert not hasattr(event, "status"), "that will do"

    with pytest.raises(AssertionError, match="that will do"):
        visualize(
            TwoConvolutions(), picture, out=tmp_path, preprocessing=InputOptions(size=(16, 16)), to=["png"], on_event=fail
        )
    assert offspring() == before
