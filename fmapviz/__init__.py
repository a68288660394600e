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
    from fmapviz.core.config import Engine as Engine
    from fmapviz.core.config import InputOptions as InputOptions
    from fmapviz.core.config import Part as Part
    from fmapviz.core.config import RunInfo as RunInfo
    from fmapviz.core.config import Style as Style
    from fmapviz.core.errors import FmapvizError as FmapvizError
    from fmapviz.core.errors import InputError as InputError
    from fmapviz.core.errors import NothingToDoError as NothingToDoError
    from fmapviz.core.errors import OutputError as OutputError
    from fmapviz.core.errors import RefusedError as RefusedError
    from fmapviz.core.errors import RequestError as RequestError
    from fmapviz.core.errors import UserCodeError as UserCodeError
    from fmapviz.core.errors import WeightsError as WeightsError
    from fmapviz.core.events import Counted as Counted
    from fmapviz.core.events import Notice as Notice
    from fmapviz.core.events import Outcome as Outcome
    from fmapviz.core.events import RunSummary as RunSummary
    from fmapviz.core.events import Staged as Staged
    from fmapviz.core.events import Started as Started
    from fmapviz.core.types import FeatureMap as FeatureMap
    from fmapviz.core.types import Image as Image
    from fmapviz.core.types import LayerInfo as LayerInfo
    from fmapviz.core.types import Model as Model
    from fmapviz.core.types import Picture as Picture
    from fmapviz.core.types import Prediction as Prediction
    from fmapviz.engine.attribution import ClassActivation as ClassActivation
    from fmapviz.engine.attribution import cam as cam
    from fmapviz.engine.layer_list import list_layers as list_layers
    from fmapviz.engine.run import visualize as visualize
    from fmapviz.inspection.captured import Captured as Captured
    from fmapviz.inspection.captured import capture as capture
    from fmapviz.models.load import known_names as known_names
    from fmapviz.models.load import load_model as load_model
    from fmapviz.render.grid import tile as tile

# The module of each public name, imported on first use: `import fmapviz` alone does not load torch.
_HOMES = {
    "engine.attribution": ("ClassActivation", "cam"),
    "core.errors": (
        "FmapvizError", "InputError", "NothingToDoError", "OutputError", "RefusedError", "RequestError", "UserCodeError",
        "WeightsError",
    ),
    "inspection.captured": ("Captured", "capture"),
    "engine.layer_list": ("list_layers",),
    "models.load": ("known_names", "load_model"),
    "core.config": ("Engine", "InputOptions", "Part", "RunInfo", "Style"),
    "engine.run": ("visualize",),
    "render.grid": ("tile",),
    "core.types": ("FeatureMap", "Image", "LayerInfo", "Model", "Picture", "Prediction"),
    "core.events": ("Counted", "Notice", "Outcome", "RunSummary", "Staged", "Started"),
}  # fmt: skip

__all__ = [name for names in _HOMES.values() for name in names]


# Any: values of all kinds have public names.
def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"fmapviz.{module}"), name)
    raise AttributeError(f"module 'fmapviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
