"""A method of class activation maps, as a run or `fmapviz.cam` uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.core.members import load
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.observe.targets import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fmapviz.features.cam import CamView
    from fmapviz.observe.targets import Wanted


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """How a heat map is computed.

    Attributes:
        formula: Returns the signed map, float32 `(N, h, w)`; see `fmapviz.features.cam.formulas`.
        needs: The names of its parameters: `activations`, `gradients`, `weights`, `pixel_gradients`.
        targets: The classes; empty if it is independent of classes.
        over: Whether its pictures are drawn over the input.
        colormap: Used unless the style names one.
        sheet: Whether the maps of several layers and classes are one picture.
    """

    formula: Callable[..., Tensor]
    needs: tuple[str, ...]
    targets: tuple[Wanted, ...]
    over: bool = True
    colormap: str = HEAT_COLORMAP
    sheet: bool = False

    @classmethod
    def of(cls, view: CamView, targets: Sequence[Wanted] = ()) -> Method:
        """Return the method of a view.

        Args:
            view: A class activation map.
            targets: The requested classes; empty: its default.
        """
        needs_class = view.needs != ("activations",)
        return cls(
            load(view.formula),
            view.needs,
            (tuple(targets) or parse([view.targets], ())) if needs_class else (),
            over=view.over,
            colormap=view.colormap or HEAT_COLORMAP,
            sheet=bool(view.compose),
        )

    @property
    def of_pixels(self) -> bool:
        """Whether it needs gradients at the network's input, not at a layer."""
        return "pixel_gradients" in self.needs

    @property
    def exact(self) -> bool:
        """Whether it needs the weights of a linear layer behind global average pooling."""
        return "weights" in self.needs

    def apply(self, **captured: Tensor) -> Tensor:
        """Compute the map from those of the captured tensors that it needs."""
        return self.formula(**{name: captured[name] for name in self.needs})
