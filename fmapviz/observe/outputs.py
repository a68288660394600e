"""Find the part of a network's output that holds the class scores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fmapviz.errors import RequestError, quote, suggest

OUTPUT = "-> "  # before the path of what the network returns; no layer has such a name
_LISTED = 10  # parts named at most, of a network that returns many


def tensors(output: object, part: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a module's output, each after its path.

    Example:
        >>> [part for part, _ in tensors({"out": torch.zeros(1), "aux": [torch.zeros(1), torch.zeros(1)]})]
        ["['out']", "['aux'][0]", "['aux'][1]"]
    """
    if isinstance(output, Tensor):
        yield part, output
        return
    items: Iterable[tuple[str, Any]] = ()  # Any: a module may return anything.
    if isinstance(output, dict):
        items = ((f"[{key!r}]", value) for key, value in output.items())
    elif isinstance(output, list | tuple):
        items = ((f"[{position}]", value) for position, value in enumerate(output))
    elif is_dataclass(output):
        items = ((f".{entry.name}", getattr(output, entry.name)) for entry in fields(output))
    elif hasattr(output, "tensors") and isinstance(output.tensors, Tensor):  # torchvision's ImageList
        items = [(".tensors", output.tensors)]
    for key, value in items:
        yield from tensors(value, f"{part}{key}")


def part_of(output: object, key: str) -> Any:
    """Return a part of a network's output.

    Args:
        output: A dict, tuple, list, dataclass or an object with attributes; these within each other.
        key: A key, an index, or several with dots between them; a key with dots in it may also be a single step.

    Raises:
        RequestError: There is nothing under it.

    Example:
        >>> part_of({"heads": [1, 2]}, "heads.1")
        2
    """
    # Any: a network may return anything.
    entries = _entries(output)
    if key in entries:
        return entries[key]
    step, _, rest = key.partition(".")
    if step in entries and rest:
        return part_of(entries[step], rest)
    known = list(entries)
    listing = (
        f"there are: {', '.join(map(quote, known[:_LISTED]))}"
        if known
        else "omit output=: the output is a single tensor; out= is the directory of the results"
    )
    raise RequestError(f"the network returns nothing under {quote(key)}", hint=suggest(key, known) or listing)


def scores_in(output: object, *, classes: int = 0) -> Tensor:
    """Return the tensor that holds the class scores.

    Args:
        output: Of a network.
        classes: Number of class names; 0 if they are unknown.

    Returns:
        The only tensor; the one called `out` or `logits`; or the only one with as many channels as there are names.

    Raises:
        RequestError: None of these exists.
    """
    found = list(tensors(output))
    if len(found) == 1:
        return found[0][1]
    entries = _entries(output)
    for name in ("out", "logits"):
        if isinstance(values := entries.get(name), Tensor):
            return values
    if not found:
        raise no_scores(output)
    fitting = [values for _, values in found if classes and values.ndim > 1 and values.shape[1] == classes]
    if len(fitting) == 1:
        return fitting[0]
    listing = ", ".join(f"{part} {describe(values)}" for part, values in found[:_LISTED])
    keys = ", ".join(keys_of(output)[:_LISTED])
    raise RequestError(f"the network returns several tensors: {listing}", hint=f"output=KEY chooses one: {keys}")


def keys_of(output: object) -> list[str]:
    """Return the keys that `part_of` takes for each tensor of an output; none for a single tensor.

    Example:
        >>> keys_of({"out": torch.zeros(1), "aux": [torch.zeros(1), torch.zeros(1)]})
        ['out', 'aux.0', 'aux.1']
    """
    found = (re.sub(r"[\[\]'.]+", ".", part).strip(".") for part, _ in tensors(output))
    return [key for key in found if key]


def no_scores(output: object, *, alone: bool = False) -> RequestError:
    """Return the error for an output, or a part of it, that holds no class scores; `alone` if there is no other part."""
    hint = "output=KEY chooses a tensor of logits, (N, K) or (N, K, H, W) for N images"
    if alone:
        hint = "scores are (N, K), or (N, K, H, W) of pixels, for N images: return them so, a single mask as mask[:, None]"
    if alone and isinstance(output, Tensor) and not output.is_floating_point() and not output.is_complex():
        hint = "integers and booleans, such as of argmax, have no gradient: return the scores that they come from"
    return RequestError(f"no class scores in the network's output: {describe(output)}", hint=hint)


def describe(output: object) -> str:
    """Return the shape of a tensor, and its type if that is no floating-point one; of anything else the type."""
    if not isinstance(output, Tensor):
        return quote(type(output).__name__)
    if output.is_nested or output.layout is not torch.strided:
        return "a nested tensor" if output.is_nested else "a sparse tensor"
    kind = "" if output.is_floating_point() else f"{str(output.dtype).removeprefix('torch.')} "
    return f"{kind}{tuple(output.shape)}"


# Any: a network may return anything.
def _entries(output: object) -> dict[str, Any]:
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, list | tuple):
        named = zip(getattr(output, "_fields", ()), output, strict=False)
        return {str(position): value for position, value in enumerate(output)} | dict(named)
    if is_dataclass(output):
        return {entry.name: getattr(output, entry.name) for entry in fields(output)}
    own = {} if isinstance(output, Tensor) else getattr(output, "__dict__", {})
    return {name: value for name, value in own.items() if not name.startswith("_")}
