from __future__ import annotations

import struct
import threading
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from fmapviz.draw import png

GREY = array_shapes(min_dims=2, max_dims=2, max_side=70)
RGB = GREY.map(lambda shape: (*shape, 3))


def open_png(data):
    """Decode with Pillow, which verifies the checksum of every chunk it reads."""
    image = Image.open(BytesIO(data))
    image.load()
    return image


def walk(data):
    """Yield the chunks of a PNG file as the specification defines them, without trailing bytes."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    position = 8
    while position < len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        assert len(body) == length
        assert checksum == zlib.crc32(name + body)
        yield name, body
        position += 12 + length


@settings(deadline=None, max_examples=50)
@given(arrays(np.uint8, GREY | RGB))
def test_every_picture_is_read_back_bit_for_bit(pixels):
    assert np.array_equal(np.asarray(open_png(png.encode(pixels))), pixels)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4099), (4099, 1), (3, 2), (1, 1, 3), (1, 2, 3), (5, 1, 3), (1031, 77, 3)])
def test_edge_shapes_are_read_back(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(np.asarray(open_png(png.encode(pixels))), pixels)


@pytest.mark.parametrize(("shape", "mode"), [((8, 9), "L"), ((8, 9, 3), "RGB")])
def test_grey_stays_grey_and_colour_stays_colour(shape, mode):
    assert open_png(png.encode(np.full(shape, 7, np.uint8))).mode == mode


@pytest.mark.parametrize("shape", [(31, 17), (31, 17, 3)])
def test_a_png_file_follows_the_specification(shape):
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    chunks = list(walk(png.encode(pixels, {"layer": "features.0", "name": "é 層"})))
    assert [name for name, _ in chunks] == [b"IHDR", b"tEXt", b"iTXt", b"IDAT", b"IEND"]
    assert chunks[0][1] == struct.pack(">IIBBBBB", 17, 31, 8, 0 if len(shape) == 2 else 2, 0, 0, 0)
    assert chunks[-1][1] == b""
    stream = zlib.decompressobj()  # a whole zlib stream with its checksum, and nothing behind it
    rows = stream.decompress(chunks[3][1])
    assert stream.eof
    assert not stream.unused_data
    assert len(rows) == 31 * (17 * (len(shape) * 2 - 3) + 1)


def test_the_checks_detect_a_flipped_byte():
    """The checks above can fail."""
    data = bytearray(png.encode(np.zeros((40, 40), np.uint8)))
    data[50] ^= 1
    with pytest.raises(AssertionError):
        list(walk(bytes(data)))


@pytest.mark.parametrize(
    "pixels",
    [
        np.arange(256, dtype=np.uint8).reshape(16, 16).T,
        np.arange(256, dtype=np.uint8).reshape(16, 16)[::-2, ::3],
        np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8).transpose(1, 2, 0),
        np.broadcast_to(np.arange(9, dtype=np.uint8)[:, None, None], (9, 5, 3)),
    ],
    ids=["transposed", "strided", "planar", "broadcast"],
)
def test_pixels_of_any_memory_layout_are_accepted(pixels):
    assert np.array_equal(np.asarray(open_png(png.encode(pixels))), pixels)


def test_pixels_are_not_changed():
    pixels = np.random.default_rng(2).integers(0, 256, (20, 30), np.uint8)
    before = pixels.copy()
    pixels.flags.writeable = False
    png.encode(pixels)
    assert np.array_equal(pixels, before)


def test_equal_pixels_are_encoded_to_equal_files():
    pixels = feature_maps()
    assert png.encode(pixels, {"a": "b"}) == png.encode(pixels, {"a": "b"})


def test_threads_do_not_disturb_each_other():
    pictures = [np.random.default_rng(n).integers(0, 256, (300, 300), np.uint8) for n in range(8)]
    files = {}
    threads = [threading.Thread(target=lambda n=n: files.update({n: png.encode(pictures[n])})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(np.asarray(open_png(files[n])), pictures[n]) for n in range(8))


@pytest.mark.parametrize(
    "value",
    ["Conv2d", "", "two\nlines", "straße ±1", "層 🙂", "<img src=x onerror=alert(1)>", "x" * 200_000, "é層" * 50_000],
    ids=["ascii", "empty", "lines", "latin-1", "unicode", "html", "long", "long unicode"],
)
def test_text_is_read_back(value):
    image = open_png(png.encode(np.zeros((2, 2), np.uint8), {"layer": value, "after": "whole"}))
    assert image.text == {"layer": value, "after": "whole"}


@pytest.mark.parametrize(
    ("value", "written"),
    [("a\0b", r"a\x00b"), ("層\0", r"層\x00"), ("photo\udce9.png", r"photo\udce9.png")],
    ids=["nul", "nul in unicode", "lone surrogate"],
)
def test_text_that_png_cannot_hold_is_escaped(value, written):
    """A file name that is not UTF-8 reaches Python with lone surrogates in it."""
    image = open_png(png.encode(np.zeros((2, 2), np.uint8), {"layer": value}))
    assert image.text == {"layer": written}


@pytest.mark.parametrize("key", ["", "k" * 80, "a\0b", "層", "two\nlines"])
def test_a_keyword_that_png_cannot_hold_is_refused(key):
    with pytest.raises(ValueError, match="keyword"):
        png.encode(np.zeros((2, 2), np.uint8), {key: "value"})


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (0, 5, 3), (5, 0, 3)])
def test_empty_pixels_are_refused(shape):
    with pytest.raises(ValueError, match="must not be empty"):
        png.encode(np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int8), np.zeros(4, np.uint8), np.zeros((2, 2, 2), np.uint8)],
    ids=["float", "int8", "1-d", "LA"],
)
def test_pixels_of_other_types_and_shapes_are_refused(pixels):
    with pytest.raises(ValueError, match="must be uint8"):
        png.encode(pixels)


@pytest.mark.parametrize(("smooth", "most"), [(1, 1.25), (0, 1.55)])
def test_files_are_little_larger_than_pillows(smooth, most):
    pixels = feature_maps(smooth)
    pillow = BytesIO()
    Image.fromarray(pixels).save(pillow, "PNG")
    assert len(png.encode(pixels)) < most * len(pillow.getvalue())


def is_stored(data):
    """Return True if a PNG file's first deflate block is not compressed: its type, two bits, is 0."""
    (content,) = (body for name, body in walk(data) if name == b"IDAT")
    return content[2] & 0b110 == 0


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(65, 300), st.integers(65, 300), st.sampled_from([(), (3,), (4,)])),
    st.integers(1, 8),
    st.integers(0, 2**32 - 1),
)
def test_noise_is_stored_and_what_can_be_compressed_by_half_is_not(shape, bits, seed):
    height, width, depth = shape
    pixels = np.random.default_rng(seed).integers(0, 2**bits, (height, width, *depth)).astype(np.uint8)
    data = png.encode(pixels)
    assert np.array_equal(np.asarray(open_png(data)), pixels)
    if bits > 6:
        assert is_stored(data)
    if bits < 4:
        assert not is_stored(data)
    assert len(data) <= pixels.nbytes + height + 5 * (pixels.nbytes // 65_000 + 1) + 100


@pytest.mark.parametrize("smooth", [0, 0.25, 0.5, 0.75, 1, 2])
def test_a_picture_is_stored_where_compression_would_leave_two_thirds(smooth):
    pixels = feature_maps(smooth)
    rows = np.diff(pixels, axis=1, prepend=np.uint8(0))
    remains = len(zlib.compress(rows.tobytes(), 1)) / rows.size
    assert remains > 0.58 if is_stored(png.encode(pixels)) else remains < 0.7


# Rows of which one, two and three blocks of 65,535 bytes are just full, or one byte longer.
@pytest.mark.parametrize(
    "shape", [(1, 65_534), (1, 65_535), (2, 65_534), (65_535, 1), (3, 43_689), (3, 65_535), (5, 13_106, 3)]
)
def test_stored_rows_of_any_number_of_blocks_are_read_back(shape):
    pixels = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    data = png.encode(pixels)
    assert is_stored(data)
    (content,) = (body for name, body in walk(data) if name == b"IDAT")
    stream = zlib.decompressobj()
    rows = np.frombuffer(stream.decompress(content), np.uint8).reshape(shape[0], -1)
    assert stream.eof
    assert not stream.unused_data
    assert not rows[:, 0].any()  # no filter
    assert np.array_equal(rows[:, 1:].reshape(shape), pixels)
    assert np.array_equal(np.asarray(open_png(data)), pixels)


def feature_maps(smooth=0):
    """Tile the outputs of sixteen random 7x7 kernels on noise with the spectrum of a photograph, or of a smooth picture."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(112), np.fft.fftfreq(112))) + 1 / 112
    spectrum = np.fft.fft2(rng.normal(size=(112, 112))) / frequency ** (1.5 + smooth)
    seen = np.fft.ifft2(spectrum * np.fft.fft2(rng.normal(size=(16, 7, 7)), (112, 112))).real
    low, high = seen.min((1, 2), keepdims=True), seen.max((1, 2), keepdims=True)
    tiles = np.zeros((16, 114, 114), np.uint8)
    tiles[:, 2:, 2:] = 255 * (seen - low) / (high - low)
    return tiles.reshape(4, 4, 114, 114).swapaxes(1, 2).reshape(456, 456)


def test_small_pictures_are_compressed_deterministically_by_zlib():
    # ISA-L's output for the grid of a layer of single pixels is not always the same.
    for pixels in (np.zeros((14, 12), np.uint8), np.zeros((29, 26), np.uint8), np.eye(40, dtype=np.uint8)):
        data = png.encode(pixels)
        start = data.index(b"IDAT")
        length = int.from_bytes(data[start - 4 : start], "big")
        content = data[start + 4 : start + 4 + length]
        assert content == zlib.compress(zlib.decompress(content), level=1)
        assert np.array_equal(np.asarray(Image.open(BytesIO(data))), pixels)
