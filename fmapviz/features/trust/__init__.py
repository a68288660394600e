"""Views that test what heat maps and channels say about a class."""

from fmapviz.core.members import Aggregate, Contribution, Format, ReportPart, View

CONTRIBUTION = Contribution(
    examples=(
        ("fmapviz resnet18 photo.jpg --view effect --to png", "which channels matter for the predicted class"),
        ("fmapviz shapesnet photo.jpg --view gradcam,saliency,trust --to html", "which of two heat maps to trust"),
    ),
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
        View(
            name="trust",
            help="Which heat maps to trust: deletion and insertion, chance, random weights, agreement.",
            looks=("colormap", "alpha", "gray_input", "labels", "background", "text_size"),
            options=("steps", "baseline"),
            observe="fmapviz.features.trust.trust_observer:observe_trust",
            scaled=False,
            placed=True,
            values=True,
            format="trust",
            aggregates=("trust",),
            words="faithfulness deletion insertion sanity-check sanity-checks quantus evaluate evaluation metric metrics "
            "randomization model-parameter-randomization pixel-flipping roar compare-maps",
        ),
    ),
    formats=(
        Format(
            name="trust",
            help="The numbers of the view trust, as a table: trust.csv.",
            words="trust.csv",
            needs=(),
            only_of=("trust",),
            unit_files=("trust.json",),
            aggregates=("trust",),
            many=True,
            open_writer="fmapviz.features.trust.unit_judgements:open_writer",
        ),
    ),
    aggregates=(
        Aggregate(
            name="trust",
            help="Methods of heat maps over all images, ranked: trust.csv.",
            reads=("trust.json",),
            run_files=("trust.csv",),
            module="fmapviz.features.trust.aggregate",
        ),
    ),
    report=(
        ReportPart(
            script="features/trust/trust.js",
            style="features/trust/trust.css",
            data="fmapviz.features.trust.report:add_trust",
        ),
    ),
)
