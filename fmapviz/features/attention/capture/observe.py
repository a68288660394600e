"""Observe every attention of a forward pass by a `TorchFunctionMode` and module hooks, also where one operation computes it.

A hook of a module cannot see attention weights: `scaled_dot_product_attention` never stores them, and
`nn.MultiheadAttention` returns them only on request. Here the calls of these functions, and of softmax, are observed. The
network receives their results, so its outputs are the same bit by bit; weights are computed separately.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fmapviz.data import Layer
from fmapviz.features.attention.capture.weights import Fused, Given
from fmapviz.observe.layers import find_layers
from fmapviz.observe.layouts.tokens import TokenGrid
from fmapviz.observe.readable import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fmapviz.features.attention.capture.weights import Weights

_SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
_FUSED = functional.scaled_dot_product_attention
_FUSED_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MULTI_HEAD = functional.multi_head_attention_forward
_NOWHERE = TokenGrid(0, refused="between tokens that were not followed")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")  # attributes of attention modules
_WEIGHTLESS = nn.Softmax | nn.Dropout  # parts of an attention module that compute no attention themselves


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention of a forward pass.

    Attributes:
        layer: The innermost module that was running, which owns it.
        name: Its name, with `#2` for its second attention.
        call: Number of this attention among the module's own, from 1.
        weights: `(N, heads, L, S)`, of L queries and S keys.
        output: Result of the operation: `(N, heads, L, d)` if it was fused, otherwise the weights.
        value: The values that the weights were multiplied with, `(N, heads, S, d)`, if the operation was fused.
        grids: Positions of the queries and the keys.
    """

    layer: Layer
    name: str
    call: int
    weights: Weights
    output: Tensor
    value: Tensor | None = None
    grids: tuple[TokenGrid, TokenGrid] = (_NOWHERE, _NOWHERE)


@dataclass(slots=True, eq=False)
class AttentionMode:
    """Passes every attention of a network to a function, while `watching` is active.

    Its hooks record which modules are running.

    Attributes:
        receive: Called when an attention has been computed.
        begin: Called when a forward pass begins.
    """

    receive: Callable[[Attention], None]
    begin: Callable[[], None] = lambda: None
    _running: list[Layer] = field(default_factory=list)
    _calls: Counter[str] = field(default_factory=Counter)
    _heads: int | None = None  # of the `multi_head_attention_forward` that is running

    @contextmanager
    def attached(self, network: nn.Module) -> Iterator[None]:
        """Attach the hooks to all modules."""
        with ExitStack() as stack:
            whole = Layer(type(network).__name__, type(network).__name__, network)
            for layer in (whole, *find_layers(network)):
                if not isinstance(layer.module, _WEIGHTLESS):
                    stack.enter_context(layer.module.register_forward_pre_hook(self._entry_hook(layer)))
                    stack.enter_context(layer.module.register_forward_hook(self._leave, always_call=True))
            yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the operations of the network."""
        self._running.clear()
        with _Mode(self):
            yield

    def _entry_hook(self, layer: Layer) -> Callable[..., None]:
        def enter(_module: nn.Module, _args: object) -> None:
            if not self._running:
                self._calls.clear()
                self.begin()
            self._running.append(layer)

        return enter

    def _leave(self, module: nn.Module, _args: object, _output: object) -> None:
        while self._running and self._running.pop().module is not module:  # a module that raised an exception
            pass

    def note(self, weights: Weights, output: Tensor, value: Tensor | None = None) -> None:
        """Report an attention of the innermost module."""
        if not self._running or why_unreadable(output):
            return
        owner = self._running[-1]
        self._calls[owner.name] += 1
        call = self._calls[owner.name]
        name = owner.name if call == 1 else f"{owner.name}#{call}"
        with torch._C.DisableTorchFunction():  # another observer's mode must not see how weights are computed
            self.receive(Attention(owner, name, call, weights, output, value))

    def note_fused(self, output: Tensor, arguments: Mapping[str, Any]) -> None:  # Any: of the function
        """Report what `scaled_dot_product_attention` has computed."""
        given = [arguments[name] for name in ("query", "key", "value")]
        if given[0].is_nested or given[0].ndim < 3:
            return
        query, key, value = (_with_four_axes(each.detach()) for each in given)
        mask, scale = arguments.get("attn_mask"), arguments.get("scale")
        mask = mask if mask is None or mask.ndim < 5 else _with_four_axes(mask)
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        self.note(Fused(query, key, mask, bool(arguments.get("is_causal")), scale), output, value)

    def note_softmax(self, output: Tensor) -> None:
        """Report a softmax over the last axis, if it may be between tokens: `(N, heads, L, S)`."""
        heads = self._heads or self._heads_of_owner()
        if output.ndim == 3:  # of one head, or of all heads as samples
            heads = heads if heads and not len(output) % heads else 1
            weights = output.view(-1, heads, *output.shape[1:])
        elif output.ndim > 3:
            weights = _with_four_axes(output)
        else:
            return
        self.note(Given(weights.detach()), output)

    def _heads_of_owner(self) -> int | None:
        module = self._running[-1].module if self._running else None
        given = (getattr(module, name, None) for name in _HEADS)
        return next((heads for heads in given if isinstance(heads, int) and heads > 0), None)

    @contextmanager
    def heads(self, heads: int) -> Iterator[None]:
        """Read attention weights of three axes as those of several heads."""
        before, self._heads = self._heads, heads
        try:
            yield
        finally:
            self._heads = before


class _Mode(TorchFunctionMode):
    """Sees the functions of PyTorch that compute attention; active in this thread only."""

    def __init__(self, observer: AttentionMode) -> None:
        super().__init__()
        self._observer = observer

    # Any: a function of PyTorch.
    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _MULTI_HEAD:
            with self, self._observer.heads(_argument(args, kwargs, 4, "num_heads")):
                return _unguarded_multi_head(*args, **kwargs)
        output = func(*args, **kwargs)
        if func is _FUSED:
            self._observer.note_fused(output, {**dict(zip(_FUSED_ARGUMENTS, args, strict=False)), **kwargs})
        elif func in _SOFTMAX and _is_over_last(output, _argument(args, kwargs, 1, "dim")):
            self._observer.note_softmax(output)
        return output


# Within a function of PyTorch that it sees, a mode is not active, and if it were, the function would ask it again. So the
# function's own calls are seen in a copy that does not ask.
_unguarded_multi_head = FunctionType(
    _MULTI_HEAD.__code__,
    {**_MULTI_HEAD.__globals__, "has_torch_function": lambda _tensors: False},
    argdefs=_MULTI_HEAD.__defaults__,
)


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _with_four_axes(values: Tensor) -> Tensor:
    """Return `(N, heads, L, d)`; axes before these count as samples, such as the windows of each image."""
    return values[:, None] if values.ndim == 3 else values.flatten(0, -4)


def _is_over_last(output: Tensor, dim: object) -> bool:
    return output.is_floating_point() and dim in {-1, output.ndim - 1}
