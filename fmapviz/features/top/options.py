"""Options of the ranking of images and of its pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from fmapviz.config import check_type
from fmapviz.config.checks import check_number, check_word
from fmapviz.store.aggregates.ranking import BYS, By

if TYPE_CHECKING:
    from collections.abc import Mapping

Crop = Literal["auto", "field", "whole"]
LARGEST = 0.6  # share of the picture up to which `auto` shows the field alone
MOST = 100  # images per channel


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """Which images are shown of each channel, and which part of them.

    Attributes:
        k: Number of images per channel, 1 to 100.
        by: Value of the ranking: a channel's largest value in an image, its mean, or its smallest value, smallest first.
        crop: The part that is shown: the receptive field of the unit; the whole picture; or with `auto` the field if it is
            smaller than 60 % of the picture in both axes.
        channels: Numbers of the channels that are shown; empty: all.
        inside: Whether only those positions count whose receptive field lies within the picture.

    Raises:
        RequestError: A value is out of range.
    """

    k: int = 9
    by: By = "max"
    crop: Crop = "auto"
    channels: tuple[int, ...] = ()
    inside: bool = False

    def __post_init__(self) -> None:
        check_type("k", self.k, int, hint="number of images per channel")
        check_number("k", self.k, f"1 to {MOST} images", most=MOST, hint="nine is the default")
        check_word("by", check_type("by", self.by, str, hint=f"one of {', '.join(BYS)}"), BYS)
        check_word("crop", check_type("crop", self.crop, str, hint="auto, field or whole"), get_args(Crop))
        check_type("inside", self.inside, bool, hint="True or False")

    @property
    def record(self) -> dict[str, Any]:
        """The form in `unit.json`."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> TopOptions:
        """Return the options of a record; the default ones if it holds others than this version knows."""
        try:
            return cls(**{name: record[name] for name in cls.__slots__} | {"channels": tuple(record["channels"])})
        except (KeyError, TypeError, ValueError):
            return cls()
