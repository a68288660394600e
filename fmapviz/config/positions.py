"""Parse positions in the network's input, `Y,X`, and positions in a certain image, `IMAGE:Y,X`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fmapviz.errors import PositionError, RequestError, quote

_POSITION = r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*"


@dataclass(frozen=True, slots=True)
class Anchor:
    """The position or image with which others are compared.

    Attributes:
        image: Name of an image of the run, as it was typed; empty for each image itself.
        at: Row and column of a pixel of the network's input; None for all positions.
    """

    image: str = ""
    at: tuple[int, int] | None = None

    def is_path(self, path: str) -> bool:
        """Return True if the image was typed with its whole path, or relative to the working directory."""
        return path in {self.image, os.path.abspath(self.image)}  # noqa: PTH100  links are not followed

    def names(self, *names: str) -> bool:
        """Return True if a path of an image, or another name of it, is the typed one or ends in it.

        Example:
            >>> Anchor("b.jpg").names("/photos/b.jpg"), Anchor("b.jpg").names("/photos/ab.jpg")
            (True, False)
        """
        typed = os.path.normpath(self.image).lstrip("/")
        return any(f"/{name}".endswith(f"/{typed}") for name in names)

    def __str__(self) -> str:
        """Return the anchor in words.

        Example:
            >>> str(Anchor("b.jpg", (112, 80))), str(Anchor("b.jpg"))
            ('row 112, column 80 of b.jpg', 'b.jpg')
        """
        if self.at is None:
            return self.image
        return f"row {self.at[0]}, column {self.at[1]}" + (f" of {self.image}" if self.image else "")


def parse_position(text: str) -> tuple[int, int]:
    """Return row and column of a pixel of the network's input, counted from 0 at the top left.

    Raises:
        RequestError: The text is not of the form `Y,X`.

    Example:
        >>> parse_position("112,80")
        (112, 80)
    """
    match = re.fullmatch(_POSITION, text)
    if not match:
        raise RequestError(
            f"no such position: {quote(text)}", hint="Y,X: row and column in the input's pixels, such as 112,80"
        )
    return int(match[1]), int(match[2])


def parse_anchor(text: str) -> Anchor:
    """Parse an anchor: `Y,X`, `IMAGE:Y,X` or `IMAGE`.

    Raises:
        RequestError: The text is empty.

    Example:
        >>> parse_anchor("112,80"), parse_anchor("b.jpg:112,80").image
        (Anchor(image='', at=(112, 80)), 'b.jpg')
    """
    match = re.fullmatch(rf"(?:(.+):)?{_POSITION}", text, re.DOTALL)
    image = (match[1] or "") if match else text
    if not match and not text.strip():
        raise RequestError(
            f"no such anchor: {quote(text)}", hint="Y,X, IMAGE:Y,X or IMAGE, such as 112,80 or photo.jpg:112,80"
        )
    return Anchor(image, (int(match[2]), int(match[3])) if match else None)


def cell_of(at: tuple[int, int], *, picture: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """Return row and column of the position at a pixel of the network's input, for a map that spans the input.

    Args:
        at: Row and column of the pixel.
        picture: Height and width of the input.
        grid: Height and width of the map; `fmapviz.core.centres.Centres.cell` knows maps that do not span the input.

    Raises:
        PositionError: The pixel is outside the picture.

    Example:
        >>> cell_of((112, 80), picture=(224, 224), grid=(14, 14))
        (7, 5)
    """
    if not (at[0] < picture[0] and at[1] < picture[1]):
        raise PositionError(
            f"row {at[0]}, column {at[1]} is outside the picture",
            hint=f"the input is {picture[0]} x {picture[1]} pixels, counted from 0",
        )
    return (2 * at[0] + 1) * grid[0] // (2 * picture[0]), (2 * at[1] + 1) * grid[1] // (2 * picture[1])
