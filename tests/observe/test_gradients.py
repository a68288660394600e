"""Gradients at inputs and outputs of layers equal those of module backward hooks, where these work."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from types import MethodType

import pytest
import torch
from results import as_grids, drawings_of
from tiny_models import as_model, images, overwritten
from torch import nn
from torchvision import models

from fmapviz.config import Style
from fmapviz.observe.gradients import BackwardError, begin_graph, edge_of, frozen, gradients_at, recording
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.observe.targets import parse
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import Plan

CLASS = 7


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return models.resnet18(weights=None).eval()


@pytest.fixture(scope="module")
def picture():
    return torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))


def forward_out_of_place(block, x):
    out = block.relu(block.bn1(block.conv1(x)))
    identity = x if block.downsample is None else block.downsample(x)
    return block.relu(block.bn2(block.conv2(out)) + identity)


@pytest.fixture(scope="module")
def out_of_place(resnet):
    """The same network, computed without overwriting anything, as module backward hooks need it."""
    copy = deepcopy(resnet)
    for module in copy.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
        if isinstance(module, models.resnet.BasicBlock):
            module.forward = MethodType(forward_out_of_place, module)
    return copy


def drawn_gradients(network, batch, *, layers=(), inputs=True):
    """Return the gradients that views receive, at the outputs and inputs of convolutions."""
    given = {"gradient": [], "input gradient": []}

    def keep_as(of):
        def draw(maps, _style):
            given[of].append(maps.values.clone())
            return as_grids(maps.values.new_zeros(len(maps.values), 1, 1).byte())

        return {"kept": draw}

    kinds = ["gradient", "input gradient"] if inputs else ["gradient"]
    plan = Plan({of: keep_as(of) for of in kinds}, targets=parse([str(CLASS)], ()))
    chosen = select_layers(find_layers(network), types=["Conv2d"], include=layers)
    with Drawer(as_model(network), chosen, plan, Style()) as drawer:
        (drawn,) = drawer.draw(batch)
    assert drawn.undrawn == {}
    assert {drawing.target.index for drawing in drawings_of(drawn)} == {CLASS}
    names = {of: [drawing.layer for drawing in drawings_of(drawn) if drawing.of == of] for of in given}
    return tuple(dict(zip(names[of], given[of], strict=True)) for of in given)


def hooked_gradients(network, batch):
    """Return grad_output and grad_input of each convolution, from module backward hooks."""
    outputs, inputs, handles = {}, {}, []
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):

            def keep(_module, given, returned, name=name):
                inputs[name], outputs[name] = given[0], returned[0]

            handles.append(module.register_full_backward_hook(keep))
    network(batch.clone().requires_grad_())[0, CLASS].backward()
    for handle in handles:
        handle.remove()
    network.zero_grad()
    return outputs, inputs


# --- the oracle


def test_gradients_of_all_convolutions_of_resnet_are_those_of_backward_hooks_bit_for_bit(resnet, out_of_place, picture):
    outputs, inputs = drawn_gradients(resnet, picture)
    expected_outputs, expected_inputs = hooked_gradients(out_of_place, picture)
    for found, expected in ((outputs, expected_outputs), (inputs, expected_inputs)):
        assert found.keys() == expected.keys()
        assert len(found) == 20
        for name, gradient in found.items():
            assert gradient.any()
            assert torch.equal(gradient, expected[name]), name


@pytest.mark.thorough
def test_gradients_do_not_depend_on_which_other_layers_are_chosen(resnet, out_of_place, picture):
    """The graph begins with the first layer that matters, wherever that is."""
    expected, _ = hooked_gradients(out_of_place, picture)
    together, _ = drawn_gradients(resnet, picture, inputs=False)
    assert together.keys() == expected.keys()
    for name, gradient in together.items():
        assert torch.equal(gradient, expected[name]), name
    for name in ("conv1", "layer1.1.conv2", "layer2.0.downsample.0", "layer3.1.conv1", "layer4.1.conv2"):
        (alone, inputs) = drawn_gradients(resnet, picture, layers=[name], inputs=False)
        assert (list(alone), inputs) == ([name], {})
        assert torch.equal(alone[name], expected[name]), name


def test_a_hook_on_the_input_itself_would_be_wrong_at_every_fork(out_of_place, picture):
    """A layer takes a copy of its input, because the tensor's gradient includes that of the shortcut."""
    found, handles = {}, []
    for name, module in out_of_place.named_modules():
        if isinstance(module, nn.Conv2d):

            def watch(_module, args, name=name):
                args[0].register_hook(lambda gradient: found.__setitem__(name, gradient))

            handles.append(module.register_forward_pre_hook(watch))
    out_of_place(picture.clone().requires_grad_())[0, CLASS].backward()
    for handle in handles:
        handle.remove()
    out_of_place.zero_grad()
    _, right = hooked_gradients(out_of_place, picture)
    wrong = {name for name, gradient in found.items() if not torch.equal(gradient, right[name])}
    assert wrong == {name for name in right if name.endswith((".conv1", "downsample.0"))}
    assert len(wrong) == 11


@pytest.mark.parametrize(("name", "kind"), [("resnet18", nn.Module), ("alexnet", nn.Conv2d)])
@pytest.mark.thorough
def test_module_backward_hooks_fail_on_networks_that_work_in_place(name, kind, picture):
    """Why they are not used. Should PyTorch learn it one day, this engine could be simpler."""
    network = models.get_model(name, weights=None).eval()
    for module in network.modules():
        if isinstance(module, kind):
            module.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        network(picture.clone().requires_grad_())
    assert (
        len(drawn_gradients(models.get_model(name, weights=None).eval(), picture)[0]) == {"resnet18": 20, "alexnet": 5}[name]
    )


# --- its parts


def test_an_edge_names_the_tensor_before_it_is_overwritten():
    network = overwritten()
    _, x = begin_graph(images())
    convolved = network[0](x)
    edge, kept = edge_of(convolved), convolved.detach().clone()
    activated = network[1](convolved)
    assert activated is convolved
    (before, after) = gradients_at(network[2](activated).sum((1, 2, 3)), [edge, edge_of(activated)])
    free = kept.clone().requires_grad_()
    network[2](free.relu()).sum().backward()
    assert torch.equal(before, free.grad)
    assert not torch.equal(before, after)


def test_gradients_equal_those_of_autograd_or_are_none():
    start, x = begin_graph(torch.tensor([1.0, 2.0, 3.0]))
    unused, _ = begin_graph(torch.ones(2))
    squares = x**2
    found = gradients_at(squares * 3, [edge_of(x), None, edge_of(unused), edge_of(squares)], more=True)
    assert found[0].tolist() == [6, 12, 18]
    assert (found[1], found[2]) == (None, None)
    assert found[3].tolist() == [3, 3, 3]
    assert gradients_at(squares, [edge_of(start)])[0].tolist() == [2, 4, 6]
    assert gradients_at(squares, [None]) == [None]
    assert gradients_at(squares, []) == []
    assert gradients_at(torch.ones(2), [edge_of(x)]) == [None]
    assert (start.grad, unused.grad) == (None, None)


def test_the_graph_is_freed_by_default():
    _, x = begin_graph(torch.tensor([1.0]))
    scores = x.exp()
    gradients_at(scores, [edge_of(x)])
    with pytest.raises(BackwardError, match="second time"):
        gradients_at(scores, [edge_of(x)])


def test_a_graph_begins_at_the_values_and_continues_with_a_copy():
    batch = images()
    start, given = begin_graph(batch)
    assert torch.equal(start, batch)
    assert torch.equal(given, batch)
    assert (start.is_leaf, given.is_leaf, batch.requires_grad) == (True, False, False)
    given.zero_()
    assert torch.equal(start, images())
    assert torch.equal(batch, images())
    assert edge_of(batch) is None


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_graph_is_recorded_inside_no_grad_and_inference_mode(off):
    with off():
        with recording():
            start, x = begin_graph(torch.ones(2))
            (gradient,) = gradients_at(x.exp(), [edge_of(start)])
        assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() == (off is torch.inference_mode)
    assert torch.allclose(gradient, torch.ones(2).exp())


def test_parameters_are_frozen_temporarily():
    network = overwritten()
    network[0].bias.requires_grad_(False)
    flags = [values.requires_grad for values in network.parameters()]
    assert flags == [True, False, True, True]
    for layer in ("0", "no such layer"):
        failing = pytest.raises(AttributeError) if layer == "no such layer" else nullcontext()
        with failing, frozen(network):
            assert not any(values.requires_grad for values in network.parameters())
            with frozen(network):
                pass
            assert not any(values.requires_grad for values in network.parameters())
            network.get_submodule(layer)
        assert [values.requires_grad for values in network.parameters()] == flags
