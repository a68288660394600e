"""Preprocess decoded images for a model, and undo the normalisation for display."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from fmapviz.config import sides_of
from fmapviz.core.bands import Bands
from fmapviz.core.lazy_torchvision import functional
from fmapviz.core.placement import Placement
from fmapviz.core.samples import Samples
from fmapviz.data import Preparation
from fmapviz.errors import InputError, RequestError, printable
from fmapviz.images.arrays import scale, scale_volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmapviz.config import InputOptions

    Geometry = Callable[[PillowImage.Image], PillowImage.Image]
    Pixels = PillowImage.Image | Bands | Samples

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_MEAN, GREY_STD = (0.449,), (0.226,)  # averages of ImageNet's
# Limit after resizing, which a strip of 1 x 10000 pixels would exceed if its short side became 520.
MAX_PREPARED_PIXELS = 64_000_000


def standard(
    preprocessing: InputOptions,
    *,
    size: tuple[int, int] = (224, 224),
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    channels: int = 3,
    usual: tuple[Geometry, str] | None = None,
    resampling: PillowImage.Resampling = PillowImage.Resampling.BILINEAR,
    bars: float = 0.0,
) -> Preparation:
    """Fit to a size, scale to 0..1, subtract the mean and divide by the standard deviation.

    Args:
        preprocessing: The user's options, which take precedence.
        size: Default height and width.
        mean: Default mean; None is ImageNet's, or its average if the model does not take RGB.
        std: Default standard deviation, likewise.
        channels: C, the number of channels that the model takes.
        usual: A geometry and its description, unless the user sets a size or a fit.
        resampling: The filter that resizes, which depends on neither the size nor the fit.
        bars: Shade of the bars of `fit="pad"`, from 0, black, to 1.

    Raises:
        RequestError: The user's mean or standard deviation has neither one number nor one for each channel.

    Example:
        >>> from fmapviz.config import InputOptions
        >>> standard(InputOptions(size=(32, 48)), channels=1).apply(PillowImage.new("L", (640, 480))).shape
        torch.Size([1, 32, 48])
    """
    height, width = sides_of(preprocessing) or size
    fit, place = preprocessing.fit or "crop", None
    if usual is None or preprocessing.size or preprocessing.fit:
        words = "size kept" if fit == "none" else f"{fit} to {height}x{width}"
        if fit != "none" and resampling != PillowImage.Resampling.BILINEAR:
            words += f", {resampling.name.lower()}"
        if fit == "pad" and bars:
            words += f" on {round(bars * 255)} of 255"
        fitted = partial(_pad, bars=bars) if fit == "pad" else _FITS[fit]
        usual = (lambda picture: fitted(picture, height, width, resampling)), words
        place = partial(_place, fit, height, width)
    geometry, description = usual
    means, stds = _normalization(
        preprocessing,
        mean=mean or (IMAGENET_MEAN if channels == 3 else GREY_MEAN),
        std=std or (IMAGENET_STD if channels == 3 else GREY_STD),
        channels=channels,
    )

    def apply(picture: Pixels) -> Tensor:
        picture = _scaled(picture)
        pixels = functional.convert_image_dtype(_to_tensor(_each(picture, geometry)), torch.float32)
        normalized: Tensor = functional.normalize(pixels, mean=list(means), std=list(stds))
        return normalized

    words = f"{_count(channels)}{description}, mean {means}, std {stds}"
    return Preparation(apply, means, stds, words, channels, place=place)


def as_for_imagenet(
    preprocessing: InputOptions,
    *,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    channels: int = 3,
) -> Preparation:
    """Preprocess as the classifiers of ImageNet are evaluated: resize the short side to 256, crop to 224.

    It is the default of `torchvision.transforms._presets.ImageClassification`, for networks of which nothing is known.

    Args:
        preprocessing: A size or fit replaces this geometry; images of that size are then not resized.
        mean: Default mean, as in `standard`.
        std: Default standard deviation, likewise.
        channels: C, the number of channels that the network takes.

    Example:
        >>> from fmapviz.config import InputOptions
        >>> as_for_imagenet(InputOptions()).description.partition(", mean")[0]
        'resize to 256, crop to 224, bilinear'
    """

    def fit(picture: PillowImage.Image) -> PillowImage.Image:
        resized = functional.resize(_limit_strip(picture, [256], crops=True), [256])
        cropped: PillowImage.Image = functional.center_crop(resized, [224])
        return cropped

    words = "resize to 256, crop to 224, bilinear"
    return standard(preprocessing, mean=mean, std=std, channels=channels, usual=(fit, words))


def for_volumes(preprocessing: InputOptions, *, channels: int, shape: tuple[int, int, int] | None = None) -> Preparation:
    """Scale volumes to 0..1, and fit their slices to a size if one is given.

    Args:
        preprocessing: A size or fit holds for each slice; a mean and a deviation normalise, which is not done without them.
        channels: C, the number of channels that the network takes.
        shape: Depth, height and width that the network takes; a picture is then repeated, and a film read in clips. None:
            only volumes are taken, of any size.

    Raises:
        RequestError: The user's mean or standard deviation has neither one number nor one for each channel.
    """
    depth = shape[0] if shape else None
    kept = shape is None and preprocessing.size is None and preprocessing.fit is None
    usual = (lambda picture: picture, "size kept") if kept else None
    zeros, ones = (0.0,) * channels, (1.0,) * channels
    size = (shape[1], shape[2]) if shape else (224, 224)
    plane = standard(preprocessing, size=size, mean=zeros, std=ones, channels=channels, usual=usual)

    def apply(picture: Pixels) -> Tensor:
        if isinstance(picture, Samples) and picture.values.ndim == 4:
            slices = np.moveaxis(scale_volume(picture), 1, 0)
            pictures = (Bands(tuple(PillowImage.fromarray(channel) for channel in each)) for each in slices)
            return torch.stack([plane.apply(bands) for bands in pictures], dim=1)
        if depth is None:
            axes = "(D, H, W)" if channels == 1 else f"({channels}, D, H, W)"
            raise InputError(
                "E_CHANNELS",
                "the network takes volumes, this is a picture",
                hint=f"a .npy array {axes}; with inputs = ({channels}, D, H, W) beside the network a picture is repeated; "
                f"with inputs = ({channels}, H, W), it is given as it is",
            )
        return plane.apply(picture)[:, None].expand(-1, depth, -1, -1)

    words = f"volumes, {plane.description}" if depth is None else f"volumes, {plane.description}, {depth} frames"
    frame = None if depth is None else plane.apply
    return replace(plane, apply=apply, description=words, volume=True, frames=depth or 1, frame=frame)


# Any: torchvision's presets share attributes, but no public class.
def as_trained(preset: Any, preprocessing: InputOptions, *, is_video: bool = False, channels: int = 3) -> Preparation:
    """Preprocess as in training, with a torchvision preset.

    Args:
        preset: `weights.transforms()`. It is modified: the user's mean and standard deviation are written into it.
        preprocessing: A size or fit replaces the geometry of the preset, but not its filter.
        is_video: Whether the preset is for videos. The image is a video of one frame.
        channels: C, the number of channels that the network takes.

    Raises:
        RequestError: The user's mean or standard deviation has neither one number nor one for each channel.
    """
    usual = (tuple(preset.mean), tuple(preset.std)) if channels == 3 else (GREY_MEAN, GREY_STD)
    mean, std = _normalization(preprocessing, mean=usual[0], std=usual[1], channels=channels)
    crop = getattr(preset, "crop_size", None)
    if preprocessing.size or preprocessing.fit:
        sides, resampling = crop or preset.resize_size, PillowImage.Resampling[preset.interpolation.name]
        return standard(
            preprocessing, size=(sides[0], sides[-1]), mean=mean, std=std, channels=channels, resampling=resampling
        )
    preset.mean, preset.std = list(mean), list(std)

    def apply(picture: Pixels) -> Tensor:
        picture = _scaled(picture)
        limited = _each(picture, lambda plane: _limit_strip(plane, preset.resize_size, crops=crop is not None))
        if is_video:
            clip_of_one: Tensor = preset(_to_tensor(limited)[None])
            return clip_of_one[:, 0]
        prepared: Tensor = preset(_to_tensor(limited) if isinstance(limited, Bands) else limited)
        return prepared

    resized, cropped = ("x".join(map(str, sides)) for sides in (preset.resize_size, crop or []))
    geometry = f"{_count(channels)}resize to {resized}{', crop to ' if crop else ''}{cropped}"
    return Preparation(apply, mean, std, f"{geometry}, {preset.interpolation.value}, mean {mean}, std {std}", channels)


def clip(preset: Any, preprocessing: InputOptions, *, frames: int) -> Preparation:
    """Preprocess the frames of a clip `(C, T, H, W)`, or repeat an image to one, with a torchvision preset for videos.

    Args:
        preset: `weights.transforms()` of a video model. It is modified as in `as_trained`.
        preprocessing: A size or fit replaces the geometry of the preset.
        frames: T, the length of the clip.
    """
    frame = as_trained(preset, preprocessing, is_video=True)
    return replace(
        frame,
        apply=lambda picture: frame.apply(picture)[:, None].expand(-1, frames, -1, -1),
        description=f"{frame.description}, {frames} frames",
        frames=frames,
        frame=frame.apply,
    )


def clip_length(description: str) -> int:
    """Return the number of frames that a network takes, by the description of its preprocessing.

    Example:
        >>> clip_length("resize to 128x171, crop to 112x112, 16 frames"), clip_length("crop to 224x224")
        (16, 1)
    """
    match = re.search(r", (\d+) frames$", description)
    return int(match[1]) if match else 1


def unnormalized(preprocessing: InputOptions) -> Preparation:
    """Scale to 0..1 only, for a model that resizes and normalises its input, such as a detector."""
    if preprocessing.size is None and preprocessing.fit is None:
        preprocessing = replace(preprocessing, fit="none")
    return standard(preprocessing, mean=(0.0,) * 3, std=(1.0,) * 3)


def in_steps(preprocessing: InputOptions, *, step: int, least: int, box: tuple[int, int]) -> Preparation:
    """Resize to fit a box, nearly keeping the aspect ratio, to sides that are multiples of a step; scale to -1..1.

    Args:
        preprocessing: A size or fit replaces this geometry.
        step: Pixels.
        least: Minimum of each side in pixels.
        box: Maximum height and width, unless `least` is larger.
    """

    def fit(picture: PillowImage.Image) -> PillowImage.Image:
        scale = min(box[0] / picture.height, box[1] / picture.width)
        height, width = (max(least, round(side * scale / step) * step) for side in (picture.height, picture.width))
        return picture.resize((width, height), PillowImage.Resampling.BILINEAR)

    usual = fit, f"inside {box[0]}x{box[1]}, sides multiples of {step}"
    return standard(preprocessing, size=box, mean=(0.5,) * 3, std=(0.5,) * 3, usual=usual)


# Callable[..., object]: a function of the user, whose result is checked.
def by_callable(
    preprocess: Callable[..., object],
    *,
    description: str,
    channels: int = 3,
    as_stored: bool = False,
    volume: bool = False,
) -> Preparation:
    """Preprocess with a function.

    The mean and the standard deviation are its attributes `mean` and `std`, as in torchvision's presets, or those of the
    last of its `transforms` that has them. Without them they are unknown.

    Args:
        preprocess: Takes a Pillow image in mode RGB or L, or for other images a float32 tensor `(C, H, W)` of values 0..1,
            or what `stored_values` returns. Returns a floating-point tensor `(C, H, W)` or `(1, C, H, W)`. It is called
            from several threads.
        description: One line that names it.
        channels: C, the number of channels that the model takes.
        as_stored: Whether it takes the values of the file; see `stored_values`.
        volume: Whether the network takes volumes, so that the function also returns `(C, D, H, W)`.

    Example:
        >>> from torchvision.transforms import ToTensor
        >>> by_callable(ToTensor(), description="ToTensor").apply(PillowImage.new("RGB", (64, 48))).shape
        torch.Size([3, 48, 64])
    """

    def apply(picture: Pixels) -> Tensor:
        given: PillowImage.Image | Bands | Tensor
        hint = None
        if isinstance(picture, Samples) and as_stored:
            given = stored_values(picture)
            kind = _words_of(given) if isinstance(given, Tensor) else f"a Pillow image in mode {given.mode}"
            hint = f"it is given the values of the file, here {kind}"
        elif isinstance(given := _scaled(picture), Bands):
            given = _to_tensor(given)
        try:
            returned = preprocess(given)
        except (Exception, SystemExit) as error:  # a script's sys.exit() too
            reason = printable(str(error).partition("\n")[0])
            message = f"the preprocessing failed ({type(error).__name__}{': ' if reason else ''}{reason})"
            raise InputError("E_PREPARE", message, hint=hint) from error
        return _require_prepared(returned, channels, hint, volume=volume)

    mean, std = _find_normalization(preprocess, channels) or ((), ())
    return Preparation(apply, mean, std, description, channels, volume=volume, own=as_stored)


def stored_values(samples: Samples) -> PillowImage.Image | Tensor:
    """Return the values of a file for a preprocessing of the user, unscaled.

    Returns:
        For a grey picture, a Pillow image in mode L (then RGB for a network of RGB), I;16, I or F, if one of them holds its
        values. Otherwise a tensor
        `(C, H, W)`, or `(C, D, H, W)` of a volume: uint8 or bool as in the file, else float32, or float64 if float32 would
        lose digits. Grey is repeated for a network of RGB.

    Example:
        >>> depth = np.array([[[500, 65000]]], np.uint16)
        >>> stored_values(Samples(depth, 500, 65000, channels=1, is_picture=True)).mode
        'I;16'
        >>> stored_values(Samples(depth, 500, 65000, channels=1))
        tensor([[[  500., 65000.]]])
    """
    values = samples.values
    if samples.mode:
        types = {"L": np.uint8, "I;16": np.uint16, "I": np.int32, "F": np.float32}
        stored = PillowImage.fromarray(np.ascontiguousarray(values[0], types[samples.mode]))
        return stored.convert("RGB") if samples.mode == "L" and samples.channels == 3 else stored
    if values.dtype.str[1:] not in {"u1", "b1"}:
        short = values.astype(np.float32)
        is_exact = values.dtype.itemsize < 4 or values.dtype == np.float32 or np.array_equal(short, values, equal_nan=True)
        values = short if is_exact else values.astype(np.float64)
    repeated = values if len(values) == samples.channels else np.repeat(values, samples.channels, axis=0)
    return torch.from_numpy(np.ascontiguousarray(repeated))


def grey_input(preparation: Preparation) -> Pixels:
    """Return a grey picture or volume with the channels that a preprocessing takes, where only the shape counts."""
    size, channels = (640, 480), preparation.channels
    if preparation.volume:
        values = np.full((channels, preparation.frames if preparation.frames > 1 else 32, 64, 64), 0.5, np.float32)
        return Samples(values, 0.0, 1.0, channels=channels)
    if channels in {1, 3}:
        return PillowImage.new("L" if channels == 1 else "RGB", size, "gray")
    return Bands((PillowImage.new("F", size, 0.5),) * channels)


def digest_of(prepared: Tensor) -> str:
    """Return the SHA-256 of a preprocessed input, on the CPU, and of its shape, in hexadecimal."""
    digest = hashlib.sha256(repr((prepared.dtype, tuple(prepared.shape))).encode())
    digest.update(prepared.contiguous().numpy().data)
    return digest.hexdigest()


def _normalization(
    preprocessing: InputOptions, *, mean: tuple[float, ...], std: tuple[float, ...], channels: int = 3
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the user's mean and standard deviation, or the default ones."""
    for option, numbers in (("mean", preprocessing.mean), ("std", preprocessing.std)):
        if numbers and len(numbers) not in {1, channels}:
            counts = f"1 or {channels} numbers" if channels > 1 else "1 number"
            raise RequestError(
                f"{option} must be {counts}: '{','.join(map(str, numbers))}'",
                hint="one for all channels, or one for each of the model's input channels",
            )
    return preprocessing.mean or mean, preprocessing.std or std


def _count(channels: int) -> str:
    return "" if channels == 3 else "1 channel, " if channels == 1 else f"{channels} channels, "


def _scaled(picture: Pixels) -> PillowImage.Image | Bands:
    return scale(picture) if isinstance(picture, Samples) else picture


def _each(picture: PillowImage.Image | Bands, change: Geometry) -> PillowImage.Image | Bands:
    return picture.each(change) if isinstance(picture, Bands) else change(picture)


def _to_tensor(picture: PillowImage.Image | Bands) -> Tensor:
    """Return `(C, H, W)`: uint8 for a picture, float32 for bands."""
    planes = picture.planes if isinstance(picture, Bands) else (picture,)
    return torch.cat([functional.pil_to_tensor(plane) for plane in planes])


def _words_of(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"


def _require_prepared(returned: object, channels: int, hint: str | None = None, *, volume: bool = False) -> Tensor:
    """Return the result of a user's function as float32 `(C, H, W)`, or `(C, D, H, W)`, on the CPU, if it is possible."""
    if not isinstance(returned, Tensor):
        if hasattr(returned, "__array_interface__"):
            hint = "torch.from_numpy makes a tensor of an array; (H, W, C) needs .permute(2, 0, 1) too"
        raise InputError("E_PREPARE", f"the preprocessing must return a tensor, not {type(returned).__name__}", hint=hint)
    axes = {3, 4} if volume else {3}
    is_batch = returned.ndim == max(axes) + 1 or (returned.ndim == 4 and len(returned) == 1 != channels)
    prepared = returned[0] if is_batch and len(returned) == 1 else returned
    if prepared.ndim not in axes or len(prepared) != channels or not prepared.numel() or not prepared.is_floating_point():
        expected = f"floating-point numbers ({channels}, {'depth, ' if volume else ''}height, width)"
        raise InputError(
            "E_PREPARE", f"the preprocessing must return {expected} for this model, not {_words_of(returned)}", hint=hint
        )
    return prepared.detach().as_subclass(Tensor).to("cpu", torch.float32)


# Any: an object of the user.
def _find_normalization(preprocess: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and the standard deviation in the attributes of a user's function."""
    try:
        mean, std = (
            tuple(torch.as_tensor(values, dtype=torch.float64).flatten().tolist())
            for values in (preprocess.mean, preprocess.std)
        )
    except Exception:  # noqa: BLE001 - they are missing or not numbers
        steps = getattr(preprocess, "transforms", None)
        found = (_find_normalization(step, channels) for step in reversed(steps)) if isinstance(steps, list | tuple) else ()
        return next(filter(None, found), None)
    # Numbers beyond 1 belong to another scale than 0..1, on which the picture would be white.
    scaled = all(-1 <= value <= 1 for value in mean) and all(0 < value <= 1 for value in std)
    return (mean, std) if scaled and {len(mean), len(std)} <= {1, channels} else None


def _crop(picture: PillowImage.Image, height: int, width: int, resampling: PillowImage.Resampling) -> PillowImage.Image:
    """Resize the centre of the picture to cover the size."""
    scale = max(height / picture.height, width / picture.width)
    across, down = width / scale, height / scale
    left, top = (picture.width - across) / 2, (picture.height - down) / 2
    box = (max(0.0, left), max(0.0, top), min(picture.width, left + across), min(picture.height, top + down))
    return picture.resize((width, height), resampling, box=box)


def _pad(
    picture: PillowImage.Image, height: int, width: int, resampling: PillowImage.Resampling, *, bars: float
) -> PillowImage.Image:
    scale = min(height / picture.height, width / picture.width)
    sides = (max(1, round(side * scale)) for side in picture.size)
    inner = picture.resize((next(sides), next(sides)), resampling)
    shade = bars if picture.mode == "F" else round(bars * 255)
    padded = PillowImage.new(picture.mode, (width, height), shade if len(picture.getbands()) == 1 else (shade,) * 3)
    padded.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return padded


def _place(fit: str, height: int, width: int, size: tuple[int, int]) -> Placement:
    """Return where an input of a fit lies in an upright picture of a width and height."""
    across, down = size[0] / width, size[1] / height
    if fit == "squash":
        return Placement((across, down), (0.0, 0.0))
    if fit == "crop":
        least = min(across, down)
        return Placement((least, least), ((size[0] - width * least) / 2, (size[1] - height * least) / 2))
    if fit == "pad":
        most = max(across, down)
        inner = max(1, round(size[0] / most)), max(1, round(size[1] / most))
        scale = size[0] / inner[0], size[1] / inner[1]
        return Placement(scale, (-scale[0] * ((width - inner[0]) // 2), -scale[1] * ((height - inner[1]) // 2)))
    return Placement((1.0, 1.0), (0.0, 0.0))


_FITS: dict[str, Callable[[PillowImage.Image, int, int, PillowImage.Resampling], PillowImage.Image]] = {
    "crop": _crop,
    "squash": lambda picture, height, width, resampling: picture.resize((width, height), resampling),
    "none": lambda picture, _height, _width, _resampling: picture,
}


def _limit_strip(picture: PillowImage.Image, resize_size: list[int], *, crops: bool) -> PillowImage.Image:
    """Cut the ends off a strip that would be resized to gigabytes and then cropped; raise `E_TOO_LARGE` without a crop."""
    short, long = sorted(picture.size)
    target = resize_size[0]
    if len(resize_size) == 2 or ceil(long * target / short) * target <= MAX_PREPARED_PIXELS:
        return picture
    if not crops:
        raise InputError(
            "E_TOO_LARGE",
            f"a strip of {picture.width} x {picture.height} pixels becomes too long when resized",
            hint="InputOptions(fit='squash'), fit='pad' or fit='crop'",
        )
    keep = 8 * short + long % 2  # of the same parity as the whole, which keeps the centre
    left, top = (max(0, (side - keep) // 2) for side in picture.size)
    return picture.crop((left, top, min(picture.width, left + keep), min(picture.height, top + keep)))
