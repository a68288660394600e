"""What one forward pass leaves behind for its backward passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fmapviz.automatic import Chosen
from fmapviz.errors import quote
from fmapviz.gradients import begin_graph_in_place
from fmapviz.places import Place, Places
from fmapviz.shapes import NotAMapError, as_maps

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fmapviz.values import FeatureMap


_NONE = Chosen()


class AgainError(Exception):
    """The forward pass has to be run once more, with what has been learnt by it.

    Attributes:
        chosen: Layers chosen for this very batch of images, None if there is nothing to say about them.
        early: Whether graphs have to begin at the input.
    """

    def __init__(self, chosen: Chosen | None = None, *, early: bool = False) -> None:
        super().__init__()
        self.chosen = chosen
        self.early = early


@dataclass(slots=True, eq=False)
class Tape:
    """A forward pass over a batch of images.

    Attributes:
        network: Which one.
        pixels: What it was given, `(N, ...)`, from where the graph begins.
        late: Whether the graph begins at the first layer that matters, not at the input.
        ordered: Whether tokens lie by rows and columns, see `fmapviz.shapes.is_unrolled`.
        output: What it returned.
        over: Whether the pass has ended: a backward pass may run layers again, those under `torch.utils.checkpoint`.
        outputs: What the chosen layers returned.
        inputs: What the chosen layers were given.
        places: What any layer returned, as far as it may be needed.
        chosen: Which layers are chosen automatically, as soon as that is known.
        known: Gradients that looking for them has given: by the identity of the place, and the class of each image.
    """

    network: nn.Module
    pixels: Tensor
    ordered: bool
    late: bool = False
    output: object = None
    over: bool = False
    outputs: list[Place] = field(default_factory=list)
    inputs: list[Place] = field(default_factory=list)
    places: Places = field(default_factory=Places)
    chosen: Chosen = _NONE
    known: dict[tuple[object, tuple[int | None, ...]], Tensor] = field(default_factory=dict)

    def place(self, feature_map: FeatureMap, *, copied: bool) -> Place:
        """Take note of a tensor, and let the graph begin with it if it is not part of one.

        Nothing before the first layer that matters need then be recorded, which saves the memory of all its activations.

        Raises:
            AgainError: The graph has to begin earlier.
        """
        values = feature_map.values
        if not values.requires_grad and values.is_floating_point() and torch.is_grad_enabled():
            self._begin_at(values, passed_on=feature_map.passed_on)
        return Place.of(feature_map, copied=copied)

    def _begin_at(self, values: Tensor, *, passed_on: bool) -> None:
        error = None
        if not passed_on:  # otherwise, what else it goes into counts too, and may have come before
            try:
                begin_graph_in_place(values)
            except RuntimeError as reason:
                error = reason
        if self.late and not values.requires_grad:
            raise AgainError(early=True) from error

    def keep(self, feature_map: FeatureMap) -> None:
        """Keep the output of any layer if it may be needed.

        Raises:
            AgainError: See `place`.
        """
        if self.places.wants(feature_map.name):
            # To copy everything would take as long as a part of the forward pass.
            self.places.kept.append(self.place(feature_map, copied=not self.places.all_kept))
        self.places.consider(feature_map)

    @property
    def images(self) -> int:
        """N."""
        return len(self.pixels)

    @property
    def picture(self) -> tuple[int, int] | None:
        """Height and width of the input, pixels; None if that is not a picture."""
        return (self.pixels.shape[-2], self.pixels.shape[-1]) if self.pixels.ndim > 2 else None

    def views(self, feature_map: FeatureMap, values: Tensor) -> dict[str, Tensor]:
        """See values as maps or a vector, those of a clip frame by frame, see `fmapviz.shapes.as_maps`.

        Args:
            feature_map: Where they belong.
            values: Its own, or others of the same shape, such as their gradient.
        """
        return as_maps(
            values,
            feature_map.layer.module,
            picture=self.picture,
            portions=not values.is_nested and values.shape[:1] != (self.images,),
            ordered=self.ordered,
            name=feature_map.name,
        )

    def maps(self, place: Place, values: Tensor) -> Tensor:
        """See values of a place as one map for each image, `(N, C, h, w)`, the frames of a clip side by side.

        Raises:
            NotAMapError: They are none.
        """
        frames = list(self.views(place.feature_map, values).values())
        if frames[0].ndim == 2:
            raise NotAMapError("a vector, no rows and columns to lay over the picture")
        if len(frames[0]) != self.images:
            raise NotAMapError(f"{len(frames[0])} samples for {self.images} images, no map of the picture")
        return frames[0] if len(frames) == 1 else torch.cat(frames, -1)

    def frames(self, place: Place, values: Tensor) -> int:
        """Count the frames of a clip in values of a place; 1 for a picture."""
        return len(self.views(place.feature_map, values))

    def why_no_gradient(self, place: Place) -> str:
        """Say why there is no gradient at a place."""
        values = place.feature_map.values
        if values.is_quantized or not values.is_floating_point():
            return f"no gradient: its values are {'quantized' if values.is_quantized else 'integers'}"
        if place.edge is None:
            return "no gradient: it runs under torch.no_grad(), or what lies before it is not differentiable"
        return "the class score does not depend on it"

    def why_only_prefix(self) -> str:
        """Say why a layer whose patches no score depends on gives no map, and which one would."""
        firsts = [name for name, _ in self.network.named_modules() if name.endswith((".ln_1", ".norm1"))]
        hint = f"; use --layers {quote(firsts[-1])}, the first layer of the last block" if firsts else ""
        return f"the class score depends on the class token here, not on the patches{hint}"
