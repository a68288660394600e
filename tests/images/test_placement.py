"""Boxes of preprocessed inputs are located in the files, against painted rectangles."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from bad_images import encoded
from cases import thorough
from PIL import Image, ImageOps
from torchvision import models, transforms
from torchvision.transforms import InterpolationMode, functional, v2

from fmapviz.config import InputOptions
from fmapviz.core.bands import Bands
from fmapviz.images.decode_pool import read_image
from fmapviz.images.placement import Placement, find_placement
from fmapviz.images.preprocess import as_trained, by_callable, clip, in_steps, standard, unnormalized
from fmapviz.types import ImageFile

SIZES = ["400x300", "120x333", "64x48"]
RARER = ["1200x900", "224x224", "33x50", "900x270"]


def preset(model):
    return models.get_model_weights(model).DEFAULT.transforms()


def user(*steps):
    return by_callable(transforms.Compose(steps), description="steps")


WITHOUT_ANTIALIAS = {"nearest", "without antialias", "clip"}
KERNELS = {"lanczos": 3.0, "bicubic preset": 2.0}
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
TENSOR = transforms.ToTensor()
NORMAL = transforms.Normalize(MEAN, STD)
PREPARATIONS = {
    **{fit: standard(InputOptions(fit=fit)) for fit in ("crop", "squash", "pad", "none")},
    "small pad": standard(InputOptions(fit="pad", size=(40, 30))),
    "grey": standard(InputOptions(fit="pad"), channels=1),
    "two channels": standard(InputOptions(), channels=2),
    "four channels": standard(InputOptions(fit="pad"), channels=4),
    "detector": unnormalized(InputOptions()),
    "steps": in_steps(InputOptions(), step=8, least=128, box=(260, 480)),
    "bilinear preset": as_trained(preset("resnet50"), InputOptions()),
    "bicubic preset": as_trained(preset("efficientnet_b0"), InputOptions()),
    "segmentation": as_trained(preset("lraspp_mobilenet_v3_large"), InputOptions()),
    "clip": clip(preset("r3d_18"), InputOptions(), frames=3),
    "user": user(transforms.Resize(256), transforms.CenterCrop(224), TENSOR, NORMAL),
    "user without a mean": user(transforms.Resize((128, 150)), TENSOR),
    "user on another scale": user(
        transforms.Resize((128, 150)), transforms.PILToTensor(), transforms.Lambda(torch.Tensor.float)
    ),
    "center crop": user(transforms.CenterCrop(48), TENSOR),
    "flip": user(transforms.Resize((128, 150)), transforms.RandomHorizontalFlip(p=1.0), TENSOR, NORMAL),
    "nearest": user(transforms.Resize((150, 128), InterpolationMode.NEAREST), TENSOR, NORMAL),
    "lanczos": user(transforms.Resize((150, 128), InterpolationMode.LANCZOS), TENSOR, NORMAL),
    "without antialias": user(TENSOR, transforms.Resize((150, 128), antialias=False), NORMAL),
    "white padding": user(transforms.Resize((100, 90)), transforms.Pad((10, 20, 30, 40), fill=255), TENSOR),
    "grey padding": user(transforms.Resize((100, 90)), transforms.Pad((10, 20, 30, 40), fill=127), TENSOR),
    "swapped channels": user(transforms.Resize((100, 90)), TENSOR, transforms.Lambda(lambda values: 1 - values[[2, 1, 0]])),
    "made grey": user(transforms.Grayscale(3), transforms.Resize((100, 90)), TENSOR),
    "newer": by_callable(
        v2.Compose(
            [v2.ToImage(), v2.Resize(90), v2.CenterCrop(80), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        ),
        description="v2",
    ),
}


def marked(size, rectangle, channels):
    """A black picture of that size with a white rectangle."""
    plane = np.zeros((size[1], size[0]), np.uint8)
    left, top, right, bottom = rectangle
    plane[top:bottom, left:right] = 255
    if channels in {1, 3}:
        return Image.fromarray(plane).convert("L" if channels == 1 else "RGB")
    return Bands((Image.fromarray((plane / 255).astype(np.float32)),) * channels)


def seen(preparation, size, rectangle):
    """The box of an input that a rectangle changes."""
    black, white = (preparation.apply(marked(size, shown, preparation.channels)) for shown in ((0, 0, 0, 0), rectangle))
    changed = (black - white).abs().reshape(-1, *black.shape[-2:]).amax(0)
    y, x = torch.nonzero(changed > 0.02 * changed.max(), as_tuple=True)
    return x.min().item(), y.min().item(), x.max().item() + 1, y.max().item() + 1


def rectangles(size):
    """Rectangles in the visible part of a picture, which the crops of PREPARATIONS have in common."""
    width, height = size
    across, down = min(12, width // 5), min(12, height // 5)
    for dx, dy in product((-1, 0, 1), (-1, 0, 1)):
        x, y = width // 2 + dx * across, height // 2 + dy * down
        yield x - across // 2, y - down // 2, x + max(1, across // 3), y + max(1, down // 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [*SIZES, *thorough(*RARER)])
@pytest.mark.parametrize("name", PREPARATIONS)
def test_a_rectangle_of_the_input_is_located_in_the_picture(name, size):
    preparation = PREPARATIONS[name]
    width, _, height = size.partition("x")
    size = int(width), int(height)
    placement = find_placement(preparation, size)
    for rectangle in rectangles(size):
        box = seen(preparation, size, rectangle)
        found = placement.to_file(box, orientation=1, size=size)
        for axis, scale in enumerate(map(abs, placement.scale)):
            # A kernel also shows a pixel in its neighbours, Lanczos in three. The edge of an input's pixel weighs too little
            # for 8 bits, and without antialiasing pixels between two samples are not shown.
            most = KERNELS.get(name, 1.0) * max(1.0, scale) + scale + 1
            least = scale if name in WITHOUT_ANTIALIAS else 0.3 * scale
            assert -most <= found[axis] - rectangle[axis] <= least, (rectangle, box, found)
            assert -least <= found[axis + 2] - rectangle[axis + 2] <= most, (rectangle, box, found)


@pytest.mark.parametrize("fit", ["none", "squash"])
def test_a_box_of_whole_pixels_is_exact(fit):
    preparation = standard(InputOptions(fit=fit, size=None if fit == "none" else (100, 200)))
    placement = find_placement(preparation, (1000, 300))
    across, down = (1, 1) if fit == "none" else (5, 3)
    for left, top, right, bottom in product((0, 17, 83), (0, 29), (84, 200), (30, 100)):
        expected = (left * across, top * down, right * across, bottom * down)
        assert placement.to_file((left, top, right, bottom), orientation=1, size=(1000, 300)) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(4000, 3000), *thorough(((9000, 9000),))])
def test_a_large_picture_that_is_not_resized_is_exact(size):
    placement = find_placement(user(transforms.CenterCrop(500), TENSOR), size)
    left, top = (size[0] - 500) // 2, (size[1] - 500) // 2
    expected = (left + 3, top + 4, left + 401, top + 500)
    assert placement.to_file((3, 4, 401, 500), orientation=1, size=size) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["bilinear preset", "bicubic preset"])
def test_a_long_strip_whose_ends_are_cut_is_placed(name):
    size = (20, 30_000)
    preparation = PREPARATIONS[name]
    placement = find_placement(preparation, size)
    rectangle = (8, 14_998, 11, 15_004)
    left, top, right, bottom = placement.to_file(seen(preparation, size, rectangle), orientation=1, size=size)
    assert 8 - 3 <= left <= 8
    assert 11 <= right <= 11 + 3
    assert 14_998 - 3 <= top <= 14_998
    assert 15_004 <= bottom <= 15_004 + 3


def test_a_flip_has_a_negative_scale():
    across, down = find_placement(PREPARATIONS["flip"], (400, 300)).scale
    assert across == pytest.approx(-400 / 150, rel=1e-3)
    assert down == pytest.approx(300 / 128, rel=1e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["resnet50", "efficientnet_b0", "vit_b_16", *thorough("fcn_resnet50", "swin_t")])
@pytest.mark.parametrize("size", ["500x333", "333x500", *thorough("4000x3000", "224x224")])
def test_the_placement_equals_the_geometry_of_torchvision(model, size):
    """Its sizes and corners are computed here as in `torchvision.transforms.functional`."""
    width, height = map(int, size.split("x"))
    chosen = preset(model)
    placement = find_placement(as_trained(chosen, InputOptions()), (width, height))
    short = chosen.resize_size[0]
    resized = (short, int(short * height / width)) if width < height else (int(short * width / height), short)
    crop = getattr(chosen, "crop_size", None)
    corner = [round((side - crop[0]) / 2) if crop else 0 for side in resized]
    for axis, side in enumerate((width, height)):
        scale = side / resized[axis]
        shown = crop[0] if crop else resized[axis]
        for position in (0, shown):
            fitted = placement.scale[axis] * position + placement.offset[axis]
            assert fitted == pytest.approx((position + corner[axis]) * scale, abs=0.04 * max(1, scale))


@pytest.mark.thorough
@pytest.mark.parametrize("fit", ["crop", "squash", "none"])
def test_random_sizes_are_fitted_to_a_quarter_of_a_pixel(fit):
    random = np.random.default_rng(0)
    errors = []
    for *size, side in random.integers((10, 10, 24), (1200, 1200, 300), (40, 3)).tolist():
        preparation = standard(InputOptions(fit=fit, size=None if fit == "none" else side))
        placement = find_placement(preparation, tuple(size))
        for axis, length in enumerate(size):
            scale = {"crop": min(size) / side, "squash": length / side, "none": 1}[fit]
            offset = (length - min(size)) / 2 if fit == "crop" else 0
            for position in (0, length if fit == "none" else side):
                fitted = placement.scale[axis] * position + placement.offset[axis]
                errors.append(abs(fitted - (scale * position + offset)) / max(1, scale))
    assert max(errors) < 0.25
    assert np.quantile(errors, 0.9) < 0.04


# What is no placement


def fail(_picture):
    raise RuntimeError("no")


def stretch_contrast(picture):
    return ImageOps.autocontrast(picture)


def swap_axes(picture):
    return picture.transpose(Image.Transpose.TRANSPOSE)


def tilt(picture):
    return functional.perspective(picture, [[0, 0], [99, 0], [99, 99], [0, 99]], [[5, 0], [90, 9], [99, 99], [0, 80]])


def never_the_same(picture):
    return picture.resize((32 + int(torch.randint(8, ())), 32))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "steps",
    [
        [transforms.RandomRotation((5, 5))],
        [transforms.RandomRotation((1, 1)), transforms.CenterCrop(80)],
        [transforms.RandomRotation(10)],
        [tilt],
        [lambda picture: functional.affine(picture, 0, [0, 0], 1, [4, 0])],
        [transforms.RandomCrop(64)],
        [transforms.RandomResizedCrop(64)],
        [transforms.RandomHorizontalFlip()],
        [transforms.ColorJitter(0.5)],
        [transforms.CenterCrop(100), stretch_contrast],
        [transforms.CenterCrop(100), ImageOps.equalize],
        [transforms.Pad(20, padding_mode="reflect")],
        [swap_axes],
        [fail],
        [never_the_same],
    ],
)  # fmt: skip
def test_other_geometries_have_no_placement(steps):
    resize = transforms.Resize((150, 150))
    assert find_placement(user(resize, *steps, TENSOR, NORMAL), (400, 300)) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        lambda values: values * 0,
        lambda values: (values - values.mean()) / values.std(),
        lambda values: (values - values.min()) / (values.max() - values.min()),
        lambda values: values**2,
        lambda values: values.round(),
        lambda values: torch.full_like(values, float("nan")),
        lambda values: values + torch.rand(()),
        lambda values: values[:, : 100 + int(values.mean() * 9)],
    ],
)
def test_inputs_unrelated_to_the_picture_have_no_placement(change):
    assert find_placement(user(transforms.Resize((150, 150)), TENSOR, change), (400, 300)) is None


def measured(name):
    """Return a preprocessing that does not say where its inputs lie."""
    return replace(PREPARATIONS[name], place=None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (400, 2)])
def test_a_side_of_few_pixels_has_no_measured_placement(size):
    assert find_placement(measured("crop"), size) is None
    assert find_placement(measured("none"), size) is None


def test_a_picture_on_few_rows_of_the_input_has_no_measured_placement():
    assert find_placement(measured("small pad"), (900, 70)) is None
    assert find_placement(measured("small pad"), (900, 270)) is not None


@pytest.mark.parametrize(
    "size", [(97, 301), *thorough(*((size,) for size in [(640, 480), (480, 641), (224, 224), (1000, 333)]))]
)
@pytest.mark.parametrize("name", ["crop", "squash", "pad", "none", "small pad", "grey", "detector"])
def test_a_known_placement_is_the_measured_one(name, size):
    known, found = find_placement(PREPARATIONS[name], size), find_placement(measured(name), size)
    assert PREPARATIONS[name].place
    for axis in range(2):
        larger = max(1, known.scale[axis])
        assert known.scale[axis] == pytest.approx(found.scale[axis], rel=0.25 * larger / size[axis])
        assert known.offset[axis] == pytest.approx(found.offset[axis], abs=0.25 * larger)


def test_a_strip_that_becomes_too_long_has_no_placement():
    assert find_placement(PREPARATIONS["segmentation"], (8, 30_000)) is None


def test_a_preprocessing_of_varying_size_is_placed():
    """The preprocessing is called with pictures of the size alone, but for the check of repetition."""
    only = user(lambda picture: picture if picture.size in {(640, 480), (51, 40)} else fail(picture), TENSOR)
    assert find_placement(only, (51, 40)).scale == pytest.approx((1, 1), abs=1e-3)
    assert find_placement(only, (52, 40)) is None


# Boxes in files


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fit", ["none", *thorough("crop", "pad", "squash")])
def test_a_rectangle_is_located_in_the_stored_pixels(fit, orientation, form, tmp_path):
    stored = marked((90, 60), (20, 11, 34, 30), 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "file").write_bytes(encoded(stored, form, exif=exif.tobytes()))
    image = read_image(ImageFile(str(tmp_path / "file"), "unit"))
    with Image.open(tmp_path / "file") as opened:
        upright = ImageOps.exif_transpose(opened)
    np.testing.assert_array_equal(np.asarray(image.pixels), np.asarray(upright))
    preparation = standard(InputOptions(fit=fit, mean=(0.0,), std=(1.0,), size=None if fit == "none" else (45, 45)))
    placement = find_placement(preparation, upright.size)
    y, x = torch.nonzero(preparation.apply(upright)[0] > 0.01, as_tuple=True)
    box = (x.min().item(), y.min().item(), x.max().item() + 1, y.max().item() + 1)
    left, top, right, bottom = placement.to_file(box, orientation=image.orientation, size=image.pixels.size)
    more = 0 if fit == "none" else 4
    assert 20 - more <= left <= 20
    assert 34 <= right <= 34 + more
    assert 11 - more <= top <= 11
    assert 30 <= bottom <= 30 + more


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_undone_as_pillow_applies_it(orientation):
    numbered = Image.fromarray(np.arange(7 * 5, dtype=np.uint8).reshape(5, 7))
    numbered.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(numbered)
    pixels = Placement((1.0, 1.0), (0.0, 0.0))
    for left, top in product(range(upright.width), range(upright.height)):
        for right, bottom in product(range(left + 1, upright.width + 1), range(top + 1, upright.height + 1)):
            box = pixels.to_file((left, top, right, bottom), orientation=orientation, size=upright.size)
            shown, stored = upright.crop((left, top, right, bottom)), numbered.crop(box)
            assert {*shown.tobytes()} == {*stored.tobytes()}


def test_boxes_end_at_the_edges_of_the_picture():
    padded = find_placement(PREPARATIONS["pad"], (400, 300))
    assert padded.to_file((0, 0, 224, 224), orientation=1, size=(400, 300)) == (0, 0, 400, 300)
    assert padded.to_file((-50, 100, 500, 500), orientation=1, size=(400, 300))[2:] == (400, 300)
    left, top, right, bottom = padded.to_file((0, 0, 224, 20), orientation=1, size=(400, 300))
    assert (left, right) == (0, 400)
    assert top == bottom == 0
    left, top, right, bottom = padded.to_file((0, 0, 224, 20), orientation=6, size=(400, 300))
    assert left == right
    assert (top, bottom) == (0, 400)


def test_a_box_inside_one_pixel_is_that_pixel():
    enlarged = Placement((0.05, 0.05), (0.0, 0.0))
    for position in range(399):
        left, top, right, bottom = enlarged.to_file((position, 3, position + 1, 4), orientation=1, size=(20, 20))
        assert (top, bottom) == (0, 1)
        assert right == left + 1
        assert left <= (position + 1) / 20 <= right + 0.05
