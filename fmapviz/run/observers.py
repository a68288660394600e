"""Observers of forward and backward passes, for views that need more than outputs and inputs of layers."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn
    from torch.autograd.graph import GradientEdge

    from fmapviz.data import Target
    from fmapviz.observe.class_scores import ClassScores, Index
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.observe.located import Located
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.batch_results import BatchResults
    from fmapviz.run.running_pass import RunningPass

    Indices = tuple[Index | None, ...]  # of a class in each image; None if the image does not have it


class Differentiable(Protocol):
    """A tensor of a forward pass at which a gradient is computed."""

    @property
    def edge(self) -> GradientEdge | None:
        """Its position in the graph; None if it is outside of it."""


@dataclass(slots=True, eq=False)
class ClassPass:
    """A finished forward pass, and the classes whose scores are differentiated.

    Attributes:
        record: For its backward passes.
        results: Receives what is drawn.
        scores: Of all classes, None if no view needs them.
        classes: The requested classes, by their indices in each image: `top1` and a name may be the same class.
        located: Where the images lie in their files.
        gradients: Of the class that is drawn, by the identity of the points.
    """

    record: ForwardRecord
    results: BatchResults
    scores: ClassScores | None = None
    classes: dict[Indices, list[TargetChoice]] = field(default_factory=lambda: defaultdict(list))
    located: Located | None = None
    gradients: Mapping[int, Tensor | None] = field(default_factory=dict)

    @property
    def present(self) -> Indices | None:
        """The first requested class that some image has; None if no image has one, as when a detector found nothing."""
        return next((each for each in self.classes if any(index is not None for index in each)), None)


class PassObserver:
    """Observes passes of one copy of a network; a subclass overrides the methods that it needs.

    Attributes:
        keeps_layers: Whether outputs of layers are recorded in the graph, see `layers_of`.
        keeps_heads: Whether vectors that may hold the class scores are recorded.
        needs_scores: Whether class scores are needed though no class is differentiated.
    """

    keeps_layers = False
    keeps_heads = False
    needs_scores = False

    def attached(self, network: nn.Module) -> AbstractContextManager[object]:  # noqa: ARG002
        """Attach hooks of its own to the network."""
        return nullcontext()

    def begin(self, current: RunningPass) -> None:
        """Begin a forward pass.

        Raises:
            RequestError: The request does not fit the input.
        """

    def watching(self) -> AbstractContextManager[object]:
        """Watch the forward pass that has begun."""
        return nullcontext()

    def finish(self, current: RunningPass) -> None:
        """Draw results that need no gradients, after the forward pass.

        Raises:
            RequestError: The requested values were not in the pass.
        """

    def end(self) -> None:
        """Release the tensors of the pass, also after a failure."""

    def layers_of(self, shape: torch.Size, *, again: bool) -> Collection[str] | None:  # noqa: ARG002
        """Return the feature maps whose outputs are recorded; None: all, to choose among them.

        Args:
            shape: Of an image.
            again: Whether the pass of a batch is repeated.
        """
        return ()

    def choose(self, current: ClassPass) -> bool:  # noqa: ARG002
        """Choose layers after a pass; return False if the pass has to be repeated with these."""
        return True

    def draw(self, current: ClassPass) -> None:
        """Draw results that belong to no class.

        Raises:
            RequestError: None of the layers can be drawn.
        """

    def points(self, alike: Collection[TargetChoice]) -> Iterable[Differentiable]:  # noqa: ARG002
        """Return the tensors at which the gradients of a class are needed."""
        return ()

    def draw_class(self, current: ClassPass, choice: TargetChoice, targets: Sequence[Target | None]) -> None:
        """Draw a class of each image; `current.gradients` has the gradients at `points`."""
