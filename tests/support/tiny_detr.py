"""A DETR of Hugging Face with a small backbone and one layer of its decoder."""

from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig


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
