"""How a grid looks and how a picture is prepared: what a user may wish, checked when it is said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import isfinite
from typing import Literal, cast

from fmapviz.errors import RequestError, quote, suggest

Fit = Literal["crop", "squash", "pad", "none"]

COLORMAPS = ("gray", "viridis", "magma", "turbo", "coolwarm", "jet")

_PARTS = "such as 1/4, 2/4, 3/4 and 4/4"
_LARGEST = 3.4028234663852886e38  # what float32 holds


@dataclass(frozen=True, slots=True)
class Style:
    """How a grid looks.

    Attributes:
        norm: What is stretched to black..white, or over the colour map: `channel` (each alone, as
            `make_grid(scale_each=True)` does), `layer` (all channels of a layer together), `signed` (each alone, zero in
            the middle), `run` (all channels of a layer together, over all images of a run) or `fixed:LO,HI` (the same two
            values everywhere).
        columns: Tiles per row; None is the integer square root of the channel count.
        padding: Pixels between tiles.
        channels: `all`, a list such as `0,3,8-15`, or `top:K`, the K channels of each image with the largest maximum;
            `top:K:mean` and `top:K:std` rank by the mean and by the standard deviation.
        scale: Each value becomes a square of so many pixels.
        colormap: One of `COLORMAPS`; None is grey for grids, `coolwarm` for `signed` ones and `turbo` for heat maps.
        alpha: How much of a heat map covers the picture under it, 0..1.
        labels: Whether each tile bears its channel's number and the grid a header; None: the numbers only, where they are
            not known beforehand, with `top:K`.
        colorbar: Whether a bar beside the picture tells which values the colours stand for.
        pca: Whose principal components the view `pca` shows: of each `image`, or those `shared` by all images of a run.

    Raises:
        RequestError: A field does not have one of these forms.

    Example:
        >>> Style(norm="fixed:-1,1").limits
        (-1.0, 1.0)
        >>> Style(channels="0,3,8-10").listed
        (0, 3, 8, 9, 10)
    """

    norm: str = "channel"
    columns: int | None = None
    padding: int = 2
    channels: str = "all"
    scale: int = 1
    colormap: str | None = None
    alpha: float = 0.5
    labels: bool | None = None
    colorbar: bool = False
    pca: str = "image"

    def __post_init__(self) -> None:
        if self.norm not in {"channel", "layer", "signed", "run"} and self.limits is None:
            forms = "one of channel, layer, signed, run, fixed:LO,HI (LO below HI)"
            raise RequestError(f"no such norm: {quote(self.norm)}", hint=forms)
        if self.columns is not None and self.columns < 1:
            raise RequestError(f"columns must be at least 1: '{self.columns}'")
        if not 0 <= self.padding <= 1000:
            raise RequestError(f"padding must be 0 to 1000 pixels: '{self.padding}'")
        if not 1 <= self.scale <= 64:
            raise RequestError(f"scale must be a whole number from 1 to 64: '{self.scale}'")
        if self.channels != "all" and self.top is None and self.listed is None:
            forms = "one of all, 0,3,8-15, top:16, top:16:mean, top:16:std"
            raise RequestError(f"no such channels: {quote(self.channels)}", hint=forms)
        if not 0 <= self.alpha <= 1:
            raise RequestError(f"alpha must be 0 to 1: '{self.alpha}'")
        if self.pca not in {"image", "shared"}:
            raise RequestError(f"no such pca: {quote(self.pca)}", hint="one of image, shared")
        # Equal styles have to be equal as JSON too, by which the settings of two runs are compared.
        object.__setattr__(self, "alpha", float(self.alpha))
        if self.colormap is not None:
            object.__setattr__(self, "colormap", canonical_colormap(self.colormap))

    @property
    def palette(self) -> str | None:
        """The colour map that grids are drawn with; None if they are grey.

        Example:
            >>> Style().palette, Style(norm="signed").palette, Style(norm="signed", colormap="grey").palette
            (None, 'coolwarm', None)
        """
        if self.colormap is None:
            return "coolwarm" if self.norm == "signed" else None
        return None if self.colormap == "gray" else self.colormap

    @property
    def limits(self) -> tuple[float, float] | None:
        """The two values of `fixed:LO,HI`, else None."""
        return _parse_limits(self.norm)

    @property
    def top(self) -> int | None:
        """The K of `top:K`, else None."""
        return _parse_top(self.channels)[0]

    @property
    def rank(self) -> str:
        """What the channels of `top:K` are ranked by: `max`, `mean` or `std`.

        Example:
            >>> Style(channels="top:16").rank, Style(channels="top:16:std").rank
            ('max', 'std')
        """
        return _parse_top(self.channels)[1]

    @property
    def listed(self) -> tuple[int, ...] | None:
        """The channel numbers of a list such as `0,3,8-15`, in the order given and each once, else None."""
        return _parse_listed(self.channels)


@dataclass(frozen=True, slots=True)
class InputOptions:
    """What the user wants otherwise than the weights' own preparation has it; None leaves it as it is.

    Attributes:
        size: Height and width in pixels.
        fit: How a picture of another shape comes to that size: `crop` (cover it, cut the overhang), `squash` (ignore the
            proportions), `pad` (fit inside it, black around), `none` (keep every picture as it is).
        mean: Subtracted, on a 0..1 scale: a number for each channel or one for all.
        std: Divided by, on a 0..1 scale, in the same form.

    Raises:
        RequestError: A value that makes no sense.
    """

    size: tuple[int, int] | None = None
    fit: Fit | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.fit not in {None, "crop", "squash", "pad", "none"}:
            raise RequestError(f"no such fit: {quote(self.fit)}", hint="one of crop, squash, pad, none")
        if self.size and not all(1 <= side <= 16384 for side in self.size):
            raise RequestError(f"size must be 1 to 16384 pixels: '{self.size[0]}x{self.size[1]}'")
        if self.size and self.fit == "none":
            raise RequestError("--fit none keeps every picture as it is", hint="leave out --size, or choose another fit")
        for option, numbers in (("mean", self.mean), ("std", self.std)):
            if numbers is not None and not numbers:
                raise RequestError(f"{option} must be one or more numbers: ''", hint="such as 0.485,0.456,0.406")
        if self.std and not all(deviation > 0 for deviation in self.std):
            raise RequestError(f"std must be above 0: '{','.join(map(str, self.std))}'")

    @classmethod
    def parse(cls, *, size: str | None, fit: str | None, mean: str | None, std: str | None) -> InputOptions:
        """Read the options as they are typed.

        Raises:
            RequestError: One does not have the form it should.

        Example:
            >>> InputOptions.parse(size="240x320", fit="pad", mean="0.5", std=None)
            InputOptions(size=(240, 320), fit='pad', mean=(0.5,), std=None)
        """
        return cls(_parse_size(size), cast(Fit | None, fit), _parse_numbers("mean", mean), _parse_numbers("std", std))


@dataclass(frozen=True, slots=True)
class Part:
    """One of several commands that share the work.

    Attributes:
        number: Which one, from 1.
        count: How many there are.

    Raises:
        RequestError: There is no such part.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise RequestError(f"no such part: '{self.number}/{self.count}'", hint=_PARTS)

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read a part as it is typed.

        Raises:
            RequestError: It does not have the form it should.

        Example:
            >>> Part.parse("2/8")
            Part(number=2, count=8)
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if not match:
            raise RequestError(f"no part: {quote(text)}", hint=_PARTS)
        return cls(int(match[1]), int(match[2]))

    def has(self, index: int) -> bool:
        """Tell whether what has this number, from 0, belongs to it.

        Example:
            >>> [index for index in range(8) if Part(2, 3).has(index)]
            [1, 4, 7]
        """
        return index % self.count == self.number - 1


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the work is done, if not by this process.

    Attributes:
        address: Of a Ray cluster, `auto` or `HOST:PORT`; None: a Ray of one's own on this machine.
        workers: How many processes; None: as many as there is room for.
        cpus: Cores of each, which is so many images in work at once.
        gpus: GPUs of each, also a part of one.

    Raises:
        RequestError: A number that makes no sense.
    """

    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise RequestError(f"worker CPUs must be at least 1: '{self.cpus}'")
        if not 0 <= self.gpus < 1024:
            raise RequestError(f"worker GPUs must be 0 or more: '{self.gpus:g}'")
        if self.gpus > 1 and self.gpus % 1:
            raise RequestError(f"worker GPUs must be a part of one or whole ones: '{self.gpus:g}'", hint="such as 0.5, 1, 2")

    @classmethod
    def parse(cls, text: str, *, workers: int | None = None, cpus: int = 1, gpus: float = 0.0) -> Engine:
        """Read an engine as it is typed.

        Raises:
            RequestError: There is none of that name, or its extra is not installed.

        Example:
            >>> Engine.parse("ray:10.0.0.1:6379").address
            '10.0.0.1:6379'
        """
        name, colon, address = text.partition(":")
        if name != "ray" or (colon and not address):
            raise RequestError(f"no such engine: {quote(text)}", hint="ray, ray:auto, ray:HOST:PORT")
        if find_spec("ray") is None:
            raise RequestError("the engine 'ray' needs one more package, ray", hint="pip install 'fmapviz[ray]'")
        return cls(address or None, workers, cpus, gpus)


def canonical_colormap(name: str) -> str:
    """Give a colour map's one name of `COLORMAPS`; `grey` is `gray`.

    Raises:
        RequestError: There is none of that name.

    Example:
        >>> canonical_colormap("grey")
        'gray'
    """
    if name == "grey":
        return "gray"
    if name not in COLORMAPS:
        hint = suggest(name, COLORMAPS) or f"one of {', '.join(COLORMAPS)}"
        raise RequestError(f"no such colormap: {quote(name)}", hint=hint)
    return name


@cache  # these three are asked at every layer of every image
def _parse_limits(norm: str) -> tuple[float, float] | None:
    number = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    match = re.fullmatch(rf"fixed:{number},{number}", norm)
    if not match or not -_LARGEST <= float(match[1]) < float(match[2]) <= _LARGEST:
        return None
    return float(match[1]), float(match[2])


@cache
def _parse_top(channels: str) -> tuple[int | None, str]:
    match = re.fullmatch(r"top:([1-9]\d{0,5})(?::(max|mean|std))?", channels)
    return (int(match[1]), match[2] or "max") if match else (None, "max")


@cache
def _parse_listed(channels: str) -> tuple[int, ...] | None:
    chosen: dict[int, None] = {}
    for part in channels.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            return None
        chosen |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(chosen)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})(?:[xX](\d{1,6}))?", text)
    if not match:
        raise RequestError(f"no such size: {quote(text)}", hint="a number of pixels, or HEIGHTxWIDTH such as 240x320")
    return int(match[1]), int(match[2] or match[1])


def _parse_numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(isfinite(number) for number in numbers):
        raise RequestError(f"{option} is not a list of numbers: {quote(text)}", hint="such as 0.485,0.456,0.406")
    return numbers
