"""How inputs are preprocessed: the options that replace the preprocessing of the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Literal, cast, get_args

from fmapviz.config.arguments import explain_arguments
from fmapviz.config.checks import check_types, check_word
from fmapviz.config.options import COMMON, INPUT, changed_fields, documented, option
from fmapviz.errors import RequestError, quote

Fit = Literal["crop", "squash", "pad", "none"]

_SIZE = "height and width in pixels, such as size=(240, 320), or one number for both"
_NUMBERS = "one number, or one for each channel: {}=(0.485, 0.456, 0.406)"
_option = partial(option, panel=INPUT)


def _parse_size(text: str) -> int | tuple[int, int]:
    """Parse a size.

    Raises:
        RequestError: The text is neither a number nor HEIGHTxWIDTH.

    Example:
        >>> _parse_size("224"), _parse_size("240x320")
        (224, (240, 320))
    """
    match = re.fullmatch(r"(\d{1,6})(?:[xX](\d{1,6}))?", text)
    if not match:
        raise RequestError(f"no such size: {quote(text)}", hint="a number of pixels, or HEIGHTxWIDTH such as 240x320")
    return (int(match[1]), int(match[2])) if match[2] else int(match[1])


def _parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas.

    Raises:
        RequestError: The text is not a list of finite numbers.
    """
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(isfinite(number) for number in numbers):
        raise RequestError(f"{name} is not a list of numbers: {quote(text)}", hint=_NUMBERS.format(name))
    return numbers


@explain_arguments
@documented
@dataclass(frozen=True, slots=True, repr=False)
class InputOptions:
    """Changes to the preprocessing of the weights; None keeps it.

    Raises:
        RequestError: A value is out of range.
    """

    size: int | tuple[int, int] | None = option(
        None,
        "Input size in pixels, height and width.",
        "One number is a square, and stored as both.",
        panel=COMMON,
        metavar="N|HxW",
        shown="as trained",
        parse=_parse_size,
    )
    fit: Fit | None = _option(
        None,
        "How to fit images of another shape: crop, squash, pad or none.",
        "`crop` covers the size and cuts off the rest, `squash` ignores the aspect ratio, `pad` fits inside with a black "
        "border, `none` keeps the size of each image.",
        metavar="HOW",
        shown="as trained",
        words=get_args(Fit),
        parse=str,
    )
    mean: tuple[float, ...] | None = _option(
        None,
        "Subtracted from values in 0..1; one number, or one for each channel.",
        metavar="N|R,G,B",
        shown="as trained",
        parse=partial(_parse_numbers, "mean"),
    )
    std: tuple[float, ...] | None = _option(
        None,
        "Divisor of values in 0..1; one number, or one for each channel.",
        metavar="N|R,G,B",
        shown="as trained",
        parse=partial(_parse_numbers, "std"),
    )

    channels_in: int | None = _option(
        None,
        "Channels of the input, if they differ from those of the first convolution.",
        "As in a network that repeats grey, or splits four channels into two parts.",
        metavar="N",
        shown="those of the first convolution",
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.channels_in is not None and not 1 <= self.channels_in <= 1024:
            raise RequestError(f"input channels must be 1 to 1024: '{self.channels_in}'", hint="such as 1 or 4")
        check_word("fit", self.fit, get_args(Fit))
        sides = (self.size,) if isinstance(self.size, int) else self.size or ()
        if not all(1 <= side <= 16384 for side in sides):
            raise RequestError(f"size must be 1 to 16384 pixels: '{'x'.join(map(str, sides))}'", hint=_SIZE)
        if isinstance(self.size, int):
            object.__setattr__(self, "size", (self.size, self.size))
        if self.size and self.fit == "none":
            raise RequestError("fit none keeps the size of each image", hint="leave out size=, or choose another fit=")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if numbers is not None and not (numbers and all(map(isfinite, numbers))):
                raise RequestError(f"{name} must be one or more numbers: '{_as_typed(numbers)}'", hint=_NUMBERS.format(name))
            if numbers and max(numbers) > 1:
                divided = ",".join(f"{number / 255:.3g}" for number in numbers)
                raise RequestError(
                    f"{name} must be at most 1: '{_as_typed(numbers)}'",
                    hint=f"pixels are numbers from 0 to 1 here; divided by 255 it is {divided}",
                )
        if self.std and not all(deviation > 0 for deviation in self.std):
            raise RequestError(f"std must be above 0: '{_as_typed(self.std)}'", hint=_NUMBERS.format("std"))

    __repr__ = changed_fields


def _as_typed(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:.12g}" for number in numbers)


def sides_of(preprocessing: InputOptions) -> tuple[int, int] | None:
    """Return the input size as it is stored, height and width; None if it is as trained."""
    return cast("tuple[int, int] | None", preprocessing.size)
