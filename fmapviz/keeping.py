"""Keep the values of feature maps, as the layers have them, for whoever wants more than pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

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

    def finish(self) -> Iterator[Kept | None]:
        """Give each image's values, None where it does not have the class."""
        whole = self.values.numpy()
        for image in range(self.images):
            target = self.targets[image] if self.targets else None
            if self.targets and target is None:
                yield None
                continue
            own = whole[image] if len(whole) == self.images else whole  # all samples of a single image
            yield Kept(self.layer, self.type, self.call, self.index, self.of, own, self.dtype, target)


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
    """
    if images > 1 and (values.ndim == 0 or len(values) != images):
        raise MixedBatchError
    plain = values.dequantize() if values.is_quantized else values
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    copied = plain.detach().to("cpu", getattr(torch, dtype), copy=True)
    return KeptBatch(
        feature_map.name,
        feature_map.layer.type,
        feature_map.call,
        feature_map.index,
        of,
        copied if copied.ndim else copied[None],
        str(values.dtype).removeprefix("torch."),
        images,
        targets,
    )
