"""How pictures look: the options of a style, and the parsers of their values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fmapviz.config.arguments import explain_arguments
from fmapviz.config.checks import check_number, check_types, check_word
from fmapviz.config.options import LOOKS, changed_fields, documented, option
from fmapviz.config.positions import Anchor, parse_anchor, parse_position
from fmapviz.config.renamed import renamed
from fmapviz.core.synonyms import meant_member
from fmapviz.errors import RequestError, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Sequence

COLORMAPS = ("gray", "viridis", "magma", "turbo", "coolwarm", "jet")
NORMS = ("channel", "layer", "run", "signed", "signed-layer", "signed-run")
MOST_CLUSTERS = 20  # as many colours can be distinguished
TEXT_SIZE = 13  # pixels
_GROUNDS = {
    "black": (0, 0, 0), "white": (255, 255, 255), "gray": (128, 128, 128), "grey": (128, 128, 128), "transparent": None,
}  # fmt: skip
_option = partial(option, panel=LOOKS)
_LARGEST = 3.4028234663852886e38  # the largest float32


@renamed(seed="anchor")
@explain_arguments
@documented
@dataclass(frozen=True, slots=True, repr=False)
class Style:
    """How pictures look.

    Raises:
        RequestError: A value has none of its forms.

    Example:
        >>> Style(norm="fixed:-1,1").limits
        (-1.0, 1.0)
        >>> Style(channels="0,3,8-10").listed
        (0, 3, 8, 9, 10)
        >>> Style().palette, Style(norm="signed").palette, Style(norm="signed", colormap="grey").palette
        (None, 'coolwarm', None)
        >>> Style(channels="top:16").rank, Style(channels="top:16:std").rank
        ('max', 'std')
    """

    norm: str = _option(
        "channel",
        "Range from black to white: channel, layer, run; around zero: signed, signed-layer, signed-run; or fixed:LO,HI.",
        "`channel` scales each channel separately, as `make_grid(scale_each=True)` does; `layer` scales all channels of a "
        "layer together, also those that are not drawn; `run` does so over all images of the run. `signed`, `signed-layer` "
        "and `signed-run` do the same with zero in the middle, and the largest magnitude at both ends. `fixed:LO,HI` uses "
        "the same range everywhere.",
        metavar="RANGE",
        words=(*NORMS, "fixed:"),
        of_pair="Range from black to white: channel, layer; around zero: signed, signed-layer; or fixed:LO,HI.",
    )
    columns: int | None = _option(None, "Tiles per row.", metavar="N", shown="square root of their number")
    padding: int = _option(2, "Pixels between tiles.", metavar="N")
    channels: str = _option(
        "all",
        "Channels to draw: all, 0,3,8-15, or top:16, the strongest of each image; top:16:mean, top:16:std rank otherwise.",
        "`top:K` ranks by the maximum, `top:K:mean` by the mean, `top:K:std` by the standard deviation; of two networks "
        "`top:K:change` by the root mean square of what differs.",
        metavar="LIST|top:K",
        of_pair="Channels to draw: all, 0,3,8-15, or top:16:change, those that change most; top:16, top:16:mean, top:16:std "
        "rank otherwise.",
    )
    scale: int = _option(1, "Size of a value, N x N pixels.", metavar="N")
    colormap: str | None = _option(
        None,
        f"Colour map of grids and heat maps: {', '.join(COLORMAPS)}.",
        metavar="NAME",
        shown="gray; turbo for heat maps, coolwarm for the signed norms",
        words=COLORMAPS,
    )
    alpha: float = _option(0.5, "Opacity of a heat map over the input.", metavar="0..1")
    gray_input: bool = _option(True, "Draw the input gray below a heat map, so that all colours are the map's.")
    labels: bool | None = _option(
        None, "Draw channel numbers and a header.", shown="numbers with top:K, the class below a heat map"
    )
    colorbar: bool = _option(False, "Draw a colour bar beside each picture.")
    background: str = _option(
        "black",
        "Colour around tiles and labels: black, white, gray, transparent, another name, #rrggbb.",
        "Texts are light or dark, whichever can be read on it; on a transparent one they are dark.",
        metavar="COLOR",
        words=("black", "white", "gray", "transparent"),
    )
    text_size: int = _option(TEXT_SIZE, "Height of the text in pixels.", metavar="N")
    with_input: bool = _option(False, "Draw the input before each grid and map.")
    pca: str = _option(
        "image", "Principal components of the view pca: of each image, or shared by all images.", words=("image", "shared")
    )
    smooth: bool = _option(
        False,
        "Enlarge maps over the input smoothly; otherwise each value is a rectangle.",
        "The enlargement is bilinear. Raw values are the same.",
    )
    query: str | None = _option(
        None,
        "Query of attention: the patch at row Y and column X of the network's input, or the mean of all patches.",
        metavar="Y,X|mean",
        words=("mean",),
        shown="the class token; without one the mean",
    )
    anchor: str | None = _option(
        None,
        "Anchor of similarity and correspondence: row and column in the input's pixels, an image, or both.",
        "`Y,X` is a position of each image, `IMAGE:Y,X` one of that image for all, `IMAGE` all positions of that image.",
        metavar="[IMAGE:]Y,X|IMAGE",
        shown="none",
    )
    clusters: int = _option(6, "Number of clusters of the view clusters, 2 to 20.", metavar="N")
    foreground: bool = _option(
        False,
        "Draw the principal components of the foreground only, the view pca.",
        "The foreground is one side of the first component: that with fewer positions at the border.",
    )
    # Parsed from the options above.
    background_colour: tuple[int, int, int] | None = field(
        init=False, compare=False
    )  # red, green, blue; None for a transparent one
    palette: str | None = field(init=False, compare=False)  # colour map of grids; None for grey
    scope: str = field(init=False, compare=False)  # values with one range: `channel`, `layer`, `run`, or `fixed`
    signed: bool = field(init=False, compare=False)  # whether zero is in the middle of the range
    limits: tuple[float, float] | None = field(init=False, compare=False)  # LO and HI of `fixed:LO,HI`
    strongest: int | None = field(init=False, compare=False)  # K of `top:K`
    rank: str = field(init=False, compare=False)  # measure that ranks the channels: `max`, `mean`, `std` or `change`
    listed: tuple[int, ...] | None = field(init=False, compare=False)  # channels in the given order, without repetition
    start: Anchor | None = field(init=False, compare=False)  # `anchor`, parsed
    position: tuple[int, int] | None = field(init=False, compare=False)  # row and column of `query`

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "position", parse_position(self.query) if self.query not in {None, "mean"} else None)
        top = re.fullmatch(r"top:([1-9]\d{0,5})(?::(max|mean|std|change))?", self.channels)
        object.__setattr__(self, "limits", _parse_limits(self.norm))
        object.__setattr__(self, "strongest", int(top[1]) if top else None)
        object.__setattr__(self, "rank", (top and top[2]) or "max")
        object.__setattr__(self, "listed", _parse_listed(self.channels))
        object.__setattr__(self, "start", None if self.anchor is None else parse_anchor(self.anchor))
        check_norm(self.norm)
        object.__setattr__(self, "signed", self.norm.startswith("signed"))
        scope = "channel" if self.norm == "signed" else self.norm.removeprefix("signed-")
        object.__setattr__(self, "scope", "fixed" if self.limits else scope)
        check_number("columns", self.columns)
        check_number("padding", self.padding, "0 to 1000 pixels", least=0, most=1000)
        check_number("scale", self.scale, "a whole number from 1 to 64", most=64)
        if self.channels != "all" and self.strongest is None and self.listed is None:
            forms = "one of all, 0,3,8-15, top:16, top:16:mean, top:16:std"
            raise RequestError(f"no such channels: {quote(self.channels)}", hint=forms)
        object.__setattr__(self, "background_colour", _parse_colour(self.background))
        check_number("text size", self.text_size, "6 to 200 pixels", least=6, most=200)
        check_number("alpha", self.alpha, "0 to 1", least=0, most=1)
        check_word("pca", self.pca, ("image", "shared"))
        check_number("clusters", self.clusters, "2 to 20", least=2, most=MOST_CLUSTERS)
        # The settings of two runs are compared as JSON, in which 1 and 1.0 differ.
        object.__setattr__(self, "alpha", float(self.alpha))
        if self.colormap is not None:
            object.__setattr__(self, "colormap", canonical_colormap(self.colormap))
        palette = self.colormap or ("coolwarm" if self.signed else "gray")
        object.__setattr__(self, "palette", None if palette == "gray" else palette)

    __repr__ = changed_fields


def canonical_colormap(name: str) -> str:
    """Return the name of a colour map in `COLORMAPS`; `grey` is `gray`.

    Raises:
        RequestError: No colour map has this name.

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


def _parse_colour(name: str) -> tuple[int, int, int] | None:
    """Return the red, green and blue of a colour; None for a transparent one.

    Raises:
        RequestError: It is no colour.

    Example:
        >>> _parse_colour("White"), _parse_colour("#1a1a2e"), _parse_colour("transparent")
        ((255, 255, 255), (26, 26, 46), None)
    """
    word = name.strip().lower()
    if word in _GROUNDS:
        return _GROUNDS[word]
    from PIL import ImageColor  # noqa: PLC0415  not for the colours above: it takes a moment

    try:
        red, green, blue, *alpha = ImageColor.getrgb(word)
    except ValueError:
        near = suggest(word, [*_GROUNDS, *ImageColor.colormap])
        raise RequestError(
            f"no such background: {quote(name)}", hint=near or f"one of {', '.join(_GROUNDS)}, #rrggbb"
        ) from None
    if alpha and alpha[0] not in {0, 255}:
        raise RequestError(f"background must be opaque or transparent: {quote(name)}", hint="#rrggbb, or transparent")
    return None if alpha == [0] else (red, green, blue)


def check_norm(norm: str, offered: Sequence[str] = NORMS) -> None:
    """Check that a range exists.

    Raises:
        RequestError: It does not; the hint names those that are offered.
    """
    if norm not in NORMS and _parse_limits(norm) is None:
        forms = f"one of {', '.join(offered)}, fixed:LO,HI (LO below HI)"
        raise RequestError(f"no such norm: {quote(norm)}", hint=meant_member("norm", norm, offered) or forms)


def _parse_limits(norm: str) -> tuple[float, float] | None:
    number = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    match = re.fullmatch(rf"fixed:{number},{number}", norm)
    if not match or not -_LARGEST <= float(match[1]) < float(match[2]) <= _LARGEST:
        return None
    return float(match[1]), float(match[2])


def _parse_listed(channels: str) -> tuple[int, ...] | None:
    chosen: dict[int, None] = {}
    for part in channels.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            return None
        chosen |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(chosen)
