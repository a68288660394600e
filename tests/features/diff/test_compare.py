"""`fmapviz.diff` against its definition, and against plain loops."""

import copy
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

import fmapviz
from fmapviz.errors import InputError, NothingToDoError, RequestError, WeightsError
from fmapviz.features.diff import layer_pairs
from fmapviz.features.diff.networks import are_related, compare_networks
from fmapviz.observe.layers import find_layers
from fmapviz.run.batch import describe_given
from fmapviz.run.plan import Plan

X = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
NUMBERS = ["max_abs", "rms", "relative_l2", "cosine", "pearson", "sqnr", "differing", "nonfinite"]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 6, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    ).eval()


def changed(change, net=None):
    other = copy.deepcopy(net or network())
    with torch.no_grad():
        change(other)
    return other


def captured(net, x):
    """Return what each convolution returns, copied before a later layer changes it."""
    kept = {}
    hooks = [
        module.register_forward_hook(lambda _m, _a, out, name=name: kept.update({name: out.clone()}))
        for name, module in net.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return kept


def test_a_network_does_not_differ_from_itself():
    net = network()
    for other in (net, copy.deepcopy(net)):
        found = list(fmapviz.diff(net, other, X))
        assert [each.layer for each in found] == ["0", "2", "4"]
        for each in found:
            assert list(each.numbers) == NUMBERS
            assert not each.delta.any()
            assert each.numbers["sqnr"] == np.inf
            assert each.numbers["max_abs"] == each.numbers["differing"] == 0
    assert not any(module._forward_hooks for module in net.modules())


def test_the_reversed_difference_is_the_negative_bit_for_bit():
    one, other = network(), changed(lambda net: net[0].weight.mul_(1.1))
    there, back = (list(fmapviz.diff(*pair, X)) for pair in ((one, other), (other, one)))
    assert all(torch.equal(first.delta, -second.delta) for first, second in zip(there, back, strict=True))
    assert there[0].delta.any()


def test_differences_equal_those_of_the_outputs():
    one, other = network(), network(seed=1)
    expected = [captured(net, X[None]) for net in (one, other)]
    for each in fmapviz.diff(one, other, X):
        assert torch.equal(each.a, expected[0][each.layer])
        assert torch.equal(each.b, expected[1][each.layer])
        assert torch.equal(each.delta, each.b - each.a)


def test_a_changed_convolution_does_not_change_earlier_layers():
    d = 0.01 * torch.randn(6, 8, 3, 3, generator=torch.Generator().manual_seed(1))
    found = {each.layer: each for each in fmapviz.diff(network(), changed(lambda net: net[2].weight.add_(d)), X)}
    assert not found["0"].delta.any()
    expected = nn.functional.conv2d(found["0"].a.relu(), d)
    assert torch.allclose(found["2"].delta, expected, atol=1e-6)
    assert found["4"].delta.any()


def test_outputs_are_copied_before_an_activation_in_place(monkeypatch):
    d = 0.01 * torch.randn(6, 8, 3, 3, generator=torch.Generator().manual_seed(1))
    other = changed(lambda net: net[2].weight.add_(d))
    keep = layer_pairs.PairDrawer._keep

    def refer(self, feature_map):
        keep(self, feature_map)
        self._held[feature_map.name] = replace(self._held[feature_map.name], values=feature_map.values)

    monkeypatch.setattr(layer_pairs.PairDrawer, "_keep", refer)
    found = {each.layer: each for each in fmapviz.diff(network(), other, X)}
    assert found["0"].numbers["sqnr"] < 60  # the mistake: the first layer seems to differ


def test_a_changed_bias_changes_only_its_channel():
    found = {each.layer: each for each in fmapviz.diff(network(), changed(lambda net: net[2].bias[3].add_(0.5)), X)}
    channels = found["2"].channels
    assert channels[3, 0] == pytest.approx(0.5, abs=1e-6)
    assert (np.delete(channels[:, 0], 3) == 0).all()
    assert not found["0"].delta.any()


def test_activations_that_are_one_percent_larger_are_at_40_decibels():
    def enlarge(net):
        net[0].weight.mul_(1.01)
        net[0].bias.mul_(1.01)

    first = next(iter(fmapviz.diff(network(), changed(enlarge), X)))
    assert first.numbers["sqnr"] == pytest.approx(40, abs=0.001)


def test_a_network_of_another_type_is_compared_as_in_a_plain_loop(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "deterministic", True)
    net = network()
    low = captured(copy.deepcopy(net).bfloat16(), X[None].bfloat16())
    found = list(fmapviz.diff(net, "dtype:bfloat16", X))
    assert [each.b.dtype for each in found] == [torch.bfloat16] * 3
    for each in found:
        assert torch.equal(each.b, low[each.layer])
        noise = (each.b.double() - each.a.double()).square().sum()
        assert each.numbers["sqnr"] == pytest.approx(10 * torch.log10(each.a.double().square().sum() / noise).item())
    assert all(30 < each.numbers["sqnr"] < 60 for each in found)


def quantized(net):
    net.fuse_model()
    net.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
    torch.ao.quantization.prepare(net, inplace=True)
    net(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(3)))
    return torch.ao.quantization.convert(net, inplace=True)


@pytest.mark.filterwarnings("ignore")  # of PyTorch: its quantization will move to another package
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "googlenet"])
def test_variants_of_torchvisions_networks_are_compared_as_in_a_plain_loop(name):
    torch.manual_seed(0)
    options = {"init_weights": False, "aux_logits": False, "transform_input": False} if name == "googlenet" else {}
    net = getattr(models.quantization, name)(weights=None, quantize=False, **options).eval()
    x = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(2))
    variants = {"quantized": quantized(copy.deepcopy(net)), "bfloat16": copy.deepcopy(net).bfloat16()}
    for kind, other in variants.items():
        kept: dict[str, torch.Tensor] = {}
        first = captured(net, x[None])
        hooks = [
            module.register_forward_hook(lambda _m, _a, out, key=key, kept=kept: kept.update({key: out.clone()}))
            for key, module in other.named_modules()
            if key in first
        ]
        with torch.no_grad():
            other(x[None].to(torch.bfloat16 if kind == "bfloat16" else torch.float32))
        for hook in hooks:
            hook.remove()
        found = {each.layer: each for each in fmapviz.diff(net, other, x)}
        assert len(found) > 10
        assert found.keys() <= first.keys()
        for key, each in found.items():
            b = kept[key].dequantize() if kept[key].is_quantized else kept[key]
            d = b.double() - first[key].double()
            assert each.numbers["max_abs"] == pytest.approx(d.abs().max().item(), rel=1e-9)
            assert each.numbers["rms"] == pytest.approx(d.square().mean().sqrt().item(), rel=1e-9)


class ChangesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        return self.only(x.mul_(2))


def test_a_network_that_changes_its_input_in_place_does_not_change_that_of_the_other():
    torch.manual_seed(0)
    net = ChangesItsInput()
    assert all(each.numbers["sqnr"] == np.inf for each in fmapviz.diff(net, copy.deepcopy(net), X))
    found = next(iter(fmapviz.diff(net, copy.deepcopy(net), X)))
    assert torch.equal(found.a, net.only(2 * X[None]).detach())


class Swallows(nn.Module):
    """Continues after each failure."""

    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        with suppress(Exception):
            return self.only(x)
        return x


def test_an_internal_error_is_no_failure_of_a_network():
    for net in (network(), Swallows()):
        own, theirs = compare_networks(describe_given(net, code=None), describe_given(copy.deepcopy(net), code=None)), []

        def check(theirs=theirs):
            theirs.append(None)
            if len(theirs) > 1:
                raise OSError("stopped")

        layers = [
            [layer for layer in find_layers(each.module) if layer.type == "Conv2d"] for each in (own.first, own.second)
        ]
        pair = layer_pairs.PairDrawer(own, (layers[0], layers[1]), Plan(), fmapviz.Style(), check=check)
        with pair, pytest.raises(OSError, match="stopped"):
            pair.draw(X[None])


def test_a_network_that_fails_is_named():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.only = nn.Conv2d(3, 2, 3)

        def forward(self, x):
            return self.only(x)[:, 5, 5, 5, 5]

    with pytest.raises(fmapviz.FmapvizError, match="failed after layer 'only'"):
        list(fmapviz.diff(Fails(), Fails(), X))


def test_layers_are_paired_by_name_call_and_shape():
    class Twice(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, width, 3), nn.Conv2d(width, 2, 3)

        def forward(self, x):
            return self.c(self.b(self.a(self.a(x))))

    torch.manual_seed(0)
    found = [each.layer for each in fmapviz.diff(Twice(4), Twice(5), X)]
    assert found == ["a", "a#2", "c"]


def test_layers_are_chosen_as_for_capture():
    one, other = network(), network(seed=1)
    assert [each.layer for each in fmapviz.diff(one, other, X, layers="2")] == ["2"]
    assert [each.layer for each in fmapviz.diff(one, other, X, exclude=["0"])] == ["2", "4"]
    assert [each.layer for each in fmapviz.diff(one, other, X, types="Linear")] == ["7"]
    assert next(iter(fmapviz.diff(one, other, X, types="Linear"))).channels.shape == (5, 8)


@pytest.mark.thorough
def test_images_come_one_by_one_and_are_prepared_once_for_both(tmp_path):
    star = "sample_images/shapes/star.jpg"
    found = list(fmapviz.diff("shapesnet", "dtype:float64", [star, "sample_images/shapes/ring.jpg"], layers="*.0.*"))
    assert [each.image for each in found] == ["star.jpg", "ring.jpg"]
    x = fmapviz.load_image(star, fmapviz.load_model("shapesnet"))
    assert torch.equal(found[0].a, captured(fmapviz.load_model("shapesnet").module, x)["features.0.conv"])
    assert found[0].delta.dtype == torch.float64
    assert found[0].numbers["sqnr"] > 120
    with pytest.raises(InputError):
        list(fmapviz.diff("shapesnet", "dtype:float64", tmp_path / "missing.png"))


def test_names_and_files_of_weights_are_accepted(tmp_path):
    state = fmapviz.load_model("shapesnet").module.state_dict()
    state["features.0.conv.weight"] = 1.01 * state["features.0.conv.weight"]
    torch.save(state, tmp_path / "tuned.pth")
    for other in (str(tmp_path / "tuned.pth"), state):
        first = next(iter(fmapviz.diff("shapesnet", other, "sample_images/shapes/star.jpg")))
        assert first.numbers["sqnr"] == pytest.approx(40, abs=1)


def test_networks_that_cannot_be_compared_are_refused():
    shapesnet, squeezenet = fmapviz.load_model("shapesnet"), fmapviz.load_model("squeezenet1_1", weights="random")
    with pytest.raises(RequestError, match="preprocessed in different ways") as caught:
        fmapviz.diff(shapesnet, squeezenet, X)
    assert all(model.preparation.description in str(caught.value) for model in (shapesnet, squeezenet))
    assert caught.value.hint.startswith("one for both: InputOptions(size=)")
    refused = {
        "dtype:int3": "no such type",
        "other.pth": "no such weights file",
        5: "given in Python",
        "random": "given in Python",
    }
    for other, match in refused.items():
        with pytest.raises(RequestError, match=match):
            fmapviz.diff(network(), other, X)
    with pytest.raises(RequestError, match="no network"):
        fmapviz.diff(5, network(), X)
    with pytest.raises(RequestError, match="no layer matches"):
        fmapviz.diff(network(), network(), X, layers="nothing")


def test_a_network_in_python_is_compared_with_other_weights(tmp_path):
    net = network()
    before = {name: values.clone() for name, values in net.state_dict().items()}
    tuned = {name: 1.01 * values if name == "0.weight" else values for name, values in before.items()}
    torch.save(tuned, tmp_path / "tuned.pth")
    for other in (tuned, str(tmp_path / "tuned.pth")):
        first = next(iter(fmapviz.diff(net, other, X)))
        assert torch.equal(first.delta, first.b - first.a)
        expected = functional.conv2d(X[None], 0.01 * before["0.weight"])
        assert torch.allclose(first.delta, expected, atol=1e-6)
    assert all(torch.equal(net.state_dict()[name], values) for name, values in before.items())
    with pytest.raises(WeightsError):
        fmapviz.diff(net, {"1.weight": torch.ones(3)}, X)


def test_nothing_to_compare_is_an_error():
    with pytest.raises(NothingToDoError, match="no images"):
        list(fmapviz.diff(network(), network(seed=1), []))
    with pytest.raises(RequestError, match="no chosen layer is in both networks"):
        list(fmapviz.diff(network(), nn.Sequential(nn.Identity(), nn.Conv2d(3, 4, 3)), X))


@pytest.mark.thorough
def test_only_weights_of_one_training_are_related():
    net = network()
    steps = [net]
    for seed in range(3):
        torch.manual_seed(seed)
        steps.append(
            changed(
                lambda each: [
                    values.add_(0.3 * values.std() * torch.randn_like(values))
                    for values in each.parameters()
                    if values.ndim > 1
                ],
                steps[-1],
            )
        )
    assert all(are_related(one, other) for one, other in pairwise(steps))
    assert are_related(steps[0], steps[-1])
    assert not are_related(network(), network(seed=1))
    assert not are_related(models.resnet18(), models.resnet18())
    assert are_related(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU()))


def test_a_comparison_prints_the_differences():
    first = next(iter(fmapviz.diff(network(), network(), X)))
    assert repr(first) == "LayerDifference('0', 'image_0', max_abs=0, rms=0, cosine=1, sqnr=inf)"
