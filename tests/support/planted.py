"""A bright square in dark noise, and small networks that learn to find it by the losses of their own libraries."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead
from torchvision.ops import MultiScaleRoIAlign

SIDE, STRIDE = 96, 8
CORNERS = ((4, 8), (60, 12), (10, 62), (64, 64), (33, 41))  # left and top of squares at which networks are tested
_SIZES = {"min_size": SIDE, "max_size": SIDE}


def _backbone():
    layers = [
        part
        for before, after in ((3, 16), (16, 32), (32, 32))
        for part in (nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
    ]
    network = nn.Sequential(*layers)
    network.out_channels = 32
    return network


def _faster_rcnn():
    pooled = MultiScaleRoIAlign(["0"], 5, 2)
    anchors = AnchorGenerator(((20, 28),), ((1.0,),))
    sizes = {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20, "rpn_post_nms_top_n_train": 50}
    return FasterRCNN(_backbone(), 2, **_SIZES, **sizes, rpn_anchor_generator=anchors, box_roi_pool=pooled)


def _retinanet():
    return RetinaNet(_backbone(), 2, **_SIZES, anchor_generator=AnchorGenerator(((20, 28),), ((1.0,),)))


def _fcos():
    return FCOS(_backbone(), 2, **_SIZES, anchor_generator=AnchorGenerator(((8,),), ((1.0,),)))


def _ssdlite():
    anchors = DefaultBoxGenerator([[]], scales=[0.2, 0.3], steps=[STRIDE])
    head = SSDLiteHead([32], anchors.num_anchors_per_location(), 2, nn.BatchNorm2d)
    return SSD(_backbone(), anchors, (SIDE, SIDE), 2, head=head)


def _usual(name, **options):
    """Return a detector as torchvision builds it, whose statistics follow a training of few steps."""
    network = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=2, **options)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return network


def _usual_fcos():
    """Return an FCOS whose distances start at half a square: half of them would start below zero, where ReLU is flat."""
    network = _usual("fcos_resnet50_fpn", **_SIZES)
    nn.init.constant_(network.head.regression_head.bbox_reg.bias, 12 / STRIDE)
    return network


# How they are built, and settings of `trained`; a minute or two each.
USUAL = {
    "ssdlite320_mobilenet_v3_large": (partial(_usual, "ssdlite320_mobilenet_v3_large"), {"steps": 80, "images": 4}),
    "retinanet_resnet50_fpn": (
        partial(_usual, "retinanet_resnet50_fpn", **_SIZES),
        {"steps": 50, "images": 3, "rate": 1e-3},
    ),
    "fcos_resnet50_fpn": (_usual_fcos, {"steps": 60, "images": 3, "rate": 1e-3}),
    "fasterrcnn_mobilenet_v3_large_320_fpn": (
        # Its finest grid has a stride of 32 pixels: pictures are enlarged until a square covers about two positions.
        partial(
            _usual,
            "fasterrcnn_mobilenet_v3_large_320_fpn",
            **dict.fromkeys(_SIZES, 256),
            rpn_pre_nms_top_n_train=100,
            rpn_post_nms_top_n_train=30,
            box_batch_size_per_image=16,
        ),
        {"steps": 140, "images": 4, "rate": 1e-3},
    ),
}
SMALL = {"ssdlite": _ssdlite, "faster_rcnn": _faster_rcnn, "fcos": _fcos, "retinanet": _retinanet}


def scene(rng, corner=None, side=SIDE):
    """Return a picture of dark noise with a bright square, float32 `(3, side, side)`, and the square's box, `(1, 4)`."""
    length = int(rng.integers(20, 29))
    left, top = (int(at) for at in (corner or rng.integers(0, side - length, 2)))
    pixels = 0.2 * rng.random((3, side, side), np.float32)
    pixels[:, top : top + length, left : left + length] += 0.7
    return torch.from_numpy(pixels), torch.tensor([[left, top, left + length, top + length]], dtype=torch.float32)


def loss_of_boxes(network, images, boxes):
    """Return the sum of the losses of a detector of torchvision."""
    targets = [{"boxes": each, "labels": torch.tensor([1])} for each in boxes]
    return torch.stack([*network([*images], targets).values()]).sum()


def trained(build, loss_of=loss_of_boxes, *, draw=scene, steps=60, rate=3e-3, images=6):
    """Return a network in evaluation mode, trained on random scenes.

    Args:
        build: Returns the network.
        loss_of: Returns the loss of the network for pictures and boxes, a sequence each.
        draw: Returns a random scene.
        steps: Of Adam.
        rate: Of learning.
        images: In a batch.
    """
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build().train()
        optimizer = torch.optim.Adam(network.parameters(), rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
        for _ in range(steps):
            loss = loss_of(network, *zip(*(draw(rng) for _ in range(images)), strict=True))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            schedule.step()
    return network.eval().requires_grad_(requires_grad=False)


def is_at(place, box, slack=STRIDE):
    """Return True if the largest value of a map `(H, W)` is in a box `(4)`, or at most `slack` pixels beside it."""
    y, x = divmod(int(place.argmax()), place.shape[1])
    left, top, right, bottom = box.tolist()
    return left - slack <= x < right + slack and top - slack <= y < bottom + slack
