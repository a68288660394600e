"""Compare two networks, or one at the steps of its training."""

from fmapviz.core.members import Aggregate, Contribution, Format, LayerView, ReportPart

CONTRIBUTION = Contribution(
    report=(
        ReportPart(
            script="features/diff/changes.js",
            style="features/diff/changes.css",
            data="fmapviz.features.diff.layer_ranking:add_changes",
        ),
    ),
    commands={"diff": "fmapviz.features.diff.command:diff"},
    views=(
        LayerView(
            name="diff",
            networks=2,
            words="compare difference differences comparison",
            help="Two networks: A, B and B - A beside each other; `fmapviz diff` draws it.",
            looks=("norm", "columns", "padding", "channels", "scale", "colormap", "labels"),
            aggregates=("differences",),
            format="numbers",
            draw="fmapviz.features.diff.view:draw",
        ),
    ),
    formats=(
        Format(
            name="numbers",
            words="csv json table statistics parquet xlsx excel",
            help="How two networks differ, as tables: diff.csv for each image, layer and channel, and cka.csv.",
            needs=(),
            networks=2,
            unit_files=("diff.safetensors",),
            aggregates=("differences",),
            open_writer="fmapviz.features.diff.unit_differences:open_writer",
        ),
    ),
    aggregates=(
        Aggregate(
            name="differences",
            help="How two networks differ, over all images: diff.csv, layers.csv and cka.csv, and as JSON.",
            reads=("diff.safetensors",),
            run_files=("diff.csv", "diff.json", "cka.csv", "layers.csv"),
            scalars="fmapviz.features.diff.aggregate:scalars",
            module="fmapviz.features.diff.aggregate",
        ),
    ),
)
