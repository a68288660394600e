"""The bundled network: its classes, its evidence and its training."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import train_shapesnet as train
from painting import single_shape
from painting.single_shape import ShapePicture, paint
from PIL import Image
from safetensors import safe_open
from torchvision import transforms
from train_shapesnet import prepare

from fmapviz.models.load import load_model
from fmapviz.models.shapesnet.network import CLASSES, MEAN, SIDE, STD, WEIGHTS, ShapesNet


@pytest.fixture(scope="module")
def network():
    return load_model("shapesnet").module


@pytest.fixture(scope="module")
def fresh():
    """Pictures that took no part in training or in the choice of anything."""
    generator = np.random.default_rng(2)
    return [paint(generator) for _ in range(300)]


@pytest.fixture(scope="module")
def large():
    """Pictures four times as large as the network's input, like files of users."""
    return [paint(np.random.default_rng([3, number]), side=384, label=number % len(CLASSES)) for number in range(30)]


@pytest.mark.thorough
def test_the_network_names_and_finds_the_shapes(network, fresh):
    right = placed = 0.0
    for label in range(len(CLASSES)):
        shown = [picture for picture in fresh if picture.label == label]
        scores = train.evaluate(network, shown)
        assert min(scores.accuracy, scores.localisation) >= 0.95, CLASSES[label]
        right, placed = right + scores.accuracy * len(shown), placed + scores.localisation * len(shown)
    assert right / len(fresh) >= 0.99
    assert placed / len(fresh) >= 0.95


@pytest.mark.thorough
def test_the_peaks_are_where_captum_and_pillow_find_them(network, fresh):
    # Before global average pooling and one linear layer, Grad-CAM is the class activation map over its number of places.
    from extras import captum

    gradcam = captum.LayerGradCam(network, network.features)
    for picture in fresh[:48]:
        batch = prepare(picture.pixels)[None]
        attribution = gradcam.attribute(batch, target=picture.label)[0, 0].detach()
        ours = train.activation_maps(network, network.features(batch), torch.tensor([picture.label]))[0].detach()
        torch.testing.assert_close(attribution * attribution.numel(), ours, rtol=1e-4, atol=1e-3)
        peak = peak_of(attribution)
        assert picture.mask[peak]
        only = ShapePicture(picture.pixels, picture.label, np.zeros_like(picture.mask))
        assert train.evaluate(network, [only]).localisation == 0
        only.mask[peak] = True
        assert train.evaluate(network, [only]).localisation == 1


@pytest.mark.thorough
def test_a_class_activation_map_adds_up_to_its_logit(network, fresh):
    batch, labels = prepare(np.stack([picture.pixels for picture in fresh[:8]])), torch.arange(8) % len(CLASSES)
    means = train.activation_maps(network, network.features(batch), labels).mean(dim=(1, 2))
    torch.testing.assert_close(means + network.classifier.bias[labels], network(batch)[range(8), labels])


@pytest.mark.thorough
def test_large_pictures_are_recognised_once_resized(network, large):
    resize = transforms.Resize((SIDE, SIDE), transforms.InterpolationMode.BILINEAR, antialias=True)
    by_torchvision = torch.stack([resize(prepare(picture.pixels)) for picture in large])
    by_pillow = prepare(np.stack([resized(Image.fromarray(picture.pixels)) for picture in large]))
    for batch in (by_torchvision, by_pillow):
        assert network(batch).argmax(dim=1).tolist() == [picture.label for picture in large]


def test_the_sample_pictures_are_recognised(network, samples):
    paths = sorted((samples / "shapes").iterdir())
    assert [path.stem for path in paths] == sorted(CLASSES)
    for path in paths:
        with Image.open(path) as image:
            probabilities = network(prepare(resized(image))[None]).softmax(dim=1)[0]
        assert probabilities[CLASSES.index(path.stem)] > 0.95, path


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_random_weights_do_not_recognise_shapes(fresh, seed):
    torch.manual_seed(seed)
    scores = train.evaluate(ShapesNet().eval(), fresh[:200])
    assert scores.accuracy < 0.4
    assert scores.localisation < 0.5


def test_the_network_is_small_and_its_layers_have_plain_names(network):
    assert 50_000 < sum(parameter.numel() for parameter in network.parameters()) < 300_000
    names = [name for name, module in network.named_modules() if not [*module.children()]]
    assert names == [*(f"features.{i}.{part}" for i in range(8) for part in ("conv", "norm", "relu")), "pool", "classifier"]
    assert all(module.inplace for module in network.modules() if isinstance(module, torch.nn.ReLU))
    assert not any(module.training for module in network.modules())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_the_shipped_weights_are_small_and_describe_themselves():
    assert WEIGHTS.stat().st_size < 500_000
    with safe_open(WEIGHTS, "pt") as file:
        metadata = file.metadata()
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118  # it is no dictionary
    assert kinds == {torch.float16, torch.int64}
    assert set(metadata) == {"classes", "seed", "accuracy", "localisation", "torch"}
    assert tuple(json.loads(metadata["classes"])) == CLASSES
    assert float(metadata["accuracy"]) >= 0.99
    assert float(metadata["localisation"]) >= 0.95


def test_loading_draws_no_random_numbers(network):
    before = torch.get_rng_state()
    again = load_model("shapesnet").module
    assert torch.equal(torch.get_rng_state(), before)
    state = again.state_dict()
    assert all(torch.equal(values, state[name]) for name, values in network.state_dict().items())


def test_preprocessing_equals_torchvisions():
    pixels = paint(np.random.default_rng(0)).pixels
    theirs = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])(pixels)
    torch.testing.assert_close(prepare(pixels), theirs.as_subclass(torch.Tensor))
    torch.testing.assert_close(prepare(np.stack([pixels, pixels[::-1]]))[1], theirs.as_subclass(torch.Tensor).flip(-2))


def test_painting_depends_on_the_generator_alone():
    first, again, other = (paint(np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert (first.pixels == again.pixels).all()
    assert (first.mask == again.mask).all()
    assert first.label == again.label
    assert (first.pixels != other.pixels).mean() > 0.9


@pytest.mark.thorough
def test_every_class_occurs_about_as_often(fresh):
    counts = np.bincount([picture.label for picture in fresh], minlength=len(CLASSES))
    assert len(counts) == len(CLASSES)
    assert counts.min() > 35


@pytest.mark.thorough
def test_a_requested_shape_is_painted():
    for label, name in enumerate(CLASSES):
        generator = np.random.default_rng(6)
        pictures = [paint(generator, side=192, label=label) for _ in range(10)]
        assert {picture.label for picture in pictures} == {label}
        assert np.mean([share_of_circle(picture.mask) for picture in pictures]) == pytest.approx(SHARES[name], abs=0.03)


# Of the circle around each shape, what it fills: geometry, with the mean of the star's waists and so on.
SHARES = {
    "circle": 1,
    "square": 2 / np.pi,
    "triangle": 0.75 * 3**0.5 / np.pi,
    "star": 5 * 0.45 * np.sin(np.pi / 5) / np.pi,
    "cross": (8 * 0.31 * (1 - 0.31**2) ** 0.5 - 4 * 0.31**2) / np.pi,
    "ring": 1 - 0.58**2,
}


@pytest.mark.thorough
def test_a_mask_covers_the_painted_shape(fresh):
    for picture in fresh[:200]:
        inside, outside = (picture.pixels[where].astype(float) for where in (picture.mask, ~picture.mask))
        ink = np.median(inside, axis=0)
        assert (distances(inside, ink) < 0.2).mean() > 0.9
        assert (distances(outside, ink) > 0.2).mean() > 0.9


@pytest.mark.thorough
def test_only_a_ring_has_a_hole(fresh):
    for picture in fresh:
        middle = np.argwhere(picture.mask).mean(axis=0).round().astype(int)
        assert picture.mask[tuple(middle)] == (CLASSES[picture.label] != "ring")


@pytest.mark.thorough
def test_a_shape_lies_wholly_in_the_picture(fresh):
    for picture in fresh:
        assert not picture.mask[[0, -1]].any()
        assert not picture.mask[:, [0, -1]].any()


@pytest.mark.thorough
def test_a_picture_is_the_same_at_any_resolution(large):
    for number, picture in enumerate(large):
        small = paint(np.random.default_rng([3, number]), label=picture.label)
        assert picture.pixels.shape == (384, 384, 3)
        reduced = np.asarray(Image.fromarray(picture.pixels).reduce(4), float)
        assert abs(reduced - small.pixels).mean() < 3
        assert (np.asarray(Image.fromarray(picture.mask.astype(np.float32)).reduce(4)).round() == small.mask).mean() > 0.99


def test_painting_needs_no_torch(samples):
    check = "import sys, painting.single_shape; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, cwd=samples).returncode == 0


def test_the_network_classifies_painted_shapes():
    assert (CLASSES, SIDE) == (single_shape.CLASSES, single_shape.SIDE)


@pytest.mark.thorough
def test_training_reduces_the_loss(fresh):
    torch.manual_seed(0)
    network = ShapesNet()
    losses = list(train.fit(network, fresh[:16], epochs=20))
    assert losses[-1] < 0.7 * losses[0]
    assert not network.training


def test_the_loss_includes_class_and_position(network, fresh):
    pixels, labels, masks = (torch.from_numpy(values) for values in train.stacked(fresh[:32]))
    batch = prepare(pixels.numpy())
    right = train.loss_of(network, batch, labels, cover=masks)
    misnamed = train.loss_of(network, batch, labels.roll(1), cover=masks)
    misplaced = train.loss_of(network, batch, labels, cover=masks.roll(1, dims=0))
    assert right < 0.3 < misplaced < misnamed


@pytest.mark.thorough
def test_a_bad_network_is_not_written(tmp_path, capsys):
    assert not train.make(tmp_path / "bad.safetensors", pictures=32, epochs=1, fresh=16)
    assert not [*tmp_path.iterdir()]
    assert "not written" in capsys.readouterr().out


def test_written_weights_are_loaded_again(network, tmp_path):
    path = tmp_path / "again.safetensors"
    path.write_bytes(train.encode(network, train.Scores(1.0, 0.97)))
    with safe_open(path, "pt") as again, safe_open(WEIGHTS, "pt") as shipped:
        assert set(again.keys()) == set(shipped.keys()) == set(network.state_dict())
        assert all(torch.equal(again.get_tensor(name), shipped.get_tensor(name)) for name in network.state_dict())
        assert again.metadata()["localisation"] == "0.97"


def resized(image):
    return np.array(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def peak_of(activation):
    """Find the peak of a map enlarged by Pillow, as row and column."""
    enlarged = np.asarray(Image.fromarray(activation.numpy()).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return np.unravel_index(enlarged.argmax(), enlarged.shape)


def share_of_circle(mask):
    """Return the share of the circle around its middle that a shape fills."""
    places = np.argwhere(mask)
    radius = np.linalg.norm(places - places.mean(axis=0), axis=1).max() + 0.5
    return mask.sum() / (np.pi * radius**2)


def distances(colours, ink):
    """Return the perceived difference of colours from an ink, 0..1."""
    return np.sqrt((((colours - ink) / 255) ** 2) @ [2 / 9, 4 / 9, 3 / 9])
