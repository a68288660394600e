"""What each channel does for a box of a detector, compared with the library's own boxes with the channel switched off."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from extras import needs
from planted import SMALL, scene
from torch import nn
from torchvision.ops import box_iou

import fmapviz

SIDE = 96


def torchvision_detector(tmp_path):
    """Return a Faster R-CNN of random weights, a layer, and a function that returns corners, scores and labels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SMALL["faster_rcnn"]().eval()
        nn.init.normal_(network.roi_heads.box_predictor.cls_score.weight, std=0.5)
        nn.init.normal_(network.roi_heads.box_predictor.bbox_pred.weight, std=0.5)
    network.roi_heads.score_thresh = 0.0

    def find(batch):
        (found,) = network([*batch])
        return found["boxes"], found["scores"], found["labels"]

    return network, network, "backbone.3", find


def yolo(tmp_path):
    """Likewise, of ultralytics."""
    from ultralytics.utils.nms import non_max_suppression
    from yolo import confident, saved

    model = fmapviz.load_model(str(saved(tmp_path, "yolo11n.yaml", confident)))

    def find(batch):
        (found,) = non_max_suppression(model.module(batch)[0].clone(), 0.0, iou_thres=0.7)
        return found[:, :4], found[:, 4], found[:, 5].long()

    return model, model.module, "model.2", find


def detr(tmp_path):
    """Likewise, of transformers."""
    from tiny_detr import tiny_detr
    from transformers import DetrImageProcessor

    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = tiny_detr()
        nn.init.normal_(network.class_labels_classifier.weight)
        network.class_labels_classifier.bias[-1] -= 6  # of no object

    def find(batch):
        select = DetrImageProcessor().post_process_object_detection
        (found,) = select(network(batch), threshold=-1.0, target_sizes=[(SIDE, SIDE)])
        return found["boxes"], found["scores"], found["labels"]

    return network, network, "model.backbone.model.encoder.stages.0", find


def by_hand(network, layer, find, batch):
    """Return the unchanged score of the best box, and the largest product of overlap and score without each channel."""
    corners, scores, labels = find(batch)
    best = int(scores.argmax())
    module, shapes = network.get_submodule(layer), []

    def switched(channel):
        def hook(_module, _given, returned):
            shapes.append(returned.shape)
            changed = returned.clone()
            changed[:, channel] = 0
            return changed

        handle = module.register_forward_hook(hook)
        others, values, classes = find(batch)
        handle.remove()
        alike = classes == labels[best]
        return float((box_iou(corners[best : best + 1], others[alike])[0] * values[alike]).max()) if alike.any() else 0.0

    first = switched(0)
    return float(scores[best]), np.array([first, *(switched(channel) for channel in range(1, shapes[0][1]))])


@pytest.mark.parametrize(
    "build",
    [
        torchvision_detector,
        pytest.param(yolo, marks=[pytest.mark.thorough, needs("ultralytics", "ultralytics")]),
        pytest.param(detr, marks=[pytest.mark.thorough, needs("transformers", "hf")]),
    ],
)
def test_the_effect_on_a_box_is_that_on_the_product_of_its_overlap_and_score(build, tmp_path):
    model, network, layer, find = build(tmp_path)
    batch = scene(np.random.default_rng(1))[0][None]
    with torch.no_grad():
        score, products = by_hand(network, layer, find, batch)
    options = {"layers": layer, "types": "Module", "targets": "box1", "confidence": 0.001, "workers": 1}
    run = fmapviz.visualize(model, batch, out=tmp_path / "out", views="effect", to="npz", predictions=0, **options)
    (unit,) = (path.parent for path in run.directory.rglob("unit.json"))
    (own,) = json.loads((unit / "unit.json").read_text())["layers"]
    assert own["effect"]["score"] == pytest.approx(score, abs=1e-5)
    assert own["effect"]["computed"] != "alone"
    values = dict(np.load(next(unit.glob("*.npz"))))
    (found,) = (each for name, each in values.items() if name.startswith(f"effect/{layer}.") and not name.endswith("score"))
    lost = products == 0
    assert np.isnan(found[lost]).all()
    np.testing.assert_allclose(found[~lost], (products - score)[~lost], rtol=0, atol=1e-5)
    assert np.ptp(products) > 0.01


@pytest.mark.thorough
@needs("ultralytics", "ultralytics")
def test_the_layer_of_a_detector_is_the_first_scale_that_its_head_reads(tmp_path):
    model, *_ = yolo(tmp_path)
    batch = scene(np.random.default_rng(1))[0][None]
    run = fmapviz.visualize(
        model, batch, out=tmp_path / "out", views="effect", targets="box1", confidence=0.001, to="npz", predictions=0
    )
    (record,) = map(json.loads, (path.read_text() for path in run.directory.rglob("unit.json")))
    assert [each["name"] for each in record["layers"]] == ["model.16"]
