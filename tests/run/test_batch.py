"""Batches are made of paths, pictures, arrays and tensors."""

import numpy as np
import pytest
import torch
from image_files import paint
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.run.batch import make_batch

STAR, RING = "sample_images/shapes/star.jpg", "sample_images/shapes/ring.jpg"


@pytest.fixture(scope="module")
def model():
    return fmapviz.load_model("shapesnet")


@pytest.fixture(scope="module")
def expected(model):
    return torch.cat([fmapviz.load_image(path, model) for path in (STAR, RING)])


def kinds_of(path, model):
    """Return an image in all accepted types."""
    array = np.asarray(Image.open(path).convert("RGB"))
    return [path, Image.open(path), array, torch.from_numpy(array.copy()).permute(2, 0, 1), fmapviz.load_image(path, model)]


def test_every_kind_of_an_image_is_prepared_as_its_file(model, expected):
    for image in kinds_of(STAR, model):
        assert torch.equal(make_batch(image, model)[0], expected[:1])
    for image, other in zip(kinds_of(STAR, model), reversed(kinds_of(RING, model)), strict=True):
        for given in ([image, other], (image, other), iter([image, other])):
            assert torch.equal(make_batch(given, model)[0], expected)
    pixels = torch.stack([torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1) for path in (STAR, RING)])
    assert torch.equal(make_batch(pixels, model)[0], expected)


def test_a_prepared_batch_is_not_copied(model, expected):
    assert make_batch(expected, model)[0] is expected
    assert make_batch(expected[0], model)[0].data_ptr() == expected.data_ptr()
    half = expected.half()
    assert make_batch(half, model)[0] is half


def test_maps_of_a_path_are_those_of_the_prepared_image(model, expected):
    reference = fmapviz.cam(model, expected, target=["star", "ring"])
    for given in ([STAR, RING], [Image.open(STAR), expected[1]], [np.asarray(Image.open(STAR)), RING]):
        found = fmapviz.cam(model, given, target=["star", "ring"])
        assert torch.equal(found.map, reference.map)
        assert np.array_equal(found.overlay, reference.overlay)


def test_a_network_without_preprocessing_uses_that_of_a_run(tmp_path):
    """Its map is the one that `visualize` stores."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()
    path = paint(tmp_path / "a.png", size=(60, 80))
    found = fmapviz.cam(net, path, target=1, layer="0")
    summary = fmapviz.visualize(net, path, out=tmp_path, to="npz", views="gradcam", targets=1, layers="0")
    (stored,) = summary.directory.rglob("*.npz")
    with np.load(stored) as values:
        (name,) = (name for name in values.files if "gradcam" in name)
        assert np.allclose(found.raw[0].numpy(), values[name], atol=1e-6)
    own = nn.Sequential(*net)
    own.preprocess = lambda picture: torch.full((3, 8, 8), picture.width / 100)
    assert torch.equal(make_batch(path, own)[0], torch.full((1, 3, 8, 8), 0.8))


def test_a_network_of_several_inputs_is_refused_only_for_unprepared_images():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, x, y):
            return x, y

    batch = torch.rand(1, 3, 8, 8)
    assert make_batch(batch, Two())[0] is batch
    with pytest.raises(fmapviz.errors.RequestError, match="does not take one batch of images"):
        make_batch(STAR, Two())


def test_images_that_differ_in_shape_are_named(model):
    with pytest.raises(fmapviz.errors.RequestError, match=r"differ in shape: '\(3, 96, 96\), \(3, 5, 5\)'") as caught:
        make_batch([STAR, torch.rand(3, 5, 5)], model)
    assert "InputOptions(size=)" in caught.value.hint


def test_an_image_that_cannot_be_read_is_an_input_error(model, tmp_path):
    damaged = paint(tmp_path / "a.png", size=(40, 40))
    damaged.write_bytes(damaged.read_bytes()[:900])
    for given, code in ((tmp_path / "none.png", "E_MISSING"), (damaged, "E_DECODE"), (np.zeros((4, 4, 5)), "E_CHANNELS")):
        with pytest.raises(fmapviz.errors.InputError) as caught:
            make_batch(given, model)
        assert caught.value.code == code
        assert caught.value.hint
    with Image.open(damaged) as picture, pytest.raises(fmapviz.errors.InputError, match="image_0"):
        make_batch(picture, model)


def test_the_batch_is_on_the_device_of_the_network():
    net = nn.Conv2d(3, 2, 3).to("meta")
    model = fmapviz.types.Model("", net, "", None, fmapviz.load_model("shapesnet").preparation)
    assert make_batch([STAR, torch.rand(3, 96, 96)], model)[0].device.type == "meta"
