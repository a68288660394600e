"""A DETR of Hugging Face with a small backbone and one layer of its decoder."""

import numpy as np
import torch
from planted import SIDE, scene
from torch import nn
from torchvision.ops import box_convert
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

WIDTH = 64


def tiny_detr(**changes):
    """Return a network with random weights; `changes` are settings of `DetrConfig`."""
    sizes = {
        "embedding_size": 8,
        "hidden_sizes": [8, 8],
        "depths": [1, 1],
        "layer_type": "basic",
        "out_features": ["stage2"],
    }
    parts = ("encoder", "decoder")
    settings = {"d_model": 32, "num_labels": 2, "num_queries": 30, "use_timm_backbone": False, "backbone": None}
    settings |= {f"{part}_layers": 1 for part in parts} | {f"{part}_ffn_dim": 32 for part in parts}
    settings |= {f"{part}_attention_heads": 2 for part in parts} | changes
    config = DetrConfig(use_pretrained_backbone=False, backbone_config=ResNetConfig(**sizes), **settings)
    return DetrForObjectDetection(config).eval().requires_grad_(requires_grad=False)


def planted_detr(scenes=600):
    """Return a network whose only query finds a bright square.

    Only the heads for box and class are fitted. The rest is random: each of 16 attention heads prefers other places, so
    that their values together show where the square is.
    """
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = tiny_detr(d_model=WIDTH, encoder_layers=0, decoder_attention_heads=16, num_queries=1)
        attention = network.model.decoder.layers[0].encoder_attn
        for projection in (attention.q_proj, attention.k_proj):
            nn.init.normal_(projection.weight, std=5 / WIDTH**0.5)  # so that it prefers some places
        nn.init.normal_(network.model.query_position_embeddings.weight)
        for module in network.model.backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
    pixels, boxes = zip(*(scene(rng) for _ in range(scenes)), strict=True)
    dark = [scene(rng)[0].clamp(max=0.2) for _ in range(scenes // 4)]
    seen, empty = (network.model(torch.stack(each)).last_hidden_state[:, 0] for each in (pixels, dark))
    _learn_boxes(network.bbox_predictor, seen, box_convert(torch.cat(boxes) / SIDE, "xyxy", "cxcywh"))
    square, nothing = torch.tensor([4.0, -4.0, 0.0]), torch.tensor([-4.0, -4.0, 0.0])
    wanted = torch.cat([square.expand(len(seen), 3), nothing.expand(len(empty), 3)])
    columns = nn.functional.pad(torch.cat([seen, empty]), (0, 1), value=1)
    found = torch.linalg.lstsq(columns, wanted).solution
    network.class_labels_classifier.weight.copy_(found[:-1].mT)
    network.class_labels_classifier.bias.copy_(found[-1])
    return network


def _learn_boxes(head, states, places, steps=200):
    head.requires_grad_()
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for _ in range(steps):
        loss = (head(states).sigmoid() - places).abs().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    head.requires_grad_(requires_grad=False)
