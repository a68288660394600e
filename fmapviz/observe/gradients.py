"""Compute the gradients of scores at tensors in the middle of a network.

Module backward hooks are not used: they fail wherever a layer works in place on what a hooked one returned, as those of
most networks do. A gradient edge identifies the position in the graph instead; taken before the tensor is overwritten, it
stays valid.
"""

from __future__ import annotations

from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge

from fmapviz.errors import FmapvizError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn
    from torch.autograd.graph import GradientEdge


class BackwardError(FmapvizError):
    """A backward pass through the network failed."""


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Disable the gradients of parameters for a while: only those of activations are needed."""
    trained = [values for values in network.parameters() if values.requires_grad and not values.is_inference()]
    try:
        for values in trained:
            values.requires_grad_(False)
        yield
    finally:
        for values in trained:
            values.requires_grad_(True)


@contextmanager
def recording() -> Iterator[None]:
    """Record a graph, even if the caller has disabled gradients or uses inference mode."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


def begin_graph(values: Tensor) -> tuple[Tensor, Tensor]:
    """Begin a graph at a tensor.

    Returns:
        Its first tensor, with the same values, and a copy for the network, which may overwrite it.
    """
    start = values.detach()
    start = (start.clone() if start.is_inference() else start).requires_grad_()
    return start, start.clone()


def begin_graph_in_place(values: Tensor) -> bool:
    """Begin a graph at a tensor in the middle of a forward pass.

    Returns:
        False if that is impossible, for one of several views that an operation has returned together, for example.
    """
    try:
        _Begin.apply(values, torch.zeros((), device=values.device, requires_grad=True))
    except RuntimeError:
        return False
    return values.requires_grad


class _Begin(torch.autograd.Function):
    """Does nothing to a tensor, in place, so that it becomes part of a graph."""

    # Any: torch does not declare the type of a context.
    @staticmethod
    def forward(context: Any, values: Tensor, _start: Tensor) -> Tensor:
        context.mark_dirty(values)
        return values

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> Any:
        return None, None


def edge_of(values: Tensor) -> GradientEdge | None:
    """Return the current position of a tensor in the graph, None if it is outside of one."""
    return get_gradient_edge(values) if values.requires_grad else None


def gradients_at(
    scores: Tensor,
    edges: Sequence[GradientEdge | None],
    *,
    more: bool = False,
) -> list[Tensor | None]:
    """Differentiate the sum of some scores in one backward pass.

    In evaluation mode the images of a batch are independent, so the gradient of each image is that of its score.

    Args:
        scores: float `(N,)`, one for each image.
        edges: The positions, see `edge_of`.
        more: Whether the graph is needed again.

    Returns:
        For each edge a tensor of the shape of its values; None where the scores do not depend on them.

    Raises:
        BackwardError: An operation of the network cannot be differentiated, or fails.

    Example:
        >>> _, x = begin_graph(torch.tensor([1.0, 2.0]))
        >>> gradients_at(x**2, [edge_of(x), None])
        [tensor([2., 4.]), None]
    """
    positions = [edge for edge in edges if edge is not None]
    if not positions or not scores.requires_grad:
        return [None] * len(edges)
    try:
        gradients = torch.autograd.grad(scores.sum(), positions, retain_graph=more, allow_unused=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {shorten(str(error), 300, placeholder=' ...')}"
        hint = "retain_graph=True in the first backward pass" if "second time" in str(error) else None
        raise BackwardError(f"the model's backward pass failed: {reason}", hint=hint) from error
    found = iter(gradients)
    return [None if edge is None else next(found) for edge in edges]


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception means that the memory of the GPU or the computer did not suffice."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
