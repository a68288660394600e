"""Draw the attention of a forward pass: of each head, and through all blocks."""

from fmapviz.core.members import GRID_LOOKS, HEAT_LOOKS, Contribution, LayerView, View

_OBSERVE = "fmapviz.features.attention.observer:observe_attention"
ROLLOUT = "rollout"

CONTRIBUTION = Contribution(
    views=(
        # A head is drawn as a channel.
        LayerView(
            name="attention",
            words="attn attentions attention-map attention-maps attention-weights self-attention heads",
            help="Attention of each head: how much the class token, or the patch at `--query`, looks at each patch.",
            looks=(*GRID_LOOKS, "query"),
            observe=_OBSERVE,
            captures="attention",
            draw="fmapviz.views.maps:draw",
        ),
        View(
            name=ROLLOUT,
            words="attention-rollout attn-rollout attention-flow",
            help="Attention of all blocks, multiplied, over the input (rollout); with `--target` weighted by gradients.",
            looks=("norm", "smooth", *HEAT_LOOKS, "query"),
            observe=_OBSERVE,
            ranged=True,
            placed=True,
        ),
    )
)
