"""Results of `fmapviz.cam` and `fmapviz.capture`, against other libraries, arithmetic and finite differences."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from cam_oracles import of_grad_cam
from cases import thorough
from painting.single_shape import paint
from PIL import Image
from torch import nn
from torchvision import models
from train_shapesnet import prepare

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.models.shapesnet.network import CLASSES as SHAPES
from fmapviz.models.shapesnet.network import ShapesNet
from fmapviz.observe.endings import Endings
from fmapviz.run import observed_passes

CLASSES = [3, 717]
GRAD_CAM = {
    "gradcam": "GradCAM",
    "gradcam++": "GradCAMPlusPlus",
    "hirescam": "HiResCAM",
    "layercam": "LayerCAM",
    "xgradcam": "XGradCAM",
}


def images(height, width, seed=1):
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(seed))


def make(name, **options):
    torch.manual_seed(0)
    return models.get_model(name, weights=None, **options).eval()


@pytest.fixture(scope="module")
def network():
    return make("resnet18")


@pytest.fixture(scope="module")
def batch():
    return images(96, 128)


def of_captum(network, layer, batch, classes=CLASSES):
    """The signed map at the layer's resolution."""
    from extras import captum

    return captum.LayerGradCam(network, network.get_submodule(layer)).attribute(batch.clone(), classes)[:, 0].detach()


# --- every method, through the front door


@pytest.mark.thorough
@pytest.mark.parametrize("layer", ["layer4", "layer2"])
@pytest.mark.parametrize("method", GRAD_CAM)
def test_maps_equal_those_of_pytorch_grad_cam(network, batch, layer, method):
    if method in {"gradcam++", "xgradcam"}:  # for gradients beside which the 1e-6 and 1e-7 that theirs adds are nothing
        network = deepcopy(network)
        with torch.no_grad():
            network.fc.weight.mul_(1e4)
    found = fmapviz.cam(network, batch, target=CLASSES, layer=layer, method=method)
    theirs = of_grad_cam(GRAD_CAM[method], network, layer, batch, CLASSES)
    torch.testing.assert_close(found.map, theirs, rtol=0, atol=1e-5)
    assert found.target == tuple(CLASSES)
    assert found.layer == layer
    torch.testing.assert_close(found.score, network(batch).detach()[range(2), CLASSES])


@pytest.mark.thorough
def test_eigencam_equals_that_of_pytorch_grad_cam_up_to_the_sign(network, batch):
    found = fmapviz.cam(network, batch, method="eigencam")
    theirs = of_grad_cam("EigenCAM", network, "layer4", batch, CLASSES)
    assert found.layer == "layer4"
    for raw, heat, other in zip(found.raw, found.map, theirs, strict=True):
        # Their map of the other sign shows the negative part of ours.
        mirrored = nn.functional.interpolate((-raw).relu()[None, None], heat.shape, mode="bilinear")[0, 0]
        mirrored = (mirrored - mirrored.min()) / (mirrored.max() - mirrored.min())
        assert min((heat - other).abs().max(), (mirrored - other).abs().max()) < 1e-5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_eigencam_marks_the_shape_and_not_the_background(samples, shape):
    model = fmapviz.load_model("shapesnet")
    x = fmapviz.load_image(samples / "shapes" / f"{shape}.jpg", model)
    found = fmapviz.cam(model, x, method="eigencam")
    with fmapviz.capture(model.module, types=["Sequential"], layers=[found.layer]) as maps:
        model.module(x)
    vectors = maps[found.layer].values[0].double().flatten(1).T.numpy()
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0))
    component, raw = left[:, 0] * sizes[0], found.raw.double().numpy().ravel()
    assert min(np.abs(raw - component).max(), np.abs(raw + component).max()) < 1e-4 * sizes[0]
    assert np.corrcoef(raw, vectors.mean(1))[0, 1] > 0.97
    evidence = fmapviz.cam(model, x, target=shape).raw.numpy().ravel()
    assert np.corrcoef(raw, evidence)[0, 1] > 0.8


def test_cam_equals_torchcams(network, batch):
    from extras import torchcam

    with torchcam.CAM(network, "layer4", "fc") as extract:
        network(batch)
        (theirs,) = extract(CLASSES, normalized=False)
    found = fmapviz.cam(network, batch, target=CLASSES, method="cam")
    assert found.layer == "layer4"
    torch.testing.assert_close(found.raw, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_saliency_equals_captums(network, batch):
    from extras import captum

    theirs = captum.Saliency(network).attribute(batch.clone().requires_grad_(), CLASSES).amax(1)
    found = fmapviz.cam(network, batch, target=CLASSES, method="saliency")
    torch.testing.assert_close(found.raw, theirs)
    torch.testing.assert_close(found.map.amax((1, 2)), torch.ones(2), rtol=0, atol=1e-6)


# --- networks that overwrite what their layers return


FAMILIES = ["squeezenet1_1", "densenet121", *thorough("alexnet", "efficientnet_b0")]


@pytest.fixture(scope="module", params=FAMILIES)
def overwriting(request):
    network = make(request.param)
    assert any(getattr(module, "inplace", False) for module in network.modules())
    return network


def convolutions(network):
    """The first, the middle and the last one."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    return names[0], names[len(names) // 2], names[-1]


def without_inplace(network):
    copy = deepcopy(network)
    for module in copy.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return copy


@pytest.mark.thorough
@pytest.mark.sampled(1)
def test_overwritten_layers_have_the_map_of_their_output(overwriting):
    batch, copy = images(64, 80), without_inplace(overwriting)
    for layer in convolutions(overwriting):
        found = fmapviz.cam(overwriting, batch, target=CLASSES, layer=layer)
        assert (found.raw != 0).any()
        off = (found.raw - of_captum(overwriting, layer, batch)).abs().max()
        assert off <= 1e-6 * found.raw.abs().max(), layer
        calm = fmapviz.cam(copy, batch, target=CLASSES, layer=layer)
        assert torch.equal(found.raw, calm.raw), layer
        assert torch.equal(found.map, calm.map), layer
    assert all(getattr(module, "inplace", True) for module in overwriting.modules() if isinstance(module, nn.ReLU))


@pytest.mark.parametrize("method", ["gradcam", "eigencam"])
def test_an_overwritten_input_stays_the_callers(network, method):
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network

        def forward(self, x):
            return self.body(x.mul_(3).sub_(1))

    module, batch = Overwrites().eval(), images(64, 80)
    before, expected = batch.clone(), fmapviz.cam(network, batch * 3 - 1, target=CLASSES, method=method).map
    for _ in range(3):  # the second call knows the layer, so that its graph begins there
        found = fmapviz.cam(module, batch, target=CLASSES, method=method)
        assert torch.equal(batch, before)
        torch.testing.assert_close(found.map, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("layer", "published"), [("conv1", [[11.25, 13.5], [20.25, 22.5]]), ("relu1", [[0, 4], [28, 32.5]])]
)
def test_the_published_example_of_captum_is_reproduced(layer, published, inplace):
    # From captum's own tests of LayerGradCam.
    from extras import captum_networks

    network = captum_networks.BasicModel_ConvNet_One_Conv(inplace=inplace)
    found = fmapviz.cam(network, torch.arange(16.0).view(1, 1, 4, 4), target=0, layer=layer)
    assert found.raw.tolist() == [published]
    assert found.target == (0,)


# --- what the maps add up to


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["shapesnet", "resnet18", "mobilenet_v2"])
def test_maps_before_global_average_pooling_add_up_to_the_logit(name):
    network = fmapviz.load_model(name).module if name == "shapesnet" else make(name)
    (last,) = (module for module in network.modules() if isinstance(module, nn.Linear))
    if name == "mobilenet_v2":  # its biases are zero at first
        nn.init.normal_(last.bias)
    batch, classes = images(96, 128), [1, 4]
    logits = network(batch).detach()[range(2), classes]
    rest = logits - last.bias.detach()[classes]
    exact = fmapviz.cam(network, batch, target=classes, method="cam")
    torch.testing.assert_close(exact.raw.mean((1, 2)), rest, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(exact.score, logits)
    for method in ("gradcam", "hirescam", "xgradcam"):
        found = fmapviz.cam(network, batch, target=classes, method=method, layer=exact.layer)
        torch.testing.assert_close(found.raw.sum((1, 2)), rest, rtol=1e-4, atol=1e-5)


# --- the gradient itself


def test_captured_gradients_are_finite_differences():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.SiLU(inplace=True), nn.Conv2d(2, 3, 3), nn.SiLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)
    )
    network.double().eval()
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)

    def score_with(layer, place, step):
        """What the score is if one value that a layer returns were a little larger."""

        def change(_module, _args, output):
            changed = output.clone()
            changed.view(-1)[place] += step
            return changed

        with network.get_submodule(layer).register_forward_hook(change), torch.no_grad():
            return network(x)[0, 1].item()

    with fmapviz.capture(network, gradients=True) as maps:
        maps.backward(network(x)[0, 1])
    assert list(maps) == ["0", "2"]
    torch.testing.assert_close(maps["0"].values, network[0](x).detach())  # not what the activation left of it
    for layer, captured in maps.items():
        step = 1e-5
        places = range(captured.values.numel())
        differences = [(score_with(layer, at, step) - score_with(layer, at, -step)) / (2 * step) for at in places]
        expected = torch.tensor(differences, dtype=torch.float64).view(captured.shape)
        torch.testing.assert_close(captured.gradient, expected, rtol=1e-6, atol=1e-9)
        assert expected[0].all()
        assert not expected[1].any()


# --- where it looks


@pytest.fixture(scope="module")
def fresh():
    """Pictures that the bundled network has never seen."""
    generator = np.random.default_rng(7)
    return [paint(generator) for _ in range(120)]


def share_in_the_shape(model, pictures):
    """For how many pictures the peak of Grad-CAM lies in the shape."""
    inside = 0
    for start in range(0, len(pictures), 60):
        part = pictures[start : start + 60]
        batch = prepare(np.stack([picture.pixels for picture in part]))
        heats = fmapviz.cam(model, batch, target=[picture.label for picture in part]).map.numpy()
        inside += sum(
            picture.mask[np.unravel_index(heat.argmax(), heat.shape)] for picture, heat in zip(part, heats, strict=True)
        )
    return inside / len(pictures)


def test_gradcam_peaks_in_the_shape(fresh):
    assert share_in_the_shape(fmapviz.load_model("shapesnet"), fresh) >= 0.95


@pytest.mark.thorough
def test_gradcam_of_random_weights_does_not_peak_in_the_shape(fresh):
    shares = []
    for seed in range(5):
        torch.manual_seed(seed)
        shares.append(share_in_the_shape(ShapesNet().eval(), fresh[:60]))
    assert np.mean(shares) < 0.5


class Folded(nn.Module):
    """Folds the frames of clips into the images."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, stride=2)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        maps = self.second(self.first(x.flatten(0, 1)).relu()).relu()
        return self.head(maps.mean((2, 3)).view(*x.shape[:2], -1).mean(1))


@pytest.mark.filterwarnings("ignore")
def test_calls_with_one_network_do_not_depend_on_those_before():
    network = Folded().eval()
    for images, frames in ((2, 5), (2, 5), (1, 5), (2, 5), (3, 4), (2, 5)):
        clips = torch.rand(images, frames, 3, 32, 32, generator=torch.Generator().manual_seed(frames))
        known, fresh = (fmapviz.cam(each, clips, target=2) for each in (network, deepcopy(network)))
        assert known.layer == fresh.layer == "second"
        named = fmapviz.cam(network, clips, target=2, layer="second")
        assert torch.equal(known.raw, fresh.raw)
        assert torch.equal(named.raw, fresh.raw)


class OfVolumes(nn.Module):
    """Takes clips with the channels first, or with the frames first."""

    def __init__(self, channels, *, frames_first):
        super().__init__()
        self.body, self.head = nn.Conv3d(channels, 4, 3, padding=1), nn.Linear(4, 3)
        self.frames_first = frames_first

    def forward(self, x):
        maps = self.body(x.transpose(1, 2) if self.frames_first else x)
        return self.head(maps.mean((2, 3, 4)))


class OfFrames(nn.Module):
    """Takes clips with the frames first, as `(N * T, C, H, W)`."""

    def __init__(self, channels):
        super().__init__()
        self.body, self.head = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x.flatten(0, 1)).mean((2, 3)).unflatten(0, x.shape[:2]).mean(1))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("frames", [2, 3, 4, 5])
@pytest.mark.parametrize("form", ["volumes", "frames first", "folded"])
def test_a_clip_is_shown_as_its_frame_for_any_order_of_axes(channels, frames, form, tmp_path):
    network = OfFrames(channels) if form == "folded" else OfVolumes(channels, frames_first=form == "frames first")
    clip = torch.rand(channels, frames, 8, 9, generator=torch.Generator().manual_seed(frames))
    shown = frames // 2 if form != "folded" else 0  # of a network of volumes the middle slice
    frame = clip[:, shown]
    given = clip[None] if form == "volumes" else clip[None].transpose(1, 2)
    expected = frame[:3].movedim(0, -1) if channels > 2 else frame[:1].movedim(0, -1).expand(-1, -1, 3)
    found = fmapviz.cam(network.eval(), given, target=1, layer="body", style=fmapviz.Style(alpha=0, gray_input=False))
    assert np.abs(found.overlay[0] - expected.mul(255).numpy()).max() <= 0.51
    assert any("mean over its frames" in notice for notice in found.notices)
    run = fmapviz.visualize(network, given, out=tmp_path, views=["maps", "gradcam"], layers=["body"], targets=[1], to="png")
    with Image.open(run.directory / "image_0" / "input.png") as picture:
        assert np.abs(np.asarray(picture.convert("RGB")) - expected.mul(255).numpy()).max() <= 0.51


class Switched(nn.Module):
    """Returns logits or probabilities, as set between calls."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.soft = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), False

    def forward(self, x):
        scores = self.head(self.body(x).mean((2, 3)))
        return scores.softmax(1) if self.soft else scores


@pytest.mark.filterwarnings("ignore")
def test_the_kind_of_outputs_is_detected_at_each_call():
    network, pixels = Switched().eval(), torch.rand(1, 3, 9, 9)
    logits = fmapviz.cam(network, pixels, target=1, layer="body")
    network.soft = True
    soft = fmapviz.cam(network, pixels, target=1, layer="body")
    assert torch.allclose(logits.raw, soft.raw, rtol=1e-5)
    assert torch.allclose(logits.logit, soft.logit)


class Both(Switched):
    """Returns logits and probabilities."""

    def forward(self, x):
        scores = self.head(self.body(x).mean((2, 3)))
        return {"soft": scores.softmax(1), "logits": scores, "labels": scores.argmax(1)}


@pytest.mark.filterwarnings("ignore")
def test_each_output_has_its_own_kind():
    network, pixels = Both().eval(), torch.rand(1, 3, 9, 9)
    for output in ("logits", "soft", "logits", "logits", "soft"):
        known, fresh = (
            fmapviz.cam(each, pixels, target=1, layer="body", output=output) for each in (network, deepcopy(network))
        )
        assert torch.equal(known.raw, fresh.raw)
        assert torch.equal(known.score, fresh.score)
        assert known.notices == fresh.notices


class Ends(nn.Module):
    """Ends in an operation of some kind."""

    def __init__(self, end):
        super().__init__()
        self.body, self.head, self.end = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), end

    def forward(self, x):
        return self.end(self.head, self.body(x).mean((2, 3)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("end", "recorded"),
    [
        (lambda head, x: head(x), 1),
        (lambda head, x: x @ head.weight.T, 1),
        (lambda head, x: nn.functional.conv2d(x[..., None, None], head.weight[..., None, None]).flatten(1), 1),
        (lambda head, x: head(x[:, None])[:, 0].unsqueeze(-1).squeeze(-1), 1),
        (lambda head, x: head(x).softmax(1), 3),
        (lambda head, x: head(x).sigmoid_(), 3),
        (lambda head, x: 2 * head(x), 3),
    ],
)
def test_operations_are_recorded_only_where_the_graph_does_not_show_the_ending(end, recorded, monkeypatch):
    network, passes, started = Ends(end).eval(), [], []
    network.register_forward_pre_hook(lambda *_: passes.append(None))
    monkeypatch.setattr(observed_passes, "Endings", lambda: started.append(None) or Endings())
    for _ in range(3):
        fmapviz.cam(network, torch.rand(1, 3, 9, 9), target=1, layer="body")
    assert (len(passes), len(started)) == (3, recorded)


def test_a_custom_score_is_refused_with_a_hint_to_capture(network):
    with pytest.raises(RequestError, match="no such target") as caught:
        fmapviz.cam(network, images(64, 64), target=lambda scores: scores[:, 0] - scores[:, 1])
    assert "maps.backward(score)" in caught.value.hint


def test_a_hint_does_not_suggest_the_current_options():
    with pytest.raises(RequestError, match="no class activation map of 'auto'") as caught:
        fmapviz.cam(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 16, 16), target=1)
    assert "auto" not in caught.value.hint
    with pytest.raises(RequestError) as caught:
        fmapviz.cam(ShapesNet(), torch.randn(1, 3, 96, 96), method="scorecam")
    assert "there is no such method here" in caught.value.hint


def test_a_missing_saliency_has_no_hint_to_layers():
    class Silent(ShapesNet):
        def forward(self, batch):
            with torch.no_grad():
                return super().forward(batch)

    with pytest.raises(RequestError, match="no saliency of class0: the class score does not depend on the input") as caught:
        fmapviz.cam(Silent(), torch.randn(1, 3, 96, 96), target=0, method="saliency")
    assert caught.value.hint is None


class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.head(self.body(x))


class Classifies(Segments):
    def forward(self, x):
        return super().forward(x).mean((2, 3))


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", [Segments, Classifies])
@pytest.mark.parametrize("target", [0, 2, "top1"])
def test_scores_that_are_not_finite_are_reported_as_the_reason(network, target, tmp_path):
    network, pixels = network().eval(), torch.rand(2, 3, 12, 12)
    pixels[1] = torch.nan
    for given in (pixels[1:], pixels[1:].expand(3, -1, -1, -1), *([pixels] if target == "top1" else [])):
        with pytest.raises(RequestError, match="class scores are not finite") as caught:
            fmapviz.cam(network, given, target=target, layer="body")
        assert "views='maps'" in caught.value.hint
    run = fmapviz.visualize(network, pixels[1:], out=tmp_path, views=["maps", "gradcam"], targets=[target], to="png")
    said = json.loads((run.directory / "image_0" / "unit.json").read_text())["notices"]
    assert any(notice.endswith("the class scores are not finite") for notice in said)


@pytest.mark.filterwarnings("ignore")
def test_a_finite_class_is_drawn_beside_scores_that_are_not_finite():
    network, pixels = Segments().eval(), torch.rand(1, 3, 12, 12)
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([9.0, 0.0, -9.0]))
    pixels[..., :4, :4] = torch.nan
    assert fmapviz.cam(network, pixels, target="top1", layer="body").target == (0,)
    with pytest.raises(RequestError, match="no pixel is predicted as that class, or only where its scores are not finite"):
        fmapviz.cam(network, pixels, target=2, layer="body")


class OfPixels(nn.Module):
    """A segmentation whose head works along the last axis, and which returns its scores in one of several orders."""

    def __init__(self, classes, order, *, soft=False):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.order, self.soft = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, classes), order, soft

    def forward(self, images):
        scores = self.head(self.body(images).relu().permute(0, 2, 3, 1))
        scores = scores.softmax(-1) if self.soft else scores
        return scores.permute(*("NHWC".index(axis) for axis in self.order))


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("classes", [1, 4, 8])
@pytest.mark.parametrize("order", ["NHWC", "NWHC", "NWCH", "NCWH"])
def test_the_axis_of_pixel_classes_is_detected(order, classes, soft, tmp_path):
    images = torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    known = OfPixels(classes, "NCHW", soft=soft).eval()
    with torch.no_grad():
        likely = known(images).mean((0, 2, 3)).argmax().item()
    for each in (images, images[:1]):
        found, expected = (
            fmapviz.cam(network.eval(), each, target=likely, layer="body")
            for network in (OfPixels(classes, order, soft=soft), known)
        )
        assert torch.allclose(found.raw, expected.raw, atol=1e-6)
        assert torch.allclose(found.score, expected.score, atol=1e-6)
        assert found.notices == expected.notices
    runs = [
        fmapviz.visualize(
            network.eval(), images, out=tmp_path / name, views=["gradcam"], targets=["top1"], to="png"
        ).directory
        for name, network in (("a", OfPixels(classes, order, soft=soft)), ("b", known))
    ]
    predictions = [[json.loads(path.read_text())["predictions"] for path in sorted(run.rglob("unit.json"))] for run in runs]
    assert [[each["index"] for each in one] for one in predictions[0]] == [
        [each["index"] for each in one] for one in predictions[1]
    ]


@pytest.mark.filterwarnings("ignore")
def test_an_unknown_axis_of_classes_is_assumed_with_a_notice():
    class Odd(OfPixels):
        def forward(self, images):
            return torch.fft.ifft2(torch.fft.fft2(super().forward(images))).real

    found = fmapviz.cam(Odd(4, "NCHW").eval(), torch.randn(1, 3, 8, 4), target=1, layer="body")
    assert any("second one is taken to be that of the classes" in notice for notice in found.notices)


class TwoOrders(OfPixels):
    """Returns the same scores in two orders of axes."""

    def forward(self, images):
        scores = super().forward(images)
        return {"first": scores, "last": scores.permute(0, 2, 3, 1)}


@pytest.mark.filterwarnings("ignore")
def test_each_part_of_an_output_has_its_own_axes():
    network, pixels = TwoOrders(4, "NCHW").eval(), torch.randn(1, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    found = [
        fmapviz.cam(network, pixels, target="top1", layer="body", output=output) for output in ("first", "last", "first")
    ]
    assert len({each.target for each in found}) == 1
    assert all(torch.allclose(each.raw, found[0].raw, atol=1e-6) for each in found)
