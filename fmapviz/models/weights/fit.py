"""Fit a state dict into a network: under its keys, in its shapes, or not at all."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from fmapviz.contents import WRAPPERS, StateDict
from fmapviz.errors import WeightsError, quote
from fmapviz.mismatches import Mismatch, differences, likely_cause, some

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from torch import Tensor, nn


# What others write before every key, which is taken off even if the network is another one: its message is easier to read.
_WRITTEN_FIRST = re.compile(r"(?:module\.|model\.)*")

_PART = re.compile(r"[^.]*\.")


def fit_keys(state: StateDict, wanted: Iterable[str], path: Path) -> tuple[StateDict, tuple[str, ...]]:
    """Give the tensors of a file the keys that a network wants; see `strip_prefixes`.

    Returns:
        The state dict, and notices of what was taken off the keys and of what was left out.
    """
    fitting, stripped = strip_prefixes(state, wanted)
    if not stripped:
        return state, ()
    kept = set(map(id, fitting.values()))
    beside = [key for key, values in state.items() if id(values) not in kept]
    left_out = f", and left out what is not under them: {some(beside)}" if beside else ""
    return fitting, (f"took {' and '.join(map(quote, stripped))} off the keys of {quote(path)}{left_out}",)


def strip_prefixes(state: StateDict, wanted: Iterable[str]) -> tuple[StateDict, tuple[str, ...]]:
    """Take off what wrappers and training modules put before the keys of a network, if that makes them the ones wanted.

    Args:
        wanted: The keys of the network; counts of batches may be missing in the file.

    Returns:
        The state dict under the shorter keys, without what is not under them, such as a loss function's; and the prefixes
        taken off, outermost first.

    Raises:
        WeightsError: The network is there several times, under several prefixes.

    Example:
        >>> import torch
        >>> strip_prefixes({"net.a.weight": torch.zeros(1), "loss.weight": torch.ones(1)}, ["a.weight"])
        ({'a.weight': tensor([0.])}, ('net.',))
    """
    needed = {key for key in wanted if not key.endswith("num_batches_tracked")}
    if needed <= state.keys():
        return state, ()
    unwrapped = {WRAPPERS.sub("", key): key for key in state}
    prefix = _prefix_of(unwrapped, needed)
    names = {key.removeprefix(prefix): given for key, given in unwrapped.items() if key.startswith(prefix)}
    leading = [given.removesuffix(key) for key, given in names.items() if given.endswith(key)]
    wrappers = [match[0] for given in names.values() for match in WRAPPERS.finditer(given)]
    stripped = _PART.findall(leading[0] if leading else prefix)
    stripped += [wrapper for wrapper in dict.fromkeys(wrappers) if wrapper not in stripped]
    return {key: state[given] for key, given in names.items()}, tuple(stripped)


def load_state_dict(module: nn.Module, state: StateDict, path: Path) -> None:
    """Fill a network with the values of a state dict; where they lie in memory as the network's own do, without a copy.

    Keys of former days are renamed as torch and torchvision do; counts of batches, which the oldest files lack, are 0.

    Raises:
        WeightsError: The keys, the shapes or the kinds of numbers are not the same; the first of them are named, and what
            may be the cause.
    """
    own = module.state_dict()
    resized = [key for key in own if key in state and state[key].shape != own[key].shape]
    fitting = OrderedDict((key, values) for key, values in state.items() if key not in resized)
    # The versions of the classes that wrote the file; without one every class looks for older keys, but MNASNet must know.
    fitting._metadata = {"": {"version": module._version}}  # type: ignore[attr-defined]  # as torch does
    imaginary = [key for key, values in fitting.items() if key in own and values.is_complex() > own[key].is_complex()]
    if imaginary:  # torch would leave out the imaginary parts
        raise WeightsError(f"the weights in {quote(path)} do not fit: complex numbers in {some([*map(quote, imaginary)])}")
    # A network that will not be had needs no values of its own either.
    assign = bool(resized) or all(_lies_like(values, own[key]) for key, values in fitting.items() if key in own)
    try:
        missing, unexpected = module.load_state_dict(fitting, strict=False, assign=assign)
    except RuntimeError as error:  # values under an older key that have another shape
        raise WeightsError(f"the weights in {quote(path)} do not fit: {' '.join(str(error).split())[:300]}") from error
    missing = [key for key in missing if key not in resized]
    if missing or unexpected or resized:
        mismatch = Mismatch(own, state, missing=missing, unexpected=unexpected, resized=resized)
        raise WeightsError(f"the weights in {quote(path)} do not fit: {differences(mismatch)}", hint=likely_cause(mismatch))


def _prefix_of(keys: Collection[str], needed: set[str]) -> str:
    """Give the prefix under which most of the wanted keys are, or every one that wrappers write, if that is none of them."""
    found = Counter(key[:start] for key in keys for start in (0, *_after_dots(key)) if key[start:] in needed)
    most = max(found.values(), default=0)
    if found[""] == most > 0:
        return ""
    if 2 * most <= len(needed):
        prefix = _WRITTEN_FIRST.match(next(iter(keys), ""))[0]  # type: ignore[index]  # it matches everything
        return prefix if not found[""] and all(key.startswith(prefix) for key in keys) else ""
    best = sorted(prefix for prefix, count in found.items() if count == most)
    if len(best) > 1:
        raise WeightsError(
            f"the network is in the weights file {len(best)} times: under {' and '.join(map(quote, best))}",
            hint=f"choose one: --weights {quote(f'FILE#{best[0][:-1]}')}",
        )
    return best[0]


def _after_dots(key: str) -> list[int]:
    return [index + 1 for index, character in enumerate(key) if character == "."]


def _lies_like(values: Tensor, own: Tensor) -> bool:
    """Tell whether a tensor can stand for another of its shape, not only give it its values."""
    if (values.layout, values.dtype, values.device) != (own.layout, own.dtype, own.device):
        return False
    return values.stride() == own.stride()
