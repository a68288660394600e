"""Ways to run a network over pictures, each timed by `run.py`."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import make_grid

from fmapviz import visualize
from fmapviz.formats import stats
from fmapviz.images.decode_pool import DecodePool, read_image
from fmapviz.run import units
from fmapviz.store.aggregates.unit_ranking import UnitRanking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from fmapviz.types import Image as PixelImage
    from fmapviz.types import ImageFile, Model


def tutorial(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Write every convolution's output to TensorBoard as tutorials do: hooks keep it, `make_grid` draws it."""
    kept = {}
    convolutions = {name: module for name, module in model.module.named_modules() if isinstance(module, torch.nn.Conv2d)}
    hooks = [
        module.register_forward_hook(lambda _module, _args, output, name=name: kept.__setitem__(name, output.detach()))
        for name, module in convolutions.items()
    ]
    try:
        with torch.no_grad():
            for path, batch in prepared(model, paths):
                model.module(batch)
                with SummaryWriter(out / path.name) as writer:
                    for name, maps in kept.items():
                        channels = maps.transpose(0, 1)
                        grid = make_grid(channels, normalize=True, scale_each=True, nrow=isqrt(len(channels)))
                        writer.add_image(name, grid)
    finally:
        for hook in hooks:
            hook.remove()


def forward_alone(model: Model, paths: Sequence[Path], _out: Path) -> None:
    """Run the network over the same pictures, one by one, and keep nothing."""
    with torch.no_grad():
        for _, batch in prepared(model, paths):
            model.module(batch)


def to_tensorboard(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write every convolution's output to TensorBoard."""
    visualize(model, paths, out=out, to="tensorboard")


def decoded_in_threads(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Do the same, with images decoded in this process: a decoder that crashes would end it."""

    def read(_pool: DecodePool, file: ImageFile, *, channels: int, **_: object) -> PixelImage:
        return read_image(file, channels=channels)

    with patch.object(DecodePool, "read", read):
        to_tensorboard(model, paths, out)


def in_batches(model: Model, paths: Sequence[Path], out: Path, size: int) -> None:
    """Have fmapviz write them with so many images in a forward pass."""
    visualize(model, paths, out=out, to="tensorboard", batch_size=size)


def to_png(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write every convolution's output to PNG files."""
    visualize(model, paths, out=out, to="png")


def to_tensorboard_with_statistics(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write grids to TensorBoard, and statistics of every channel."""
    visualize(model, paths, out=out, to=["tensorboard", "stats"])


def to_report(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write a report."""
    visualize(model, paths, out=out, to="html")


def attention_of_heads(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write the attention of all blocks to TensorBoard."""
    visualize(model, paths, out=out, views="attention")


def attention_rollout(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write attention rollout to TensorBoard."""
    visualize(model, paths, out=out, views="rollout")


def to_statistics(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write nothing but statistics of every channel."""
    visualize(model, paths, out=out, to="stats")


def to_statistics_in_a_shard(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Have fmapviz write statistics of all images as one shard."""
    visualize(model, paths, out=out, to="stats", shard=len(paths))


def unranked(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Write statistics without what images are ranked by."""
    with patch.object(units, "digest_of", lambda _values: ""):
        to_statistics(model, paths, out)


def unranked_shard(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Do the same for a shard."""
    with (
        patch.object(units, "digest_of", lambda _values: ""),
        patch.object(UnitRanking, "add", lambda _self, _image: None),
        patch.object(stats, "write_rankings", lambda _directory, _rankings: None),
    ):
        to_statistics_in_a_shard(model, paths, out)


def prepared(model: Model, paths: Sequence[Path]) -> Iterator[tuple[Path, Tensor]]:
    """Read and prepare the pictures, as every way has to."""
    for path in paths:
        with Image.open(path) as picture:
            yield path, model.preparation.apply(picture.convert("RGB"))[None]
