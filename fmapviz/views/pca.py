"""All channels of a layer in one picture: their first three principal components are its red, green and blue.

What is drawn at a layer's resolution becomes a picture as large as the input, `style.scale` times that if a scale is given:
each value a sharp rectangle, so that the pictures of all layers can be laid beside each other and beside the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.principal import fit, paint
from fmapviz.shapes import NotAMapError

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.options import Style
    from fmapviz.tiling import Ranges

NEEDS = "outputs"


def draw(maps: Tensor, ranges: Ranges, style: Style) -> Tensor:  # noqa: ARG001 - what every view is given
    """Draw one picture per image, by directions of its own unless the ranges bring those of all images.

    Args:
        maps: `(N, C, h, w)`, any floating type, any range.
        ranges: With `shared.basis`, a `principal.Basis`, for all images.
        style: Not looked at here: colours and their range are those of `principal.paint`.

    Returns:
        uint8 `(N, h, w, 3)` on the device of `maps`.

    Raises:
        NotAMapError: A vector `(N, K)`.
    """
    if maps.ndim != 4:
        raise NotAMapError("is a vector, not a map")
    basis = getattr(getattr(ranges, "shared", None), "basis", None)
    if basis is not None:
        return paint(maps, basis)
    return torch.cat([paint(image, fit(image)) for image in torch.split(maps, 1)])
