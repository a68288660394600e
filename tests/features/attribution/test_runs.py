"""Attributions of whole runs and of `fmapviz.cam`: bytes, planted objects, wrong requests."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from cases import thorough
from PIL import Image
from spot_detector import SpotDetector
from torch import nn

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.events import Advanced
from fmapviz.features.attribution import CONTRIBUTION, smoothgrad
from fmapviz.run.pipeline import batch_runner

VIEWS = tuple(view.name for view in CONTRIBUTION.views)
FEW = {"samples": 6, "steps": 3, "patch": 8}


def pixels(images=1, *, channels=3, size=24, seed=0):
    return torch.randn(images, channels, size, size, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """A classifier."""

    def __init__(self, channels=3, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm, self.head = nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, batch):
        return self.head(self.norm(self.conv(batch)).relu().mean((2, 3)))


def maps_of(summary):
    """The raw values by image and view."""
    found = {}
    for path in summary.directory.rglob("*.npz"):
        with np.load(path) as arrays:
            found |= {(path.parent.name, name): arrays[name] for name in arrays if name != "__metadata__"}
    return found


def draw(network, images, out, **options):
    return fmapviz.visualize(network, images, out=out, **{"views": VIEWS, "to": "npz", "workers": 1, **FEW, **options})


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


# --- the same bytes


@pytest.mark.parametrize(
    "options",
    [{"workers": 2, "batch_size": 2}, *thorough({"workers": 3}, {"batch_size": 3}, {"force": True, "part": "1/1"})],
)
def test_the_bytes_do_not_depend_on_workers_and_batches(tmp_path, options):
    options = {**options, **({"part": fmapviz.types.Part(1, 1)} if "part" in options else {})}
    images = pixels(5)
    alone = maps_of(draw(Small(), images, tmp_path / "alone"))
    assert len(alone) == 5 * len(VIEWS)
    assert same(maps_of(draw(Small(), images, tmp_path / "other", **options)), alone)


@pytest.mark.thorough
def test_the_bytes_do_not_depend_on_order_parts_and_on_being_resumed(tmp_path):
    images = [*pixels(4)]
    expected = {
        name: values.tobytes() for (_, name), values in maps_of(draw(Small(), images[2], tmp_path / "alone")).items()
    }
    first = draw(Small(), images, tmp_path / "parts", part=fmapviz.types.Part(1, 2))
    second = draw(Small(), images, tmp_path / "parts", part=fmapviz.types.Part(2, 2))
    assert (first.done, second.done, second.failed) == (2, 2, 0)
    found = maps_of(second)
    assert len(found) == 4 * len(VIEWS)
    assert {name: values.tobytes() for (image, name), values in found.items() if image == "image_2"} == expected
    again = draw(Small(), images, tmp_path / "parts")
    assert (again.done, again.skipped) == (0, 4)


@pytest.mark.thorough
def test_the_pictures_of_shards_do_not_depend_on_workers(tmp_path):
    pytest.importorskip("pyarrow")
    options = {"to": "tar", "shard": 2, "views": "rise,smoothgrad"}
    archives = [
        {path.parent.name: path.read_bytes() for path in run.directory.rglob("*.tar")}
        for run in (draw(Small(), pixels(5), tmp_path / str(count), workers=count, **options) for count in (1, 2))
    ]
    assert archives[0] == archives[1]
    assert len(archives[0]) == 3


def test_images_share_a_range_if_that_is_asked_for(tmp_path):
    summary = draw(Small(), pixels(3), tmp_path, views="occlusion", to="png", style=fmapviz.Style("run"), targets="2")
    ranges = set()
    for path in summary.directory.rglob("*occlusion.png"):
        with Image.open(path) as drawn:
            ranges.add(drawn.text["Scaling"].partition(" to ")[2])
    (scaling,) = ranges
    assert "the range of all images of the run" in scaling


def test_smoothgrad_without_noise_is_the_view_saliency_bit_for_bit(monkeypatch):
    monkeypatch.setattr(smoothgrad, "NOISE", 0.0)
    network, batch = Small(), pixels()
    found = fmapviz.cam(network, batch, target=3, method="smoothgrad", samples=3)
    assert torch.equal(found.raw, fmapviz.cam(network, batch, target=3, method="saliency").raw)


@pytest.mark.parametrize("view", VIEWS)
def test_the_map_of_a_network_with_other_weights_differs(view):
    first, second = (
        fmapviz.cam(Small(seed=seed), pixels(), target=1, method=view, **FEW).raw.flatten().numpy() for seed in (0, 1)
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.9
    assert np.array_equal(first, fmapviz.cam(Small(), pixels(), target=1, method=view, **FEW).raw.flatten().numpy())


# --- of what


@pytest.mark.parametrize("view", VIEWS)
def test_each_class_and_each_image_has_its_own_map(view):
    batch = pixels(2)
    found = fmapviz.cam(Small(), batch, target=[1, 4], method=view, **FEW)
    assert (found.layer, found.target, found.raw.shape, found.map.shape) == ("", (1, 4), (2, 24, 24), (2, 24, 24))
    for image, target in enumerate((1, 4)):
        alone = fmapviz.cam(Small(), batch[image], target=target, method=view, **FEW)
        assert torch.equal(alone.raw[0], found.raw[image])


class Spot(nn.Module):
    """Looks at one square of 8 pixels: class 1 is that it is bright."""

    def forward(self, batch):
        bright = batch[:, :, 8:16, 16:24].mean((1, 2, 3))
        return torch.stack([-bright, bright], 1)


@pytest.mark.parametrize("view", VIEWS)
def test_the_map_is_where_the_network_looks(view):
    image = torch.zeros(1, 3, 32, 32)
    image[..., 8:16, 16:24] = 3
    found = fmapviz.cam(Spot(), image, target=1, method=view, samples=400, patch=8, steps=4).raw[0]
    inside, outside = found[8:16, 16:24].mean(), found[:, :8]
    assert inside - outside.mean() > 3 * outside.std()
    row, column = divmod(int(found.argmax()), 32)
    assert 8 <= row < 16
    assert 16 <= column < 24


def detector():
    return SpotDetector(weak=(8.0, 1, 1.0))


class Pixelwise(nn.Module):
    """Scores each pixel by its own brightness."""

    classes = ("dark", "bright")

    def forward(self, batch):
        bright = batch.mean(1, keepdim=True)
        return {"out": torch.cat([1 - bright, bright], 1)}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("network", "target"), [(Pixelwise, "bright"), *thorough((detector, "box1"), (detector, "spot"))])
def test_a_planted_object_is_found_by_its_box_and_by_its_pixels(network, target, view):
    image = torch.zeros(1, 3, 32, 32)
    image[..., 8:16, 16:24] = 3
    found = fmapviz.cam(network(), image, target=target, method=view, samples=200, patch=8, stride=4, steps=4).raw[0]
    row, column = divmod(int(found.argmax()), 32)
    assert 6 <= row < 18
    assert 14 <= column < 26
    assert found[8:16, 16:24].mean() > found[20:, :12].mean()


def test_occlusion_of_a_box_is_its_score_if_the_box_disappears():
    image = torch.zeros(1, 3, 32, 32)
    image[..., 8:16, 16:24], image[..., 24:, 24:] = 3, 1
    found = fmapviz.cam(detector(), image, target="box1", method="occlusion", patch=8, stride=8).raw[0]
    assert torch.allclose(found[8:16, 16:24], torch.full((8, 8), 3.0).sigmoid())
    found[8:16, 16:24] = 0
    assert not found.any()


@pytest.mark.parametrize("channels", [1, *thorough(2, 7)])
def test_inputs_of_other_numbers_of_channels_have_maps(channels):
    batch = pixels(channels=channels)
    for view in VIEWS:
        assert fmapviz.cam(Small(channels), batch, method=view, **FEW).raw.any()


class OfClips(nn.Module):
    """A classifier of clips."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv3d(3, 4, 3)

    def forward(self, batch):
        return self.conv(batch).relu().mean((2, 3, 4))


@pytest.mark.parametrize("view", VIEWS)
def test_a_clip_has_one_map_of_all_its_frames(view):
    clip = torch.randn(1, 3, 4, 16, 20, generator=torch.Generator().manual_seed(0))
    found = fmapviz.cam(OfClips(), clip, method=view, **FEW)
    assert found.raw.shape == (1, 16, 20)
    assert "an attribution of a clip or volume is of all its frames or slices, laid over a single one" in found.notices


# --- captions and refusals


def test_completeness_is_in_the_caption_and_in_the_record(tmp_path):
    summary = draw(Small(), pixels(), tmp_path, views="integrated-gradients", to="png", targets="2")
    ((picture,),) = [list(summary.directory.rglob("*integrated-gradients.png"))]
    with Image.open(picture) as drawn:
        said = drawn.text["Method"]
    assert said.startswith("3 steps from the baseline, mean; sum ")
    assert ", gap " in said
    record = next(summary.directory.rglob("unit.json")).read_text()
    assert '"note": "sum ' in record


class Constant(nn.Module):
    """Does not look."""

    def forward(self, batch):
        return torch.ones(len(batch), 3) * torch.tensor([0.0, 1.0, 2.0])


class Impossible(nn.Module):
    """Gives class 0 no probability."""

    def forward(self, batch):
        bright = batch.mean((1, 2, 3))
        return torch.stack([torch.full_like(bright, -1e4), bright], 1)


@pytest.mark.parametrize(
    ("network", "view", "said"),
    [
        (Constant, "occlusion", "no patch changes its score: it does not depend on the input"),
        (Constant, "integrated-gradients", "the class score does not depend on the input"),
        (Constant, "smoothgrad", "the class score does not depend on the input"),
        (Constant, "rise", "its probability is the same behind all 6 masks"),
        (Impossible, "rise", "its probability is zero behind all 6 masks"),
    ],
)
def test_what_is_not_known_is_said_and_not_drawn(tmp_path, network, view, said):
    with pytest.raises(RequestError, match=f"no {view} of class0: {said}"):
        fmapviz.cam(network(), pixels(), target=0, method=view, **FEW)
    summary = draw(network(), pixels(), tmp_path, views=view, targets="0", to="png")
    assert said in summary.failures[0].message


class Certain(Small):
    """Gives class 0 all of the probability."""

    def forward(self, batch):
        return super().forward(batch) + torch.tensor([500.0, 0, 0, 0, 0])


def test_a_probability_of_one_is_not_said_to_be_independent_of_the_input():
    assert fmapviz.cam(Certain(), pixels(), target=0, method="occlusion", **FEW).raw.any()
    with pytest.raises(RequestError, match=r"no rise of class0: its probability is one behind all 6 masks$"):
        fmapviz.cam(Certain(), pixels(), target=0, method="rise", **FEW)
    with pytest.raises(RequestError, match="its probability is one, whichever cells of the image are removed"):
        fmapviz.trust(Certain(), pixels(), target=0, methods=["saliency"])


class Wide(nn.Module):
    """Has scores that do not depend on the image, but round otherwise in passes of another number of copies."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head = nn.Parameter(torch.randn(1, 512)), nn.Linear(512, 1000)

    def forward(self, batch):
        return self.head(self.features.expand(len(batch), -1).contiguous())


@pytest.mark.parametrize("view", ["occlusion", "rise"])
def test_differences_that_are_rounding_are_no_map(view):
    with torch.no_grad():
        scores = [Wide()(pixels(images))[0] for images in (8, 3)]
    for target in (scores[0] != scores[1]).nonzero().view(-1)[:5].tolist() or range(5):
        with pytest.raises(RequestError, match="it does not depend on the input"):
            fmapviz.cam(Wide(), pixels(), target=target, method=view, patch=8, samples=11)


class Gentle(nn.Module):
    """Has a score that a bright quarter of the image raises by 4 %, five units in the last place of bfloat16."""

    def __init__(self, rise=0.04):
        super().__init__()
        self.one, self.rise = nn.Parameter(torch.ones(())), rise

    def forward(self, batch):
        return self.one + self.rise * batch.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize("view", ["occlusion", "rise"])
def test_a_small_change_of_a_score_of_16_bits_is_a_map(view):
    image = torch.zeros(1, 3, 24, 24, dtype=torch.bfloat16)
    image[..., :12, :12] = 4
    few = {"method": view, "patch": 12, "samples": 100, "baseline": torch.zeros(3, 1, 1)}
    found = fmapviz.cam(Gentle().bfloat16(), image, target=0, **few).raw[0]
    assert found[:12, :12].mean() > max(found[12:].mean(), found[:, 12:].mean()) + 0.001
    with pytest.raises(RequestError, match=r"but for rounding in bfloat16$"):
        fmapviz.cam(Gentle(0.015).bfloat16(), image, target=0, **few)


@pytest.mark.parametrize("view", ["occlusion", "rise", "integrated-gradients"])
@pytest.mark.parametrize("baseline", ["blur", *thorough("mean")])
def test_an_image_of_one_colour_is_its_own_baseline(view, baseline):
    image = torch.tensor([0.1, -0.3, 0.7]).view(1, 3, 1, 1).expand(1, 3, 24, 24)
    with pytest.raises(RequestError, match=f"no {view} of class1: the image is its own baseline"):
        fmapviz.cam(Small(), image, target=1, method=view, baseline=baseline, **FEW)


class Steep(Small):
    """Has a finite score, whose gradient is infinite times zero."""

    def forward(self, batch):
        return super().forward(batch) + (batch - batch).abs().sum((1, 2, 3)).sqrt()[:, None]


@pytest.mark.parametrize("view", ["integrated-gradients", "smoothgrad"])
def test_a_gradient_that_is_not_finite_is_said_and_not_drawn(view):
    with pytest.raises(RequestError, match=f"no {view} of class1: the gradient of the class score is not finite"):
        fmapviz.cam(Steep(), pixels(), target=1, method=view, **FEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": 0}, "patch must be at least 1: '0'"),
        ({"stride": -2}, "stride must be at least 1: '-2'"),
        ({"steps": 0}, "steps must be at least 1: '0'"),
        ({"samples": 0}, "samples must be at least 1: '0'"),
        ({"samples": 10**9}, "samples must be at most 1,000,000: '1000000000'"),
        ({"patch": 8, "stride": 9}, "stride must be at most the patch, 8: '9'"),
        ({"baseline": "noise"}, "noise"),
        ({"baseline": "black"}, "baseline black is unknown"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        fmapviz.cam(Small(), pixels(), method="occlusion", **{"patch": 8, **options})
    if options.get("baseline") != "black":
        with pytest.raises(RequestError, match=message):
            fmapviz.visualize(Small(), pixels(), views="occlusion", out=tmp_path, **options)


def test_the_baseline_black_is_that_of_the_preprocessing(samples):
    model = fmapviz.load_model("shapesnet")
    path = samples / "shapes" / "star.jpg"
    found = {
        kind: fmapviz.cam(model, path, target="star", method="integrated-gradients", baseline=kind, steps=4).raw
        for kind in ("mean", "black", "blur")
    }
    assert len({each.numpy().tobytes() for each in found.values()}) == 3


def test_a_given_baseline_replaces_pixels():
    image, colour = pixels(), torch.tensor([0.5, -1.0, 2.0]).view(3, 1, 1)
    for method in ("occlusion", "integrated-gradients", "rise"):
        options = {"target": 1, "method": method, "patch": 8, "steps": 4, "samples": 8}
        given, zeros = (
            fmapviz.cam(Small(), image, baseline=each, **options).raw for each in (colour, torch.zeros(3, 24, 24))
        )
        assert torch.equal(zeros, fmapviz.cam(Small(), image, baseline=torch.zeros(1), **options).raw)
        assert not torch.equal(given, zeros)
    whole = {"target": 1, "method": "occlusion", "patch": 24, "baseline": colour}
    network = Small().eval()
    with torch.no_grad():
        expected = (network(image) - network(colour.expand(1, 3, 24, 24)))[0, 1]
    torch.testing.assert_close(fmapviz.cam(network, image, **whole).raw, expected.expand(1, 24, 24), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 5, 5), (4, 1, 1), (24, 24, 3), (2, 3, 24, 24), (0, 24, 24), (24,), (24, 24)])
@pytest.mark.parametrize("method", ["occlusion", *thorough("rise", "integrated-gradients")])
def test_a_baseline_of_another_shape_is_refused(method, shape):
    with pytest.raises(RequestError, match=re.escape(f"the baseline has the shape {shape}, and the image (3, 24, 24)")):
        fmapviz.cam(Small(), pixels(), method=method, baseline=torch.zeros(shape), **FEW)


def test_a_baseline_that_is_not_finite_or_of_another_type_is_named():
    given = {"method": "occlusion", **FEW}
    with pytest.raises(RequestError, match="the baseline has NaN or infinite values"):
        fmapviz.cam(Small(), pixels(), baseline=torch.full((3, 1, 1), torch.nan), **given)
    with pytest.raises(RequestError, match="baseline must be str or Tensor, not ndarray"):
        fmapviz.cam(Small(), pixels(), baseline=np.zeros((3, 1, 1)), **given)


class Unmoved(nn.Module):
    """Has a graph from the input, along which every gradient is zero."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, batch):
        return 0 * self.conv(batch).mean((2, 3)) + torch.arange(3.0)


@pytest.mark.parametrize("method", ["integrated-gradients", "smoothgrad", "occlusion"])
def test_a_score_whose_gradient_is_zero_has_no_map(method):
    with pytest.raises(RequestError, match=r"depend on the input|no patch changes"):
        fmapviz.cam(Unmoved(), pixels(), method=method, **FEW)


@pytest.mark.parametrize("workers", [1, *thorough(3)])
def test_passes_of_an_image_are_counted_as_they_are_done(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(batch_runner, "_REPORT_SECONDS", 0)
    events = []
    draw(Small(), pixels(2), tmp_path, targets="1,3", on_event=events.append, workers=workers)
    for path in {event.path for event in events if isinstance(event, Advanced)}:
        counts = [event.done for event in events if isinstance(event, Advanced) and event.path == path]
        (total,) = {event.total for event in events if isinstance(event, Advanced) and event.path == path}
        assert counts == sorted(counts)
        assert counts[-1] == total
    assert len({event.path for event in events if isinstance(event, Advanced)}) == 2


def test_an_option_of_another_view_has_no_effect(tmp_path):
    summary = fmapviz.visualize(Small(), pixels(), views="maps", patch=8, to="png", out=tmp_path)
    assert any("patch= has no effect on maps" in notice for notice in summary.notices)
    again = fmapviz.visualize(Small(), pixels(), views="maps", to="png", out=tmp_path)
    assert again.skipped == 1


def test_a_network_that_differs_from_pass_to_pass_is_reported(tmp_path):
    class Random(Small):
        def forward(self, batch):
            return super().forward(nn.functional.dropout(batch, 0.5, training=True))

    messages = []
    summary = draw(Random(), pixels(), tmp_path, views="occlusion,rise", to="png", on_event=messages.append)
    assert summary.done == 1
    said = [notice for event in messages for notice in getattr(event, "notices", ())]
    assert any("the score varies from pass to pass of the same image: standard deviation" in notice for notice in said)
    found = fmapviz.cam(Random(), pixels(), target=1, method="occlusion", patch=8)
    assert any("occlusion: the score varies from pass to pass" in notice for notice in found.notices)


def test_the_spread_of_rise_is_that_of_the_probability():
    class Random(Small):
        def forward(self, batch):
            return super().forward(batch) + 0.5 * torch.randn(len(batch), 5)

    network, image = Random().eval(), pixels()
    (said,) = (each for each in fmapviz.cam(network, image, target=1, method="rise", **FEW).notices if "varies" in each)
    words, number = said.rsplit(" ", 1)
    assert words == "rise: the probability varies from pass to pass of the same image: standard deviation"
    with torch.no_grad():
        logits = torch.cat([network(image) for _ in range(300)])
    by_hand, of_logits = logits.softmax(1)[:, 1].std().item(), logits[:, 1].std().item()
    assert by_hand / 3 < float(number) < by_hand * 3 < of_logits
