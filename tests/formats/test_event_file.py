from __future__ import annotations

import errno
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from failing_disk import limited_files
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_TENSOR
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
from tensorboard.plugins.image.metadata import parse_plugin_metadata

from fmapviz.core.drawings import Histogram
from fmapviz.formats.tensorboard import event_file
from fmapviz.formats.tensorboard.event_file import Record
from fmapviz.formats.tensorboard.image_summary import summaries
from fmapviz.types import Drawing, Picture


def make_image(name="00 conv", png=b"\x89PNG..."):
    (record,) = summaries(Picture("maps", name, png, 8, 4, {}), {"what": "*"})
    return record


def read_records(path):
    """Read with TensorBoard's own reader, which checks both checksums of every record."""
    reader = pywrap_tensorflow.PyRecordReader_New(str(path))
    try:
        while True:
            reader.GetNext()
            yield reader.record()
    except OutOfRangeError:
        return
    finally:
        reader.file_handle.close()


def test_tensorboard_reads_the_events_back_in_order(tmp_path):
    path = tmp_path / "events.out.tfevents.x"
    with event_file.create(path) as append:
        for n in range(3):
            append(make_image(str(n)))
    header, *images = map(Event.FromString, read_records(path))
    assert header.file_version == "brain.Event:2"
    assert header.source_metadata.writer == "fmapviz"
    assert [event.summary.value[0].tag for event in images] == ["maps/0", "maps/1", "maps/2"]
    assert list(RawEventFileLoader(str(path)).Load()) == list(read_records(path))


def test_an_image_is_the_summary_that_tensorboards_image_plugin_expects():
    event = Event.FromString(b"".join(make_image(png=b"\x89PNG")))
    (value,) = event.summary.value
    assert event.step == 0
    assert event.wall_time > 1.7e9
    assert (value.tag, value.metadata.display_name) == ("maps/00 conv", "00 conv")
    assert value.metadata.summary_description == "| what | &#42; |\n|---|---|"
    assert value.metadata.plugin_data.plugin_name == "images"
    assert value.metadata.data_class == DATA_CLASS_BLOB_SEQUENCE
    assert parse_plugin_metadata(value.metadata.plugin_data.content).version == 0
    assert list(value.tensor.string_val) == [b"8", b"4", b"\x89PNG"]
    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [3]


def test_a_histogram_is_also_the_summary_that_tensorboards_histogram_plugin_expects():
    drawing = Drawing("histogram", Histogram(np.array([3, 1]), 0.0, 1.0, 0))
    _, record = summaries(Picture("histogram", "00 conv", b"", 8, 4, {}, drawing=drawing), {}, step=7)
    event = Event.FromString(b"".join(record))
    (value,) = event.summary.value
    assert event.step == 7
    assert (value.tag, value.metadata.display_name) == ("values/00 conv", "00 conv")
    assert value.metadata.plugin_data.plugin_name == "histograms"
    assert value.metadata.data_class == DATA_CLASS_TENSOR
    assert list(value.tensor.double_val) == [0.0, 0.5, 3.0, 0.5, 1.0, 1.0]
    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [2, 3]


@pytest.mark.sampled
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 3_000_000])
@pytest.mark.parametrize("step", [0, 1, 300, 2**62])
def test_a_record_equals_that_of_protobuf(size, step):
    """Every field, in the order in which protobuf writes them: it would write the same bytes."""
    facts = {"Layer": "é" * (size % 300), "Shape": "64 x 55 x 55"}
    picture = Picture("maps", "00 conv", bytes(size), 458, 70_000, {}, title="x" * (size % 200))
    (record,) = summaries(picture, facts, step=step)
    event = Event.FromString(b"".join(record))
    assert event.SerializeToString(deterministic=True) == b"".join(record)
    assert event.step == step
    assert record.picture is picture.png
    assert list(event.summary.value[0].tensor.string_val) == [b"458", b"70000", picture.png]


def test_each_flipped_byte_is_detected(tmp_path):
    whole = tmp_path / "whole.tfevents"
    with event_file.create(whole) as append:
        append(make_image())
    data = whole.read_bytes()
    broken = tmp_path / "broken.tfevents"
    for position in range(len(data)):
        broken.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(DataLossError):
            list(read_records(broken))


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(32), bytes(range(256)) * 9], ids=len)
def test_the_framing_equals_that_of_tfrecord(tmp_path, data):
    path = tmp_path / "records"
    with path.open("wb") as file:
        assert event_file.write_record(file, Record(data[:5], data[5:9], data[9:])) == len(data)
    written = path.read_bytes()
    length = struct.pack("<Q", len(data))
    masked = [struct.pack("<I", pywrap_tensorflow.masked_crc32c(part)) for part in (length, data)]
    assert written == length + masked[0] + data + masked[1]


def test_nothing_looks_like_an_event_file_before_it_is_complete(tmp_path):
    path = tmp_path / "events.out.tfevents.x"
    with event_file.create(path) as append:
        append(make_image())
        assert not list(tmp_path.glob("*tfevents*"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_no_event_file_and_no_open_handle(tmp_path):
    appends = []

    def interrupted():
        with event_file.create(tmp_path / "events.out.tfevents.x") as append:
            append(make_image())
            appends.append(append)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.glob("*tfevents*"))
    with pytest.raises(ValueError, match="closed file"):
        appends[0](make_image())


def test_an_unfinished_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "events.partial").write_text("mine")
    with pytest.raises(FileExistsError), event_file.create(tmp_path / "events.out.tfevents.x"):
        pass
    assert (tmp_path / "events.partial").read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("size", [10, 1_000_000], ids=["noticed when closing", "noticed when writing"])
def test_a_full_disk_is_an_error(size):
    with pytest.raises(OSError, match="No space left") as caught, Path("/dev/full").open("wb") as file:
        event_file.write_record(file, Record(bytes(size)))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on file sizes")
@pytest.mark.parametrize(("limit", "size", "phase"), [(20, 10, "closing"), (100_000, 3_000_000, "writing")])
def test_a_full_disk_is_detected_at_writing_and_closing(tmp_path, limit, size, phase):
    """A small file waits in a buffer until it is closed: only then does the disk object."""
    phases = []

    def write():
        with event_file.create(tmp_path / "events.out.tfevents.x") as append:
            phases.append("writing")
            append(make_image(png=bytes(size)))
            phases.append("closing")

    with limited_files(limit), pytest.raises(OSError, match="File too large") as caught:
        write()
    assert (phases[-1], caught.value.errno) == (phase, errno.EFBIG)
    assert list(tmp_path.iterdir()) == [tmp_path / "events.partial"]


def test_writing_events_loads_neither_torch_nor_tensorflow(run_python):
    code = "import sys, fmapviz.formats.tensorboard; print([m for m in ('torch', 'tensorflow') if m in sys.modules])"
    result = run_python(code)
    assert result.stdout == "[]\n"
    assert result.stderr == ""


def test_the_checksum_is_computed_in_c():
    """In Python it would take a second for what takes a millisecond."""
    assert event_file.google_crc32c.implementation == "c"
