"""The catalogue: the packages that contribute views, formats, sources of models and run-level results, in any order."""

PACKAGES = (
    "fmapviz.views",
    "fmapviz.formats",
    "fmapviz.models.sources",
    "fmapviz.store.aggregates",
    "fmapviz.features.attention",
    "fmapviz.features.cam",
    "fmapviz.features.diff",
    "fmapviz.features.films",
    "fmapviz.features.tokens",
    "fmapviz.features.top",
)
