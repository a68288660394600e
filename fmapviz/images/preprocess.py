"""Turn a picture into what a network is given, and that back into what the network saw."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image as PillowImage
from torch import Tensor

from fmapviz.errors import InputError, RequestError, printable
from fmapviz.options import InputOptions
from fmapviz.pixels import Bands
from fmapviz.values import Preparation
from fmapviz.vision import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_MEAN, GREY_STD = (0.449,), (0.226,)  # the averages of ImageNet's
# What no resizing may exceed; a strip of 1 x 10000 pixels whose short side becomes 520 would.
MAX_PREPARED_PIXELS = 64_000_000


def standard(
    options: InputOptions,
    *,
    size: tuple[int, int] = (224, 224),
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    channels: int = 3,
) -> Preparation:
    """Fit to a size, scale to 0..1, subtract a mean and divide by a deviation.

    Args:
        options: What the user wants otherwise.
        size: Height and width where the user names none.
        mean: Where the user names none; None is ImageNet's, or its average for other channels than RGB.
        std: Likewise.
        channels: C, what the network takes.

    Raises:
        RequestError: The user's mean or deviation is not one number and not one for each channel.

    Example:
        >>> standard(InputOptions(size=(32, 48)), channels=1).apply(PillowImage.new("L", (640, 480))).shape
        torch.Size([1, 32, 48])
    """
    height, width = options.size or size
    fit = options.fit or "crop"
    words = "size kept" if fit == "none" else f"{fit} to {height}x{width}"
    means, deviations = _normalization(
        options,
        mean=mean or (IMAGENET_MEAN if channels == 3 else GREY_MEAN),
        std=std or (IMAGENET_STD if channels == 3 else GREY_STD),
        channels=channels,
    )
    return _normalized(
        lambda picture: _FITS[fit](picture, height, width), words, mean=means, std=deviations, channels=channels
    )


# Any: torchvision's presets share attributes, but no public class.
def as_trained(preset: Any, options: InputOptions) -> Preparation:
    """Prepare as the weights were trained, with a torchvision preset for single pictures.

    Args:
        preset: `weights.transforms()`, made for this call: mean and deviation the user gives are written into it.
        options: A size or fit in it replaces the preset's own geometry.

    Raises:
        RequestError: The user's mean or deviation is not 1 or 3 numbers.
    """
    mean, std = _normalization(options, mean=tuple(preset.mean), std=tuple(preset.std))
    if options.size or options.fit:
        return standard(options, size=_square(_crop_size(preset) or preset.resize_size), mean=mean, std=std)
    preset.mean, preset.std = list(mean), list(std)

    def apply(picture: PillowImage.Image | Bands) -> Tensor:
        bearable = _each(
            picture, lambda plane: _of_bearable_shape(plane, preset.resize_size, crops=_crop_size(preset) is not None)
        )
        prepared: Tensor = preset(_to_tensor(bearable) if isinstance(bearable, Bands) else bearable)
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
    mean, std = _normalization(options, mean=half, std=half)
    return _normalized(fit, words, mean=mean, std=std)


def clip(preset: Any, options: InputOptions, *, frames: int) -> Preparation:
    """Make a still clip `(C, T, H, W)` of a picture, with a torchvision preset for videos.

    Args:
        preset: `weights.transforms()` of a video model.
        options: A size or fit in it replaces the preset's own geometry.
        frames: T, the length of the clip.
    """
    mean, std = _normalization(options, mean=tuple(preset.mean), std=tuple(preset.std))
    preset.mean, preset.std = list(mean), list(std)
    fitted = standard(options, size=_square(preset.crop_size), mean=mean, std=std)

    def apply(picture: PillowImage.Image | Bands) -> Tensor:
        if options.size or options.fit:
            frame = fitted.apply(picture)[:, None]
        else:
            bearable = _each(picture, lambda plane: _of_bearable_shape(plane, preset.resize_size, crops=True))
            frame = preset(_to_tensor(bearable)[None])
        return frame.expand(-1, frames, -1, -1)

    words = fitted.description if options.size or options.fit else _words(preset)
    return Preparation(apply, mean, std, f"{words}, {frames} equal frames")


# Callable[..., object]: whatever the user brings; what it returns is looked at.
def by_callable(preprocess: Callable[..., object], *, description: str, channels: int = 3) -> Preparation:
    """Prepare with the user's own function.

    Mean and deviation are taken from its attributes `mean` and `std`, as torchvision's presets have them, or from the last
    of its `transforms` that has them; else they are empty.

    Args:
        preprocess: Takes a Pillow image in mode RGB, or L for one channel; a float32 tensor `(C, H, W)` of values 0..1 if
            the file is more than 8 bits of that. Returns a floating-point tensor `(C, H, W)` or `(1, C, H, W)`. It is
            called from several threads.
        description: One line that names it.
        channels: C, what the network takes.

    Example:
        >>> from torchvision.transforms import ToTensor
        >>> by_callable(ToTensor(), description="ToTensor").apply(PillowImage.new("RGB", (64, 48))).shape
        torch.Size([3, 48, 64])
    """

    def apply(picture: PillowImage.Image | Bands) -> Tensor:
        try:
            returned = preprocess(_to_tensor(picture) if isinstance(picture, Bands) else picture)
        except (Exception, SystemExit) as error:  # a script's sys.exit() too
            reason = printable(str(error).partition("\n")[0])
            message = f"the preprocessing failed ({type(error).__name__}{': ' if reason else ''}{reason})"
            raise InputError("E_PREPARE", message) from error
        return _require_prepared(returned, channels)

    mean, std = _find_normalization(preprocess, channels) or ((), ())
    return Preparation(apply, mean, std, description, channels)


def as_seen(prepared: Tensor, preparation: Preparation) -> NDArray[Any]:
    """Undo the normalisation of what a network is given.

    Without a known mean and deviation the picture is stretched from its own finite minimum to its maximum, and is black
    if these are equal. NaN is black.

    Args:
        prepared: `(C, H, W)`, or a clip `(C, T, H, W)`, of which the first frame is shown.

    Returns:
        uint8: the first channel `(H, W)` of one or two, the first three `(H, W, 3)` of more.
    """
    frame = (prepared[:, 0] if prepared.ndim == 4 else prepared).float()
    if preparation.mean:
        mean, std = (frame.new_tensor(values).view(-1, 1, 1) for values in (preparation.mean, preparation.std))
        shown = _shown(frame * std + mean)
    else:
        shown = _stretched(_shown(frame))
    pixels = shown.mul(255).add_(0.5).nan_to_num_(0).clamp_(0, 255).to(torch.uint8)
    return pixels.cpu().contiguous().numpy()


def _normalization(
    options: InputOptions, *, mean: tuple[float, ...], std: tuple[float, ...], channels: int = 3
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Choose between what the user wants and what is usual."""
    for option, numbers in (("mean", options.mean), ("std", options.std)):
        if numbers and len(numbers) not in {1, channels}:
            counts = f"1 or {channels} numbers" if channels > 1 else "1 number"
            raise RequestError(
                f"{option} must be {counts}: '{','.join(map(str, numbers))}'",
                hint="one for all channels, or one for each of the model's input channels",
            )
    return options.mean or mean, options.std or std


def _normalized(
    geometry: Callable[[PillowImage.Image], PillowImage.Image],
    words: str,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    channels: int = 3,
) -> Preparation:
    def apply(picture: PillowImage.Image | Bands) -> Tensor:
        pixels = functional.convert_image_dtype(_to_tensor(_each(picture, geometry)), torch.float32)
        normalized: Tensor = functional.normalize(pixels, mean=list(mean), std=list(std))
        return normalized

    taken = "" if channels == 3 else "1 channel, " if channels == 1 else f"{channels} channels, "
    return Preparation(apply, mean, std, f"{taken}{words}, mean {mean}, std {std}", channels)


def _each(
    picture: PillowImage.Image | Bands, change: Callable[[PillowImage.Image], PillowImage.Image]
) -> PillowImage.Image | Bands:
    return picture.each(change) if isinstance(picture, Bands) else change(picture)


def _to_tensor(picture: PillowImage.Image | Bands) -> Tensor:
    """Give `(C, H, W)`: uint8 of a picture, float32 of bands."""
    planes = picture.planes if isinstance(picture, Bands) else (picture,)
    return torch.cat([functional.pil_to_tensor(plane) for plane in planes])


def _require_prepared(returned: object, channels: int) -> Tensor:
    """Give what a user's function returned as float32 `(C, H, W)` on the CPU."""
    if not isinstance(returned, Tensor):
        raise InputError("E_PREPARE", f"the preprocessing must return a tensor, not {type(returned).__name__}")
    prepared = returned[0] if returned.ndim == 4 and len(returned) == 1 else returned
    shape = f"{str(returned.dtype).removeprefix('torch.')} {tuple(returned.shape)}"
    if prepared.ndim != 3 or len(prepared) != channels or not prepared.numel() or not prepared.is_floating_point():
        wanted = f"floating-point numbers ({channels}, height, width)"
        raise InputError("E_PREPARE", f"the preprocessing must return {wanted} for this model, not {shape}")
    return prepared.detach().as_subclass(Tensor).to("cpu", torch.float32)


# Any: whatever the user brings.
def _find_normalization(preprocess: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Give the mean and the deviation that a user's function tells of."""
    try:
        mean, std = (
            tuple(torch.as_tensor(values, dtype=torch.float64).flatten().tolist())
            for values in (preprocess.mean, preprocess.std)
        )
    except Exception:  # noqa: BLE001 - they are missing, or something else than numbers
        steps = getattr(preprocess, "transforms", None)
        told = (_find_normalization(step, channels) for step in reversed(steps)) if isinstance(steps, list | tuple) else ()
        return next(filter(None, told), None)
    # Beyond 1 they are not on a 0..1 scale: undone they would show nothing but white.
    scaled = all(-1 <= value <= 1 for value in mean) and all(0 < value <= 1 for value in std)
    return (mean, std) if scaled and {len(mean), len(std)} <= {1, channels} else None


def _shown(frame: Tensor) -> Tensor:
    """Give `(H, W)` or `(H, W, 3)` of `(C, H, W)`."""
    return frame[0] if len(frame) < 3 else frame[:3].permute(1, 2, 0)


def _stretched(values: Tensor) -> Tensor:
    finite = values[values.isfinite()]
    low, high = (finite.min(), finite.max()) if len(finite) else (0, 0)
    return (values - low) / (high - low) if low < high else torch.zeros_like(values)


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
    padded = PillowImage.new(picture.mode, (width, height))
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
