"""A box depends on the pixels of its anchor's receptive field, and on no others.

Three oracles: the sizes, strides and paddings of the convolutions by hand; the network's own output, which stays equal to
the last bit if all other pixels change; and `fmapviz.receptive_field`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from torch import nn
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead
from yolo import TWO_SCALES, confident, saved

import fmapviz
from fmapviz.models.load import load_model

HEIGHT, WIDTH = 192, 160
# Of each scale kernel, stride and padding of the convolutions on the longest way from the input to the logits.
DOWN, SAME = (3, 2, 1), (3, 1, 1)
YOLO = ((DOWN, DOWN, SAME, SAME, SAME, SAME), (DOWN, DOWN, SAME, SAME, DOWN, SAME, SAME))


def field(convolutions, position):
    """Return the first and the last pixel that a position depends on, by hand: from the last convolution to the first."""
    first = last = position
    for kernel, stride, padding in reversed(convolutions):
        first, last = first * stride - padding, last * stride - padding + kernel - 1
    return first, last


def backbone():
    layers = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU())
    layers.out_channels = 32
    return layers


def retinanet():
    anchors = AnchorGenerator(((16,),), ((0.5, 1.0),))
    return RetinaNet(backbone(), 4, WIDTH, HEIGHT, anchor_generator=anchors, score_thresh=0.01, detections_per_img=12)


def ssdlite():
    anchors = DefaultBoxGenerator([[2]], scales=[0.1, 0.2])
    head = SSDLiteHead([32], anchors.num_anchors_per_location(), 4, nn.BatchNorm2d)
    return SSD(backbone(), anchors, (WIDTH, HEIGHT), 4, head=head, score_thresh=0.01, detections_per_img=12)


def fcos():
    anchors = AnchorGenerator(((8,),), ((1.0,),))
    return FCOS(backbone(), 4, WIDTH, HEIGHT, anchor_generator=anchors, score_thresh=0.0, detections_per_img=12)


def prepared(build):
    """Return a network whose logits differ from place to place."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build().eval()
        for module in network.head.classification_head.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        return network


def photo():
    return torch.from_numpy(np.random.default_rng(0).random((1, 3, HEIGHT, WIDTH), np.float32))


def row_of(scores, label, score):
    """Return the anchor with a score `(A, K)`; two of them would be ambiguous."""
    distances = (scores[:, label] - score).abs()
    nearest, second = distances.topk(2, largest=False).indices.tolist()
    assert distances[nearest] < 1e-6 < distances[second]
    return nearest


class Yolo:
    """A detector of ultralytics with two scales."""

    convolutions = YOLO
    layers = ("model.4.cv3.0.2", "model.4.cv3.1.2")

    def __init__(self, place):
        described = place / "shallow.yaml"
        described.write_text(TWO_SCALES)
        self.model = load_model(str(saved(place, str(described), confident)))

    def logits(self, batch):
        with torch.no_grad():
            return self.model.module(batch)[1]["scores"][0].mT

    def scores(self, logits):
        return logits.sigmoid()

    def place(self, row):
        """Return scale, row and column of an anchor."""
        for scale, stride in enumerate((4, 8)):
            height, width = HEIGHT // stride, WIDTH // stride
            if row < height * width:
                return scale, *divmod(row, width)
            row -= height * width
        raise AssertionError


class Torchvision:
    """A detector of torchvision with one scale of stride 4."""

    def __init__(self, build, layer, convolutions, anchors):
        self.model, self.layers = prepared(build), (layer,)
        self.convolutions, self._anchors = (convolutions,), anchors

    def logits(self, batch):
        found = []
        hook = self.model.head.register_forward_hook(lambda _module, _given, output: found.append(output["cls_logits"][0]))
        with hook, torch.no_grad():
            self.model(list(batch))
        return found[0]

    def scores(self, logits):
        return logits.softmax(1) if isinstance(self.model, SSD) else logits.sigmoid()

    def place(self, row):
        return 0, *divmod(row // self._anchors, WIDTH // 4)


CLASSES = "head.classification_head"
FAMILIES = {
    "yolo": Yolo,
    "retinanet": lambda _: Torchvision(retinanet, f"{CLASSES}.cls_logits", (DOWN, DOWN, *[SAME] * 5), 2),
    "ssdlite": lambda _: Torchvision(ssdlite, f"{CLASSES}.module_list.0.1", (DOWN, DOWN, SAME), 4),
}


@pytest.mark.thorough
@needs("ultralytics", "ultralytics")
@pytest.mark.parametrize("family", ["retinanet", *thorough("yolo", "ssdlite")])
def test_a_box_depends_on_its_anchor_s_receptive_field_alone(family, tmp_path):
    detector, batch = FAMILIES[family](tmp_path), photo()
    rows = detector.logits(batch)
    fields = fmapviz.receptive_field(detector.model, (HEIGHT, WIDTH), layers=detector.layers)
    strictly_inside = set()
    for target in ("box1", "box2", "box3", "box4", "box5", "box6"):
        found = fmapviz.cam(detector.model, batch, target=target, method="saliency")
        (label,), value = found.target, found.logit.item()
        row = row_of(detector.scores(rows), label, found.score.item())
        assert rows[row, label] == value
        scale, y, x = detector.place(row)
        vertical, horizontal = (field(detector.convolutions[scale], at) for at in (y, x))
        assert fields[detector.layers[scale]].box(y, x) == (
            horizontal[0],
            vertical[0],
            horizontal[1] + 1,
            vertical[1] + 1,
        )
        (top, bottom), (left, right) = (
            (max(ends[0], 0), min(ends[1], side - 1)) for ends, side in ((vertical, HEIGHT), (horizontal, WIDTH))
        )
        if (top, bottom) == vertical and (left, right) == horizontal:
            strictly_inside.add(scale)

        inside = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
        inside[top : bottom + 1, left : right + 1] = True
        gradient = found.raw[0]
        assert not gradient[~inside].any()
        assert (gradient[inside] > 0).float().mean() > 0.99
        assert gradient[top].any()
        assert gradient[bottom].any()
        assert gradient[:, left].any()
        assert gradient[:, right].any()

        others = torch.where(inside, batch, 1 - batch)
        assert detector.logits(others)[row, label] == value
        for edge in ((top, left), (bottom, right)):
            changed = batch.clone()
            changed[0, :, *edge] += 100
            assert detector.logits(changed)[row, label] != value
    assert strictly_inside


def test_a_box_of_fcos_depends_on_all_pixels_by_its_group_norm():
    gradient = fmapviz.cam(prepared(fcos), photo(), target="box1", method="saliency").raw[0]
    assert gradient.any(0).all()
    assert gradient.any(1).all()


@needs("ultralytics", "ultralytics")
@pytest.mark.thorough
def test_a_box_of_yolov8_depends_on_911_pixels_of_a_row(tmp_path):
    side, layer = 1280, "model.22.cv3.0.2"
    model = load_model(str(saved(tmp_path, "yolov8n.yaml", confident)))
    batch = torch.from_numpy(np.random.default_rng(0).random((1, 3, side, side), np.float32))
    fields = fmapviz.receptive_field(model, side, layers=layer)[layer]
    assert fields.size == (911, 911)
    with torch.no_grad():
        rows = model.module(batch)[1]["scores"][0].mT
    for target in ("box1", "box2", "box3", "box4"):
        found = fmapviz.cam(model, batch, target=target, method="saliency")
        (row,) = (rows[:, found.target[0]] == found.logit).nonzero().view(-1).tolist()
        assert row < (side // 8) ** 2  # of the finest scale
        left, top, right, bottom = fields.visible_box(*divmod(row, side // 8))
        assert (left, top, right, bottom) != (0, 0, side, side)
        seen = [axis.nonzero().view(-1) for axis in (found.raw[0].any(0), found.raw[0].any(1))]
        assert [(int(each[0]), int(each[-1]) + 1) for each in seen] == [(left, right), (top, bottom)]
        others = 1 - batch
        others[..., top:bottom, left:right] = batch[..., top:bottom, left:right]
        with torch.no_grad():
            assert model.module(others)[1]["scores"][0, found.target[0], row] == found.logit
