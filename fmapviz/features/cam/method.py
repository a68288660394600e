"""A method of class activation maps, as a run or `fmapviz.cam` uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.core.members import load
from fmapviz.observe.targets import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fmapviz.features.cam import CamView
    from fmapviz.observe.targets import TargetChoice


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A view of class activation maps, with its classes.

    Attributes:
        view: Names the formula, see `fmapviz.features.cam.formulas`.
        targets: The classes; empty if it is independent of classes.
    """

    view: CamView
    targets: tuple[TargetChoice, ...]

    @classmethod
    def of(cls, view: CamView, targets: Sequence[TargetChoice] = ()) -> Method:
        """Return the method of a view.

        Args:
            view: A class activation map.
            targets: The requested classes; empty: its default.
        """
        needs_class = view.needs != ("activations",)
        return cls(view, (tuple(targets) or parse([view.targets], ())) if needs_class else ())

    @property
    def of_pixels(self) -> bool:
        """True if it needs gradients at the network's input, not at a layer."""
        return "pixel_gradients" in self.view.needs

    @property
    def exact(self) -> bool:
        """True if it needs the weights of a linear layer behind global average pooling."""
        return "weights" in self.view.needs

    @property
    def of_gradients(self) -> bool:
        """True if it needs the gradients at a layer."""
        return "gradients" in self.view.needs

    @property
    def sheet(self) -> bool:
        """True if the maps of several layers and classes are one picture."""
        return bool(self.view.compose)

    def apply(self, **captured: Tensor) -> Tensor:
        """Return the signed map, float32 `(N, h, w)`, computed from those of the captured tensors that it needs."""
        computed: Tensor = load(self.view.formula)(**{name: captured[name] for name in self.view.needs})
        return computed
