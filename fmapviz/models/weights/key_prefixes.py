"""Strip the prefixes that wrappers and training scripts put before the keys of a network's weights."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from fmapviz.errors import WeightsError, first_few, quote
from fmapviz.models.weights.state_dict import WRAPPERS, StateDict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

# Stripped also if the network is another one: the message is then easier to read.
_USUAL_PREFIX = re.compile(r"(?:module\.|model\.)*")


def strip_prefixes(state: StateDict, expected: StateDict, path: Path) -> tuple[StateDict, tuple[str, ...]]:
    """Strip the prefixes that wrappers and training modules add to the keys of a network.

    Args:
        state: The weights.
        expected: The state dict of the network; `num_batches_tracked` may be missing in the weights.
        path: The file, for the notice.

    Returns:
        The tensors under the stripped keys, without those that lack the prefix, such as a loss function's; and a notice
        about the prefixes, outermost first, and the ignored keys.

    Raises:
        WeightsError: The network is there several times, under several prefixes.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> strip_prefixes({"net.a.weight": torch.zeros(1)}, {"a.weight": torch.ones(1)}, Path("lit.ckpt"))
        ({'a.weight': tensor([0.])}, ("stripped the prefix 'net.' from the keys of 'lit.ckpt'",))
    """
    needed = {key for key in expected if not key.endswith("num_batches_tracked")}
    if needed <= state.keys():
        return state, ()
    unwrapped = {WRAPPERS.sub("", key): key for key in state}

    def fits(prefix: str) -> bool:
        """Return True if what is under a prefix has the shapes of the network: of encoder and decoder one may."""
        held = ((expected[key].shape, unwrapped.get(f"{prefix}{key}")) for key in needed)
        return all(key is None or state[key].shape == shape for shape, key in held)

    prefix = _prefix_of(unwrapped, needed, fits)
    names = {key.removeprefix(prefix): given for key, given in unwrapped.items() if key.startswith(prefix)}
    leading = [given.removesuffix(key) for key, given in names.items() if given.endswith(key)]
    wrappers = [match[0] for given in names.values() for match in WRAPPERS.finditer(given)]
    stripped = re.findall(r"[^.]*\.", leading[0] if leading else prefix)
    stripped += [wrapper for wrapper in dict.fromkeys(wrappers) if wrapper not in stripped]
    if not stripped:
        return state, ()
    noun = "prefix" if len(stripped) == 1 else "prefixes"
    notice = f"stripped the {noun} {' and '.join(map(quote, stripped))} from the keys of {quote(path)}"
    kept = set(names.values())
    if others := [key for key in state if key not in kept]:
        notice += f", and ignored the other keys: {first_few(others)}"
    return {key: state[given] for key, given in names.items()}, (notice,)


def _prefix_of(keys: Collection[str], needed: set[str], fits: Callable[[str], bool]) -> str:
    """Return the prefix of most of the needed keys; without a majority, a wrapper's prefix that all keys share.

    Args:
        keys: Of the weights.
        needed: Of the network.
        fits: Whether the shapes under a prefix are the network's.
    """
    starts = ((key, [0, *(match.end() for match in re.finditer(r"\.", key))]) for key in keys)
    found = Counter(key[:start] for key, ends in starts for start in ends if key[start:] in needed)
    most = max(found.values(), default=0)
    if found[""] == most > 0:
        return ""
    if 2 * most <= len(needed):
        prefix = _USUAL_PREFIX.match(next(iter(keys), ""))[0]  # type: ignore[index]  # it matches everything
        return prefix if not found[""] and all(key.startswith(prefix) for key in keys) else ""
    best = sorted(prefix for prefix, count in found.items() if count == most)
    current = [prefix for prefix in best if not re.search(r"(?i)(^|[._])(ema|swa|average|averaged|shadow)([._]|$)", prefix)]
    if len(current) == 1:  # the others are moving averages of it
        return current[0]
    if len(best) > 1:
        best = [prefix for prefix in best if fits(prefix)] or best
    if len(best) > 1:
        raise WeightsError(
            f"the weights file contains the network {len(best)} times: under {' and '.join(map(quote, best))}",
            hint=f"choose one: weights={quote(f'FILE#{best[0][:-1]}')}",
        )
    return best[0]
