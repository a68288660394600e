"""Compare two networks, or one at the steps of its training."""

from fmapviz.core.members import Aggregate, Contribution, Format, LayerView, ReportPart, Subcommand

CONTRIBUTION = Contribution(
    report=(
        ReportPart(
            script="features/diff/changes.js",
            style="features/diff/changes.css",
            data="fmapviz.features.diff.layer_ranking:add_changes",
        ),
    ),
    commands=(
        Subcommand(
            name="diff",
            help="Compare two networks, the checkpoints of a training, or two runs.",
            function="fmapviz.features.diff.command:diff",
            examples=(
                ("fmapviz diff resnet18 photos --against random --to html", "trained against random weights"),
                ("fmapviz diff resnet18 photos --against dtype:bfloat16", "the same network in another type"),
                ("fmapviz diff my_net.py:build photos --weights 'epoch_*.pt'", "the checkpoints of a training"),
                ("fmapviz diff runs/one runs/two", "two runs that keep values, --to npz"),
            ),
        ),
    ),
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
