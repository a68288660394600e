"""The loaded parts of a run, and the contracts of pass drawers and stages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fmapviz.models.network import with_axes
from fmapviz.observe.layouts.find import LayoutCache
from fmapviz.observe.predictions import DEFAULT_COUNT
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.store.remote.destination import LocalDestination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn

    from fmapviz.config import RunConfig, RunInfo
    from fmapviz.core.placement import InFile
    from fmapviz.data import Failure, ImageFile, ImageResult, Layer, Model, Preparation
    from fmapviz.events import Event, RunSummary
    from fmapviz.formats.base import OpenWriter
    from fmapviz.images.memory.image import MemoryImage
    from fmapviz.observe.early_stop import EarlyStop
    from fmapviz.observe.hooks import Numbers
    from fmapviz.observe.lasting_state import LastingState
    from fmapviz.run.kept_passes import KeptPasses
    from fmapviz.run.plan import Plan
    from fmapviz.store.remote.destination import Destination

    Items = Iterable[ImageFile | Failure]


class PassDrawer(Protocol):
    """Draws passes of a network, or of several; its hooks are attached while it is open."""

    @property
    def numbers(self) -> Numbers:
        """True if the last pass drew random numbers."""

    @property
    def lasting(self) -> Sequence[LastingState]:
        """The state that each network keeps from one pass to the next."""

    def draw(
        self, batch: Tensor, *, keep: KeptPasses | None = None, files: Sequence[InFile | None] = ()
    ) -> list[ImageResult]:
        """Draw prepared images `(N, ...)`, and keep their passes if there is room.

        Args:
            batch: The images.
            keep: Keeps what the layers return.
            files: The file of each image, see `fmapviz.observe.located.Located`.

        Raises:
            ForwardError: A network raised an exception.
            MixedBatchError: The images have to be drawn one by one.
            RequestError: The request does not fit the network.
            torch.OutOfMemoryError: And a RuntimeError of the CPU's allocator: see `is_out_of_memory`.
        """

    def draw_kept(self, image: Tensor, kept: Any) -> ImageResult:  # Any: the `Kept` that this drawer takes
        """Draw an image `(1, ...)` from its stored pass, with the result of `draw`."""


class Stage:
    """A part of a run before or after the passes of its images; a subclass overrides the methods that it needs.

    Attributes:
        aggregates: Names of the aggregates that the run has because of it, besides those of its formats and views.
    """

    aggregates: Sequence[str] = ()

    def before(self, session: Session, items: Items, on_event: Callable[[Event], None]) -> tuple[Session, Items]:  # noqa: ARG002
        """Prepare the run before the images are drawn.

        Args:
            session: The run.
            items: The images, which may be read only once.
            on_event: Called with notices.

        Returns:
            The session with the results, and the images.
        """
        return session, items

    def after(self, session: Session, on_event: Callable[[Event], None]) -> int:  # noqa: ARG002
        """Draw the run-level results unless they are up to date; return the number of pictures.

        Raises:
            OutputError: The output could not be written.
        """
        return 0

    def report(self, session: Session, summary: RunSummary, on_event: Callable[[Event], None]) -> RunSummary:  # noqa: ARG002
        """Return the summary of the run as it is reported."""
        return summary


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A configuration and its loaded parts.

    Attributes:
        request: The configuration as requested.
        info: The identity of the run, with the resolved configuration.
        model: The model, in its original training mode.
        layers: The selected layers.
        plan: The tensors that the views capture.
        writers: The functions that open the writers of the formats.
        device: The device of the network.
        batch_size: Images in one forward pass.
        workers: Threads; 0: images are drawn one after the other in the thread of the caller.
        early_stop: See `fmapviz.run.forward_pass.Drawer`.
        inputs: The inputs, with a name for each image in memory; a list, unless they can be read only once.
        images: The images, where they are not listed from the inputs.
        output: The destination of all runs.
        directory: The run's directory; of a remote run, of its local copy.
        several: Whether more than one image is expected.
        reader: Remembers how the network ends.
        layouts: Remembers the layouts of layers.
        kept: Stores the layer outputs of surveyed images.
        stages: The stages before and after the images are drawn.
        attach: Attaches a `PassDrawer` to the network or a copy of it; None: a `Drawer`.
        measured: The networks whose outputs are measured, by what messages call them; empty: that of the model.
        times: Number of drawings of each image: the steps of a series.
        preparations: Remembers the axes of clips, by their shapes.
    """

    request: RunConfig
    info: RunInfo
    model: Model
    layers: Sequence[Layer]
    plan: Plan
    writers: Mapping[str, OpenWriter]
    device: torch.device
    batch_size: int
    workers: int
    early_stop: EarlyStop | None = None
    inputs: Iterable[str | Path | MemoryImage] = ()
    images: Sequence[ImageFile] | None = None
    output: Destination = field(default_factory=lambda: LocalDestination(Path()))
    directory: Path = Path()
    several: bool = True
    reader: ScoreReader = field(default_factory=ScoreReader)
    layouts: LayoutCache = field(default_factory=LayoutCache)
    kept: KeptPasses | None = None
    stages: Sequence[Stage] = ()
    attach: Callable[[Session, nn.Module, Callable[[], object]], AbstractContextManager[PassDrawer]] | None = None
    measured: Mapping[str, nn.Module] = field(default_factory=dict)
    times: int = 1
    preparations: dict[tuple[int, ...], Preparation] = field(default_factory=dict)

    def preparation_of(self, values: Tensor, *, as_given: bool = False) -> Preparation:
        """Return the preprocessing of an image, with the axes of clips.

        Args:
            values: The image as the network gets it, without N.
            as_given: Whether it was given like this: then its normalisation may not be known.
        """
        shape = values.shape
        if len(shape) > 3 and shape not in self.preparations:
            self.preparations[shape] = with_axes(self.model, shape)
        preparation = self.preparations.get(shape, self.model.preparation)
        return replace(preparation, mean=(), std=()) if as_given and self.model.assumption else preparation

    @property
    def predictions(self) -> int:
        """The number of classes to predict; by default also where views need class scores anyway."""
        return self.config.predictions or (DEFAULT_COUNT if self.request.predictions is None and self.plan.wanted else 0)

    @property
    def config(self) -> RunConfig:
        """The resolved configuration, without inputs, engine and callback."""
        return self.info.config
