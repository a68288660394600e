"""Class activation maps of segmentations, compared with captum's on the logits of the pixels where a class wins."""

from __future__ import annotations

import captum.attr
import numpy as np
import pytest
import torch
from cases import thorough
from extras import require
from torch import nn
from torchvision.models import segmentation

import fmapviz

SIDE = 96


def lraspp():
    network = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return network, network.classifier.high_classifier, "backbone.16"


def deeplab():
    network = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return network, network.classifier[-1], "classifier.2"


def segformer():
    require("transformers", "hf")
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 1, 2, 4]}
    network = SegformerForSemanticSegmentation(SegformerConfig(**sizes, decoder_hidden_size=16, num_labels=5))
    return network, network.decode_head.classifier, "decode_head.batch_norm"


def logits_of(network, batch):
    output = network(batch)
    return output["out"] if "out" in output else output["logits"]


def balanced(build, batch):
    """Return a network in evaluation mode of which each class wins at some pixels, with names, and the layer of the map."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        network, last, layer = build()
        for module in network.train().modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        logits_of(network, torch.rand(8, 3, SIDE, SIDE))  # statistics with which no signal fades away
        network.eval()
        logits = logits_of(network, batch)
        last.bias.data -= logits.mean((0, 2, 3))
        last.weight.data /= logits.std((0, 2, 3))[:, None, None, None]
        last.bias.data /= logits.std((0, 2, 3))
    network.classes = ("sky", "dog", "cat", "tree", "car")
    return network, layer


class PixelSum(nn.Module):
    """Returns the logit of a class, summed over given pixels."""

    def __init__(self, network, pixels):
        super().__init__()
        self.network, self.pixels = network, pixels

    def forward(self, batch, index):
        return (logits_of(self.network, batch)[:, index] * self.pixels).sum((1, 2))


def of_length_one(values):
    return values / values.norm()


def oracle(network, layer, batch, index, pixels):
    found = captum.attr.LayerGradCam(PixelSum(network, pixels), network.get_submodule(layer))
    return found.attribute(batch, additional_forward_args=index)[0, 0].detach()


@pytest.mark.parametrize("build", [lraspp, *thorough(deeplab, segformer)])
def test_the_map_of_a_class_is_of_its_logit_at_the_pixels_where_it_wins(build):
    batch = torch.from_numpy(np.random.default_rng(0).random((1, 3, SIDE, SIDE), np.float32))
    network, layer = balanced(build, batch)
    with torch.no_grad():
        winners = logits_of(network, batch).argmax(1)
    shares = winners.flatten().bincount(minlength=5) / winners.numel()
    assert 0 < shares[1] < 1
    found = fmapviz.cam(network, batch, target="dog", layer=layer)
    assert (found.target, found.names) == ((1,), ("dog",))

    expected = oracle(network, layer, batch, 1, winners == 1)
    assert torch.allclose(of_length_one(found.raw[0]), of_length_one(expected), atol=1e-5)
    whole = oracle(network, layer, batch, 1, torch.ones_like(winners))
    assert not torch.allclose(of_length_one(found.raw[0]), of_length_one(whole), atol=1e-3)
