"""Fill a network with weights: under its keys, in its shapes, or not at all."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.core.errors import WeightsError, first_few, quote
from fmapviz.models.initialization import build_uninitialized
from fmapviz.models.user_code import one_line
from fmapviz.models.weights.file import digesting, find_weights
from fmapviz.models.weights.mismatches import explain
from fmapviz.models.weights.read import read_checkpoint
from fmapviz.models.weights.state_dict import WRAPPERS, StateDict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from torch import Tensor, nn

# Stripped also if the network is another one: the message is then easier to read.
_USUAL_PREFIX = re.compile(r"(?:module\.|model\.)*")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedWeights:
    """A network filled with weights.

    Attributes:
        module: The network.
        name: The file's name, followed by `#ENTRY` if one was asked for.
        sha256: Digest of the file; see `digesting`.
        classes: Class names in the file.
        notices: Choices made while loading, for the user.
    """

    module: nn.Module
    name: str
    sha256: str
    classes: tuple[str, ...]
    notices: tuple[str, ...]


def load_weights(
    weights: str,
    build: Callable[[], nn.Module],
    *,
    known: Sequence[str] = (),
    update_keys: Callable[[StateDict], StateDict] | None = None,
    adapt: Callable[[nn.Module, StateDict], tuple[nn.Module, tuple[str, ...]]] | None = None,
) -> LoadedWeights:
    """Build a network and fill it with the weights of a checkpoint.

    Args:
        weights: A file, a folder or a URL, optionally followed by `#ENTRY`.
        build: Returns the network; called without initialization, after the file has been read.
        known: Valid words for the hint.
        update_keys: Replaces outdated keys of the file.
        adapt: Rebuilds the network for the sizes of the weights; returns it with notices.

    Raises:
        WeightsError: The weights cannot be found, downloaded, read or fitted.
    """
    path, entry = find_weights(weights, known=known)
    with digesting(path) as digest:
        checkpoint = read_checkpoint(path, entry)
        module = build_uninitialized(build)
        state = update_keys(checkpoint.state) if update_keys else checkpoint.state
        state, stripped = fit_keys(state, module.state_dict(), path)
        adapted: tuple[str, ...] = ()
        if adapt:
            try:
                module, adapted = adapt(module, state)
            except Exception as error:  # RuntimeError, TypeError, ...: a tensor may claim more numbers than there is memory
                message = f"cannot build a network for the weights in {quote(path)}: {one_line(error)}"
                raise WeightsError(message) from error
        load_state_dict(module, state, path)
    notices = (*checkpoint.notices, *stripped, *adapted)
    return LoadedWeights(
        module, f"{path.name}#{entry}" if entry else path.name, digest.result(), checkpoint.classes, notices
    )


def fit_keys(state: StateDict, wanted: Iterable[str], path: Path) -> tuple[StateDict, tuple[str, ...]]:
    """Strip prefixes as `strip_prefixes` does, and return a notice about them and about the keys that were ignored."""
    fitting, stripped = strip_prefixes(state, wanted)
    if not stripped:
        return state, ()
    kept = set(map(id, fitting.values()))
    others = [key for key, values in state.items() if id(values) not in kept]
    noun = "prefix" if len(stripped) == 1 else "prefixes"
    ignored = f", and ignored the other keys: {first_few(others)}" if others else ""
    return fitting, (f"stripped the {noun} {' and '.join(map(quote, stripped))} from the keys of {quote(path)}{ignored}",)


def strip_prefixes(state: StateDict, wanted: Iterable[str]) -> tuple[StateDict, tuple[str, ...]]:
    """Strip the prefixes that wrappers and training modules add to the keys of a network.

    Args:
        state: The weights.
        wanted: The keys of the network; `num_batches_tracked` may be missing in the weights.

    Returns:
        The tensors under the stripped keys, without those that lack the prefix, such as a loss function's; and the stripped
        prefixes, outermost first.

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
    stripped = re.findall(r"[^.]*\.", leading[0] if leading else prefix)
    stripped += [wrapper for wrapper in dict.fromkeys(wrappers) if wrapper not in stripped]
    return {key: state[given] for key, given in names.items()}, tuple(stripped)


def load_state_dict(module: nn.Module, state: StateDict, path: Path) -> None:
    """Fill a network with a state dict, without a copy where dtype, strides and device match.

    Old keys are renamed as torch and torchvision do; `num_batches_tracked`, which old files lack, becomes 0.

    Raises:
        WeightsError: Keys, shapes or dtypes differ; the message lists the first ones, the hint the likely cause.
    """
    own = module.state_dict()
    resized = [key for key in own if key in state and state[key].shape != own[key].shape]
    fitting = OrderedDict((key, values) for key, values in state.items() if key not in resized)
    # The version of the class that wrote the file: without it every class looks for old keys, but MNASNet requires it.
    fitting._metadata = {"": {"version": module._version}}  # type: ignore[attr-defined]  # as torch does
    imaginary = [key for key, values in fitting.items() if key in own and values.is_complex() > own[key].is_complex()]
    if imaginary:  # torch would discard the imaginary parts
        message = f"the weights in {quote(path)} do not fit: complex numbers in {first_few([*map(quote, imaginary)])}"
        raise WeightsError(message)
    # A network that will be refused needs no copy either.
    assign = bool(resized) or all(_same_memory_layout(values, own[key]) for key, values in fitting.items() if key in own)
    try:
        missing, unexpected = module.load_state_dict(fitting, strict=False, assign=assign)
    except RuntimeError as error:  # a renamed key has another shape
        raise WeightsError(f"the weights in {quote(path)} do not fit: {' '.join(str(error).split())[:300]}") from error
    missing = [key for key in missing if key not in resized]
    if missing or unexpected or resized:
        found, cause = explain(own, state, missing=missing, unexpected=unexpected, resized=resized)
        raise WeightsError(f"the weights in {quote(path)} do not fit: {found}", hint=cause)


def _prefix_of(keys: Collection[str], needed: set[str]) -> str:
    """Return the prefix of most of the needed keys; without a majority, a wrapper's prefix that all keys share."""
    starts = ((key, [0, *(match.end() for match in re.finditer(r"\.", key))]) for key in keys)
    found = Counter(key[:start] for key, ends in starts for start in ends if key[start:] in needed)
    most = max(found.values(), default=0)
    if found[""] == most > 0:
        return ""
    if 2 * most <= len(needed):
        prefix = _USUAL_PREFIX.match(next(iter(keys), ""))[0]  # type: ignore[index]  # it matches everything
        return prefix if not found[""] and all(key.startswith(prefix) for key in keys) else ""
    best = sorted(prefix for prefix, count in found.items() if count == most)
    if len(best) > 1:
        raise WeightsError(
            f"the weights file contains the network {len(best)} times: under {' and '.join(map(quote, best))}",
            hint=f"choose one: --weights {quote(f'FILE#{best[0][:-1]}')}",
        )
    return best[0]


def _same_memory_layout(values: Tensor, own: Tensor) -> bool:
    if (values.layout, values.dtype, values.device) != (own.layout, own.dtype, own.device):
        return False
    return values.stride() == own.stride()
