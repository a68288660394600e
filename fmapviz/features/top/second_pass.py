"""The images that a ranking names, forwarded once more to find where in each of them the values are."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.files import writing_to
from fmapviz.core.placement import Placement
from fmapviz.core.urls import is_url
from fmapviz.events import Notice
from fmapviz.features.top.locate import Position, fitting, locate, measured
from fmapviz.features.top.tiles import draw_tile
from fmapviz.images.find import look_again
from fmapviz.images.memory.image import is_in_memory, memory_image
from fmapviz.images.placement import find_placement
from fmapviz.images.seen import Seen
from fmapviz.observe.early_stop import EarlyStop
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.work import work
from fmapviz.run.places import FieldCache
from fmapviz.store.shards.grouping import Failed
from fmapviz.store.shards.shard import find_shards
from fmapviz.store.unit import images_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.data import Failure, ImageFile, LayerResult
    from fmapviz.events import Event
    from fmapviz.features.top.options import TopOptions
    from fmapviz.features.top.tiles import TileFile
    from fmapviz.observe.receptive_field import ReceptiveField
    from fmapviz.run.pipeline.scheduler import Preprocessed, Result
    from fmapviz.run.session import Session
    from fmapviz.store.aggregates.channels import FeatureMapInfo
    from fmapviz.store.aggregates.ranking import Ranking

    Slot = tuple[FeatureMapInfo, int, int]  # feature map, channel, rank
    Box = tuple[int, int, int, int]


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
    in_shards: dict[str, ImageFile] = {}
    if any("\0" in name for name in ranking.names):
        in_shards = {file.path: file for shard in find_shards(run) for file in images_of(read_unit(shard))}
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
    """Return why a file differs from the one that a run has drawn; empty if it does not, or is not local."""
    if is_in_memory(file.path):
        return "" if memory_image(file) else "it was given in memory, and is no longer there"
    if is_url(file.path):
        return ""
    now = look_again(file)
    if now is None:
        return "the file is gone"
    return "" if now.version == file.version else "the file has changed"


_UNCHANGED = Placement(scale=(1.0, 1.0), offset=(0.0, 0.0))  # of a prepared tensor, which is its own picture
_TOLERANCE = 1e-3  # relative, where the first pass may have rounded in another way: on a GPU, and in batches


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """The content of a tile.

    Attributes:
        image: Name of the image in the run.
        copies: Number of images of the run with the same prepared input.
        value: The ranked value.
        position: Its position; None if the image could not be drawn again.
        in_file: The receptive field in the pixels of the file, left, top, right and bottom; None if the preprocessing is not
            known to be a scale and an offset.
        note: A remark on an error; empty without one.
        frame: Of a clip or a volume, which frame or slice it is cut out of, in words.
    """

    image: str
    copies: int
    value: float
    position: Position | None = None
    in_file: Box | None = None
    note: str = ""
    frame: str = ""


class SecondPass:
    """Draws the tiles of images that are forwarded again; `note` may be called by several threads at once.

    Args:
        session: What is drawn, before hooks are attached to its model.
        ranking: The ranking of the images.
        winners: The ranked images.
        options: Which part of them is shown.
        tiles: Receives the tiles, each under its `number`.

    Attributes:
        shown: Content of each tile, by feature map, channel and rank.
        layers: A result of each feature map, by its name, of the first image in which it was drawn.
        failed: Why images could not be drawn again, by their path.
        difference: The largest relative difference of a value from the ranked one.
        at_border: By feature map, how many units see beyond the border of the picture, and how many do not.
    """

    def __init__(
        self, session: Session, ranking: Ranking, winners: Sequence[Winner], options: TopOptions, tiles: TileFile
    ) -> None:
        self.shown: dict[Slot, Shown] = {}
        self.layers: dict[str, LayerResult] = {}
        self.failed: dict[str, Failure] = {}
        self.difference = 0.0
        self.at_border: dict[FeatureMapInfo, Counter[bool]] = defaultdict(Counter)
        self._session = session
        self._winners = {winner.file.path: (number, winner) for number, winner in enumerate(winners) if winner.file}
        self._first: dict[str, int] = {}  # images by the names of feature maps
        self._shapes: dict[int, tuple[int, ...]] = {}  # of inputs, by image
        self._options = options
        self._tiles = tiles
        self._k = ranking.k
        self._values = ranking.values
        self._rows = {info: own.start for info, own in ranking.slices()}
        alone = session.device.type == "cpu" and session.config.batch_size in {None, 1}
        self._allowed = 0.0 if alone else _TOLERANCE
        self._lock = Lock()
        self._fields = FieldCache(session.model, [layer.name for layer in session.layers])
        self._placements: dict[tuple[int, int], Placement | None] = {}

    def number(self, info: FeatureMapInfo, channel: int, rank: int) -> int:
        """Return the number of a tile."""
        number: int = (self._rows[info] + channel) * self._k + rank
        return number

    def field_of(self, name: str) -> ReceptiveField | None:
        """Return the receptive field of a feature map as it is shown in the first image; None if it is not known."""
        return self._fields.shown(name, self._shapes[self._first[name]]) if name in self._first else None

    def note(self, result: Result) -> None:
        """Draw the tiles of an image."""
        if isinstance(result, Failed):
            self.failed[result.failure.path] = result.failure
            return
        image = result.image
        number, winner = self._winners[image.member.file.path]
        placement = _UNCHANGED if image.as_given else self._place(image.size)
        preparation = self._session.preparation_of(image.values, as_given=image.as_given)
        view = _View(Seen(image.values, preparation), image, placement)
        shape = tuple(image.values.shape)
        layers = {layer.layer: layer for layer in result.drawn.layers if layer.of == "output"}
        with self._lock:
            self._shapes[number] = shape
            for name, drawn in layers.items():
                if number <= self._first.get(name, number):
                    self._first[name], self.layers[name] = number, replace(drawn, maps=None, measures=None)
        for info, slots in winner.channels.items():
            layer = layers.get(info.layer)
            if layer is None or layer.measures is None or len(layer.measures.low) != info.channels:
                continue
            field = fitting(self._fields.shown(info.layer, shape), layer)
            for channel, rank in slots:
                self._show(winner, (info, channel, rank), layer, field, view)

    def _show(self, winner: Winner, slot: Slot, layer: LayerResult, field: ReceptiveField | None, view: _View) -> None:
        info, channel, rank = slot
        options, expected = self._options, self._values[self._rows[info] + channel, rank]
        found = measured(layer, options, field, channel)
        difference = float(abs(found - expected) / max(abs(expected), abs(found), np.float32(1e-30)))
        values, position = locate(layer, options, field, channel, picture=view.picture)
        seen = view.seen.at(layer.frame)
        tile = draw_tile(seen, values, field, position, options, centres=layer.centres, side=self._tiles.side)
        with writing_to(self._session.directory):
            self._tiles.write(self.number(*slot), tile)
        note = "" if difference <= self._allowed else f"differs by {100 * difference:.2g} % when drawn again"
        with self._lock:
            self.difference = max(self.difference, difference)
            self.at_border[info][view.is_cut(position)] += 1
            in_file, frame = view.in_file(position), view.seen.describe(layer.frame)
            self.shown[slot] = Shown(winner.name, winner.copies, float(expected), position, in_file, note, frame)

    def _place(self, size: tuple[int, int]) -> Placement | None:
        """Return where the input lies in pictures of this size."""
        if size not in self._placements:  # two threads may both find it out
            self._placements[size] = find_placement(self._session.model.preparation, size)
        return self._placements[size]


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """A prepared picture, and where it is from."""

    seen: Seen
    image: Preprocessed
    placement: Placement | None

    @property
    def picture(self) -> tuple[int, int]:
        return self.seen.size

    def in_file(self, position: Position) -> Box | None:
        """Return the receptive field in the pixels of the file."""
        if self.placement is None:
            return None
        return self.placement.to_file(position.visible, orientation=self.image.orientation, size=self.image.size)

    def is_cut(self, position: Position) -> bool:
        """Return True if the field extends beyond the border of the picture, but does not cover all of it."""
        left, top, right, bottom = box = position.box
        if position.visible == (0, 0, self.picture[1], self.picture[0]):
            return False
        if self.placement is None:
            return box != position.visible
        ends = [
            sorted((edge - offset) / scale for edge in (0, side))
            for side, scale, offset in zip(self.image.size, self.placement.scale, self.placement.offset, strict=True)
        ]
        within = (
            ends[0][0] - 0.5 <= left and right <= ends[0][1] + 0.5 and ends[1][0] - 0.5 <= top and bottom <= ends[1][1] + 0.5
        )
        return box != position.visible or not within


def forward_again(
    session: Session, files: Iterable[ImageFile], note: Callable[[Result], None], on_event: Callable[[Event], None]
) -> None:
    """Forward images one by one, with all values of the chosen layers; nothing is written.

    Raises:
        OutputError: The output could not be written.
    """
    plan = replace(session.plan.without_pictures(), of_model={}, sheets={}, kept=None, moments=True, whole=True)
    plan = replace(plan, draws={"output": dict.fromkeys(session.config.views)}, observations=())
    config = replace(session.config, predictions=0)  # the output is not needed
    alone = replace(
        session,
        plan=plan,
        info=replace(session.info, config=config),
        batch_size=1,
        early_stop=EarlyStop(),
    )
    with closing(work(alone, files, progress=Progress(), on_drawn=note)) as events:
        for event in events:
            if isinstance(event, Notice):
                on_event(event)
