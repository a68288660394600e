"""The images that a ranking names, the files they are, and the channels for which each is ranked."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.types import ImageFile
from fmapviz.runs.unit import image_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from fmapviz.runs.aggregates._channels import FeatureMapInfo
    from fmapviz.runs.aggregates._ranking import Ranking


@dataclass(frozen=True, slots=True, eq=False)
class Winner:
    """A ranked image, and the channels for which it is ranked.

    Attributes:
        name: The image's name in the run.
        file: The file; None if the run has no record of it any more.
        copies: Number of images of the run with the same prepared input.
        channels: For each feature map, its channels and the image's ranks in them.
    """

    name: str
    file: ImageFile | None
    copies: int
    channels: Mapping[FeatureMapInfo, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def find_winners(run: Path, ranking: Ranking, channels: Collection[int] = ()) -> list[Winner]:
    """Return the ranked images of a run, in natural order of their names, without channels that are constant.

    Args:
        run: The run directory.
        ranking: The ranking of its images.
        channels: Numbers of the channels that count; empty: all.
    """
    winners = [_winner(run, name, copies) for name, copies in zip(ranking.names, ranking.copies.tolist(), strict=True)]
    constant = ranking.constant
    for info, own in ranking.slices():
        hidden = constant[own] | (np.isin(np.arange(info.channels), list(channels), invert=True) if channels else False)
        places = np.where(hidden[:, None], np.int32(-1), ranking.places[own])
        for channel, rank in zip(*(each.tolist() for each in np.nonzero(places >= 0)), strict=True):
            winners[places[channel, rank]].channels[info].append((channel, rank))
    return [winner for winner in winners if winner.channels]


def _winner(run: Path, identity: str, copies: int) -> Winner:
    name, _, path = identity.partition("\0")
    if path:  # of a shard, whose record is of many images
        return Winner(name, ImageFile(path, name, 0, 0), copies)
    record = read_unit(run / name)
    return Winner(name, image_of(record) if record else None, copies)
