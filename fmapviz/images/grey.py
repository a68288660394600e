"""An input of which only the shape counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as PillowImage

from fmapviz.core.bands import Bands
from fmapviz.core.samples import Samples

if TYPE_CHECKING:
    from fmapviz.types import Preparation


def grey_input(preparation: Preparation) -> PillowImage.Image | Bands | Samples:
    """Return a grey picture, or a grey volume, with the channels that a preprocessing takes."""
    size, channels = (640, 480), preparation.channels
    if preparation.volume:
        values = np.full((channels, preparation.frames if preparation.frames > 1 else 32, 64, 64), 0.5, np.float32)
        return Samples(values, 0.0, 1.0, channels=channels)
    if channels in {1, 3}:
        return PillowImage.new("L" if channels == 1 else "RGB", size, "gray")
    return Bands((PillowImage.new("F", size, 0.5),) * channels)
