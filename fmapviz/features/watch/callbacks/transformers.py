"""Draw feature maps in a training by the Trainer of transformers: `Trainer(callbacks=[FeatureMapsCallback("cat.png")])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from fmapviz.config import renamed
from fmapviz.features.watch.watch import Watch, check_options

if TYPE_CHECKING:
    from pathlib import Path

    from fmapviz.data import Inputs
    from fmapviz.features.watch.targets import SummaryWriter

REQUIRES = "transformers"


class FeatureMapsCallback(TrainerCallback):  # type: ignore[misc]  # the package is optional
    """Draws feature maps every N optimiser steps.

    Args:
        images: See `fmapviz.Watch`.
        out: A directory or a writer; None: the trainer's output directory.
        **options: Those of `fmapviz.Watch`, such as `every` and `layers`.
    """

    @renamed(to="out", top="predictions", options="preprocessing")
    def __init__(self, images: Inputs, *, out: str | Path | SummaryWriter | None = None, **options: Any) -> None:
        check_options(options)
        self._images, self._out, self._options = images, out, options
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, _state: Any, _control: Any, *, model: Any, **_more: Any) -> None:
        """Read the images."""
        self._watch = Watch(model, self._images, out=self._out or args.output_dir, **self._options)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Draw if this step is due."""
        if self._watch:
            self._watch(state.global_step, epoch=int(state.epoch))

    def on_train_end(self, *_args: Any, **_more: Any) -> None:
        """Draw the last step."""
        if self._watch:
            self._watch.close()
