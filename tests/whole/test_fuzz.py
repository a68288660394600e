"""Any content of files, names and options ends in a documented result or error.

What is tried is the same every time. `python tests/fuzz.py` tries other things, for as long as one likes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections import OrderedDict
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import pytest
import tifffile
import torch
import typer
from bad_images import animation, encoded, oriented, picture
from cases import often
from checkpoint_files import Malice, fill
from conftest import ROOT
from faults import Net
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from image_files import paint
from PIL import Image as PillowImage
from safetensors.numpy import load_file
from safetensors.torch import save
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
from torch import nn
from trees import problems

from fmapviz.cli import app
from fmapviz.config import InputOptions, Style
from fmapviz.core.checksummed_json import dumps
from fmapviz.core.samples import Samples
from fmapviz.errors import FmapvizError, InputError
from fmapviz.images import decode_pool
from fmapviz.images.arrays import scale
from fmapviz.images.decode import FORMATS
from fmapviz.images.decode_pool import read_image
from fmapviz.run.loop import visualize
from fmapviz.types import ImageFile

SHORT = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
BYTES = 3 << 30  # address space, for pictures that claim to be large
CPU_SECONDS = 10  # the same picture takes milliseconds undamaged


# --- damage


class Edit(NamedTuple):
    """A change of some bytes: position, value and length."""

    kind: str
    place: int
    number: int
    length: int


KINDS = ("flip", "big", "little", "remove", "cut", "repeat", "splice")
NUMBERS = (0, 1, 2, 8, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 9400, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
LENGTHS = (1, 2, 4, 8, 50)

EDITS = st.lists(
    st.builds(
        Edit,
        st.sampled_from(KINDS),
        st.integers(0, 99) | st.integers(0, 99_999),
        st.sampled_from(NUMBERS),
        st.sampled_from(LENGTHS),
    ),
    min_size=1,
    max_size=6,
)


def some_edits(chance):
    """Choose edits as `EDITS` does, by `random`, which takes a hundredth of the time."""
    return [
        Edit(
            chance.choice(KINDS),
            chance.randrange(chance.choice([100, 100_000])),
            chance.choice(NUMBERS),
            chance.choice(LENGTHS),
        )
        for _ in range(chance.randint(1, 6))
    ]


def edited(content, edits, donor):
    """Do one thing after the other to some bytes."""
    data = bytearray(content)
    for kind, place, number, length in edits:
        at = place % (len(data) + 1)
        match kind:
            case "flip":
                data[at : at + 1] = bytes(byte ^ 1 << place % 8 for byte in data[at : at + 1])
            case "big" | "little":
                size = min(length, 8)
                data[at : at + size] = (number % 256**size).to_bytes(size, kind)
            case "remove":
                del data[at : at + length]
            case "cut":
                del data[at:]
            case "repeat":
                data[at:at] = data[at : at + length]
            case "splice":
                start = number % (len(donor) + 1)
                data[at : at + length] = donor[start : start + length]
    return bytes(data)


def outcome(function, *given, **options):
    """Return a function's result, or the refusal that it raises; other exceptions are errors."""
    try:
        return function(*given, **options)
    except FmapvizError as refusal:
        return refusal


# --- pictures

CODES = {"E_EMPTY", "E_FORMAT", "E_TOO_LARGE", "E_DECODE", "E_CHANNELS"}


@cache
def image_files():
    """Make small files of every format that is read, and of every way in which some of them store pixels."""
    from extras import pillow_heif

    pillow_heif.register_heif_opener()
    rgb = PillowImage.fromarray(picture()[:16, :20])
    grey, palette, rgba, line = rgb.convert("L"), rgb.convert("P"), rgb.convert("RGBA"), rgb.convert("1")
    rgba.putalpha(grey)
    deep = PillowImage.fromarray(np.asarray(grey).astype(np.uint16) * 200)
    real = PillowImage.fromarray(np.asarray(grey).astype(np.float32))
    files = {form: encoded(rgb, form) for form in (*FORMATS, "HEIF", "MPO")}
    files |= {f"{form} of several": animation(form) for form in ("GIF", "WEBP", "PNG", "TIFF", "AVIF")}
    files |= {f"{form} upright": oriented(np.asarray(rgb), 6, form) for form in ("JPEG", "PNG", "WEBP", "AVIF", "HEIF")}
    files |= {f"PNG {image.mode}": encoded(image, "PNG") for image in (grey, palette, rgba, line, deep)}
    files |= {f"TIFF {image.mode}": encoded(image, "TIFF") for image in (palette, rgba, deep, real, rgb.convert("LAB"))}
    files |= {
        f"TIFF {way}": encoded(rgb, "TIFF", compression=way) for way in ("tiff_lzw", "packbits", "jpeg", "tiff_deflate")
    }
    files |= {f"TIFF {way}": encoded(line, "TIFF", compression=way) for way in ("group3", "group4")}
    files |= {f"{form} {image.mode}": encoded(image, form) for form in ("BMP", "TGA", "PPM") for image in (grey, line)}
    files["JPEG progressive"] = encoded(rgb.convert("CMYK"), "JPEG", progressive=True)
    files["JPEG2000 codestream"] = encoded(rgba, "JPEG2000", no_jp2=True)
    files["TGA packed"] = encoded(palette, "TGA", compression="tga_rle")
    files["PPM in words"] = b"P3\n# red\n2 2\n255\n1 2 3 4 5 6 7 8 9 10 11 12\n"
    return files | _arrays(np.asarray(rgb))


def _arrays(pixels):
    """Make the files that are read without Pillow."""
    many = np.concatenate([pixels, pixels], axis=2).astype(np.uint16)
    ways = {
        "planes": {"planarconfig": "separate"},
        "tiles": {"planarconfig": "contig", "tile": (16, 16), "compression": "deflate"},
        "large offsets": {"bigtiff": True, "byteorder": ">", "planarconfig": "contig"},
        "pages": {"metadata": {"axes": "CYX"}, "ome": True},
    }
    files = {}
    for name, options in ways.items():
        values = many if options.get("planarconfig") == "contig" else np.moveaxis(many, 2, 0)
        files[f"TIFF in {name}"] = _written(tifffile.imwrite, values, photometric="minisblack", **options)
    for values in (pixels, many, pixels[:, :, 0] / 255, np.asfortranarray(pixels, ">f4"), pixels > 99):
        files[f"NPY {values.dtype} {values.shape}"] = _written(np.save, values)
    return files


def _written(write, values, **options):
    stream = io.BytesIO()
    write(stream, values, **options)
    return stream.getvalue()


def whole_png(content):
    """Correct the checksums of a PNG file's chunks, so that their content is read."""
    parts, at = [content[:8]], 8
    while at + 12 <= len(content):
        end = at + 8 + struct.unpack_from(">I", content, at)[0]
        parts += content[at:end], struct.pack(">I", zlib.crc32(content[at + 4 : end]))
        at = end + 4
    return b"".join(parts)


def damaged_image(name, edits, other, repaired):
    """Damage a file of `image_files`."""
    content = edited(image_files()[name], edits, image_files()[other])
    return whole_png(content) if repaired and content.startswith(b"\x89PNG") else content


def check_image(path, content, channels):
    """Check that a file is a valid picture, or is refused as documented."""
    path.write_bytes(content)
    image = outcome(read_image, ImageFile(str(path), "unit"), channels=channels)
    if isinstance(image, InputError):
        assert image.code in CODES
        assert str(image).isprintable()
        assert str(path) in str(image)
        return
    pixels = image.pixels
    if isinstance(pixels, PillowImage.Image):
        assert pixels.mode == {1: "L", 3: "RGB"}[channels]
        assert pixels.tobytes()  # they are there
    else:
        if isinstance(pixels, Samples):
            assert pixels.values.ndim == 3
            assert (len(pixels.values), pixels.channels) in {(channels, channels), (1, channels)}
            pixels = scale(pixels)
        assert [plane.mode for plane in pixels.planes] == ["F"] * channels
        for plane in pixels.planes:
            assert 0 <= np.asarray(plane).min() <= np.asarray(plane).max() <= 1
    assert all(notice.isprintable() for notice in image.notices)


def test_fuzzing_covers_each_format():
    assert {*FORMATS, "HEIF"} <= image_files().keys()
    for name, content in image_files().items():
        assert len(content) < 30_000, name


@pytest.mark.thorough
def test_a_damaged_picture_is_read_or_refused(tmp_path, capfd):
    names = st.sampled_from(sorted(image_files()))

    @settings(SHORT, max_examples=500)
    @given(names, EDITS, names, st.booleans(), st.sampled_from([3, 3, 3, 1, 6]))
    def try_it(name, edits, other, repaired, channels):
        check_image(tmp_path / "picture", damaged_image(name, edits, other, repaired), channels)

    try_it()
    assert capfd.readouterr() == ("", "")


READ_ALL = """
import json, resource, sys, time, warnings
warnings.simplefilter("error")
from pathlib import Path
from fmapviz.errors import InputError
from fmapviz.images.decode_pool import read_image
from fmapviz.types import ImageFile
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
codes = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    seconds = int(time.process_time()) + int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))  # SIGXCPU ends the process
    try:
        read_image(ImageFile(str(path), "unit"), channels=3)
        code = "read"
    except InputError as error:
        code = error.code
    codes[code] = codes.get(code, 0) + 1
print(json.dumps(codes))
"""


@pytest.mark.thorough
def test_no_damaged_picture_needs_much_time_or_memory(tmp_path):
    """In a process of its own, which would not survive what the others of this file could."""
    names, chance = sorted(image_files()), random.Random(0)
    for number in range(600):
        content = damaged_image(chance.choice(names), some_edits(chance), chance.choice(names), chance.random() < 0.5)
        (tmp_path / f"{number:04}").write_bytes(content)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READ_ALL, tmp_path, str(BYTES), str(CPU_SECONDS)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    codes = json.loads(result.stdout)
    assert codes.keys() <= CODES | {"read"}
    assert min(codes[code] for code in ("read", "E_DECODE", "E_TOO_LARGE")) > 5  # it was worth the time


# --- checkpoints


def network():
    """Build what the weights of `checkpoint_files` are for."""
    return nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 2, 3), norm=nn.BatchNorm2d(2), fc=nn.Linear(2, 3)))


def checkpoint_files(marker):
    """Make files of every kind that is read, and some that would make a file called `marker`, if they were trusted."""
    state = network().state_dict()
    lightning = {
        "state_dict": {f"model.{key}": values for key, values in state.items()},
        "hyper_parameters": argparse.Namespace(rate=0.1),
        "optimizer": {"state": {0: {"step": torch.tensor(3)}}, "param_groups": [{"lr": 0.1}]},
        "hparams": {"id2label": {"0": "cat", "1": "dog", "2": "hen"}},
    }
    odd = {"sparse": torch.eye(3).to_sparse(), "meta": torch.empty(3, device="meta"), "complex": torch.ones(3) * 1j}
    contents = {"plain": state, "lightning": lightning, "odd": odd, "malice": {"state_dict": state, "x": Malice(marker)}}
    files = {f"{name}.pth": _written_by_torch(content) for name, content in contents.items()}
    old = {name: _written_by_torch(contents[name], _use_new_zipfile_serialization=False) for name in ("plain", "malice")}
    files |= {f"{name} of long ago.pth": content for name, content in old.items()}
    files["plain.safetensors"] = save(state, {"classes": '["cat", "dog", "hen"]'})
    shards = {key: f"{'plain' if number % 2 else 'other'}.safetensors" for number, key in enumerate(state)}
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": shards}).encode()
    return files


def _written_by_torch(content, **options):
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def pickle_in(content):
    """Remove the directory of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


def with_pickle(content, pickled):
    """Put another pickle into an archive, and make a whole archive of it again."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(stream, "w") as made:
        for name in archive.namelist():
            made.writestr(name, pickled if name.endswith("/data.pkl") else archive.read(name))
    return stream.getvalue()


def check_weights(path):
    """Make sure that weights are loaded, or refused in a sentence."""
    loaded = outcome(fill, network(), str(path))
    if isinstance(loaded, FmapvizError):
        assert loaded.exit_code == 2
        assert "\n" not in str(loaded)
        assert len(str(loaded)) < 5000


@pytest.mark.thorough
def test_a_damaged_checkpoint_is_loaded_or_refused_and_nothing_in_it_runs(tmp_path, capfd):
    marker = tmp_path / "marker"
    files = checkpoint_files(marker)
    names = st.sampled_from(sorted(files))

    @settings(SHORT, max_examples=200)
    @given(names, EDITS, names, st.booleans())
    def try_it(name, edits, other, whole):
        content = edited(files[name], edits, files[other])
        if whole and files[name].startswith(b"PK"):
            content = with_pickle(files[name], edited(pickle_in(files[name]), edits, files[other]))
        for shard in ("plain", "other"):
            (tmp_path / f"{shard}.safetensors").write_bytes(files["plain.safetensors"])
        (tmp_path / name).write_bytes(content)
        check_weights(tmp_path / name)
        assert not marker.exists()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try_it()
    assert capfd.readouterr() == ("", "")


# --- what stands in a finished run

HOSTILE = (
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    "",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "\0",
    "\ud800",
    "a" * 300,
    [],
    {},
    [[]],
    [None],
)
RUN_RECORDS = ("run.json", "products.json", "survey.json", "failures.jsonl", "stats.json", "index.html")
UNIT_RECORDS = ("unit.json", "stats.safetensors", "report.js", "events.out.tfevents.fmapviz", "input.png")
RECORDS = (*RUN_RECORDS, *(f"{unit}/{name}" for unit in ("a.png", "b.png") for name in UNIT_RECORDS))
MINE = ("mine.txt", "net/mine.txt")  # below the directory of all runs


def draw(inputs, out, **options):
    """Return the command of a finished run."""
    return visualize(
        Net(),
        inputs,
        out=out,
        name="net",
        to=["tensorboard", "png", "html", "stats"],
        style=Style(norm="run"),
        preprocessing=InputOptions(fit="none"),
        workers=1,
        **options,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Where `finish` has been at work."""
    return finish(tmp_path_factory.mktemp("finished"))


def finish(place):
    """Make a run of two pictures and a file that is none, with foreign files in it."""
    decode_pool.start()  # once, not for each run
    for seed, name in enumerate(("a.png", "b.png")):
        paint(place / "in" / name, seed)
    (place / "in" / "c.png").write_bytes(b"no picture")
    draw(place / "in", place / "out")
    for name in MINE:
        (place / "out" / name).write_text(name)
    return place


def copy(finished, place):
    """Copy what `finish` made."""
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(finished, place)


def altered(content, place, value):
    """Put something else in the place of one of the values of a record, or take it out."""
    document = json.loads(content)
    parts = list(_parts(document))
    if not parts:
        return content
    container, key = parts[place % len(parts)]
    if value is ...:
        del container[key]
    else:
        container[key] = value
    return json.dumps(document).encode()


def sealed(content):
    """Correct the checksum of a record."""
    try:
        document = json.loads(content)
        document.pop("sha256", None)
        return dumps(document)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


def _parts(value):
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _parts(inner)


def check_run(place, *, commands=({}, {"repair": True}, {"force": True})):
    """Run the commands that a user would run next, and check how they end.

    `c.png` fails in every run, and `verify` reports `mine.txt`. The only refusal is that of files that fmapviz did not make.
    """
    for options in commands:
        ended = outcome(draw, place / "in", place / "out", **options)
        assert ended.exit_code == (6 if isinstance(ended, FmapvizError) else 3)
        assert answer("verify", str(place / "out")).code == 3
        assert sorted(path.read_text() for path in (place / "out").rglob("mine.txt*")) == sorted(MINE)
    assert not (place / "x").exists()


class Answer(NamedTuple):
    """The exit code of a command, and its output."""

    code: int
    out: str
    err: str


def answer(*words):
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    try:
        sys.argv = ["fmapviz", *words]
        with redirect_stdout(out), redirect_stderr(err):
            code = app._main()
    finally:
        sys.argv = before
    return Answer(code, out.getvalue(), err.getvalue())


@pytest.mark.thorough
def test_commands_survive_damaged_files_of_a_finished_run(finished, tmp_path):
    @settings(SHORT, max_examples=12)
    @given(
        st.sampled_from(RECORDS),
        EDITS,
        st.sampled_from(["bytes", "value", "sealed value", "sealed value"]),
        st.integers(0, 10_000),
        st.sampled_from([*HOSTILE, ...]),
    )
    def try_it(name, edits, way, place, value):
        record = copy(finished, tmp_path / "run") / "out" / "net" / name
        content = record.read_bytes()
        if way == "bytes" or not name.endswith(".json"):
            record.write_bytes(edited(content, edits, content))
        else:
            changed = altered(content, place, value)
            record.write_bytes(sealed(changed) if way == "sealed value" else changed)
        shown = answer("report", *[str(record.parents[len(name.split("/")) - 1])] * 2, "--out", str(tmp_path / "page.html"))
        assert shown.code in {0, 2}, shown
        check_run(tmp_path / "run")

    try_it()


# --- names


class Named(nn.Module):
    """Has a convolution under each of some arbitrary names."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Conv2d(3, 3, 1))

    def forward(self, x):
        for part in self._modules.values():
            x = part(x)
        return x


ODD = st.sampled_from(
    [
        "..",
        ".",
        "a/b",
        "/x",
        "a:b",
        "a_b",
        "a\\b",
        'a"b',
        "a\nb",
        "\x1b[31m",
        "\u202e",
        "\ud800",
        "%2e",
        "A",
        "a",
        " ",
        "a" * 10_000,
    ]
)
ANY = st.text(st.characters(exclude_categories=()), min_size=1, max_size=12) | ODD
NAMES = ANY.filter(lambda name: not hasattr(nn.Module(), name) and name != "_orig_mod")  # that is what torch.compile wraps


@pytest.mark.thorough
@settings(SHORT, max_examples=15)
@given(names=st.lists(NAMES, min_size=1, max_size=4, unique=True))
@example(names=["a" * 70_000])
def test_layers_of_any_name_are_written_inside_the_run(names, tmp_path):
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    paint(tmp_path / "in" / "a.png", 0)
    formats = ["png", "tensorboard", "html", "raw", "npz", "stats"]
    options = InputOptions(fit="none")
    summary = visualize(
        Named(names), tmp_path / "in", out=tmp_path / "out", name="net", to=formats, preprocessing=options, workers=1
    )
    assert (summary.exit_code, summary.pictures) == (0, 1 + len(names))
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"net"}
    unit = tmp_path / "out" / "net" / "a.png"
    assert not [path for path in unit.iterdir() if path.is_dir()]
    assert not problems(tmp_path / "out")
    reader = EventAccumulator(str(unit), size_guidance={TENSORS: 0})
    reader.Reload()
    assert len(reader.Tags()["tensors"]) == 1 + len(names)
    assert len(load_file(unit / "raw.safetensors")) == len(names)
    with np.load(unit / "raw.npz", allow_pickle=False) as archive:
        assert len([archive[name] for name in archive.files]) == 1 + len(names)
    assert len(list(unit.glob("*.png"))) == 1 + len(names)


FILE_NAMES = st.binary(min_size=1, max_size=20) | st.sampled_from(
    [b"-rf", b"~", b"con", b"\xff\xfe", b"\xc3\xa9", b"e\xcc\x81", b"<img src=x onerror=alert(1)>", b"\x1b[31m", b"a" * 250,
     b"run.json", b"unit.json", b"events.out.tfevents.x", b".hidden", b".fmapviz-x", b"\xe2\x80\xae", b"%00", b"a\\b", b" "]
)  # fmt: skip


@pytest.mark.thorough
@settings(SHORT, max_examples=10)
@given(
    st.lists(
        FILE_NAMES.map(lambda name: name.translate(bytes.maketrans(b"/\0", b"__"))), min_size=1, max_size=12, unique=True
    )
)
def test_files_of_any_name_have_distinct_units(tmp_path, names):
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    paint(tmp_path / "a.png", 0)
    (tmp_path / "run" / "in").mkdir(parents=True)
    paths = [tmp_path / "run" / "in" / os.fsdecode(name) for name in names if name not in {b".", b".."}]
    for path in paths:
        shutil.copy(tmp_path / "a.png", path)
    summary = visualize(
        Net(), paths, out=tmp_path / "run" / "out", name="net", to=["png", "tensorboard", "html"],
        preprocessing=InputOptions(fit="none"), workers=1,
    )  # fmt: skip
    assert (summary.done, summary.failed) == (len(paths), 0)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"in", "out"}
    assert not problems(tmp_path / "run" / "out")


# --- options

COMMANDS = typer.main.get_command(app.app).commands
PARAMETERS = [
    (command, parameter)
    for command in sorted(COMMANDS)
    for parameter in COMMANDS[command].params
    if parameter.name != "help"
]

OFTEN = {"run": {"inputs", "layers", "out", "size", "norm", "shard"}, "guide": {"page"}, "extract": {"image"}}
SOME = [(command, parameter) for command, parameter in PARAMETERS if parameter.name in OFTEN.get(command, ())]

# What only a model can tell: everything else is answered before there is one.
ASKED_OF_THE_MODEL = {"layers", "exclude", "types", "target", "output", "mean", "std", "weights", "against"}

# No `/` and no `..`: what is tried shall be written nowhere but here, and no other folder be searched.
WORDS = st.text(
    st.characters(exclude_categories=(), exclude_characters="/\0.", max_codepoint=0x2FFF) | st.just("."), max_size=12
)
FORMS = st.text("0123456789-+.,:x#e ", max_size=10)
KNOWN = st.sampled_from(
    ["", "-1", "0", "1e400", "nan", "-inf", "9" * 5000, "a" * 300, "\udcff", "\n", "~", "-", "--", "top:0", "top:99999999",
     "fixed:1,2", "fixed:nan,1", "random:", "random:-1", "random:99999999999999999999", "cuda:99", "meta", "[", "*",
     "0-999999", "1x1", "\u0661", "=", "%s", "{}", "1,,2", "b.png#x", "a:b", "(", "net.py:build(", "net.py:build(x=1)"]
)  # fmt: skip
VALUES = (WORDS | FORMS | KNOWN).filter(lambda value: ".." not in value)

CODE = """
from pathlib import Path
from torch import nn

def build():
    Path("built").touch()
    return nn.Sequential(nn.Conv2d(3, 2, 1))
"""


def words_for(command, parameter, value):
    """Make a command line in which everything is right but, perhaps, one value."""
    given = {
        "run": {"model": ["net.py:build"], "inputs": ["a.png"]},
        "layers": {"model": ["net.py:build"]},
        "models": {},
        "guide": {},
        "verify": {"directory": ["out"]},
        "rerun": {"run": ["out"]},
        "runs": {"words": ["out"]},
        "extract": {"directory": ["out"]},
        "top": {"run": ["out"]},
        "diff": {"model": ["net.py:build"], "inputs": ["a.png"]},
        "report": {"runs": ["out"]},
        "completion": {"shell": ["bash"]},
        "help": {"words": ["run"]},
    }[command]
    required = {"extract": ["--image=a.png", "--layer=0"]}.get(command, [])
    if parameter.param_type_name == "argument":
        words = chain.from_iterable((given | {parameter.name: [value]}).values())
        return [command, *required, "--", *words]
    return [command, *required, *chain.from_iterable(given.values()), f"{max(parameter.opts, key=len)}={value}"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("command", "parameter"),
    often(SOME, of=PARAMETERS),
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_any_command_line_is_answered(command, parameter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HOME", str(tmp_path))  # for fmapviz completion --install
    (tmp_path / "net.py").write_text(CODE)
    paint(tmp_path / "a.png", 0)

    @settings(SHORT, max_examples=4)
    @given(VALUES)
    def try_it(value):
        (tmp_path / "built").unlink(missing_ok=True)
        code, out, err = answer(*words_for(command, parameter, value))
        assert code in {0, 2, 3, 4, 5, 6}
        assert all(line.isprintable() for line in (out + err).split("\n"))
        assert sum(line.startswith("error: ") for line in err.splitlines()) == (1 if code else 0)
        assert "Traceback" not in err
        if code == 2 and parameter.name not in ASKED_OF_THE_MODEL:
            assert not (tmp_path / "built").exists()

    try_it()
    sys.modules.pop("net", None)
