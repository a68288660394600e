"""See what every layer of a vision network computes.

The command `fmapviz alexnet picture.png` and the function `visualize` do a whole run; `capture` keeps feature maps and their
gradients in one's own loop; `cam` gives class activation maps; `tile` draws maps as `torchvision.utils.make_grid` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmapviz.attribution import ClassActivation as ClassActivation
    from fmapviz.attribution import cam as cam
    from fmapviz.errors import FmapvizError as FmapvizError
    from fmapviz.errors import InputError as InputError
    from fmapviz.errors import NothingToDoError as NothingToDoError
    from fmapviz.errors import OutputError as OutputError
    from fmapviz.errors import RefusedError as RefusedError
    from fmapviz.errors import RequestError as RequestError
    from fmapviz.errors import UserCodeError as UserCodeError
    from fmapviz.errors import WeightsError as WeightsError
    from fmapviz.hooks import Captured as Captured
    from fmapviz.hooks import capture as capture
    from fmapviz.listing import list_layers as list_layers
    from fmapviz.models import known_names as known_names
    from fmapviz.models import load_model as load_model
    from fmapviz.options import Engine as Engine
    from fmapviz.options import InputOptions as InputOptions
    from fmapviz.options import Part as Part
    from fmapviz.options import Style as Style
    from fmapviz.pipeline import visualize as visualize
    from fmapviz.pixels import Image as Image
    from fmapviz.tiling import tile as tile
    from fmapviz.values import Counted as Counted
    from fmapviz.values import FeatureMap as FeatureMap
    from fmapviz.values import LayerInfo as LayerInfo
    from fmapviz.values import Model as Model
    from fmapviz.values import Notice as Notice
    from fmapviz.values import Outcome as Outcome
    from fmapviz.values import Picture as Picture
    from fmapviz.values import Prediction as Prediction
    from fmapviz.values import RunInfo as RunInfo
    from fmapviz.values import RunSummary as RunSummary
    from fmapviz.values import Staged as Staged
    from fmapviz.values import Started as Started

__version__ = "0.1.0"

# Where each public name lives. It is imported when it is first used: `import fmapviz` alone does not load torch.
_HOMES = {
    "attribution": ("ClassActivation", "cam"),
    "errors": (
        "FmapvizError", "InputError", "NothingToDoError", "OutputError", "RefusedError", "RequestError", "UserCodeError",
        "WeightsError",
    ),
    "hooks": ("Captured", "capture"),
    "listing": ("list_layers",),
    "models": ("known_names", "load_model"),
    "options": ("Engine", "InputOptions", "Part", "Style"),
    "pipeline": ("visualize",),
    "pixels": ("Image",),
    "tiling": ("tile",),
    "values": (
        "Counted", "FeatureMap", "LayerInfo", "Model", "Notice", "Outcome", "Picture", "Prediction", "RunInfo", "RunSummary",
        "Staged", "Started",
    ),
}  # fmt: skip

__all__ = [name for names in _HOMES.values() for name in names]


# Any: whatever the name stands for.
def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"fmapviz.{module}"), name)
    raise AttributeError(f"module 'fmapviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
