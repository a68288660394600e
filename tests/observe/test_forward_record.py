"""Recorded tensors are the outputs of layers, although later layers overwrite them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from results import heats_of
from tiny_models import as_model, images, overwritten
from torch import nn

import fmapviz
from fmapviz.config import Style
from fmapviz.observe.forward_record import ForwardRecord, GraphPoint
from fmapviz.observe.gradients import begin_graph, edge_of, gradients_at
from fmapviz.observe.hooks import observe
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import make_plan
from fmapviz.types import FeatureMap, Layer


def mapped(values, module=None, part=""):
    module = module or nn.Identity()
    return FeatureMap(Layer("layer", type(module).__name__, module), f"layer{part}", 1, 0, values)


def receive_all(network, batch, *, names=None, heads=False):
    """Run a network and return its record and its output."""
    start, given = begin_graph(batch)
    record = ForwardRecord(network, start, names=names, heads=heads)
    with observe(network, find_layers(network), record.keep, attached=True):
        output = network(given)
    return record, output


def late_record(values):
    return ForwardRecord(nn.Identity(), values, late=True)


# --- one tensor


def test_values_are_valid_until_they_are_overwritten():
    start, values = begin_graph(torch.tensor([[-1.0, 2.0]]))
    values = values * 1
    point, copied = (GraphPoint.of(mapped(values), copied=copied) for copied in (False, True))
    assert point.intact
    assert point.values.tolist() == [[-1, 2]]
    values.relu_()
    assert not point.intact
    assert copied.intact
    assert copied.values.tolist() == [[-1, 2]]
    assert point.edge == copied.edge != edge_of(values)
    assert start.tolist() == [[-1, 2]]


def test_recorded_values_are_outside_the_graph_and_named_after_their_layers():
    _, values = begin_graph(torch.ones(1, 2))
    point = GraphPoint.of(mapped(values, part="[1]"), copied=True)
    assert not point.values.requires_grad
    assert (point.name, point.layer.name) == ("layer[1]", "layer")
    assert GraphPoint.of(mapped(torch.ones(1, 2)), copied=False).edge is None


def test_the_same_tensor_of_two_modules_is_recognised():
    _, values = begin_graph(torch.ones(1, 2))
    doubled = values * 2
    first, again = (GraphPoint.of(mapped(doubled), copied=False) for _ in range(2))
    assert first.identity == again.identity != GraphPoint.of(mapped(values), copied=False).identity
    doubled.relu_()
    assert first.identity != GraphPoint.of(mapped(doubled), copied=False).identity
    outside = [GraphPoint.of(mapped(torch.ones(1, 2)), copied=False) for _ in range(2)]
    assert outside[0].identity != outside[1].identity


def test_a_graph_begins_at_the_tensor_that_the_network_continues_with():
    values = torch.tensor([[3.0, -4.0]])
    alias = values.view(2)
    point = late_record(values).point(mapped(values), copied=True)
    values.relu_()
    assert (point.values.tolist(), values.tolist(), alias.tolist()) == ([[3, -4]], [[3, 0]], [3, 0])
    (gradient,) = gradients_at((values * 5).sum(1), [point.edge])
    assert gradient.tolist() == [[5, 0]]


@pytest.mark.parametrize("values", [torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2).requires_grad_() * 1])
def test_no_graph_begins_at_tensors_that_have_one_or_cannot_have_one(values):
    before = values.grad_fn
    point = late_record(values).point(mapped(values), copied=True)
    assert values.grad_fn is before
    assert torch.equal(point.values, values.detach())
    assert (point.edge is None) == (not values.requires_grad)


def test_a_graph_does_not_begin_at_a_tensor_that_a_layer_only_passes_on():
    values = torch.ones(1, 2)
    record = late_record(values)
    point = record.point(replace(mapped(values), passed_on=True), copied=True)
    assert record.disconnected
    assert point.edge is None
    assert not values.requires_grad


def test_a_graph_does_not_begin_at_one_of_several_views():
    first, _ = torch.ones(1, 2).unbind(1)
    record = late_record(first)
    record.point(mapped(first), copied=True)
    assert record.disconnected


# --- those of a forward pass


def test_outputs_are_recorded_in_the_order_of_execution_with_gradients():
    network, batch = overwritten(), images()
    record, output = receive_all(network, batch)
    assert [point.name for point in record.kept] == ["0", "1", "2", "3"]
    assert [point.intact for point in record.kept] == [False, True, False, True]
    gradients = gradients_at(output.sum((1, 2, 3)), [point.edge for point in record.kept])
    calm = deepcopy(network)
    x, expected = batch, []
    for module in calm:
        module.inplace = False
        x = module(x)
        x.retain_grad()
        expected.append(x)
    x.sum().backward()
    for point, gradient, values in zip(record.kept, gradients, expected, strict=True):
        assert torch.equal(gradient, values.grad), point.name
        assert not point.intact or torch.equal(point.values, values)


def test_only_requested_values_are_recorded():
    network = overwritten()
    record, output = receive_all(network, images(), names={"2"})
    assert [point.name for point in record.kept] == ["2"]
    with torch.no_grad():
        assert torch.equal(record.kept[0].values, network[2](network[1](network[0](images()))))
    assert torch.equal(output, overwritten()(images()))
    assert receive_all(network, images(), names=frozenset())[0].kept == []


def test_values_that_are_no_longer_needed_are_released():
    record, _ = receive_all(overwritten(), images())
    record.keep_only({"1", "3"}, list(reversed(record.kept)))
    assert [point.name for point in record.kept] == ["3", "1"]


def test_vectors_of_linear_layers_may_be_the_class_scores():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 6, 1), nn.Flatten(), nn.Linear(6, 5), nn.ReLU(inplace=True)
    )
    record, output = receive_all(network, images(), names=frozenset(), heads=True)
    assert [(head.name, head.shape) for head in record.vectors] == [("2", (2, 6, 1, 1)), ("4", (2, 5))]
    assert torch.equal(record.vectors[1].values.relu(), output.detach())
    assert not torch.equal(record.vectors[1].values, output.detach())  # a copy, from before the ReLU
    assert receive_all(network, images(), names=frozenset())[0].vectors == []


# --- networks that do not use what a layer in point returns


class Ignores(nn.Module):
    """Goes on with the tensor that a layer has overwritten, not with what it returned."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Conv2d(4, 5, 3)

    def forward(self, x):
        x = self.conv(x)
        self.relu(x)
        return self.last(x).mean((2, 3))


def test_a_layer_whose_result_is_ignored_has_the_gradient_of_the_tensor_it_has_changed():
    network, batch = Ignores().eval(), images()
    activated = network.conv(batch).relu().detach().requires_grad_()
    (gradient,) = torch.autograd.grad(network.last(activated).mean((2, 3))[:, 1].sum(), activated)
    found = fmapviz.cam(network, batch, target=1, layer="relu", method="hirescam")
    assert torch.equal(found.raw, (gradient * activated.detach()).sum(1))


class Alias(nn.Module):
    """Has a layer that returns its input itself, and overwrites that afterwards."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.conv(x)
        y = self.dropout(x)
        x.relu_()
        return self.fc(y.mean((2, 3)))


def test_a_layer_that_returns_its_input_still_returns_it():
    network = Alias().eval()
    with torch.no_grad():
        expected = network(images())[:, 1]
    assert torch.allclose(fmapviz.cam(network, images(), target=1, layer="dropout").score, expected)


class Fork(nn.Module):
    """Has a layer that does nothing, on one of two ways from the same tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 4, 3)
        self.nothing = nn.Identity()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x)
        return self.fc((self.conv(self.nothing(x)).relu() + x).mean((2, 3)))


def test_the_gradient_of_a_layer_does_not_depend_on_the_beginning_of_the_graph():
    network = Fork().eval()
    with fmapviz.capture(network, gradients=True, types=["Identity"]) as maps:
        maps.backward(network(images())[:, 1])
    captured = maps["nothing"]
    found = fmapviz.cam(network, images(), target=1, layer="nothing", method="hirescam")
    assert torch.allclose(found.raw, (captured.gradient * captured.values).sum(1), atol=1e-7)


class Twice(nn.Module):
    """Has a layer that returns the same tensor twice."""

    class Both(nn.Module):
        def forward(self, x):
            x = x * 2
            return x, x

    def __init__(self):
        super().__init__()
        self.both = self.Both()

    def forward(self, x):
        one, other = self.both(x)
        return (one * other).mean((2, 3))


def test_a_tensor_that_is_returned_twice_has_a_gradient_under_both_names():
    network = Twice()
    plan = make_plan(["hirescam"], targets=["1"], classes=(), output=None, automatic=False)
    with Drawer(as_model(network), select_layers(find_layers(network), types=["Both"]), plan, Style()) as drawer:
        (drawn, _) = drawer.draw(images())
    assert drawn.undrawn == {}
    assert [heat.layer for heat in heats_of(drawn)] == ["both[0]", "both[1]"]
    doubled = 2 * images()[0, 1]
    for heat in heats_of(drawn):
        assert torch.allclose(torch.from_numpy(heat.raw), 2 * doubled**2 / doubled.numel())


class _Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, batch):
        fine = self.first(batch)
        return {"fine": fine, "coarse": self.second(fine.tanh())}


class _OfScales(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales, self.head = _Scales(), nn.Linear(8, 3)

    def forward(self, batch):
        return self.head(torch.cat([each.mean((2, 3)) for each in self.scales(batch).values()], 1))


@pytest.mark.parametrize("key", ["fine", "coarse"])
def test_a_gradient_at_one_of_several_outputs_counts_the_others_that_were_computed_from_it(key):
    torch.manual_seed(0)
    network, batch = _OfScales().eval(), torch.rand(2, 3, 12, 12)
    found = fmapviz.cam(network, batch, target=1, layer=f"scales[{key!r}]", method="hirescam")
    fine = network.scales.first(batch)
    maps = {"fine": fine, "coarse": network.scales.second(fine.tanh())}
    score = network.head(torch.cat([each.mean((2, 3)) for each in maps.values()], 1))[:, 1].sum()
    (gradient,) = torch.autograd.grad(score, maps[key])
    torch.testing.assert_close(found.raw, (maps[key] * gradient).sum(1).detach())


class _Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.cached, self.viewed = torch.ones(1, 4, 10, 10), torch.ones(4, 10, 10)

    def forward(self):
        return self.cached, self.viewed[None]


class _WithPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions, self.first, self.head = _Positions(), nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, batch):
        return self.head((self.first(batch) * sum(self.positions())).mean((2, 3)))


@pytest.mark.parametrize("layer", ["auto", "first"])
def test_a_tensor_that_the_network_keeps_is_in_no_graph_afterwards(layer):
    network = _WithPositions().eval()
    fmapviz.cam(network, torch.rand(2, 3, 12, 12), target=1, layer=layer)
    assert not network.positions.cached.requires_grad
    assert not network.positions.viewed.requires_grad
