"""The images with the largest values of each channel, and their receptive fields.

Two passes: the statistics of all images determine those with the largest values; these go through the network once more,
which locates the value in each image.
"""

from fmapviz.core.members import Aggregate, Contribution, LayerView, ReportPart

CONTRIBUTION = Contribution(
    report=(
        ReportPart(
            script="features/top/strips.js", style="features/top/strips.css", data="fmapviz.features.top.report:add_top"
        ),
    ),
    commands={"top": "fmapviz.features.top.command:top"},
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
