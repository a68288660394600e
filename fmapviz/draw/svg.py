"""Write a page as SVG: its pixels in PNG files within it, unchanged, its texts and lines as elements that can be edited."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.draw.layout import Background, element, flatten
from fmapviz.draw.png import encode
from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fmapviz.draw.layout import Box

_FONTS = "Aileron, Helvetica, Arial, sans-serif"  # the first is Pillow's, in which pages are laid out


def to_svg(box: Box, background: int | Background, *, title: str, facts: Mapping[str, str]) -> str:
    """Return a page as an SVG file.

    Args:
        box: The page.
        background: As in `fmapviz.draw.layout.draw`.
        title: Its title.
        facts: Its description, by keyword.

    Example:
        >>> from fmapviz.draw.layout import picture
        >>> to_svg(picture(np.zeros((2, 3), np.uint8)), Background(), title="a < b", facts={})[:60]
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://'
    """
    on = background if isinstance(background, Background) else Background((background, background, background))
    described = "\n".join(f"{key}: {value}" for key, value in facts.items())
    lines = [element("title", _text(title)), element("desc", _text(described))]
    if on.opaque:
        lines.append(element("rect", width=box.width, height=box.height, fill=_colour(*on.colour)))
    for part, left, top in flatten(box):
        if isinstance(part, np.ndarray):
            lines.append(_embed(part, left, top))
        else:
            ink = part.level if isinstance(background, int) else on.ink(part.level)
            lines.append(part.to_svg(left, top, _colour(ink, ink, ink)))
    names = {"xmlns": "http://www.w3.org/2000/svg", "xmlns:xlink": "http://www.w3.org/1999/xlink"}
    size = {"width": box.width, "height": box.height, "viewBox": f"0 0 {box.width} {box.height}"}
    return element("svg", "\n".join(("", *lines, "")), **names, **size, font_family=_FONTS) + "\n"


def _embed(pixels: NDArray[np.uint8], left: int, top: int) -> str:
    """Return the element of a picture, whose pixels stay sharp when it is enlarged."""
    # Older programs know the name of the attribute of SVG 1.1 only, and newer ones still do.
    address = {"xlink:href": f"data:image/png;base64,{b64encode(encode(pixels)).decode()}"}
    size = {"x": left, "y": top, "width": pixels.shape[1], "height": pixels.shape[0]}
    return element("image", **size, style="image-rendering:pixelated", **address)


def _text(text: str) -> str:
    return escape("\n".join(map(printable, text.split("\n"))), quote=False)


def _colour(red: int, green: int, blue: int) -> str:
    return f"#{red:02x}{green:02x}{blue:02x}"
