"""Targets by box and by pixel: where they lie in the file, in the input and in the scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.core.centres import Centres
from fmapviz.core.placement import InFile, Placement
from fmapviz.errors import RequestError
from fmapviz.observe.boxes import Boxes
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.located import AbsentError, Located
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.target_scores import indices_of, scores_at, why_absent
from fmapviz.observe.targets import BoxTarget, PixelTarget, parse
from fmapviz.run.batch import describe_given

NAMES = ("dark", "bright")


class Pixelwise(nn.Module):
    """Scores each pixel by its own brightness."""

    classes = NAMES

    def __init__(self, every=1):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, every, every)
        with torch.no_grad():
            self.conv.weight[0], self.conv.weight[1] = -1, 1
            self.conv.bias.zero_()

    def forward(self, batch):
        return {"out": self.conv(batch)}


def described(network, **options):
    return describe_given(network, preprocessing=fmapviz.InputOptions(**options))


def save(path, pixels, orientation=1):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return str(path)


def planted(path, at, *, size=(40, 24), orientation=1, side=1):
    """Save a dark picture with a bright square whose left upper pixel is at column and row once it is upright."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[at[1] : at[1] + side, at[0] : at[0] + side] = 255
    return save(path, stored(pixels, orientation), orientation)


def stored(upright, orientation):
    """Return the pixels that a viewer turns upright; see the table of the EXIF standard."""
    turned = upright.swapaxes(0, 1) if orientation >= 5 else upright
    turned = turned[:, ::-1] if orientation in {2, 3, 7, 8} else turned
    turned = turned[::-1] if orientation in {3, 4, 6, 7} else turned
    return np.ascontiguousarray(turned)


@pytest.mark.parametrize("fit", ["none", *thorough("pad", "crop", "squash")])
@pytest.mark.parametrize("orientation", [1, 6, *thorough(2, 3, 4, 5, 7, 8)])
def test_a_pixel_of_the_file_is_found_whatever_the_preprocessing(tmp_path, fit, orientation):
    model = described(Pixelwise(), fit=fit, **({} if fit == "none" else {"size": (48, 48)}))
    for at in [(12, 8), (25, 14)]:
        path = planted(tmp_path / "a.png", at, orientation=orientation)
        batch = fmapviz.load_image(path, model)
        found = fmapviz.cam(model, path, target=f"bright@{at[0]},{at[1]}", method="saliency")
        (brightest,) = batch.mean(1).flatten(1).argmax(1).tolist()
        (chosen,) = found.raw.flatten(1).argmax(1).tolist()
        width = batch.shape[3]
        assert abs(brightest // width - chosen // width) <= 1
        assert abs(brightest % width - chosen % width) <= 1
        if fit == "none":
            assert brightest == chosen
        assert int((found.raw != 0).sum()) == 1


def test_the_class_predicted_at_a_pixel_is_drawn_without_its_name(tmp_path):
    model = described(Pixelwise(), fit="none")
    path = planted(tmp_path / "a.png", (12, 8), side=3)
    assert fmapviz.cam(model, path, target="@13,9", method="saliency").names == ("bright",)
    assert fmapviz.cam(model, path, target="@2,2", method="saliency").names == ("dark",)
    found = fmapviz.cam(model, path, target="dark@13,9", method="saliency")
    assert found.kind == "softmax"
    assert float(found.probability) == pytest.approx(float(torch.softmax(found.score * torch.tensor([1.0, -1.0]), 0)[0]))


def test_scores_of_patches_are_those_around_the_pixel(tmp_path):
    model = described(Pixelwise(every=4), fit="none")
    path = planted(tmp_path / "a.png", (12, 8), side=4)
    assert [fmapviz.cam(model, path, target=f"@{x},9", method="saliency").names[0] for x in (11, 12, 15, 16)] == [
        "dark",
        "bright",
        "bright",
        "dark",
    ]


class Cropped(nn.Module):
    """Without padding; the scores are of the middle of the input."""

    classes = NAMES

    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(*(nn.Conv2d(1, 1, 5, bias=False) for _ in range(2)))
        for each in self.convs:
            nn.init.zeros_(each.weight)
            each.weight.data[..., 2, 2] = 1

    def forward(self, batch):
        maps = self.convs(batch.mean(1, keepdim=True))
        return torch.cat([-maps, maps], 1)


def test_scores_of_the_middle_of_the_input_are_found_by_the_networks_geometry(tmp_path):
    model = described(Cropped(), fit="none")
    path = planted(tmp_path / "a.png", (12, 8))
    assert [fmapviz.cam(model, path, target=f"@{x},8").names[0] for x in (11, 12, 13)] == ["dark", "bright", "dark"]
    with pytest.raises(RequestError, match="the network returns no score of it"):
        fmapviz.cam(model, path, target="@1,1")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("@40,3", {"fit": "none"}, "outside the picture, which has 40 x 24 pixels"),
        ("bright@3,24", {"fit": "none"}, "outside the picture, which has 40 x 24 pixels"),
        (
            "@1,12",
            {"fit": "crop", "size": (24, 24)},
            "the network does not see it: left, top, right and bottom .* 8,0,32,24",
        ),
        ("box1", {"fit": "none"}, "the network returns no boxes"),
        ("box:1,2,3,4", {"fit": "none"}, "the network returns no boxes"),
        ("2@1,1", {"fit": "none"}, "no such class: '2'"),
    ],
)
def test_places_that_are_not_there_are_refused(tmp_path, target, options, message):
    path = planted(tmp_path / "a.png", (12, 8))
    with pytest.raises(RequestError, match=message):
        fmapviz.cam(described(Pixelwise(), **options), path, target=target)


def test_a_classifier_has_no_pixels(tmp_path):
    path = planted(tmp_path / "a.png", (12, 8))
    with pytest.raises(RequestError, match="the network returns neither boxes nor scores of pixels"):
        fmapviz.cam(fmapviz.load_model("shapesnet"), path, target="star@3,3")


def test_a_folder_has_a_notice_for_each_picture_without_the_pixel(tmp_path):
    pictures = [planted(tmp_path / f"{name}.png", (3, 3), size=size) for name, size in [("a", (40, 24)), ("b", (16, 12))]]
    model = described(Pixelwise(), fit="none")
    done = fmapviz.visualize(
        model, pictures, out=tmp_path / "out", views=["saliency", "maps"], targets="bright@20,3,@3,3", to="png"
    )
    drawn = sorted(str(path.relative_to(done.directory)) for path in done.directory.rglob("*.saliency.png"))
    assert len(drawn) == 3
    assert len({name.split("/")[0] for name in drawn}) == 2


# --- boxes


def found(*corners, labels=None, scores=None):
    count = len(corners)
    scores = torch.tensor(scores or [0.9 - number / 20 for number in range(count)], requires_grad=True)
    labels = torch.tensor(labels or [0] * count)
    return Boxes(labels, scores.detach(), scores * 2, torch.tensor(corners, dtype=torch.float32), logits=True, least=0.25)


def chosen(text, boxes, located=None):
    located = located or Located((100, 100))
    scores = class_scores(None, key=None, images=1, boxes=[boxes], head=Head(("cat", "dog")))
    (choice,) = parse([text], ("cat", "dog"))
    return indices_of(scores, choice, located)[0], why_absent(scores, choice, 0, located)


def test_the_box_that_overlaps_most_is_chosen_as_by_hand():
    generator = np.random.default_rng(3)
    for _ in range(50):
        starts = generator.uniform(0, 70, (6, 2))
        corners = np.concatenate([starts, starts + generator.uniform(5, 30, (6, 2))], 1).tolist()
        left, top = generator.uniform(0, 70, 2)
        right, bottom = left + generator.uniform(5, 30), top + generator.uniform(5, 30)

        def overlap(box, own=(left, top, right, bottom)):
            width, height = (min(box[at + 2], own[at + 2]) - max(box[at], own[at]) for at in (0, 1))
            both = max(0, width) * max(0, height)
            areas = sum((each[2] - each[0]) * (each[3] - each[1]) for each in (box, own))
            return both / (areas - both)

        best = max(range(6), key=lambda at: overlap(corners[at]))
        index, why = chosen(f"box:{left:.4f},{top:.4f},{right:.4f},{bottom:.4f}", found(*corners))
        if overlap(corners[best]) > 1e-6:
            assert index == BoxTarget(0, (best,))
        elif not any(map(overlap, corners)):
            assert index is None
            assert "none of the network's boxes overlaps it; the nearest one is box" in why


def test_a_box_of_the_file_is_compared_where_the_network_sees_it():
    file = InFile(Placement((2.0, 2.0), (10.0, 0.0)), (210, 200))
    boxes = found([0, 0, 10, 10], [40, 10, 60, 30])
    stored = file.to_file((40, 10, 60, 30))
    index, _ = chosen(f"box:{','.join(map(str, stored))}", boxes, Located((100, 100), [file]))
    assert index == BoxTarget(0, (1,))
    index, why = chosen("box:300,0,320,20", boxes, Located((100, 100), [file]))
    assert (index, why) == (None, "it is outside the picture, which has 210 x 200 pixels")
    index, why = chosen("box:0,0,20,20", boxes, Located((100, 100), [InFile(None, (210, 200))]))
    assert index is None
    assert "where the input lies in the file is unknown" in why


def test_a_class_at_a_pixel_of_a_detector_is_its_best_box_there():
    boxes = found([0, 0, 50, 50], [10, 10, 30, 30], [12, 12, 20, 20], labels=[0, 1, 1])
    assert chosen("@15,15", boxes)[0] == BoxTarget(0, (0,))
    assert chosen("dog@15,15", boxes)[0] == BoxTarget(1, (1,))
    assert chosen("dog@40,40", boxes)[0] is None
    assert chosen("cat@60,60", boxes) == (
        None,
        "none of the network's boxes overlaps it; the nearest one is box1, at 0,0,50,50",
    )
    assert chosen("box:0,0,5,5", found()) == (None, "the network finds no box")


def test_the_value_of_a_pixel_is_its_logit_alone():
    logits = torch.randn(2, 3, 4, 5, requires_grad=True)
    scores = class_scores(logits, key=None, images=2)
    (choice,) = parse(["1@3,2"], (), outputs=3)
    indices = indices_of(scores, choice, Located((4, 5)))
    assert indices == [PixelTarget(1, 13)] * 2
    (gradient,) = torch.autograd.grad(scores_at(scores, indices).sum(), logits)
    expected = torch.zeros_like(logits)
    expected[:, 1, 2, 3] = 1
    assert torch.equal(gradient, expected)
    at = logits.detach()[1, :, 2, 3]
    numbers = scores.numbers(1, indices[1])
    assert (numbers["logit"], numbers["probability"]) == pytest.approx((float(at[1]), float(at.softmax(0)[1])))


def test_scores_whose_place_is_unknown_are_refused():
    with pytest.raises(AbsentError, match="unknown where the network's 4 x 4 scores lie in its 9 x 9 pixels"):
        Located((9, 9)).pixel(0, (1, 1), grid=(4, 4))
    known = Located((9, 9), scores=Centres(np.arange(4) * 2 + 1.5, np.arange(4) * 2 + 1.5, (9, 9)))
    assert known.pixel(0, (3, 5), grid=(4, 4)) == (2, 1)


@pytest.mark.thorough
@needs("transformers", "hf")
def test_a_pixel_of_a_segformer_is_its_patch():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(num_labels=4, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], decoder_hidden_size=16)
    network, images = SegformerForSemanticSegmentation(config).eval(), torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        expected = network(images).logits[0, :, 5, 12]
    found = fmapviz.cam(network, images, target="2@50,20", method="saliency")
    assert float(found.logit) == pytest.approx(float(expected[2]), rel=1e-4, abs=1e-7)
    assert fmapviz.cam(network, images, target="@51,23", method="saliency").target == (int(expected.argmax()),)
