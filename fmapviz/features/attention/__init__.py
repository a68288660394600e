"""Draw the attention of a forward pass: of each head, and through all blocks."""

from dataclasses import dataclass

from fmapviz.core.members import GRID_LOOKS, HEAT_LOOKS, Contribution, View


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionView(View):
    """A view of the attention of each head.

    Attributes:
        draw: Reference of the function that draws a head as a channel, see `fmapviz.views.base.DrawLayer`.
    """

    draw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView(View):
    """A view of what flows between tokens through all blocks, see `fmapviz.features.attention.rollout`.

    Attributes:
        ranged: As of `View`.
        placed: Likewise.
        flow: Reference of the function that follows attention.
        flow_of_class: Reference of the function that follows what speaks for a class; it is drawn if classes are requested.
    """

    ranged: bool = True
    placed: bool = True
    flow: str
    flow_of_class: str


CONTRIBUTION = Contribution(
    views=(
        AttentionView(
            name="attention",
            help="Attention of each head: how much the class token, or the patch at `--query`, looks at each patch.",
            looks=(*GRID_LOOKS, "query"),
            draw="fmapviz.views.maps:draw",
        ),
        FlowView(
            name="rollout",
            help="Attention of all blocks, multiplied, over the input (rollout); with `--target` weighted by gradients.",
            looks=("norm", "smooth", *HEAT_LOOKS, "query"),
            flow="fmapviz.features.attention.rollout:flow",
            flow_of_class="fmapviz.features.attention.rollout:flow_of_class",
        ),
    )
)
