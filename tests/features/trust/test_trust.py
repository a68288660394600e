"""Judged heat maps: curves by hand, chance, random weights, agreement, and what cannot be known."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision
from cases import thorough
from scipy.stats import spearmanr
from torch import nn
from torch.nn.functional import interpolate
from torchcam.metrics import DeletionInsertionMetric
from torchvision.transforms.functional import gaussian_blur

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.features.trust.cells import Cells, order_of, rank_correlation
from fmapviz.features.trust.curves import trace
from fmapviz.features.trust.judgement import against_chance
from fmapviz.features.trust.randomised import randomised
from fmapviz.observe.blur import blurred


def pixels(images=1, *, size=24, seed=0):
    return torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(seed))


def spot(size=24):
    """A bright square on noise."""
    image = pixels(size=size) / 8
    image[..., 6:14, 10:18] += 2
    return image


class Small(nn.Module):
    """A classifier whose class 1 likes bright places."""

    def __init__(self, seed=0, *, bias=0.0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 3)
        with torch.no_grad():
            self.conv.weight[0] = 0.1
            self.head.weight[1] = torch.tensor([4.0, 0, 0, 0, 0, 0])
            self.conv.bias.fill_(bias)

    def forward(self, batch):
        return self.head(self.conv(batch).relu().mean((2, 3)))


# --- curves


def test_no_order_of_six_cells_beats_the_one_by_contribution():
    weights, image = torch.tensor([[1.5, -2.0, 0.5], [0.1, 3.0, -1.0]]), torch.tensor([[2.0, 1.0, -1.0], [0.3, 0.8, 2.0]])
    image, baseline = image[None, None], torch.full((1, 1, 2, 3), 0.2)
    contribution, cells = (weights * (image - baseline)[0, 0]).numpy(), Cells.of((2, 3))

    def probability(copies):
        return ((weights * copy[0, 0]).sum().double().sigmoid().item() for copy in copies)

    best = order_of(cells.means(contribution), np.arange(6))
    orders = [best, *map(np.array, permutations(range(6)))]
    mine, *others = trace(image, probability, baseline, cells=cells, orders=orders)
    assert len(others) == 720
    assert mine.deletion_area <= min(each.deletion_area for each in others) + 1e-9
    assert mine.insertion_area >= max(each.insertion_area for each in others) - 1e-9
    assert np.ptp([each.deletion_area for each in others]) > 0.1


class Linear(nn.Module):
    """A linear classifier of pixels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(3 * 20 * 20, 2)

    def forward(self, batch):
        return self.head(batch.flatten(1))


def test_integrated_gradients_of_a_linear_network_are_before_all_other_orders():
    image = 3 * pixels(size=20)  # a cell is a pixel
    found = fmapviz.trust(Linear(), image, target=1, methods=["integrated-gradients", "saliency"], baseline="blur")
    assert found.deletion_area[0] < min(found.chance_deletion.min(), found.deletion_area[1])
    assert found.insertion_area[0] > max(found.chance_insertion.max(), found.insertion_area[1])
    assert found.verdicts[0] == "better than chance"


def by_hand(network, image, raw, target, *, side=20):
    """Return the shares and the curves of a map, pixel by pixel."""
    height, width = image.shape[-2:]
    large = interpolate(raw[None, None], (height, width), mode="bilinear", align_corners=False)[0, 0].double()
    rows, columns = ([at * min(length, side) // length for at in range(length)] for length in (height, width))
    cells = {}
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            cells.setdefault((row, column), []).append((y, x))
    order = sorted(cells, key=lambda cell: -np.mean([large[at].item() for at in cells[cell]]))
    sigma = 0.05 * min(height, width)
    blur = gaussian_blur(image, 2 * int(3 * sigma) + 3, sigma)
    shares, curves = [], [[], []]
    for step in range(21):
        gone = [at for cell in order[: round(step * len(order) / 20)] for at in cells[cell]]
        shares.append(len(gone) / (height * width))
        for curve, (whole, part) in zip(curves, [(image, blur), (blur, image)], strict=True):
            copy = whole.clone()
            for y, x in gone:
                copy[..., y, x] = part[..., y, x]
            with torch.no_grad():
                curve.append(network(copy).softmax(1)[0, target].item())
    return shares, *curves


class Smooth(nn.Sequential):
    """A network whose maps have no two equal values."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_the_curves_and_areas_are_those_of_removing_cells_by_hand():
    network, image = Smooth().eval(), spot()
    raw = fmapviz.cam(network, image, target=1, method="hirescam", layer="1").raw[0]
    found = fmapviz.trust(network, image, target=1, methods=["hirescam"], layer="1")
    shares, deletion, insertion = by_hand(network, image, raw, 1)
    assert found.shares[0] == pytest.approx(shares)
    assert found.deletion[0] == pytest.approx(deletion, abs=1e-6)
    assert found.insertion[0] == pytest.approx(insertion, abs=1e-6)
    assert found.deletion_area[0] == pytest.approx(np.trapezoid(deletion, shares), abs=1e-6)
    assert found.insertion_area[0] == pytest.approx(np.trapezoid(insertion, shares), abs=1e-6)


class Given:
    """A map, as torchcam's metrics take one."""

    def __init__(self, model, raw):
        self.model, self._raw = model, raw

    def __call__(self, *_arguments, **_more):
        return [self._raw]

    def fuse_cams(self, cams):
        return cams[0]

    def _hooks_off(self):
        return nullcontext()


def test_the_areas_are_those_of_torchcam():
    network, image = Smooth().eval(), pixels(size=20)  # a cell is a pixel
    raw = fmapviz.cam(network, image, target=1, method="gradcam", layer="1").raw
    metric = DeletionInsertionMetric(Given(network, raw), partial(torch.softmax, dim=1), steps=20, baseline=blurred)
    metric.update(image, 1)
    expected = metric.summary()
    found = fmapviz.trust(network, image, target=1, methods=["gradcam"], layer="1")
    assert found.deletion_area[0] == pytest.approx(expected["deletion_auc"], abs=1e-6)
    assert found.insertion_area[0] == pytest.approx(expected["insertion_auc"], abs=1e-6)


@pytest.mark.parametrize(("size", "count"), [((96, 96), 400), ((7, 50), 140), *thorough(((1, 1), 1), ((2, 3), 6))])
def test_cells_cover_the_image_and_steps_are_of_equal_area(size, count):
    cells = Cells.of(size)
    assert cells.count == count
    assert cells.areas.sum() == pytest.approx(1)
    removed = cells.removed(np.random.default_rng(0).permutation(count))
    assert (removed[0], removed[-1], len(removed)) == (0, pytest.approx(1), min(20, count) + 1)
    assert np.ptp(np.diff(removed)) < 0.03 or count < 20


@pytest.mark.parametrize("ties", [False, True])
def test_the_rank_correlation_is_that_of_scipy(ties):
    one, other = np.random.default_rng(0).normal(size=(2, 50))
    one, other = (one.round(), other.round()) if ties else (one, other)
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)
    assert np.isnan(rank_correlation(one, np.zeros(50)))


# --- against chance


class Scrambled(nn.Module):
    """Sees the image, and beside it hardly anything of the same image with its pixels shuffled."""

    def __init__(self, size=24):
        super().__init__()
        self.seen, self.shuffled = nn.Conv2d(3, 1, 1), nn.Conv2d(3, 1, 1)
        order = torch.from_numpy(np.random.default_rng(0).permutation(size * size))
        self.register_buffer("order", torch.eye(size * size)[order])  # by a product, through which no position is followed
        with torch.no_grad():
            for conv in (self.seen, self.shuffled):
                conv.weight.fill_(1.0)
                conv.bias.fill_(0.0)

    def forward(self, batch):
        shuffled = (batch.flatten(2) @ self.order).view(batch.shape)
        score = 2 * self.seen(batch).mean((1, 2, 3)) + 1e-5 * self.shuffled(shuffled).mean((1, 2, 3))
        return torch.stack([-score, score], 1)


def test_a_shuffled_map_is_no_better_than_chance_and_the_true_one_is():
    true, shuffled = (
        fmapviz.trust(Scrambled(), spot(), target=1, methods=["hirescam"], layer=layer) for layer in ("seen", "shuffled")
    )
    assert true.verdicts == ("better than chance",)
    assert shuffled.verdicts == ("no better than chance",)
    assert np.array_equal(true.chance_deletion, shuffled.chance_deletion)
    assert true.deletion_area[0] < true.chance_deletion.min() < shuffled.deletion_area[0] < true.chance_deletion.max()


def test_values_at_the_ends_of_the_range_of_chance_are_within_it():
    assert against_chance(0.2, [0.2, 0.4], lower=True) == "within"
    assert against_chance(0.5, [0.2, 0.4], lower=True) == "worse"
    assert against_chance(0.5, [0.2, 0.4], lower=False) == "better"


# --- random weights


def test_the_map_of_a_random_network_differs_and_eigencam_does_not_know_the_last_layer():
    found = fmapviz.trust(Small(), spot(), target=1, methods=["gradcam", "eigencam", "saliency"])
    assert found.last_layer == "head"
    assert found.of_class == (True, False, True)
    assert found.last_random[1] == pytest.approx(1)
    assert (abs(found.all_random) < 0.9).all()
    assert "eigencam of conv: the map is the same for every class." in found.remarks


class Fixed(nn.Module):
    """Computes brightness without weights, before a network that has some."""

    def __init__(self):
        super().__init__()
        self.bright, self.small = nn.AvgPool2d(3, stride=1, padding=1), Small()

    def forward(self, batch):
        return self.small(self.bright(batch))


def test_a_map_that_does_not_depend_on_what_was_learnt_is_named():
    found = fmapviz.trust(Fixed(), spot(), target=1, methods=["eigencam"], layer="bright")
    assert found.all_random[0] == pytest.approx(1)
    said = "eigencam of bright: the map does not depend on what was learnt: with random weights it is nearly the same."
    assert said in found.remarks


def test_random_weights_have_the_mean_and_deviation_of_the_old_ones():
    network, seen = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300)), {}
    with torch.no_grad():
        network[0].weight += 0.5
    before = {name: (each, each.clone()) for name, each in network.named_parameters()}
    with randomised(network, np.random.default_rng(0)):
        seen.update(network.named_parameters())
    old, new = before["0.weight"][1].detach(), seen["0.weight"]
    assert torch.allclose(new.mean(), old.mean(), atol=1e-3)
    assert torch.allclose(new.std(), old.std(), rtol=1e-2)
    assert abs(np.corrcoef(new.flatten().numpy(), old.flatten().numpy())[0, 1]) < 0.02
    assert seen["1.weight"] is before["1.weight"][0]  # all ones
    assert all(each is before[name][0] and torch.equal(each, before[name][1]) for name, each in network.named_parameters())


class Failing(Small):
    """Fails with weights that it does not know."""

    error = RuntimeError

    def forward(self, batch):
        if self.head.weight[1, 0] != 4:
            raise self.error("unknown weights")
        return super().forward(batch)


class Ended(Failing):
    """Is ended by the user when it has weights that it does not know."""

    error = KeyboardInterrupt


def test_a_network_that_fails_with_random_weights_is_judged_by_the_rest():
    found = fmapviz.trust(Failing(), spot(), target=1, methods=["gradcam"])
    assert np.isnan([*found.last_random, *found.all_random]).all()
    assert np.isfinite(found.deletion).all()
    assert any(each.startswith("With random weights in all layers, the model failed") for each in found.remarks)


@pytest.mark.parametrize("network", [Small, Ended, *thorough(Failing)])
def test_the_network_is_as_before(network):
    network = network().train()
    network.conv.eval()
    network.conv.weight.requires_grad_(False)
    before = [(name, id(each), each.requires_grad, each.detach().clone()) for name, each in network.named_parameters()]
    modes = [module.training for module in network.modules()]
    methods = ["gradcam", "saliency", "occlusion"]
    if isinstance(network, Ended):
        with pytest.raises(KeyboardInterrupt):
            fmapviz.trust(network, spot(), target=1, methods=methods, patch=8)
    else:
        fmapviz.trust(network, spot(), target=1, methods=methods, patch=8)
    after = list(network.named_parameters())
    assert [module.training for module in network.modules()] == modes
    assert [(name, id(each), each.requires_grad) for name, each in after] == [each[:3] for each in before]
    assert all(torch.equal(each, old[3]) for (_, each), old in zip(after, before, strict=True))
    assert not any(module._forward_hooks for module in network.modules())
    assert all(each.grad is None for _, each in after)


# --- what is not known


class Constant(nn.Module):
    """Does not look."""

    def __init__(self, first=0.0):
        super().__init__()
        self.conv, self.first = nn.Conv2d(3, 2, 3), first

    def forward(self, batch):
        bright = 0 * self.conv(batch).mean((1, 2, 3))
        return torch.stack([bright + self.first, bright], 1)


class Noisy(Small):
    """Adds noise of its own to the scores."""

    def __init__(self):
        super().__init__()
        self.numbers = np.random.default_rng(0)

    def forward(self, batch):
        return super().forward(batch) + 0.1 * float(self.numbers.normal())


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Constant(-1e4), "its probability is zero, whichever cells of the image are removed"),
        (Constant(), "its probability is the same, whichever cells are removed: it does not depend on the input"),
    ],
)
def test_a_class_whose_probability_says_nothing_is_not_judged(network, message):
    with pytest.raises(RequestError, match=f"nothing is judged for class0: {message}"):
        fmapviz.trust(network, spot(), target=0, methods=["eigencam"], layer="conv")


class Outer(nn.Module):
    """Has weights of its own, which are used before or behind those of the module in it."""

    def __init__(self, *, behind):
        super().__init__()
        self.behind, self.inner, self.own = behind, nn.Conv2d(3, 3, 1), nn.Parameter(torch.eye(3) + 0.1)

    def forward(self, batch):
        found = batch if self.behind else self._mixed(batch)
        found = self.inner(found)
        found = self._mixed(found) if self.behind else found
        return found.mean((2, 3))

    def _mixed(self, batch):
        return (batch.movedim(1, -1) @ self.own).movedim(-1, 1)


@pytest.mark.parametrize(("behind", "last"), [(False, "inner"), (True, "Outer")])
def test_the_last_layer_is_that_whose_weights_are_used_last_not_the_module_that_ends_last(behind, last):
    assert fmapviz.trust(Outer(behind=behind), spot(), target=1, methods=["saliency"]).last_layer == last


def test_the_last_layer_of_a_vision_transformer_is_its_head_not_its_class_token():
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(24, 8, 1, 2, 16, 32, num_classes=3)
    nn.init.normal_(network.heads.head.weight)
    assert fmapviz.trust(network, spot(), target=1, methods=["saliency"]).last_layer == "heads.head"


def test_several_classes_are_refused_and_not_the_last_one_judged():
    model = fmapviz.load_model("shapesnet")
    image = torch.randn(1, 3, 24, 24)
    with pytest.raises(RequestError, match="several classes: 'star,ring'"):
        fmapviz.trust(model, image, target="star,ring", methods=["saliency"])
    assert fmapviz.trust(model, image, target="top2", methods=["saliency"]).target.label == "top2"


def test_scores_that_are_not_finite_are_traced_to_a_layer_and_not_to_the_method():
    with pytest.raises(RequestError, match="the class scores are not finite") as raised:
        fmapviz.trust(Small(), torch.full((1, 3, 24, 24), torch.nan), methods=["saliency"])
    assert "names the first layer with such values" in raised.value.hint


def test_an_image_of_one_colour_is_not_judged():
    image = torch.tensor([0.1, -0.3, 0.7]).view(1, 3, 1, 1).expand(1, 3, 24, 24)
    with pytest.raises(RequestError, match="nothing is judged for class1: the blurred image is the image itself"):
        fmapviz.trust(Small(), image, target=1, methods=["saliency"])


class Steep(Small):
    """Has a finite score, whose gradient at the image is not."""

    def forward(self, batch):
        return super().forward(batch) + (batch - batch).abs().sum((1, 2, 3)).sqrt()[:, None]


def test_a_map_that_is_not_finite_is_named_and_not_judged():
    found = fmapviz.trust(Steep(), spot(), target=1, methods=["saliency", "eigencam"], layer="conv")
    assert found.methods == ("eigencam",)
    assert "saliency: no map, it has values that are not finite, which have no order." in found.remarks


class Shifted(Small):
    """Adds the same random number to all scores."""

    def forward(self, batch):
        return super().forward(batch) + torch.randn(1)


@pytest.mark.thorough
def test_the_spread_is_that_of_the_probability():
    network = Shifted().eval()
    assert network(spot())[0, 1] != network(spot())[0, 1]
    found = fmapviz.trust(network, spot(), target=1, methods=["saliency"])
    assert found.spread == pytest.approx(0, abs=1e-6)  # the same number changes no probability


class Dropped(Small):
    """Drops values also in evaluation mode, as for a Monte Carlo estimate."""

    def forward(self, batch):
        return self.head(nn.functional.dropout(self.conv(batch).relu().mean((2, 3)), training=True))


def test_dropout_that_is_left_on_hides_no_layer_as_each_pass_drops_the_same_values():
    found = fmapviz.trust(Dropped(), spot(), target=1, methods=["saliency"])
    assert found.spread > 0
    assert found.last_layer == "head"
    assert np.isfinite([*found.last_random, *found.all_random]).all()


NUMBERS = np.random.default_rng(0)


class Uneven(Small):
    """Has noise that no pass repeats, larger than what weights change."""

    def forward(self, batch):
        return super().forward(batch) + 100 * float(NUMBERS.normal())


def test_a_layer_whose_weights_change_less_than_noise_is_unknown_with_the_reason():
    found = fmapviz.trust(Uneven(), spot(), target=1, methods=["saliency"])
    assert found.last_layer == ""
    assert any("its score changes by no more than from pass to pass: nothing is known" in x for x in found.remarks)


def test_an_empty_map_is_named():
    network = Small()
    with torch.no_grad():
        network.conv.weight.zero_()
        network.head.weight.normal_()
    network.conv.weight.data[0, :, 1, 1] = 0.1
    network.conv.bias.data[:] = torch.tensor([0.0, 1, 1, 1, 1, 1])

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.flat = network, nn.Conv2d(3, 1, 1)
            nn.init.zeros_(self.flat.weight)

        def forward(self, batch):
            return self.small(batch) + self.flat(batch).mean((2, 3))

    found = fmapviz.trust(Flat(), spot(), target=1, methods=["eigencam"], layer="flat")
    assert "eigencam of flat: the map is empty: all its values are equal." in found.remarks
    assert np.isnan(found.agreement).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["gradcan"]}, "no such method: 'gradcan'"),
        ({"methods": ["maps"]}, "no such method: 'maps'"),
        ({"layer": "nowhere"}, "no such layer: 'nowhere'"),
        ({"target": "top9"}, "nothing is judged for top9"),
        ({"target": ["0", "1"]}, "target must be str or int, not"),
        *thorough(({"steps": 0}, "steps must be at least 1")),
    ],
)
def test_wrong_requests_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        fmapviz.trust(Small(), spot(), **options)


def test_several_images_are_refused():
    with pytest.raises(RequestError, match="2 images at once"):
        fmapviz.trust(Small(), pixels(2))
