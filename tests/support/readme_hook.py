"""What a tutorial's hook stores of a layer that an in-place ReLU follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from PIL import Image
from torchvision.models import vgg11
from torchvision.transforms import v2 as transforms
from torchvision.utils import make_grid, save_image

if TYPE_CHECKING:
    from pathlib import Path


def capture_like_a_tutorial(picture: Path, target: Path) -> None:
    """Draw twelve channels of VGG-11's first convolution, or so it seems: the ReLU behind it has overwritten them."""
    torch.manual_seed(0)
    network = vgg11().eval()
    steps = [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.PILToTensor(),
        transforms.ToDtype(torch.float32, scale=True),
    ]
    preprocess = transforms.Compose([*steps, transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    batch = preprocess(Image.open(picture).convert("RGB"))[None]

    maps = {}
    network.features[0].register_forward_hook(lambda layer, args, output: maps.update(conv=output.detach()))  # noqa: ARG005  a hook is called so
    network(batch)
    save_image(make_grid(maps["conv"][0, :12, None], nrow=4, normalize=True, scale_each=True), target)
