"""Draw attention through all blocks over the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmapviz.features.attention import ROLLOUT, rollout
from fmapviz.features.attention.capture.blocks import flow_through
from fmapviz.features.attention.capture.placement import Query
from fmapviz.observe.reshape import NotAMapError, picture_size
from fmapviz.run.batch_results import LayerBatch
from fmapviz.types import LayerResult
from fmapviz.views.base import draw_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.features.attention.capture.blocks import Block, Flow
    from fmapviz.features.attention.capture.placement import TokenInput
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.run.batch_results import BatchResults
    from fmapviz.run.plan import Plan
    from fmapviz.types import Target


@dataclass(slots=True, eq=False)
class SeenAttention:
    """The attention that a pass has computed.

    Attributes:
        picture: The input that tokens come from.
        modules: Names of the modules that computed one, of chosen blocks and others.
        blocks: The attention of each chosen block, if something is to flow through them.
    """

    picture: TokenInput | None = None
    modules: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)


def query_of(style: Style) -> Query:
    """Return whose attention a style draws."""
    return Query(style.position, mean=style.query == "mean")


def draw_flow(
    seen: SeenAttention,
    plan: Plan,
    style: Style,
    *,
    record: ForwardRecord,
    results: BatchResults,
    targets: Sequence[Target | None] | None = None,
    gradients: Mapping[int, Tensor | None] | None = None,
) -> None:
    """Draw the flow through the blocks of a forward pass.

    Args:
        seen: The attention of the pass.
        plan: What the images of a run share.
        style: How the picture looks, and whose attention it shows.
        record: The forward pass.
        results: Receives the map, or the reason why there is none.
        targets: The class of each image, if it is weighted by gradients.
        gradients: Of the scores of these classes at the blocks, by the blocks' identity.
    """
    blocks, count = seen.blocks, len(seen.modules)
    try:
        assert seen.picture
        flow = flow_through(blocks, seen.picture, query_of(style), record.pixels.device)
        maps = flow.as_maps(_follow(flow, gradients))
    except NotAMapError as reason:
        results.undrawn[ROLLOUT] = str(reason)
        return
    centres = record.places.of_grid(ROLLOUT, flow.tokens) if record.places else None
    shown = flow.shown
    if len(blocks) < count:
        part = f"{len(blocks)} of {count} blocks"
        shown = f"{shown}, through {part}"
        results.remarks.append(f"{ROLLOUT} goes through the chosen layers only, {part}")
    layer = LayerResult("", "", call=1, index=0, shape=tuple(maps.shape[1:]), query=shown, centres=centres)
    common = plan.shared.get((ROLLOUT, "", ""))
    limits = (common.low, common.high) if common else None
    content = draw_map(maps, picture_size(record.pixels), style, limits, sharp=True, centres=centres)
    results.layers.append(LayerBatch(record.images, layer, targets, drawings={ROLLOUT: content}))


def _follow(flow: Flow, gradients: Mapping[int, Tensor | None] | None) -> Tensor:
    """Return what reaches each token, `(N, 1, L)`."""
    if gradients is None:
        return rollout.flow(flow.query, [block.matrix for block in reversed(flow.blocks) if block.matrix is not None])
    if all(gradients[id(block)] is None for block in flow.blocks):
        raise NotAMapError("the class score does not depend on any attention")

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:
        for block in reversed(flow.blocks):
            gradient = gradients[id(block)]
            if gradient is not None:  # otherwise it adds nothing
                yield block.with_gradient(gradient)

    return rollout.flow_of_class(flow.query, blocks())
