"""The preprocessed input as pictures: the image, the frames of a clip, or the slices of a volume."""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.data import Preparation


class Seen:
    """A preprocessed input as the network saw it.

    Args:
        prepared: `(C, H, W)`, or a clip or a volume, `(C, T, H, W)` or `(T, C, H, W)`.
        preparation: Of the network.
        facts: Facts of the picture, in place of its own.

    Example:
        >>> from fmapviz.data import Preparation
        >>> clip = Seen(torch.eye(4)[None, :, None], Preparation(torch.as_tensor, (), (), ""))
        >>> clip.picture.tolist(), clip.at(2.0).tolist(), clip.describe(2.0)
        ([[255, 0, 0, 0]], [[0, 0, 255, 0]], 'frame 2 of 4, from 0')
    """

    def __init__(
        self, prepared: Tensor, preparation: Preparation, *, facts: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._prepared, self._preparation, self._facts = prepared, preparation, facts
        self._axis = None if prepared.ndim != 4 else 0 if preparation.time_first else 1
        self._frames: dict[int, NDArray[Any]] = {}

    @property
    def frames(self) -> int:
        """The number of frames or slices; 1 of a picture."""
        return 1 if self._axis is None else self._prepared.shape[self._axis]

    @property
    def picture(self) -> NDArray[Any]:
        """The picture, the first frame of a clip, or the middle slice of a volume; see `at`."""
        return self.at(None)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, pixels."""
        return self._prepared.shape[-2], self._prepared.shape[-1]

    @property
    def facts(self) -> dict[str, str]:
        """The content of its picture, its shape, and its frame or scaling."""
        facts = {"Shows": "the input as the network saw it", "Shape": f"{self.size[0]} x {self.size[1]} pixels"}
        shown = {"Frame": self.describe(None), "Scaling": self.scaling}
        return {**facts, **{name: text for name, text in shown.items() if text}, **self._facts}

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """See `shown_range`."""
        return shown_range(self._prepared, self._preparation)

    @property
    def scaling(self) -> str:
        """The values of black and white as text; empty if they are those of the file."""
        return f"{self.range[0]:.4g} is black, {self.range[1]:.4g} white" if self.range else ""

    def at(self, frame: float | None) -> NDArray[Any]:
        """Return the frame that a map lies over, its normalisation undone.

        If the mean and the standard deviation are unknown, `shown_range` is scaled to 0..255; NaN becomes black.

        Args:
            frame: Its number, from 0, rounded; None: see `picture`.

        Returns:
            uint8: `(H, W)`, the first of one or two channels, or `(H, W, 3)`, the first three of more.
        """
        number = 0 if self._axis is None else self._number(frame)
        if number not in self._frames:
            self._frames[number] = self._draw(number)
        return self._frames[number]

    def describe(self, frame: float | None) -> str:
        """Return in words which frame `at` returns; empty of a picture."""
        if self._axis is None or self.frames == 1:
            return ""
        return f"{'slice' if self._is_volume else 'frame'} {self._number(frame)} of {self.frames}, from 0"

    @property
    def _is_volume(self) -> bool:
        return self._preparation.volume and self._preparation.frames == 1

    def _number(self, frame: float | None) -> int:
        if frame is None:
            return self.frames // 2 if self._is_volume else 0
        return min(max(int(frame + 0.5), 0), self.frames - 1)

    def _draw(self, number: int) -> NDArray[Any]:
        values = self._prepared if self._axis is None else self._prepared.select(self._axis, number)
        values = values.float()
        if self._preparation.mean:
            numbers = self._preparation.mean, self._preparation.std
            mean, std = (values.new_tensor(each).view(-1, 1, 1) for each in numbers)
            values = values * std + mean
        shown = values[0] if len(values) < 3 else values[:3].permute(1, 2, 0)
        if self.range:
            low, high = self.range
            shown = (shown - low) / (high - low) if low < high else torch.zeros_like(shown)
        pixels = shown.mul(255).add_(0.5).nan_to_num_(0).clamp_(0, 255).to(torch.uint8)
        drawn: NDArray[np.uint8] = pixels.cpu().contiguous().numpy()
        return drawn


def shown_range(prepared: Tensor, preparation: Preparation) -> tuple[float, float] | None:
    """Return the values that are black and white where a preprocessed input is shown; None: its normalisation is undone.

    Values within 0 to 1 are shown from 0 to 1, others from the smallest to the largest finite one that is shown, of all
    frames or slices.
    """
    if preparation.mean:
        return None
    channels = prepared.movedim(1, 0) if prepared.ndim == 4 and preparation.time_first else prepared
    shown = channels[: 1 if len(channels) < 3 else 3].float()
    finite = shown[shown.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    return (0.0, 1.0) if 0 <= low <= high <= 1 else (low, high)
