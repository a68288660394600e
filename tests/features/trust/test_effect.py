"""What each channel does for a class, compared with switching it off by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import save_pixels
from PIL import Image
from tiny_models import state_of
from torch import nn
from torchvision import models

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import RequestError
from fmapviz.events import Outcome

AS_IT_IS = InputOptions(fit="none", mean=(0, 0, 0), std=(1, 1, 1))


def net(channels=6, classes=4):
    """Two convolutions with ReLUs, average pooling and a linear layer; channel 2 is dead."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, channels, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(channels, classes),
    )  # fmt: skip
    with torch.no_grad():
        network[2].bias[2] = -100.0
    return network.eval()


def images(count=1, side=24):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def drawn(tmp_path):
    """Draw effects of prepared images; return the run's summary, records, values by name, and notices."""

    def draw(model, batch, *, out="out", **options):
        events = []
        options = {"views": "effect", "to": "npz", "predictions": 0, "targets": "1", "workers": 1} | options
        summary = fmapviz.visualize(model, batch, out=tmp_path / out, on_event=events.append, **options)
        units = sorted(path.parent for path in summary.directory.rglob("unit.json"))
        records = [json.loads((unit / "unit.json").read_text()) for unit in units]
        values = [dict(np.load(next(unit.glob("*.npz")))) for unit in units if [*unit.glob("*.npz")]]
        return (
            summary,
            records,
            values,
            [notice for event in events if isinstance(event, Outcome) for notice in event.notices],
        )

    return draw


def by_hand(network, layer, image, score, *, mean=False, axis=1):
    """Return the scores of a class without each channel, minus the unchanged one, by a plain hook."""
    module, shapes = network.get_submodule(layer), []

    def switched(channel):
        def hook(_module, _given, returned):
            shapes.append(returned.shape)
            values = returned.clone()
            if channel is not None:
                own = values.select(axis, channel)
                own.copy_(own.mean() if mean else torch.zeros(()))
            return values

        handle = module.register_forward_hook(hook)
        with torch.no_grad():
            found = float(score(network(image)))
        handle.remove()
        return found

    unchanged = switched(None)
    return np.array([switched(channel) - unchanged for channel in range(shapes[0][axis])])


def close(found, expected, *, tolerance=1e-4):
    return np.allclose(found, expected, rtol=0, atol=tolerance * abs(expected).max())


def test_before_average_pooling_it_is_minus_weight_times_mean(drawn):
    network, image = net().double(), images().double()
    with torch.no_grad():
        means = network[:4](image).mean((0, 2, 3))
    for target in (0, 3):
        _, (record,), (values,), _ = drawn(network, image, layers="3", targets=str(target), out=str(target))
        expected = (-network[6].weight[target] * means).detach().numpy()
        found = values[f"effect/3.class{target}"]
        assert abs(found - expected).max() <= 1e-6 * abs(expected).max()
        assert found[2] == 0
        (layer,) = record["layers"]
        assert layer["effect"]["channels"] == sorted(range(6), key=lambda at: -abs(found[at]))
        assert layer["effect"]["computed"] == "behind"
        assert layer["effect"]["spread"] == 0
        assert layer["effect"]["score"] == pytest.approx(network(image)[0, target].item(), rel=1e-6)


class Fixed(nn.Module):
    """Reshapes what it computes to vectors, with the number of images of its input, or with 1."""

    def __init__(self, count):
        super().__init__()
        self.maps, self.head, self.count = net()[:4], nn.Linear(6 * 20 * 20, 4), count

    def forward(self, batch):
        return self.head(self.maps(batch).reshape(self.count or len(batch), -1))


class Mixes(nn.Module):
    """Subtracts the mean of all images of a batch."""

    def __init__(self):
        super().__init__()
        self.maps, self.head = net()[:4], net()[4:]

    def forward(self, batch):
        maps = self.maps(batch)
        return self.head(maps - maps.mean(0, keepdim=True) / 2)


class Joins(nn.Module):
    """Concatenates two branches."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 3), nn.Linear(9, 4)

    def forward(self, batch):
        return self.head(torch.cat([self.first(batch), self.second(batch)], 1).relu().mean((2, 3)))


def made(build, **options):
    torch.manual_seed(0)
    return build(**options).eval()


def dense():
    return made(models.DenseNet, growth_rate=4, block_config=(2, 2), num_init_features=6, num_classes=4)


def vit():
    small = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    network = made(models.VisionTransformer, **small, num_classes=4)
    nn.init.normal_(network.heads.head.weight)
    return network


RARE = {"residuals, in place", "dense blocks", "the end of a dense block"}  # other forms of ways that the others have
WAYS = {
    "average pooling": (net, "3", "behind", 1),
    "residuals": (lambda: made(models.resnet18, num_classes=4), "layer1.0.conv2", "behind", 1),
    "residuals, in place": (lambda: made(models.resnet18, num_classes=4), "layer2.0.relu#2", "behind", 1),
    "dense blocks": (dense, "features.denseblock2.denselayer1.conv2", "whole", 1),
    "the end of a dense block": (dense, "features.transition1.pool", "behind", 1),
    "branches": (lambda: made(Joins), "second", "whole", 1),
    "reshaped by the images": (lambda: made(Fixed, count=0), "maps.3", "whole", 1),
    "reshaped to one image": (lambda: made(Fixed, count=1), "maps.3", "alone", 1),
    "mixed images": (lambda: made(Mixes), "maps.3", "alone", 1),
    "tokens": (vit, "encoder.layers.encoder_layer_0.ln_2", "behind", 2),
    "a vector": (net, "5", "behind", 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("build", "layer", "computed", "axis"),
    [pytest.param(*row, id=name, marks=[pytest.mark.thorough] * (name in RARE)) for name, row in WAYS.items()],
)
def test_effects_are_those_of_channels_switched_off_by_hand(drawn, build, layer, computed, axis):
    network, image = build(), images(side=32 if build is vit else 24)
    before = state_of(network)
    options = {"layers": layer, "types": "Module"}
    _, (record,), (values,), _ = drawn(network, image, **options)
    assert state_of(network) == before
    name, _, call = layer.partition("#")
    if not call:
        expected = by_hand(network, name, image, lambda scores: scores[0, 1], axis=axis)
        assert close(values[f"effect/{layer}.class1"], expected)
    assert abs(values[f"effect/{layer}.class1"]).max() > 0
    (own,) = (each for each in record["layers"] if each["name"] == layer)
    assert own["effect"]["computed"] == computed


def test_a_channel_may_be_replaced_by_its_mean_in_the_image(drawn):
    network, image = net(), images()
    _, (record,), (values,), _ = drawn(network, image, layers="0", off="mean")
    expected = by_hand(network, "0", image, lambda scores: scores[0, 1], mean=True)
    assert close(values["effect/0.class1"], expected)
    assert not close(values["effect/0.class1"], by_hand(network, "0", image, lambda scores: scores[0, 1]))
    assert record["layers"][0]["effect"]["off"] == "mean"


def saved_pictures(folder, count=3):
    """Save pictures, and return their paths and prepared pixels."""
    rng = np.random.default_rng(2)
    pixels = [rng.integers(0, 255, (24, 24, 3), dtype=np.uint8) for _ in range(count)]
    paths = [save_pixels(folder / f"{at}.png", each) for at, each in enumerate(pixels)]
    return paths, torch.stack([torch.from_numpy(each) for each in pixels]).permute(0, 3, 1, 2) / 255


def replaced(network, layer, image, replacement):
    """Return the effects of replacing each channel of a layer by that of another tensor, by a plain hook."""
    module, score = network.get_submodule(layer), []

    def scored(channel):
        def hook(_module, _given, returned):
            values = returned.clone()
            if channel is not None:
                values[:, channel] = replacement[:, channel]
            return values

        handle = module.register_forward_hook(hook)
        with torch.no_grad():
            score.append(float(network(image)[0, 1]))
        handle.remove()
        return score[-1]

    unchanged = scored(None)
    return np.array([scored(channel) - unchanged for channel in range(replacement.shape[1])])


def output_of(network, layer, batch):
    seen = []
    handle = network.get_submodule(layer).register_forward_hook(lambda _module, _given, out: seen.append(out.detach()))
    with torch.no_grad():
        network(batch)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("build", [net, Mixes, *thorough(Joins)])
def test_a_channel_may_have_its_values_in_another_image_or_its_mean_over_several(drawn, tmp_path, build):
    torch.manual_seed(0)
    network, layer = build().eval(), {net: "1", Mixes: "maps.1", Joins: "first"}[build]
    paths, others = saved_pictures(tmp_path / "others")
    image, options = images(), {"layers": layer, "preprocessing": AS_IT_IS}
    _, (record,), (values,), _ = drawn(network, image, off=str(paths[1]), out="one", **options)
    (name,) = (name for name in values if name.endswith("class1"))
    alone = torch.cat([output_of(network, layer, each[None]) for each in others])
    assert close(values[name], replaced(network, layer, image, alone[1:2]))
    assert record["layers"][0]["effect"]["off"] == "values in 1.png"
    _, (record,), (values,), _ = drawn(network, image, off=str(paths[0].parent), out="all", **options)
    means = alone.double().mean((0, 2, 3), keepdim=True).float()
    assert close(values[name], replaced(network, layer, image, means.expand_as(alone[:1])))
    assert record["layers"][0]["effect"]["off"] == "mean over 3 images in others"


def test_an_image_replaced_by_itself_has_no_effect_and_another_size_is_refused(drawn, tmp_path):
    (path, *_), _ = saved_pictures(tmp_path / "others")
    network, options = net(), {"layers": "1", "preprocessing": AS_IT_IS, "to": "npz"}
    summary, *_ = drawn(network, [path], off=str(path), **options)
    assert "by no more than rounding" in summary.failures[0].message
    _, (record,), _, _ = drawn(network, images(side=20), off=str(path.parent), out="mean", **options)
    assert record["layers"][0]["effect"]["off"] == "mean over 3 images in others"
    summary, *_ = drawn(network, images(side=20), off=str(path), out="size", **options)
    assert "another shape in the other image: 5 x 22 x 22 and 5 x 18 x 18" in summary.failures[0].message


def test_a_run_is_another_one_if_the_other_image_has_changed(drawn, tmp_path):
    (path, *_), _ = saved_pictures(tmp_path / "others")
    options = {"layers": "1", "preprocessing": AS_IT_IS, "off": str(path)}
    first, *_ = drawn(net(), images(), **options)
    again, *_ = drawn(net(), images(), **options)
    assert again.directory == first.directory
    save_pixels(path, np.zeros((24, 24, 3), np.uint8))
    assert drawn(net(), images(), **options)[0].directory != first.directory


@pytest.mark.parametrize(
    ("off", "said"), [("zeor", "no such off: 'zeor'"), ("{empty}", "no image in"), ("", "no such off: ''")]
)
def test_off_that_is_neither_a_word_nor_an_image_is_refused(drawn, tmp_path, off, said):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=said) as caught:
        drawn(net(), images(), off=off.format(empty=tmp_path / "empty"))
    assert "zero, mean" in caught.value.hint


def test_differences_that_are_rounding_are_no_effects(drawn):
    """Before average pooling a channel and its mean are the same for the class."""
    summary, *_ = drawn(net(), images(), layers="3", off="mean")
    assert "the class score changes by no more than rounding" in summary.failures[0].message


class Aside(nn.Module):
    """Computes maps that its scores do not depend on."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = net(), nn.Conv2d(3, 7, 3)

    def forward(self, batch):
        self.unused(batch)
        return self.used(batch)


def test_a_layer_that_the_class_does_not_depend_on_is_named_and_not_drawn(drawn):
    summary, (record,), (values,), _ = drawn(Aside(), images(), layers="unused,used.2")
    why = "the class score is the same whichever channel is switched off: it does not depend on this layer"
    assert summary.undrawn == {"effect of unused": why}
    assert [name for name in values if "unused" in name] == []
    assert [layer["name"] for layer in record["layers"]] == ["used.2"]
    summary, *_ = drawn(Aside(), images(), layers="unused", out="alone")
    assert summary.failures[0].code == "E_NOTHING"
    assert "does not depend on this layer" in summary.failures[0].message


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"workers": 2, "batch_size": 2}, *thorough({"workers": 1, "batch_size": 1})], ids=str)
def test_effects_are_the_same_for_any_number_of_workers_and_batch_size(samples, tmp_path, options):
    found = []
    for name, own in (("one", {"workers": 1, "batch_size": 5}), ("other", options)):
        run = fmapviz.visualize(
            "shapesnet",
            samples / "shapes",
            out=tmp_path / name,
            views="effect",
            to="npz",
            layers="features.0.conv",
            **own,
        )
        arrays = {path.parent.name: np.load(path) for path in run.directory.rglob("raw.npz")}
        found.append({(unit, name): own[name].tobytes() for unit, own in arrays.items() for name in own if "effect" in name})
    assert len(found[0]) == 12
    assert found[0] == found[1]


@pytest.mark.thorough
def test_other_views_do_not_see_the_copies(drawn):
    network, batch = net(), images(2)
    options = {"layers": "0,3", "to": "npz", "predictions": 2}
    _, _, alone, _ = drawn(network, batch, views="maps,gradcam,grads", **options)
    _, _, beside, _ = drawn(network, batch, views="maps,gradcam,grads,effect", out="beside", **options)
    for own, more in zip(alone, beside, strict=True):
        assert {name for name in more if not name.startswith("effect")} == own.keys()
        assert all(own[name].tobytes() == more[name].tobytes() for name in own if name != "__metadata__")


@pytest.mark.parametrize("views", ["gradcam,sheet,effect", "effect,gradcam,sheet"])
def test_layers_that_views_choose_do_not_depend_on_other_views(drawn, views):
    network, batch, options = net(), images(2), {"to": "npz,png"}
    together, _, values, _ = drawn(network, batch, views=views, out="together", **options)
    for view in views.split(","):
        alone, _, own, _ = drawn(network, batch, views=view, out=view, **options)
        for more, less in zip(values, own, strict=True):
            assert {name: more[name].tobytes() for name in less if name != "__metadata__"} == {
                name: values.tobytes() for name, values in less.items() if name != "__metadata__"
            }
        for image in ("image_0", "image_1"):
            names = {path.name for path in (alone.directory / image).glob("*.png")}
            assert len(names) == 2
            assert names <= {path.name for path in (together.directory / image).glob("*.png")}
            if view == "sheet":
                of_both = [Image.open(run.directory / image / "sheet.png").tobytes() for run in (alone, together)]
                assert of_both[0] == of_both[1]


class Counts(nn.Module):
    """Records how many images of how many bytes it is given, and counts its passes in a buffer."""

    def __init__(self, channels):
        super().__init__()
        self.network, self.sizes = net(channels), []
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, batch):
        self.passes += 1
        for layer in self.network:
            batch = layer(batch)
            self.sizes.append(len(batch))
        return batch


@pytest.mark.thorough
def test_many_channels_take_more_passes_and_no_larger_ones(drawn):
    largest = []
    for channels in (20, 300):
        network = Counts(channels).eval()
        _, (record,), _, _ = drawn(network, images(), layers="network.3", out=str(channels))
        assert float(network.passes) == 0
        assert len(record["layers"][0]["effect"]["channels"]) == channels
        largest.append(max(network.sizes) if network.sizes else 0)
    assert largest[0] == largest[1]


class Noisy(nn.Module):
    """Adds noise to its maps."""

    def __init__(self):
        super().__init__()
        self.maps, self.head = net()[:4], net()[4:]

    def forward(self, batch):
        maps = self.maps(batch)
        return self.head(maps + torch.rand(maps.shape))


def test_random_numbers_are_those_of_the_unchanged_pass(drawn):
    network, image = made(Noisy), images()
    before = torch.get_rng_state()
    _, (record,), (values,), _ = drawn(network, image, layers="maps.3")
    assert torch.equal(before, torch.get_rng_state())
    assert record["layers"][0]["effect"] | {"channels": [], "effects": [], "score": 0} == {
        "off": "zero", "score": 0, "spread": 0, "computed": "alone", "channels": [], "effects": [],
    }  # fmt: skip
    # The noise is the same, so that only the channel makes a difference.
    expected = by_hand(net(), "3", image, lambda scores: scores[0, 1])
    assert close(values["effect/maps.3.class1"], expected, tolerance=1e-3)


class Reads(nn.Module):
    """The logarithm of a sum of maps, which is not finite without the only one that is not zero."""

    def forward(self, batch):
        return batch.mean((2, 3)).sum(1, keepdim=True).log().repeat(1, 2)


def test_scores_that_are_not_finite_are_reported(drawn):
    network = nn.Sequential(nn.Identity(), Reads())
    image = torch.zeros(1, 3, 8, 8)
    image[:, 1] = 0.5
    _, (record,), (values,), notices = drawn(network, image, layers="0", types="Identity", scores="value")
    found = values["effect/0.class1"]
    assert list(found[[0, 2]]) == [0, 0]
    assert "effect of 0 for output 1: the class scores are not finite without 1 channel" in notices
    assert not np.isfinite(found[1])
    assert record["layers"][0]["effect"]["channels"] == [0, 2, 1]


class Spots(nn.Module):
    """Finds the square of 8 pixels in which the sum of colours is largest."""

    classes = ("none", "spot")

    def __init__(self):
        super().__init__()
        self.colours = nn.Conv2d(3, 3, 8, stride=8, bias=False)
        with torch.no_grad():
            self.colours.weight.copy_(torch.eye(3)[:, :, None, None].expand(3, 3, 8, 8) / 64)

    def forward(self, batch):
        found = []
        for each in self.colours(batch).sum(1):
            row, column = divmod(int(each.argmax()), each.shape[1])
            corners = torch.tensor([[8.0 * column, 8.0 * row, 8.0 * column + 8, 8.0 * row + 8]])
            found.append({"boxes": corners, "labels": torch.tensor([1]), "scores": each.max()[None] / 3})
        return found


def test_a_box_is_followed_and_a_channel_without_which_it_is_lost_comes_first(drawn, tmp_path):
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[8:16, 16:24] = 255, 60, 0
    pixels[24:32, 0:8] = 0, 204, 0
    path = save_pixels(tmp_path / "spots.png", pixels)
    options = {"layers": "colours", "targets": "box1", "preprocessing": AS_IT_IS}
    summary, (record,), (values,), notices = drawn(Spots(), path, to="npz,png", **options)
    found = values["effect/colours.box1"]
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], [-60 / 255 / 3, 0], atol=1e-6)
    effect = record["layers"][0]["effect"]
    assert (effect["channels"], effect["effects"][0], effect["computed"]) == ([0, 1, 2], None, "behind")
    assert "effect of colours for spot, box1: the network finds no such box without channel 0" in notices
    assert [*summary.directory.rglob("*.effect.png")]


def test_a_target_of_a_segmentation_may_be_a_pixel(drawn, tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 3, 1)).eval()
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
    path = save_pixels(tmp_path / "pixels.png", pixels)
    options = {"layers": "1", "types": "ReLU", "preprocessing": AS_IT_IS}
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        predicted = network(image).argmax(1)[0]
    index = int(predicted.mode().values.mode().values)
    scores = {
        f"{index}@9,4": lambda scores: scores[0, index, 4, 9],
        str(index): lambda scores: scores[0, index][predicted == index].sum(),
    }
    for target, score in scores.items():
        _, _, (values,), _ = drawn(network, path, targets=target, out=target, **options)
        (name,) = (name for name in values if name.startswith("effect") and not name.endswith("score"))
        assert close(values[name], by_hand(network, "1", image, score))


def test_the_picture_has_a_bar_for_each_channel_that_fits_and_the_maps_of_all(drawn):
    summary, _, _, _ = drawn(net(channels=60), images(side=12), layers="2", to="png", views="effect,maps")
    (path,) = summary.directory.rglob("*.effect.png")
    with Image.open(path) as picture:
        facts, pixels = picture.text, np.asarray(picture)
    assert facts["Unchanged"].endswith("repeat spread 0")
    assert facts["Switched off"].startswith("each channel, set to zero; only what follows the layer")
    assert facts["Channels"].endswith("(60 in all)")
    assert facts["Class"].startswith("class 1, ")
    falls, rises = (240, 120, 60), (90, 150, 250)
    assert all((pixels == colour).all(-1).any() for colour in (falls, rises))
    assert pixels.shape[1] < 1000


@pytest.mark.parametrize("views", ["effect", *thorough("effect,gradcam")])
def test_without_layers_it_is_that_of_class_activation_maps(drawn, samples, views):
    star = samples / "shapes" / "star.jpg"
    _, (record,), (values,), _ = drawn("shapesnet", star, views=views, targets="star,ring", to="npz,png")
    assert {name for name in values if name.startswith("effect") and not name.endswith("score")} == {
        "effect/features.star", "effect/features.ring",
    }  # fmt: skip
    assert {layer["name"] for layer in record["layers"]} == {"features"}
    model = fmapviz.load_model("shapesnet")
    batch = fmapviz.load_image(star, model)
    batch = batch[None] if batch.ndim == 3 else batch
    with torch.no_grad():
        means = model.module.eval().features(batch).mean((0, 2, 3))
    for number, name in enumerate(model.classes):
        if name in {"star", "ring"}:
            expected = (-model.module.classifier.weight[number] * means).detach().numpy()
            assert close(values[f"effect/features.{name}"], expected, tolerance=1e-5)
