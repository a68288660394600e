"""Views that test what heat maps and channels say about a class."""

from fmapviz.core.members import Contribution, View

CONTRIBUTION = Contribution(
    examples=(("fmapviz resnet18 photo.jpg --view effect --to png", "which channels matter for the predicted class"),),
    views=(
        View(
            name="effect",
            help="Channels of a layer, each switched off in turn, ordered by how much the class's score moves.",
            looks=(
                *("norm", "columns", "padding", "scale", "colormap"),
                *("labels", "background", "text_size", "with_input"),
            ),
            options=("off",),
            observe="fmapviz.features.trust.observer:observe_effect",
            scaled=False,
            values=True,
            words="effects channel-ablation filter-ablation channel-importance filter-importance "
            "channel-effect knockout knock-out intervention causal",
        ),
    ),
)
