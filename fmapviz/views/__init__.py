"""Views of a single layer, and of the network itself; features contribute further views."""

from fmapviz.core.members import GRID_LOOKS, HEAT_LOOKS, Contribution, LayerView, ModelView, ReducedView

CONTRIBUTION = Contribution(
    views=(
        LayerView(
            name="maps",
            words="activations activation act acts features feature feature-map feature-maps featuremap "
            "featuremaps fmap fmaps outputs output map channels forward layers conv",
            help="Output of each layer: one tile of a grid for each channel, one bar for each number of a vector.",
            looks=GRID_LOOKS,
            draw="fmapviz.views.maps:draw",
        ),
        LayerView(
            name="inputs",
            words="input layer-inputs pre-hook",
            help="Input of each layer: one tile of a grid for each channel.",
            looks=GRID_LOOKS,
            captures="input",
            draw="fmapviz.views.maps:draw",
        ),
        LayerView(
            name="grads",
            words="gradient gradients grad backward",
            help="Gradient of a class's score with respect to each layer's output, as a grid.",
            looks=GRID_LOOKS,
            captures="gradient",
            draw="fmapviz.views.maps:draw",
        ),
        # The gradient at the layer's own input: if several layers use a tensor, each passes back its part.
        LayerView(
            name="grad-inputs",
            words="grad-input backward-inputs",
            help="Gradient of a class's score that each layer passes back to its input, as a grid.",
            looks=GRID_LOOKS,
            captures="input gradient",
            draw="fmapviz.views.maps:draw",
        ),
        ReducedView(
            name="mean",
            words="average avg mean-map channel-mean",
            help="Mean of each layer's channels, as one map.",
            looks=("norm", *HEAT_LOOKS),
            reduce="fmapviz.views.mean:reduce",
        ),
        ReducedView(
            name="max",
            words="maximum amax channel-max",
            help="Maximum of each layer's channels, as one map.",
            looks=("norm", *HEAT_LOOKS),
            reduce="fmapviz.views.max:reduce",
        ),
        ReducedView(
            name="contact",
            words="overview montage contact-sheet summary sheet-of-layers",
            help="One labelled sheet with the input and the channel mean of each layer.",
            looks=("norm", "colormap"),
            over=False,
            placed=False,
            colormap="viridis",
            reduce="fmapviz.views.mean:reduce",
            compose="fmapviz.views.contact:compose",
        ),
        LayerView(
            name="histogram",
            words="hist histograms distribution distributions density",
            help="Histogram of the values of each layer's output.",
            scaled=False,
            draw="fmapviz.views.histogram:draw",
        ),
        ModelView(
            name="kernels",
            words="filters filter weights kernel weight",
            help="Kernels of each convolution, in colour where its input channels are red, green and blue.",
            looks=tuple(look for look in GRID_LOOKS if look != "with_input"),
            read="fmapviz.views.kernels:read",
            draw="fmapviz.views.kernels:draw",
        ),
    )
)
