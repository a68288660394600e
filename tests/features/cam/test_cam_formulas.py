"""Formulas of class activation maps equal those of captum, pytorch-grad-cam and torchcam."""

from __future__ import annotations

import inspect
from copy import deepcopy
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cam_oracles import of_grad_cam
from cases import thorough
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import interpolate
from torchvision.models import resnet18

from fmapviz.core import registry
from fmapviz.core.members import load
from fmapviz.draw.heatmap import heat_and_ends
from fmapviz.features.cam import CamView
from fmapviz.features.cam.formulas import cam, eigencam, gradcam, gradcam_pp, hirescam, layercam, saliency, xgradcam
from fmapviz.features.cam.method import Method

CLASSES = [3, 717]
SIZE = (96, 128)
LAYERS = ["layer4", "layer2"]
CLOSE = {"rtol": 0, "atol": 1e-5}
LOUDER = 1e4

OF_GRADIENTS = [gradcam, gradcam_pp, hirescam, layercam, xgradcam]
GRAD_CAM = {
    gradcam: "GradCAM",
    gradcam_pp: "GradCAMPlusPlus",
    hirescam: "HiResCAM",
    layercam: "LayerCAM",
    xgradcam: "XGradCAM",
}
TORCHCAM = {gradcam: "GradCAM", layercam: "LayerCAM", xgradcam: "XGradCAM"}


def named(view):
    return view.__name__


class Captured(NamedTuple):
    activations: Tensor
    gradients: Tensor


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return resnet18(weights=None).eval()


@pytest.fixture(scope="module")
def batch():
    return torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=LAYERS)
def layer(request):
    return request.param


@pytest.fixture(scope="module")
def captured(network, batch, layer):
    """A layer's activations, and the gradient of each image's own class there."""
    kept = []

    def keep(_module, _args, output):
        kept.extend((output.detach().clone(), get_gradient_edge(output)))

    with network.get_submodule(layer).register_forward_hook(keep):
        logits = network(batch)
    activations, edge = kept
    (gradients,) = torch.autograd.grad(logits[range(2), CLASSES].sum(), [edge])
    return Captured(activations, gradients)


def of_torchcam(method, network, layer, batch, *more):
    """The map at the layer's resolution."""
    from extras import torchcam

    with getattr(torchcam, method)(network, layer, *more) as extract:
        (maps,) = extract(CLASSES, network(batch), normalized=False)
    return maps.detach()


# --- against other libraries


@pytest.mark.sampled(1)
@pytest.mark.parametrize("relu", [False, True])
def test_gradcam_equals_captums(network, batch, layer, captured, relu):
    from extras import captum

    theirs = captum.LayerGradCam(network, network.get_submodule(layer)).attribute(batch, CLASSES, relu_attributions=relu)
    ours = gradcam(*captured)
    assert torch.equal(ours.relu() if relu else ours, theirs[:, 0].detach())
    assert (ours < 0).any()


@pytest.mark.parametrize("view", OF_GRADIENTS, ids=named)
@pytest.mark.thorough
def test_final_maps_equal_those_of_pytorch_grad_cam(network, batch, layer, captured, view):
    # For gradients beside which the 1e-6 and 1e-7 that it adds are nothing.
    louder = deepcopy(network)
    with torch.no_grad():
        louder.fc.weight.mul_(LOUDER)
    theirs = of_grad_cam(GRAD_CAM[view], louder, layer, batch, CLASSES)
    ours = heat_and_ends(view(captured.activations, captured.gradients * LOUDER), SIZE)[0]
    assert ours.amax((1, 2)).min() > 0.99
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("view", TORCHCAM, ids=named)
def test_maps_at_the_layers_resolution_equal_torchcams(network, batch, layer, captured, view):
    theirs = of_torchcam(TORCHCAM[view], network, layer, batch)
    torch.testing.assert_close(view(*captured).relu(), theirs, rtol=1e-5, atol=1e-7)


def test_the_formulas_agree_only_before_a_mean(layer, captured):
    # Else no reference could tell one from another. A gradient that is the same at all places leaves three of them alike.
    heats = {view: heat_and_ends(view(*captured), SIZE)[0] for view in OF_GRADIENTS}
    for one, other in combinations(OF_GRADIENTS, 2):
        alike = layer == "layer4" and {one, other} <= {gradcam, hirescam, xgradcam}
        assert ((heats[one] - heats[other]).abs().max() < 1e-4) == alike


# --- against the formulas of the papers, in float64


def of_papers(view, activations, gradients):
    """The map of each paper, float64, with the divisions that it names."""
    a, g = activations.double().numpy(), gradients.double().numpy()
    sums = a.sum((2, 3), keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        if view is gradcam:
            weights = g.mean((2, 3), keepdims=True)
        elif view is gradcam_pp:  # equation 19
            shares = np.where(g == 0, 0, g**2 / (2 * g**2 + sums * g**3))
            weights = (shares * np.maximum(g, 0)).sum((2, 3), keepdims=True)
        elif view is xgradcam:
            weights = np.where(sums == 0, 0, (g * a / sums).sum((2, 3), keepdims=True))
        else:
            weights = np.maximum(g, 0) if view is layercam else g
    return (weights * a).sum(1)


SOME = {
    "after a ReLU": lambda: torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(3)).relu(),
    "signed": lambda: torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(4)),
    "tiny": lambda: torch.rand(2, 6, 5, 7, generator=torch.Generator().manual_seed(5)) * 1e-9,
    "dead channels": lambda: (
        torch.rand(2, 6, 5, 7, generator=torch.Generator().manual_seed(6)) * (torch.arange(6) > 2)[:, None, None]
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("view", OF_GRADIENTS, ids=named)
@pytest.mark.parametrize("size", [1e-12, 1e-8, 1e-3, 1.0, 1e8, 1e12])
@pytest.mark.parametrize("kind", SOME)
def test_maps_follow_the_papers_for_gradients_of_any_size(view, size, kind):
    activations = SOME[kind]()
    gradients = torch.randn(activations.shape, generator=torch.Generator().manual_seed(7)) * size
    gradients[:, :, 0, 0] = 0
    theirs = torch.from_numpy(of_papers(view, activations, gradients))
    ours = view(activations, gradients)
    assert theirs.abs().max() > 0
    torch.testing.assert_close(ours.double() / theirs.abs().max(), theirs / theirs.abs().max(), rtol=0, atol=1e-5)
    expected = heat_and_ends((theirs / theirs.abs().max()).float(), SIZE)[0]
    torch.testing.assert_close(heat_and_ends(ours, SIZE)[0], expected, rtol=0, atol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("view", [view for view in OF_GRADIENTS if view is not gradcam_pp], ids=named)
@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_a_multiple_of_the_logits_has_the_same_map(captured, view, factor):
    one, other = (heat_and_ends(view(captured.activations, captured.gradients * by), SIZE)[0] for by in (1, factor))
    assert one.max() > 0.99
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_channels_whose_values_cancel_have_no_weight_of_rounding_errors():
    values = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    values = torch.nn.functional.instance_norm(values)  # each channel adds up to zero, but for rounding
    gradients = torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
    assert values.sum((2, 3)).any()
    assert not xgradcam(values, gradients).any()
    assert gradcam_pp(values, gradients).abs().max() < 1e3


def test_cam_equals_torchcams_and_adds_up_to_the_logit(network, batch):
    kept = []
    with network.layer4.register_forward_hook(lambda _module, _args, output: kept.append(output.detach().clone())):
        logits = network(batch).detach()
    ours = cam(kept[0], network.fc.weight.detach()[CLASSES])
    assert (ours < 0).any()
    torch.testing.assert_close(ours, of_torchcam("CAM", network, "layer4", batch, "fc"), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.mean((1, 2)) + network.fc.bias.detach()[CLASSES], logits[range(2), CLASSES])


@pytest.mark.thorough
def test_eigencam_equals_that_of_pytorch_grad_cam_up_to_the_sign(network, batch, layer, captured):
    theirs = of_grad_cam("EigenCAM", network, layer, batch, CLASSES)
    raw = eigencam(captured.activations)
    for image, one in enumerate(raw):
        off = [(heat_and_ends(sign * one[None], SIZE)[0][0] - theirs[image]).abs().max() for sign in (1, -1)]
        assert min(off) < 1e-5
        assert max(off) > 0.1


def test_saliency_equals_captums(network, batch):
    pixels = batch.clone().requires_grad_()
    (gradients,) = torch.autograd.grad(network(pixels)[range(2), CLASSES].sum(), pixels)
    from extras import captum

    theirs = captum.Saliency(network).attribute(batch.clone().requires_grad_(), CLASSES)
    torch.testing.assert_close(saliency(gradients), theirs.amax(1))
    assert saliency(gradients).shape == (2, *SIZE)


def test_saliency_of_a_clip_is_the_maximum_over_its_frames():
    gradients = torch.randn(2, 3, 5, 7, 6, generator=torch.Generator().manual_seed(0))
    frames = [saliency(frame) for frame in gradients.unbind(2)]
    assert torch.equal(saliency(gradients), torch.stack(frames).amax(0))
    assert np.array_equal(saliency(gradients), np.abs(gradients.numpy()).max((1, 2)))


# --- how a map is enlarged: what another order of steps would cost


CONTROLS = {
    "negative values made zero after enlarging": lambda raw: enlarged(raw, "bilinear", align_corners=False).relu(),
    "negative values kept": lambda raw: enlarged(raw, "bilinear", align_corners=False),
    "corners aligned": lambda raw: enlarged(raw.relu(), "bilinear", align_corners=True),
    "bicubic": lambda raw: enlarged(raw.relu(), "bicubic", align_corners=False),
    "nearest": lambda raw: enlarged(raw.relu(), "nearest"),
}


def enlarged(raw, mode, **options):
    return interpolate(raw[:, None], SIZE, mode=mode, **options)[:, 0]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.thorough
def test_pytorch_grad_cam_differs_with_any_other_enlargement(network, batch, layer, captured, control):
    other = CONTROLS[control](gradcam(*captured))
    other = other - other.amin((1, 2), keepdim=True)
    other = other / (1e-7 + other.amax((1, 2), keepdim=True))
    theirs = of_grad_cam("GradCAM", network, layer, batch, CLASSES)
    assert (other - theirs).abs().amax((1, 2)).max() > 0.05


# --- Eigen-CAM's own rules


def test_eigencam_does_not_correlate_negatively_with_the_mean_activation():
    for seed in range(20):
        activations = torch.randn(3, 6, 4, 5, generator=torch.Generator().manual_seed(seed))
        raw = eigencam(activations)
        mean = activations.mean(1)
        assert ((raw * (mean - mean.mean((1, 2), keepdim=True))).sum((1, 2)) > 0).all()
        torch.testing.assert_close(eigencam(-activations), -raw, rtol=1e-4, atol=1e-4)
        assert torch.equal(torch.cat([eigencam(one[None]) for one in activations]), raw)


def test_eigencam_without_any_correlation_has_its_largest_magnitude_positive():
    pattern = torch.randn(3, 1, 4, 5, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    activations = torch.cat([pattern, 3 - pattern], 1)  # the mean activation is the same everywhere
    raw = eigencam(activations)
    assert torch.equal(raw.amax((1, 2)), raw.abs().amax((1, 2)))
    torch.testing.assert_close(eigencam(-activations), raw)
    assert torch.equal(torch.cat([eigencam(one[None]) for one in activations]), raw)


def by_numpy(rows):
    left, sizes, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    return left[:, 0] * sizes[0]


def by_scikit_learn(rows):
    from extras import decomposition

    return decomposition.PCA(1, svd_solver="full").fit_transform(rows)[:, 0]


@pytest.mark.parametrize("project", [by_numpy, *thorough(by_scikit_learn)])
def test_eigencam_is_the_first_principal_component(project):
    activations = torch.randn(1, 6, 4, 5, generator=torch.Generator().manual_seed(0))
    component = project(activations[0].flatten(1).T.numpy()).reshape(4, 5)
    component *= np.sign((component * activations[0].mean(0).numpy()).sum())
    np.testing.assert_allclose(eigencam(activations)[0], component, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("activations", "expected"),
    [
        (torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5)),
        (torch.full((1, 3, 4, 5), 7.0), torch.zeros(1, 4, 5)),
        (torch.ones(2, 512, 1, 1), torch.zeros(2, 1, 1)),
        (torch.tensor([[[[1.0, 2.0, 6.0]]]]), torch.tensor([[[-2.0, -1.0, 3.0]]])),
        (torch.tensor([[[[-1.0, -2.0, -6.0]]]]), torch.tensor([[[2.0, 1.0, -3.0]]])),
        (torch.tensor([[[[torch.nan, torch.inf, -torch.inf, 8.0]]]]), torch.tensor([[[-2.0, -2.0, -2.0, 6.0]]])),
        (torch.full((1, 2, 2, 2), torch.nan), torch.zeros(1, 2, 2)),
    ],
    ids=["zeros", "constant", "one place", "one channel", "one negative channel", "not finite", "nan"],
)
def test_eigencam_accepts_small_maps(activations, expected):
    torch.testing.assert_close(eigencam(activations), expected)


def test_eigencam_accepts_values_near_the_limits_of_float32():
    assert eigencam(torch.randn(1, 3, 8, 8).sign() * 3e38).shape == (1, 8, 8)


# --- what all of them share


@pytest.mark.parametrize("view", [view for view in registry.views().values() if isinstance(view, CamView)])
def test_a_view_declares_the_needs_of_its_formula(view):
    assert list(view.needs) == list(inspect.signature(load(view.formula)).parameters)


@pytest.mark.sampled
@pytest.mark.parametrize("view", OF_GRADIENTS, ids=named)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_maps_are_computed_in_float32(captured, view, dtype):
    given = [values.to(dtype) for values in captured]
    before = [values.clone() for values in given]
    ours = view(*given)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, view(*(values.float() for values in given)))
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_cam_and_saliency_are_computed_in_float32(dtype):
    values = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    for view, given in ((cam, (values, values[:, :, 0, 0])), (eigencam, (values,)), (saliency, (values,))):
        ours = view(*given)
        assert ours.dtype == torch.float32
        assert ours.shape == (2, 4, 5)
        assert torch.equal(ours, view(*(each.float() for each in given)))


@pytest.mark.sampled
@pytest.mark.parametrize("view", OF_GRADIENTS, ids=named)
def test_a_missing_gradient_has_a_zero_map(captured, view):
    assert not view(captured.activations, torch.zeros_like(captured.gradients)).any()


def mean_gradient(gradients):
    return gradients.mean(1)


def test_a_method_receives_only_what_it_needs():
    view = CamView(name="mean", help="", needs=("gradients",), formula=f"{__name__}:mean_gradient")
    method = Method.of(view)
    given = torch.rand(2, 3, 4, 5)
    assert torch.equal(method.apply(gradients=given, activations=torch.zeros(1)), given.mean(1))
