"""The images with the largest values of each channel, and their receptive fields.

Two passes: the statistics of all images determine those with the largest values; these go through the network once more,
which locates the value in each image.
"""

from fmapviz.core.members import Aggregate, Contribution, LayerView, ReportPart, Subcommand

CONTRIBUTION = Contribution(
    report=(
        ReportPart(
            script="features/top/strips.js", style="features/top/strips.css", data="fmapviz.features.top.report:add_top"
        ),
    ),
    commands=(
        Subcommand(
            name="top",
            help="Draw the images with the largest values of each channel.",
            function="fmapviz.features.top.command:top",
            examples=(
                ("fmapviz resnet18 photos --to stats", "first: keep the statistics of a folder"),
                ("fmapviz top runs/resnet18", "a page per layer, in runs/resnet18/_top"),
                ("fmapviz top runs/resnet18 --layers layer4.1.conv2 -k 4 --to svg", "one layer, four images per channel"),
            ),
        ),
    ),
    stages=("fmapviz.features.top.of_run:TopStage",),
    views=(
        LayerView(
            name="top",
            words="top-images top-activations top-activating max-activations maxact topk exemplars",
            help="The images of the run with the largest values of each channel, cropped to the receptive field.",
            looks=("scale", "channels"),
            placed=True,
            scaled=False,
            aggregates=("top",),
            format="stats",  # which keeps the values of each image
            paged=True,
        ),
    ),
    aggregates=(
        Aggregate(
            name="top",
            help="The table of the images with the largest values of each channel: `top.csv`.",
            reads=("stats.safetensors", "ranking.parquet", "top.csv"),
            run_files=("top.csv",),
            unit="_top",
            command="top",
            module="fmapviz.features.top.aggregate",
        ),
    ),
)
