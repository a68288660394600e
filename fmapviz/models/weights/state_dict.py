"""Find the state dict and the class names in the content of a checkpoint, and strip prefixes from its keys."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from fmapviz.errors import WeightsError, first_few, quote
from fmapviz.models.weights.stand_ins import Inert, find_tensors

if TYPE_CHECKING:
    from pathlib import Path

StateDict = dict[str, Tensor]
# torch.compile, FSDP and activation checkpointing insert these into the keys of every module they wrap.
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")

# Keys under which training scripts save the state dict, in order of preference.
NESTS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params")

# Keys under which they save the class names, and the settings that may contain them.
CLASSES = ("classes", "class_names", "categories", "names", "labels", "class_to_idx", "idx_to_class", "id2label")
SETTINGS = ("hyper_parameters", "hparams", "config", "meta", "dataset_meta", "args")

# Of profilers, of averaging, and tables that modules compute themselves.
EXTRAS = re.compile(
    r"(^|[._])(total_ops|total_params|_extra_state|num_batches_tracked|n_averaged|attn_mask|position_ids|__\w+__)$"
)
_DEEPEST = 3  # levels below which a state dict is not searched for extras

# Stripped also if the network is another one: the message is then easier to read.
_USUAL_PREFIX = re.compile(r"(?:module\.|model\.)*")
_TRAINING = ("optim", "sched", "scaler")  # parts of keys whose tensors only training needs


def find_state(content: object, entry: str | None) -> tuple[StateDict, str] | None:
    """Find a state dict: the content itself, under a usual key, or the only one in it.

    Args:
        content: The content of a checkpoint.
        entry: Search under this dotted key only, or take the tensors whose keys start with it.

    Returns:
        The state dict and its dotted key, which is empty for the content itself; None if there is no state dict.

    Raises:
        WeightsError: There are several and none has a usual key, or the entry does not exist.
    """
    if entry is None:
        return _usual_state(content, "")
    below = _descend(content, entry)
    if below is not None:
        return _usual_state(below, entry)
    try:
        found = _usual_state(content, "")
    except WeightsError:  # there are several
        found = None
    state = found[0] if found else {}
    keys = {WRAPPERS.sub("", key): key for key in state}
    if inside := [key for key in keys if key.startswith(f"{entry}.")]:
        return {key.removeprefix(f"{entry}."): state[keys[key]] for key in inside}, entry
    known, parts = list_states(content), list(dict.fromkeys(key.partition(".")[0] for key in keys if "." in key))
    named = [f"there are: {', '.join(map(quote, known[:8]))}"] if known else []
    named += [f"parts of the weights: {', '.join(map(quote, parts[:8]))}"] if parts else []
    raise WeightsError(f"no entry {quote(entry)} in the weights file", hint="; ".join(named) or "it contains no state dict")


def pickled_at(content: object, name: str) -> Inert | None:
    """Return the stand-in of the pickled network whose tensors were found under a dotted key, if it is one."""
    found = _descend(content, name) if name else content
    return found if isinstance(found, Inert) else None


def list_states(content: object) -> list[str]:
    """List the dotted keys of all state dicts below some content, except those of optimizers."""
    return [name for name, _ in _states_below(content, "")]


def drop_extras(content: object, name: str = "") -> tuple[object, list[str]]:
    """Remove entries of a state dict that are no tensors: None, extra states, a few numbers and texts.

    Returns:
        The content without it, and the dotted keys that were removed.

    Example:
        >>> drop_extras({"weight": torch.ones(1), "bias": None})
        ({'weight': tensor([1.])}, ['bias'])
    """
    if (
        not isinstance(content, dict)
        or type(content) not in {dict, OrderedDict}
        or not all(isinstance(key, str) for key in content)
    ):
        return content, []
    kept: dict[str, object] = {}
    dropped: list[str] = []
    has_tensors = any(isinstance(value, Tensor) for value in content.values())
    notes = {key for key, value in content.items() if isinstance(value, int | float | str)}  # the epoch, for example
    if 2 * len(notes) >= sum(isinstance(value, Tensor) and value.ndim > 0 for value in content.values()):
        notes.clear()  # these are settings, with tensors among them
    for key, value in content.items():
        if has_tensors and not isinstance(value, Tensor) and (value is None or key in notes or EXTRAS.search(key)):
            dropped.append(_joined(name, key))
        elif isinstance(value, dict) and name.count(".") < _DEEPEST:
            kept[key], below = drop_extras(value, _joined(name, key))
            dropped += below
        else:
            kept[key] = value
    return (kept, dropped) if dropped else (content, [])


def find_classes(content: object) -> tuple[str, ...]:
    """Return the class names at the top of a checkpoint or in its settings; empty if there are none.

    Example:
        >>> find_classes({"meta": {"class_to_idx": {"dog": 1, "cat": 0}}})
        ('cat', 'dog')
    """
    if not isinstance(content, Mapping):
        return ()
    parts = {key.lower(): value for key, value in content.items() if isinstance(key, str)}
    found = (ordered_names(parts[name]) for name in CLASSES if name in parts)
    deeper = (find_classes(parts[name]) for name in SETTINGS if name in parts)
    return next((classes for classes in (*found, *deeper) if classes), ())


def is_state(content: object) -> TypeGuard[StateDict]:
    """Return True for a non-empty dict of strings to tensors."""
    if not isinstance(content, dict) or not content:
        return False
    return all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())


def is_quantised(keys: Iterable[object]) -> bool:
    """Return True for the keys of a network quantised to 8-bit integers.

    Example:
        >>> is_quantised(["fc.scale", "fc.zero_point", "fc._packed_params.dtype"])
        True
    """
    return any(str(key).endswith("zero_point") or "_packed_params" in str(key) for key in keys)


def digest_of_state(state: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 of the keys, dtypes, shapes and bytes of a state dict, hexadecimal."""
    digest = hashlib.sha256()
    for key, values in state.items():
        digest.update(f"{key} {values.dtype} {tuple(values.shape)} ".encode("utf-8", "surrogatepass"))
        digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def ordered_names(names: object) -> tuple[str, ...]:
    """Return class names in the order of their indices; empty if the value is not a list or mapping of names.

    Example:
        >>> ordered_names(["cat", "dog"]), ordered_names({"1": "dog", "0": "cat"}), ordered_names({"dog": 1, "cat": 0})
        (('cat', 'dog'), ('cat', 'dog'), ('cat', 'dog'))
    """
    if isinstance(names, np.ndarray):
        names = names.tolist()
    if isinstance(names, Mapping):
        by_index = {_index(key, value): key if isinstance(value, int) else value for key, value in names.items()}
        names = [by_index.get(index) for index in range(len(names))]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


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
        """Return True if the tensors under a prefix have the network's shapes; of encoder and decoder, often one does."""
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


def _usual_state(content: object, name: str) -> tuple[StateDict, str] | None:
    content = _unpacked(content)
    if is_state(content):
        return _without_average_count(content), name
    if not isinstance(content, dict):
        return None
    nested = (_usual_state(content[nest], _joined(name, nest)) for nest in NESTS if nest in content)
    if found := next((state for state in nested if state), None):
        return found
    for part in map(content.get, NESTS):
        # A whole model, or tensors among other values: any other state dict would not be the weights asked for.
        if isinstance(part, Inert) or (isinstance(part, dict) and any(isinstance(v, Tensor) for v in part.values())):
            return None
    states = list(_states_below(content, name))
    if len(states) > 1:
        raise WeightsError(
            f"the weights file contains several state dicts: {', '.join(quote(name) for name, _ in states[:8])}",
            hint=f"choose one: weights='FILE#{states[0][0]}'",
        )
    return (_without_average_count(states[0][1]), states[0][0]) if states else None


def _states_below(content: object, name: str) -> Iterator[tuple[str, StateDict]]:
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if not isinstance(key, str) or any(word in key.lower() for word in _TRAINING):
            continue
        below = _unpacked(value)
        if is_state(below) and any(values.ndim for values in below.values()):
            yield _joined(name, key), below
        else:
            yield from _states_below(value, _joined(name, key))


def _unpacked(content: object) -> object:
    """Return the state dict of a pickled network in its place."""
    return (find_tensors(content) or content) if isinstance(content, Inert) else content


def _descend(content: Any, entry: str) -> object | None:
    """Follow a dotted key through nested dicts, whose keys may contain dots too."""
    if not isinstance(content, dict) or is_state(content):
        return None
    if entry in content:
        return content[entry]  # type: ignore[no-any-return]  # as the file has it
    parts = entry.split(".")
    ways = ((".".join(parts[:count]), ".".join(parts[count:])) for count in range(1, len(parts)))
    return next((found for key, rest in ways if (found := _descend(content.get(key), rest)) is not None), None)


def _without_average_count(state: StateDict) -> StateDict:
    """Remove the counter that `torch.optim.swa_utils.AveragedModel` adds to its network's keys."""
    if all(key == "n_averaged" or key.startswith("module.") for key in state):
        return {key: values for key, values in state.items() if key != "n_averaged"}
    return state


def _index(key: object, value: object) -> int | None:
    if isinstance(value, int):
        return value
    return int(key) if isinstance(key, int) or (isinstance(key, str) and re.fullmatch(r"\d{1,9}", key)) else None


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


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
