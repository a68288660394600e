"""Preprocessing, against torchvision and Pillow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision import models, transforms
from torchvision.transforms import InterpolationMode, functional
from torchvision.transforms._presets import ImageClassification

from fmapviz.config import InputOptions
from fmapviz.errors import InputError
from fmapviz.images.preprocess import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    as_for_imagenet,
    as_trained,
    by_callable,
    clip,
    in_steps,
    standard,
    unnormalized,
)
from fmapviz.images.seen import Seen, shown_range
from fmapviz.models.load import load_model

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
SHAPES = [(80, 60), (60, 80), (300, 300), (257, 255), (500, 33), (7, 90), (1, 1), (1, 40), (224, 224)]  # width, height


def noise(width, height, mode="RGB"):
    """A picture of smooth noise, different in each channel."""
    values = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR).convert(mode)


def shape(picture):
    return f"{picture[0]}x{picture[1]}"


def normalized(picture, mean=IMAGENET_MEAN, std=IMAGENET_STD):
    """Scale, subtract, divide: by NumPy, in double precision."""
    pixels = np.asarray(picture, np.float64) / 255
    return torch.from_numpy(((pixels - mean) / std).transpose(2, 0, 1).astype(np.float32))


def preset(model, entry="DEFAULT", **changes):
    chosen = models.get_model_weights(model)[entry].transforms()
    for name, value in changes.items():
        setattr(chosen, name, value)
    return chosen


def grey_levels(one, other):
    return int(np.abs(one.astype(int) - other).max())


# As trained


@pytest.mark.sampled
@pytest.mark.parametrize("size", SHAPES, ids=shape)
@pytest.mark.parametrize(
    ("model", "entry"), [("alexnet", "DEFAULT"), ("resnet50", "IMAGENET1K_V2"), ("vit_b_16", "IMAGENET1K_SWAG_E2E_V1")]
)
def test_preprocessing_of_a_classifier_equals_torchvisions(model, entry, size):
    preparation = as_trained(preset(model, entry), InputOptions())
    expected = preset(model, entry)(noise(*size))
    prepared = preparation.apply(noise(*size))
    assert prepared.dtype == torch.float32
    assert torch.equal(prepared, expected)
    assert (preparation.mean, preparation.std) == (tuple(preset(model, entry).mean), tuple(preset(model, entry).std))


@pytest.mark.parametrize("size", [(80, 60), (60, 80), (33, 33)], ids=shape)
def test_preprocessing_of_a_segmentation_model_equals_torchvisions(size):
    preparation = as_trained(preset("fcn_resnet50"), InputOptions())
    expected = preset("fcn_resnet50")(noise(*size))
    assert min(expected.shape[1:]) == 520
    assert torch.equal(preparation.apply(noise(*size)), expected)


@pytest.mark.parametrize("size", [(80, 60), (60, 80), (300, 200)], ids=shape)
@pytest.mark.parametrize("model", ["r3d_18", "mvit_v2_s"])
def test_preprocessing_of_a_video_model_equals_torchvisions_of_equal_frames(model, size):
    preparation = clip(preset(model), InputOptions(), frames=4)
    expected = preset(model)(functional.pil_to_tensor(noise(*size)).expand(4, -1, -1, -1))
    prepared = preparation.apply(noise(*size))
    assert torch.equal(prepared, expected)
    assert "4 frames" in preparation.description


@pytest.mark.parametrize("name", ["squeezenet1_1", *thorough("lraspp_mobilenet_v3_large", "r3d_18")])
def test_a_model_name_selects_its_preprocessing(name):
    expected = preset(name)
    picture = noise(90, 70)
    prepared = load_model(name, weights="random").preparation.apply(picture)
    if name == "r3d_18":
        assert torch.equal(prepared, expected(functional.pil_to_tensor(picture).expand(16, -1, -1, -1)))
    else:
        assert torch.equal(prepared, expected(picture))


def test_other_mean_and_deviation_keep_the_geometry():
    preparation = as_trained(preset("alexnet"), InputOptions(mean=MEAN, std=STD))
    expected = ImageClassification(crop_size=224, resize_size=256, mean=MEAN, std=STD)
    assert torch.equal(preparation.apply(noise(90, 70)), expected(noise(90, 70)))
    assert (preparation.mean, preparation.std) == (MEAN, STD)
    assert preset("alexnet").mean == list(IMAGENET_MEAN)  # the weights' own preset is untouched
    single = as_trained(preset("alexnet"), InputOptions(mean=(0.25,), std=(0.5,))).apply(noise(90, 70))
    assert torch.equal(single, ImageClassification(crop_size=224, mean=(0.25,) * 3, std=(0.5,) * 3)(noise(90, 70)))


def test_a_clip_takes_another_mean_deviation_size_and_fit():
    picture = noise(90, 70)
    prepared = clip(preset("r3d_18"), InputOptions(mean=MEAN, std=STD), frames=3).apply(picture)
    original = preset("r3d_18")
    original.mean, original.std = list(MEAN), list(STD)
    assert torch.equal(prepared, original(functional.pil_to_tensor(picture).expand(3, -1, -1, -1)))
    options = InputOptions(size=(24, 32), fit="squash", mean=MEAN, std=STD)
    prepared = clip(preset("r3d_18"), options, frames=3).apply(picture)
    assert prepared.shape == (3, 3, 24, 32)
    for frame in prepared.unbind(1):
        assert torch.equal(frame, standard(options).apply(picture))
    trained = clip(preset("r3d_18"), InputOptions(fit="squash"), frames=1)
    assert trained.apply(picture).shape == (3, 1, 112, 112)


@pytest.mark.parametrize(
    ("model", "side"), [("alexnet", 224), ("inception_v3", 299), ("vit_h_14", 518), ("fcn_resnet50", 520)]
)
def test_another_fit_keeps_the_size_as_trained(model, side):
    for fit in ("crop", "squash", "pad"):
        assert as_trained(preset(model), InputOptions(fit=fit)).apply(noise(9, 5)).shape == (3, side, side)


# Sizes and fits, against Pillow


@pytest.mark.parametrize("size", SHAPES, ids=shape)
@pytest.mark.parametrize("wanted", [(32, 32), (24, 40), (41, 23)], ids=shape)
class TestFits:
    @pytest.mark.sampled(9)
    def test_crop_keeps_the_middle_of_the_resized_picture(self, size, wanted):
        height, width = wanted
        expected = ImageOps.fit(noise(*size), (width, height), Image.Resampling.BILINEAR, centering=(0.5, 0.5))
        check(InputOptions(size=wanted, fit="crop"), size, expected, tolerance=1)
        check(InputOptions(size=wanted), size, expected, tolerance=1)  # it is what a size alone means

    @pytest.mark.sampled(9)
    def test_squash_ignores_the_aspect_ratio(self, size, wanted):
        expected = functional.resize(noise(*size), list(wanted), InterpolationMode.BILINEAR, antialias=True)
        check(InputOptions(size=wanted, fit="squash"), size, expected)

    @pytest.mark.sampled(9)
    def test_pad_centres_the_whole_picture_on_black(self, size, wanted):
        height, width = wanted
        scale = min(height / size[1], width / size[0])
        inside = [max(1, round(side * scale)) for side in size]
        expected = Image.new("RGB", (width, height), "black")
        place = ((width - inside[0]) // 2, (height - inside[1]) // 2)
        expected.paste(noise(*size).resize(inside, Image.Resampling.BILINEAR), place)
        check(InputOptions(size=wanted, fit="pad"), size, expected)


def check(options, size, expected, *, tolerance=0):
    """Compare the preparation of a picture with its expected pixels, normalised independently."""
    for mean, std in ((IMAGENET_MEAN, IMAGENET_STD), (MEAN, STD), ((0.5,), (0.25,))):
        chosen = InputOptions(size=options.size, fit=options.fit, mean=mean, std=std)
        preparation = standard(chosen)
        prepared = preparation.apply(noise(*size))
        assert prepared.dtype == torch.float32
        torch.testing.assert_close(prepared, normalized(expected, mean, std), rtol=0, atol=1e-5 + tolerance / 255 / min(std))
        seen = Seen(prepared, preparation).picture
        assert seen.dtype == np.uint8
        assert grey_levels(seen, np.asarray(expected)) <= tolerance


def test_a_crop_shows_the_middle_and_all_of_the_short_side():
    picture = Image.new("RGB", (400, 100), "red")
    picture.paste("blue", (150, 0, 250, 50))
    picture.paste("lime", (150, 50, 250, 100))
    seen = seen_by(InputOptions(size=(50, 50), fit="crop"), picture)
    assert (seen[:24, 1:-1] == (0, 0, 255)).all()  # the outermost columns hold a little of what is cut off, as they should
    assert (seen[26:, 1:-1] == (0, 255, 0)).all()


def test_padding_is_black_around_the_middle():
    seen = seen_by(InputOptions(size=(40, 60), fit="pad"), Image.new("RGB", (400, 100), "white"))
    assert (seen[12:27] == 255).all()
    assert not seen[:12].any()
    assert not seen[27:].any()


def seen_by(options, picture):
    preparation = standard(options)
    return Seen(preparation.apply(picture), preparation).picture


@pytest.mark.parametrize("size", SHAPES, ids=shape)
def test_fit_none_keeps_the_size_of_pictures(size):
    for preparation in (standard(InputOptions(fit="none")), as_trained(preset("alexnet"), InputOptions(fit="none"))):
        prepared = preparation.apply(noise(*size))
        torch.testing.assert_close(prepared, normalized(noise(*size)), rtol=0, atol=1e-5)
        assert np.array_equal(Seen(prepared, preparation).picture, np.asarray(noise(*size)))


@pytest.mark.parametrize("size", SHAPES, ids=shape)
def test_size_fit_mean_and_deviation_combine(size):
    options = InputOptions(size=(20, 30), fit="squash", mean=MEAN, std=STD)
    expected = standard(options).apply(noise(*size))
    for preparation in (
        as_trained(preset("alexnet"), options),
        unnormalized(options),
        in_steps(options, step=8, least=8, box=(9, 9)),
    ):
        assert torch.equal(preparation.apply(noise(*size)), expected)


def test_default_mean_and_deviation_are_those_of_imagenet():
    prepared = standard(InputOptions()).apply(noise(300, 300))
    assert prepared.shape == (3, 224, 224)
    expected = transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)(
        transforms.ToTensor()(ImageOps.fit(noise(300, 300), (224, 224), Image.Resampling.BILINEAR))
    )
    torch.testing.assert_close(prepared, expected, rtol=0, atol=1e-5 + 1 / 255 / min(IMAGENET_STD))


# The filter and the field of view


NAMED = {
    "swin_t": "BICUBIC",
    "efficientnet_b0": "BICUBIC",
    "maxvit_t": "BICUBIC",
    "resnet50": "BILINEAR",
    "fcn_resnet50": "BILINEAR",
}
FITTED = {
    "crop": ImageOps.fit,
    "squash": lambda picture, sides, how: picture.resize(sides, how),
    "pad": lambda picture, sides, how: padded(ImageOps.contain(picture, sides, how), sides),
}


def padded(picture, sides):
    canvas = Image.new("RGB", sides)
    canvas.paste(picture, ((sides[0] - picture.width) // 2, (sides[1] - picture.height) // 2))
    return canvas


@pytest.mark.sampled
@pytest.mark.parametrize("fit", FITTED)
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("size", [(80, 60), (300, 400)], ids=shape)
def test_another_geometry_keeps_the_filter_of_the_weights(name, fit, size):
    preparation = as_trained(preset(name), InputOptions(size=(64, 96), fit=fit, mean=(0,), std=(1,)))
    expected = FITTED[fit](noise(*size), (96, 64), Image.Resampling[NAMED[name]])
    difference = np.abs(preparation.apply(noise(*size)).numpy() * 255 - np.asarray(expected).transpose(2, 0, 1))
    assert difference.max() < (2.1 if fit == "crop" else 0.01)  # Pillow rounds the box to be cropped in its own way
    assert ("bicubic" in preparation.description) == (NAMED[name] == "BICUBIC")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["timm:mobilenetv3_small_050", "timm:swin_tiny_patch4_window7_224"])
@pytest.mark.parametrize("fit", FITTED)
def test_another_geometry_keeps_the_filter_of_timm(name, fit):
    pytest.importorskip("timm")
    options = InputOptions(fit=fit, mean=(0,), std=(1,))
    prepared = load_model(name, weights="random", preprocessing=options).preparation.apply(noise(300, 400)).numpy() * 255
    how = {"timm:mobilenetv3_small_050": Image.Resampling.BICUBIC}.get(name, Image.Resampling.BICUBIC)
    expected = np.asarray(FITTED[fit](noise(300, 400), (224, 224), how)).transpose(2, 0, 1)
    assert np.abs(prepared - expected).max() < (2.1 if fit == "crop" else 0.01)


@pytest.mark.parametrize("size", SHAPES, ids=shape)
def test_a_network_without_a_preprocessing_uses_that_of_imagenet_classifiers(size):
    prepared = as_for_imagenet(InputOptions()).apply(noise(*size))
    torch.testing.assert_close(prepared, ImageClassification(crop_size=224)(noise(*size)), rtol=0, atol=1e-5)
    grey = as_for_imagenet(InputOptions(mean=(0,), std=(1,)), channels=1).apply(noise(*size, mode="L"))
    expected = ImageClassification(crop_size=224, mean=(0.0,), std=(1.0,))(noise(*size, mode="L"))
    torch.testing.assert_close(grey, expected, rtol=0, atol=1e-6)


def test_size_for_a_network_without_a_preprocessing_keeps_images_of_that_size():
    prepared = as_for_imagenet(InputOptions(size=(70, 90), mean=(0,), std=(1,))).apply(noise(90, 70))
    assert torch.equal(prepared, transforms.ToTensor()(noise(90, 70)))


def test_a_network_of_one_channel_keeps_the_geometry_and_the_filter_of_its_name():
    kept = preset("efficientnet_b0", mean=[0.0], std=[1.0])
    prepared = as_trained(preset("efficientnet_b0"), InputOptions(mean=(0,), std=(1,)), channels=1).apply(noise(90, 70, "L"))
    assert torch.equal(prepared, kept(noise(90, 70, "L")))


# Detectors and optical flow


@pytest.mark.parametrize("size", SHAPES, ids=shape)
def test_a_detector_takes_the_picture_in_its_own_size_from_0_to_1(size):
    preparation = unnormalized(InputOptions())
    prepared = preparation.apply(noise(*size))
    assert torch.equal(prepared, transforms.ToTensor()(noise(*size)))
    assert np.array_equal(Seen(prepared, preparation).picture, np.asarray(noise(*size)))
    assert unnormalized(InputOptions(size=(9, 5))).apply(noise(*size)).shape == (3, 9, 5)
    assert unnormalized(InputOptions(fit="pad")).apply(noise(*size)).shape == (3, 224, 224)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 2000))
def test_sides_for_optical_flow_are_multiples_of_8_within_limits(width, height):
    prepared = in_steps(InputOptions(), step=8, least=128, box=(520, 960)).apply(Image.new("RGB", (width, height)))
    rows, columns = prepared.shape[1:]
    assert rows % 8 == columns % 8 == 0
    assert 128 <= rows <= 520
    assert 128 <= columns <= 960
    assert rows == 520 or columns == 960
    if min(rows, columns) > 128:
        assert abs(np.log(columns / rows / (width / height))) < 0.07  # half a step of the smallest side
    assert (prepared == -1).all()


def test_values_for_optical_flow_are_from_minus_1_to_1():
    picture = Image.new("RGB", (960, 520), (0, 51, 255))
    prepared = in_steps(InputOptions(), step=8, least=128, box=(520, 960)).apply(picture)
    torch.testing.assert_close(prepared[:, 0, 0], torch.tensor([-1.0, -0.6, 1.0]))
    own = in_steps(InputOptions(fit="none"), step=8, least=128, box=(520, 960)).apply(noise(33, 17))
    torch.testing.assert_close(own, normalized(noise(33, 17), (0.5,), (0.5,)), rtol=0, atol=1e-6)


# What the network saw


@pytest.mark.parametrize("size", SHAPES, ids=shape)
def test_a_preprocessed_input_can_be_shown(size):
    for model, side, crop in (("alexnet", 256, 224), ("resnet50", 232, 224)):
        preparation = as_trained(preset(model), InputOptions())
        resized = functional.resize(noise(*size), [side], InterpolationMode.BILINEAR, antialias=True)
        expected = np.asarray(functional.center_crop(resized, [crop, crop]))
        assert grey_levels(Seen(preparation.apply(noise(*size)), preparation).picture, expected) <= 1


def test_the_shown_input_of_a_clip_is_its_first_frame():
    preparation = clip(preset("r3d_18"), InputOptions(size=(20, 30), fit="squash"), frames=2)
    expected = np.asarray(noise(80, 60).resize((30, 20), Image.Resampling.BILINEAR))
    assert grey_levels(Seen(preparation.apply(noise(80, 60)), preparation).picture, expected) <= 1


def test_the_shown_input_of_one_channel_is_grey_and_clipped_at_white():
    preparation = standard(InputOptions(mean=(0.5,), std=(0.5,)))
    values = torch.tensor([[[-9.0, -1.0, 0.0, 1.0, 9.0]]])
    before = values.clone()
    assert Seen(values, preparation).picture.tolist() == [[0, 0, 128, 255, 255]]
    assert torch.equal(values, before)


# Descriptions


def test_equal_descriptions_mean_equal_preprocessing():
    options = [InputOptions(), InputOptions(size=(224, 224)), InputOptions(size=(32, 32)), InputOptions(size=(32, 48)),
               InputOptions(fit="pad"), InputOptions(fit="squash"), InputOptions(fit="none"), InputOptions(mean=MEAN),
               InputOptions(std=STD), InputOptions(mean=MEAN, std=STD), InputOptions(size=(32, 32), mean=MEAN)]  # fmt: skip
    for prepare in (
        lambda chosen: as_trained(preset("alexnet"), chosen),
        lambda chosen: clip(preset("r3d_18"), chosen, frames=2),
    ):
        words = [prepare(chosen).description for chosen in options]
        assert len(set(words)) == len(words)
        assert words == [prepare(chosen).description for chosen in options]
        assert all(line.isprintable() for line in words)
    trained = [("resnet50", "IMAGENET1K_V1"), ("resnet50", "IMAGENET1K_V2"), ("inception_v3", "DEFAULT")]
    assert len({as_trained(preset(*weights), InputOptions()).description for weights in trained}) == 3


# Extreme shapes


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("upright", [False, True])
def test_the_middle_of_a_long_strip_equals_torchvisions(upright, extra):
    """A strip of 3 x 24,000 pixels would be resized to 256 x 2,048,000; its middle is that of a shorter one."""
    long, short = 24_000 + extra, 3
    strip = noise(long, short)
    middle = strip.crop((long // 2 - 100, 0, long // 2 + 100 + extra, short))
    if upright:
        strip, middle = (picture.transpose(Image.Transpose.ROTATE_90) for picture in (strip, middle))
    preparation = as_trained(preset("alexnet"), InputOptions())
    prepared = preparation.apply(strip)
    assert prepared.shape == (3, 224, 224)
    torch.testing.assert_close(prepared, preset("alexnet")(middle), rtol=0, atol=3 / 255 / min(IMAGENET_STD))


@pytest.mark.parametrize("size", [(1, 200_000), (200_000, 1), (2, 300_001)], ids=shape)
def test_a_strip_that_cannot_be_cropped_is_refused(size):
    preparation = as_trained(preset("fcn_resnet50"), InputOptions())
    with pytest.raises(InputError, match=f"a strip of {size[0]} x {size[1]} pixels becomes too long when resized") as caught:
        preparation.apply(Image.new("RGB", size))
    assert caught.value.code == "E_TOO_LARGE"
    assert caught.value.hint == "InputOptions(fit='squash'), fit='pad' or fit='crop'"
    for fit in ("squash", "pad", "crop"):
        options = InputOptions(size=(64, 64), fit=fit)
        assert as_trained(preset("fcn_resnet50"), options).apply(Image.new("RGB", size)).shape == (3, 64, 64)


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_pictures_of_extreme_shapes_take_no_extreme_memory(torch_alone):
    """Resized without a thought, a strip of 10,000 pixels would be 2 GB."""
    code = """
from pathlib import Path
from PIL import Image
from fmapviz.errors import InputError
from fmapviz.images.preprocess import as_trained, clip, in_steps, standard, unnormalized
from fmapviz.config import InputOptions
from fmapviz.core.lazy_torchvision import models

def preset(name):
    return models.get_model_weights(name).DEFAULT.transforms()

Path("/proc/self/clear_refs").write_text("5")  # or the peak begins with what the parent had, as getrusage's does

def peak_memory():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

as_trained(preset("alexnet"), InputOptions()).apply(Image.new("RGB", (300, 300)))
before, refused = peak_memory(), 0
for size in ((1, 1), (1, 10_000), (10_000, 1), (2, 60_000)):
    picture = Image.new("RGB", size, "red")
    fits = [standard(InputOptions(size=(64, 64), fit=fit)) for fit in ("crop", "squash", "pad")]
    for preparation in (as_trained(preset("alexnet"), InputOptions()), as_trained(preset("vit_h_14"), InputOptions()),
                        in_steps(InputOptions(), step=8, least=128, box=(520, 960)), unnormalized(InputOptions()),
                        *(clip(preset(name), InputOptions(), frames=16) for name in ("r3d_18", "mvit_v2_s")), *fits):
        assert preparation.apply(picture).isfinite().all()
    try:
        as_trained(preset("fcn_resnet50"), InputOptions()).apply(picture)
    except InputError:
        refused += 1
print(refused, peak_memory() - before)
"""
    done = torch_alone(code)
    assert done.returncode == 0, done.stderr.decode()
    refused, megabytes = done.stdout.split()
    assert int(refused) == 3
    assert float(megabytes) < 500


@pytest.mark.parametrize(
    ("values", "ends"),
    [([0.2, 0.7], (0, 1)), ([0, 1], (0, 1)), ([-0.1, 0.7], (-0.1, 0.7)), ([0.5, 3], (0.5, 3)), ([torch.nan, 2, 5], (2, 5)),
     ([torch.nan], (0, 1))],
)  # fmt: skip
def test_an_input_of_unknown_normalisation_is_shown_with_its_range(values, ends):
    unknown = by_callable(lambda picture: picture, description="", channels=1)
    prepared = torch.tensor(values, dtype=torch.float32).expand(1, 2, -1)
    assert shown_range(prepared, unknown) == pytest.approx(ends)
    assert Seen(prepared, unknown).scaling == f"{ends[0]:.4g} is black, {ends[1]:.4g} white"
    shown = np.nan_to_num((prepared[0].numpy() - ends[0]) / (ends[1] - ends[0]) * 255 + 0.5).astype(np.uint8)
    assert Seen(prepared, unknown).picture.tolist() == shown.tolist()
    known = replace(unknown, mean=(0.5,), std=(0.5,))
    assert (shown_range(prepared, known), Seen(prepared, known).scaling) == (None, "")
