"""Draw feature maps in a training by PyTorch Lightning: `Trainer(callbacks=[FeatureMaps("cat.png")])`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fmapviz.config import check_type, renamed
from fmapviz.errors import RequestError, first_few, quote, suggest
from fmapviz.features.watch.watch import Watch, check_options

if TYPE_CHECKING:
    from pathlib import Path

    from fmapviz.data import Inputs


REQUIRES = "lightning"

# The package has two names, with a class each: the one that is in use.
_is_older = find_spec("lightning") is None or ("pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules)
_package: Any = import_module("pytorch_lightning" if _is_older else "lightning.pytorch")
Callback: Any = _package.Callback


class FeatureMaps(Callback):  # type: ignore[misc]  # of either name
    """Draws feature maps every N optimiser steps, into the trainer's TensorBoard writer or its log directory.

    The sanity check is skipped, and steps of gradient accumulation are one.

    Args:
        images: See `fmapviz.Watch`.
        network: Name of the network within the LightningModule, such as `model`; empty for all of it, or for the only
            network in it if it has no `forward`.
        out: A directory or a writer; None: the writer of the trainer's TensorBoard logger, else the log directory.
        **options: Those of `fmapviz.Watch`, such as `every` and `layers`.
    """

    @renamed(to="out", top="predictions", options="preprocessing")
    def __init__(self, images: Inputs, *, network: str = "", out: str | Path | None = None, **options: Any) -> None:
        check_options(options)
        check_type("network", network, str, hint="the name of a submodule, such as 'model'")
        self._images, self._network, self._out, self._options = images, network, out, options
        self._watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the images.

        Raises:
            RequestError: The LightningModule has no `forward`, and several networks.
        """
        name = self._network or _find_network(pl_module)
        if name not in (known := dict(pl_module.named_modules())):
            raise RequestError(f"no such network in the module: {quote(name)}", hint=suggest(name, known))
        writers = (getattr(logger, "experiment", None) for logger in trainer.loggers)
        writer = next((each for each in writers if hasattr(each, "add_image")), None)
        out = self._out or writer or trainer.log_dir or trainer.default_root_dir
        self._watch = Watch(lambda: pl_module.get_submodule(name), self._images, out=out, **self._options)

    def on_train_batch_end(self, trainer: Any, *_args: Any) -> None:
        """Draw if this step is due."""
        if self._watch:
            self._watch(trainer.global_step, epoch=trainer.current_epoch)

    def on_exception(self, *_args: Any) -> None:
        """Write the filmstrips."""
        self.on_train_end()

    def on_train_end(self, *_args: Any) -> None:
        """Draw the last step."""
        if self._watch:
            self._watch.close()


def _find_network(module: Any) -> str:
    """Return the name of the network in a module without a `forward` of its own; empty if it has one."""
    if type(module).forward is not _package.LightningModule.forward:
        return ""
    found: list[str] = [name for name, child in module.named_children() if any(True for _ in child.parameters())]
    if len(found) != 1:
        raise RequestError(
            f"{type(module).__name__} has no forward, and {len(found)} networks: {first_few(found)}",
            hint="FeatureMaps(..., network='model') names the one to draw",
        )
    return found[0]
