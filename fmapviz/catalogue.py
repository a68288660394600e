"""The catalogue: the packages that contribute views, formats, sources of models and run-level results.

Stages of a run come in this order: films are made of all pictures.
"""

PACKAGES = (
    "fmapviz.views",
    "fmapviz.formats",
    "fmapviz.models.sources",
    "fmapviz.store.aggregates",
    "fmapviz.features.detection",
    "fmapviz.features.cam",
    "fmapviz.features.attribution",
    "fmapviz.features.trust",
    "fmapviz.features.tokens",
    "fmapviz.features.attention",
    "fmapviz.features.diff",
    "fmapviz.features.top",
    "fmapviz.features.films",
)
