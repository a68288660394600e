"""Draw the attention of a forward pass: of each head, and through all blocks."""

from dataclasses import dataclass

from fmapviz.core.members import GRID_LOOKS, HEAT_LOOKS, Contribution, LayerView, View

_OBSERVE = "fmapviz.features.attention.observer:observe_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView(View):
    """A view of what flows between tokens through all blocks, see `fmapviz.features.attention.rollout`.

    Attributes:
        ranged: As of `View`.
        placed: Likewise.
        observe: Likewise.
        flow: Reference of the function that follows attention.
        flow_of_class: Reference of the function that follows what speaks for a class; it is drawn if classes are requested.
    """

    observe: str = _OBSERVE
    ranged: bool = True
    placed: bool = True
    flow: str
    flow_of_class: str


CONTRIBUTION = Contribution(
    views=(
        # A head is drawn as a channel.
        LayerView(
            name="attention",
            help="Attention of each head: how much the class token, or the patch at `--query`, looks at each patch.",
            looks=(*GRID_LOOKS, "query"),
            observe=_OBSERVE,
            captures="attention",
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
