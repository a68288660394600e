"""Colour maps, and the checkerboard that marks NaN and infinite values.

The colours are tables in this module. The package cmap has exact ones, but its import takes 240 ms and 7 MB; these take
0.2 ms and twenty lines. Pictures with its tables would differ by up to one level from those of earlier runs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.config import canonical_colormap

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

HEAT_COLORMAP = "turbo"  # of heat maps, unless a view or the user chooses another
_SQUARES = 32  # along the longer side of a checkerboard, about

# LEVEL:COLOUR, interpolated linearly; within one level of every entry of matplotlib's table of that name. Authors: viridis
# and magma N. Smith and S. van der Walt (2015, CC0), turbo A. Mikhailov (Google, 2019, Apache-2.0), coolwarm K. Moreland
# ("Diverging Color Maps for Scientific Visualization", 2009), jet MATLAB.
_STOPS = {
    "gray": "0:000000 255:ffffff",
    "viridis": "0:440154 20:481d6f 35:46307e 58:3e4c8a 94:2d718e 132:1f948c 147:1fa287 162:2ab07f 179:44bf70 198:6ccd5a "
    "223:aadc32 237:d0e11c 244:e2e418 253:f8e621 255:fde725",
    "magma": "0:000004 7:03030f 20:0e0b2b 37:241253 48:36106b 58:471078 75:621980 104:902a81 131:bc3978 151:db476a "
    "168:ef5d5e 182:f8765c 196:fc9065 216:feb67c 244:fde9aa 255:fcfdbf",
    "turbo": "0:30123b 8:392a73 16:4040a2 24:4456c7 31:4669e0 38:477bf2 44:458afc 50:4099ff 58:33adf7 66:25c0e7 74:1ad2d2 "
    "82:18e0bd 89:20eaac 98:38f491 113:71fe5f 123:96fe44 132:affa37 141:c6f034 155:e5d938 166:f6c33a 176:fdac34 "
    "188:fd8a26 202:f26014 213:e4450a 228:c82803 243:a11201 255:7a0403",
    "coolwarm": "0:3b4cc0 22:5572df 42:6f92f3 63:8caffe 83:a7c5fe 104:c3d5f4 123:d8dce2 131:e0dbd8 148:efcfbf 167:f7bca1 "
    "190:f59c7d 211:e9785d 232:d44e41 245:c32e31 248:be242e 255:b40426",
    "jet": "0:000080 28:0000ff 32:0000ff 87:00dcfe 90:02e8f4 96:16ffe1 163:eeff09 166:f8f500 169:ffea00 227:ff1300 "
    "232:e80000 255:800000",
}


@cache
def table(name: str) -> NDArray[np.uint8]:
    """Return the 256 colours of a colour map.

    Args:
        name: One of `COLORMAPS`, or `grey`.

    Returns:
        uint8 `(256, 3)`, read-only.

    Raises:
        RequestError: The colour map is unknown.

    Example:
        >>> table("coolwarm")[[0, 128, 255]].tolist()  # blue, light grey, red
        [[59, 76, 192], [221, 219, 220], [180, 4, 38]]
    """
    stops = [stop.split(":") for stop in _STOPS[canonical_colormap(name)].split()]
    levels = [int(level) for level, _ in stops]
    channels = zip(*(bytes.fromhex(colour) for _, colour in stops), strict=True)
    colours = np.stack([np.interp(range(256), levels, channel) for channel in channels], 1).round().astype(np.uint8)
    colours.flags.writeable = False
    return colours


def colorize(levels: Tensor, name: str) -> Tensor:
    """Apply a colour map to levels.

    Args:
        levels: uint8, any shape `(...)`.
        name: One of `COLORMAPS`, or `grey`.

    Returns:
        uint8 `(..., 3)` on the device of `levels`.

    Raises:
        RequestError: The colour map is unknown.

    Example:
        >>> colorize(torch.tensor([0, 255], dtype=torch.uint8), "jet").tolist()
        [[0, 0, 128], [128, 0, 0]]
    """
    # On the CPU three times as fast as indexing with [...].
    return _table_on(levels.device, name).index_select(0, levels.flatten().int()).view(*levels.shape, 3)


def checkerboard(height: int, width: int, device: torch.device | None = None, *, square: int | None = None) -> Tensor:
    """Draw the pattern that marks NaN and infinite values.

    Args:
        height: Pixels.
        width: Pixels.
        device: The device of the result.
        square: The side of a square, pixels; None: about 32 squares along the longer side.

    Returns:
        uint8 `(height, width)`, 0 and 255.

    Example:
        >>> checkerboard(2, 3).tolist()
        [[0, 255, 0], [255, 0, 255]]
    """
    side = square or max(1, max(height, width) // _SQUARES)
    rows, columns = (torch.arange(count, device=device) // side for count in (height, width))
    return ((rows[:, None] + columns) % 2 * 255).to(torch.uint8)


@cache  # one copy per device
def _table_on(device: torch.device, name: str) -> Tensor:
    return torch.tensor(table(name), device=device)
