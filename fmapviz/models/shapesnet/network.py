"""The network that classifies shapes, and its weights; `sample_images/train_shapesnet.py` trained it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from torch import Tensor, nn

WEIGHTS = Path(str(files("fmapviz.models.shapesnet"))) / "shapesnet.safetensors"
CLASSES = ("circle", "square", "triangle", "star", "cross", "ring")
SIDE = 96  # pixels: the size of the training pictures
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

# Channels and stride of each block. The stride of the last feature map is 8, its receptive field 75 x 75 pixels.
BLOCKS = ((16, 2), (24, 1), (32, 2), (48, 1), (64, 2), (64, 1), (80, 1), (96, 1))


class ShapesNet(nn.Module):
    """Eight convolutions, global average pooling and one linear layer, so class activation maps are exact.

    Attributes:
        features: From `(N, 3, 96, 96)` to `(N, 96, 12, 12)`; each block is a `conv`, a `norm` and an in-place `relu`.
        pool: Global average pooling.
        classifier: One logit for each of `CLASSES`.

    Example:
        >>> import torch
        >>> ShapesNet()(torch.zeros(1, 3, 96, 96)).shape
        torch.Size([1, 6])
    """

    def __init__(self) -> None:
        super().__init__()
        widths = [3, *(channels for channels, _ in BLOCKS)]
        self.features = nn.Sequential(
            *(_block(width, channels, stride=stride) for width, (channels, stride) in zip(widths, BLOCKS, strict=False))
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(widths[-1], len(CLASSES))

    def forward(self, batch: Tensor) -> Tensor:
        """Return the logits `(N, 6)` of preprocessed images `(N, 3, H, W)`."""
        return self.classify(self.features(batch))

    def classify(self, maps: Tensor) -> Tensor:
        """Return the logits `(N, 6)` of feature maps of `features`."""
        logits: Tensor = self.classifier(self.pool(maps).flatten(1))
        return logits


def _block(width: int, channels: int, *, stride: int) -> nn.Module:
    block = nn.Sequential()
    block.add_module("conv", nn.Conv2d(width, channels, 3, stride=stride, padding=1, bias=False))
    block.add_module("norm", nn.BatchNorm2d(channels))
    block.add_module("relu", nn.ReLU(inplace=True))
    return block
