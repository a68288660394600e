"""Small pictures of noise, and how a network of our own is given them."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import normalize, to_tensor


def paint(path, seed=0, size=(12, 14)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)).save(path)
    return path


def prepared(path, dtype=torch.float32):
    values = normalize(to_tensor(Image.open(path)), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return values[None].to(dtype)
