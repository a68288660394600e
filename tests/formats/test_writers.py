from __future__ import annotations

import base64
import errno
import inspect
import json
import subprocess
import sys
import warnings
from fnmatch import fnmatch
from html.parser import HTMLParser
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import markdown
import numpy as np
import pytest
from cases import thorough
from failing_disk import limited_files
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_units import as_grid, make_unit
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from waiting import PATIENCE

from fmapviz.core import registry
from fmapviz.core.file_names import unit_patterns
from fmapviz.core.members import load
from fmapviz.draw import png
from fmapviz.errors import printable
from fmapviz.formats import tensorboard
from fmapviz.formats.tensorboard import image_summary as summaries
from fmapviz.types import Picture

with warnings.catch_warnings():  # TensorBoard's page uses bleach, which uses a deprecated part of html5lib
    warnings.filterwarnings("ignore", message="html5lib's sanitizer is deprecated", category=DeprecationWarning)
    from tensorboard import plugin_util

# These write nothing into a unit, see tests/features/films/test_films.py.
OF_RUNS = {name for name, form in registry.formats().items() if form.local}
WRITERS = [name for name in registry.formats() if name != "mp4" or find_spec("av")]
OF_UNITS = [name for name in WRITERS if name not in OF_RUNS]
HOSTILE = "<img src=x onerror=alert(1)> | `a` **b** _c_ [d](javascript:alert(1)) &lt; \\| \n# e \"f\" 'g' \u202e"


UNIT = make_unit()


def make_picture(name="00 features.0", group="maps", side=6, **facts):
    """A grid of one tile, with its texts as text; the input has neither."""
    pixels = np.random.default_rng(len(name)).integers(0, 256, (side, side + 1), np.uint8)
    facts = {"layer": name, "type": "Conv2d", **facts}
    picture = Picture(group, name, png.encode(pixels), side + 1, side, facts)
    return picture if group == "input" else as_grid(picture, pixels)


def open_handles(directory):
    """List the files below a directory that this process holds open."""
    handles = Path("/proc/self/fd")
    if not handles.exists():
        pytest.skip("needs Linux")
    targets = [handle.readlink() for handle in handles.iterdir() if handle.is_symlink()]
    return [target for target in targets if target.is_relative_to(directory)]


def files(directory):
    return {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}


def open_writer(name, directory):
    return load(registry.form(name).open_writer)(directory)


# What holds for every writer, also for those still to be written.


def test_all_formats_have_writers():
    assert {"png", "tensorboard"} <= set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_is_opened_for_one_image_or_many(name):
    assert list(inspect.signature(load(registry.form(name).open_writer)).parameters) == ["directory", "many"]
    assert registry.form(name).format in {"", *WRITERS}
    assert unit_patterns(name)


@pytest.mark.parametrize("name", OF_UNITS)
def test_a_writer_writes_into_its_directory_and_closes_everything(name, tmp_path):
    pictures = [make_picture("input", "input"), make_picture(), make_picture(f"01 {HOSTILE}", weights=HOSTILE)]
    with open_writer(name, tmp_path) as writer:
        stored = writer.add(UNIT, pictures)
    for picture, where in zip(pictures, stored, strict=bool(stored)):
        assert (tmp_path / where.file).read_bytes()[where.offset :].startswith(picture.png)
    assert files(tmp_path)
    assert all(any(fnmatch(path, pattern) for pattern in unit_patterns(name)) for path in files(tmp_path))
    assert all(path.stat().st_size for path in files(tmp_path).values())
    assert not open_handles(tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_accepts_no_pictures(name, tmp_path):
    with open_writer(name, tmp_path) as writer:
        writer.add(UNIT, [])
    assert not open_handles(tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_lets_an_exception_through_and_closes_everything(name, tmp_path):
    class Stop(BaseException):
        pass

    def interrupted():
        with open_writer(name, tmp_path) as writer:
            writer.add(UNIT, [make_picture()])
            raise Stop

    with pytest.raises(Stop):
        interrupted()
    assert not open_handles(tmp_path)


@pytest.mark.parametrize("name", OF_UNITS)
def test_a_writer_without_its_directory_is_an_error(name, tmp_path):
    def homeless():
        with open_writer(name, tmp_path / "missing") as writer:
            writer.add(UNIT, [make_picture()])

    with pytest.raises(FileNotFoundError):
        homeless()


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on file sizes")
@pytest.mark.parametrize("name", OF_UNITS)
@pytest.mark.parametrize("side", [4, *thorough(300)])
def test_a_writer_never_hides_a_full_disk(name, side, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (side, side), np.uint8)
    picture = as_grid(Picture("maps", "00 features.0", png.encode(pixels), side, side, {"layer": "features.0"}), pixels)
    unit = make_unit()
    with limited_files(10), pytest.raises(OSError, match="File too large") as caught, open_writer(name, tmp_path) as writer:
        writer.add(unit, [picture])
    assert caught.value.errno == errno.EFBIG


# PNG files.


def test_png_files_hold_the_picture_under_its_name(tmp_path):
    pictures = [make_picture("input", "input"), make_picture(), make_picture(f"01 ../{HOSTILE}")]
    with open_writer("png", tmp_path) as writer:
        writer.add(UNIT, pictures)
    assert {name: path.read_bytes() for name, path in files(tmp_path).items()} == {
        picture.file_name: picture.png for picture in pictures
    }


def test_a_png_file_is_never_overwritten(tmp_path):
    (tmp_path / make_picture().file_name).write_text("mine")
    with open_writer("png", tmp_path) as writer, pytest.raises(FileExistsError):
        writer.add(UNIT, [make_picture()])
    assert (tmp_path / make_picture().file_name).read_text() == "mine"


# TensorBoard, read back by the two readers it has itself. Each runs in a process of its own: the fast one is a program
# that ends with the process that started it.

READER = """
import base64, json, sys, time
from tensorboard.context import RequestContext
from tensorboard.data.provider import RunTagFilter

def slow(logdir):
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    multiplexer = EventMultiplexer().AddRunsFromDirectory(logdir)
    multiplexer.Reload()
    return MultiplexerDataProvider(multiplexer, logdir)

def fast(logdir):
    from tensorboard.data.server_ingester import SubprocessServerDataIngester, get_server_binary
    from tensorboard.util.grpc_util import ChannelCredsType
    ingester = SubprocessServerDataIngester(get_server_binary(), logdir, reload_interval=0,
                                            channel_creds_type=ChannelCredsType.LOCAL)
    ingester.start()
    return ingester.data_provider

def read(provider, expected):
    where = {"ctx": RequestContext(), "experiment_id": "", "plugin_name": "images"}
    deadline = time.monotonic() + 300
    while True:  # the fast reader answers while it is still loading
        index = provider.list_blob_sequences(**where)
        if sum(map(len, index.values())) >= expected or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for run, series in index.items():
        for tag, about in series.items():
            found = provider.read_blob_sequences(**where, downsample=10, run_tag_filter=RunTagFilter([run], [tag]))
            (datum,) = found[run][tag]
            blobs = [provider.read_blob(RequestContext(), blob_key=value.blob_key) for value in datum.values]
            yield {"run": run, "tag": tag, "step": datum.step, "max_length": about.max_length,
                   "display_name": about.display_name, "description": about.description,
                   "width": int(blobs[0]), "height": int(blobs[1]), "png": base64.b64encode(blobs[2]).decode()}

print(json.dumps(list(read({"slow": slow, "fast": fast}[sys.argv[1]](sys.argv[2]), int(sys.argv[3])))))
"""


def read_back(reader, logdir, expected):
    """List what TensorBoard finds, as `{(run, tag): ...}` in the order of the tags."""
    if reader == "fast":
        pytest.importorskip("tensorboard_data_server", reason="TensorBoard has no fast reader for this platform")
    command = [sys.executable, "-c", READER, reader, logdir, str(expected)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
    return {(one["run"], one["tag"]): one for one in sorted(json.loads(result.stdout), key=lambda one: one["tag"])}


@pytest.mark.parametrize("reader", ["fast", *thorough("slow")])
def test_tensorboard_finds_every_picture_of_finished_units(reader, tmp_path):
    layers = ["features.0", "layer1.10", "layer1.9", "layer1.0.relu#2", "out['aux']", HOSTILE, "schicht ä 層"]
    pictures = [make_picture("input", "input")] + [make_picture(f"{n:02} {name}") for n, name in enumerate(layers)]
    for run in ("alexnet/a b.png", "alexnet/lena.png"):
        (tmp_path / run).mkdir(parents=True)
        with tensorboard.open_writer(tmp_path / run) as writer:
            writer.add(UNIT, pictures)
    (tmp_path / "unfinished").mkdir()
    with tensorboard.open_writer(tmp_path / "unfinished") as writer:
        writer.add(UNIT, pictures)
        found = read_back(reader, tmp_path, 2 * len(pictures))
    assert len(found) == 2 * len(pictures)
    for run in ("alexnet/a b.png", "alexnet/lena.png"):
        mine = [one for (name, _), one in found.items() if name == run]
        assert [one["display_name"] for one in mine] == [printable(picture.name) for picture in pictures]
        for one, picture in zip(mine, pictures, strict=True):
            assert one["png"] == base64.b64encode(picture.png).decode()
            assert (one["width"], one["height"]) == (picture.width, picture.height)
            assert (one["step"], one["max_length"]) == (0, 3)
            assert shown(plugin_util.markdown_to_safe_html(one["description"])) == cells_of(picture.facts)
    assert ("alexnet/lena.png", "maps/00 features.0") in found


def test_grey_pictures_are_still_grey_in_the_event_file(tmp_path):
    with tensorboard.open_writer(tmp_path) as writer:
        writer.add(UNIT, [make_picture()])
    (path,) = tmp_path.iterdir()
    _, event = map(Event.FromString, RawEventFileLoader(str(path)).Load())
    assert Image.open(BytesIO(event.summary.value[0].tensor.string_val[2])).mode == "L"


@settings(deadline=None, max_examples=20)
@given(st.dictionaries(st.text(), st.text(), max_size=3))
@example({HOSTILE: HOSTILE})
@example({"a": "|---|", "|---|": "```\n<script>alert(1)</script>\n```"})
@example({"\x02wzxhzdk:0\x03": "\x02amp\x03 &#60;b&#62;"})
@example({"https://example.com": "<https://example.com> mailto:a@example.com ![a](b)"})
@pytest.mark.thorough
def test_facts_are_shown_verbatim(facts):
    """Markdown contains only table cells, even before TensorBoard removes dangerous elements."""
    description = summaries._table(facts)
    unsafe = markdown.markdown(description, extensions=["tables", "fenced_code"])  # as TensorBoard sets it up
    assert shown(unsafe) == cells_of(facts)
    assert shown(plugin_util.markdown_to_safe_html(description)) == cells_of(facts)


def cells_of(facts):
    cells = ((squeeze(printable(key)), squeeze(printable(value))) for key, value in facts.items())
    return [row for row in cells if any(row)]


def squeeze(text):
    return " ".join(text.split())


def shown(html):
    """Return the rows of a table as a browser shows them; any element that no plain table has is an error."""
    cells = []

    class Table(HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag in {"table", "thead", "tbody", "tr", "th", "td"}
            assert not attrs
            if tag in {"th", "td"}:
                cells.append("")

        def handle_data(self, data):
            if cells:
                cells[-1] += data

    parser = Table()
    parser.feed(html)
    parser.close()
    texts = [squeeze(cell) for cell in cells]
    rows = zip(texts[::2], texts[1::2], strict=True)
    return [row for row in rows if any(row)]  # Markdown adds an empty row to a table that has only its heading
