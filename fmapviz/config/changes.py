"""How views change an image that they pass through the network again and again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from fmapviz.config.checks import check_number, check_types, check_word
from fmapviz.config.options import CHOOSE, option, options_of
from fmapviz.core import registry
from fmapviz.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

_MOST = 1_000_000  # passes of an image: hours, even with a small network
Baseline = Literal["mean", "blur", "black"]
Off = Literal["zero", "mean"]
_option = partial(option, panel=CHOOSE)


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How changed copies of an image are made, and how many."""

    patch: int = _option(32, "Side of the patches of occlusion, in pixels of the input.", metavar="N", recorded="patch")
    stride: int | None = _option(
        None,
        "Distance of neighbouring patches of occlusion, at most the patch.",
        metavar="N",
        shown="half the patch",
        recorded="stride",
    )
    baseline: str = _option(
        "mean",
        "What replaces pixels for occlusion, integrated-gradients and rise: mean, blur or black.",
        "`mean` is the colour that the preprocessing subtracts; where it subtracts none, the mean of each channel over the "
        "image. `blur` is the image, blurred. `black` is black after the preprocessing.",
        words=get_args(Baseline),
        recorded="baseline",
    )
    steps: int = _option(32, "Steps of integrated-gradients from the baseline to the image.", metavar="N", recorded="steps")
    samples: int | None = _option(
        None,
        "Number of random samples of smoothgrad, and of random masks of rise.",
        metavar="N",
        shown="32 of smoothgrad, 1000 of rise",
        recorded="samples",
    )
    off: str = _option(
        "zero",
        "What replaces a channel in the view effect: zero, its mean over the image, or its values in other images.",
        "The path of another image: the values of the channel in that image. That of a folder: the mean of the channel over "
        "the folder's images.",
        metavar="zero|mean|PATH",
        words=get_args(Off),
        recorded="off",
    )

    @property
    def distance(self) -> int:
        """The distance of neighbouring patches, in pixels."""
        return max(1, self.patch // 2) if self.stride is None else self.stride


@dataclass(frozen=True, kw_only=True)
class GivenBaseline(Changes):
    """Changes towards given values, which are on no command line and in no record.

    Attributes:
        values: What replaces pixels; prepared as the image, of its shape, or one that is expanded to it.
    """

    values: Tensor


CHANGES = tuple(options_of(Changes))


def changes_of(given: object) -> Changes:
    """Return the changes among the attributes of a configuration.

    Raises:
        RequestError: One is out of range.

    Example:
        >>> changes_of(Changes(stride=8))
        Changes(patch=32, stride=8, baseline='mean', steps=32, samples=None, off='zero')
    """
    changes = Changes(**{name: getattr(given, name) for name in CHANGES})
    check_changes(changes)
    return changes


def unused_changes(views: Iterable[str]) -> dict[str, Any]:
    """Return the options that change nothing that these views draw, with their defaults.

    Example:
        >>> unused_changes(["maps"])["patch"]
        32
    """
    used = {name for view in views for name in registry.view(view).options}
    return {name: getattr(Changes(), name) for name in CHANGES if name not in used}


def check_changes(changes: Changes) -> None:
    """Check types and ranges.

    Raises:
        RequestError: An option has another type, or is out of range.
    """
    check_types(changes)
    for name in ("patch", "stride", "steps", "samples"):
        check_number(name, cast("int | None", getattr(changes, name)))
    for name in ("steps", "samples"):
        check_number(name, cast("int | None", getattr(changes, name)), f"at most {_MOST:,}", most=_MOST)
    check_word("baseline", changes.baseline, get_args(Baseline))
    if not changes.off:
        check_word("off", changes.off, get_args(Off))
    if changes.stride is not None and changes.stride > changes.patch:
        message = f"stride must be at most the patch, {changes.patch}: '{changes.stride}'"
        raise RequestError(message, hint="a larger one leaves pixels that no patch covers")
