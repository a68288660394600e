"""The logit of a box is that of the anchor, region or query it comes from, also where saturated scores are all equal.

The oracles decode all candidates with the box coders of the libraries, or differentiate the box that the network returns.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from candidates import candidates
from cases import thorough
from extras import needs
from planted import SMALL
from torch import nn
from yolo import confident, saved

from fmapviz.models.load import load_model
from fmapviz.observe.boxes import Boxes, sources
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.forward_record import ForwardRecord
from fmapviz.observe.predictions import predict
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.observe.target_scores import indices_of, why_absent
from fmapviz.observe.targets import parse
from fmapviz.run.batch import make_batch


def photo(side=80, images=1, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.random((images, 3, side, side), np.float32))


def boxes_of(network, batch, confidence=None):
    """Return the boxes of each image, and the output of the network."""
    model = make_batch(batch, network).model
    head = Head.of(model, None, confidence=confidence)
    record = ForwardRecord(model.module, batch)
    with record.capturing(head), torch.no_grad():
        record.output = model.forward(model.module, batch)
    return ScoreReader().read(record, key=None, head=head).boxes, record.output


def saturated(name):
    """Return a network most of whose scores are exactly 0 or 1."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network, last = SMALL[name]().eval().requires_grad_(requires_grad=False), []
        for path, module in network.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module.weight.std() < 0.02:
                nn.init.kaiming_normal_(module.weight)
            if path.endswith(("cls_logits", "cls_score", "bbox_ctrness", "classification_head.module_list.0.1")):
                last.append(module)
        scale = 100 / candidates(network, photo())[0].std()
        for module in last:
            module.weight *= scale
            module.bias.zero_()
    part = getattr(network, "roi_heads", network)
    part.nms_thresh, part.detections_per_img = 0.9, 60
    return network


@pytest.mark.parametrize("name", ["ssdlite", "faster_rcnn", *thorough("retinanet", "fcos")])
def test_the_logit_of_a_box_of_torchvision_is_that_of_the_anchor_with_its_corners(name):
    network, tied = saturated(name), 0
    for seed in range(3):
        batch = photo(seed=seed)
        ((boxes,), _), (logits, scores, corners) = boxes_of(network, batch), candidates(network, batch)
        assert len(boxes.scores) > 5
        for label, score, value, wanted in zip(
            boxes.labels.tolist(), boxes.scores, boxes.values, boxes.corners, strict=True
        ):
            alike = (scores[:, label] - score).abs() < 1e-7
            tied += int(alike.sum()) > 1
            own = alike & ((corners[:, label] - wanted).abs().amax(1) < 1e-3)
            assert own.any()
            if own.sum() == 1:
                torch.testing.assert_close(value, logits[own, label][0])
            else:  # cut at the same edges of the picture
                assert value.isnan() or float(value) in logits[own, label].tolist()
        assert boxes.values.isfinite().float().mean() > 0.8
    assert tied > 10


@pytest.mark.thorough
@needs("transformers", "hf")
def test_the_logit_of_a_box_of_transformers_is_that_of_the_query_with_its_corners():
    from tiny_detr import tiny_detr

    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = tiny_detr()
        nn.init.normal_(network.model.query_position_embeddings.weight, std=3)
        nn.init.normal_(network.class_labels_classifier.weight, std=300)
        nn.init.normal_(network.bbox_predictor.layers[-1].weight, std=0.5)
    (boxes,), output = boxes_of(network, photo(64), confidence=0.5)
    x, y, width, height = output.pred_boxes[0].unbind(1)
    corners, tied = 64 * torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 1), 0
    for label, score, value, wanted in zip(boxes.labels.tolist(), boxes.scores, boxes.values, boxes.corners, strict=True):
        (own,) = ((corners - wanted).abs().amax(1) < 1e-4).nonzero().view(-1)
        assert value == output.logits[0, own, label]
        tied += int(((boxes.scores == score) & (boxes.labels == label)).sum()) > 1
    assert tied > 5


@pytest.mark.thorough
@needs("ultralytics", "ultralytics")
@pytest.mark.parametrize("name", ["yolo26n.yaml", *thorough("yolov10n.yaml", "yolo26n-seg.yaml")])
def test_the_logit_of_a_box_of_a_head_without_suppression_is_that_of_the_anchor_with_its_corners(name, tmp_path):
    def change(content):
        confident(content)
        for scale in content["model"].model[-1].one2one_cv3:
            scale[-1].weight.data *= 50

    model, tied = load_model(str(saved(tmp_path, name, change))), 0
    head = model.module.model[-1]
    head.end2end = True
    (boxes,), (_, raw) = boxes_of(model, photo(96))
    raw = raw["one2one"]
    corners = (head.decode_bboxes(head.dfl(raw["boxes"]), head.anchors[None]) * head.strides)[0].mT
    logits = raw["scores"][0]
    assert len(boxes.scores) > 10
    for label, score, value, wanted in zip(boxes.labels.tolist(), boxes.scores, boxes.values, boxes.corners, strict=True):
        alike = (logits[label].sigmoid() - score).abs() < 1e-7
        tied += int(alike.sum()) > 1
        (own,) = (alike & ((corners - wanted).abs().amax(1) < 1e-4)).nonzero().view(-1)
        assert value == logits[label, own]
    assert tied > 10


def square(*corners):
    """Return corners of squares of 8 pixels, from their left and top edges."""
    return torch.tensor([[each, each, each + 8, each + 8] for each in corners], dtype=torch.float32)


def test_a_box_whose_score_and_corners_are_those_of_several_candidates_comes_from_none():
    table, places = torch.tensor([[1.0, 0.0], [1.0, 0.5], [1.0, 0.7], [0.9, 0.7]]), square(0, 4, 4, 30)
    scores, labels = torch.tensor([1.0, 1.0, 1.0, 0.7, 0.5]), torch.tensor([0, 0, 0, 1, 1])
    boxes = Boxes(labels, scores, scores, square(0, 4, 5, 30, 99))
    assert sources(boxes, table, lambda rows, _: places[rows]).tolist() == [0, -1, -1, 3, 1]
    assert sources(boxes, table).tolist() == [-1, -1, -1, -1, 1]


def test_a_target_whose_logit_is_unknown_is_refused():
    values = torch.tensor([torch.nan, 2.0, 3.0])
    boxes = Boxes(torch.tensor([0, 1, 0]), torch.tensor([1.0, 0.9, 0.8]), values, square(0, 4, 8), logits=True)
    scores = class_scores(None, key=None, images=1, head=Head(("person", "dog")), boxes=[boxes])
    for word in ("box1", "person", "person*", "top1"):
        (choice,) = parse([word], ("person", "dog"))[-1:]
        assert indices_of(scores, choice) == [None]
        assert "unknown which of them the network chose" in why_absent(scores, choice, 0)
    for word in ("box2", "box3", "dog"):
        assert indices_of(scores, *parse([word], ("person", "dog"))[-1:]) != [None]
    (missing,) = parse(["box4"], ("person", "dog"))[-1:]
    assert "finds only 3 boxes" in why_absent(scores, missing, 0)
    assert [each.logit for each in predict(scores, most=3)[0]] == [None, 2.0, 3.0]


def _of_scales(kind):
    import transformers

    widths = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "embedding_size": 8, "layer_type": "basic"}
    parts = transformers.RTDetrResNetConfig(out_features=["stage2", "stage3", "stage4"], **widths)
    sizes = {"encoder_hidden_dim": 32, "encoder_in_channels": [8] * 3, "encoder_ffn_dim": 32, "encoder_attention_heads": 2}
    sizes |= {"d_model": 32, "num_queries": 20, "decoder_in_channels": [32] * 3, "decoder_ffn_dim": 32, "decoder_layers": 2}
    sizes |= {"decoder_attention_heads": 2, "num_labels": 5, "num_denoising": 0, "encoder_layers": 1}
    config = getattr(transformers, f"{kind}Config")(backbone_config=parts, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = getattr(transformers, f"{kind}ForObjectDetection")(config).eval().requires_grad_(requires_grad=False)
    for values in network.parameters():
        values.mul_(1.7 if values.ndim > 1 else 1)  # so that scores differ
    return network


@needs("transformers", "hf")
@pytest.mark.parametrize("kind", ["RTDetrV2", *thorough("DFine", "RTDetr")])
def test_boxes_of_types_without_an_image_processor_are_those_of_the_processor_of_their_published_models(kind):
    from transformers import RTDetrImageProcessor

    network, batch = _of_scales(kind), photo(64, images=2)
    boxes, output = boxes_of(network, batch, confidence=0.6)
    selected = RTDetrImageProcessor().post_process_object_detection(output, threshold=0.6, target_sizes=[(64, 64)] * 2)
    for own, wanted in zip(boxes, selected, strict=True):
        assert len(own.scores) > 1
        torch.testing.assert_close(own.corners, wanted["boxes"])
        assert own.labels.tolist() == wanted["labels"].tolist()
        torch.testing.assert_close(own.values.sigmoid(), wanted["scores"])
        assert own.least == 0.6


@needs("transformers", "hf")
def test_the_threshold_that_shows_a_class_is_below_the_box_that_the_processor_would_select_of_it():
    network, batch = _of_scales("RTDetrV2"), photo(64)
    (none,), _ = boxes_of(network, batch, confidence=0.99)
    (every,), _ = boxes_of(network, batch, confidence=0.0)
    shown = {label: every.scores[every.labels == label].max() for label in every.labels.tolist()}
    assert len(shown) > 1
    assert none.highest.tolist() == [float(shown.get(label, 0)) for label in range(5)]
