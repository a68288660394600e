"""Images in memory are drawn like files of the same content."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import paint, save_pixels
from PIL import ExifTags, Image
from torch import nn
from torchvision.transforms.functional import pil_to_tensor

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import InputError, RequestError
from fmapviz.images import decode_pool
from fmapviz.images.find import find_images, look_again
from fmapviz.images.load import read_memory_image
from fmapviz.images.memory.image import MemoryImage, is_in_memory, memory_image
from fmapviz.images.memory.inputs import kind_of, only_files, resolve_inputs
from fmapviz.images.preprocess import standard
from fmapviz.types import Failure, ImageFile

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (12, 10, 3), np.uint8)


def preparation(channels=3):
    return standard(InputOptions(fit="none"), channels=channels)


def from_memory(value, channels=3):
    return read_memory_image(MemoryImage("image_0", kind_of(value), value), preparation(channels))


def from_file(path, channels=3):
    read = decode_pool.read_image(ImageFile(str(path), ""), channels=channels)
    return read, preparation(channels).apply(read.pixels)


def assert_same(value, path, channels=3):
    """Compare an image in memory with a file: numbers, size, orientation, notices."""
    given, (read, values) = from_memory(value, channels), from_file(path, channels)
    assert torch.equal(given.values, values)
    assert given.size == (read.pixels.width, read.pixels.height)
    assert (given.orientation, given.notices) == (read.orientation, read.notices)


# --- pixels


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK", "I;16", "F", "I"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_pillow_picture_is_read_as_its_file(mode, channels, tmp_path):
    numbers = RANDOM.random((9, 7)) * 5000
    picture = {"I;16": lambda: Image.fromarray(numbers.astype(np.uint16)), "F": lambda: Image.fromarray(np.float32(numbers)),
               "I": lambda: Image.fromarray(numbers.astype(np.int32))}.get(mode)  # fmt: skip
    picture = picture() if picture else Image.fromarray(RANDOM.integers(0, 256, (9, 7, 4), np.uint8)).convert(mode)
    picture.save(path := tmp_path / ("a.tif" if mode in {"CMYK", "F", "I"} else "a.png"))
    before = picture.tobytes()
    assert_same(picture, path, channels)
    assert_same(Image.open(path), path, channels)  # which is read only now
    assert picture.tobytes() == before


@pytest.mark.sampled
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_the_orientation_of_a_picture_is_applied_as_that_of_its_file(orientation, suffix, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(PIXELS).save(path := tmp_path / f"a{suffix}", exif=exif)
    picture = Image.open(path)
    assert_same(picture, path)
    assert from_memory(picture).orientation == orientation
    assert picture.size == (10, 12)
    assert picture.getexif()[ExifTags.Base.Orientation] == orientation
    made = Image.fromarray(np.asarray(Image.open(path)))
    made.getexif()[ExifTags.Base.Orientation] = orientation  # of no file
    assert torch.equal(from_memory(made).values, from_memory(picture).values)


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 3), (3, 9, 7), (1, 9, 7, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64, np.bool_, ">f4"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_array_is_read_as_a_npy_file_of_it(shape, dtype, channels, tmp_path):
    array = (RANDOM.random(shape) * 200).astype(dtype)
    np.save(path := tmp_path / "a.npy", array)
    assert_same(array, path, channels)
    assert_same(array[::-1][::-1], path, channels)  # another view of the same numbers


def test_an_array_of_more_channels_is_read_as_a_npy_file_of_it(tmp_path):
    for shape in ((6, 9, 7), (9, 7, 6)):
        np.save(path := tmp_path / "a.npy", array := RANDOM.integers(0, 256, shape, np.uint8))
        assert_same(array, path, 6)


def test_an_array_with_transparency_is_blended_as_its_png_file(tmp_path):
    array = RANDOM.integers(0, 256, (9, 7, 4), np.uint8)
    save_pixels(path := tmp_path / "a.png", array)
    for channels in (1, 3):
        assert_same(array, path, channels)
        assert_same(torch.from_numpy(array).permute(2, 0, 1), path, channels)
    np.save(path := tmp_path / "a.npy", array)
    assert_same(array, path, 4)  # a network that takes four channels gets them


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_tensor_is_a_picture_as_torchvision_reads_a_file(mode, channels, tmp_path):
    Image.fromarray(RANDOM.integers(0, 256, (9, 7, 4), np.uint8)).convert(mode).save(path := tmp_path / "a.png")
    with Image.open(path) as picture:
        assert_same(pil_to_tensor(picture), path, channels)


def test_a_prepared_tensor_is_used_unchanged():
    for dtype in (torch.float32, torch.float16, torch.float64):
        values = torch.randn(3, 6, 5).to(dtype).requires_grad_()
        read = from_memory(values)
        assert torch.equal(read.values, values.detach().float())
        assert (read.values.dtype, read.values.requires_grad, read.size) == (torch.float32, False, (5, 6))


@pytest.mark.parametrize(
    ("shape", "volumes", "shapes"),
    [
        ((3, 8, 9), False, [(3, 8, 9)]),
        ((2, 3, 8, 9), False, [(3, 8, 9)] * 2),
        ((2, 3, 5, 8, 9), False, [(3, 5, 8, 9)] * 2),
        ((3, 5, 8, 9), True, [(3, 5, 8, 9)]),
        ((2, 3, 5, 8, 9), True, [(3, 5, 8, 9)] * 2),
    ],
)
def test_the_number_of_images_in_a_tensor_depends_on_the_network(shape, volumes, shapes):
    assert [tuple(image.value.shape) for image in resolve_inputs(torch.rand(shape), volumes=volumes)] == shapes


def test_a_volume_is_one_image_of_a_network_of_volumes_and_of_no_other(tmp_path):
    network = nn.Sequential(nn.Conv3d(3, 4, 3))
    summary = fmapviz.visualize(network, torch.rand(3, 7, 8, 9), out=tmp_path, to="stats")
    assert (summary.done, summary.failed) == (1, 0)
    with pytest.warns(UserWarning, match="failed"):
        summary = fmapviz.visualize(
            nn.Sequential(nn.Conv2d(3, 4, 3)), np.zeros((2, 8, 9, 3), "uint8"), out=tmp_path, to="stats"
        )
    assert summary.failures[0].hint.startswith("list(array) passes each of a batch")


def test_signals_are_refused_with_a_hint():
    with pytest.raises(RequestError) as refused:
        fmapviz.visualize(nn.Sequential(nn.Conv1d(3, 4, 3)), torch.rand(3, 50), types="Conv1d")
    assert "fmapviz.capture(model)" in refused.value.hint


@pytest.mark.parametrize(
    ("value", "channels"),
    [(np.zeros((9, 7, 5)), 3), (np.zeros((2, 9, 7, 3)), 3), (torch.zeros(5, 9, 7, dtype=torch.uint8), 3),
     (Image.new("RGB", (4, 4)), 6), (torch.zeros(3, 9, 7, dtype=torch.uint8), 6)],
)  # fmt: skip
def test_another_number_of_channels_is_named_with_the_image(value, channels):
    with pytest.raises(InputError, match=r"the model takes \d channels.*'image_0'") as caught:
        from_memory(value, channels)
    assert caught.value.code == "E_CHANNELS"
    assert ".npy" not in caught.value.hint


def test_a_damaged_picture_fails_as_its_file(tmp_path):
    path = paint(tmp_path / "a.png", size=(40, 40))
    path.write_bytes(path.read_bytes()[:900])
    with Image.open(path) as picture:
        (failure,) = find_images(resolve_inputs([picture]))
    assert isinstance(failure, Failure)
    assert (failure.path, failure.code) == ("a.png", "E_DECODE")


# --- names and identities


def listed(inputs):
    return [file.unit for file in find_images(resolve_inputs(inputs))]


def test_images_are_named_by_their_files_or_positions(tmp_path):
    path = paint(tmp_path / "photo.png")
    stored = io.BytesIO(path.read_bytes())
    inputs = [path, Image.open(path), PIXELS, torch.rand(2, 3, 4, 4), Image.open(stored), torch.rand(3, 4, 4)]
    assert listed(inputs) == ["photo.png", "photo.png", "image_2", "image_3", "image_4", "image_5", "image_6"]
    assert listed(PIXELS) == listed(Image.fromarray(PIXELS)) == ["image_0"]
    assert listed(torch.rand(3, 1, 2, 4, 4)) == ["image_0", "image_1", "image_2"]  # clips
    assert listed(torch.zeros(2, 3, 4, 4, dtype=torch.uint8)) == ["image_0", "image_1"]
    assert listed(np.array([str(path)])) == ["photo.png"]
    assert listed(set()) == []


def test_equal_content_has_one_identity_and_other_content_another(tmp_path):
    def path_of(value):
        (file,) = find_images(resolve_inputs([value]))
        return file.path, file.version["sha256"]

    png = paint(tmp_path / "photo.png")
    for value, same in (
        (Image.open(png), Image.open(png)),
        (PIXELS, PIXELS.copy()),
        (torch.from_numpy(PIXELS).permute(2, 0, 1), torch.from_numpy(PIXELS.transpose(2, 0, 1).copy())),
        (torch.ones(3, 4, 4), torch.ones(3, 4, 4, requires_grad=True)),
    ):
        assert path_of(value) == path_of(same)
    turned = Image.open(png)
    turned.getexif()[ExifTags.Base.Orientation] = 3
    plain = Image.fromarray(PIXELS).convert("P")
    coloured = plain.copy()
    coloured.putpalette([9, 8, 7] * 256)
    others = [
        PIXELS, PIXELS.astype(np.uint16), PIXELS[:6], PIXELS.reshape(10, 12, 3), PIXELS[::-1], Image.open(png), turned,
        plain, coloured, Image.fromarray(PIXELS), torch.ones(3, 4, 4), torch.ones(3, 2, 8),
        torch.ones(3, 4, 4, dtype=torch.uint8),
    ]  # fmt: skip
    assert len({path_of(value) for value in others}) == len(others)


def test_the_same_picture_is_listed_once_under_one_name_and_again_under_another(tmp_path):
    path = paint(tmp_path / "photo.png")
    assert listed([Image.open(path), Image.open(path)]) == ["photo.png"]
    assert listed([PIXELS, PIXELS]) == ["image_0", "image_1"]


def test_a_listed_image_can_be_read_again_while_it_is_in_memory():
    inputs = resolve_inputs([PIXELS])
    (file,) = find_images(inputs)
    record = ImageFile(file.path, "other", file.version)
    assert is_in_memory(file.path)
    assert look_again(record) == ImageFile(file.path, "other", file.version)
    assert memory_image(record).value is PIXELS
    del inputs, file
    assert look_again(record) is None


def test_images_of_an_iterator_are_copied_since_buffers_may_be_reused():
    buffer = np.zeros((4, 4, 3), np.uint8)

    def camera():
        for level in (1, 2):
            buffer[:] = level
            yield buffer

    assert [image.value.max() for image in list(resolve_inputs(camera()))] == [1, 2]
    assert resolve_inputs([buffer])[0].value is buffer
    prepared = torch.zeros(1, 3, 4, 4)
    (image,) = resolve_inputs(iter([prepared]))
    prepared += 1
    assert image.value.max() == 0
    assert resolve_inputs(prepared)[0].value.data_ptr() == prepared.data_ptr()


def test_a_picture_that_is_not_decoded_yet_can_be_listed_by_two_threads(tmp_path):
    path = paint(tmp_path / "a.png", size=(300, 300))
    for _ in range(5):
        inputs = resolve_inputs([Image.open(path)])
        with ThreadPoolExecutor(4) as pool:
            found = [file for files in pool.map(lambda given: [*find_images(given)], [inputs] * 4) for file in files]
        assert len(found) == 4
        assert len({file.path for file in found}) == 1


# --- refusals


@pytest.mark.parametrize(
    "value",
    [None, 3, b"a.png", object(), np.zeros(0), np.zeros(5), np.zeros((2, 2), complex), np.zeros((2,) * 5),
     np.zeros((0, 4, 3)), torch.zeros(4), torch.zeros(4, 4), torch.zeros(3, 4, 4, dtype=torch.int64),
     torch.zeros(0, 3, 4, 4), torch.zeros(3, 4, 4).to_sparse(), torch.zeros(3, 4, 4, device="meta"),
     torch.zeros(3, 4, 4, dtype=torch.complex64)],
)  # fmt: skip
def test_values_that_are_no_images_are_refused_with_a_hint_in_python(value):
    for inputs in (value, [Path("a.png"), value], iter([value])):
        with pytest.raises(RequestError) as caught:
            list(resolve_inputs(inputs))
        assert caught.value.hint
        assert "--" not in str(caught.value) + caught.value.hint


def test_only_files_are_read_by_other_processes():
    assert only_files(["a.png", Path("b.png")]) == ["a.png", Path("b.png")]
    for inputs in ([PIXELS], iter(["a.png", PIXELS])):
        with pytest.raises(RequestError, match=r"only this process can read an image in memory: 'image_\d'"):
            list(only_files(resolve_inputs(inputs)))
