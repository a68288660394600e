"""Small image files, and their values as a network receives them."""

from __future__ import annotations

import os

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import normalize, to_tensor


def paint(path, seed=0, size=(16, 20)):
    """Save uniform noise as an RGB image of a given height and width; return the path.

    The modification time depends on the seed alone, so that two runs over the same images write the same records.
    """
    save_pixels(path, np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))
    os.utime(path, ns=(10**18 + seed, 10**18 + seed))
    return path


def save_pixels(path, pixels):
    """Save uint8 pixels, as PNG unless the path has the suffix of another format; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, Image.registered_extensions().get(path.suffix, "PNG"))
    return path


def save_picture(path, seed=0):
    """Save smooth colours, 60 pixels high and 80 wide, that differ with the seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((80, 60), Image.Resampling.BICUBIC).save(path)


def prepared(path, dtype=torch.float32):
    """Return an image as a network of torchvision receives it with `fit="none"`, `(1, 3, H, W)`."""
    values = normalize(to_tensor(Image.open(path)), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return values[None].to(dtype)


def pixels_of(path):
    """Return the pixels of an image file."""
    with Image.open(path) as image:
        return np.asarray(image)


def text_of(path):
    """Return the text chunks of a PNG file."""
    with Image.open(path) as image:
        return dict(image.text)
