"""Say which keys and shapes differ where weights do not fit, and guess why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

OWN_BUILDER = "give a builder of your own, such as my_net.py:build"


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    """What differs between a network and weights.

    Attributes:
        own: The state dict of the network.
        state: The weights.
        missing: Keys of the network that the weights do not have.
        unexpected: Keys of the weights that the network does not have.
        resized: Keys that both have, with other shapes.
    """

    own: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    missing: Sequence[str]
    unexpected: Sequence[str]
    resized: Sequence[str]

    @property
    def head(self) -> str:
        """The outermost module with the last parameters, such as `fc`."""
        return ["", *self.own][-1].partition(".")[0]

    @property
    def beside_the_head(self) -> list[str]:
        """All keys that differ, but for those of the head."""
        return [key for key in (*self.missing, *self.unexpected, *self.resized) if key.partition(".")[0] != self.head]


def likely_cause(mismatch: Mismatch) -> str:
    """Give the likeliest reason in one sentence, with what to do about it."""
    return next(sentence for holds, sentence in _CAUSES if holds(mismatch)).format(head=mismatch.head)


def differences(mismatch: Mismatch) -> str:
    """Name the first few keys that differ, some of each kind."""
    own, state = mismatch.own, mismatch.state
    kinds = (
        [f"missing {key}" for key in mismatch.missing],
        [f"unexpected {key}" for key in mismatch.unexpected],
        [f"{key} is {_written(state[key])}, not {_written(own[key])}" for key in mismatch.resized],
    )
    each = 4 // sum(map(bool, kinds))
    first = [difference for kind in kinds for difference in kind[:each]]
    return some([*first, *(difference for kind in kinds for difference in kind[each:])], separator="; ")


def some(things: Sequence[str], *, separator: str = ", ") -> str:
    """Name the first four of many, safe to show.

    Example:
        >>> some("abcdef")
        'a, b, c, d and 2 more'
    """
    more = f" and {len(things) - 4} more" if len(things) > 4 else ""
    return f"{separator.join(map(printable, things[:4]))}{more}"


def is_quantised(keys: Iterable[object]) -> bool:
    """Tell keys of a network that computes with 8-bit integers.

    Example:
        >>> is_quantised(["fc.scale", "fc.zero_point", "fc._packed_params.dtype"])
        True
    """
    return any(str(key).endswith("zero_point") or "_packed_params" in str(key) for key in keys)


def _written(values: Tensor) -> str:
    return f"({', '.join(map(str, values.shape))})"


def _of_an_adapter(mismatch: Mismatch) -> bool:
    return any(re.search(r"\blora_", key) for key in mismatch.unexpected)


def _of_another_model(mismatch: Mismatch) -> bool:
    return not mismatch.own.keys() & mismatch.state.keys()


def _with_normalisation(mismatch: Mismatch) -> bool:
    return _normalised(mismatch.state) and not _normalised(mismatch.own)


def _without_normalisation(mismatch: Mismatch) -> bool:
    return _normalised(mismatch.own) and not _normalised(mismatch.state)


def _of_a_backbone(mismatch: Mismatch) -> bool:
    return not (mismatch.beside_the_head or mismatch.unexpected or mismatch.resized)


def _for_other_classes(mismatch: Mismatch) -> bool:
    return not (mismatch.beside_the_head or mismatch.missing or mismatch.unexpected)


def _with_another_head(mismatch: Mismatch) -> bool:
    return not mismatch.beside_the_head


def _deeper(mismatch: Mismatch) -> bool:
    return bool(mismatch.unexpected) and not mismatch.missing and _patterns(mismatch.unexpected) <= _patterns(mismatch.own)


def _shallower(mismatch: Mismatch) -> bool:
    return bool(mismatch.missing) and not mismatch.unexpected and _patterns(mismatch.missing) <= _patterns(mismatch.state)


def _for_other_channels(mismatch: Mismatch) -> bool:
    if mismatch.missing or mismatch.unexpected or len(mismatch.resized) > 1:
        return False
    own, given = mismatch.own[mismatch.resized[0]].shape, mismatch.state[mismatch.resized[0]].shape
    return len(own) == len(given) > 2 and own[:1] + own[2:] == given[:1] + given[2:]


def _of_another_width(mismatch: Mismatch) -> bool:
    return len(mismatch.resized) * 2 > len(mismatch.own) - sum(key.endswith("tracked") for key in mismatch.own)


def _normalised(state: Mapping[str, Tensor]) -> bool:
    return any(key.endswith("running_mean") for key in state)


def _patterns(keys: Iterable[str]) -> set[str]:
    """Give keys without their numbers: the blocks of a deeper network have the same ones."""
    return {re.sub(r"\d+", "#", key) for key in keys}


# The first that holds is told.
_CAUSES: tuple[tuple[Callable[[Mismatch], bool], str], ...] = (
    (_of_an_adapter, "they are of an adapter (LoRA) only: merge it into its model, and save that model's state dict"),
    (lambda mismatch: is_quantised(mismatch.unexpected), "they are of a quantised model: save those of the model before it"),
    (_of_another_model, "they have no key in common with the model: they are of another model"),
    (_with_normalisation, "they are of a model with batch normalisation, and this one has none"),
    (_without_normalisation, "they are of a model without batch normalisation, and this one has it"),
    (_of_a_backbone, f"they have no head ('{{head}}'), but all the rest: {OWN_BUILDER}, that leaves it out"),
    (_for_other_classes, "only the head ('{head}') differs: build the model for as many classes as they are for"),
    (_with_another_head, f"only the head ('{{head}}') differs, it was replaced: {OWN_BUILDER}"),
    (_for_other_channels, "only one layer differs: they are for pictures of another number of channels"),
    (_deeper, "they have more of the same blocks: they are of a deeper model of this family"),
    (_shallower, "they have fewer of the same blocks: they are of a shallower model of this family"),
    (_of_another_width, "most shapes differ: they are of a model of this family with another width"),
    (lambda _: True, "are they of another model, or of another version of it?"),
)
