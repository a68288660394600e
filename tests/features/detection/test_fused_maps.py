"""The map of all scales, computed again with NumPy from the values that a run stores."""

from __future__ import annotations

import numpy as np
import pytest
from extras import needs
from image_files import save_pixels
from yolo import TWO_SCALES, confident, saved

import fmapviz
from fmapviz.models.load import load_model

pytestmark = needs("ultralytics", "ultralytics")

SIDE = 96  # of the input, pixels
STRIDES = {"model.2": 4, "model.3": 8}


def of_both_scales(content):
    """Raise the scores of the coarse scale, so that each scale finds some of the best boxes."""
    confident(content)
    content["model"].model[-1].cv3[1][-1].bias.data += 0.5


def enlarged(values, stride):
    """Return a map at the input's resolution, bilinearly: each value in the middle of its part."""
    for axis, count in enumerate(values.shape):
        at = (np.arange(SIDE) + 0.5) / stride - 0.5
        values = np.apply_along_axis(lambda row, at=at, count=count: np.interp(at, np.arange(count), row), axis, values)
    return values


def divided(values):
    return values / (values.max() or 1)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    place = tmp_path_factory.mktemp("network")
    (place / "two_scales.yaml").write_text(TWO_SCALES)
    return saved(place, str(place / "two_scales.yaml"), of_both_scales)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    place = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 255, (96 + 16 * number, 96, 3), dtype=np.uint8) for number in range(3)]
    pictures = [*noise, *(np.full((96, 96, 3), grey, np.uint8) for grey in (0, 128))]
    return [save_pixels(place / f"{number}.png", pixels) for number, pixels in enumerate(pictures)]


@pytest.fixture(scope="module")
def stored(network, photos, tmp_path_factory):
    """The heat maps of a run, by layer, of each box of each image."""
    options = {"views": "gradcam", "targets": "box1,box2,box3,box4", "confidence": 0.05, "to": "npz", "workers": 1}
    run = fmapviz.visualize(str(network), photos, out=tmp_path_factory.mktemp("out"), **options)
    found = {}
    for archive in run.directory.rglob("raw.npz"):
        for key, values in np.load(archive).items():
            if key.startswith("gradcam/"):
                layer, _, target = key.removeprefix("gradcam/").rpartition(".")
                found.setdefault((int(archive.parent.name[0]), target), {})[layer] = values
    return found


@pytest.mark.thorough
def test_the_fused_map_is_the_largest_of_the_scaled_maps(stored):
    assert len(stored) == 20
    for maps in stored.values():
        heats = [divided(enlarged(maps[layer].clip(0), STRIDES[layer])) for layer in maps if layer != "fused"]
        assert maps["fused"].shape == (SIDE, SIDE)
        np.testing.assert_allclose(maps["fused"], np.max(heats, 0), atol=2e-6)


@pytest.mark.thorough
def test_all_scales_count_and_the_fused_map_is_drawn_as_it_is(stored, network, photos):
    assert {frozenset(maps) for maps in stored.values()} == {frozenset({"model.2", "fused"}), frozenset({*STRIDES, "fused"})}
    without_zero = [key for key, maps in stored.items() if 0 < maps["fused"].min() < 1]
    image, target = without_zero[0]
    drawn = fmapviz.cam(load_model(str(network)), photos[image], target=target, confidence=0.05)
    np.testing.assert_allclose(drawn.map[0], stored[image, target]["fused"], atol=1e-6)
