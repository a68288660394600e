"""Ask for the gradients of scores at tensors in the middle of a network.

Module backward hooks are not used: they fail wherever a layer works in place on what a hooked one returned, as those of
most networks do. A gradient edge names the place in the graph instead; taken before the tensor is overwritten, it stays
right.
"""

from __future__ import annotations

from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge

from fmapviz.errors import FmapvizError
from fmapviz.memory import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn
    from torch.autograd.graph import GradientEdge


class BackwardError(FmapvizError):
    """A backward pass through the network failed."""


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Let no parameter ask for gradients for a while: what is wanted are those of activations."""
    learning = [values for values in network.parameters() if values.requires_grad and not values.is_inference()]
    try:
        for values in learning:
            values.requires_grad_(False)
        yield
    finally:
        for values in learning:
            values.requires_grad_(True)


@contextmanager
def recording() -> Iterator[None]:
    """Record a graph, whatever the caller has switched off."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


def begin_graph(values: Tensor) -> tuple[Tensor, Tensor]:
    """Let a graph begin at a tensor.

    Returns:
        Where it begins, with the same values, and a copy for the network, which may overwrite it.
    """
    start = values.detach()
    start = (start.clone() if start.is_inference() else start).requires_grad_()
    return start, start.clone()


def begin_graph_in_place(values: Tensor) -> None:
    """Let a graph begin at a tensor that a network is already using, and goes on to use.

    Raises:
        RuntimeError: That cannot be: it is one of several views that an operation has returned together, say.
    """
    _Begin.apply(values, torch.zeros((), device=values.device, requires_grad=True))


class _Begin(torch.autograd.Function):
    """Does nothing with a tensor, in place, so that it becomes part of a graph."""

    # Any: torch does not say what a context is.
    @staticmethod
    def forward(context: Any, values: Tensor, _start: Tensor) -> Tensor:
        context.mark_dirty(values)
        return values

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> Any:
        return None, None


def edge_of(values: Tensor) -> GradientEdge | None:
    """Name the place of a tensor in the graph as it is now; None if it is in none."""
    return get_gradient_edge(values) if values.requires_grad else None


def gradients_at(
    scores: Tensor,
    edges: Sequence[GradientEdge | None],
    *,
    more: bool = False,
    before: tuple[GradientEdge, Tensor] | None = None,
) -> list[Tensor | None]:
    """Differentiate the sum of some scores in one backward pass.

    In evaluation mode the images of a batch do not see each other, so each one's gradient is that of its own score.

    Args:
        scores: float `(N,)`, one for each image.
        edges: Where, see `edge_of`.
        more: Whether the graph is wanted again.
        before: A place before the scores, and the gradient there to begin with instead of that of the scores.

    Returns:
        For each edge a tensor of the shape of its values; None where the scores do not depend on them.

    Raises:
        BackwardError: An operation of the network cannot be differentiated, or fails.

    Example:
        >>> _, x = begin_graph(torch.tensor([1.0, 2.0]))
        >>> gradients_at(x**2, [edge_of(x), None])
        [tensor([2., 4.]), None]
    """
    places = [edge for edge in edges if edge is not None]
    if not places or not scores.requires_grad:
        return [None] * len(edges)
    try:
        outputs, beginning = ([before[0]], [before[1]]) if before else ([scores.sum()], None)
        gradients = torch.autograd.grad(outputs, places, beginning, retain_graph=more, allow_unused=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {shorten(str(error), 300, placeholder=' ...')}"
        hint = "retain_graph=True in the first backward pass" if "second time" in str(error) else None
        raise BackwardError(f"the model's backward pass failed: {reason}", hint=hint) from error
    found = iter(gradients)
    return [None if edge is None else next(found) for edge in edges]
