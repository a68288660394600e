"""Preprocess as an image processor of transformers does, by calling it: each family rounds and crops in its own way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image as PillowImage
from torch import Tensor

from fmapviz.core.user_code import one_line
from fmapviz.errors import RequestError
from fmapviz.images.preprocess import by_callable, standard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmapviz.config import InputOptions
    from fmapviz.data import Preparation

_OMITTED = {"image_processor_type", "processor_class", "data_format", "return_tensors", "device", "default_to_square"}


def by_processor(processor: Any, preprocessing: InputOptions) -> Preparation:
    """Preprocess as a processor does, for a network that takes RGB.

    Args:
        processor: Called as `processor(images=picture, return_tensors="pt")`, returns a dict with `pixel_values`.
        preprocessing: The user's options, which take precedence: a size or a fit replaces the processor's geometry.

    Raises:
        RequestError: It does not return pictures `(3, H, W)`, or the user's mean or standard deviation has neither 1 nor 3
            numbers.
    """
    # Any: transformers has a class for each family.
    size, mean, std = _measure(processor)
    resampling = PillowImage.Resampling(getattr(processor, "resample", None) or PillowImage.Resampling.BILINEAR)
    usual = standard(preprocessing, size=size, mean=mean, std=std, resampling=resampling)
    if preprocessing.size or preprocessing.fit:
        return usual
    words = f"{type(processor).__name__}: {', '.join(_settings(processor))}"
    if preprocessing.mean or preprocessing.std:
        words += f"; instead mean {usual.mean}, std {usual.std}"

    def prepare(picture: PillowImage.Image | Tensor) -> Tensor:
        values = _call(processor, picture)
        if not (preprocessing.mean or preprocessing.std):
            return values
        own_mean, own_std, new_mean, new_std = (
            values.new_tensor(numbers).view(-1, 1, 1) for numbers in (mean, std, usual.mean, usual.std)
        )
        return (values * own_std + own_mean - new_mean) / new_std

    return replace(by_callable(prepare, description=words), mean=usual.mean, std=usual.std)


def _call(processor: Any, picture: PillowImage.Image | Tensor) -> Tensor:
    if isinstance(picture, Tensor):  # values 0..1; a processor takes 0..255
        given = processor(images=picture * 255, return_tensors="pt", input_data_format="channels_first")
    else:
        given = processor(images=picture, return_tensors="pt")
    values: Tensor = torch.as_tensor(given["pixel_values"])
    return values[0] if values.ndim == 4 and len(values) == 1 else values


def _measure(processor: Any) -> tuple[tuple[int, int], tuple[float, ...], tuple[float, ...]]:
    """Return the size of a square picture's result, and the mean and standard deviation, from a black and a white one.

    They may be spread over several settings: a factor, an offset, a mean and a deviation.
    """
    try:
        black, white = (_call(processor, PillowImage.new("RGB", (512, 512), colour)) for colour in ("black", "white"))
        _, height, width = black.shape
        low, high = (pixels[:, height // 2, width // 2].double() for pixels in (black, white))
    except Exception as error:
        raise _no_picture(processor, one_line(error)) from error
    if len(low) != 3 or not bool((high > low).all()):
        raise _no_picture(processor, f"it returns {tuple(black.shape)}")
    deviation = 1 / (high - low)
    mean, std = (tuple(round(number, 6) + 0.0 for number in numbers.tolist()) for numbers in (-low * deviation, deviation))
    return (height, width), mean, std


def _no_picture(processor: Any, reason: str) -> RequestError:
    return RequestError(
        f"{type(processor).__name__} does not make one picture (3, height, width) of an image: {reason}",
        hint="code of yours can load the model with its own preprocessing: my_net.py:build",
    )


def _settings(processor: Any) -> Iterator[str]:
    for name, value in sorted(processor.to_dict().items()):
        if value is not None and name not in _OMITTED and not name.startswith("_"):
            yield f"{name} {value}"
