"""Choose the layer whose map says most about a class, where the user names none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING

from fmapviz.errors import quote
from fmapviz.gradients import gradients_at
from fmapviz.shapes import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.places import Place

    See = Callable[[Place, Tensor], Tensor]

ROWS = 6  # of a sheet
_PARTS = (1, 8, 64, 512, 4096)
_FEW = 4  # resolutions: where a network has fewer, other layers fill a sheet


@dataclass(frozen=True, slots=True)
class Chosen:
    """Layers chosen automatically, by the names of their feature maps.

    Attributes:
        layer: For most heat maps; empty if none needs it.
        rows: For a sheet.
        pooled: For exact class activation maps; empty if none needs it.
    """

    layer: str = ""
    rows: tuple[str, ...] = ()
    pooled: str = ""

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset({self.layer, self.pooled, *self.rows} - {""})


class Choices:
    """The layers chosen automatically in a run, by the shape of the input, for all threads.

    Attributes:
        early: Whether graphs have to begin at the input.
    """

    def __init__(self) -> None:
        self.early = False
        self._chosen: dict[torch.Size, Chosen] = {}

    def of(self, shape: torch.Size) -> Chosen | None:
        """Give what was chosen for batches of images of a shape; None if nothing was as yet."""
        return self._chosen.get(shape[1:])

    def settle(self, shape: torch.Size, chosen: Chosen) -> Chosen:
        """Let the first choice be everybody's."""
        return self._chosen.setdefault(shape[1:], chosen)

    def forget(self, shape: torch.Size) -> None:
        """Have the layers for batches of a shape chosen anew."""
        self._chosen.pop(shape[1:], None)


class NoMapError(Exception):
    """There is no layer to choose; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Last:
    """The last map that a score depends on.

    Attributes:
        gradient: Of the score at its values.
        certain: False if all gradients were zero, so that another image may tell more.
    """

    place: Place
    gradient: Tensor
    certain: bool


def find_last(
    places: Sequence[Place], scores: Tensor, see: See, *, before: tuple[GradientEdge, Tensor] | None = None
) -> Last:
    """Find the last place with a gradient other than zero; the last with any, if all are zero.

    The layer is the last whose output is a map of more than one pixel and which the score depends on: the last convolution
    is one of many branches in GoogLeNet, 32 of 1024 channels in DenseNet; and of the last block of a vision transformer only
    the class token counts, not its patches.

    Args:
        places: The outputs of all layers, in the order of execution.
        scores: `(N,)`, the score of a class for each image.
        see: Gives values of a place as maps `(N, C, h, w)`; raises NotAMapError if they are none.
        before: See `fmapviz.gradients.gradients_at`.

    Raises:
        NoMapError: The score depends on no map, as far as there are gradients.
    """
    if not scores.requires_grad:
        raise _no_gradient(places)
    maps, connected, alive = find_maps(places, see), None, True
    for size in _PARTS:  # the first most often; the deeper, the longer a backward pass takes
        part = list(islice(maps, size)) if alive or connected is None or size <= _PARTS[1] else []
        alive = False
        gradients = gradients_at(scores, [place.edge for place in part], more=True, before=before)
        for place, gradient in zip(part, gradients, strict=True):
            if gradient is not None:
                connected = connected or Last(place, gradient, certain=False)
                alive = alive or bool(gradient.any())
                if bool(see(place, gradient).any()):
                    return Last(place, gradient, certain=True)
    if connected is None:
        raise NoMapError("no layer whose output is a map of the picture has a gradient of the class score")
    return _first_norm(places) or connected


def choose_rows(maps: Sequence[Place], see: See) -> list[Place]:
    """Choose several layers for a sheet.

    Args:
        maps: In the order of execution, up to the last that counts.
        see: See `find_last`.

    Returns:
        The last of each resolution, six at most; fewer than four of them are filled up with the blocks of the network.
    """
    sizes = {place.name: tuple(see(place, place.feature_map.values).shape[-2:]) for place in maps}
    last = {sizes[place.name]: place for place in maps}  # of each resolution
    chosen = {place.name for place in list(last.values())[-ROWS:]}
    if len(chosen) < _FEW:
        more = [place for place in _blocks(maps) if place.name not in chosen]
        room = min(ROWS - len(chosen), len(more))
        chosen |= {more[(2 * number + 1) * len(more) // (2 * room)].name for number in range(room)}
    return [place for place in maps if place.name in chosen]


def find_maps(places: Sequence[Place], see: See) -> Iterator[Place]:
    """Find the places whose output is a map of more than one pixel, the last executed first.

    Where a module and those around it return the same tensor, the outermost stands for all of them.
    """
    for _, same in groupby(reversed(places), key=lambda place: place.identity):
        found = next((place for place in same if _is_map(place, see)), None)
        if found is not None:
            yield found


def _is_map(place: Place, see: See) -> bool:
    try:
        maps = see(place, place.feature_map.values)
    except NotAMapError:
        return False
    return maps.shape[-1] * maps.shape[-2] > 1


def _blocks(maps: Sequence[Place]) -> list[Place]:
    """Give the places of the largest kind of module that a network is mostly made of; any, if there is none."""
    parts = {place.name: sum(1 for _ in place.layer.module.modules()) for place in maps}
    kinds = Counter(place.layer.type for place in maps if parts[place.name] > 2)
    most = max(kinds.values(), default=0)
    if most < 2:
        return list(maps)
    size = {kind: max(parts[place.name] for place in maps if place.layer.type == kind) for kind in kinds}
    kind = max((kind for kind in kinds if 2 * kinds[kind] >= most), key=lambda kind: (size[kind], kind))
    return [place for place in maps if place.layer.type == kind]


def _first_norm(places: Sequence[Place]) -> Last | None:
    """Find the first layer of the last block of a vision transformer, where the gradients are zero and do not tell."""
    for place in reversed(places):
        if place.edge is not None and place.name.endswith((".ln_1", ".norm1")):
            return Last(place, place.feature_map.values.detach() * 0, certain=False)
    return None


def _no_gradient(places: Sequence[Place]) -> NoMapError:
    """Say where on the way from the input the gradient ends."""
    flowing = [place for place in places if place.edge is not None]
    silent = places[places.index(flowing[-1]) + 1 :] if flowing else places
    where = f": it ends at {quote(silent[0].name)} ({silent[0].layer.type})" if silent else ""
    return NoMapError(
        f"no gradient flows through the network{where}; quantized and integer layers have none, nor has code under "
        "torch.no_grad(), and eigencam with --layers needs none"
    )
