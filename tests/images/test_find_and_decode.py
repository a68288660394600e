from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, BytesIO, RawIOBase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import bad_images
import numpy as np
import PIL
import pytest
from bad_images import ZOO, chunk, encoded, flipped, picture, png
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage
from users import another_user
from waiting import PATIENCE

from fmapviz.core.checksummed_json import dumps
from fmapviz.core.samples import Samples
from fmapviz.errors import InputError, NothingToDoError, RequestError
from fmapviz.images.arrays import scale
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import find_images, path_hash, read_list, unit_name
from fmapviz.images.notices import TRANSPARENT
from fmapviz.run.loop import visualize
from fmapviz.types import Failure, ImageFile

if TYPE_CHECKING:
    from fmapviz.types import Image


def read(path: Path | str) -> Image:
    return read_image(ImageFile(str(path), "unit"))


@pytest.fixture
def read_bytes(tmp_path):
    """Write bytes to a file and read them as an image: its pixels and its notices."""

    def read_it(content: bytes, name: str = "file") -> tuple[np.ndarray, tuple[str, ...]]:
        (tmp_path / name).write_bytes(content)
        image = read(tmp_path / name)
        if isinstance(image.pixels, Samples):
            return np.stack([np.rint(np.asarray(plane) * 255) for plane in scale(image.pixels).planes], -1), image.notices
        assert image.pixels.mode == "RGB"
        return np.asarray(image.pixels), image.notices

    return read_it


@pytest.fixture
def orientation_of(tmp_path):
    """Write bytes to a file and return the orientation with which it is read."""

    def read_it(content: bytes) -> int:
        (tmp_path / "oriented").write_bytes(content)
        return read(tmp_path / "oriented").orientation

    return read_it


def refusal(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    assert re.fullmatch(r"[^\n]*: '[^\n]*'", str(caught.value))
    assert str(path) in str(caught.value)
    return caught.value.code


def run_python(code: str, *arguments: object, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)


def units(*inputs: Path | str, avoid: Path | None = None) -> list[str]:
    found = list(find_images(map(str, inputs), avoid=avoid))
    assert all(isinstance(file, ImageFile) for file in found), found
    return [file.unit for file in found if isinstance(file, ImageFile)]


def codes(*inputs: Path | str) -> list[str]:
    return [found.code if isinstance(found, Failure) else found.unit for found in find_images(map(str, inputs))]


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not looked into")


# --- refusals


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ZOO)
def test_a_bad_file_is_refused_with_its_code(name, tmp_path, capfd):
    code, content = ZOO[name]
    (tmp_path / name).write_bytes(content())
    before = (tmp_path / name).read_bytes()
    assert refusal(tmp_path / name) == code
    assert (tmp_path / name).read_bytes() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("AVIF", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("BMP", {}),
        ("JPEG2000", {}),
        ("PPM", {}),
        ("QOI", {}),
        ("TGA", {"compression": "tga_rle"}),
    ],
)
def test_a_truncated_file_is_refused(form, options, read_bytes):
    content = encoded(picture(), form, **options)
    whole, _ = read_bytes(content)
    refused = 0
    for length in chain(range(1, len(content), len(content) // 25), range(len(content) - 30, len(content))):
        try:
            pixels, _ = read_bytes(content[:length])
        except InputError:
            refused += 1
        else:
            np.testing.assert_array_equal(pixels, whole)  # only an end mark is missing
    assert refused >= 24


def test_each_flipped_byte_of_a_png_file_is_detected(read_bytes):
    content = encoded(picture(), "PNG")
    for position in {*range(8, len(content) - 12, 61), *range(len(content) - 40, len(content) - 12)}:
        with pytest.raises(InputError, match="damaged") as caught:
            read_bytes(flipped(content, position))
        assert caught.value.code == "E_DECODE"


@pytest.mark.thorough
def test_a_bomb_costs_no_memory(tmp_path):
    names = ["pixels.png", "text.png"]
    for name in names:
        (tmp_path / name).write_bytes(ZOO[name][1]())
    bad_images.make_good(tmp_path / "good.png")
    code = """
import resource, sys
from fmapviz.errors import InputError
from fmapviz.images.decode_pool import read_image
from fmapviz.types import ImageFile
good, *bombs = (ImageFile(path, "") for path in sys.argv[1:])
read_image(good)
for bomb in bombs:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read_image(bomb)
    except InputError as error:
        print(error.code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    answers = run_python(code, tmp_path / "good.png", *(tmp_path / name for name in names)).stdout.splitlines()
    assert len(answers) == len(names)
    for code, growth in map(str.split, answers):
        assert code == "E_TOO_LARGE"
        assert int(growth) < 8_000  # KiB; the text's first megabyte is there before the limit is


def test_the_limit_of_pixels_is_that_of_pillows_warning(tmp_path):
    (tmp_path / "over.png").write_bytes(png(chunk(b"IDAT", b""), width=9_460, height=9_459, depth=1))
    assert refusal(tmp_path / "over.png") == "E_TOO_LARGE"
    (tmp_path / "under.png").write_bytes(png(chunk(b"IDAT", b""), width=9_459, height=9_459, depth=1))
    assert refusal(tmp_path / "under.png") == "E_DECODE"


def many_passes(passes: int, side: int) -> bytes:
    """Make a progressive JPEG file that refines all its blocks, which are grey, again and again: 32767 of them in two bytes.

    ITU-T T.81: F.2.4.3 for the runs of blocks that have nothing to be refined, B.2 for the segments.
    """
    content = encoded(PillowImage.new("L", (8, 8)), "JPEG", progressive=True)
    frame, scan = content.index(b"\xff\xc2"), content.index(b"\xff\xda")
    size = struct.pack(">HH", side, side)
    head = content[: frame + 5] + size + content[frame + 9 : scan]
    table = b"\xff\xc4" + struct.pack(">HB", 20, 0x10) + b"\1" + bytes(15) + b"\xe0"  # one code, of one bit: a run of blocks
    runs = "0" + "1" * 14
    bits = runs * ((side // 8 + 1) ** 2 // 32767 + 1)
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    first = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 0, 1)
    again = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 63, 0x21) + data
    return head + first + table + again * passes + b"\xff\xd9"


def test_a_jpeg_file_of_too_many_scans_is_refused_at_once(read_bytes, tmp_path):
    (tmp_path / "passes.jpg").write_bytes(many_passes(2000, 9000))
    assert (tmp_path / "passes.jpg").stat().st_size < 300_000
    assert refusal(tmp_path / "passes.jpg") == "E_TOO_LARGE"
    pixels, _ = read_bytes(many_passes(2000, 48))
    assert pixels.shape == (48, 48, 3)


def test_an_offset_outside_the_file_is_damage(tmp_path):
    content = encoded(picture(), "JPEG2000")
    box = content.index(b"ftyp") - 4
    (tmp_path / "offset.jp2").write_bytes(content[:box] + struct.pack(">I4sQ", 1, b"ftyp", 2**63 - 50) + content[box + 16 :])
    assert refusal(tmp_path / "offset.jp2") == "E_DECODE"


@pytest.mark.thorough
def test_decoders_print_nothing_on_standard_error(tmp_path):
    (tmp_path / "exif.jpg").write_bytes(bad_images.broken_exif())
    (tmp_path / "bomb.png").write_bytes(bad_images.pixel_bomb(10_000))
    deflated = encoded(picture(), "TIFF", compression="tiff_adobe_deflate")
    (tmp_path / "deflated.tif").write_bytes(flipped(deflated, 2000))
    samples = encoded(picture(), "TIFF").replace(struct.pack("<HHII", 277, 3, 1, 3), struct.pack("<HHII", 277, 3, 1, 4099))
    (tmp_path / "samples.tif").write_bytes(samples)
    ours = """
import sys
from fmapviz.errors import InputError
from fmapviz.images.decode_pool import read_image
from fmapviz.types import ImageFile
for path in sys.argv[1:]:
    try:
        read_image(ImageFile(path, ""))
        print("read")
    except InputError as error:
        print(error.code)
"""
    theirs = """
import os, sys, warnings
from PIL import Image
warnings.simplefilter("always")
for path in sys.argv[1:]:
    os.write(2, b"\\0")
    try:
        Image.open(path).load()
    except Exception:
        pass
    sys.stderr.flush()
"""
    names = ["exif.jpg", "bomb.png", "deflated.tif", "samples.tif"]
    paths = [tmp_path / name for name in names]
    process = run_python(ours, *paths, options=("-W", "default"))
    assert process.stderr == ""
    assert process.stdout.split() == ["read", "E_TOO_LARGE", "E_DECODE", "E_DECODE"]
    said = run_python(theirs, *paths).stderr.split("\0")[1:]
    assert len(said) == len(names)
    assert all(said), "a file does not test anything"


def test_pillow_is_quiet_also_when_another_filter_came_first(tmp_path, recwarn, read_bytes):
    assert "damaged" in read_bytes(bad_images.broken_exif())[1][0]
    import warnings

    warnings.simplefilter("error")
    assert "damaged" in read_bytes(bad_images.broken_exif())[1][0]


def test_an_avif_with_the_brand_of_its_container_is_read(read_bytes, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    content = encoded(picture(), "AVIF").replace(b"ftypavif", b"ftypmif1", 1)
    assert read_bytes(content)[0].shape == (48, 64, 3)


def test_ghostscript_is_not_started(tmp_path, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "page.eps").write_bytes(encoded(picture(), "EPS"))
    assert refusal(tmp_path / "page.eps") == "E_FORMAT"
    assert not (tmp_path / "started").exists()
    with pytest.raises((OSError, subprocess.CalledProcessError)), PillowImage.open(tmp_path / "page.eps") as image:
        image.load()
    assert (tmp_path / "started").exists(), "this test does not test anything"


def test_a_heic_file_without_its_package_has_a_hint_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(500))
    with pytest.raises(InputError) as caught:
        read(tmp_path / "photo.heic")
    assert (caught.value.code, caught.value.hint) == ("E_FORMAT", "pip install 'fmapviz[heic]'")


def test_a_heic_file_is_read_with_its_package(tmp_path):
    from extras import pillow_heif

    exif = PillowImage.Exif()
    exif[0x0112] = 6
    stored = PillowImage.fromarray(picture())
    pillow_heif.from_pillow(stored).save(tmp_path / "photo.jpg", quality=95, exif=exif.tobytes())
    pixels = np.asarray(read(tmp_path / "photo.jpg").pixels)
    assert pixels.shape == (64, 48, 3)
    np.testing.assert_allclose(pixels, np.rot90(picture(), -1), atol=60)


def test_errors_of_the_system_have_a_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.png")
    Path("zero.png").symlink_to("/dev/zero")
    Path("dangling.png").symlink_to("nowhere.png")
    Path("loop.png").symlink_to("loop.png")
    Path("folder.png").mkdir()
    touch(Path("file.png"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.png")
        assert refusal("socket.png") == "E_TYPE"
    assert refusal("fifo.png") == "E_TYPE"
    assert refusal("zero.png") == "E_TYPE"
    assert refusal("folder.png") == "E_TYPE"
    assert refusal("dangling.png") == "E_MISSING"
    assert refusal("gone.png") == "E_MISSING"
    assert refusal("file.png/inside.png") == "E_MISSING"
    assert refusal("loop.png") == "E_READ"


def test_a_file_without_permission_is_a_failure(tmp_path):
    with tempfile.TemporaryDirectory() as name:  # tmp_path lies in a folder that is closed to others
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("open.png", "closed.png", "shut/inside.png"):
            (folder / file).parent.mkdir(exist_ok=True)
            bad_images.make_good(folder / file)
        read(folder / "open.png")
        codes(folder / "open.png")  # imports modules that the other user may not read
        (folder / "closed.png").chmod(0)
        (folder / "shut").chmod(0)
        with another_user():
            read(folder / "open.png")
            assert refusal(folder / "closed.png") == "E_PERM"
            assert codes(folder) == ["closed.png", "open.png", "E_PERM"]
            assert codes(folder / "shut/inside.png", folder / "shut") == ["E_PERM", "E_PERM"]
        (folder / "shut").chmod(0o755)


# --- reading


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("BMP", {}),
        ("JPEG2000", {}),
        ("PPM", {}),
        ("QOI", {}),
        ("TGA", {}),
    ],
)
def test_lossless_formats_are_read_exactly_and_by_content(form, options, read_bytes):
    pixels, notices = read_bytes(encoded(picture(), form, **options), "photo.jpg")
    np.testing.assert_array_equal(pixels, picture())
    assert notices == ()


@pytest.mark.parametrize("form", ["JPEG", "AVIF", "MPO"])
def test_lossy_formats_are_read_closely(form, read_bytes):
    smooth = np.stack([np.tile(np.arange(64) * 3, (48, 1))] * 3, axis=-1).astype(np.uint8)
    other = PillowImage.new("RGB", (64, 48))
    options = {"save_all": True, "append_images": [other]} if form == "MPO" else {}
    pixels, notices = read_bytes(encoded(smooth, form, quality=95, **options))
    np.testing.assert_allclose(pixels, smooth, atol=6)
    assert notices == ()


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)])
def test_pictures_of_extreme_shapes_are_read(size, read_bytes):
    assert read_bytes(encoded(PillowImage.new("RGB", size, (1, 2, 3)), "PNG"))[0].shape == (size[1], size[0], 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})])
def test_each_orientation_is_applied(form, options, orientation, read_bytes, orientation_of):
    content = bad_images.oriented(picture(), orientation, form, **options)
    pixels, notices = read_bytes(content)
    np.testing.assert_array_equal(pixels, picture())
    assert notices == ()
    assert orientation_of(content) == orientation


@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_orientation_of_a_photo_is_applied(orientation, read_bytes):
    quarters = np.zeros((32, 64, 3), np.uint8)
    quarters[:16, :32], quarters[:16, 32:], quarters[16:, :32] = (200, 0, 0), (0, 200, 0), (0, 0, 200)
    pixels, notices = read_bytes(bad_images.oriented(quarters, orientation, "JPEG", quality=100, subsampling=0))
    np.testing.assert_allclose(pixels, quarters, atol=3)
    assert notices == ()


def test_the_orientation_of_deep_pixels_is_applied(read_bytes):
    pixels, _ = read_bytes(bad_images.oriented(DEEP.astype(np.uint16), 8, "PNG"))
    np.testing.assert_array_equal(pixels[..., 0], scaled(DEEP))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_is_a_notice(form, read_bytes):
    pixels, notices = read_bytes(bad_images.broken_exif(form))
    assert notices == ("EXIF data is damaged: the picture may not be upright",)
    assert np.abs(pixels.astype(int) - picture()).mean() < 15


@pytest.mark.parametrize(
    "block", [b"", b"Exif\0\0", b"garbage", b"Exif\0\0XX*\0\x08\0\0\0\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff"]
)
def test_no_exif_block_makes_a_picture_unreadable(block, read_bytes):
    content = encoded(picture(), "PNG")
    middle = content.index(b"IDAT") - 4
    pixels, _ = read_bytes(content[:middle] + chunk(b"eXIf", block) + content[middle:])
    np.testing.assert_array_equal(pixels, picture())


def test_only_an_unknown_orientation_is_reported(read_bytes, orientation_of):
    for orientation, expected in ((0, 0), (1, 0), (9, 1), (500, 1)):
        exif = PillowImage.Exif()
        exif[0x0112] = orientation
        pixels, notices = read_bytes(encoded(picture(), "PNG", exif=exif.tobytes()))
        np.testing.assert_array_equal(pixels, picture())
        assert len(notices) == expected
        assert orientation_of(encoded(picture(), "PNG", exif=exif.tobytes())) == 1


def scaled(values: np.ndarray) -> np.ndarray:
    """The rule in whole numbers: an odd range has no ties to round."""
    low, high = int(values.min()), int(values.max())
    assert (high - low) % 2
    return np.array([[(510 * (int(value) - low) + high - low) // (2 * (high - low)) for value in row] for row in values])


DEEP = np.array([[1000, 1001, 1234], [4000, 4999, 5001]])


@pytest.mark.parametrize(
    ("dtype", "form"),
    [
        ("<u2", "PNG"),
        ("<u2", "TIFF"),
        (">u2", "TIFF"),
        ("<u2", "PPM"),
        ("<i4", "TIFF"),
        ("<f4", "TIFF"),
        ("<u2", "JPEG2000"),
    ],
)
def test_deep_pixels_are_scaled_from_their_own_range(dtype, form, read_bytes):
    pixels, notices = read_bytes(encoded(DEEP.astype(dtype), form))
    np.testing.assert_array_equal(pixels, np.stack([scaled(DEEP)] * 3, axis=-1))
    assert notices == ("more than 8 bits per channel: 1000..5001 scaled to 0..1",)


@pytest.mark.thorough
def test_large_deep_pictures_are_scaled_like_small_ones(tmp_path):
    """They are gone through in parts."""
    deep = np.add.outer(np.arange(3000), np.arange(3000)).astype(np.uint16) * 10
    PillowImage.fromarray(deep).save(tmp_path / "deep.tif")
    found = np.asarray(scale(read(tmp_path / "deep.tif").pixels).planes[1])
    np.testing.assert_allclose(found, deep / 59980, atol=1e-7)


def test_negative_and_extreme_deep_pixels_are_scaled(read_bytes):
    values = np.array([[-(2**31), 0, 2**31 - 1]])
    pixels, _ = read_bytes(encoded(values.astype("<i4"), "TIFF"))
    np.testing.assert_array_equal(pixels[..., 0], scaled(values))


def test_values_that_are_no_numbers_are_drawn(read_bytes):
    values = np.array([[np.nan, np.inf, -np.inf, -1, 0, 3]], np.float32)
    pixels, notices = read_bytes(encoded(values, "TIFF"))
    np.testing.assert_array_equal(pixels[0, :, 0], [0, 255, 0, 0, 64, 255])
    assert "-1..3" in notices[0]


def test_a_signalling_nan_is_black(read_bytes):
    content = encoded(np.array([[-1, 0.25, 3]], np.float32), "TIFF")
    assert content.count(struct.pack("<f", 0.25)) == 1
    pixels, _ = read_bytes(content.replace(struct.pack("<f", 0.25), b"\x01\x00\xa0\x7f"))
    np.testing.assert_array_equal(pixels[0, :, 0], [0, 0, 255])


@pytest.mark.parametrize("value", [7, np.nan, np.inf])
def test_values_without_a_range_are_black_and_infinity_white(value, read_bytes):
    pixels, _ = read_bytes(encoded(np.full((2, 3), value, np.float32), "TIFF"))
    assert (pixels == (255 if value == np.inf else 0)).all()


def over_black(colors: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return np.rint(colors.astype(float) * alpha[..., np.newaxis].astype(float) / 255).astype(np.uint8)


ALPHA = np.tile(np.arange(64) * 4, (48, 1)).astype(np.uint8)


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})])
def test_transparency_lies_over_black(form, options, read_bytes):
    pixels, notices = read_bytes(encoded(np.dstack([picture(), ALPHA]), form, **options))
    np.testing.assert_array_equal(pixels, over_black(picture(), ALPHA))
    assert notices == (TRANSPARENT,)


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})])
def test_an_opaque_alpha_channel_is_not_reported(form, options, read_bytes):
    pixels, notices = read_bytes(encoded(np.dstack([picture(), np.full_like(ALPHA, 255)]), form, **options))
    np.testing.assert_array_equal(pixels, picture())
    assert notices == ()


def test_grey_with_transparency_lies_over_black(read_bytes):
    grey = picture()[..., 0]
    image = PillowImage.merge("LA", [PillowImage.fromarray(grey), PillowImage.fromarray(ALPHA)])
    pixels, notices = read_bytes(encoded(image, "PNG"))
    np.testing.assert_array_equal(pixels, over_black(np.dstack([grey] * 3), ALPHA))
    assert notices == (TRANSPARENT,)


PALETTE = np.array([[255, 0, 0], [10, 200, 30], [0, 0, 255], [90, 90, 90]], np.uint8)
INDICES = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.uint8)


def paletted() -> PillowImage.Image:
    image = PillowImage.fromarray(INDICES).convert("P")
    image.putdata(INDICES.ravel().tolist())
    image.putpalette(PALETTE.ravel().tolist())
    return image


@pytest.mark.parametrize("form", ["PNG", "GIF", "TIFF", "BMP"])
def test_a_palette_is_converted(form, read_bytes):
    pixels, notices = read_bytes(encoded(paletted(), form))
    np.testing.assert_array_equal(pixels, PALETTE[INDICES])
    assert notices == ()


def test_a_palette_with_transparency_lies_over_black(read_bytes):
    opacity = np.array([255, 128, 0, 40], np.uint8)
    pixels, notices = read_bytes(encoded(paletted(), "PNG", transparency=opacity.tobytes()))
    np.testing.assert_array_equal(pixels, over_black(PALETTE[INDICES], opacity[INDICES]))
    assert notices == (TRANSPARENT,)
    pixels, notices = read_bytes(encoded(paletted(), "GIF", transparency=1))
    assert notices == (TRANSPARENT,)
    np.testing.assert_array_equal(pixels, np.where((INDICES == 1)[..., np.newaxis], 0, PALETTE[INDICES]))


def test_a_transparent_color_is_black(read_bytes):
    rgb = PALETTE[INDICES]
    pixels, notices = read_bytes(encoded(rgb, "PNG", transparency=(10, 200, 30)))
    assert notices == (TRANSPARENT,)
    np.testing.assert_array_equal(pixels, np.where((INDICES == 1)[..., np.newaxis], 0, rgb))
    pixels, _ = read_bytes(encoded(rgb[..., 0], "PNG", transparency=255))
    np.testing.assert_array_equal(pixels[..., 0], np.where(INDICES == 0, 0, rgb[..., 0]))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP", "PPM"])
def test_pixels_of_one_bit_are_converted(form, read_bytes):
    bits = picture()[..., 0] > 100
    pixels, notices = read_bytes(encoded(PillowImage.fromarray(bits), form))
    np.testing.assert_array_equal(pixels, np.dstack([bits * 255] * 3))
    assert notices == ()


def test_a_grey_picture_is_converted(read_bytes):
    grey = picture()[..., 1]
    np.testing.assert_array_equal(read_bytes(encoded(grey, "PNG"))[0], np.dstack([grey] * 3))


@pytest.mark.parametrize(("form", "tolerance"), [("TIFF", 1), ("JPEG", 4)])
def test_cmyk_is_converted(form, tolerance, read_bytes):
    inks = np.zeros((16, 64, 4), np.uint8)
    inks[:, :16], inks[:, 16:32], inks[:, 32:48] = (255, 0, 0, 0), (0, 100, 200, 0), (40, 50, 60, 70)
    options = {"quality": 100, "subsampling": 0} if form == "JPEG" else {}
    pixels, _ = read_bytes(encoded(PillowImage.frombytes("CMYK", (64, 16), inks.tobytes()), form, **options))
    expected = (255 - inks[..., :3].astype(float)) * (255 - inks[..., 3:].astype(float)) / 255
    np.testing.assert_allclose(pixels, expected, atol=tolerance)


OLD_PILLOW = pytest.mark.skipif(PIL.__version__ < "13", reason="Pillow 12 cannot read the file that it wrote")


@pytest.mark.parametrize("options", [{"compression": "tiff_lzw"}, pytest.param({}, marks=OLD_PILLOW)])
def test_luminance_and_chroma_are_converted(options, read_bytes):
    ycc = np.array([[[50, 128, 128], [150, 100, 160], [200, 140, 120]]], np.uint8)
    pixels, _ = read_bytes(encoded(PillowImage.frombytes("YCbCr", (3, 1), ycc.tobytes()), "TIFF", **options))
    y, cb, cr = (ycc[..., axis].astype(float) - (128 if axis else 0) for axis in range(3))
    expected = np.stack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], axis=-1)
    np.testing.assert_allclose(pixels, expected, atol=1)


def test_lab_is_converted(read_bytes):
    lab = PillowImage.frombytes("LAB", (3, 1), bytes([0, 0, 0, 255, 0, 0, 138, 81, 70]))
    pixels, _ = read_bytes(encoded(lab, "TIFF"))
    assert pixels[0, 0].max() < 4
    assert pixels[0, 1].min() > 250
    np.testing.assert_allclose(pixels[0, 2], [255, 0, 0], atol=5)  # L 54.3, a 81, b 70 under D50: the red of sRGB


@pytest.mark.parametrize("form", ["WEBP", "PNG", "TIFF"])
def test_the_first_of_several_pictures_is_read_with_a_notice(form, read_bytes):
    pixels, notices = read_bytes(bad_images.animation(form, frames=3))
    np.testing.assert_array_equal(pixels, picture(0))
    assert notices == ("holds several pictures: only the first is used",)


def test_the_first_picture_of_a_gif_file_is_read(read_bytes):
    pixels, notices = read_bytes(encoded(paletted(), "GIF", save_all=True, append_images=[paletted().transpose(0)]))
    np.testing.assert_array_equal(pixels, PALETTE[INDICES])
    assert notices == ("holds several pictures: only the first is used",)


def test_only_the_pixels_are_kept(tmp_path):
    exif = PillowImage.Exif()
    exif[0x0112] = 3
    PillowImage.fromarray(picture()).save(tmp_path / "a.png", icc_profile=b"profile" * 30, exif=exif.tobytes())
    image = read(tmp_path / "a.png")
    (tmp_path / "a.png").unlink()
    assert type(image.pixels) is PillowImage.Image  # not a Pillow ImageFile, which would hold on to its stream
    assert image.pixels.info == {}
    assert not image.pixels.getexif()
    assert not any("a.png" in os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())


@pytest.mark.thorough
def test_several_threads_read_the_same_as_one(tmp_path):
    bad_images.make_zoo(tmp_path)
    (tmp_path / "exif.jpg").write_bytes(bad_images.broken_exif())
    for number in range(8):
        (tmp_path / f"good{number}.png").write_bytes(bad_images.oriented(picture(number), number + 1, "PNG"))
        (tmp_path / f"good{number}.tif").write_bytes(encoded(picture(number), "TIFF", compression="tiff_lzw"))

    def answer(path: Path) -> object:
        try:
            image = read(path)
        except InputError as error:
            return error.code, str(error)
        return image.notices, image.pixels.tobytes()

    paths = sorted(tmp_path.iterdir())
    expected = [answer(path) for path in paths]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answer, paths * 4)) == expected * 4


@pytest.mark.thorough
def test_a_fresh_process_reads_in_threads_without_torch(tmp_path):
    for name, form in (("a", "WEBP"), ("b", "QOI"), ("c", "TIFF"), ("d", "JPEG2000"), ("e", "AVIF"), ("f", "TGA")):
        (tmp_path / name).write_bytes(encoded(picture(), form))
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import find_images
with ThreadPoolExecutor(6) as threads:
    print(*(image.pixels.size for image in threads.map(read_image, find_images(sys.argv[1:]))))
assert "torch" not in sys.modules
"""
    assert run_python(code, *sorted(tmp_path.iterdir())).stdout.split("(")[1:] == ["64, 48) "] * 5 + ["64, 48)\n"]


# --- listing


def test_images_of_a_folder_are_listed_in_natural_order_with_their_tree(tmp_path):
    names = [
        "b/img10.png",
        "b/img2.png",
        "b/IMG1.JPG",
        "b/img02.png",
        "a10.png",
        "a9.webp",
        "C.tiff",
        "z/y/x.heic",
        "z/movie.MP4",
        "10/1.bmp",
    ]
    touch(*(tmp_path / name for name in names))
    touch(*(tmp_path / name for name in ("notes.txt", "b/data.csv", "png", ".hidden.png", ".git/x.png", "page.pdf")))
    expected = [
        "10/1.bmp",
        "a9.webp",
        "a10.png",
        "b/IMG1.JPG",
        "b/img02.png",
        "b/img2.png",
        "b/img10.png",
        "C.tiff",
        "z/movie.MP4",
        "z/y/x.heic",
    ]
    assert units(tmp_path) == expected
    assert units(f"{tmp_path}/b/../") == expected


def test_a_named_file_is_found_by_any_name(tmp_path, monkeypatch):
    photo = tmp_path / "a b/photo"
    touch(tmp_path / "notes.txt", photo)
    os.utime(tmp_path / "notes.txt", ns=(5, 1_700_000_000_123_456_789))
    monkeypatch.chdir(tmp_path / "a b")
    assert list(find_images(["../notes.txt", "photo"])) == [
        ImageFile(str(tmp_path / "notes.txt"), "notes.txt", {"size": 15, "mtime_ns": 1_700_000_000_123_456_789}),
        ImageFile(str(photo), "photo", {"size": 15, "mtime_ns": photo.stat().st_mtime_ns}),
    ]


def test_dots_behind_a_link_are_resolved_as_by_the_system(tmp_path):
    touch(tmp_path / "x.png", tmp_path / "far/x.png", tmp_path / "far/away/y.png")
    (tmp_path / "link").symlink_to("far/away")
    (found,) = find_images([f"{tmp_path}/link/../x.png"])
    assert found.path == str(tmp_path / "far/x.png")
    assert units(f"{tmp_path}/link/..") == ["away/y.png", "x.png"]


def test_each_file_is_found_once(tmp_path, monkeypatch):
    a, b, c = tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"
    touch(a / "1.png", b / "2.png", c / "3.png", c / "4.txt", c / ".5.png")
    (tmp_path / "link").symlink_to("a/b")
    monkeypatch.chdir(tmp_path)
    assert units(a, b) == ["1.png", "b/2.png", "b/c/3.png"]
    assert units(b, a) == ["2.png", "c/3.png", "1.png"]
    assert units(b, b, "link") == ["2.png", "c/3.png"]
    assert units(a / "1.png", "a/1.png", "a/../a/./1.png") == ["1.png"]
    assert units("link/2.png", "a/b/2.png", a) == ["2.png", "1.png", "b/c/3.png"]
    assert units(a, "link/2.png", "a/b/c/3.png") == ["1.png", "b/2.png", "b/c/3.png"]
    hidden = f"_5.png~{path_hash(str(c / '.5.png'))}"
    assert units(c, "a/b/c/4.txt", "a/b/c/.5.png") == ["3.png", "4.txt", hidden]


def test_links_are_followed_and_loops_are_not(tmp_path):
    touch(tmp_path / "in/a.png", tmp_path / "elsewhere/b.png")
    (tmp_path / "in/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/again").symlink_to("..")
    (tmp_path / "in/itself").symlink_to("itself")
    (tmp_path / "in/self").symlink_to(".")
    (tmp_path / "in/copy.png").symlink_to("a.png")
    assert units(tmp_path / "in") == ["a.png", "again/elsewhere/b.png", "copy.png"]


def test_a_folder_is_preferred_to_links_to_it(tmp_path):
    touch(*(tmp_path / name for name in ("in/folder/a.png", "in/folder/sub/b.png", "in/.hidden/c.png", "in/z/d.png")))
    (tmp_path / "in/a_link").symlink_to("folder")
    (tmp_path / "in/b_link").symlink_to(tmp_path / "in/folder/sub")
    (tmp_path / "in/c_link").symlink_to(".hidden")  # found under this name only
    (tmp_path / "in/folder/d_link").symlink_to("../z")
    (tmp_path / "top").symlink_to("in")
    found = ["c_link/c.png", "folder/a.png", "folder/sub/b.png", "z/d.png"]
    assert units(tmp_path / "in") == found
    assert units(tmp_path / "top") == found


@pytest.mark.thorough
def test_a_deep_tree_is_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):  # deeper than Python calls
        Path("d").mkdir()
        os.chdir("d")
    try:
        touch(Path("x.png"))
        (name,) = units(tmp_path)
        assert re.fullmatch(r"x\.png~[0-9a-f]{8}", name)  # Windows has no paths of this length
    finally:
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # pytest could not: shutil.rmtree calls itself


def test_other_than_regular_files_are_not_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(Path("z.png"))
    os.mkfifo("fifo")
    os.mkfifo("fifo.png")
    Path("zero.jpg").symlink_to("/dev/zero")
    Path("null").symlink_to("/dev/null")
    Path("dangling.png").symlink_to("nowhere")
    Path("dangling").symlink_to("nowhere")
    Path("loop.png").symlink_to("loop.png")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.png")
        assert codes(".") == ["E_MISSING", "E_TYPE", "E_READ", "E_TYPE", "z.png", "E_TYPE"]
    assert codes("fifo", "null", "/dev/zero", "dangling", "gone.png", "z.png/x.png", "loop.png") == [
        *["E_TYPE"] * 3,
        *["E_MISSING"] * 3,
        "E_READ",
    ]


def test_a_failure_names_the_path_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = find_images(["./\x1b[31mgone.png"])
    assert found == Failure("./\x1b[31mgone.png", "E_MISSING", r"no such file: './\x1b[31mgone.png'")


@pytest.mark.parametrize("typed", ["", "a\0b", "\ud800.png", "x" * 300, "x/" * 3000])
def test_a_text_that_cannot_be_a_path_is_a_failure(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(Path("not this.png"))
    assert codes(typed) in (["E_MISSING"], ["E_READ"])


def test_an_empty_folder_has_no_images(tmp_path):
    assert units(tmp_path) == []
    assert units() == []


def test_the_output_is_not_listed_as_an_input(tmp_path):
    touch(tmp_path / "a.png", tmp_path / "runs/alexnet/a.png/00.png", tmp_path / "b/runs/c.png", tmp_path / "run.png")
    (tmp_path / "link").symlink_to("runs")
    runs = tmp_path / "runs"
    assert units(tmp_path, avoid=runs) == ["a.png", "b/runs/c.png", "run.png"]
    assert units(runs, avoid=runs) == ["alexnet/a.png/00.png"]
    assert units(runs / "alexnet", tmp_path, avoid=runs) == ["a.png/00.png", "a.png", "b/runs/c.png", "run.png"]
    assert len(units(tmp_path, avoid=tmp_path / "not yet there")) == 4


def test_a_run_among_the_inputs_is_left_out_unless_it_is_named(tmp_path):
    touch(tmp_path / "a.png", tmp_path / "net/a.png/00.png", tmp_path / "theirs/b.png")
    (tmp_path / "net/run.json").write_bytes(dumps({"fmapviz": 2, "fingerprint": "0"}))
    (tmp_path / "theirs/run.json").write_text("{}")  # another program's
    assert units(tmp_path) == ["a.png", "theirs/b.png"]
    assert units(tmp_path / "net") == ["a.png/00.png"]


def test_output_that_appears_while_the_folder_is_walked_is_not_an_input(tmp_path):
    touch(tmp_path / "a.png", tmp_path / "b/c.png")
    found = find_images([str(tmp_path)], avoid=tmp_path / "b/runs")
    assert next(found).unit == "a.png"
    touch(tmp_path / "b/runs/alexnet/a.png/00.png")
    assert [file.unit for file in found] == ["b/c.png"]


def test_inputs_are_listed_lazily(tmp_path):
    touch(tmp_path / "a.png", tmp_path / "b.png")
    asked = []

    def typed():
        for name in ("a.png", "b.png"):
            asked.append(name)
            yield str(tmp_path / name)

    found = find_images(typed())
    assert asked == []
    next(found)
    assert asked == ["a.png"]


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_files(tmp_path):
    for number in range(60):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for name in range(100):
            (folder / f"{name}.png").touch()

    def peak() -> int:
        tracemalloc.start()
        assert sum(1 for _ in find_images([str(tmp_path)])) == 6000
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    # One folder's names; 6000 names would be 500 kB. Now and then the interpreter enlarges a table of its own.
    assert min(peak() for _ in range(3)) < 150_000


# --- names


def test_ordinary_names_are_not_changed():
    for name in (
        "lena.png",
        "a/b c/d.png",
        "Größe/日本.png",
        "x~1.png",
        "Screenshot 9.41\u202fAM.png",
        "console.png",
        "com10.png",
        "a.con",
        "-rf.png",
    ):
        assert unit_name(name, f"/photos/{name}") == name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a\nb.png", "a_b.png"),
        ("a\x1b[31m.png", "a_[31m.png"),
        ("a\\b.png", "a_b.png"),
        ("\u202egnp.exe", "_gnp.exe"),
        ("bytes\udcff.png", "bytes_.png"),
        (".hidden.png", "_hidden.png"),
        ("..", "__"),
        ("<img src=x>.png", "_img src=x_.png"),
        ("12:30.png", "12_30.png"),
        ("cats. /lena.", "cats__/lena_"),
        ("con", "_con"),
        ("Aux.x.png", "_Aux.x.png"),
        ("nul .png", "_nul .png"),
        ("COM¹/conin$.png", "_COM¹/_conin$.png"),
        ("deep/" * 40 + "x.png", "x.png"),
        (".a/.b.png", "_a/_b.png"),
        ("run.json", "_run.json"),
        ("Unit.JSON", "_Unit.JSON"),
        ("failures.jsonl/x.png", "_failures.jsonl/x.png"),
        ("events.out.tfevents.1", "events.out.tf_events.1"),
        ("TFEvents/x.png", "TF_Events/x.png"),
        ("lena.png~0123abcd", "lena.png~0123abcd"),
        ("x" * 181, "x" * 160),
        ("é" * 100 + "/x.png", "é" * 80 + "/x.png"),
    ],
)
def test_other_names_are_altered_and_numbered(name, safe):
    assert unit_name(name, f"/photos/{name}") == f"{safe}~{path_hash(f'/photos/{name}')}"


names = st.binary(min_size=1, max_size=260).filter(lambda name: b"/" not in name and b"\0" not in name).map(os.fsdecode)


@given(st.lists(names | st.text("ab~01\\_.\n", min_size=1), min_size=1, max_size=8, unique=True))
def test_each_name_becomes_a_distinct_safe_name(found):
    given_units = {unit_name(name, f"/photos/{name}") for name in found}
    assert len(given_units) == len(found)
    for unit in given_units:
        assert len(unit.encode()) < 200
        assert not unit.startswith(".")
        assert "/" not in unit
        assert "\\" not in unit
        assert not any(unicodedata.category(ch) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for ch in unit)


def test_names_of_real_files_become_safe(tmp_path):
    raw = os.fsencode(tmp_path)
    for name in (b"new\nline.png", b"\xff\xfe.png", b"plain.png"):
        Path(os.fsdecode(raw + b"/" + name)).write_bytes(b"x")
    assert sorted(re.sub("~[0-9a-f]{8}$", "~", unit) for unit in units(tmp_path)) == [
        "__.png~",
        "new_line.png~",
        "plain.png",
    ]


# --- lists


@pytest.mark.parametrize(
    ("content", "null", "expected"),
    [
        (b"", False, []),
        (b"a.png", False, ["a.png"]),
        (b"a.png\n\n\nb c.png\n", False, ["a.png", "b c.png"]),
        (b"a.png\r\n\r\nb.png\r\n", False, ["a.png", "b.png"]),
        (b"a.png\rb.png\r\r\n", False, ["a.png\rb.png\r"]),
        (b"\xef\xbb\xbfa.png\n\xef\xbb\xbfb.png\n", False, ["a.png", "\ufeffb.png"]),
        (b"\xef\xbb\xbf\r\na.png", False, ["a.png"]),
        (b" a.png \n", False, [" a.png "]),
        (b"\xff.png\n", False, ["\udcff.png"]),
        (b"a\nb.png\0\0c\r.png\r\0d.png", True, ["a\nb.png", "c\r.png\r", "d.png"]),
        (b"\xef\xbb\xbfa.png\0", True, ["a.png"]),
    ],
)
def test_a_list_of_files_is_read(content, null, expected):
    assert list(read_list(BytesIO(content), null=null)) == expected


@pytest.mark.parametrize("null", [False, True])
def test_lines_of_a_list_are_read_as_they_arrive(null):
    reading, writing = os.pipe()
    end = b"\0" if null else b"\n"
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as pen, ThreadPoolExecutor(1) as thread:
        paths = read_list(stream, null=null)
        try:
            pen.write(b"first.png" + end + b"sec")
            assert thread.submit(next, paths).result(timeout=PATIENCE) == "first.png"
            pen.write(b"ond.png" + end)
            assert thread.submit(next, paths).result(timeout=PATIENCE) == "second.png"
        finally:
            pen.close()  # lets a reader that waits for more go on
        assert list(paths) == []


class Endless(RawIOBase):
    """Sends the same bytes again and again."""

    def __init__(self, content: bytes, times: int) -> None:
        self.content, self.left = content, times

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if not self.left:
            return 0
        self.left -= 1
        buffer[: len(self.content)] = self.content
        return len(self.content)


@pytest.mark.thorough
def test_a_long_list_takes_no_memory():
    stream = BufferedReader(Endless(b"folder/picture.png\n" * 400, 250))
    tracemalloc.start()
    count = sum(1 for _ in read_list(stream, null=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 500_000


def test_a_file_that_is_no_list_is_refused():
    with pytest.raises(RequestError, match=r"not a list of paths: 'a\\x00b\\x00'"):
        list(read_list(BytesIO(b"a\0b\0"), null=False))
    assert list(read_list(BytesIO(b"c\na\0b\0"), null=False)) == ["c", "a\0b\0"]
    with pytest.raises(RequestError, match="not a list of paths: 'aaa"):
        list(read_list(BufferedReader(Endless(b"a" * 8000, 10**9)), null=False))


# --- skipped files


def test_files_that_are_no_images_are_counted_by_reason(tmp_path):
    touch(*(tmp_path / name for name in ("a.png", "b.svg", "sub/c.SVG", "sub/noext", ".hidden.png", ".git/x.png", "d.txt")))
    touch(tmp_path / "run/a.png/00.png")
    (tmp_path / "run/run.json").write_bytes(dumps({"fmapviz": 2, "fingerprint": "0"}))
    left_out = Counter()
    assert [file.unit for file in find_images([str(tmp_path)], left_out=left_out)] == ["a.png"]
    assert left_out == {".svg": 2, ".txt": 1, "no suffix": 1, "hidden": 1, "hidden folder": 1, "folder of a run": 1}


def test_a_run_reports_the_files_that_it_left_out(tmp_path):
    (tmp_path / "in").mkdir()
    bad_images.make_good(tmp_path / "in/a.png")
    touch(tmp_path / "in/b.svg", tmp_path / "in/.c.png")
    events = []
    summary = visualize("shapesnet", tmp_path / "in", out=tmp_path / "runs", to="png", on_event=events.append)
    assert summary.no_inputs == {".svg": 1, "hidden": 1}
    (tmp_path / "in/a.png").unlink()
    with pytest.raises(NothingToDoError, match=r"left out are 2 files or folders \(1 \.svg, 1 hidden\)"):
        visualize("shapesnet", tmp_path / "in", out=tmp_path / "others", to="png")
