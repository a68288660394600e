"""See what every layer of a vision network computes.

The command `fmapviz alexnet picture.png` and the function `visualize` draw the feature maps of images. `capture` records
feature maps and their gradients in your own loop, `cam` computes class activation maps, and `tile` draws maps as
`torchvision.utils.make_grid` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fmapviz.core.version import __version__ as __version__

if TYPE_CHECKING:
    from fmapviz.core.config import Engine, InputOptions, Part, RunInfo, Style
    from fmapviz.core.errors import (
        FmapvizError,
        InputError,
        NothingToDoError,
        OutputError,
        RefusedError,
        RequestError,
        UserCodeError,
        WeightsError,
    )
    from fmapviz.core.events import Counted, Notice, Outcome, RunSummary, Staged, Started
    from fmapviz.core.types import FeatureMap, Image, LayerInfo, Model, Picture, Prediction
    from fmapviz.engine.attribution import ClassActivation, cam
    from fmapviz.engine.layer_list import list_layers
    from fmapviz.engine.run import visualize
    from fmapviz.inspection.captured import Captured, capture
    from fmapviz.models.load import known_names, load_model
    from fmapviz.render.grid import tile

__all__ = [
    "Captured", "ClassActivation", "Counted", "Engine", "FeatureMap", "FmapvizError", "Image", "InputError", "InputOptions",
    "LayerInfo", "Model", "NothingToDoError", "Notice", "Outcome", "OutputError", "Part", "Picture", "Prediction",
    "RefusedError", "RequestError", "RunInfo", "RunSummary", "Staged", "Started", "Style", "UserCodeError", "WeightsError",
    "cam", "capture", "known_names", "list_layers", "load_model", "tile", "visualize",
]  # fmt: skip

# The modules that define these names, imported on first use in this order: the first ones do not load torch.
_HOMES = (
    "core.config", "core.errors", "core.events", "core.types", "models.load", "inspection.captured", "render.grid",
    "engine.run", "engine.attribution", "engine.layer_list",
)  # fmt: skip


# Any: values of all kinds have public names.
def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"fmapviz.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'fmapviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
