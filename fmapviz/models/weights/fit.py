"""Fill a network with weights: under its keys, in its shapes, or not at all."""

from __future__ import annotations

import re
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from fmapviz.core.user_code import one_line
from fmapviz.data import Model
from fmapviz.errors import WeightsError, first_few, quote
from fmapviz.models.initialization import NoInitialization, read_seed, seeded
from fmapviz.models.weights.file import digesting, find_weights
from fmapviz.models.weights.read import GIVEN, read_checkpoint, read_given
from fmapviz.models.weights.state_dict import EXTRAS, StateDict, digest_of_state, is_quantised, strip_prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from fmapviz.data import Preparation
    from fmapviz.models.weights.read import Checkpoint

    Build = Callable[..., nn.Module]  # Any: sizes and options of the source
    Fill = Callable[[nn.Module, StateDict, Path], tuple[nn.Module, tuple[str, ...]]]

_OWN_BUILDER = "name a function of yours that builds the network they belong to, such as my_net.py:build"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedWeights:
    """A network filled with weights.

    Attributes:
        module: The network.
        name: The origin of the weights, for people; of a file its name, followed by `#ENTRY` if one was requested.
        sha256: Digest of the file, see `digesting`, or of the state dict; None without one.
        classes: Class names that come with the weights.
        notices: Choices made while loading, for the user.
    """

    module: nn.Module
    name: str
    sha256: str | None = None
    classes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def as_model(self, name: str, preparation: Preparation) -> Model:
        """Return the network in evaluation mode, as a `Model` of this name with this preprocessing."""
        module = self.module.eval()
        return Model(name, module, self.name, self.sha256, preparation, classes=self.classes, notices=self.notices)


def load_weights(
    weights: str | Mapping[str, Any] | None,
    build: Build,
    *,
    entries: Sequence[str] = (),
    update_keys: Callable[[StateDict], StateDict] = lambda state: state,
    adapt: Callable[[Build, nn.Module, StateDict], tuple[nn.Module, tuple[str, ...]]] = lambda _, module, __: (module, ()),
    fill: Fill | None = None,
) -> LoadedWeights:
    """Build a network, and fill it at random or with the weights of a checkpoint.

    Args:
        weights: `random`, `random:SEED`, a file, a folder or a URL, optionally followed by `#ENTRY`; or a state dict; None:
            move the network to the meta device.
        build: Returns the network; it may take sizes for `adapt`. It is called without initialization except for random
            weights, for a checkpoint after the file has been read.
        entries: Names of published weights, for the hint.
        update_keys: Replaces outdated keys of the file.
        adapt: Takes a builder without initialization, the network and the weights; returns the network, which it may have
            built again for the sizes of the weights, with notices.
        fill: Takes the network on the meta device, the weights and the file's path; returns a network like it with the
            weights, and notices. None: `load_state_dict`.

    Raises:
        WeightsError: The weights cannot be found, downloaded, read or fitted.
    """

    def build_uninitialized(**sizes: Any) -> nn.Module:
        with NoInitialization():
            return build(**sizes)

    if weights is None:
        return LoadedWeights(build_uninitialized().to("meta"), "no weights")
    seed = read_seed(weights)
    if seed is not None:
        with seeded(seed):
            return LoadedWeights(build(), f"random weights, seed {seed}")

    def load(checkpoint: Checkpoint, path: Path) -> LoadedWeights:
        with torch.device("meta") if fill else nullcontext():
            module = build_uninitialized()
        state, stripped = strip_prefixes(update_keys(checkpoint.state), module.state_dict(), path)
        try:
            module, adapted = adapt(build_uninitialized, module, state)
        except Exception as error:  # RuntimeError, TypeError, ...: a tensor may claim more numbers than there is memory
            message = f"cannot build a network for the weights in {quote(path)}: {one_line(error)}"
            raise WeightsError(message, hint=_OWN_BUILDER) from error
        module, filled = fill(module, state, path) if fill else (module, load_state_dict(module, state, path))
        notices = (*checkpoint.notices, *stripped, *adapted, *filled)
        return LoadedWeights(module, "state dict", None, checkpoint.classes, notices)

    if not isinstance(weights, str):
        checkpoint = read_given(weights)
        return replace(load(checkpoint, GIVEN), sha256=digest_of_state(checkpoint.state))
    path, entry = find_weights(weights, known=(*entries, "default", "random", "random:SEED"))
    with digesting(path) as digest:
        loaded = load(read_checkpoint(path, entry), path)
    return replace(loaded, name=f"{path.name}#{entry}" if entry else path.name, sha256=digest.result())


def load_state_dict(module: nn.Module, state: StateDict, path: Path) -> tuple[str, ...]:
    """Fill a network with a state dict, without a copy where dtype, strides and device match.

    Old keys are renamed as torch and torchvision do; `num_batches_tracked`, which old files lack, becomes 0. A tensor that
    the network has under several names may have one of them in the file.

    Returns:
        A notice about the tensors that lie beside those of the network, which are complete.

    Raises:
        WeightsError: Keys, shapes or dtypes differ; the message lists the first ones, the hint the likely cause.
    """
    own = module.state_dict()
    state = {**state, **_aliases(own, state)}
    resized = [key for key in own if key in state and state[key].shape != own[key].shape]
    fitting = OrderedDict((key, values) for key, values in state.items() if key not in resized)
    # The version of the class that wrote the file: without it every class looks for old keys, but MNASNet requires it.
    fitting._metadata = {"": {"version": module._version}}  # type: ignore[attr-defined]  # as torch does
    imaginary = [key for key, values in fitting.items() if key in own and values.is_complex() > own[key].is_complex()]
    if imaginary:  # torch would discard the imaginary parts
        message = f"the weights in {quote(path)} do not fit: complex numbers in {first_few([*map(quote, imaginary)])}"
        raise WeightsError(message, hint="save their real parts, or pass a model with complex parameters")
    whole = [key for key, values in fitting.items() if key in own and _lose_their_scale(values, own[key])]
    if whole:
        message = f"the weights in {quote(path)} do not fit: {_type(state[whole[0]])} in {first_few([*map(quote, whole)])}"
        raise WeightsError(
            f"{message}, where the network has {_type(own[whole[0]])}",
            hint="integers are quantised weights without their scale: save the state dict before quantisation",
        )
    # A network that will be refused needs no copy either.
    assign = bool(resized) or all(_same_memory_layout(values, own[key]) for key, values in fitting.items() if key in own)
    try:
        missing, unexpected = module.load_state_dict(fitting, strict=False, assign=assign)
    except RuntimeError as error:  # a renamed key has another shape
        message = f"the weights in {quote(path)} do not fit: {' '.join(str(error).split())[:300]}"
        raise WeightsError(message, hint=_OWN_BUILDER) from error
    missing = [key for key in missing if key not in resized]
    complete = not (missing or resized or is_quantised(unexpected))
    if unexpected and complete and all(_is_beside(key, own, state) for key in unexpected):
        return (f"not used of {quote(path)}: {first_few(unexpected)}",)
    if missing or unexpected or resized:
        found, cause = _explain(own, state, missing=missing, unexpected=unexpected, resized=resized)
        raise WeightsError(f"the weights in {quote(path)} do not fit: {found}", hint=cause)
    return ()


def _aliases(own: StateDict, state: StateDict) -> StateDict:
    """Return shared weights under the names that the file lacks."""
    lacking = [key for key in own if key not in state and own[key].numel()]
    if not lacking:
        return {}
    held = {_memory(values): state[key] for key, values in own.items() if key in state}
    return {key: held[_memory(own[key])] for key in lacking if _memory(own[key]) in held}


def _memory(values: Tensor) -> object:
    return values if values.is_meta else (values.data_ptr(), values.shape, values.stride(), values.dtype)


def _is_beside(key: str, own: StateDict, state: StateDict) -> bool:
    """Return True for a tensor that is no weight of the network: a counter, a second name, or a part of another."""
    values, first = state[key], key.partition(".")[0]
    if EXTRAS.search(key) or values.ndim == 0 or not (values.is_floating_point() or values.is_complex()):
        return True
    if any(values.data_ptr() == state[other].data_ptr() for other in own if other in state and values.numel()):
        return True
    return not _patterns([first]) <= {_patterns([known.partition(".")[0]]).pop() for known in own} and not first.isdigit()


def _lose_their_scale(values: Tensor, own: Tensor) -> bool:
    return own.is_floating_point() and values.ndim > 0 and (not values.is_floating_point() or values.itemsize < 2)


def _type(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _same_memory_layout(values: Tensor, own: Tensor) -> bool:
    if (values.layout, values.dtype, values.device) != (own.layout, own.dtype, own.device):
        return False
    return values.stride() == own.stride()


def _explain(
    own: StateDict,
    state: StateDict,
    *,
    missing: Sequence[str],
    unexpected: Sequence[str],
    resized: Sequence[str],
) -> tuple[str, str]:
    """Return the first four differences, some of each kind, and the first cause that applies, with its remedy.

    Args:
        own: The state dict of the network.
        state: The weights.
        missing: Keys that only the network has.
        unexpected: Keys that only the weights have.
        resized: Keys of both whose shapes differ.
    """
    kinds = (
        [f"missing {key}" for key in missing],
        [f"unexpected {key}" for key in unexpected],
        [f"{key} is {_shape(state[key])}, not {_shape(own[key])}" for key in resized],
    )
    most = 4 // sum(map(bool, kinds))
    listed = [*(line for kind in kinds for line in kind[:most]), *(line for kind in kinds for line in kind[most:])]
    cause = next(_causes(own, state, missing=missing, unexpected=unexpected, resized=resized))
    return first_few(listed, separator="; "), cause


def _causes(  # noqa: PLR0912  one branch for each cause
    own: StateDict, state: StateDict, *, missing: Sequence[str], unexpected: Sequence[str], resized: Sequence[str]
) -> Iterator[str]:
    """Yield the causes that apply, each with its remedy, the likeliest one first."""
    head = _head(own)
    only_head = all(_is_in(head, key) for key in (*missing, *unexpected, *resized))
    normalised, weights_normalised = (any(key.endswith("running_mean") for key in keys) for keys in (own, state))
    counters = sum(key.endswith("tracked") for key in own)
    if any(re.search(r"\blora_", key) for key in unexpected):
        yield "these are weights of an adapter (LoRA): merge it into its model, and save that model's state dict"
    if is_quantised(unexpected):
        yield "the weights are quantised: save the state dict before quantisation"
    if not own.keys() & state.keys():
        yield "no key is in both: the weights belong to another model"
    if weights_normalised and not normalised:
        yield "the weights belong to a model with batch normalisation, and this one has none"
    if normalised and not weights_normalised and len(missing) + len(resized) > 2:
        yield "the weights belong to a model without batch normalisation, and this one has it"
    if only_head and not (unexpected or resized) and not any(_is_in(head, key) for key in state):
        yield (
            f"the weights have no head ('{head}'): name a function of yours that builds the model without one, such as "
            "my_net.py:backbone"
        )
    if resized and all(own[key].ndim == 2 and state[key].shape == own[key].shape[::-1] for key in resized):
        yield f"weights that have the axes in another order: save {quote(resized[0])} transposed, as torch.nn.Linear has it"
    if only_head and not (missing or unexpected):
        yield f"only the head ('{head}') differs: build the model for the weights' number of classes"
    if only_head and ((missing and unexpected) or resized):
        yield f"only the head ('{head}') differs, it was replaced: {_OWN_BUILDER}"
    if not (missing or unexpected) and len(resized) == 1 and _differ_in_channels(own[resized[0]], state[resized[0]]):
        yield "only one layer differs: the weights are for images with another number of channels"
    if unexpected and not missing and _are_blocks(unexpected, own) and _patterns(unexpected) <= _patterns(own):
        yield "more blocks of the same kind: the weights belong to a deeper model of this family"
    if missing and not unexpected and _are_blocks(missing, state) and _patterns(missing) <= _patterns(state):
        yield "fewer blocks of the same kind: the weights belong to a shallower model of this family"
    if len(resized) * 2 > len(own) - counters:
        yield "most shapes differ: the weights belong to a model of this family with another width"
    if missing and not (unexpected or resized):
        yield f"{len(missing)} of the network's {len(own)} tensors are not in the file: save the whole state dict"
    yield "do the weights belong to another model, or to another version of it?"


def _head(own: StateDict) -> str:
    """Return the outermost module with the last parameters, such as `fc`, or `model.23` where all are in `model`."""
    modules = [key.split(".")[:-1] for key in own] or [[""]]
    shared = takewhile(lambda names: names[0] == names[1], zip(min(modules), max(modules), strict=False))
    return ".".join(modules[-1][: len([*shared]) + 1])


def _is_in(module: str, key: str) -> bool:
    return key.startswith(f"{module}.")


def _shape(values: Tensor) -> str:
    return f"({', '.join(map(str, values.shape))})"


def _differ_in_channels(own: Tensor, weights: Tensor) -> bool:
    first, second = own.shape, weights.shape
    return len(first) == len(second) > 2 and (first[0], *first[2:]) == (second[0], *second[2:])


def _are_blocks(keys: Sequence[str], others: Iterable[str]) -> bool:
    """Return True if keys that one side lacks are those of numbered blocks behind the last that the other side has."""
    last: dict[str, int] = {}
    for key in others:
        for block, number in _numbered(key):
            last[block] = max(last.get(block, -1), number)
    return all(any(number > last.get(block, number) for block, number in _numbered(key)) for key in keys)


def _numbered(key: str) -> Iterator[tuple[str, int]]:
    """Yield the numbered blocks that a key is of, without their numbers, and the numbers; a block has several tensors."""
    parts = key.split(".")
    for at, name in enumerate(parts[:-1]):
        if (found := re.fullmatch(r"(.*?)(\d+)", name)) and (not found[1] or at < len(parts) - 2):
            yield ".".join([*parts[:at], found[1]]), int(found[2])


def _patterns(keys: Iterable[str]) -> set[str]:
    """Remove the numbers of keys: the blocks of a deeper network have the same patterns."""
    return {re.sub(r"\d+", "#", key) for key in keys}
