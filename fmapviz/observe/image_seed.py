"""Random numbers of an image: they depend on its pixels and on the number of the sample, and on nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class ImageSeed:
    """Seeds the random numbers of each sample, independent of order, batches, threads, shards and parts.

    Example:
        >>> import torch
        >>> image = torch.zeros(1, 3, 2, 2)
        >>> bool(ImageSeed(image).numbers(7).random() == ImageSeed(image).numbers(7).random())
        True
    """

    def __init__(self, image: Tensor) -> None:
        digest = hashlib.sha256(image.detach().float().cpu().contiguous().numpy().tobytes()).digest()
        self._key = np.frombuffer(digest[:16], np.uint64)

    @property
    def digest(self) -> str:
        """Hexadecimal digits that only images of equal pixels share."""
        return self._key.tobytes().hex()

    def numbers(self, sample: int) -> np.random.Generator:
        """Return the generator of a sample."""
        # The counter of Philox has 256 bits, of which the highest 64 number the samples: their streams never meet.
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, 0, sample]))
