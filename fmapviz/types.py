"""The types that public functions take and return. Those of capabilities are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fmapviz.data import *  # noqa: F403  all of them are public
from fmapviz.public_names import TYPES

if TYPE_CHECKING:
    from fmapviz.config import Engine as Engine
    from fmapviz.config import Part as Part
    from fmapviz.config import RunInfo as RunInfo
    from fmapviz.features.cam.attribution import ClassActivation as ClassActivation
    from fmapviz.features.diff.compare import LayerDifference as LayerDifference
    from fmapviz.features.top.own_loop import TopLayer as TopLayer
    from fmapviz.features.top.top_images import TopSummary as TopSummary
    from fmapviz.features.trust.compute import Trust as Trust
    from fmapviz.images.decode import Image as Image
    from fmapviz.observe.captured import Captured as Captured
    from fmapviz.observe.receptive_field import ReceptiveField as ReceptiveField
else:

    def __getattr__(name: str) -> Any:  # Any: of all types
        if name in TYPES:
            return getattr(import_module(f"fmapviz.{TYPES[name]}"), name)
        raise AttributeError(f"module 'fmapviz.types' has no attribute {name!r}")
