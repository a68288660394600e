"""Results over all images of a run, made from its units; their contract is in `base`."""

from fmapviz.core.members import Aggregate, Contribution

CONTRIBUTION = Contribution(
    aggregates=(
        Aggregate(
            name="images",
            help="The finished images of a run, with their predictions, for the report.",
            module="fmapviz.store.aggregates.images",
        ),
        Aggregate(
            name="statistics",
            help="Statistics of every channel over all images of a run: `stats.csv` and `stats.json`.",
            reads=("stats.safetensors", "stats.parquet"),
            run_files=("stats.csv", "stats.json"),
            module="fmapviz.store.aggregates.statistics",
        ),
    )
)
