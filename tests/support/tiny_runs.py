"""Runs of tiny networks over small images."""

from __future__ import annotations

from fmapviz.config import InputOptions, Style
from fmapviz.run.loop import visualize

AS_IT_IS = InputOptions(fit="none")
SAID = InputOptions(fit="none", mean=(0.0,), std=(1.0,))  # nothing of the preparation is an assumption


class StopError(Exception):
    """A run is interrupted."""


def stop_after_an_image(event):
    """Interrupt a run, as its `on_event`, when the first image is done."""
    if getattr(event, "status", "") == "done":
        raise StopError


def runner(build, **defaults):
    """Return `visualize` with a default network and default options.

    Args:
        build: Builds the network of a call that names none.
        **defaults: Options of `visualize`; a call may override them.
    """

    def run(inputs=(), model=None, **options):
        return visualize(model or build(), inputs, **{**defaults, **options})

    return run


def styled(run):
    """Return a function that also takes the fields of `Style` as options."""

    def run_in_style(*args, **options):
        style = Style(**{name: options.pop(name) for name in list(options) if name in Style.__dataclass_fields__})
        return run(*args, style=style, **options)

    return run_in_style
