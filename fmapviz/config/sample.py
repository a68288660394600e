"""Parse the size of a sample of images: `1%`, `20` or `all`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from fmapviz.errors import RequestError, quote


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The size of a sample.

    Attributes:
        share: Share of all images, 0 to 1; 0: `number` counts.
        number: Number of images.
    """

    share: Fraction = Fraction()
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> SampleSize:
        """Parse a percentage, a number of images, or `all`.

        Raises:
            RequestError: The text has another form, or no image would be drawn.

        Example:
            >>> [SampleSize.parse(text).of(250) for text in ("1%", "0.1%", "20", "1000", "all")]
            [3, 1, 20, 250, 250]
        """
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", text.strip())
        size = cls(Fraction(1)) if text.strip() == "all" else cls()
        if match and match[2]:
            size = cls(Fraction(match[1]) / 100)
        elif match and match[1].isdecimal():
            size = cls(number=int(match[1]))
        if not 0 < size.share <= 1 and not size.number:
            raise RequestError(f"no such sample: {quote(text)}", hint="such as 1%, 20 (images) or all")
        return size

    def of(self, images: int) -> int:
        """Return the number of images of a sample, at least one if there is any."""
        return min(images, self.number or ceil(images * self.share))
