"""What differs between two files is named, and rounding is told from other content."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from base64 import b64encode
from html import escape
from io import BytesIO
from tarfile import TarFile
from zipfile import ZipFile

import numpy as np
import pytest
from cases import thorough
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from recorded_runs import draw, forge, furnish
from safetensors.numpy import load_file, save
from tensorboard.compat.proto.event_pb2 import Event

from fmapviz.core import checksummed_json
from fmapviz.draw import png
from fmapviz.formats.html.page import pixel_script, read_script, script
from fmapviz.formats.tar import append
from fmapviz.formats.tensorboard.event_file import Record, read_events, write_record
from fmapviz.formats.tensorboard.image_summary import literal
from fmapviz.run.compared_files import compare_files, compare_units

OF_IMAGE, OF_SHARD = "png,svg,html,raw,npz,stats,tensorboard", "tar,stats,tensorboard"
EVENTS = "events.out.tfevents.fmapviz"
WHITE = png.encode(np.full((50, 50), 255, np.uint8))


def differences(name, old, new):
    return [
        (each.message, each.is_rounding)
        for each in compare_files(name, {name: old}.__getitem__, {name: new}.__getitem__)
    ]  # fmt: skip


def is_rounding(name, old, new):
    """Return whether all differences may be rounding; None if there is none."""
    found = differences(name, old, new)
    return all(rounding for _, rounding in found) if found else None


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 59))
def test_the_pixels_of_a_grey_picture_are_counted(before, after, position):
    pixels = np.full((6, 10), before, np.uint8)
    changed = pixels.copy()
    changed.flat[position] = after
    found = differences("a.png", png.encode(pixels), png.encode(changed))
    apart = abs(before - after)
    levels = f"{apart} grey level{'s' if apart > 1 else ''}"
    assert found == ([(f"1 of 60 pixels differs, by up to {levels}", apart <= 1)] if apart else [])


@settings(deadline=None, max_examples=40)
@given(st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32))
def test_a_number_in_an_array_is_compared_with_the_largest(one, other):
    old, new = (save({"layer": np.array([1000.0, value, 0], np.float32)}) for value in (one, other))
    assume(one != other)
    ((message, rounding),) = differences("raw.safetensors", old, new)
    assert message.startswith("1 number differs, by up to ")
    assert rounding == (abs(one - other) <= 1)


@pytest.mark.parametrize("name", ["a.png", *thorough("raw.safetensors", "raw.npz", "stats.parquet", "a.svg", "unknown")])
@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=80))
def test_no_content_makes_the_comparison_fail(name, data):
    whole = png.encode(np.zeros((3, 4), np.uint8))
    assert all(isinstance(message, str) for message, _ in differences(name, whole + data, data + whole))
    assert all(isinstance(message, str) for message, _ in differences(name, data, whole))


def test_the_same_pixels_in_other_bytes_are_no_other_content():
    pixels = np.arange(60, dtype=np.uint8).reshape(6, 10)
    Image.fromarray(pixels).save(buffer := BytesIO(), "PNG", compress_level=0)
    assert differences("a.png", png.encode(pixels), buffer.getvalue()) == [("the same content in other bytes", True)]


# --- files of runs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a network and three images."""
    return furnish(tmp_path_factory.mktemp("compared"))


@pytest.fixture(scope="module")
def of_image(place):
    return draw(place, place / "images", to=OF_IMAGE, views="maps,gradcam") / "a.png"


@pytest.fixture(scope="module")
def of_shard(place):
    return next(draw(place, place / "shards", to=OF_SHARD, views="maps,mean", shard=3).glob("shard-*"))


def without_floats(table):
    kept = [each.name for each in table.schema if "float" not in str(each.type) and "double" not in str(each.type)]
    return table.select(kept).to_pydict(), table.schema.metadata


def floats_of(name, data):
    """Return the positions of a file where a changed byte may be a number that is rounded, or part of one."""
    if name.endswith(".safetensors"):
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__")
        ends = [each["data_offsets"] for each in header.values() if each["dtype"].startswith("F")]
        spans = [(8 + length + begin, 8 + length + end) for begin, end in ends]
        spans += [match.span() for match in re.finditer(rb"-?\d+\.\d+(e-\d+)?", data[: 8 + length])]
    elif name in {"report.js", "unit.json"} or name.endswith((".svg", ".tar")):
        spans = [match.span() for match in re.finditer(rb"-?\d+\.\d+(e-\d+)?|\d+ %|[A-Za-z0-9+/]{12,}", data)]
    else:
        spans = []
    return {position for begin, end in spans for position in range(begin, end)}


@pytest.mark.parametrize("unit", ["of_image", *thorough("of_shard")])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.data())
def test_any_changed_byte_that_is_no_computed_number_is_another_file(unit, choices, request):
    directory = request.getfixturevalue(unit)
    name = choices.draw(st.sampled_from(sorted(each.name for each in directory.iterdir() if each.name != "unit.json")))
    data = (directory / name).read_bytes()
    position = choices.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    changed[position] ^= choices.draw(st.integers(1, 255))
    found = list(compare_files(name, lambda each: bytes(changed) if each == name else (directory / each).read_bytes(),
                               lambda each: (directory / each).read_bytes()))  # fmt: skip
    if not found or all(each.is_rounding for each in found):
        if name.endswith(".parquet"):  # its pages may be stored as they are
            tables = (parquet.read_table(BytesIO(each)) for each in (data, bytes(changed)))
            assert len({str(without_floats(each)) for each in tables}) == 1
            return
        assert position in floats_of(name, data), [name, position, data[max(0, position - 40) : position + 40]]


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["of_image", "of_shard"])
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.data(), more=st.binary(min_size=1, max_size=9))
def test_any_bytes_at_an_end_are_found(unit, choices, more, request):
    directory = request.getfixturevalue(unit)
    name = choices.draw(st.sampled_from(sorted(each.name for each in directory.iterdir())))
    data = (directory / name).read_bytes()
    for changed in (data + more, more + data, data[: -len(more)]):
        assert is_rounding(name, changed, data) is False, name


def nodes(tree, path=()):
    """Yield the path of each value of JSON."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from nodes(value, (*path, key))


def change(value):
    """Return another value of JSON that no rounding explains."""
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 10**400
    if isinstance(value, str):
        return value + " x"
    return {**value, "more": 1} if isinstance(value, dict) else [*value, 0]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.data())
def test_any_changed_field_of_a_record_or_a_script_is_another_one(choices, of_image):
    name = choices.draw(st.sampled_from(["unit.json", "report.js"]))
    data = (of_image / name).read_bytes()
    record = json.loads(data) if name == "unit.json" else read_script(data)
    record.pop("sha256", None)
    if name == "unit.json":
        record["files"] = [{"name": each["name"]} for each in record["files"]]
    *path, last = choices.draw(st.sampled_from(list(nodes(record))))
    held = record
    for key in path:
        held = held[key]
    before = held[last]

    def made():
        return checksummed_json.dumps(record) if name == "unit.json" else script("unit", record)

    right = made()
    if isinstance(before, float):
        held[last] = before * (1 + 1e-6)
        assert is_rounding(name, made(), right), (path, last)
    held[last] = change(before)
    assert is_rounding(name, made(), right) is False, (path, last)
    if isinstance(held, dict):
        del held[last]
        held["other"] = before
        assert is_rounding(name, made(), right) is False, (path, last)


# --- forged units


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def insert(kind, content, before=b"IDAT"):
    def forged(data):
        at = data.index(before) - 4
        return data[:at] + chunk(kind, content) + data[at:]

    return forged


def retold(data):
    Image.open(BytesIO(data)).save(made := BytesIO(), "PNG")
    return insert(b"tEXt", b"Predicted\0tumour 100.0 %")(made.getvalue())


def animated(data):
    picture = Image.open(BytesIO(data))
    white = Image.new(picture.mode, picture.size, 255)
    picture.save(made := BytesIO(), "PNG", save_all=True, default_image=True, append_images=[white])
    return made.getvalue()


def behind_pixels(data):
    at = data.index(b"IDAT")
    (size,) = struct.unpack_from(">I", data, at - 4)
    return data[: at - 4] + chunk(b"IDAT", data[at + 4 : at + 4 + size] + b"more") + data[at + size + 8 :]


def white_in_svg(data):
    return re.sub(rb'base64,[^"]*', b"base64," + b64encode(WHITE), data)


def in_tensors(change):
    def forged(data, path):
        (length,) = struct.unpack_from("<Q", data)
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        return save(*change(load_file(path), metadata))

    return forged


def other_type(arrays, metadata):
    return arrays, {**metadata, "layers": metadata["layers"].replace("Conv2d", "Linear")}


def other_names(arrays, metadata):
    return {f"{name}x": each for name, each in arrays.items()}, metadata


def other_documents(members):
    return [(name, data.replace(b"Conv2d", b"Linear")) for name, data in members]


def another_rest(arrays, metadata):
    return arrays | {"rest": np.full_like(arrays["mean"], 0.5)}, metadata


def another_count(arrays, metadata):
    return arrays | {"zeros": np.full(len(arrays["mean"]), 1, np.uint32)}, metadata


def another_file(data, path):
    with ZipFile(path) as archive, ZipFile(made := BytesIO(), "w") as other:
        for each in archive.namelist():
            other.writestr(each, archive.read(each))
        other.writestr("more.npy", b"")
    return made.getvalue()


def another_comment(data, path):
    (made := BytesIO()).write(data)
    with ZipFile(made, "a") as archive:
        archive.comment = b"more"
    return made.getvalue()


def in_tar(change):
    def forged(_data, path):
        with TarFile.open(path) as archive:
            members = [(each.name, archive.extractfile(each).read()) for each in archive]
        with TarFile(fileobj=(made := BytesIO()), mode="w", format=TarFile.format) as archive:
            for name, content in change(members):
                append(archive, name, content)
        return made.getvalue()

    return forged


def in_events(change):
    def forged(_data, path):
        made = BytesIO()
        for event in list(read_events(path)):
            if event.summary.value:
                change(event)
            write_record(made, Record(event.SerializeToString()))
        return made.getvalue()

    return forged


def another_tag(event):
    event.summary.value[0].tag += "x"


def another_step(event):
    event.step += 1


def another_plugin(event):
    event.summary.value[0].metadata.plugin_data.plugin_name = "text"


def another_description(event):
    event.summary.value[0].metadata.summary_description += "\nmore"


def another_picture(event):
    event.summary.value[0].tensor.string_val[2] = WHITE


def alone(function):
    return lambda data, _path: function(data)


PICTURE, SVG = "00_0.maps.png", "00_0.maps.svg"
FORGERIES = {
    "a white picture in an SVG file": (SVG, alone(white_in_svg)),
    "another SVG file": (SVG, alone(lambda _data: b'<svg xmlns="http://www.w3.org/2000/svg"/>')),
    "a word in an SVG file": (SVG, alone(lambda data: data.replace(b"Conv2d", b"Linear"))),
    "an animation": (PICTURE, alone(animated)),
    "another gamma": (PICTURE, alone(insert(b"gAMA", b"\0\0\0\1"))),
    "a transparent colour": (PICTURE, alone(insert(b"tRNS", b"\0\0"))),
    "other facts": (PICTURE, alone(retold)),
    "bytes behind IEND": (PICTURE, alone(lambda data: data + b"more")),
    "bytes behind the pixels": (PICTURE, alone(behind_pixels)),
    "metadata of tensors": ("raw.safetensors", in_tensors(other_type)),
    "a tensor of another name": ("raw.safetensors", in_tensors(other_names)),
    "the rest of the mean": ("stats.safetensors", in_tensors(another_rest)),
    "a count": ("stats.safetensors", in_tensors(another_count)),
    "another file in a NumPy archive": ("raw.npz", another_file),
    "a comment of a NumPy archive": ("raw.npz", another_comment),
    "a script": ("report.js", alone(lambda _data: b"alert(1)")),
    "the pictures of the report": ("pixels.js", alone(lambda _data: b"alert(1)")),
    "a white picture in the report": ("pixels.js", alone(lambda _data: b"".join(pixel_script([(PICTURE, WHITE)])))),
    "a tag": (EVENTS, in_events(another_tag)),
    "a step": (EVENTS, in_events(another_step)),
    "a plugin": (EVENTS, in_events(another_plugin)),
    "a description": (EVENTS, in_events(another_description)),
    "a picture of an event": (EVENTS, in_events(another_picture)),
}  # fmt: skip
OF_SHARDS = {
    "names in an archive": ("pictures.tar", in_tar(lambda members: [(f"x{name}", data) for name, data in members])),
    "the order in an archive": ("pictures.tar", in_tar(lambda members: members[::-1])),
    "a document in an archive": ("pictures.tar", in_tar(other_documents)),
    "bytes behind an archive": ("pictures.tar", alone(lambda data: data + bytes(512))),
    "a tag in a shard": (EVENTS, in_events(another_tag)),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("forgery", [*FORGERIES, *OF_SHARDS])
def test_a_forged_file_is_no_rounding_even_if_others_are_rounded(forgery, of_image, of_shard, tmp_path):
    right = of_shard if forgery in OF_SHARDS else of_image
    unit = shutil.copytree(right, tmp_path / right.name)
    name, forged = {**FORGERIES, **OF_SHARDS}[forgery]
    forge(unit, name, forged((unit / name).read_bytes(), unit / name))
    if forgery in FORGERIES:
        picture = Image.open(unit / "input.png")
        pixels = np.array(picture)
        pixels.flat[0] ^= 1
        forge(unit, "input.png", png.encode(pixels, picture.text))
    found = compare_units(unit, right, lambda path: path.open("rb"))
    assert {each.name.partition(",")[0] for each in found if not each.is_rounding} == {name}
    assert [each.is_rounding for each in found if each.name == "input.png"] == [True] * (forgery in FORGERIES)


def test_bytes_between_the_columns_of_another_version_are_found(of_shard):
    data = (of_shard / "stats.parquet").read_bytes()
    version = parquet.read_metadata(BytesIO(data)).created_by
    other = data.replace(version.encode(), version[:-1].encode() + (b"1" if version[-1] == "0" else b"0"))
    assert other != data
    assert is_rounding("stats.parquet", other, data)
    footer = len(other) - 8 - int.from_bytes(other[-8:-4], "little")
    assert is_rounding("stats.parquet", other[:footer] + b"more" + other[footer:], data) is False


def test_times_of_events_do_not_count(of_image):
    def later(event):
        event.wall_time += 1

    path = of_image / EVENTS
    data = path.read_bytes()
    assert is_rounding(EVENTS, in_events(later)(data, path), data) is None


# --- names in facts

CLASSES = (
    "0.12",
    "0.15",
    "2.5",
    "12",
    "class 3",
    "3.5 % milk",
    "a 5.1 %, b",
    "cat",
    "0.1, 2.5",
    "v_1.0 <'x'>",
    "1e-5",
    "70.4",
)
COMPUTED = {"Predicted": "{} 70.4 %, {} 0.1234 %", "Class": "{} (number 3), {}, logit 0.1234, probability 70.4 %"}


def pictures_of(facts, width=3):
    """Return a PNG, an event and an SVG file with facts, the latter also with their texts as lines."""
    data = png.encode(np.zeros((width, width), np.uint8), facts)
    described = "\n".join(f"{key}: {escape(value, quote=False)}" for key, value in facts.items())
    line = '<text x="300.5" y="4" textLength="{}" fill="#fff">{}</text>'
    lines = (line.format(7 * len(value), escape(value, quote=False)) for value in facts.values())
    table = "\n".join(f"| {literal(key)} | {literal(value)} |" for key, value in facts.items())
    event = Event()
    event.summary.value.add(tag="a").metadata.summary_description = table
    write_record(events := BytesIO(), Record(event.SerializeToString()))
    return {
        "a.png": data,
        EVENTS: events.getvalue(),
        "a.svg": f"<svg><desc>{described}</desc>{''.join(lines)}</svg>".encode("ascii"),
    }


def is_rounded(name, old, new, classes=CLASSES):
    found = list(compare_files(name, lambda _: old[name], lambda _: new[name], classes=classes))
    return bool(found) and all(each.is_rounding for each in found)


@settings(deadline=None, max_examples=25)
@given(choices=st.data(), key=st.sampled_from([*COMPUTED]), name=st.sampled_from(["a.png", "a.svg", EVENTS]))
def test_a_class_in_a_fact_is_no_rounded_number(choices, key, name):
    one, other = choices.draw(st.permutations(CLASSES))[:2]
    right = pictures_of({key: COMPUTED[key].format(one, other)})
    forged = choices.draw(
        st.sampled_from([*CLASSES, "0.13", "0.11", "2.501", "12.01", "class 3.001", "3.6 % milk", "a 5.2 %, b"])
    )
    assume(forged != other)
    assert not is_rounded(name, pictures_of({key: COMPUTED[key].format(one, forged)}), right)
    for before, after in (("70.4 %", "72.4 %"), ("0.1234", "0.1299"), ("70.4 %", "70.4")):
        assert not is_rounded(name, pictures_of({key: COMPUTED[key].format(one, other).replace(before, after)}), right)


@pytest.mark.parametrize("name", ["a.png", "a.svg", EVENTS])
@pytest.mark.parametrize("one", [each for each in CLASSES if each != "70.4"])
def test_the_scores_of_a_class_are_rounded(one, name):
    facts = {"Predicted": f"{one} 70.4 %, cat 29.6 %", "Class": f"{one} (number 3), top1, logit 0.1234"}
    rounded = {key: value.replace("29.6 %", "29.7 %").replace("0.1234", "0.1235") for key, value in facts.items()}
    assert is_rounded(name, pictures_of(rounded), pictures_of(facts))


@pytest.mark.parametrize(
    ("right", "forged"),
    [
        ("0.001 to 0.002", "0.002 to 0.003"),
        ("0.12 to 0.34", "0.4 to 0.34"),
        ("12 to 70.5", "12.001 to 70.5"),
    ],
)
@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_a_number_of_a_fact_is_compared_with_its_own_fact(right, forged, name):
    assert not is_rounded(
        name, pictures_of({"Range": forged, "Mean": "2000.5"}), pictures_of({"Range": right, "Mean": "2000.5"})
    )


@pytest.mark.parametrize(
    ("version", "is_same"), [("0.1.9", True), ("0.3.0rc1", True), ("MALIGNANT 100 %", False), ("0.2.0+bad", False)]
)
def test_a_version_is_a_version(version, is_same, of_image, tmp_path):
    run = shutil.copytree(of_image.parent, tmp_path / "run")
    record = json.loads((run / "run.json").read_bytes())
    del record["sha256"]
    right = f"fmapviz {record['versions']['fmapviz']}"
    record["versions"]["fmapviz"] = version
    (run / "run.json").write_bytes(checksummed_json.dumps(record))
    picture = Image.open(run / of_image.name / "input.png")
    facts = {key: value.replace(right, f"fmapviz {version}") for key, value in picture.text.items()}
    forge(run / of_image.name, "input.png", png.encode(np.array(picture), facts))
    found = compare_units(run / of_image.name, of_image, lambda path: path.open("rb"))
    assert all(each.is_rounding for each in found) == is_same


# --- rounded units


NOISE = """

right = build


def build():
    network = right()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for each in network.parameters():
            each.mul_(1 + 1e-7 * torch.randn_like(each))
    return network
"""


@pytest.mark.parametrize(
    "options", [{"to": OF_IMAGE, "views": "maps,gradcam"}, *thorough({"to": OF_SHARD, "views": "maps,mean", "shard": 3})]
)
def test_a_network_that_rounds_otherwise_gives_rounded_files(options, tmp_path):
    """A network whose weights are changed by little stands for another processor."""
    code = furnish(tmp_path) / "net.py"
    right = draw(tmp_path, tmp_path / "right", **options)
    code.write_text(code.read_text() + NOISE)
    again = draw(tmp_path, tmp_path / "again", **options)
    checksums = (re.findall(r"[0-9a-f]{16,64}", (run / "run.json").read_text()) for run in (right, again))
    pairs, rounded = frozenset(zip(*checksums, strict=True)), set()  # the weights are others
    for path in (path for path in right.rglob("*") if (path.parent / "unit.json").exists() and "kernels" not in path.name):
        unit = path.parent.relative_to(right)
        files = ((lambda name, unit=run / unit: (unit / name).read_bytes()) for run in (right, again))
        found = list(compare_files(path.name, *files, versions=pairs))
        assert [str(each) for each in found if not each.is_rounding] == []
        rounded |= {path.name for _ in found}
    assert rounded >= ({"index.parquet", "ranking.parquet", "stats.parquet", "unit.json"} if "shard" in options else
                       {"raw.npz", "raw.safetensors", "stats.safetensors", "report.js", "unit.json"})  # fmt: skip
