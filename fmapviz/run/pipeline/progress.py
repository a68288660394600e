"""Counts and remarks of a run so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fmapviz.observe.layers import layer_of


@dataclass(slots=True)
class Progress:
    """The counts and remarks of a run so far.

    Attributes:
        found: Inputs listed.
        layers: Names of the feature maps that were drawn of any image; the frames of a clip share one.
        accepted: Whether something was drawn of some image, so that the request as such is valid.
        reported: Notices about the network that were reported.
        not_executed: Selected layers that did not run with some image.
        undrawn: Layers that ran but were not drawn, with the reason.
        nonfinite: Images with values that are NaN or infinite, by where these come first.
    """

    found: int = 0
    layers: set[str] = field(default_factory=set)
    accepted: bool = False
    reported: set[str] = field(default_factory=lambda: {""})
    not_executed: set[str] = field(default_factory=set)
    undrawn: dict[str, str] = field(default_factory=dict)
    nonfinite: Counter[str] = field(default_factory=Counter)

    def add(self, other: Progress) -> None:
        """Add what another process, or an earlier one, has found; it does not count the inputs."""
        self.layers |= other.layers
        self.accepted |= other.accepted
        self.reported |= other.reported
        self.not_executed |= other.not_executed
        self.undrawn |= other.undrawn
        self.nonfinite += other.nonfinite

    def never_executed(self) -> tuple[str, ...]:
        """Return the selected layers that ran for no image."""
        return tuple(sorted(self.not_executed - self._executed()))

    def not_drawn(self) -> dict[str, str]:
        """Return the layers and views that some image lacks, with the reason."""
        sometimes = sorted(self.not_executed & self._executed())
        return self.undrawn | dict.fromkeys(sometimes, "not executed with some of the images")

    def _executed(self) -> set[str]:
        return {layer_of(name) for name in (*self.layers, *self.undrawn)}
