"""Read a state dict that is given in Python, as a weights file of its content is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fmapviz.errors import WeightsError, first_few, quote
from fmapviz.models.weights.read import Checkpoint
from fmapviz.models.weights.state_dict import drop_extras, find_classes, find_state, list_states

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "state dict"
PATH = Path("the state dict")  # for messages, in place of a file


def read_given(weights: Mapping[str, Any]) -> Checkpoint:  # Any: see `find_state`
    """Return the tensors of a state dict, or of a checkpoint that contains one, copied to the CPU.

    Raises:
        WeightsError: There is no state dict in it, or there are several.

    Example:
        >>> import torch
        >>> [*read_given(torch.nn.Linear(2, 1).state_dict()).state]
        ['weight', 'bias']
    """
    content, dropped = drop_extras(dict(weights))
    content = cast("dict[str, Any]", content)
    try:
        found = find_state(content, None)
    except WeightsError as error:  # there are several
        error.advise(f"pass one of them, such as checkpoint[{list_states(content)[0].partition('.')[0]!r}]")
        raise
    if found is None:
        keys = first_few([quote(key) for key in content]) or "nothing"
        message = f"no state dict, which maps names to tensors, but a {type(weights).__name__} of {keys}"
        raise WeightsError(message, hint="network.state_dict() is one")
    state = {key: values.detach().cpu().clone() for key, values in found[0].items()}  # the caller may go on training
    return Checkpoint(
        state, find_classes(content), (f"not used of the state dict: {first_few(dropped)}",) if dropped else ()
    )
