"""The candidates of detectors of torchvision, decoded by hand: the oracle for which of them a box comes from."""

import torch
from torchvision.models.detection import FCOS, FasterRCNN
from torchvision.models.detection.ssd import SSD
from torchvision.ops.boxes import clip_boxes_to_image


def candidates(network, batch):
    """Return of the first image logits, scores `(A, K)` and corners `(A, K, 4)` of all regions, anchors or points."""
    images, _ = network.transform([*batch])
    features = network.backbone(images.tensors)
    features = {"0": features} if torch.is_tensor(features) else features
    logits, scores, boxes = (_regions if isinstance(network, FasterRCNN) else _anchors)(network, images, features)
    (height, width), (full_height, full_width) = images.image_sizes[0], batch.shape[2:]
    sides = torch.tensor([full_width / width, full_height / height] * 2)
    return logits, scores, clip_boxes_to_image(boxes.detach(), (height, width)) * sides


def _regions(network, images, features):
    heads = network.roi_heads
    found, _ = network.rpn(images, features)
    logits, moves = heads.box_predictor(heads.box_head(heads.box_roi_pool(features, found, images.image_sizes)))
    return logits, logits.softmax(1), heads.box_coder.decode(moves, found)


def _anchors(network, images, features):
    levels = [*features.values()]
    output, (own,) = network.head(levels), network.anchor_generator(images, levels)
    decode = network.box_coder.decode if isinstance(network, FCOS) else network.box_coder.decode_single
    logits = output["cls_logits"][0]
    scores = logits.softmax(1) if isinstance(network, SSD) else logits.sigmoid()
    if isinstance(network, FCOS):
        scores = (scores * output["bbox_ctrness"][0].sigmoid()).sqrt()
    return logits, scores, decode(output["bbox_regression"][0], own)[:, None].expand(-1, logits.shape[1], -1)
