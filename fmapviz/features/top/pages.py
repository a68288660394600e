"""Compose the pages of a layer: rows of tiles, 32 channels each."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.version import __version__
from fmapviz.core.words import counted
from fmapviz.data import LayerResult, Picture
from fmapviz.draw.facts import number, shape_of
from fmapviz.draw.png import encode
from fmapviz.errors import printable
from fmapviz.features.top.strips import ChannelStrip, Values, draw_strips
from fmapviz.formats.html.page import link
from fmapviz.store.aggregates.ranking import bin_edges, values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fmapviz.config import RunInfo
    from fmapviz.features.top.options import TopOptions
    from fmapviz.features.top.second_pass import SecondPass, Shown, Slot
    from fmapviz.features.top.tiles import TileFile
    from fmapviz.observe.receptive_field import ReceptiveField
    from fmapviz.store.aggregates.channels import FeatureMapInfo
    from fmapviz.store.aggregates.ranking import Ranking

CHANNELS = 32  # on a page
GROUP = "top"  # of the pictures
_FEW = 20  # images; above, a share is more useful than their number
_WORDS = {"max": "largest value", "mean": "largest mean", "min": "smallest value"}


class Pages:
    """Draws the pages of a run's layers.

    Args:
        info: The run's settings.
        ranking: The ranking of its images.
        options: Options of the ranking and pages.
        second: The second pass over the ranked images.
        shown: Content of each tile.
        tiles: The tiles.
    """

    def __init__(
        self,
        info: RunInfo,
        ranking: Ranking,
        *,
        options: TopOptions,
        second: SecondPass,
        shown: Mapping[Slot, Shown],
        tiles: TileFile,
    ) -> None:
        self._info = info
        self._ranking = ranking
        self._options = options
        self._second = second
        self._shown = shown
        self._tiles = tiles
        self._scores, self._constant, self._edges = ranking.scores, ranking.constant, bin_edges()
        self._digits = max(2, len(str(max((each.index or 0 for each in ranking.maps), default=0))))

    def of(self, info: FeatureMapInfo, first: int) -> Iterator[Picture]:
        """Yield the pages of a feature map whose channels begin at a row of the ranking."""
        index, known = info.index or 0, self._second.layers.get(info.layer)
        layer = replace(known, index=index) if known else LayerResult(info.layer, info.type, 1, index, (info.channels,))
        shown = _shown_channels(info, self._options.channels)
        for page, begin in enumerate(range(0, len(shown), CHANNELS)):
            channels = shown[begin : begin + CHANNELS]
            strips = [self._strip(info, first, channel) for channel in channels]
            facts = self._facts(info, layer, channels)
            pixels, tiles = draw_strips(
                strips,
                columns=max([1, *(len(strip.cells) for strip in strips)]),  # a run may have fewer images than requested
                side=self._tiles.side,
                title=f"{info.layer}  {info.type}  {shape_of(layer)}",
                note=f"{facts['Shows'].capitalize()}. Receptive field: {facts['Receptive field']}. {self._info.label}",
            )
            name = f"{info.index or 0:0{self._digits}d} {info.layer}"
            images = [[*self._images(info, channel)] for channel in channels]
            strips_data = {"channels": channels, "images": images, "remarks": [strip.remark for strip in strips]}
            yield Picture(
                GROUP,
                name,
                encode(pixels, facts),
                pixels.shape[1],
                pixels.shape[0],
                facts,
                layer=layer,
                tiles=tiles,
                page=page,
                report={"strips": strips_data},
            )

    def _strip(self, info: FeatureMapInfo, first: int, channel: int) -> ChannelStrip:
        row, ranking, descending = first + channel, self._ranking, self._options.by != "min"
        cells = []
        for rank in range(ranking.k):
            if (shown := self._shown.get((info, channel, rank))) is None:
                continue
            drawn = shown.position is not None
            tile = self._tiles.read(self._second.number(info, channel, rank)) if drawn else shown.note
            times = f" x{shown.copies}" if shown.copies > 1 else ""
            off = shown.note.removeprefix("differs by ").removesuffix(" when drawn again")
            cells.append((tile, f"{number(shown.value)}{f', {off} off' if drawn and off else ''}{times}", shown.image))
        values = None
        if ranking.images[row]:
            best, worst, last = (
                float(values_of(score, ranking.by))
                for score in (ranking.scores[row, 0], ranking.worst[row], np.nanmin(ranking.scores[row]))
            )
            low, high = sorted((best, worst))
            values = Values(ranking.counts[row], self._edges, low, high, last, descending=descending)
        return ChannelStrip(f"channel {channel}", self._remark(row, len(cells)), cells, values)

    def _remark(self, row: int, shown: int) -> str:
        images, excluded = int(self._ranking.images[row]), int(self._ranking.excluded[row])
        if not images:
            return f"no finite value in {counted(excluded, 'image')}"
        without = f", {excluded} without a finite value" if excluded else ""
        if self._constant[row]:
            return f"constant in {counted(images, 'image')}{without}"
        share = f": the top {100 * shown / images:.2g} %" if images > _FEW else ""
        return f"{shown} of {images}{share}{without}"

    def _images(self, info: FeatureMapInfo, channel: int) -> Iterator[dict[str, Any]]:
        """Yield the report's data of each image: address, name, ranked value and receptive field."""
        for rank in range(self._ranking.k):
            if shown := self._shown.get((info, channel, rank)):
                yield {
                    "href": link(PurePath(shown.image)) + "/",
                    "name": printable(shown.image),
                    "value": shown.value,
                    "box": shown.position.visible if shown.position else None,
                    **({"note": printable(shown.note)} if shown.note else {}),
                }

    def _facts(self, info: FeatureMapInfo, layer: LayerResult, channels: Sequence[int]) -> dict[str, str]:
        cut = self._second.at_border[info]
        field = self._second.field_of(info.layer)
        is_part = field is not None and not field.is_whole
        share = f", {cut[True] / cut.total():.0%} of them at the border of the picture" if cut and is_part else ""
        contour = ", without a contour: one of several samples" if layer.samples > 1 else ""
        return {
            "Layer": info.layer,
            "Type": info.type,
            "Shape": shape_of(layer),
            "Channels": ", ".join(map(str, channels)) if self._options.channels else f"{channels[0]} to {channels[-1]}",
            "Shows": f"the images with the {_WORDS[self._options.by]} of each channel{share.replace('%', ' %')}",
            "Receptive field": describe_field(field) + contour,
            "Model": self._info.label,
            "Weights": self._info.weights,
            "Software": f"fmapviz {__version__}",
        }


def count_pages(maps: Iterable[FeatureMapInfo], channels: Sequence[int]) -> int:
    """Return the number of pages of feature maps.

    Args:
        maps: The feature maps.
        channels: The chosen channels; none means all.
    """
    return sum(ceil(len(_shown_channels(info, channels)) / CHANNELS) for info in maps)


def _shown_channels(info: FeatureMapInfo, channels: Sequence[int]) -> list[int]:
    return [channel for channel in channels or range(info.channels) if channel < info.channels]


def describe_field(field: ReceptiveField | None) -> str:
    """Return in words how large the receptive field of a layer's units is."""
    if field is None:
        return "not known, the whole picture is drawn"
    if field.is_whole:
        return "the whole picture"
    height, width = field.size
    gated = ", without the gates" if field.ungated else ""
    return f"{height} x {width} pixels{gated}"
