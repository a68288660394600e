"""`fmapviz.load_image`: the input of a run, in Python."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import AlexNet_Weights, SqueezeNet1_1_Weights

import fmapviz


def test_an_image_is_prepared_as_torchvision_does(samples):
    model = fmapviz.load_model("squeezenet1_1", weights="random")
    batch = fmapviz.load_image(samples / "still_life.jpg", model)
    with Image.open(samples / "still_life.jpg") as picture:
        expected = SqueezeNet1_1_Weights.DEFAULT.transforms()(picture)
    assert torch.equal(batch, expected[None])


def test_an_image_is_upright_and_has_the_channels_of_the_model(tmp_path):
    pixels = np.zeros((20, 40, 3), dtype=np.uint8)
    pixels[:, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    (tmp_path / "grey.py").write_text("from torch import nn\n\ndef build(): return nn.Conv2d(1, 2, 3)\n")
    options = fmapviz.InputOptions(fit="none", mean=(0.0,), std=(1.0,))
    model = fmapviz.load_model(f"{tmp_path / 'grey.py'}:build", preprocessing=options)
    batch = fmapviz.load_image(str(tmp_path / "turned.png"), model)
    assert batch.shape == (1, 1, 40, 20)
    assert batch[0, 0, :20].eq(1).all()
    assert batch[0, 0, 20:].eq(0).all()


def test_a_batch_is_on_the_device_of_the_model(samples):
    model = fmapviz.load_model("shapesnet")
    model.module.to("meta")
    assert fmapviz.load_image(samples / "shapes" / "star.jpg", model).device.type == "meta"


@pytest.mark.parametrize(("name", "code"), [("missing.png", "E_MISSING"), ("text.png", "E_FORMAT"), (".", "E_TYPE")])
def test_an_unreadable_image_is_an_error_with_its_name(tmp_path, name, code):
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(fmapviz.errors.InputError, match=name) as caught:
        fmapviz.load_image(tmp_path / name, fmapviz.load_model("shapesnet"))
    assert caught.value.code == code


class WithPreprocess(nn.Conv2d):
    preprocess = staticmethod(lambda picture: torch.full((3, 5, 6), float(np.asarray(picture).max())))


def test_an_image_is_preprocessed_for_any_network_as_in_a_run(samples):
    star = samples / "shapes" / "star.jpg"
    own = fmapviz.load_image(star, WithPreprocess(3, 4, 3))
    assert own.shape == (1, 3, 5, 6)
    assert own.max() == np.asarray(Image.open(star)).max()
    with pytest.warns(UserWarning, match="normalised with ImageNet's mean"):
        assumed = fmapviz.load_image(star, nn.Conv2d(3, 4, 3))
    assert torch.equal(assumed, AlexNet_Weights.DEFAULT.transforms()(Image.open(star))[None])


def test_values_that_are_no_networks_are_refused():
    with pytest.raises(fmapviz.errors.RequestError, match="model must be") as caught:
        fmapviz.load_image("star.jpg", "shapesnet")
    assert "load_model" in caught.value.hint
