"""The samples of a picture as its file stores them, where they are not 8-bit grey or RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Samples:
    """The samples of a picture or a volume, with the numbers and the type of the file.

    No dataclass; see `fmapviz.core.bands.Bands`, which holds what becomes of them.

    Attributes:
        values: `(C, H, W)`, or `(C, D, H, W)` of a volume; real numbers. C is the number of channels that the network takes,
            or 1 where grey is repeated.
        black: The number that becomes 0.
        white: The number that becomes 1; smaller than `black` where zero is white.
        nodata: The number of pixels without a value, which become 0; None if there is none.
        channels: Number of channels that the network takes.
        is_picture: Whether the file is a picture, not an array.
    """

    __slots__ = ("black", "channels", "is_picture", "nodata", "values", "white")

    def __init__(
        self,
        values: NDArray[Any],  # of any type of real numbers
        black: float,
        white: float,
        *,
        nodata: float | None = None,
        channels: int = 3,
        is_picture: bool = False,
    ) -> None:
        self.values = values
        self.black = black
        self.white = white
        self.nodata = nodata
        self.channels = channels
        self.is_picture = is_picture

    @property
    def width(self) -> int:
        """Pixels."""
        return int(self.values.shape[-1])

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.values.shape[-2])

    @property
    def mode(self) -> str:
        """The mode of the Pillow picture that a preprocessing of the user gets; empty if it gets a tensor."""
        if not self.is_picture or len(self.values) > 1 or self.values.ndim > 3:
            return ""
        modes = {"u1": "L", "u2": "I;16", "i1": "I", "i2": "I", "i4": "I", "f2": "F", "f4": "F"}
        return modes.get(self.values.dtype.str[1:], "")
