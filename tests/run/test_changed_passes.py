"""Passes of changed copies of an image: unseen by hooks, in the state of the start, in batches of a fixed size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from torch import nn

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.observe.hooks import evaluating
from fmapviz.observe.located import AbsentError
from fmapviz.observe.same_target import SameTarget
from fmapviz.run.batch import describe_given
from fmapviz.run.changed_passes import ChangedPasses
from fmapviz.run.forward_pass import ForwardError
from fmapviz.run.plan import Plan


def passes_of(network, **plan):
    return ChangedPasses(describe_given(network.eval(), preprocessing=fmapviz.InputOptions()), Plan(**plan))


def image_of(seed=0, *, size=8):
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """Notes the sizes of its batches."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.seen = []

    def forward(self, batch):
        self.seen.append(len(batch))
        return self.change(self.conv(batch)).mean((2, 3))

    def change(self, maps):
        return maps


def small(kind=Small):
    torch.manual_seed(0)
    return kind()


def test_scores_are_those_of_the_network_in_batches_of_a_fixed_size():
    network = small()
    passes = passes_of(network)
    image, copies = image_of(), [image_of(seed) for seed in range(1, 20)]
    with torch.no_grad():
        expected = network(torch.cat(copies))[:, 2]
    network.seen.clear()
    with passes.restored():
        found = [*passes.of(image, SameTarget(2), None).scores(copies)]
        assert network.seen == [3]  # those of the last pass
    torch.testing.assert_close(torch.tensor(found), expected)
    assert network.seen == []
    assert passes.together == 8
    weights = [*passes.of(image, SameTarget(2), None).weights(copies)]
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(weights), network(torch.cat(copies)).softmax(1)[:, 2])


def test_gradients_are_those_of_autograd_and_leave_nothing_behind():
    network, image = small(), image_of()
    passes = passes_of(network).of(image, SameTarget(1), None)
    gradient, score = passes.gradient(image)
    start = image.clone().requires_grad_()
    own = network(start)[0, 1]
    assert torch.equal(gradient, torch.autograd.grad(own, start)[0])
    assert score == own.item()
    assert all(each.grad is None for each in network.parameters())
    assert not image.requires_grad


class Overwriting(Small):
    """Works in place on what it is given."""

    def forward(self, batch):
        return super().forward(batch.mul_(2))


class Counting(Small):
    """Depends on the number of its passes, as a network with a running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def change(self, maps):
        self.passes += 1
        return maps * self.passes


@pytest.mark.parametrize("kind", [Overwriting, Counting])
def test_a_network_that_changes_something_starts_each_pass_as_the_first(kind):
    network, image = small(kind), image_of()
    passes = passes_of(network)
    own, before = passes.of(image, SameTarget(0), None), image.clone()
    with passes.restored():
        found = [*own.scores([image] * 20)]
        assert own.spread().score == 0
    assert torch.tensor(found).std() == 0
    assert torch.equal(image, before)
    assert all(not bool(each) for each in network.buffers())


class Mixing(Small):
    """Normalises by the batch."""

    def change(self, maps):
        return maps - maps.mean(0, keepdim=True) / 2


class Single(Small):
    """Takes a single image."""

    def change(self, maps):
        if len(maps) > 1:
            raise ValueError("one image")
        return maps


@pytest.mark.parametrize(("kind", "mixes"), [(Mixing, True), (Single, False)])
def test_images_that_do_not_fit_into_a_batch_pass_alone(kind, mixes):
    network, copies = small(kind), [image_of(seed) for seed in range(6)]
    passes = passes_of(network)
    found = [*passes.of(copies[0], SameTarget(1), None).scores(copies)]
    with torch.no_grad():
        alone = [float(network(copy)[0, 1]) for copy in copies]
    assert found == pytest.approx(alone)
    assert (passes.mixes, passes.together) == (mixes, 1)


class Limited(Small):
    """Has memory for three images."""

    def change(self, maps):
        if len(maps) > 3:
            raise torch.OutOfMemoryError
        return maps


def test_copies_that_do_not_fit_into_memory_pass_in_smaller_batches():
    network, copies = small(Limited), [image_of(seed) for seed in range(20)]
    passes = passes_of(network)
    found = [*passes.of(copies[0], SameTarget(1), None).scores(copies)]
    with torch.no_grad():
        assert found == pytest.approx([float(network(copy)[0, 1]) for copy in copies], abs=1e-6)
    assert passes.together == 2


class Random(Small):
    """Draws random numbers."""

    def change(self, maps):
        return nn.functional.dropout(maps, 0.5, training=True)


def test_a_network_of_random_numbers_draws_the_same_ones_for_each_copy_and_its_spread_is_measured():
    network, image = small(Random), image_of()
    before = torch.get_rng_state()
    passes = passes_of(network)
    own = passes.of(image, SameTarget(1), None)
    found = [*own.scores([image] * 9)]
    assert len({*found[8:], *found[:1]}) == 1 or len({*found}) == 1
    assert passes.draws
    assert own.spread().score > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert passes_of(small()).of(image, SameTarget(1), None).spread().score == 0


class NotFinite(Small):
    """Divides by zero for some images."""

    def change(self, maps):
        return maps / (maps.abs().amax((1, 2, 3), keepdim=True) < 100)


def test_scores_that_are_not_finite_are_no_scores():
    own = passes_of(small(NotFinite)).of(image_of(), SameTarget(1), None)
    with pytest.raises(AbsentError, match="the class scores are not finite"):
        [*own.scores([image_of() * 1e6])]


class Failing(Small):
    """Fails."""

    def change(self, _maps):
        raise ZeroDivisionError("nothing")


@pytest.mark.parametrize("way", ["scores", *thorough("gradient")])
def test_a_failure_of_the_network_is_a_forward_error(way):
    own = passes_of(small(Failing)).of(image_of(), SameTarget(1), None)
    with pytest.raises(ForwardError, match="ZeroDivisionError: nothing"):
        own.gradient(image_of()) if way == "gradient" else [*own.scores([image_of()])]


def test_the_hooks_of_the_run_do_not_see_changed_copies(tmp_path):
    """The maps that the same run draws are those of a run without attributions."""
    pixels = torch.rand(2, 3, 24, 24)
    options = {"out": tmp_path, "to": "npz", "workers": 1, "targets": "1"}
    alone = fmapviz.visualize(small(), pixels, views="maps,gradcam,grads", layers="conv", name="a", **options)
    views = "maps,gradcam,grads,occlusion,smoothgrad"
    both = fmapviz.visualize(small(), pixels, views=views, layers="conv", name="b", patch=8, samples=3, **options)
    assert (alone.done, both.done) == (2, 2)
    for path in alone.directory.rglob("*.npz"):
        with np.load(path) as maps, np.load(both.directory / path.relative_to(alone.directory)) as beside:
            assert len(beside) > len(maps) > 2
            assert all(np.array_equal(maps[name], beside[name]) for name in maps if name != "__metadata__")


def test_a_patch_larger_than_the_image_names_one_that_fits():
    network = small()
    with (
        evaluating(network),
        pytest.raises(RequestError, match="patch 32 is larger than the input, 24 x 24 pixels") as error,
    ):
        fmapviz.cam(network, image_of(size=24), method="occlusion")
    assert error.value.hint == "patch=6 fits"


class OfNumPy(Small):
    """Draws numbers of NumPy's generator."""

    def change(self, maps):
        return maps + torch.from_numpy(np.random.normal(size=(len(maps), 1, 1, 1))).float()  # noqa: NPY002


def test_numbers_of_numpy_are_the_same_in_each_pass():
    network, image = small(OfNumPy), image_of()
    passes = passes_of(network)
    of_image = passes.of(image, SameTarget(0), None)
    assert len({*of_image.scores([image] * 9)}) == 1
    assert (passes.draws, passes.mixes, passes.together) == (True, False, 1)
    assert of_image.spread().score > 0.1


class Outside(Small):
    """Draws numbers of a generator of its own, which nothing restores."""

    numbers = np.random.default_rng()

    def change(self, maps):
        return maps + torch.from_numpy(self.numbers.normal(size=(len(maps), 1, 1, 1))).float()


def test_a_score_that_varies_is_not_taken_for_one_that_depends_on_the_other_images():
    passes = passes_of(small(Outside))
    [*passes.of(image_of(), SameTarget(0), None).scores([image_of()] * 3)]
    assert (passes.mixes, passes.together) == (False, 1)
