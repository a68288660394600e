"""Remember the tensors of a forward pass, where gradients will be asked for when it is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from torch import nn

from fmapviz.gradients import begin_graph, edge_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.values import FeatureMap, Layer

# What these return is often overwritten, by a ReLU in place, and may be the last map before the classifier.
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)

_SMALL = 1024  # pixels of the picture for each of the map


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A tensor that a layer returned or was given.

    Attributes:
        feature_map: As it was handed over, part of the graph; a later layer may have overwritten its values.
        edge: Its place in the graph, before it was overwritten; None if it is in none.
        activations: A copy of its values, None if there is none.
        version: Of its values when they were handed over.
    """

    feature_map: FeatureMap
    edge: GradientEdge | None
    activations: Tensor | None
    version: int

    @classmethod
    def of(cls, feature_map: FeatureMap, *, copied: bool) -> Place:
        """Take note of a tensor that is still part of the graph."""
        values = feature_map.values
        return cls(feature_map, edge_of(values), values.detach().clone() if copied else None, values._version)

    @classmethod
    def beginning(cls, feature_map: FeatureMap, *, copied: bool = True) -> tuple[Place, Tensor | None]:
        """Take note of a tensor, and let the graph begin with it if it is in none.

        Nothing before the first layer that matters is then recorded, which saves the memory of all its activations.

        Returns:
            What is to take the tensor's place, None if nothing.
        """
        values = feature_map.values
        if values.requires_grad or not values.is_floating_point() or feature_map.part.startswith("."):
            return cls.of(feature_map, copied=copied), None
        start, own = begin_graph(values)
        feature_map = replace(feature_map, values=own)
        return replace(cls.of(feature_map, copied=False), activations=start.detach()), own

    @property
    def name(self) -> str:
        """The feature map's."""
        return self.feature_map.name

    @property
    def layer(self) -> Layer:
        """Who returned it."""
        return self.feature_map.layer

    @property
    def intact(self) -> Tensor | None:
        """What the layer returned, None if that has been overwritten and there is no copy."""
        if self.activations is not None:
            return self.activations
        values = self.feature_map.values
        return values.detach() if values._version == self.version else None

    @property
    def values(self) -> Tensor:
        """What the layer returned, of a place of which that is known."""
        assert self.intact is not None
        return self.intact

    @property
    def identity(self) -> object:
        """Equal for the same tensor, returned by a module and by those around it."""
        return (id(self.edge.node), self.edge.output_nr) if self.edge else id(self)

    def keeping(self, activations: Tensor) -> Place:
        """Know the values from another place of the same tensor."""
        return replace(self, activations=activations)


class Places:
    """Receives the outputs of all layers, and keeps what may be needed.

    Attributes:
        kept: In the order of execution.
        all_kept: Whether these are all layers', because nobody knows yet which will be chosen.
        heads: Vectors that linear layers returned: the last may hold the class scores.
    """

    def __init__(self) -> None:
        self.kept: list[Place] = []
        self.heads: list[FeatureMap] = []
        self.all_kept = False
        self._names: Collection[str] = ()
        self._wants_heads = False
        self._pixels = 0

    def begin(self, *, names: Collection[str] | None, heads: bool, picture: tuple[int, int] | None) -> None:
        """Begin a forward pass.

        Args:
            names: Of the feature maps that will be needed; None for all.
            heads: Whether those that may hold the class scores are needed.
            picture: Height and width of the input, pixels.
        """
        self.kept, self.heads = [], []
        self.all_kept = names is None
        self._names, self._wants_heads, self._pixels = names or (), heads, prod(picture or ())

    def keep_only(self, names: Collection[str], places: Iterable[Place]) -> None:
        """Keep those of some places that have these names, and let go of all else."""
        found: dict[str, Place] = {}
        for place in places:
            if place.name in names:
                found[place.name] = place
            if len(found) == len(names):
                break
        self.kept = list(found.values())

    def receive(self, feature_map: FeatureMap) -> Tensor | None:
        """Take what the hooks hand over, and give what is to take its place, if anything."""
        values, another = feature_map.values, None
        if self.all_kept:
            # To copy everything would take long. Of the last map of a network a reference will do, or it is small.
            small = prod(values.shape[1:]) <= self._pixels >= _SMALL * prod(values.shape[2:])
            small = small and isinstance(feature_map.layer.module, _NORMS)
            self.kept.append(Place.of(feature_map, copied=small))
        elif feature_map.name in self._names:
            place, another = Place.beginning(feature_map)
            self.kept.append(place)
        if self._wants_heads and _may_be_head(feature_map):
            self.heads.append(replace(feature_map, values=values.detach().clone()))
        return another


def _may_be_head(feature_map: FeatureMap) -> bool:
    shape = feature_map.shape
    vector = len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))
    return vector and isinstance(feature_map.layer.module, nn.Linear | nn.Conv2d)
