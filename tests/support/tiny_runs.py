"""Runs of tiny networks over small images."""

from __future__ import annotations

from fmapviz.core.config import InputOptions
from fmapviz.engine.run import visualize

AS_IT_IS = InputOptions(fit="none")


def runner(build, **defaults):
    """Return `visualize` with a default network and default options.

    Args:
        build: Builds the network of a call that names none.
        **defaults: Options of `visualize`; a call may override them.
    """

    def run(inputs=(), model=None, **options):
        return visualize(model or build(), inputs, **{**defaults, **options})

    return run
