"""Draw feature maps in a training by PyTorch-Ignite: `attach(trainer, watch)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ignite.engine import Events

if TYPE_CHECKING:
    from fmapviz.features.watch.watch import Watch

REQUIRES = "ignite"


def attach(trainer: Any, watch: Watch) -> None:
    """Call a watch after each iteration of an engine, and close it at the end.

    Args:
        trainer: An `ignite.engine.Engine`.
        watch: The watch that draws.
    """

    @trainer.on(Events.ITERATION_COMPLETED)  # type: ignore[untyped-decorator]  # the package is optional
    def _draw(engine: Any) -> None:
        watch(engine.state.iteration, epoch=engine.state.epoch)

    @trainer.on(Events.COMPLETED | Events.TERMINATE)  # type: ignore[untyped-decorator]
    def _close(_engine: Any) -> None:
        watch.close()
