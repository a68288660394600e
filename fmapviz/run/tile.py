"""Draw feature maps in user code: `fmapviz.tile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmapviz.config import Style, explain_arguments
from fmapviz.core.members import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.data import FeatureMap

_PLAIN = Style()


@explain_arguments
def tile(
    maps: Tensor | NDArray[Any] | FeatureMap | Sequence[Tensor | NDArray[Any] | FeatureMap], style: Style = _PLAIN
) -> Tensor:
    """Draw the channels of one or several images as grids.

    Args:
        maps: `(C, H, W)`, one image, or `(N, C, H, W)`, N of them, of any floating or integer type; not changed. A tensor, a
            NumPy array, or a list of these of one shape, which is joined along N, or stacked if they have no N. Or a
            `FeatureMap`, in a list too: its frames, images or tokens are put in order; alone it may be a vector, which is
            drawn as bars. They are scaled as float32; a warning says where that loses what the grid would show.
        style: How the grid looks: `norm`, `columns`, `padding`, `channels`, `scale`, `colormap`, `labels`, `colorbar`,
            `background` and `text_size`. `norm="run"` takes all these maps together.

    Returns:
        One grid for one image, `(H', W')`: the rows, columns and padding that `make_grid` gives, without its three equal
        channels; so it is for a `FeatureMap` of one image. Otherwise a grid for each image, `(N, H', W')`; of a clip for
        each frame, of several clips the first frame of all, then the second. uint8, on the device of `maps`; with a colour
        map, or on a background in colour, `(..., 3)`, on a transparent one `(..., 4)`. NaN and infinite values are drawn as
        a checkerboard of black and white and do not affect the scaling.

    Raises:
        RequestError: The maps have another number of dimensions, no element, complex values, or none of the chosen channels;
            or the style asks for an input.

    Example:
        >>> import torch
        >>> tile(torch.randn(64, 55, 55)).shape  # 8 x 8 tiles, 2 pixels between them and around
        torch.Size([458, 458])
        >>> tile(torch.randn(64, 55, 55), Style(norm="signed")).shape  # blue below zero, red above
        torch.Size([458, 458, 3])
        >>> tile(torch.randn(64, 55, 55), Style(channels="top:4", labels=True)).shape  # with their numbers
        torch.Size([146, 116])
    """
    grids: Tensor = load("fmapviz.views.maps:tile")(maps, style)
    return grids
