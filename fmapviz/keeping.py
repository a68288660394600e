"""Keep the values of feature maps, as the layers have them, for whoever wants more than pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fmapviz.shapes import NotAMapError
from fmapviz.sketches import MixedBatchError
from fmapviz.values import Kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from fmapviz.values import FeatureMap, Of, Target


@dataclass(frozen=True, slots=True, eq=False)
class KeptBatch:
    """One feature map of a batch of images, copied."""

    layer: str
    type: str
    call: int
    index: int
    of: Of
    values: Tensor
    dtype: str
    images: int
    targets: Sequence[Target | None] | None
    overflows: Sequence[int]

    def finish(self) -> Iterator[Kept | None]:
        """Give each image's values, None where it does not have the class."""
        whole = self.values.numpy()
        for image in range(self.images):
            target = self.targets[image] if self.targets else None
            if self.targets and target is None:
                yield None
                continue
            own = whole[image] if len(whole) == self.images else whole  # all samples of a single image
            overflows = self.overflows[image] if self.overflows else 0
            yield Kept(self.layer, self.type, self.call, self.index, self.of, own, self.dtype, target, overflows)


def keep(
    feature_map: FeatureMap,
    values: Tensor,
    dtype: str,
    *,
    images: int,
    of: Of = "output",
    targets: Sequence[Target | None] | None = None,
) -> KeptBatch:
    """Copy values, before a later layer changes them in place.

    Args:
        feature_map: Where they belong.
        values: Its own, or others of the same shape, such as their gradient: any shape `(N, ...)`, any type.
        dtype: What they become, `float32` or `float16`.
        images: In the batch; of a single image N may be any number of samples.
        of: What the values are of the layer.
        targets: Of gradients the class for each image.

    Raises:
        MixedBatchError: N is not the number of images.
        NotAMapError: They are no array.
    """
    if values.is_nested or values.layout is not torch.strided:
        raise NotAMapError(f"a {'nested' if values.is_nested else 'sparse'} tensor")
    if images > 1 and (values.ndim == 0 or len(values) != images):
        raise MixedBatchError
    plain = values.dequantize() if values.is_quantized else values
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    copied = plain.detach().to("cpu", getattr(torch, dtype), copy=True)
    copied = copied if copied.ndim else copied[None]
    overflows = [] if dtype == "float32" else _overflows(plain, copied, images)
    return KeptBatch(
        feature_map.name,
        feature_map.layer.type,
        feature_map.call,
        feature_map.index,
        of,
        copied,
        str(values.dtype).removeprefix("torch."),
        images,
        targets,
        overflows,
    )


def _overflows(values: Tensor, halves: Tensor, images: int) -> list[int]:
    """Count for each image what a half is too small for."""
    if not bool(halves.isinf().any()):
        return []
    lost = halves.isinf() & values.isfinite().cpu().view(halves.shape)
    counts = lost.flatten(1).sum(1) if lost.ndim > 1 else lost.long()
    return counts.tolist() if len(counts) == images else [int(counts.sum())]


def overflow_notices(kept: Sequence[Kept]) -> list[str]:
    """Say how many values float16 could not hold, if there are any."""
    layers = [each for each in kept if each.overflows]
    if not layers:
        return []
    count, named = sum(each.overflows for each in layers), f"{layers[0].layer}{' and others' if layers[1:] else ''}"
    return [f"{count} values of {named} are too large for float16, and infinite in what is kept"]
