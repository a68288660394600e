"""Class activation maps of the boxes of torchvision's detectors, compared with captum's on the logit of the same box."""

from __future__ import annotations

import captum.attr
import numpy as np
import pytest
import torch
from candidates import candidates
from cases import thorough
from planted import SMALL
from torch import nn
from torchvision.models import detection

import fmapviz
from fmapviz.errors import RequestError

SIDE = 96
SIZES = {"min_size": SIDE, "max_size": SIDE}
REAL = {  # of random weights, logits of the others are too large or too small to be compared
    "fasterrcnn_mobilenet_v3_large_320_fpn": SIZES,
    "maskrcnn_resnet50_fpn": SIZES,
    "fcos_resnet50_fpn": SIZES,
}


class LogitOfBox(nn.Module):
    """Runs the parts of a detector by hand, and returns the logit of the candidate that has a box of the network's output.

    Attributes:
        alike: The number of candidates with that box, of which several may be cut at the same edges.
    """

    def __init__(self, network, label, corners):
        super().__init__()
        self.network, self.label, self.corners, self.alike = network, label, corners, 0

    def forward(self, batch):
        logits, _, boxes = candidates(self.network, batch)
        distances = (boxes[:, self.label] - self.corners).abs().amax(1)
        self.alike = int((distances < 1e-3).sum())
        return logits[None, distances.argmin(), self.label]


def finding(build, **options):
    """Return a network of random weights that returns some boxes, whatever their scores."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build(**options).eval().requires_grad_(requires_grad=False)
        for module in network.modules():  # with the libraries' own small weights, all candidates have nearly the same logit
            if isinstance(module, nn.Conv2d) and module.weight.std() < 0.02:
                nn.init.kaiming_normal_(module.weight)
    getattr(network, "roi_heads", network).score_thresh = 0.0
    return network


def small(name):
    return finding(SMALL[name]), ["backbone"]


def real(name):
    network = finding(getattr(detection, name), weights=None, weights_backbone=None, num_classes=3, **REAL[name])
    return network, [f"backbone.fpn.layer_blocks.{scale}" for scale in range(len(network.backbone.fpn.layer_blocks))]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (small, "faster_rcnn"),
        *thorough((small, "fcos"), (small, "retinanet"), (small, "ssdlite"), *((real, name) for name in REAL)),
    ],
)
def test_the_map_of_a_box_is_that_of_captum_on_its_logit(build, name):
    network, layers = build(name)
    batch = torch.from_numpy(np.random.default_rng(0).random((1, 3, SIDE, SIDE), np.float32))
    with torch.no_grad():
        (found,) = network([*batch])
    compared = []
    for rank in range(1, min(40, 1 + len(found["boxes"]))):
        oracle = LogitOfBox(network, int(found["labels"][rank - 1]), found["boxes"][rank - 1])
        logit = oracle(batch).item()
        if oracle.alike > 1:  # boxes that are cut at the same edges of the picture
            continue
        compared.append(0.0)
        for layer in layers:
            expected = captum.attr.LayerGradCam(oracle, network.get_submodule(layer)).attribute(batch)[0, 0].detach()
            own = fmapviz.cam(network, batch, target=f"box{rank}", method="gradcam", layer=layer)
            assert own.logit.item() == pytest.approx(logit, rel=1e-5)
            largest = expected.abs().max().item()
            torch.testing.assert_close(own.raw[0], expected, rtol=1e-5, atol=1e-5 * largest)
            compared[-1] = max(compared[-1], largest)
        if len(compared) == 2:
            break
    assert compared
    assert min(compared) > 0


@pytest.mark.thorough
def test_a_class_beyond_the_greatest_number_of_boxes_is_not_said_to_have_too_low_a_score():
    network, _ = real("fasterrcnn_mobilenet_v3_large_320_fpn")
    network.roi_heads.detections_per_img = 1
    batch = torch.from_numpy(np.random.default_rng(0).random((1, 3, SIDE, SIDE), np.float32))
    with torch.no_grad():
        ((label,),) = ([*each["labels"].tolist()] for each in network([*batch]))
        _, scores, _ = candidates(network, batch)
    other = next(each for each in range(1, scores.shape[1]) if each != label)
    with pytest.raises(RequestError) as caught:
        fmapviz.cam(network, batch, target=other)
    assert f"keeps no box of the class, although the highest score is {scores[:, other].max():.3g}" in str(caught.value)
    assert "has a score above" not in str(caught.value)
