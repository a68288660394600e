"""The rules of operators that look at neighbouring positions: convolution, pooling, padding, interpolation."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.observe.operators import indices
from fmapviz.observe.operators.call import Call, Operand, Place, Rule, one

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fmapviz.observe.operators.call import Indices

_SCALES = ["_d", "_h", "_w"]  # ends of names


def _convolution(call: Call) -> list[Operand]:
    given, kernel = call.given, call.given["weight"].shape[2:]
    settings = [_repeat(given[name], len(kernel)) for name in ("stride", "padding", "dilation")]
    changed: dict[int, Place | None] = {1: None}
    for (dim, before, after), length, stride, padding, dilation in zip(
        _spatial(call, len(kernel)), kernel, *settings, strict=True
    ):
        if given.get("transposed"):  # `mkldnn_convolution` has no such parameter
            index = indices.inverse_windows(after, length, stride=stride, padding=padding, dilation=dilation)
            at = (np.arange(after) + padding - dilation * (length - 1) / 2) / stride
            changed[dim] = Place(dim, index, Fraction(1, stride), at)
        elif (length, stride, padding) != (1, 1, 0) or before != after:
            index = indices.windows(after, length, stride=stride, padding=padding, dilation=dilation)
            changed[dim] = Place(dim, index, Fraction(stride))
    return one(call, changed)


def _pool(call: Call, *, count: int) -> list[Operand]:
    given = call.given
    kernel = _repeat(given["kernel_size"], count)
    stride = _repeat(given["stride"] or kernel, count)
    padding, dilation = _repeat(given["padding"], count), _repeat(given.get("dilation", 1), count)
    changed: dict[int, Place | None] = {}
    for number, (dim, _, after) in enumerate(_spatial(call, count)):
        index = indices.windows(
            after, kernel[number], stride=stride[number], padding=padding[number], dilation=dilation[number]
        )
        changed[dim] = Place(dim, index, Fraction(stride[number]))
    return one(call, changed)


def _adaptive_pool(call: Call, *, count: int) -> list[Operand]:
    return one(
        call,
        {
            dim: Place(dim, indices.bins(before, after), Fraction(before, max(after, 1)), indices.middles(before, after))
            for dim, before, after in _spatial(call, count)
        },
    )


def _interpolation(
    call: Call,
    *,
    count: int,
    kind: Callable[..., Indices],
    at: Callable[..., NDArray[np.float64]] = indices.sources,
    **settings: int,
) -> list[Operand]:
    given = call.given
    if kind is not indices.nearest:
        settings["align_corners"] = given["align_corners"]
    ends = _SCALES[-count:] if count > 1 else [""]
    scales = given.get("scale_factors") or [given.get(f"scales{end}") for end in ends]
    changed: dict[int, Place | None] = {}
    for (dim, before, after), scale in zip(_spatial(call, count), scales, strict=True):
        positions = at(before, after, scale=scale, align_corners=bool(settings.get("align_corners")))
        changed[dim] = Place(dim, kind(before, after, scale=scale, **settings), Fraction(before, max(after, 1)), positions)
    return one(call, changed)


def _padding(call: Call, *, kind: Callable[[int, int, int], Indices]) -> list[Operand]:
    amounts = call.given["pad"] if "pad" in call.given else call.given["padding"]
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    last = call.operand.ndim - 1
    return one(
        call,
        {
            last - number: Place(
                last - number,
                kind(call.operand.shape[last - number], *pair),
                at=np.arange(-pair[0], call.operand.shape[last - number] + pair[1]).astype(np.float64),
                padded=True,
            )
            for number, pair in enumerate(pairs)
            if pair != (0, 0)
        },
    )


def _constant(inputs: int, before: int, after: int) -> Indices:
    return indices.stretch(inputs + before + after, start=-before)


def _pixel_shuffle(call: Call) -> list[Operand]:
    factor, first = call.given["upscale_factor"], call.operand.ndim - 3
    changed: dict[int, Place | None] = {first: Place(first, mixed=True)}
    for dim, _, after in _spatial(call, 2):
        at = (np.arange(after) + 0.5) / factor - 0.5
        changed[dim] = Place(dim, indices.stretch(after) // factor, Fraction(1, factor), at)
    return one(call, changed)


def _pixel_unshuffle(call: Call) -> list[Operand]:
    factor, first = call.given["downscale_factor"], call.operand.ndim - 3
    changed: dict[int, Place | None] = {first: Place(first, mixed=True)}
    for dim, _, after in _spatial(call, 2):
        changed[dim] = Place(dim, indices.windows(after, factor, stride=factor, padding=0), Fraction(factor))
    return one(call, changed)


def _spatial(call: Call, count: int) -> list[tuple[int, int, int]]:
    """Return the last dimensions of the operand with their lengths in the operand and the result."""
    lengths = zip(call.operand.shape[-count:], call.result.shape[-count:], strict=True)
    first = call.operand.ndim - count
    return [(first + number, before, after) for number, (before, after) in enumerate(lengths)]


def _repeat(value: Any, count: int) -> list[int]:  # Any: a number or a list of them
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values


RULES: dict[str, Rule] = {
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable"), _convolution),
    "constant_pad_nd": partial(_padding, kind=_constant),
    "upsample_linear1d": partial(_interpolation, count=1, kind=indices.linear),
    "upsample_bilinear2d": partial(_interpolation, count=2, kind=indices.linear),
    "upsample_trilinear3d": partial(_interpolation, count=3, kind=indices.linear),
    "upsample_bicubic2d": partial(_interpolation, count=2, kind=indices.cubic),
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
}
for _name, _radius in (("bilinear", 1), ("bicubic", 2), ("lanczos", 3)):
    RULES[f"_upsample_{_name}2d_aa"] = partial(
        _interpolation, count=2, kind=indices.antialiased, at=indices.centers, radius=_radius
    )
for _count in (1, 2, 3):
    RULES |= {
        f"avg_pool{_count}d": partial(_pool, count=_count),
        f"max_pool{_count}d": partial(_pool, count=_count),
        f"max_pool{_count}d_with_indices": partial(_pool, count=_count),
        f"adaptive_avg_pool{_count}d": partial(_adaptive_pool, count=_count),
        f"_adaptive_avg_pool{_count}d": partial(_adaptive_pool, count=_count),
        f"adaptive_max_pool{_count}d": partial(_adaptive_pool, count=_count),
        f"reflection_pad{_count}d": partial(_padding, kind=indices.reflected),
        f"replication_pad{_count}d": partial(_padding, kind=indices.replicated),
        f"upsample_nearest{_count}d": partial(_interpolation, count=_count, kind=indices.nearest, middle=False),
        f"_upsample_nearest_exact{_count}d": partial(_interpolation, count=_count, kind=indices.nearest, middle=True),
    }
