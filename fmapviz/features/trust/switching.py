"""Switch off the channels of a layer, each in a copy of one image."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fmapviz.core.layout import LayoutError
from fmapviz.core.words import counted
from fmapviz.observe.hooks import exchange
from fmapviz.observe.layouts.find import usual_layout
from fmapviz.observe.reshape import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from fmapviz.core.layout import Layout
    from fmapviz.data import FeatureMap

# In place of a channel.
NONE = -1  # the copy is unchanged
NOISE = -2  # all channels are noise of a larger range


class NotExpandedError(Exception):
    """What a layer returned for one image cannot be expanded to copies; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere:
    """What a layer returns for other images.

    Attributes:
        values: For the only one, `(1, ...)` where the first axis is that of the images; None: `means` is used.
        means: The mean of each channel over all of them, float64 `(C,)`.
    """

    values: Tensor | None
    means: Tensor | None = None


@dataclass(slots=True, eq=False)
class Switch:
    """Switches off one channel of a layer's output in each copy of an image.

    Attributes:
        feature_map: The output, of a pass of the unchanged image.
        off: What replaces the values of a channel, `zero` or `mean`, unless `elsewhere` does.
        elsewhere: What it is in other images.
        layout: The axes of the output.
        copies: The channel that is switched off in each of M copies, or `NONE`; or of each `NOISE` or `NONE`.
        expands: Whether the layer returns the output for one image, which becomes that of M copies.
        reached: Whether the output was found in the last pass.
        seen: The output of the last pass, if it was only to be seen.
    """

    feature_map: FeatureMap
    off: str
    elsewhere: Elsewhere | None = None
    layout: Layout = field(init=False)
    copies: Sequence[int] = ()
    expands: bool = False
    reached: bool = False
    seen: Tensor | None = None
    _calls: int = 0

    def __post_init__(self) -> None:
        own, values = self.feature_map, self.feature_map.values
        self.layout = own.layout or usual_layout(own.layer.module, values)
        if self.layout.refused:
            raise NotAMapError(self.layout.refused)
        if not values.is_floating_point():
            raise NotAMapError("its values are no floating-point numbers, of which a channel can be switched off")
        if not self.layout.counts[1]:
            raise NotAMapError("it has no axis of channels")

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Switch off the channels in passes of the network."""
        handle = self.feature_map.layer.module.register_forward_hook(self._hook)
        try:
            yield
        finally:
            handle.remove()

    def begin(self, copies: Sequence[int], *, expands: bool) -> None:
        """Begin a pass; without copies, the output is only seen."""
        self.copies, self.expands, self.reached, self.seen, self._calls = copies, expands, False, None, 0

    def _hook(self, _module: nn.Module, _given: object, returned: Any) -> Any:  # Any: a module may return anything
        self._calls += 1
        own = self.feature_map
        if self._calls != own.call:
            return None
        prefix = own.layer.name if own.call == 1 else f"{own.layer.name}#{own.call}"

        def change(part: str, values: Tensor) -> Tensor:
            if f"{prefix}{part}" != own.name:
                return values
            self.reached = True
            if not self.copies:
                self.seen = values.detach().clone()
                return values
            return self.switched(values)

        return exchange(returned, change)

    def switched(self, values: Tensor) -> Tensor:
        """Return the output of each copy with its channel switched off.

        Args:
            values: Of M copies, or of one image.

        Raises:
            NotExpandedError: The first axis is not that of one image, or the copies have another layout.
        """
        if self.expands:
            if self.layout.dims[:1] != ((0,),) or len(values) != 1:
                raise NotExpandedError("its first axis is not that of the images")
            values = values.expand(len(self.copies), *values.shape[1:])
        try:
            images, channels = numbers_of(self.layout, values)
        except LayoutError as error:
            raise NotExpandedError(str(error)) from error
        if int(images[(-1,) * images.ndim]) + 1 != len(self.copies):
            raise NotExpandedError("it does not have one output for each copy")
        chosen = torch.tensor(self.copies, device=values.device)[images]
        if NOISE in self.copies:
            return torch.where(chosen == NOISE, _noise_like(values), values)
        return torch.where(channels == chosen, self._replacement(values, images, channels), values)

    def _replacement(self, values: Tensor, images: Tensor, channels: Tensor) -> Tensor:
        """Return what each value is replaced by."""
        other = self.elsewhere or Elsewhere(None)
        if other.values is not None:
            return self._laid_over(other.values, values)
        if other.means is not None:
            if len(other.means) != int(channels.max()) + 1:
                raise NotAMapError(f"it has {counted(len(other.means), 'channel')} in the other images")
            return other.means[channels].to(values.dtype)
        if self.off == "zero":
            return values.new_zeros(())
        count = int(channels.max()) + 1
        cells = (images * count + channels).expand(values.shape).flatten()
        sums = torch.zeros(len(self.copies) * count, dtype=torch.float64, device=values.device)
        sums = sums.index_add(0, cells, values.double().flatten())
        return (sums / torch.bincount(cells, minlength=len(sums)))[cells].view(values.shape).to(values.dtype)

    def _laid_over(self, other: Tensor, values: Tensor) -> Tensor:
        """Return the output for another image, of the shape of that for each copy.

        Raises:
            NotAMapError: It has another shape.
            NotExpandedError: There are several copies, not along the first axis.
        """
        if other.shape == values.shape:
            return other
        if other.shape[1:] == values.shape[1:] and self.layout.dims[:1] == ((0,),) and len(other) == 1:
            return other.expand_as(values)
        if len(self.copies) > 1:
            raise NotExpandedError("its first axis is not that of the images")
        shapes = " and ".join(" x ".join(map(str, each.shape[1:])) for each in (other, values))
        raise NotAMapError(f"it has another shape in the other image: {shapes}; size= gives all images one size")

    def sums(self) -> tuple[Tensor, int]:
        """Return the sums over each channel of what was seen, float64 `(C,)`, and the number of values of a channel.

        Raises:
            LayoutError: It has another layout.
        """
        assert self.seen is not None
        layout, shape = self.layout, self.seen.shape
        if len(layout.dims) == len(shape) and all(len(dim) == 1 for dim in layout.dims):  # axes of any length
            of_images, of_channels = layout.counts
            channels = _number(shape, layout.order[of_images : of_images + of_channels], self.seen.device)
        else:
            _, channels = numbers_of(layout, self.seen)
        cells = channels.expand(shape).flatten()
        count = int(channels.max()) + 1
        sums = torch.zeros(count, dtype=torch.float64, device=cells.device)
        return sums.index_add(0, cells, self.seen.double().flatten()), len(cells) // count


def _noise_like(values: Tensor) -> Tensor:
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(0)).to(values)
    return noise * 4 * values.nan_to_num(0, 0, 0).abs().amax().clamp(min=1)


def numbers_of(layout: Layout, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the image and of the channel that each value belongs to.

    Args:
        layout: The axes of the values.
        values: Of any number of images.

    Returns:
        int64 each, of the shape of the values, or 1 in place of some lengths.

    Raises:
        LayoutError: The values have another shape.

    Example:
        >>> from fmapviz.core.layout import layout_from
        >>> layout = layout_from("N H W C", (2, 1, 1, 3), images=2, picture=None)
        >>> [each.tolist() for each in numbers_of(layout, torch.zeros(2, 1, 1, 3))]
        [[[[[0]]], [[[1]]]], [[[[0, 1, 2]]]]]
    """
    sizes = layout.sizes(values.shape)
    of_images, of_channels = layout.counts
    digits = layout.order[:of_images], layout.order[of_images : of_images + of_channels]
    images, channels = (_number(sizes, each, values.device) for each in digits)
    if all(len(dim) == 1 for dim in layout.dims):
        return images, channels
    return images.expand(sizes).reshape(values.shape), channels.expand(sizes).reshape(values.shape)


def _number(sizes: Sequence[int], digits: Sequence[int], device: torch.device) -> Tensor:
    """Return the number whose digits some axes are, the outermost first, `(1, ..., size, ..., 1)`."""
    number = torch.zeros([1] * len(sizes), dtype=torch.int64, device=device)
    for digit in digits:
        shape = [1] * len(sizes)
        shape[digit] = sizes[digit]
        number = number * sizes[digit] + torch.arange(sizes[digit], device=device).view(shape)
    return number
