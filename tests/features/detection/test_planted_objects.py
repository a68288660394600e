"""Detectors that have learnt to find a bright square in noise: box and heat map are where the square is.

Each is trained for a few seconds by the losses of its own library, from scratch.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from torch import nn
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead
from torchvision.ops import MultiScaleRoIAlign, box_iou

import fmapviz

SIDE, STRIDE = 96, 8
SIZES = {"min_size": SIDE, "max_size": SIDE}


def backbone():
    layers = [
        part
        for before, after in ((3, 16), (16, 32), (32, 32))
        for part in (nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
    ]
    network = nn.Sequential(*layers)
    network.out_channels = 32
    return network


def faster_rcnn():
    pooled = MultiScaleRoIAlign(["0"], 5, 2)
    anchors = AnchorGenerator(((20, 28),), ((1.0,),))
    sizes = {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20, "rpn_post_nms_top_n_train": 50}
    return FasterRCNN(backbone(), 2, **SIZES, **sizes, rpn_anchor_generator=anchors, box_roi_pool=pooled)


def retinanet():
    return RetinaNet(backbone(), 2, **SIZES, anchor_generator=AnchorGenerator(((20, 28),), ((1.0,),)))


def fcos():
    return FCOS(backbone(), 2, **SIZES, anchor_generator=AnchorGenerator(((8,),), ((1.0,),)))


def ssdlite():
    anchors = DefaultBoxGenerator([[]], scales=[0.2, 0.3], steps=[STRIDE])
    head = SSDLiteHead([32], anchors.num_anchors_per_location(), 2, nn.BatchNorm2d)
    return SSD(backbone(), anchors, (SIDE, SIDE), 2, head=head)


def scene(rng, corner=None):
    """Return a picture of dark noise with a bright square, and the square's box."""
    side = int(rng.integers(20, 29))
    left, top = (int(at) for at in (corner or rng.integers(0, SIDE - side, 2)))
    pixels = 0.2 * rng.random((3, SIDE, SIDE), np.float32)
    pixels[:, top : top + side, left : left + side] += 0.7
    return torch.from_numpy(pixels), torch.tensor([[left, top, left + side, top + side]], dtype=torch.float32)


def trained(build, steps=60):
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build().train()
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(steps):
            images, boxes = zip(*(scene(rng) for _ in range(6)), strict=True)
            targets = [{"boxes": each, "labels": torch.tensor([1])} for each in boxes]
            loss = torch.stack([*network([*images], targets).values()]).sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
    return network.eval().requires_grad_(requires_grad=False)


# Grad-CAM averages gradients over the whole picture, those of a box are of its surroundings alone: of three of these
# networks its largest value is elsewhere in some pictures, or it is zero.
@pytest.mark.parametrize("build", [ssdlite, *thorough(faster_rcnn, fcos, retinanet)])
def test_box_and_heat_map_are_where_the_object_is(build):
    network, rng = trained(build), np.random.default_rng(1)
    for corner in ((4, 8), (60, 12), (10, 62), (64, 64), (33, 41)):
        pixels, truth = scene(rng, corner)
        with torch.no_grad():
            (found,) = network([pixels])
        assert box_iou(found["boxes"][:1], truth).item() > 0.4, corner
        heat = fmapviz.cam(network, pixels[None], target="box1", method="layercam").map[0]
        y, x = divmod(int(heat.argmax()), SIDE)
        left, top, right, bottom = truth[0].tolist()
        assert left - STRIDE <= x < right + STRIDE, corner
        assert top - STRIDE <= y < bottom + STRIDE, corner
