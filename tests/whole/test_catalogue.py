"""The catalogue of faults: errors in images, names, lists, models and disks, and the results of the command.

Each case is run as somebody types it, and compared whole: exit code, lines on standard error, rows of failures.jsonl, and
every file below OUT. CATALOGUE, at the end, names the tests of each entry, here and in other files.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from bad_images import ZOO, animation, broken_exif, encoded, make_good, oriented, picture
from cases import thorough
from checkpoint_files import Malice
from json_lines import check_lines
from PIL import Image
from torchvision import models
from waiting import PATIENCE
from warm import ask

from fmapviz.core.checksummed_json import dumps
from fmapviz.core.file_names import HIDDEN
from fmapviz.store.unfinished import is_record

NETWORKS = """
import os
import time
from pathlib import Path

import torch
from torch import nn


def build():
    Path("built").touch()
    return nn.Sequential(nn.Conv2d(3, 2, 3, padding=1))


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(9, 2, 3)

    def forward(self, x):
        return self.third(self.second(self.first(x)))


class Particular(nn.Module):
    # Fails for pictures without any light.
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x):
        if x.std((2, 3)).max() == 0:
            raise ValueError("nothing to see")
        return self.conv(x)


class Endless(nn.Module):
    # Gives NaN, infinity and numbers, a channel each.
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.conv.bias.data[:2] = torch.tensor([torch.nan, torch.inf])

    def forward(self, x):
        return self.conv(x)


class Hungry(nn.Module):
    # Wants more memory than there is for more than so many images.
    def __init__(self, most):
        super().__init__()
        self.most, self.conv = most, nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x):
        if len(x) > self.most:
            torch.empty(1 << 60)
        return self.conv(x)


class Hangs(nn.Module):
    # Tells its process, and takes long.
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        Path("process.partial").write_text(str(os.getpid()))
        Path("process.partial").rename("process")
        time.sleep(60)


class Thief(nn.Module):
    # Removes a picture while others are drawn.
    def __init__(self, path):
        super().__init__()
        self.path, self.conv = Path(path), nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x):
        self.path.unlink(missing_ok=True)
        return self.conv(x)


def named():
    network = nn.Sequential()
    for name in ("..", "a/b", "a_b", "../../up", "/etc", "\\x1b[31m", "x" * 10_000):
        network._modules[name] = nn.Conv2d(3, 3, 1)
    return network
"""

AS_IT_IS = ("--mean", "0", "--std", "1")  # without a notice that a network of this file says nothing of its preprocessing
BEHAVED = ("--to", "png", "--size", "16", *AS_IT_IS, "--out", "out", "--name", "run")
RANDOM = ("--weights", "random")  # without a notice about weights
RUN = ("net.py:build", *RANDOM, *BEHAVED)
MAIN = "from fmapviz.cli.app import main; main()"
# Root, too, may not read and write everything once it has given up its capabilities: capset(2), version 3, none.
UNPRIVILEGED = f"""
import ctypes, os
version, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert os.geteuid() or not ctypes.CDLL(None).capset(version, none)
{MAIN}
"""
LIMITED = f"import sys; from resource import *; n = int(sys.argv.pop()); setrlimit(RLIMIT_FSIZE, (n, n)); {MAIN}"
OFFLINE = {"https_proxy": "http://127.0.0.1:9"}  # where nobody listens
GRID = {"00_0.maps.png", "input.png", "unit.json"}
CONV = {"00_conv.maps.png", "input.png", "unit.json"}


def once(words):
    """Leave out an option of `RUN` that is set again, with its value: two values of one option are refused."""
    words = list(map(str, words))
    again = {at for at, word in enumerate(words) if word.startswith("--") and word in words[at + 1 :]}
    return [word for at, word in enumerate(words) if not {at, at - 1} & again]


@dataclass(frozen=True)
class Ended:
    """How a command ended, with paths as they are below the directory it ran in, and without its time.

    `said` has no lines of JSON, which are the `events`.
    """

    code: int
    events: list[dict]
    said: list[str]
    told: list[str]

    @property
    def complaints(self):
        """Return the lines on standard error, sorted, without the one that counts."""
        assert not any("Traceback" in line for line in self.told)
        return sorted(self.told[:-1])


class House:
    """A directory to run commands in, with networks."""

    def __init__(self, place, warm):
        self.place, self.warm = place, warm
        (place / "net.py").write_text(NETWORKS)
        (place / "in").mkdir()

    def run(self, *args, stdin=b"", program=None, json=True, **environment):
        """Run a command, by default with `--json` if it draws, and compare the lines of `--json` with their schema."""
        draws = json and MAIN in (program or MAIN) and args[0] not in {"-c", "verify", "runs", "extract"}
        if draws and "--json" not in args:
            args = (args[0], "--json", *args[1:])
        environment = {**os.environ, "TORCH_HOME": str(self.place / "home"), **environment}
        arguments = [*(("-c", program) if program else ()), *once(args)]
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            streams = [stream.fileno() for stream in (given, out, err)]
            code = ask(self.warm, arguments, environment=environment, directory=self.place, streams=streams)
            events = check_lines(args, self._read(out).encode(), code=code)
            said, told = (self._shorten(stream) for stream in (out, err))
        return Ended(code, events, [] if events else said, told)

    def _read(self, stream):
        stream.seek(0)
        return stream.read().decode().replace(f"{self.place}/", "")

    def _shorten(self, stream):
        return re.sub(r" in \d+\.\d s$", "", self._read(stream), flags=re.MULTILINE).splitlines()

    def tree(self, top="out"):
        """Name every file, and every folder with nothing in it."""
        found = set()
        for here, folders, files in os.walk(self.place / top):
            relative = Path(here).relative_to(self.place)
            found |= {str(relative / name) for name in files}
            if not folders and not files:
                found.add(f"{relative}/")
        return found

    def failures(self, run="run"):
        """Return the path and the code of each row."""
        path = self.place / "out" / run / "failures.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        assert all(set(row) - {"report"} == {"time", "path", "code", "message", "hint", "sha256"} for row in rows)
        return sorted((row["path"].removeprefix(f"{self.place}/"), row["code"]) for row in rows)

    def pixels(self, unit, name="input.png"):
        with Image.open(self.place / "out/run" / unit / name) as image:
            return np.asarray(image.convert("RGB"))


def tree_of(*units, failures=False, files=frozenset(GRID)):
    """Name what a run has that drew these images."""
    noted = {"out/run/failures.jsonl"} if failures else set()
    return {"out/run/run.json"} | noted | {f"out/run/{unit}/{file}" for unit in units for file in files}


def unfinished(tree):
    """Return the tree of a run without the record that its one command has not finished, which must be there."""
    (record,) = (path for path in tree if is_record(Path(path).name))
    return tree - {record}


def fits(line, pattern):
    """Compare a line with one in which ... stands for a message of Pillow or torch."""
    return re.fullmatch(re.escape(pattern).replace(re.escape("..."), ".+"), line) is not None


@pytest.fixture
def house(tmp_path, warm):
    return House(tmp_path, warm)


# --- Images that cannot be read: the others go on, exit 3; one alone, exit 4


def link(target):
    return lambda path: path.symlink_to(target)


def listen(path):
    with socket.socket(socket.AF_UNIX) as listening:
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket must be short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(before)


def from_zoo(path):
    path.write_bytes(ZOO[path.name][1]())


DAMAGED = "image is damaged (...)"
AT_BEGINNING = "image is damaged at its beginning"
FOREIGN = "not an image, or of an unknown format"

REFUSED = (
    # zero bytes
    ("empty.png", from_zoo, "E_EMPTY", "file is empty"),
    # text named .jpg
    ("text.jpg", from_zoo, "E_FORMAT", FOREIGN),
    ("noise.png", from_zoo, "E_FORMAT", FOREIGN),
    ("zeros.tga", from_zoo, "E_FORMAT", FOREIGN),
    ("page.png", from_zoo, "E_FORMAT", FOREIGN),
    ("icon.png", from_zoo, "E_FORMAT", FOREIGN),
    # JPEG cut at half, PNG with a flipped byte: never a half-grey map
    ("half.jpg", from_zoo, "E_DECODE", DAMAGED),
    ("half.png", from_zoo, "E_DECODE", DAMAGED),
    ("half.gif", from_zoo, "E_DECODE", DAMAGED),
    ("half.webp", from_zoo, "E_DECODE", DAMAGED),
    ("half.avif", from_zoo, "E_DECODE", AT_BEGINNING),
    ("half.tif", from_zoo, "E_DECODE", AT_BEGINNING),
    ("flipped header.png", from_zoo, "E_DECODE", AT_BEGINNING),
    ("flipped pixel.png", from_zoo, "E_DECODE", DAMAGED),
    ("flipped checksum.png", from_zoo, "E_DECODE", DAMAGED),
    # 30000 x 30000 1-bit PNG, PNG text bomb
    ("pixels.png", from_zoo, "E_TOO_LARGE", "more than 89,478,485 pixels"),
    ("text.png", from_zoo, "E_TOO_LARGE", "more than a megabyte of text around the pixels"),
    ("texts.png", from_zoo, "E_TOO_LARGE", "more than a megabyte of text around the pixels"),
    # PDF, EPS and SVG are never opened
    ("document.png", from_zoo, "E_FORMAT", FOREIGN),
    ("postscript.png", from_zoo, "E_FORMAT", FOREIGN),
    ("drawing.png", from_zoo, "E_FORMAT", FOREIGN),
    # FIFO, socket, device, a link to /dev/zero: passed over, never waited for
    ("fifo.png", os.mkfifo, "E_TYPE", "not a regular file"),
    ("socket.png", listen, "E_TYPE", "not a regular file"),
    ("null.png", link("/dev/null"), "E_TYPE", "not a regular file"),
    ("zero.png", link("/dev/zero"), "E_TYPE", "not a regular file"),
    # a symlink loop, a dangling link
    ("dangling.png", link("nowhere.png"), "E_MISSING", "no such file"),
    ("loop.png", link("loop.png"), "E_READ", f"cannot be read ({os.strerror(errno.ELOOP)})"),
)


@pytest.mark.thorough
def test_images_that_cannot_be_read_do_not_stop_the_others(house):
    make_good(house.place / "in/a first.png")
    make_good(house.place / "in/z last.png")
    for name, make, _, _ in REFUSED:
        make(house.place / "in" / name)
    ended = house.run(*RUN, "in")
    lines = {name: f"error: {message}: 'in/{name}' [{code}]" for name, _, code, message in REFUSED}
    told = {line.rpartition("'in/")[2].partition("'")[0]: line for line in ended.complaints}
    count = len(REFUSED)
    assert (ended.code, len(ended.complaints), told.keys()) == (3, count, lines.keys())
    assert {name: line for name, line in told.items() if not fits(line, lines[name])} == {}
    assert ended.told[-1] == f"{count + 2} images: 2 done, {count} failed; 1 layer, 4 pictures"
    assert house.failures() == sorted((f"in/{name}", code) for name, _, code, _ in REFUSED)
    assert house.tree() == tree_of("a first.png", "z last.png", failures=True)


# One command after the other in one process, which is ten times as fast.
ONE_BY_ONE = """
import json, sys
from fmapviz.cli.app import _main
for line in sys.argv[1:]:
    sys.argv = ["fmapviz", *json.loads(line)]
    code = _main()
    print(f"exit code {code}", file=sys.stderr)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("refused", [REFUSED[::9], *thorough((REFUSED,))], ids=["some", "all"])
def test_a_single_unreadable_image_fails_the_run(house, refused):
    for name, make, _, _ in refused:
        make(house.place / "in" / name)
    runs = [json.dumps(once([*RUN, f"in/{name}", "--name", f"run of {name}"])) for name, *_ in refused]
    told = house.run(*runs, program=ONE_BY_ONE).told
    assert len(told) == 3 * len(refused)
    for (name, _, code, message), line, count, ended in zip(refused, told[::3], told[1::3], told[2::3], strict=True):
        assert fits(line, f"error: {message}: 'in/{name}' [{code}]")
        assert (count, ended) == ("1 image failed", "exit code 4")
        assert house.failures(f"run of {name}") == [(f"in/{name}", code)]
    left = {f"out/run of {name}/{file}" for name, *_ in refused for file in ("run.json", "failures.jsonl")}
    assert house.tree() == left


@pytest.mark.thorough
def test_files_without_permission_are_failures(house):
    for path in ("in/closed.png", "in/open.png", "in/shut/inside.png"):
        (house.place / path).parent.mkdir(exist_ok=True)
        make_good(house.place / path)
    (house.place / "in/closed.png").chmod(0)
    (house.place / "in/shut").chmod(0)
    ended = house.run(*RUN, "in", program=UNPRIVILEGED)
    alone = house.run(*RUN[:-1], "alone", "in/closed.png", program=UNPRIVILEGED)
    (house.place / "in/shut").chmod(0o755)  # pytest removes it
    closed = "error: no permission to read: 'in/closed.png' [E_PERM]"
    assert ended.code == 3
    assert ended.complaints == [closed, "error: no permission to read: 'in/shut' [E_PERM]"]
    assert house.failures() == [("in/closed.png", "E_PERM"), ("in/shut", "E_PERM")]
    assert (alone.code, alone.told) == (4, [closed, "1 image failed"])
    left = {"out/alone/run.json", "out/alone/failures.jsonl"}
    assert house.tree() == tree_of("open.png", failures=True) | left


@pytest.mark.thorough
def test_an_image_deleted_between_listing_and_opening_is_a_failure(house):
    for number in range(30):
        make_good(house.place / f"in/{number}.png")
    ended = house.run("net.py:Thief(path='in/29.png')", *RANDOM, *BEHAVED, "--workers", "1", "in")
    assert (ended.code, ended.complaints) == (3, ["error: no such file: 'in/29.png' [E_MISSING]"])
    assert house.failures() == [("in/29.png", "E_MISSING")]
    assert house.tree() == tree_of(*(f"{number}.png" for number in range(29)), failures=True, files=CONV)


@pytest.mark.thorough
def test_heic_without_its_package_is_a_failure_with_a_hint(house):
    (house.place / "in/photo.heic").write_bytes(b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(500))
    (house.place / "absent").mkdir()
    (house.place / "absent/pillow_heif.py").write_text("raise ImportError")
    ended = house.run(*RUN, "in/photo.heic", program=f"import sys; sys.path.insert(0, 'absent'); {MAIN}")
    assert ended.code == 4
    assert ended.told == [
        "error: HEIC needs one more package: 'in/photo.heic' [E_FORMAT]",
        "hint: pip install 'fmapviz[heic]'",
        "1 image failed",
    ]
    assert house.tree() == tree_of(failures=True)


def test_an_empty_folder_is_an_error(house):
    ended = house.run(*RUN, "in")
    assert (ended.code, ended.said) == (4, [])
    assert ended.told == [
        "error: no image among the inputs",
        "hint: folders are searched for files such as .jpg, .png, .webp",
    ]
    assert house.tree() == set()


# --- Images that are only unusual: all are drawn, with a notice where something had to be decided


def row(*pixels):
    """One row of pixels."""
    return np.array([pixels], dtype=np.uint8)


def grey(*values):
    return row(*([value] * 3 for value in values))


def stored(mode, *values, palette=None, transparency=None):
    """A picture of one row, as Pillow holds it."""
    image = Image.new(mode, (len(values), 1))
    if palette:
        image.putpalette(palette)
    image.putdata(values)
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


RED = row(*[(255, 0, 0)] * 8)
FLOATS = Image.fromarray(np.array([[-1.0, 0.0, 3.0]], dtype=np.float32))
DEEP = np.array([[1000, 2000, 3000]], dtype=np.uint16)
PALETTE = [9, 8, 7, 60, 50, 40]
SEVERAL = "holds several pictures: only the first is used"
DEPTH = "more than 8 bits per channel: {} scaled to 0..1"
LONG = np.arange(30_000, dtype=np.uint32).astype(np.uint8).reshape(1, 10_000, 3)

UNUSUAL = (
    # EXIF orientation 1 to 8: eight equal outputs
    *((f"turned {n}.png", lambda n=n: oriented(picture(), n, "PNG"), None, picture()) for n in range(1, 9)),
    # broken EXIF
    ("exif.png", lambda: broken_exif("PNG"), "EXIF data is damaged: the picture may not be upright", picture()),
    # 16-bit grey PNG, I;16B and float TIFF: scaled by range, not clipped to white
    ("deep.png", lambda: encoded(DEEP, "PNG"), DEPTH.format("1000..3000"), grey(0, 128, 255)),
    (
        "deep.tif",
        lambda: encoded(Image.frombytes("I;16B", (3, 1), DEEP.astype(">u2").tobytes()), "TIFF"),
        DEPTH.format("1000..3000"),
        grey(0, 128, 255),
    ),
    ("float.tif", lambda: encoded(FLOATS, "TIFF"), DEPTH.format("-1..3"), grey(0, 64, 255)),
    # CMYK JPEG, palette with transparency, RGBA, LA, 1-bit: alpha over black
    ("cmyk.jpg", lambda: encoded(stored("CMYK", *[(0, 255, 255, 0)] * 8), "JPEG", quality=100), None, RED),
    (
        "palette.png",
        lambda: encoded(stored("P", 0, 1, palette=PALETTE), "PNG", transparency=1),
        None,
        row((9, 8, 7), (0, 0, 0)),
    ),
    (
        "rgba.png",
        lambda: encoded(stored("RGBA", (200, 100, 50, 255), (200, 100, 50, 128), (200, 100, 50, 0)), "PNG"),
        None,
        row((200, 100, 50), (100, 50, 25), (0, 0, 0)),
    ),
    ("la.png", lambda: encoded(stored("LA", (200, 255), (200, 128), (200, 0)), "PNG"), None, grey(200, 100, 0)),
    ("one bit.png", lambda: encoded(stored("1", 0, 255, 0), "PNG"), None, grey(0, 255, 0)),
    # multi-page TIFF: the first page
    ("several.tif", lambda: animation("TIFF"), SEVERAL, picture(0)),
    # AVIF as it is, HEIC with pillow-heif
    ("modern.avif", lambda: encoded(np.full((16, 16, 3), (90, 120, 150), np.uint8), "AVIF", quality=100), None,
     np.full((16, 16, 3), (90, 120, 150), np.uint8)),
    # 1 x 1 and 1 x 10000 pixels
    ("dot.png", lambda: encoded(row((1, 2, 3)), "PNG"), None, row((1, 2, 3))),
    ("line.png", lambda: encoded(LONG, "PNG"), None, LONG),
    ("column.png", lambda: encoded(LONG.swapaxes(0, 1), "PNG"), None, LONG.swapaxes(0, 1)),
    # a JPEG named .png: by content
    ("photo.png", lambda: encoded(np.full((16, 16, 3), (90, 120, 150), np.uint8), "JPEG", quality=100), None,
     np.full((16, 16, 3), (90, 120, 150), np.uint8)),
)  # fmt: skip
LOSSY = {"cmyk.jpg", "modern.avif", "photo.png"}


@pytest.mark.thorough
def test_images_that_are_only_unusual_are_drawn_by_rule(house):
    for name, content, _, _ in UNUSUAL:
        (house.place / "in" / name).write_bytes(content())
    whole = ("--fit", "none", *AS_IT_IS)
    ended = house.run("net.py:build", *RANDOM, "--to", "png", "--out", "out", "--name", "run", *whole, "in")
    assert ended.code == 0
    of_images = [f"notice: in/{name}: {notice}" for name, _, notice, _ in UNUSUAL if notice]
    assert ended.complaints == sorted(
        [*of_images, "notice: transparent pixels are laid over black"]
    )  # once, of three images
    assert house.tree() == tree_of(*(name for name, *_ in UNUSUAL))
    for name, _, _, expected in UNUSUAL:
        if expected is not None:
            pixels = house.pixels(name)
            assert pixels.shape == expected.shape, name
            np.testing.assert_allclose(pixels, expected, atol=3 if name in LOSSY else 0, err_msg=name)
    turned = [house.pixels(f"turned {n}.png", "00_0.maps.png") for n in range(1, 9)]
    assert all(np.array_equal(other, turned[0]) for other in turned)


@pytest.mark.thorough
def test_heic_with_its_package_is_drawn(house):
    from extras import pillow_heif

    pillow_heif.from_pillow(Image.fromarray(picture())).save(house.place / "in/photo.heic", quality=95)
    ended = house.run(*RUN, "in")
    assert (ended.code, ended.complaints) == (0, [])
    assert house.tree() == tree_of("photo.heic")


@pytest.mark.thorough
def test_ghostscript_does_not_start(house):
    (house.place / "bin").mkdir()
    (house.place / "bin/gs").write_text(f"#!/bin/sh\ntouch '{house.place}/started'\nexit 1\n")
    (house.place / "bin/gs").chmod(0o755)
    (house.place / "in/page.jpg").write_bytes(encoded(picture(), "EPS"))
    path = f"{house.place}/bin:{os.environ['PATH']}"
    ended = house.run(*RUN, "in", PATH=path)
    assert (ended.code, ended.complaints) == (4, [f"error: {FOREIGN}: 'in/page.jpg' [E_FORMAT]"])
    program = "import sys; from PIL import Image; Image.open(sys.argv[1]).load()"
    assert not (house.place / "started").exists()
    assert house.run("in/page.jpg", program=program, PATH=path).code == 1
    assert (house.place / "started").exists(), "this test does not test anything"


@pytest.mark.thorough
def test_each_file_is_drawn_once(house):
    for path in ("in/a.png", "in/b/c.png"):
        (house.place / path).parent.mkdir(exist_ok=True)
        make_good(house.place / path)
    (house.place / "in/loop").symlink_to(".")
    ended = house.run(*RUN, "in", "in/b", "in/a.png", "in/b/c.png", "in/../in/a.png", "in/loop/b")
    assert (ended.code, ended.told) == (0, ["2 images done: 1 layer, 4 pictures"])
    assert house.tree() == tree_of("a.png", "b/c.png")


# --- Names


def hashed(house, name):
    """Eight digits of the hash of a source's path."""
    return house.run("-c", str(house.place / name), program=_HASH).said[0]


_HASH = "import hashlib, os, sys; print(hashlib.sha256(os.fsencode(sys.argv[2])).hexdigest()[:8])"


@pytest.mark.thorough
def test_equal_names_in_different_folders_have_different_units(house):
    for folder in "ab":
        (house.place / "in" / folder).mkdir()
        make_good(house.place / "in" / folder / "x.png")
    assert house.run(*RUN, "in").code == 0
    assert house.tree() == tree_of("a/x.png", "b/x.png")
    shutil.rmtree(house.place / "out")
    ended = house.run(*RUN, "in/a/x.png", "in/b/x.png")
    assert (ended.code, ended.told) == (0, ["2 images done: 1 layer, 4 pictures"])
    assert house.tree() == tree_of("x.png", f"x.png~{hashed(house, 'in/b/x.png')}")


ALIKE = ("x.png", "x.jpg", "X.png", "X.PNG", "\u00e9.png", "e\u0301.png")


@pytest.mark.thorough
def test_names_that_are_almost_equal_have_different_units(house):
    for name in ALIKE:
        make_good(house.place / "in" / name)
    if len([*(house.place / "in").iterdir()]) < len(ALIKE):
        pytest.skip("the file system takes some of these names for one")
    ended = house.run(*RUN, "in")
    assert (ended.code, ended.told) == (0, ["6 images done: 1 layer, 12 pictures"])
    distinct = {name: f"{name}~{hashed(house, f'in/{name}')}" for name in ALIKE}
    plain = {"x.jpg": "x.jpg", "X.PNG": "X.PNG", "e\u0301.png": "e\u0301.png"}  # the first of each kind, as they are listed
    assert house.tree() == tree_of(*(distinct | plain).values())


@pytest.mark.thorough
def test_the_longest_names_are_drawn(house):
    name = "n" * 251 + ".png"
    make_good(house.place / "in" / name)
    ended = house.run(*RUN, "in", "x" * 300 + ".png", "y/" * 3000)
    unit = f"{'n' * 160}~{hashed(house, f'in/{name}')}"
    too_long = os.strerror(errno.ENAMETOOLONG)
    paths = ("x" * 300 + ".png", "y/" * 3000)
    assert ended.code == 3
    assert ended.complaints == [f"error: cannot be read ({too_long}): '{path}' [E_READ]" for path in paths]
    assert house.failures() == [(path, "E_READ") for path in paths]
    assert house.tree() == tree_of(unit, failures=True)


@pytest.mark.thorough
def test_control_characters_of_names_are_escaped(house):
    good, bad = "a\n\t\x1b[31m\u202eb.png", "c\r\x1b]0;title\x07\u2066d.png"
    make_good(house.place / "in" / good)
    (house.place / "in" / bad).write_bytes(b"no picture")
    ended = house.run(*RUN, "in", "-v")
    assert ended.code == 3
    escaped = r"in/c\r\x1b]0;title\x07\u2066d.png"
    assert [line for line in ended.told if "error" in line] == [f"error: {FOREIGN}: '{escaped}' [E_FORMAT]"]
    assert any(line.startswith(r"done in/a\n\t\x1b[31m\u202eb.png (2 pictures, ") for line in ended.told)
    assert all(line.isprintable() for line in [*ended.told, *ended.said])
    assert house.failures() == [(f"in/{bad}", "E_FORMAT")]
    assert house.tree() == tree_of(f"a___[31m_b.png~{hashed(house, f'in/{good}')}", failures=True)
    objects = house.run(*RUN, "in").events
    assert {event["path"] for event in objects if event["event"] == "image"} == {f"in/{good}", f"in/{bad}"}


def test_names_that_are_no_text_are_drawn(house):
    name = os.fsdecode(b"\xff\xe4.png")
    make_good(house.place / "in" / name)
    (house.place / "in" / os.fsdecode(b"\xfe.jpg")).write_bytes(b"no picture")
    ended = house.run(*RUN, "in")
    assert (ended.code, ended.complaints) == (3, [rf"error: {FOREIGN}: 'in/\udcfe.jpg' [E_FORMAT]"])
    assert house.failures() == [("in/\udcfe.jpg", "E_FORMAT")]
    (unit,) = {Path(path).parts[2] for path in house.tree()} - {"run.json", "failures.jsonl"}
    assert unit == f"__.png~{hashed(house, f'in/{name}')}"
    record = json.loads((house.place / "out/run" / unit / "unit.json").read_bytes())
    assert os.fsencode(record["unit"]["path"]) == os.fsencode(house.place) + b"/in/\xff\xe4.png"


def test_a_file_named_like_an_option_is_drawn(house):
    make_good(house.place / "-rf.png")
    wrong = house.run(*RUN, "-rf.png")
    assert (wrong.code, wrong.told[0]) == (2, "error: the name of a file begins with a dash: '-rf.png'")
    assert house.tree() == set()
    assert house.run(*RUN, "--", "-rf.png").code == 0
    assert house.tree() == tree_of("-rf.png")


@pytest.mark.thorough
def test_a_name_that_is_html_is_escaped(house):
    hostile = "<img src=x onerror=alert(1)>.png"
    make_good(house.place / "in" / hostile)
    (house.place / "in/<b>&bad.png").write_bytes(b"no picture")
    ended = house.run(*RUN, "in", "--to", "html")
    assert ended.code == 3
    made = {"out/run/index.html", "out/run/products.json"}
    unit = f"_img src=x onerror=alert(1)_.png~{hashed(house, f'in/{hostile}')}"
    assert house.tree() == tree_of(unit, failures=True, files=GRID | {"report.js", "pixels.js"}) | made
    page = (house.place / "out/run/index.html").read_bytes()
    script = (house.place / "out/run" / unit / "report.js").read_bytes()
    for harm in (b"<img src=x", b"<b>&bad", b"onerror=alert(1)>"):
        assert harm not in page + script
    assert page.count(rb"\u003cimg src=x onerror=alert(1)\u003e.png") >= 1


@pytest.mark.thorough
def test_layers_with_harmful_names_are_drawn(house):
    make_good(house.place / "in/a.png")
    before = {path for path in house.place.rglob("*") if "__pycache__" not in str(path)}
    ended = house.run("net.py:named", *RANDOM, *BEHAVED, "in")
    assert (ended.code, ended.told) == (0, ["1 image done: 7 layers, 8 pictures"])
    names = {*house.tree()} - tree_of()
    long = next(name for name in names if "xxx" in name)
    assert re.fullmatch(r"06_x{80,200}~[0-9a-f]{8}\.maps\.png", Path(long).name)
    grids = ("00_..", "01_a%2Fb", "02_a_b", "03_..%2F..%2Fup", "04_%2Fetc", "05_%1B%5B31m")
    files = {*(f"{name}.maps.png" for name in grids), Path(long).name, "input.png", "unit.json"}
    assert house.tree() == tree_of("a.png", files=files)
    after = {path for path in house.place.rglob("*") if not {"out", "__pycache__"} & {*path.parts}}
    assert after == before, "nothing lies anywhere else"
    assert house.run("verify", "out").said[0] == "2 directories, 9 files: all complete and unchanged"


# --- Lists and terminals


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("mark", "options", "separator", "end"),
    [
        (b"", (), "\n", ""),  # no final newline
        (b"\xef\xbb\xbf", (), "\r\n\r\n", "\r\n"),  # empty lines, and what Windows puts before the first
        (b"", ("-0",), "\0", "\0"),
    ],
)
def test_lists_of_files_are_read(mark, options, separator, end, house):
    for name in ("a.png", "b b.png"):
        make_good(house.place / "in" / name)
    listed = mark + (separator.join(("in/a.png", "in/b b.png", "in/gone.png")) + end).encode()
    ended = house.run(*RUN, "-", *options, stdin=listed)
    assert (ended.code, ended.complaints) == (3, ["error: no such file: 'in/gone.png' [E_MISSING]"])
    assert house.tree() == tree_of("a.png", "b b.png", failures=True)


def client(house, *args):
    """Write the command for a shell, as it is run by the server."""
    import warm

    return shlex.join([sys.executable, warm.__file__, house.warm, "run", *map(str, args)])


def bash(house, script):
    result = subprocess.run(["bash", "-c", script], cwd=house.place, capture_output=True, check=False, timeout=PATIENCE)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


@pytest.mark.thorough
def test_a_shell_loop_runs_every_line(house):
    for name in "abc":
        make_good(house.place / f"in/{name}.png")
    code, out, _ = bash(house, f'ls in/*.png | while read f; do {client(house, *RUN)} "$f"; done')
    assert (code, out.splitlines()) == (0, ["out/run"] * 3)
    assert house.tree() == tree_of("a.png", "b.png", "c.png")


@pytest.mark.thorough
def test_a_closed_pipe_of_results_ends_the_command(house):
    for name in "abc":
        make_good(house.place / f"in/{name}.png")
    code, out, err = bash(house, f"{client(house, *RUN, 'in', '--json')} | head -1; exit ${{PIPESTATUS[0]}}")
    assert (code, json.loads(out)["event"]) == (0, "run")
    assert re.fullmatch(r"3 images done: 1 layer, 6 pictures in \d+\.\d s\n", err)
    assert house.tree() == tree_of("a.png", "b.png", "c.png")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams_are_handled(closed, house):
    make_good(house.place / "in/a.png")
    (house.place / "in/b.png").write_bytes(b"")
    names = {0: "stdin", 1: "stdout", 2: "stderr"}
    # As Python does for a process that begins without them.
    program = f"import os, sys; [(os.close(n), setattr(sys, {names}[n], None)) for n in {closed}]; {MAIN}"
    ended = house.run(*RUN, "in", program=program, json=False)
    assert ended.code == 3
    assert ended.said == ([] if 1 in closed else ["out/run"])
    error = "error: file is empty: 'in/b.png' [E_EMPTY]"
    assert ended.told == ([] if 2 in closed else [error, "2 images: 1 done, 1 failed; 1 layer, 2 pictures"])
    assert house.tree() == tree_of("a.png", failures=True)


@pytest.mark.thorough
def test_a_command_runs_in_the_environment_of_cron(house):
    """No HOME, no terminal, no language."""
    make_good(house.place / "in/\u00e4.png")
    command = [sys.executable, "-m", "fmapviz", *RUN, "in"]
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C"} | {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
    result = subprocess.run(command, cwd=house.place, env=environment, capture_output=True, check=False, timeout=PATIENCE)
    assert (result.returncode, result.stdout) == (0, b"out/run\n")
    assert re.fullmatch(rb"1 image done: 1 layer, 2 pictures in \d+\.\d s\n", result.stderr)
    assert house.tree() == tree_of("\u00e4.png")


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (("alexnt", "in/a.png"), 2, "no such model: 'alexnt'"),
        ((*RUN, "in/a.png", "--bogus"), 2, "no such option: '--bogus'"),
        ((*RUN, "empty"), 4, "no image among the inputs"),
        ((*RUN, "in/a.png", "--out", "net.py"), 5, "not a directory: 'net.py'"),
        (("verify", "empty"), 2, "no run of fmapviz: 'empty'"),
    ],
)
def test_json_ends_with_its_summary_after_a_fatal_error(args, code, error, house):
    make_good(house.place / "in/a.png")
    (house.place / "empty").mkdir()
    ended = house.run(*args, "--json")
    (summary,) = ended.events
    assert (ended.code, ended.told[0]) == (code, f"error: {error}")
    assert (summary["event"], summary["exit_code"]) == ("summary", code)
    assert summary["error"].replace(f"{house.place}/", "") == error
    assert house.tree() == set()


def test_json_accounts_for_every_image(house):
    make_good(house.place / "in/a.png")
    (house.place / "in/b.png").write_bytes(b"")
    ended = house.run(*RUN, "in", "--json")
    begun, *images, summary = ended.events
    assert (begun["event"], summary["event"]) == ("run", "summary")
    assert sorted((image["status"], image.get("code")) for image in images) == [("done", None), ("failed", "E_EMPTY")]
    assert [summary[key] for key in ("found", "done", "failed", "skipped", "exit_code")] == [2, 1, 1, 0, 3]


# --- Models

UNKNOWN = (
    (("alexnt", "in/a.png"), "no such model: 'alexnt'", "did you mean 'alexnet', 'shapesnet', 'googlenet'?"),
    ((*RUN, "in/a.png", "--layers", "00"), "no layer matches '00'", "did you mean '0'?"),
    ((*RUN, "in/a.png", "--types", "Conv2b"), "no layer of this type in the model: 'Conv2b'", "did you mean 'Conv2d'?"),
    ((*RUN, "in/a.png", "--view", "mapz"), "no such view: 'mapz'", "did you mean 'maps', 'max', 'mean'?"),
    ((*RUN, "in/a.png", "--to", "pgn"), "no such format: 'pgn'", "did you mean 'png'?"),
    (("net.py:bild", *RANDOM, *BEHAVED, "in/a.png"), "no 'bild' in 'net.py'", "did you mean 'build'?"),
)


@pytest.mark.parametrize(("args", "error", "hint"), UNKNOWN, ids=[error for _, error, _ in UNKNOWN])
def test_unknown_names_are_errors_with_hints(args, error, hint, house):
    make_good(house.place / "in/a.png")
    ended = house.run(*args)
    assert (ended.code, ended.said, ended.told) == (2, [], [f"error: {error}", f"hint: {hint}"])
    assert house.tree() == set()


def test_weights_that_would_run_a_command(house):
    make_good(house.place / "in/a.png")
    state = {"0.weight": torch.zeros(2, 3, 3, 3), "0.bias": Malice(house.place / "ran")}
    torch.save(state, house.place / "evil.pth")
    ended = house.run(*RUN, "in/a.png", "--weights", "evil.pth")
    assert (ended.code, ended.said) == (2, [])
    assert ended.told == [
        "error: refused: 'evil.pth' contains Python objects (posix.system), which would run code when loaded",
        "hint: save only the weights, with torch.save(model.state_dict(), path)",
    ]
    assert house.tree() == set()
    assert not (house.place / "ran").exists()
    assert house.run("evil.pth", program="import sys, torch; torch.load(sys.argv[1], weights_only=False)").code == 0
    assert (house.place / "ran").exists(), "this test does not test anything"


def test_a_truncated_checkpoint_in_the_cache_is_an_error(house):
    make_good(house.place / "in/a.png")
    cached = house.place / "home/hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
    cached.parent.mkdir(parents=True)
    stream = io.BytesIO()
    torch.save(models.squeezenet1_1(weights=None).state_dict(), stream)
    cached.write_bytes(stream.getvalue()[:100_000])
    ended = house.run("squeezenet1_1", *BEHAVED, "in/a.png")
    path = "home/hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
    assert (ended.code, ended.said) == (2, [])
    assert ended.told == [
        f"error: cannot read '{path}': damaged, truncated or not a checkpoint",
        "hint: if it is damaged or incomplete, delete it and download it again",
    ]
    assert house.tree() == set()


def test_weights_that_are_not_cached_are_an_error_offline(house):
    make_good(house.place / "in/a.png")
    ended = house.run("squeezenet1_1", *BEHAVED, "in/a.png", **OFFLINE)
    url = "https://download.pytorch.org/models/squeezenet1_1-b8a52dc0.pth"
    assert (ended.code, ended.said) == (2, [])
    error, hint = ended.told
    assert error.startswith(f"error: cannot download '{url}': ")
    way = "put the file at 'home/hub/checkpoints/squeezenet1_1-b8a52dc0.pth'"
    assert hint == f"hint: {way}, or pass --weights FILE or --weights random"
    assert house.tree() == house.tree("home") == set()


@pytest.mark.thorough
def test_weights_that_do_not_fit_are_an_error(house):
    make_good(house.place / "in/a.png")
    torch.save({"0.weight": torch.zeros(2, 3, 3, 3), "0.scale": torch.zeros(2)}, house.place / "keys.pth")
    torch.save({"0.weight": torch.zeros(4, 3, 3, 3), "0.bias": torch.zeros(2)}, house.place / "shapes.pth")
    keys, shapes = (house.run(*RUN, "in/a.png", "--weights", f"{name}.pth") for name in ("keys", "shapes"))
    assert (keys.code, keys.said, shapes.code, shapes.said) == (2, [], 2, [])
    assert keys.told[0] == "error: the weights in 'keys.pth' do not fit: missing 0.bias; unexpected 0.scale"
    assert shapes.told[0] == "error: the weights in 'shapes.pth' do not fit: 0.weight is (4, 3, 3, 3), not (2, 3, 3, 3)"
    assert house.tree() == set()


@pytest.mark.thorough
def test_a_forward_pass_that_raises_is_a_failure(house):
    make_good(house.place / "in/a.png")
    always = house.run("net.py:Fails", *RANDOM, *BEHAVED, "in")
    assert always.code == 4
    (line,) = [line for line in always.told if line.startswith("error: ")]
    assert fits(line, "error: the model failed after layer 'second': RuntimeError: ...: 'in/a.png' [E_MODEL]")
    assert house.failures() == [("in/a.png", "E_MODEL")]
    assert house.tree() == tree_of(failures=True)
    shutil.rmtree(house.place / "out")
    (house.place / "in/dark.png").write_bytes(encoded(np.zeros((9, 9, 3), np.uint8), "PNG"))
    once = house.run("net.py:Particular", *RANDOM, *BEHAVED, "in")
    (line,) = [line for line in once.told if line.startswith("error: ")]
    reason = "the model failed before the first layer: ValueError: nothing to see"
    assert (once.code, line) == (3, f"error: {reason}: 'in/dark.png' [E_MODEL]")
    assert house.failures() == [("in/dark.png", "E_MODEL")]
    assert house.tree() == tree_of("a.png", failures=True, files=CONV)


@pytest.mark.thorough
def test_nan_and_infinity_are_drawn_and_reported(house):
    make_good(house.place / "in/a.png")
    ended = house.run("net.py:Endless", *RANDOM, *BEHAVED, "in", "--padding", "0", "--columns", "3")
    told = "values that are NaN or infinite in 1 image, first in the layer 'conv'"
    told += "; the weights of the network hold some: 'conv.bias'"
    assert (ended.code, ended.complaints) == (0, [f"notice: {told}"])
    assert house.tree() == tree_of("a.png", files=CONV)
    (layer,) = json.loads((house.place / "out/run/a.png/unit.json").read_bytes())["layers"]
    assert (layer["nonfinite"], layer["shape"]) == (2 * 16 * 16, [3, 16, 16])
    assert all(np.isfinite(layer[key]) for key in ("min", "max", "mean"))
    nan, infinite, numbers = np.split(house.pixels("a.png", "00_conv.maps.png")[..., 0], 3, axis=1)
    assert np.array_equal(nan, infinite)
    assert len(np.unique(nan)) == 2, "a checkerboard"
    assert (nan[:-1] != nan[1:]).any(), "a checkerboard"
    assert (numbers.min(), numbers.max()) == (0, 255)


@pytest.mark.thorough
def test_out_of_memory_is_reported(house):
    names = [f"{number}.png" for number in range(4)]
    for number, name in enumerate(names):
        make_good(house.place / "in" / name, seed=number)
    halved = house.run("net.py:Hungry(most=1)", *RANDOM, *BEHAVED, "in", "--workers", "1", "--batch-size", "4")
    assert halved.code == 0
    assert halved.told == [
        "notice: out of memory with 4 images at once: continuing with 2",
        "notice: out of memory with 2 images at once: continuing with 1",
        "4 images done: 1 layer, 8 pictures",
    ]
    assert house.tree() == tree_of(*names, files=CONV)
    shutil.rmtree(house.place / "out")
    alone = house.run("net.py:Hungry(most=0)", *RANDOM, *BEHAVED, "in", "--workers", "1")
    assert alone.code == 4
    assert alone.complaints == [f"error: out of memory: 'in/{name}' [E_MEMORY]" for name in names]
    assert house.failures() == [(f"in/{name}", "E_MEMORY") for name in names]
    assert house.tree() == tree_of(failures=True)


# --- Output and interruption


def test_a_file_as_out_is_an_output_error(house):
    make_good(house.place / "in/a.png")
    (house.place / "out").write_text("mine")
    ended = house.run(*RUN, "in")
    assert (ended.code, ended.said) == (5, [])
    assert ended.told == ["error: not a directory: 'out'", "hint: choose another --out"]
    assert (house.place / "out").read_text() == "mine"
    assert not (house.place / "built").exists()


def test_a_read_only_out_is_an_output_error(house):
    make_good(house.place / "in/a.png")
    (house.place / "out").mkdir(mode=0o555)
    ended = house.run(*RUN, "in", program=UNPRIVILEGED)
    assert (ended.code, ended.said) == (5, [])
    assert ended.told == ["error: cannot write to 'out': read-only, or not permitted", "hint: choose another --out"]
    assert house.tree() == {"out/"}
    assert not (house.place / "built").exists()


FULL = f"error: cannot write to 'out/run': {os.strerror(errno.EFBIG)}"


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["tensorboard", *thorough("png", "raw")])
def test_a_disk_that_fills_with_the_last_byte_is_an_output_error(form, house):
    """TensorBoard's own writer loses the error, for it comes when the file is closed."""
    for name in "ab":
        make_good(house.place / f"in/{name}.png")
    drawn = ("--to", form, "--size", "224", *AS_IT_IS, "--workers", "1")
    run = ("net.py:build", *RANDOM, *drawn, "--out", "out", "--name", "run", "in")
    assert house.run(*run).code == 0
    whole = house.tree()
    largest = max((house.place / path).stat().st_size for path in whole if path.startswith("out/run/a.png"))
    shutil.rmtree(house.place / "out")
    (house.place / "in/b.png").write_bytes(b"")
    full = house.run(*run, largest - 1, program=LIMITED)
    assert full.code == 5
    # Under a limit as low as this one there is no memory that two processes share.
    assert [line for line in full.told if "[E_EMPTY]" not in line and "cannot start a process to decode in" not in line] == [
        FULL,
        "hint: 0 of the 2 images listed so far are done; allow larger files (ulimit -f), and the same command continues",
    ]  # fmt: skip
    assert unfinished(house.tree()) <= tree_of(failures=True)
    make_good(house.place / "in/b.png")
    assert house.run(*run).code == 0
    assert house.tree() - {"out/run/failures.jsonl"} == whole
    assert house.run("verify", "out").code == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), *thorough((signal.SIGTERM, 143))])
def test_a_second_signal_ends_a_command_at_once(number, code, house):
    """The first signal ends with a hint to continue; the second one ends at once."""
    make_good(house.place / "in/a.png")
    heeding = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {MAIN}"  # see HEEDING in warm.py
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(house.run, "net.py:Hangs", *RANDOM, *BEHAVED, "in", program=heeding, json=False)
        while not (house.place / "process").exists() and not ending.done():
            time.sleep(0.01)
        process = int((house.place / "process").read_text())
        while not ending.done():
            with suppress(ProcessLookupError):
                os.kill(process, number)
            time.sleep(0.01)
    assert ending.result() == Ended(code, [], [], [])
    assert unfinished({path for path in house.tree() if HIDDEN not in path}) == tree_of()  # the next run removes its mark


@pytest.mark.thorough
def test_foreign_files_are_kept(house):
    make_good(house.place / "in/a.png")
    for path in ("out/notes.txt", "out/run/notes.txt"):
        (house.place / path).parent.mkdir(parents=True, exist_ok=True)
        (house.place / path).write_text("mine")
    refused = house.run(*RUN, "in")
    assert (refused.code, refused.said) == (6, [])
    assert refused.told == [
        "error: 'out/run' holds files that fmapviz did not make",
        "hint: choose another --name, or none for a free one",
    ]
    assert house.tree() == {"out/notes.txt", "out/run/notes.txt"}
    assert house.run(*RUN, "in", "--name", "other").code == 0
    (house.place / "out/other/a.png/notes.txt").write_text("mine")
    (house.place / "out/other/notes.txt").write_text("mine")
    refused = house.run(*RUN, "in", "--name", "other", "--force")
    assert (refused.code, refused.said) == (6, [])
    assert refused.told[-2:] == [
        "error: 'out/other/a.png/notes.txt' was not made by fmapviz, and the directory around it would be replaced",
        "hint: move it away, and the same command continues",
    ]
    ours = {path.replace("/run/", "/other/") for path in tree_of("a.png")}
    notes = {"out/notes.txt", "out/run/notes.txt", "out/other/notes.txt", "out/other/a.png/notes.txt"}
    assert house.tree() == ours | notes
    assert {(house.place / path).read_text() for path in notes} == {"mine"}


def test_out_inside_the_input_is_not_read(house):
    make_good(house.place / "in/a.png")
    run = (*RUN, "--out", "in/out", "in")  # the last one counts
    first, again = house.run(*run), house.run(*run)
    assert (first.code, first.told) == (0, ["1 image done: 1 layer, 2 pictures"])
    assert (again.code, again.told) == (0, ["1 image already done"])
    assert house.tree("in") == {"in/a.png", *(f"in/{path}" for path in tree_of("a.png"))}


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["--repair", *thorough("--force")])
def test_later_changes_are_found_and_redrawn(option, house):
    for name in "abcd":
        make_good(house.place / f"in/{name}.png")
    assert house.run(*RUN, "in").code == 0
    run = house.place / "out/run"
    before = {path: (house.place / path).read_bytes() for path in house.tree()}
    (run / "a.png/00_0.maps.png").unlink()
    flipped = bytearray((run / "b.png/input.png").read_bytes())
    flipped[-20] ^= 1
    (run / "b.png/input.png").write_bytes(flipped)
    size = (run / "c.png/input.png").stat().st_size
    os.truncate(run / "c.png/input.png", size // 2)
    (run / "d.png/more.png").write_bytes(b"")
    found = house.run("verify", "out")
    assert found.code == 3
    assert found.said == [
        "out/run/a.png/00_0.maps.png: missing",
        "out/run/b.png/input.png: changed since it was written",
        f"out/run/c.png/input.png: {size // 2} bytes instead of {size}",
        "out/run/d.png/more.png: not made by fmapviz",
    ]
    *problems, summary = house.run("verify", "out", "--json").events
    assert [f"{each['path']}: {each['message']}" for each in problems] == found.said
    assert [each["remedy"] for each in problems] == ["repair", "repair", "repair", "remove"]
    assert (summary["damaged"], summary["exit_code"]) == (4, 3)
    assert found.told == [
        "3 of 5 directories are damaged, 1 holds files that fmapviz did not make",
        "hint: run the original command with --repair",
        "hint: foreign files: remove them, or move them away",
    ]
    (run / "d.png/more.png").unlink()
    assert house.run(*RUN, "in", option).code == 0
    assert {path: (house.place / path).read_bytes() for path in house.tree()} == before
    assert (house.run("verify", "out").code, house.run("verify", "out/run/a.png").code) == (0, 0)


@pytest.mark.thorough
def test_a_run_of_a_newer_version_is_refused_by_all_commands(house):
    make_good(house.place / "in/a.png")
    assert house.run(*RUN, "in").code == 0
    record = house.place / "out/run/run.json"
    record.write_bytes(dumps({**json.loads(record.read_bytes()), "fmapviz": 3}))
    newer, before = record.read_bytes(), house.tree()
    ended = house.run(*RUN, "in")
    assert (ended.code, ended.said) == (6, [])
    assert ended.told == [
        "error: 'out/run' was made by a newer version of fmapviz",
        "hint: pip install --upgrade fmapviz",
    ]
    assert (record.read_bytes(), house.tree()) == (newer, before)


# --- Side effects

WATCHING = f"""
import json, os, sys
from pathlib import Path

told = open("events", "w")
CALLS = {{"socket.connect", "socket.getaddrinfo", "os.system", "os.exec", "os.posix_spawn", "pty.spawn", "webbrowser.open"}}
CHANGES = {{"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.chmod", "os.utime", "os.truncate",
           "shutil.rmtree", "shutil.move"}}

def watch(event, args):
    if event == "subprocess.Popen":
        print(json.dumps([event, str(args[0])]), file=told, flush=True)
    elif event in CALLS:
        print(json.dumps([event, repr(args)]), file=told, flush=True)
    elif event in CHANGES and not isinstance(args[0], int):
        print(json.dumps(["change", os.path.abspath(args[0])]), file=told, flush=True)
    elif event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        print(json.dumps(["change", os.path.abspath(os.fsdecode(args[0]))]), file=told, flush=True)

sys.dont_write_bytecode = True
import torch  # runs ldconfig
sys.addaudithook(watch)
{MAIN}
"""


@pytest.mark.thorough
def test_a_run_uses_no_network_and_writes_only_in_out(house):
    names = [name for name, make, *_ in REFUSED if make is from_zoo]
    for name in names:
        from_zoo(house.place / "in" / name)
    for name in ("$(touch ran).png", "`touch ran`;.png", "<script>.png", "a|touch ran.png"):
        make_good(house.place / "in" / name)
    state = {"0.weight": torch.ones(2, 3, 3, 3), "0.bias": torch.ones(2)}
    torch.save({"state_dict": state, "classes": ["`touch ran`", "<script>"]}, house.place / "weights.pth")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (house.place / "in").iterdir()}
    for folder in ("nobody", "temporary"):
        (house.place / folder).mkdir()
    formats = "tensorboard,png,html,raw,npz,stats"
    homes = {"HOME": str(house.place / "nobody"), "TMPDIR": str(house.place / "temporary")}
    homes["PYTHONPATH"] = "nowhere"  # so the process that decodes is started as it always is
    ended = house.run(*RUN, "in", "--weights", "weights.pth", "--to", formats, program=WATCHING, **homes)
    assert (ended.code, ended.told[-1].partition(";")[0]) == (3, f"{len(names) + 4} images: 4 done, {len(names)} failed")
    events = [json.loads(line) for line in (house.place / "events").read_text().splitlines()]
    changed = {path for event, path in events if event == "change"}
    assert changed
    elsewhere = {path for path in changed if not Path(path).is_relative_to(house.place / "out")}
    assert elsewhere <= {str(house.place / "built"), os.devnull}
    assert [event for event in events if event not in (["subprocess.Popen", sys.executable],) and event[0] != "change"] == []
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (house.place / "in").iterdir()} == before
    assert house.tree("nobody") | house.tree("temporary") == {"nobody/", "temporary/"}
    assert not (house.place / "ran").exists()


@pytest.mark.thorough
def test_modules_in_the_working_directory_are_not_imported(house):
    make_good(house.place / "in/a.png")
    for name in ("PIL", "numpy", "torch", "torchvision", "typer", "rich", "fmapviz", "json", "random", "sitecustomize"):
        (house.place / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit(9)")
    words = once(["squeezenet1_1", "in", "--weights", "random", *BEHAVED, "--size", "64"])
    command = [Path(sys.executable).with_name("fmapviz"), *words]
    result = subprocess.run(command, cwd=house.place, capture_output=True, check=False, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    assert not (house.place / "ran").exists()
    subprocess.run([sys.executable, "-c", "import PIL"], cwd=house.place, capture_output=True, check=False)
    assert (house.place / "ran").exists(), "this test does not test anything"


@pytest.mark.thorough
def test_files_have_the_permissions_of_the_umask(house):
    make_good(house.place / "in/a.png")
    (house.place / "in/b.png").write_bytes(b"")
    formats = "tensorboard,png,html,raw,npz,stats"
    program = f"import os; os.umask(0o077); {MAIN}"
    assert house.run(*RUN, "in", "--to", formats, program=program).code == 3
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in (house.place / "out").rglob("*")}
    assert modes == {0o600, 0o700}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "code"), [("run.json", 6), *thorough(("failures.jsonl", 5), ("index.html", 6), ("products.json", 6))]
)
def test_links_in_out_are_not_written_through(name, code, house):
    make_good(house.place / "in/a.png")
    (house.place / "in/b.png").write_bytes(b"")
    victim = house.place / "victim"
    run = (*RUN, "in", "--to", "html")
    assert house.run(*run).code == 3
    path = house.place / "out/run" / name
    path.unlink()
    path.symlink_to(victim)
    victim.write_text("mine")
    make_good(house.place / "in/a.png", seed=1)  # so that something is to be written anew
    ended = house.run(*run)
    assert (ended.code, victim.read_text()) == (code, "mine")
    victim.unlink()
    assert (house.run(*run).code, victim.exists()) == (code, False)


def test_a_link_in_place_of_a_run_is_not_followed(house):
    make_good(house.place / "in/a.png")
    (house.place / "out").mkdir(exist_ok=True)
    (house.place / "elsewhere").mkdir()
    (house.place / "out/other").symlink_to("../elsewhere")
    assert house.run(*RUN, "in", "--name", "other").code == 6
    assert house.tree("elsewhere") == {"elsewhere/"}


@pytest.mark.thorough
def test_verify_opens_nothing_but_the_files_of_the_run(house):
    make_good(house.place / "in/a.png")
    assert house.run(*RUN, "in").code == 0
    unit = house.place / "out/run/a.png"
    os.mkfifo(unit / "pipe")
    (unit / "zero").symlink_to("/dev/zero")
    (unit / "outside").symlink_to("/etc/passwd")
    record = json.loads((unit / "unit.json").read_bytes())
    del record["sha256"]
    ours, size = record["files"], Path("/etc/passwd").stat().st_size

    def claim(*names):
        claimed = [*ours, *({"name": name, "size": size, "sha256": "0"} for name in names)]
        (unit / "unit.json").write_bytes(dumps({**record, "files": claimed}))
        ended = house.run("verify", "out")
        return ended.code, ended.said

    for name in ("/etc/passwd", "../../../../../../../../../../etc/passwd", "/dev/zero", ".."):
        assert claim(name) == (3, ["out/run/a.png/unit.json: damaged"])
    strange = ("pipe", "zero", "outside")
    assert claim(*strange) == (3, [f"out/run/a.png/{name}: not a regular file" for name in strange])


# --- Every entry, and the tests of it

_REFUSED = ("test_images_that_cannot_be_read_do_not_stop_the_others", "test_a_single_unreadable_image_fails_the_run")
_UNUSUAL = "test_images_that_are_only_unusual_are_drawn_by_rule"

CATALOGUE = {
    "Images": {
        "zero bytes": _REFUSED,
        "text named .jpg": _REFUSED,
        "JPEG cut at half": (*_REFUSED, "test_find_and_decode::test_a_truncated_file_is_refused"),
        "PNG with a flipped byte": (*_REFUSED, "test_find_and_decode::test_each_flipped_byte_of_a_png_file_is_detected"),
        "30000 x 30000 1-bit PNG, PNG text bomb": (*_REFUSED, "test_find_and_decode::test_a_bomb_costs_no_memory"),
        "EXIF orientation 1 to 8": (_UNUSUAL, "test_find_and_decode::test_each_orientation_is_applied"),
        "broken EXIF": (_UNUSUAL, "test_find_and_decode::test_no_exif_block_makes_a_picture_unreadable"),
        "16-bit grey PNG, I;16B, float TIFF": (
            _UNUSUAL,
            "test_find_and_decode::test_deep_pixels_are_scaled_from_their_own_range",
        ),
        "CMYK, palette with transparency, RGBA, LA, 1-bit": (
            _UNUSUAL,
            "test_find_and_decode::test_transparency_lies_over_black",
            "test_find_and_decode::test_cmyk_is_converted",
        ),
        "animated GIF and WebP, multi-page TIFF": (_UNUSUAL,),
        "AVIF; HEIC with its package and without": (
            _UNUSUAL,
            "test_heic_with_its_package_is_drawn",
            "test_heic_without_its_package_is_a_failure_with_a_hint",
        ),
        "PDF, EPS and SVG are never opened": (*_REFUSED, "test_ghostscript_does_not_start"),
        "1 x 1 and 1 x 10000 pixels": (_UNUSUAL, "test_find_and_decode::test_pictures_of_extreme_shapes_are_read"),
        "a JPEG named .png": (_UNUSUAL,),
        "FIFO, socket, device, a link to /dev/zero": (
            *_REFUSED,
            "test_find_and_decode::test_other_than_regular_files_are_not_opened",
        ),
        "no permission": ("test_files_without_permission_are_failures",),
        "gone between listing and opening": ("test_an_image_deleted_between_listing_and_opening_is_a_failure",),
        "symlink loop, dangling link": (*_REFUSED, "test_find_and_decode::test_links_are_followed_and_loops_are_not"),
        "the same file twice, roots a and a/b": (
            "test_each_file_is_drawn_once",
            "test_find_and_decode::test_each_file_is_found_once",
        ),
        "empty folder": ("test_an_empty_folder_is_an_error",),
    },
    "Names": {
        "a/x.png and b/x.png": ("test_equal_names_in_different_folders_have_different_units",),
        "x.jpg and x.png": ("test_names_that_are_almost_equal_have_different_units",),
        "names equal but for case or Unicode form": ("test_names_that_are_almost_equal_have_different_units",),
        "255 bytes, over-long paths": (
            "test_the_longest_names_are_drawn",
            "test_find_and_decode::test_a_deep_tree_is_listed",
        ),
        "newline, tab, escape, bidi marks": ("test_control_characters_of_names_are_escaped",),
        "bytes that are no UTF-8": (
            "test_names_that_are_no_text_are_drawn",
            "test_app::test_odd_names_are_escaped_in_a_poor_terminal",
        ),
        "-rf.png after --": ("test_a_file_named_like_an_option_is_drawn",),
        "<img src=x onerror=alert(1)>.png in the report": (
            "test_a_name_that_is_html_is_escaped",
            "test_report_page::test_hostile_names_are_shown_as_text",
        ),
        "a layer called .., a/b, of 10 kB": ("test_layers_with_harmful_names_are_drawn",),
        "two layers equal after escaping": ("test_layers_with_harmful_names_are_drawn",),
    },
    "Lists and terminals": {
        "- with no final newline, empty lines, CRLF, a BOM": ("test_lists_of_files_are_read",),
        "- with a million lines, streamed": (
            "test_find_and_decode::test_a_long_list_takes_no_memory",
            "test_app::test_a_list_on_standard_input_is_processed_as_it_arrives",
        ),
        "while read f; do fmapviz ...; done": ("test_a_shell_loop_runs_every_line",),
        "| head -1": (
            "test_a_closed_pipe_of_results_ends_the_command",
            "test_app::test_closed_and_full_standard_streams_are_handled",
        ),
        "closed stdout or stderr": (
            "test_closed_streams_are_handled",
            "test_app::test_closed_and_full_standard_streams_are_handled",
        ),
        "LANG=C, no HOME, cron": (
            "test_a_command_runs_in_the_environment_of_cron",
            "test_app::test_odd_names_are_escaped_in_a_poor_terminal",
        ),
        "no carriage return when stderr is no terminal": (
            "test_a_command_runs_in_the_environment_of_cron",
            "test_app::test_results_on_standard_output_and_the_rest_on_standard_error",
        ),
        "--json: every line parses, the last is the summary": (
            "test_json_accounts_for_every_image",
            "test_json_ends_with_its_summary_after_a_fatal_error",
        ),
    },
    "Models": {
        "unknown name, layer, view, format": (
            "test_unknown_names_are_errors_with_hints",
            "test_app::test_a_wrong_word_is_exit_2_with_the_word_and_its_nearest_matches",  # without torch
        ),
        "a pickle that calls os.system": (
            "test_weights_that_would_run_a_command",
            "test_read::test_reading_a_checkpoint_calls_nothing",
        ),
        "a truncated checkpoint in the cache": ("test_a_truncated_checkpoint_in_the_cache_is_an_error",),
        "offline and not in the cache": ("test_weights_that_are_not_cached_are_an_error_offline",),
        "a state dict that does not fit": ("test_weights_that_do_not_fit_are_an_error",),
        "a forward pass that raises": (
            "test_a_forward_pass_that_raises_is_a_failure",
            "test_hooks::test_an_error_in_the_model_leaves_everything_as_it_was",
        ),
        "NaN and infinity": ("test_nan_and_infinity_are_drawn_and_reported",),
        "out of memory": ("test_out_of_memory_is_reported",),
    },
    "Output and interruption": {
        "OUT is a file": ("test_a_file_as_out_is_an_output_error",),
        "OUT is read-only": ("test_a_read_only_out_is_an_output_error",),
        "disk full at any write": (
            "test_faults::test_a_command_repeated_after_any_failed_operation_has_the_same_tree",
            "test_unit_writer::test_a_full_disk_is_reported_and_leaves_no_partial_unit",
        ),
        "disk full at the very last write": (
            "test_a_disk_that_fills_with_the_last_byte_is_an_output_error",
            "test_event_file::test_a_full_disk_is_detected_at_writing_and_closing",
        ),
        "kill -9 at every write, rename and mkdir": (
            "test_faults::test_a_command_repeated_after_any_failed_operation_has_the_same_tree",
            "test_killed::test_a_command_may_be_killed_at_any_moment",
        ),
        "SIGINT and SIGTERM, once": (
            "test_app::test_a_signal_leaves_complete_directories_and_the_same_command_resumes",
            "test_failing_threads::test_a_signal_ends_a_command_at_each_phase_of_its_threads",
        ),
        "SIGINT and SIGTERM, twice": ("test_a_second_signal_ends_a_command_at_once",),
        "8 processes into one OUT": (
            "test_unit_writer::test_eight_processes_redraw_the_same_images",
            "test_unit_writer::test_eight_processes_draw_a_part_each",
        ),
        "foreign files in OUT": ("test_foreign_files_are_kept",),
        "OUT inside the input folder": ("test_out_inside_the_input_is_not_read",),
        "a file deleted, truncated or flipped later": (
            "test_later_changes_are_found_and_redrawn",
            "test_verify::test_every_flipped_byte_is_named",
        ),
        "a run of a newer version": ("test_a_run_of_a_newer_version_is_refused_by_all_commands",),
    },
    "What nobody asked for": {
        "code in weights": (
            "test_weights_that_would_run_a_command",
            "test_read::test_reading_a_checkpoint_calls_nothing",
            "test_read::test_a_checkpoint_of_lightning_is_read_and_nothing_in_it_runs",
            "test_weights::test_no_setting_of_the_environment_lets_code_run",
        ),
        "code in names, pictures and metadata": ("test_a_run_uses_no_network_and_writes_only_in_out",),
        "code in the working directory": ("test_modules_in_the_working_directory_are_not_imported",),
        "code in the report": (
            "test_a_name_that_is_html_is_escaped",
            "test_report_page::test_hostile_names_are_shown_as_text",
        ),
        "connections": ("test_a_run_uses_no_network_and_writes_only_in_out",),
        "files outside OUT, changed inputs": ("test_a_run_uses_no_network_and_writes_only_in_out",),
        "files that others may read": ("test_files_have_the_permissions_of_the_umask",),
        "links in OUT": ("test_links_in_out_are_not_written_through", "test_a_link_in_place_of_a_run_is_not_followed"),
        "a record that names other files": ("test_verify_opens_nothing_but_the_files_of_the_run",),
        "an index of weights that names other files": ("test_read::test_an_index_that_names_other_folders_is_refused",),
        "weights that are a pipe or a device": ("test_weights::test_a_path_that_is_no_regular_file_is_refused_at_once",),
        "weights that claim terabytes": ("test_weights::test_a_small_file_whose_tensors_claim_terabytes_is_refused",),
        "a download that is not what its name promises": (
            "test_weights::test_a_download_with_another_digest_than_its_name_is_refused",
        ),
    },
}


def test_every_entry_of_the_catalogue_has_its_tests():
    here, there = Path(__file__), Path(__file__).parents[1].rglob("test_*.py")
    known = {
        f"{file.stem}::{name}"
        for file in {here, *there}
        for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = {
        name if "::" in name else f"{here.stem}::{name}"
        for entries in CATALOGUE.values()
        for names in entries.values()
        for name in names
    }
    assert all(names for entries in CATALOGUE.values() for names in entries.values())
    assert named - known == set()
    own = {name for name in known if name.startswith(f"{here.stem}::")}
    assert own - named == {f"{here.stem}::test_every_entry_of_the_catalogue_has_its_tests"}, "a test of no entry"
