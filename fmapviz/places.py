"""Remember the tensors of a forward pass, where gradients will be asked for when it is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from fmapviz.gradients import edge_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.values import FeatureMap, Layer


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
        return cls(feature_map, edge_of(values), values.detach().clone() if copied else None, _version(values))

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
        return values.detach() if _version(values) == self.version else None

    @property
    def values(self) -> Tensor:
        """What the layer returned, of a place of which that is known."""
        assert self.intact is not None
        return self.intact

    @property
    def identity(self) -> object:
        """Equal for the same tensor, returned by a module and by those around it."""
        return (id(self.edge.node), self.edge.output_nr) if self.edge else id(self)


class Places:
    """The outputs of layers that may be needed.

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

    def begin(self, *, names: Collection[str] | None, heads: bool) -> None:
        """Begin a forward pass.

        Args:
            names: Of the feature maps that will be needed; None for all.
            heads: Whether those that may hold the class scores are needed.
        """
        self.kept, self.heads = [], []
        self.all_kept = names is None
        self._names, self._wants_heads = names or (), heads

    def keep_only(self, names: Collection[str], places: Iterable[Place]) -> None:
        """Keep those of some places that have these names, and let go of all else."""
        found: dict[str, Place] = {}
        for place in places:
            if place.name in names:
                found[place.name] = place
            if len(found) == len(names):
                break
        self.kept = list(found.values())

    def wants(self, name: str) -> bool:
        """Tell whether the output of this name is to be kept."""
        return self.all_kept or name in self._names

    def consider(self, feature_map: FeatureMap) -> None:
        """Keep a vector that may hold the class scores, if that is wanted."""
        if self._wants_heads and _may_be_head(feature_map):
            self.heads.append(replace(feature_map, values=feature_map.values.detach().clone()))


def _version(values: Tensor) -> int:
    return 0 if values.is_inference() else values._version  # those of inference mode are not counted


def _may_be_head(feature_map: FeatureMap) -> bool:
    shape = feature_map.shape
    vector = len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))
    return vector and isinstance(feature_map.layer.module, nn.Linear | nn.Conv2d)
