"""Turn a picture into what a network is given, and that back into what the network saw."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image as PillowImage
from torch import Tensor

from fmapviz.errors import InputError
from fmapviz.options import InputOptions
from fmapviz.values import Preparation
from fmapviz.vision import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# What no resizing may exceed; a strip of 1 x 10000 pixels whose short side becomes 520 would.
MAX_PREPARED_PIXELS = 64_000_000


def standard(
    options: InputOptions,
    *,
    size: tuple[int, int] = (224, 224),
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Preparation:
    """Fit to a size, scale to 0..1, subtract a mean and divide by a deviation.

    Args:
        options: What the user wants otherwise.
        size: Height and width where the user names none.
        mean: Where the user names none.
        std: Where the user names none.
    """
    height, width = options.size or size
    fit = options.fit or "crop"
    words = "size kept" if fit == "none" else f"{fit} to {height}x{width}"
    return _normalized(lambda picture: _FITS[fit](picture, height, width), words, options.mean or mean, options.std or std)


# Any: torchvision's presets share attributes, but no public class.
def as_trained(preset: Any, options: InputOptions) -> Preparation:
    """Prepare as the weights were trained, with a torchvision preset for single pictures.

    Args:
        preset: `weights.transforms()`, made for this call: mean and deviation the user gives are written into it.
        options: A size or fit in it replaces the preset's own geometry.
    """
    mean, std = options.mean or tuple(preset.mean), options.std or tuple(preset.std)
    if options.size or options.fit:
        return standard(options, size=_square(_crop_size(preset) or preset.resize_size), mean=mean, std=std)
    preset.mean, preset.std = list(mean), list(std)

    def apply(picture: PillowImage.Image) -> Tensor:
        prepared: Tensor = preset(_of_bearable_shape(picture, preset.resize_size, crops=_crop_size(preset) is not None))
        return prepared

    return Preparation(apply, mean, std, _words(preset))


def unscaled(options: InputOptions) -> Preparation:
    """Give a network that resizes and normalises by itself, such as a detector, the values 0..1."""
    return standard(
        options if options.size or options.fit else InputOptions(fit="none", mean=options.mean, std=options.std),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )


def in_steps(options: InputOptions, *, step: int, least: int, box: tuple[int, int]) -> Preparation:
    """Keep the proportions nearly, inside a box, with sides that are multiples of a step; values -1..1.

    Args:
        options: A size or fit in it replaces this geometry.
        step: Pixels.
        least: Pixels that no side may fall short of.
        box: Height and width that are not exceeded, but for `least`.
    """
    half = (0.5, 0.5, 0.5)
    if options.size or options.fit:
        return standard(options, size=box, mean=half, std=half)

    def fit(picture: PillowImage.Image) -> PillowImage.Image:
        scale = min(box[0] / picture.height, box[1] / picture.width)
        height, width = (max(least, round(side * scale / step) * step) for side in (picture.height, picture.width))
        return _squash(picture, height, width)

    words = f"inside {box[0]}x{box[1]}, sides multiples of {step}"
    return _normalized(fit, words, options.mean or half, options.std or half)


def clip(preset: Any, options: InputOptions, *, frames: int) -> Preparation:
    """Make a still clip `(C, T, H, W)` of a picture, with a torchvision preset for videos.

    Args:
        preset: `weights.transforms()` of a video model.
        options: A size or fit in it replaces the preset's own geometry.
        frames: T, the length of the clip.
    """
    mean, std = options.mean or tuple(preset.mean), options.std or tuple(preset.std)
    preset.mean, preset.std = list(mean), list(std)
    fitted = standard(options, size=_square(preset.crop_size), mean=mean, std=std)

    def apply(picture: PillowImage.Image) -> Tensor:
        if options.size or options.fit:
            frame = fitted.apply(picture)[:, None]
        else:
            bearable = _of_bearable_shape(picture, preset.resize_size, crops=True)
            frame = preset(functional.pil_to_tensor(bearable)[None])
        return frame.expand(-1, frames, -1, -1)

    words = fitted.description if options.size or options.fit else _words(preset)
    return Preparation(apply, mean, std, f"{words}, {frames} equal frames")


def as_seen(prepared: Tensor, preparation: Preparation) -> NDArray[Any]:
    """Undo the normalisation of what a network is given.

    Args:
        prepared: `(C, H, W)` with 1 or 3 channels, or a clip `(C, T, H, W)`, of which the first frame is shown.

    Returns:
        uint8 `(H, W)` or `(H, W, 3)`.
    """
    frame = prepared[:, 0] if prepared.ndim == 4 else prepared
    mean, std = (frame.new_tensor(values).view(-1, 1, 1) for values in (preparation.mean, preparation.std))
    pixels = (frame * std + mean).mul_(255).add_(0.5).clamp_(0, 255).to(torch.uint8)
    picture = pixels[0] if len(pixels) == 1 else pixels[:3].permute(1, 2, 0)
    return picture.cpu().contiguous().numpy()


def _normalized(
    geometry: Callable[[PillowImage.Image], PillowImage.Image], words: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> Preparation:
    def apply(picture: PillowImage.Image) -> Tensor:
        pixels = functional.convert_image_dtype(functional.pil_to_tensor(geometry(picture)), torch.float32)
        normalized: Tensor = functional.normalize(pixels, mean=list(mean), std=list(std))
        return normalized

    return Preparation(apply, mean, std, f"{words}, mean {mean}, std {std}")


def _crop(picture: PillowImage.Image, height: int, width: int) -> PillowImage.Image:
    """Cover the size with the picture's middle: the overhang is cut before resizing."""
    scale = max(height / picture.height, width / picture.width)
    across, down = width / scale, height / scale
    left, top = (picture.width - across) / 2, (picture.height - down) / 2
    box = (max(0.0, left), max(0.0, top), min(picture.width, left + across), min(picture.height, top + down))
    return picture.resize((width, height), PillowImage.Resampling.BILINEAR, box=box)


def _squash(picture: PillowImage.Image, height: int, width: int) -> PillowImage.Image:
    return picture.resize((width, height), PillowImage.Resampling.BILINEAR)


def _pad(picture: PillowImage.Image, height: int, width: int) -> PillowImage.Image:
    scale = min(height / picture.height, width / picture.width)
    inner = _squash(picture, max(1, round(picture.height * scale)), max(1, round(picture.width * scale)))
    padded = PillowImage.new("RGB", (width, height))
    padded.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return padded


def _keep(picture: PillowImage.Image, _height: int, _width: int) -> PillowImage.Image:
    return picture


_FITS = {"crop": _crop, "squash": _squash, "pad": _pad, "none": _keep}


def _words(preset: Any) -> str:
    """Describe a preset; whatever of it changes the result is in the words."""
    crop = _crop_size(preset)
    steps = [f"resize to {_sides(preset.resize_size)}", f"crop to {_sides(crop)}" if crop else ""]
    steps += [f"{preset.interpolation.value}", f"mean {tuple(preset.mean)}", f"std {tuple(preset.std)}"]
    return ", ".join(step for step in steps if step)


def _sides(sides: list[int]) -> str:
    return "x".join(map(str, sides))


def _crop_size(preset: Any) -> list[int] | None:
    return getattr(preset, "crop_size", None)


def _square(sides: list[int]) -> tuple[int, int]:
    return sides[0], sides[-1]


def _of_bearable_shape(picture: PillowImage.Image, resize_size: list[int], *, crops: bool) -> PillowImage.Image:
    """Cut the ends off a very long strip that would be resized to gigabytes only to be cropped; refuse it otherwise."""
    short, long = sorted(picture.size)
    target = resize_size[0]
    if len(resize_size) == 2 or ceil(long * target / short) * target <= MAX_PREPARED_PIXELS:
        return picture
    if not crops:
        raise InputError(
            "E_TOO_LARGE",
            f"a strip of {picture.width} x {picture.height} pixels becomes too long when resized",
            hint="--fit squash, pad or crop",
        )
    keep = 8 * short + long % 2  # even or odd as the whole: the middle stays the middle
    left, top = (max(0, (side - keep) // 2) for side in picture.size)
    return picture.crop((left, top, min(picture.width, left + keep), min(picture.height, top + keep)))
