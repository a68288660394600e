"""Count the multiplications of convolutions, matrix products and attention in a forward pass."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor, nn


def _of_product(first: Tensor, second: Tensor, **_: Any) -> int:  # Any: options of the operator
    return first.numel() * second.shape[-1]


def _of_sum(_added: Tensor, first: Tensor, second: Tensor, **_: Any) -> int:  # Any: as above
    return first.numel() * second.shape[-1]


# Any: as above.
def _of_convolution(values: Tensor, weight: Tensor, *options: Any, out: Tensor, **_: Any) -> int:
    """Each value of the output, or of the input of a transposed convolution, meets one kernel."""
    transposed = options[4]
    return (values if transposed else out).numel() * prod(weight.shape[1:])


# Any: as above.
def _of_attention(query: Tensor, key: Tensor, value: Tensor, *_options: Any, **_: Any) -> int:
    queries, keys = prod(query.shape[:-1]), key.shape[-2]
    return queries * keys * (query.shape[-1] + value.shape[-1])


# Multiplications by the arguments and the result of an operator. For those that both have, a test compares them with
# `torch.utils.flop_counter`, which imports Triton: 0.2 s.
_FORMULAS: dict[str, Callable[..., int]] = {
    "aten.mm": _of_product,
    "aten.bmm": _of_product,
    "aten.addmm": _of_sum,
    "aten.baddbmm": _of_sum,
    "aten.mv": lambda matrix, _vector, **_: matrix.numel(),
    "aten.addmv": lambda _added, matrix, _vector, **_: matrix.numel(),
    "aten.dot": lambda vector, _other, **_: vector.numel(),
    "aten.vdot": lambda vector, _other, **_: vector.numel(),
    "aten.convolution": _of_convolution,
    "aten._convolution": _of_convolution,
    "aten._scaled_dot_product_cudnn_attention": _of_attention,
    "aten._scaled_dot_product_efficient_attention": _of_attention,
    "aten._scaled_dot_product_flash_attention": _of_attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _of_attention,
    "aten.mkldnn_rnn_layer": lambda values, first, second, *_, **__: (
        values.shape[:2].numel() * (first.numel() + second.numel())
    ),
    "torchvision.deform_conv2d": lambda _values, weight, *_, out, **__: out.numel() * prod(weight.shape[1:]),
}
# Other operators of PyTorch that multiply matrices. Those of other namespaces may do so.
_RARE = frozenset(
    f"aten.{name}"
    for name in (
        "_cudnn_rnn", "_efficient_attention_forward", "_flash_attention_forward", "_grouped_mm", "_int_mm",
        "_native_multi_head_attention", "_scaled_dot_product_fused_attention_overrideable", "_scaled_grouped_mm",
        "_scaled_mm", "_transformer_encoder_layer_fwd", "_trilinear", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu",
        "_weight_int8pack_mm", "conv_tbc", "miopen_rnn",
    )
)  # fmt: skip
_OF_TORCH = ("aten", "prim", "prims", "profiler", "torchvision")


class MacCounter(TorchDispatchMode):
    """Count multiply-accumulate operations (MACs): half of the FLOPs of `torch.utils.flop_counter`.

    Enter it within other dispatch modes, whose own operators are not counted then.

    Attributes:
        uncounted: Operators whose MACs are unknown.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(4, 3)
        >>> with MacCounter.counting([layer]) as counter:
        ...     _ = layer(torch.ones(2, 4))
        >>> counter.of(layer), counter.total
        (24, 24)
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's
        self.uncounted: Counter[str] = Counter()
        self._open: list[nn.Module | None] = [None]  # the whole pass, and the modules that run now
        self._macs: Counter[nn.Module | None] = Counter()
        self._unknown: set[nn.Module | None] = set()

    @classmethod
    @contextmanager
    def counting(cls, modules: Iterable[nn.Module]) -> Iterator[MacCounter]:
        """Count the MACs of these modules, and of all, in the passes of the block."""
        counter = cls()
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(module.register_forward_pre_hook(counter._enter, prepend=True))
                stack.enter_context(module.register_forward_hook(counter._leave, always_call=True))
            stack.enter_context(counter)
            yield counter

    @property
    def total(self) -> int | None:
        """The MACs of all operators; None if those of one are unknown."""
        return self.of(None)

    def of(self, module: nn.Module | None) -> int | None:
        """Return the MACs of all calls of a module, with those of the modules within; None if those of one are unknown."""
        return None if module in self._unknown else self._macs[module]

    def _enter(self, module: nn.Module, _args: object) -> None:
        self._open.append(module)

    def _leave(self, module: nn.Module, _args: object, _output: object) -> None:
        while self._open[-1] is not module:  # modules whose hooks an exception has skipped
            self._open.pop()
        self._open.pop()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as `AxisTracking` does."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # torch._ops.OpOverload has no public name
        _types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: an operator takes and returns anything
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and count its MACs."""
        kwargs = kwargs or {}
        if not isinstance(func, HigherOrderOperator) and func.namespace == "aten" and func._can_decompose():
            with self:  # a composite operator, as inference mode passes it on
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        running = set(self._open)
        try:
            if (macs := _macs_of(func, args, kwargs, out)) is None:
                raise ValueError  # noqa: TRY301  handled as a formula that fails
        except Exception:  # noqa: BLE001  a formula may expect other arguments, such as plain tensors
            self._unknown |= running
            self.uncounted[str(getattr(func, "_overloadpacket", func))] += 1
        else:
            for module in running if macs else ():
                self._macs[module] += macs
        return out


# Any: as above.
def _macs_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Tensor) -> int | None:
    """Return the MACs of one call of an operator; None if they are unknown."""
    packet = getattr(func, "_overloadpacket", func)
    name = str(packet)
    if own := _FORMULAS.get(name):
        return own(*args, **kwargs, out=out)
    if name not in _RARE and name.partition(".")[0] in _OF_TORCH:
        return 0
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415  imports Triton; may hold a formula of the user

    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) // 2 if formula else None
