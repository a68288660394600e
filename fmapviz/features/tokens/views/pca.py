"""First three principal components of each layer's channels, as red, green and blue.

The mean is middle grey; 2.5 standard deviations below it are 0, and above it 255. Drawn at the layer's resolution, then
enlarged to the input's, times `style.scale`: each pixel has the colour of the position whose centre is nearest, so that the
pictures of all layers can be compared with each other and with the input.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from fmapviz.core.drawings import Rgb
from fmapviz.features.tokens.foreground import border, separate
from fmapviz.features.tokens.pca import fit, paint
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.views.base import LayerMaps


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one picture per image, by its own principal components or by those shared by the run.

    Returns:
        Of `Rgb`: uint8 `(N, h, w, 3)` on the device of the maps.

    Raises:
        NotAMapError: A vector.
    """
    if maps.vector:
        raise NotAMapError("is a vector, not a map")
    tensors = _foreground(maps) if style.foreground else {"pixels": _everything(maps)}
    if maps.ranges.bad is not None:
        tensors["nonfinite"] = _count_nonfinite(maps.values)
    split = vectors_in(maps.ranges.shared).foreground if style.foreground else None
    return BatchContent(partial(Rgb, sampled=split.positions if split else None), tensors)


def _everything(maps: LayerMaps) -> Tensor:
    if basis := vectors_in(maps.ranges.shared).basis:
        return paint(maps.values, basis)
    return torch.cat([paint(image, fit(image)) for image in torch.split(maps.values, 1)])


def _foreground(maps: LayerMaps) -> dict[str, Tensor]:
    """Draw the foreground in the colours of its own components, and the background black."""
    shared, (height, width) = vectors_in(maps.ranges.shared).foreground, maps.values.shape[2:]
    pixels, counts = [], []
    for image in torch.split(maps.values, 1):
        known = shared or separate(image[0].flatten(1), border(height, width, image.device))
        mask = known.mask(image)
        finite = ~_nonfinite(image)
        pixels.append(paint(image, known.basis).masked_fill((~mask & finite)[..., None], 0))
        counts.append((mask & finite).sum())
    return {"pixels": torch.cat(pixels), "foreground": torch.stack(counts)}


def _count_nonfinite(maps: Tensor) -> Tensor:
    counts: Tensor = _nonfinite(maps).sum((1, 2))
    return counts


def _nonfinite(maps: Tensor) -> Tensor:
    """Return which positions have a value that is not finite, but for channels without any finite value: `(N, h, w)`."""
    bad = ~maps.isfinite()
    silent = bad.flatten(2).all(2)
    silent &= ~silent.all(1, keepdim=True)
    return (bad & ~silent[..., None, None]).any(1)
