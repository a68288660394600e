"""Detectors that have learnt to find a bright square in noise: box and heat map are where the square is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from planted import CORNERS, SIDE, SMALL, USUAL, is_at, scene, trained
from torchvision.ops import box_convert, box_iou

import fmapviz


# Grad-CAM averages gradients over the whole picture, those of a box are of its surroundings alone: of three of these
# networks its largest value is elsewhere in some pictures, or all its values are negative, and the map is zero.
@pytest.mark.parametrize("name", ["ssdlite", *thorough("faster_rcnn", "fcos", "retinanet")])
def test_box_and_heat_map_are_where_the_object_is(name):
    network, rng = trained(SMALL[name]), np.random.default_rng(1)
    for corner in CORNERS:
        pixels, truth = scene(rng, corner)
        with torch.no_grad():
            (found,) = network([pixels])
        assert box_iou(found["boxes"][:1], truth).item() > 0.4, corner
        assert is_at(fmapviz.cam(network, pixels[None], target="box1", method="layercam").map[0], truth[0]), corner


@pytest.mark.thorough
@pytest.mark.parametrize("name", USUAL)
def test_box_and_heat_maps_of_a_usual_detector_are_where_the_object_is(name):
    build, settings = USUAL[name]
    network, rng = trained(build, **settings), np.random.default_rng(1)
    for corner in CORNERS:
        pixels, truth = scene(rng, corner)
        with torch.no_grad():
            (found,) = network([pixels])
        assert box_iou(found["boxes"][:1], truth).item() > 0.5, corner
        assert is_at(fmapviz.cam(network, pixels[None], target="box1", method="layercam").map[0], truth[0]), corner
        # Patches do not overlap: values of a border would be means of fewer patches than others.
        falls = fmapviz.cam(network, pixels[None], target="box1", method="occlusion", patch=24, stride=24).map[0]
        left, top, right, bottom = truth[0].int().tolist()
        assert falls[top:bottom, left:right].max() == falls.max() > 0, corner


# Its attention is random: class activation maps are largest at places that it prefers, also beside the square.
@pytest.mark.thorough
@needs("transformers", "hf")
def test_box_and_occlusion_of_detr_are_where_the_object_is():
    from tiny_detr import planted_detr

    network, rng = planted_detr(), np.random.default_rng(1)
    for corner in CORNERS:
        pixels, truth = scene(rng, corner)
        with torch.no_grad():
            places = network(pixels[None]).pred_boxes[0]
        assert box_iou(SIDE * box_convert(places, "cxcywh", "xyxy"), truth).item() > 0.4, corner
        found = fmapviz.cam(network, pixels[None], target="box1", method="occlusion", patch=24, stride=12)
        assert is_at(found.map[0], truth[0]), corner
