"""List the keys and shapes that differ where weights do not fit, and guess the cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmapviz.core.errors import first_few
from fmapviz.models.weights.state_dict import is_quantised

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

OWN_BUILDER = "pass your own builder, such as my_net.py:build"


def explain(
    own: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
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
    each = 4 // sum(map(bool, kinds))
    listed = [*(line for kind in kinds for line in kind[:each]), *(line for kind in kinds for line in kind[each:])]
    head = ["", *own][-1].partition(".")[0]  # the outermost module with the last parameters, such as `fc`
    only_head = all(key.partition(".")[0] == head for key in (*missing, *unexpected, *resized))
    normalised, weights_normalised = (any(key.endswith("running_mean") for key in keys) for keys in (own, state))
    counters = sum(key.endswith("tracked") for key in own)
    causes = (
        (
            any(re.search(r"\blora_", key) for key in unexpected),
            "they are of an adapter (LoRA): merge it into its model, and save that model's state dict",
        ),
        (is_quantised(unexpected), "they are of a quantised model: save the state dict before quantisation"),
        (not own.keys() & state.keys(), "they have no key in common with the model: they are of another model"),
        (weights_normalised and not normalised, "they are of a model with batch normalisation, and this one has none"),
        (normalised and not weights_normalised, "they are of a model without batch normalisation, and this one has it"),
        (
            only_head and not (unexpected or resized),
            f"they have no head ('{head}'): {OWN_BUILDER}, that builds the model without one",
        ),
        (
            only_head and not (missing or unexpected),
            f"only the head ('{head}') differs: build the model for the weights' number of classes",
        ),
        (only_head, f"only the head ('{head}') differs, it was replaced: {OWN_BUILDER}"),
        (
            not (missing or unexpected) and len(resized) == 1 and _differ_in_channels(own[resized[0]], state[resized[0]]),
            "only one layer differs: they are for images with another number of channels",
        ),
        (
            unexpected and not missing and _patterns(unexpected) <= _patterns(own),
            "they have more blocks of the same kind: they are of a deeper model of this family",
        ),
        (
            missing and not unexpected and _patterns(missing) <= _patterns(state),
            "they have fewer blocks of the same kind: they are of a shallower model of this family",
        ),
        (
            len(resized) * 2 > len(own) - counters,
            "most shapes differ: they are of a model of this family with another width",
        ),
        (True, "are they of another model, or of another version of it?"),
    )
    return first_few(listed, separator="; "), next(cause for applies, cause in causes if applies)


def _shape(values: Tensor) -> str:
    return f"({', '.join(map(str, values.shape))})"


def _differ_in_channels(own: Tensor, weights: Tensor) -> bool:
    first, second = own.shape, weights.shape
    return len(first) == len(second) > 2 and (first[0], *first[2:]) == (second[0], *second[2:])


def _patterns(keys: Iterable[str]) -> set[str]:
    """Remove the numbers of keys: the blocks of a deeper network have the same patterns."""
    return {re.sub(r"\d+", "#", key) for key in keys}
