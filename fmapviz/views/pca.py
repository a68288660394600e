"""First three principal components of each layer's channels, as red, green and blue.

Drawn at the layer's resolution, then enlarged to the input's, times `style.scale`: each value becomes a sharp rectangle, so
that the pictures of all layers can be compared with each other and with the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.core.drawings import Rgb
from fmapviz.inspection.reshape import NotAMapError
from fmapviz.render.pca import fit, paint
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.core.config import Style
    from fmapviz.views.base import LayerMaps

NEEDS = "outputs"
LOOKS = "scale smooth labels pca"
SHARES = "components"  # with `--pca shared`, those of all images of the run


def draw(maps: LayerMaps, _style: Style) -> BatchContent:
    """Draw one picture per image, by its own principal components or by those shared by the run.

    Returns:
        Of `Rgb`: uint8 `(N, h, w, 3)` on the device of the maps.

    Raises:
        NotAMapError: A vector.
    """
    if maps.vector:
        raise NotAMapError("is a vector, not a map")
    shared = maps.ranges.shared
    if shared and shared.basis is not None:
        pixels = paint(maps.values, shared.basis)
    else:
        pixels = torch.cat([paint(image, fit(image)) for image in torch.split(maps.values, 1)])
    if maps.ranges.bad is None:
        return BatchContent(Rgb, {"pixels": pixels})
    return BatchContent(Rgb, {"pixels": pixels, "nonfinite": _count_nonfinite(maps.values)})


def _count_nonfinite(maps: Tensor) -> Tensor:
    """Count the positions with a value that is not finite, leaving out channels without any finite value."""
    bad = ~maps.isfinite()
    silent = bad.flatten(2).all(2)
    silent &= ~silent.all(1, keepdim=True)
    counts: Tensor = (bad & ~silent[..., None, None]).any(1).sum((1, 2))
    return counts
