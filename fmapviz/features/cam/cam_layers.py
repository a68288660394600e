"""Choose the layers for class activation maps if the user names none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.observe.forward_record import ForwardRecord, GraphPoint

ROWS = 6  # of a sheet
_FEW = 4  # resolutions: for a network with fewer, other layers fill a sheet


@dataclass(frozen=True, slots=True)
class Chosen:
    """Layers chosen automatically, by the names of their feature maps.

    Attributes:
        layer: For most heat maps; empty if none needs it.
        rows: For a sheet.
        pooled: For exact class activation maps; empty if none needs it.
        scales: What the head of a detector reads, in place of `layer`; empty of other networks.
    """

    layer: str = ""
    rows: tuple[str, ...] = ()
    pooled: str = ""
    scales: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset({self.layer, self.pooled, *self.rows, *self.scales} - {""})


def choose_rows(maps: Sequence[GraphPoint], record: ForwardRecord) -> list[GraphPoint]:
    """Choose several layers for a sheet.

    Args:
        maps: In the order of execution, up to the last that counts.
        record: Their forward pass.

    Returns:
        The last of each resolution, at most six; if these are fewer than four, blocks of the network too.
    """
    sizes = {point.name: tuple(record.maps(point, point.values).shape[-2:]) for point in maps}
    last = {sizes[point.name]: point for point in maps}  # of each resolution
    chosen = {point.name for point in list(last.values())[-ROWS:]}
    if len(chosen) < _FEW:
        more = [point for point in _blocks(maps) if point.name not in chosen]
        room = min(ROWS - len(chosen), len(more))
        chosen |= {more[(2 * number + 1) * len(more) // (2 * room)].name for number in range(room)}
    return [point for point in maps if point.name in chosen]


def _blocks(maps: Sequence[GraphPoint]) -> list[GraphPoint]:
    """Return the points of the largest kind of module that a network mostly consists of; all, if there is no such kind."""
    parts = {point.name: sum(1 for _ in point.layer.module.modules()) for point in maps}
    kinds = Counter(point.layer.type for point in maps if parts[point.name] > 2)
    most = max(kinds.values(), default=0)
    if most < 2:
        return list(maps)
    size = {kind: max(parts[point.name] for point in maps if point.layer.type == kind) for kind in kinds}
    kind = max((kind for kind in kinds if 2 * kinds[kind] >= most), key=lambda kind: (size[kind], kind))
    return [point for point in maps if point.layer.type == kind]
