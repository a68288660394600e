"""The images that a ranking names, the files they are, and the channels for which each is ranked."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.urls import is_url
from fmapviz.images.find import look_again
from fmapviz.images.memory.image import is_in_memory, memory_image
from fmapviz.store.shards.shard import find_shards
from fmapviz.store.unit import images_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from fmapviz.store.aggregates.channels import FeatureMapInfo
    from fmapviz.store.aggregates.ranking import Ranking
    from fmapviz.types import ImageFile


@dataclass(frozen=True, slots=True, eq=False)
class Winner:
    """A ranked image, and the channels for which it is ranked.

    Attributes:
        name: The image's name in the run.
        file: The file; None if the run has no record of it any more.
        lost: Why it cannot be drawn again as it was; empty if it can.
        copies: Number of images of the run with the same prepared input.
        channels: For each feature map, its channels and the image's ranks in them.
    """

    name: str
    file: ImageFile | None
    lost: str
    copies: int
    channels: Mapping[FeatureMapInfo, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def find_winners(run: Path, ranking: Ranking, channels: Collection[int] = ()) -> list[Winner]:
    """Return the ranked images of a run, in natural order of their names, without channels that are constant.

    Args:
        run: The run directory.
        ranking: The ranking of its images.
        channels: Numbers of the channels that count; empty: all.
    """
    in_shards = _files_in_shards(run) if any("\0" in name for name in ranking.names) else {}
    winners = []
    for identity, copies in zip(ranking.names, ranking.copies.tolist(), strict=True):
        name, _, path = identity.partition("\0")
        file = in_shards.get(path) if path else next(iter(images_of(read_unit(run / name))), None)
        winners.append(Winner(name, file, why_lost(file) if file else "the run has no record of it", copies))
    constant = ranking.constant
    for info, own in ranking.slices():
        hidden = constant[own] | (np.isin(np.arange(info.channels), list(channels), invert=True) if channels else False)
        places = np.where(hidden[:, None], np.int32(-1), ranking.places[own])
        for channel, rank in zip(*(each.tolist() for each in np.nonzero(places >= 0)), strict=True):
            winners[places[channel, rank]].channels[info].append((channel, rank))
    return [winner for winner in winners if winner.channels]


def why_lost(file: ImageFile) -> str:
    """Return why a file is not what a run has drawn; empty if it is, or is not a local file."""
    if is_in_memory(file.path):
        return "" if memory_image(file) else "it was given in memory, and is no longer there"
    if is_url(file.path):
        return ""
    now = look_again(file)
    if now is None:
        return "the file is gone"
    return "" if now.version == file.version else "the file has changed"


def _files_in_shards(run: Path) -> dict[str, ImageFile]:
    return {file.path: file for shard in find_shards(run) for file in images_of(read_unit(shard))}
