"""Record a training step by step: draw, measure and write each step, and the filmstrips at some steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.config import RunConfig, options_of
from fmapviz.core import registry
from fmapviz.errors import RequestError, quote, suggest
from fmapviz.features.watch.curves import Curves
from fmapviz.features.watch.drawing import StepDrawer
from fmapviz.features.watch.filmstrip import Filmstrips
from fmapviz.features.watch.filmstrip_page import draw_filmstrip
from fmapviz.features.watch.numbering import Numbering
from fmapviz.features.watch.targets import RUN, RunTarget, WriterTarget
from fmapviz.store.run import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fmapviz.data import Inputs
    from fmapviz.features.watch.drawing import Network
    from fmapviz.features.watch.targets import SummaryWriter

_OPTIONS = ("exclude", "output", "predictions", "preprocessing", "targets", "types")
_NOTE = "a row per step, a column per channel, each with one range over all steps"


def configure(options: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run that draws each step.

    Raises:
        RequestError: An option is wrong, or there is none of that name.
    """
    if unknown := options.keys() - {*_OPTIONS, "layers", "views", "style"}:
        known = ", ".join(f"{each}=" for each in _OPTIONS)
        own = ["layers", "views", "style", "every", "budget", "strict", "out"]
        of_runs = min(unknown) in options_of(RunConfig)
        meant = None if of_runs else suggest(min(unknown), [*_OPTIONS, *own])
        raise RequestError(f"Watch takes no {min(unknown)}=", hint=meant or f"it also takes these options of a run: {known}")
    return RunConfig("network", (), to=list(registry.pages()), **options)


class Recorder:
    """Records a training.

    Args:
        network: See `fmapviz.Watch`.
        images: Likewise.
        out: Likewise.
        name: Likewise.
        **options: What to draw, fields of `RunConfig`.

    Raises:
        FmapvizError: As in `fmapviz.Watch`.

    Attributes:
        target: Destination of the pictures.
        strips: The filmstrips.
        images: Number of images.
        notices: Remarks on the network and its layers.
        assumption: The assumption about the preprocessing of the images; empty if it is known.
    """

    def __init__(
        self, network: Network, images: Inputs, out: str | Path | SummaryWriter, *, name: str | None = None, **options: Any
    ) -> None:
        # Any: of fields of all types.
        config = configure(options)
        check_name(name)
        if not isinstance(out, str | Path) and not (hasattr(out, "add_image") and hasattr(out, "add_scalar")):
            raise RequestError(f"no SummaryWriter, and no directory: {quote(type(out).__name__)}", hint="out='runs/mine'")
        self._drawer = StepDrawer(network, images, config)
        session = self._drawer.session
        self._name = name
        self.target = RunTarget(out, session, name or RUN) if isinstance(out, str | Path) else WriterTarget(out, name or "")
        self.strips = self._load_strips()
        self.images, self.notices, self.assumption = len(self._drawer.probes), self._drawer.notices, self._drawer.assumption
        self._curves, self._numbers = Curves(), Numbering()
        self._count = 0
        self._strips_at: int | None = None  # the step at which they were written last

    @property
    def remarks(self) -> list[str]:
        """Assumptions about the network's outputs, after a step is drawn."""
        return self._drawer.remarks

    @property
    def steps_before(self) -> set[int]:
        """The known steps that an earlier training drew of the same images."""
        images = [probe.unit for probe in self._drawer.probes]
        films = {step for (_, image), strip in self.strips.strips.items() if image in images for step in strip.maps}
        return films | self.target.steps_of(images)

    def use_name(self, number: int) -> str:
        """Draw under another name; return it.

        Args:
            number: Distinguishes it.

        Raises:
            RefusedError: There is a run with other settings.
            OutputError: It cannot be written.
        """
        name = f"{self._name or RUN}-{number}"
        self.target = self.target.renamed(name)
        self.strips = self._load_strips()
        return name

    def _load_strips(self) -> Filmstrips:
        strips = Filmstrips(self._drawer.session.config.style)
        if self.target.filmstrip_file:
            strips.load(self.target.filmstrip_file)
        return strips

    def record(self, step: int) -> None:
        """Draw and write one step, and the filmstrips when the number of steps has doubled.

        Raises:
            ForwardError: The network failed.
            OutputError: It could not be written; and whatever the writer raises.
        """
        self._strips_at = None
        drawn, weights = self._drawer.draw(step)
        numbers = self._numbers
        for each in drawn:
            numbers.add(each.image.result.layers)
            self.strips.add(step, each.file.unit, each.image.result.layers)
        numbers.add(picture.layer for picture in weights if picture.layer)
        drawn = [replace(each, pictures=list(map(numbers.rename, each.pictures))) for each in drawn]
        weights = list(map(numbers.rename, weights))
        self._count += 1
        curves = self._curves.measure([each.image.result for each in drawn], numbers)
        self.target.write(step, drawn, weights, curves)
        if self._count & (self._count - 1) == 0:  # 1, 2, 4, 8, ...
            self.write_strips(step)

    def write_strips(self, step: int) -> None:
        """Write the filmstrips and the report, if anything was drawn.

        Args:
            step: The last one.

        Raises:
            OutputError: They could not be written.
        """
        if self._strips_at == step:
            return
        films = [
            (
                self._numbers.name(layer),
                image,
                draw_filmstrip(strip.rows, strip.steps, strip.channels, title=f"{layer}: {image}", note=_NOTE),
            )
            for (layer, image), strip in self.strips.own.items()
        ]
        if self._count:
            self.target.write_films(step, films)
        if films and self.target.filmstrip_file:
            self.strips.save(self.target.filmstrip_file)
        self._strips_at = step
