"""Record a training step by step: draw it, measure it, and write what comes of it, now and then the filmstrips too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.config import RunConfig, options_of
from fmapviz.core.errors import RequestError, quote, suggest
from fmapviz.core.registry import WRITERS
from fmapviz.engine.watch.curves import Curves
from fmapviz.engine.watch.drawing import StepDrawer
from fmapviz.engine.watch.filmstrip import Filmstrips
from fmapviz.engine.watch.targets import RunTarget, WriterTarget
from fmapviz.render.sheets.filmstrip import draw_filmstrip

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fmapviz.core.types import Inputs
    from fmapviz.engine.watch.drawing import Network
    from fmapviz.engine.watch.targets import SummaryWriter

_OPTIONS = ("exclude", "options", "output", "targets", "top", "types")
_NOTE = "a row per step, a column per channel, each with one range over all steps"


def configure(options: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of what is drawn at each step.

    Raises:
        RequestError: An option is wrong, or there is none of that name.
    """
    if unknown := options.keys() - {*_OPTIONS, "layers", "views", "style"}:
        known = ", ".join(f"{each}=" for each in _OPTIONS)
        own = ["layers", "views", "style", "every", "budget", "strict", "to"]
        of_runs = min(unknown) in options_of(RunConfig)
        meant = None if of_runs else suggest(min(unknown), [*_OPTIONS, *own])
        raise RequestError(f"Watch takes no {min(unknown)}=", hint=meant or f"of the options of a run it takes {known} too")
    reports = [form for form, page in registry.constants(WRITERS, "PAGE").items() if page]
    return RunConfig("network", (), to=reports, **options)


class Recorder:
    """Records a training.

    Args:
        network: See `fmapviz.Watch`.
        images: Likewise.
        to: Likewise.
        **options: What to draw, fields of `RunConfig`.

    Raises:
        FmapvizError: As in `fmapviz.Watch`.

    Attributes:
        target: Where the pictures go.
        strips: The filmstrips.
        images: Number of images.
        notices: Remarks on the network and its layers.
    """

    def __init__(self, network: Network, images: Inputs, to: str | Path | SummaryWriter, **options: Any) -> None:
        # Any: of fields of all types.
        config = configure(options)
        if not isinstance(to, str | Path) and not (hasattr(to, "add_image") and hasattr(to, "add_scalar")):
            raise RequestError(f"no SummaryWriter, and no directory: {quote(type(to).__name__)}", hint="to='runs/mine'")
        self._drawer = StepDrawer(network, images, config)
        session = self._drawer.session
        self.target = RunTarget(to, session) if isinstance(to, str | Path) else WriterTarget(to)
        self.strips = Filmstrips(session.config.style)
        self.images, self.notices = len(self._drawer.probes), self._drawer.notices
        self._curves = Curves()
        self._count = 0
        self._strips_at: int | None = None  # the step at which they were written last
        if self.target.filmstrip_file:
            self.strips.load(self.target.filmstrip_file)

    def record(self, step: int) -> None:
        """Draw and write one step, and the filmstrips when the number of steps has doubled.

        Raises:
            ForwardError: The network failed.
            OutputError: It could not be written; and whatever the writer raises.
        """
        self._strips_at = None
        drawn, weights = self._drawer.draw(step)
        for each in drawn:
            self.strips.add(step, each.probe.file.unit, each.image.result.layers)
        self._count += 1
        self.target.write(step, drawn, weights, self._curves.measure([each.image.result for each in drawn]))
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
                layer,
                image,
                draw_filmstrip(strip.rows, strip.steps, strip.channels, title=f"{layer}: {image}", note=_NOTE),
            )
            for (layer, image), strip in self.strips.strips.items()
        ]
        if self._count:
            self.target.write_films(step, films)
        if films and self.target.filmstrip_file:
            self.strips.save(self.target.filmstrip_file)
        self._strips_at = step
