"""Capture attention weights in the caller's loop: `fmapviz.capture_attention`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import torch

from fmapviz.config import check_type, explain_arguments, split
from fmapviz.errors import LayerKeyError, first_few, quote, suggest
from fmapviz.features.attention.capture.observe import AttentionMode
from fmapviz.observe.hooks import observe
from fmapviz.observe.layers import find_layers, select_modules, unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from fmapviz.features.attention.capture.observe import Attention


@explain_arguments
@contextmanager
def capture_attention(
    model: nn.Module, *, layers: str | Iterable[str] = (), exclude: str | Iterable[str] = ()
) -> Iterator[CapturedAttention]:
    """Capture the attention weights of each attention module, in your own loop.

    They are also captured where `scaled_dot_product_attention` or `nn.MultiheadAttention` does not return them: they are
    computed beside it, in float32. What the model returns does not change, not by one bit.

    Args:
        model: Any `nn.Module`; run it inside the `with` block, on any device, any number of times: the last pass counts.
            It is in evaluation mode meanwhile.
        layers: Globs over dotted names of modules, such as `blocks.11`, with what is in them; none means all.
        exclude: Globs of names to leave out again.

    Returns:
        From the name of the innermost module (`blocks.0.attn`, `blocks.0.attn#2` for its second attention) to weights,
        float32 `(N, heads, L, S)` of L queries and S keys, in the order of execution. N is larger than the batch where
        attention is within windows. Each row is a distribution over the keys. A softmax over the last axis of three or more
        counts as attention.

    Raises:
        RequestError: A glob that fits nothing, a scripted or exported program.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> with capture_attention(net) as attention:
        ...     _ = net(torch.randn(1, 5, 8))
        >>> attention["self_attn"].shape
        torch.Size([1, 2, 5, 5])
    """
    network = unwrap(model)
    layers = split(check_type("layers", layers, Sequence[str], hint="names or globs, such as 'blocks.*'"))
    exclude = split(check_type("exclude", exclude, Sequence[str], hint="names or globs, such as 'blocks.0'"))
    chosen = select_modules(find_layers(network), (), layers, exclude) if layers or exclude else None
    captured = CapturedAttention()

    def receive(attention: Attention) -> None:
        if chosen is None or attention.layer.name in chosen:
            with torch.no_grad():
                captured[attention.name] = torch.stack(list(attention.weights.of_heads()), 1)

    observer = AttentionMode(receive, begin=captured.clear)
    with observe(network, [], lambda _: None), observer.attached(network), observer.watching():
        yield captured


class CapturedAttention(dict[str, "Tensor"]):
    """Attention weights by name, of the last forward pass; another name is a `KeyError` with the most similar ones."""

    def __missing__(self, name: object) -> NoReturn:
        """Raise `LayerKeyError`, which is a `KeyError` too, with the most similar names."""
        if not self:
            raise LayerKeyError(
                "no attention was captured", hint="run a model that computes attention inside the with block"
            )
        near = suggest(name, self) if isinstance(name, str) else None
        raise LayerKeyError(f"no attention of {quote(name)} was captured", hint=near or f"there are: {first_few([*self])}")
