"""The boxes of detectors, compared with what each library selects itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from planted import SMALL
from tiny_models import as_model
from yolo import saved

from fmapviz.models.load import load_model
from fmapviz.observe.boxes import Boxes
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.detectors import find_detector
from fmapviz.observe.forward_record import ForwardRecord
from fmapviz.observe.predictions import predict
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.observe.target_scores import indices_of, scores_at
from fmapviz.observe.targets import parse

TORCHVISION = {
    "ssdlite320_mobilenet_v3_large": "(score_thresh=0.0, detections_per_img=40)",
    "fasterrcnn_mobilenet_v3_large_320_fpn": "(box_score_thresh=0.0, box_detections_per_img=40)",
    "retinanet_resnet50_fpn": "(score_thresh=0.0, detections_per_img=40, min_size=64)",
    "fcos_resnet50_fpn": "(score_thresh=0.0, detections_per_img=40, min_size=64)",
    "maskrcnn_resnet50_fpn": "(box_score_thresh=0.0, box_detections_per_img=10, min_size=64)",
    "keypointrcnn_resnet50_fpn": "(box_score_thresh=0.0, box_detections_per_img=10, min_size=64)",
    "ssd300_vgg16": "(score_thresh=0.0, detections_per_img=40)",
}


def photo(side=64, images=1):
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.random((images, 3, side, side), np.float32))


def run(model, batch, confidence=None):
    """Return the class scores of a forward pass, its record, and its output."""
    head = Head.of(model, None, confidence=confidence)
    record = ForwardRecord(model.module, batch)
    with record.capturing(head):
        record.output = model.forward(model.module, batch.clone().requires_grad_())
    return ScoreReader().read(record, key=None, head=head), record


@pytest.mark.parametrize("name", [*list(TORCHVISION)[:1], *thorough(*list(TORCHVISION)[1:])])
def test_boxes_of_torchvision_are_its_own_with_the_logit_of_each(name):
    model = load_model(name + TORCHVISION[name], weights="random")
    scores, record = run(model, photo())
    (boxes,), (own,) = scores.boxes, record.output
    assert len(boxes.scores) == len(own["scores"]) > 3
    order = own["scores"].argsort(descending=True, stable=True)
    assert torch.equal(boxes.corners, own["boxes"][order])
    assert torch.equal(boxes.labels, own["labels"][order])
    assert torch.equal(boxes.scores, own["scores"][order])
    assert torch.allclose(probability_of(name, boxes, record.captured), boxes.scores, atol=1e-6)
    assert boxes.best >= boxes.scores.max() - 1e-6
    assert boxes.least == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SMALL)
def test_a_confidence_replaces_the_threshold_of_torchvision_for_a_pass(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SMALL[name]().eval()
    model, batch, part = as_model(network), photo(96), getattr(network, "roi_heads", network)
    lower = part.score_thresh = 0.0
    with torch.no_grad():
        (own,) = network(list(batch))
    part.score_thresh = higher = float(own["scores"].max()) + 1e-3
    for confidence, kept in ((None, 0), (lower, len(own["scores"])), (float(own["scores"].median()), None)):
        with (
            pytest.raises(ValueError, match="stopped"),
            ForwardRecord(network, batch).capturing(Head.of(model, None, confidence=confidence)),
        ):
            raise ValueError("stopped")
        (boxes,) = run(model, batch, confidence)[0].boxes
        assert part.score_thresh == higher
        least = higher if confidence is None else confidence
        assert len(boxes.scores) == int((own["scores"] > least).sum())
        assert kept in {len(boxes.scores), None}
        assert boxes.least == least
    assert len(own["scores"]) > 3
    shown = float(run(model, batch)[0].boxes[0].why_none().partition("confidence=")[2].split()[0])
    assert len(run(model, batch, shown)[0].boxes[0].scores) > 0


def probability_of(name, boxes, captured):
    """Return the score that follows from each differentiated value by the formula of the family."""
    rows = []
    for value, label in zip(boxes.values, boxes.labels.tolist(), strict=True):
        table = captured["roi_heads.box_predictor"][0] if "rcnn" in name else captured["head"]["cls_logits"][0]
        row = int((table[:, label] == value).nonzero()[0])
        if "rcnn" in name or "ssd" in name:
            rows.append(table[row].softmax(0)[label])
        elif "fcos" in name:
            rows.append((value.sigmoid() * captured["head"]["bbox_ctrness"][0, row, 0].sigmoid()).sqrt())
        else:
            rows.append(value.sigmoid())
    return torch.stack(rows).detach()


YOLO = ["yolo11n.yaml", "yolo26n.yaml", "yolov8n-seg.yaml", "yolo26n-seg.yaml"]
YOLO += ["yolo11n-pose.yaml", "yolo11n-obb.yaml", "yolov10n.yaml"]


@needs("ultralytics", "ultralytics")
@pytest.mark.parametrize("name", [YOLO[0], *thorough(*YOLO[1:])])
def test_boxes_of_ultralytics_are_those_that_it_predicts(name, tmp_path):
    from fmapviz.features.detection.yolo import non_max_suppression
    from fmapviz.models.sources.ultralytics import ultralytics, unpatched

    def change(content):
        network = content["model"].float()
        head = network.model[-1]
        for branch in (head.cv3, *([head.one2one_cv3] if hasattr(head, "one2one_cv3") else [])):
            for scale in branch:
                scale[-1].bias.data += 6
                scale[-1].weight.data *= 8
        content["model"] = network.fuse(verbose=False)  # `predict` would fuse it, which rounds otherwise

    path, batch = saved(tmp_path, name, change), photo(96)
    model = load_model(str(path))
    scores, record = run(model, batch, confidence=0.001)
    with unpatched():
        (own,) = ultralytics.YOLO(path).predict(batch, conf=0.001, iou=0.7, verbose=False, imgsz=96, save=False)
    found, (boxes,) = own.boxes if own.obb is None else own.obb, scores.boxes
    assert len(found) > 3
    assert len(found) == len(boxes.scores)
    if name == "yolov8n-seg.yaml":  # the masks of the others are empty
        assert len(found) < len(non_max_suppression(record.output[0][0].detach(), 0.001, nc=80, iou_thres=0.7)[0])
    for score, label, corners in zip(found.conf, found.cls, found.xyxy, strict=True):
        alike = (boxes.labels == label) & ((boxes.scores - score).abs() < 1e-4)
        if own.obb is None:
            alike &= ((boxes.corners.clamp(0, 96) - corners).abs() < 1e-4 * 96).all(1)
        assert alike.any()
    assert torch.allclose(boxes.values.sigmoid(), boxes.scores, atol=1e-6)
    assert boxes.best == pytest.approx(float(boxes.scores.max()), abs=1e-6)


@needs("ultralytics", "ultralytics")
@pytest.mark.parametrize("name", [*thorough("rtdetr-resnet50.yaml")])
def test_boxes_of_queries_are_those_that_ultralytics_predicts(name, tmp_path):
    from fmapviz.models.sources.ultralytics import ultralytics, unpatched

    def change(content):
        network = content["model"].float()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            torch.nn.init.normal_(network.model[-1].dec_score_head[-1].weight, std=100)  # many of them are saturated

    path, batch = saved(tmp_path, name, change), photo(160)
    scores, record = run(load_model(str(path)), batch, confidence=0.3)
    with unpatched():
        (own,) = ultralytics.RTDETR(path).predict(batch, conf=0.3, verbose=False, imgsz=160, save=False)
    (boxes,), (places, logits) = scores.boxes, (each[-1, 0] for each in record.output[1][:2])
    order = own.boxes.conf.argsort(descending=True, stable=True)
    assert len(own.boxes) == len(boxes.scores) > 50
    torch.testing.assert_close(boxes.scores, own.boxes.conf[order])
    torch.testing.assert_close(boxes.corners, own.boxes.xyxy[order], atol=1e-2, rtol=1e-4)
    assert torch.equal(boxes.labels, own.boxes.cls[order].long())
    assert (boxes.scores == 1).sum() > 5
    for value, label, corners in zip(boxes.values, boxes.labels, boxes.corners, strict=True):
        x, y, width, height = (160 * places[int((logits[:, label] == value).nonzero()[0])]).detach()
        wanted = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
        torch.testing.assert_close(corners, wanted, atol=1e-3, rtol=0)


HF = {
    "detr": "(num_queries=7, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32, "
    "encoder_attention_heads=2, decoder_attention_heads=2, num_labels=5)",
    "yolos": "(num_detection_tokens=7, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, "
    "image_size=[64, 64], num_labels=5)",
    "rt_detr": "(num_labels=5, num_queries=9)",
    "deformable_detr": "(num_labels=5, num_queries=9, encoder_layers=2, decoder_layers=2)",
}


@needs("transformers", "hf")
@pytest.mark.parametrize("kind", ["yolos", *thorough("detr", "rt_detr", "deformable_detr")])
def test_boxes_of_transformers_are_those_of_its_processor(kind):
    model = load_model(f"hf:{kind}{HF[kind]}", weights="random")
    scores, record = run(model, photo(64, 2), confidence=0.0)
    assert len(scores.boxes) == 2
    for boxes, logits, centres in zip(scores.boxes, record.output.logits, record.output.pred_boxes, strict=True):
        assert len(boxes.scores)
        assert torch.equal(boxes.scores, boxes.scores.sort(descending=True).values)
        for value, label, score, corners in zip(boxes.values, boxes.labels, boxes.scores, boxes.corners, strict=True):
            row = int((logits[:, label] == value).nonzero()[0])
            expected = logits[row].softmax(0)[label] if kind in {"detr", "yolos"} else value.sigmoid()
            assert float(score) == pytest.approx(float(expected.detach()), abs=1e-6)
            x, y, width, height = (64 * centres[row].detach()).tolist()
            assert corners.tolist() == pytest.approx(
                [x - width / 2, y - height / 2, x + width / 2, y + height / 2], abs=1e-3
            )


def found(*rows, least=0.25, best=None):
    labels, scores, values = (list(each) for each in zip(*rows, strict=True)) if rows else ([], [], [])
    return Boxes(
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(scores),
        torch.tensor(values, requires_grad=True),
        torch.arange(4.0 * len(rows)).view(-1, 4),
        logits=True,
        least=least,
        highest=None if best is None else torch.tensor([best]),
    )


NAMES = ("person", "dog", "7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box1", [3.0, 2.0, 0.0]),
        ("box2", [2.0, 0.0, 0.0]),
        ("person", [2.0, 2.0, 0.0]),
        ("person*", [3.0, 2.0, 0.0]),
        ("dog*", [3.0, 0.0, 0.0]),
        ("Dog", [3.0, 0.0, 0.0]),
        ("0*", [3.0, 2.0, 0.0]),
        ("top1", [3.0, 2.0, 0.0]),
        ("top2", [2.0, 0.0, 0.0]),
        ("7", None),
    ],
)
def test_a_target_chooses_boxes(text, expected):
    images = [found((1, 0.9, 3.0), (0, 0.8, 2.0), (0, 0.7, 1.0)), found((0, 0.8, 2.0)), found()]
    scores = class_scores(None, key=None, images=3, head=Head(NAMES), boxes=images)
    (choice,) = parse([text], NAMES, outputs=8 if text == "7" else None)[-1:]
    if expected is None:
        assert indices_of(scores, choice) == [None, None, None]
        return
    values = scores_at(scores, indices_of(scores, choice))
    assert values.tolist() == expected
    values.sum().backward()
    assert sum(float(each.values.grad.sum()) for each in images if each.values.grad is not None) == (values != 0).sum() + (
        text in {"person*", "0*"}
    )


def test_predictions_of_a_detector_are_boxes():
    scores = class_scores(None, key=None, images=2, head=Head(NAMES), boxes=[found((1, 0.9, 3.0), (0, 0.8, 2.0)), found()])
    first, second = predict(scores, most=5)
    assert [(each.name, each.box) for each in first] == [("dog", (0, 1, 2, 3)), ("person", (4, 5, 6, 7))]
    assert first[0].logit == 3.0
    assert second == ()


@pytest.mark.parametrize(
    ("best", "shown"),
    [(0.0317, "0.031"), (0.2, "0.19"), (0.00099, "0.00098"), (1e-9, "9.9e-10"), (0.5 / 4, "0.12"), (0.0, None)],
)
def test_the_threshold_that_would_show_a_box_is_named(best, shown):
    reason = found(least=0.25, best=best).why_none()
    assert "no box has a score above 0.25" in reason
    assert (f"confidence={shown} shows it" in reason) == (shown is not None)
    if shown:
        assert torch.tensor([best]) > float(shown)  # scores above it count, in their type


def test_classes_of_other_libraries_are_no_detectors():
    assert find_detector(torch.nn.Linear(1, 1)) is None
    assert find_detector(load_model("shapesnet").module) is None
