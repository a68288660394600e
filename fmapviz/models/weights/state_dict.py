"""Find the state dict in what a checkpoint holds, and the names of the classes beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from torch import Tensor

from fmapviz.errors import WeightsError, quote
from fmapviz.inert import Inert

# What torch.compile, FSDP and activation checkpointing write into the keys wherever something is wrapped.
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")

StateDict = dict[str, Tensor]

# Where training scripts put the state dict, in the order in which they are tried.
NESTS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params")

# Where they put the names of the classes, and the settings that may hold them.
CLASSES = ("classes", "class_names", "categories", "names", "labels", "class_to_idx", "idx_to_class", "id2label")
SETTINGS = ("hyper_parameters", "hparams", "config", "meta", "dataset_meta", "args")

_TRAINING = ("optim", "sched", "scaler")  # in the names of what is of no use without the training


def find_state(content: object, entry: str | None) -> tuple[StateDict, str] | None:
    """Find a state dict: the content itself, under one of the usual names, or the only one that there is.

    Args:
        content: What a checkpoint holds.
        entry: Look under this name, dotted where it is nested, or take the tensors whose keys begin with it.

    Returns:
        The state dict, and the dotted name it was found under, empty if it is the content; None if there is none.

    Raises:
        WeightsError: There are several, none of them under a usual name; or nothing of the name wanted.
    """
    if entry is None:
        return _usual_state(content, "")
    below = _descend(content, entry)
    if below is not None:
        return _usual_state(below, entry)
    state = _whole_state(content)
    keys = {WRAPPERS.sub("", key): key for key in state}
    if inside := [key for key in keys if key.startswith(f"{entry}.")]:
        return {key.removeprefix(f"{entry}."): state[keys[key]] for key in inside}, entry
    known = [*list_states(content), *_first_parts(keys)]
    raise WeightsError(
        f"nothing in the weights file is called {quote(entry)}",
        hint=f"there are: {', '.join(map(quote, known[:8]))}" if known else "it holds no state dict at all",
    )


def list_states(content: object) -> list[str]:
    """List the dotted names of all state dicts below some content, but for what optimizers keep."""
    return [name for name, _ in _states_below(content, "")]


def find_classes(content: object) -> tuple[str, ...]:
    """Give the names of the classes that lie at the top of a checkpoint or among its settings; empty if there are none.

    Example:
        >>> find_classes({"meta": {"class_to_idx": {"dog": 1, "cat": 0}}})
        ('cat', 'dog')
    """
    if not isinstance(content, Mapping):
        return ()
    parts = {key.lower(): value for key, value in content.items() if isinstance(key, str)}
    found = (in_order(parts[name]) for name in CLASSES if name in parts)
    deeper = (find_classes(parts[name]) for name in SETTINGS if name in parts)
    return next((classes for classes in (*found, *deeper) if classes), ())


def is_state(content: object) -> TypeGuard[StateDict]:
    """Tell whether some content is nothing but tensors under names."""
    if not isinstance(content, dict) or not content:
        return False
    return all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())


def in_order(names: object) -> tuple[str, ...]:
    """Give names as a tuple that come as a list, under their numbers, or with their numbers under them; else nothing.

    Example:
        >>> in_order(["cat", "dog"]), in_order({"1": "dog", "0": "cat"}), in_order({"dog": 1, "cat": 0})
        (('cat', 'dog'), ('cat', 'dog'), ('cat', 'dog'))
    """
    if isinstance(names, Mapping):
        by_number = {_number(key, value): key if isinstance(value, int) else value for key, value in names.items()}
        names = [by_number.get(number) for number in range(len(names))]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _usual_state(content: object, name: str) -> tuple[StateDict, str] | None:
    if is_state(content):
        return _without_average_count(content), name
    if not isinstance(content, dict):
        return None
    nested = (_usual_state(content[nest], _joined(name, nest)) for nest in NESTS if nest in content)
    if found := next((state for state in nested if state), None):
        return found
    if any(_should_be_state(content.get(nest)) for nest in NESTS):
        return None  # what else there is would be other weights than those asked for
    states = list(_states_below(content, name))
    if len(states) > 1:
        raise WeightsError(
            f"the weights file holds several state dicts: {', '.join(quote(name) for name, _ in states[:8])}",
            hint=f"choose one: --weights 'FILE#{states[0][0]}'",
        )
    return (_without_average_count(states[0][1]), states[0][0]) if states else None


def _should_be_state(content: object) -> bool:
    """Tell what stands in the place of a state dict and is none: a whole model, or tensors among other things."""
    return isinstance(content, Inert) or (isinstance(content, dict) and any(isinstance(v, Tensor) for v in content.values()))


def _whole_state(content: object) -> StateDict:
    """Give the state dict that would be taken without a word about it; an empty one if there is none."""
    try:
        found = _usual_state(content, "")
    except WeightsError:  # there are several
        return {}
    return found[0] if found else {}


def _states_below(content: object, name: str) -> Iterator[tuple[str, StateDict]]:
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if not isinstance(key, str) or any(word in key.lower() for word in _TRAINING):
            continue
        if is_state(value) and any(values.ndim for values in value.values()):
            yield _joined(name, key), value
        else:
            yield from _states_below(value, _joined(name, key))


def _descend(content: Any, entry: str) -> object | None:
    """Follow a dotted name through nested dictionaries, whose keys may have dots themselves."""
    if not isinstance(content, dict) or is_state(content):
        return None
    if entry in content:
        return content[entry]  # type: ignore[no-any-return]  # it is what the file holds
    parts = entry.split(".")
    ways = ((".".join(parts[:count]), ".".join(parts[count:])) for count in range(1, len(parts)))
    return next((found for key, rest in ways if (found := _descend(content.get(key), rest)) is not None), None)


def _without_average_count(state: StateDict) -> StateDict:
    """Leave out how many states `torch.optim.swa_utils.AveragedModel` has averaged: no network has that."""
    if all(key == "n_averaged" or key.startswith("module.") for key in state):
        return {key: values for key, values in state.items() if key != "n_averaged"}
    return state


def _first_parts(keys: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(key.partition(".")[0] for key in keys if "." in key))


def _number(key: object, value: object) -> int | None:
    if isinstance(value, int):
        return value
    return int(key) if isinstance(key, int) or (isinstance(key, str) and re.fullmatch(r"\d{1,9}", key)) else None


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
