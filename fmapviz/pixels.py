"""What an input is once it is decoded, and how much it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.errors import InputError, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image as PillowImage

    from fmapviz.values import ImageFile

MAX_PIXELS = 89_478_485  # where Pillow begins to warn: 256 MiB of RGB
MAX_VALUES = 3 * MAX_PIXELS


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """The channels of a picture that is more than 8 bits of grey or RGB.

    Attributes:
        planes: A Pillow image in mode F for each channel, values 0..1, all of one size.
    """

    planes: tuple[PillowImage.Image, ...]

    @property
    def width(self) -> int:
        """Pixels."""
        return self.planes[0].width

    @property
    def height(self) -> int:
        """Pixels."""
        return self.planes[0].height

    def each(self, change: Callable[[PillowImage.Image], PillowImage.Image]) -> Bands:
        """Do the same to every channel."""
        return Bands(tuple(map(change, self.planes)))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A decoded input.

    Attributes:
        pixels: Upright, with as many channels as were asked for: a Pillow image in mode RGB or L, or bands.
        notices: What had to be decided while reading it, for the person to know.
    """

    file: ImageFile
    pixels: PillowImage.Image | Bands
    notices: tuple[str, ...] = ()


def wrong_channels(found: str, path: str, *, channels: int) -> InputError:
    """Say what a network takes that a file does not hold."""
    taken = "1 channel" if channels == 1 else f"{channels} channels"
    message = f"the model takes {taken}, this is {found}: {quote(path)}"
    hint = f"{'a picture, or ' if channels in {1, 3} else ''}a .npy or .tif file with {taken}"
    return InputError("E_CHANNELS", message, hint=hint)
