"""See what every layer of a vision network computes.

fmapviz draws the feature maps, gradients and class activation maps of any PyTorch model: for whole folders of images with
`visualize`, or in your own loop with `capture` and `cam`. The same as a command is `fmapviz MODEL INPUT...`; `fmapviz guide`
explains both. Importing fmapviz does not import torch; the first use does.

    import fmapviz

    model = fmapviz.load_model("shapesnet")
    x = fmapviz.load_image("star.jpg", model)
    found = fmapviz.cam(model, x, target="star")  # found.map, found.overlay
    summary = fmapviz.visualize(model, ["star.jpg"], out="runs", to=["png"])  # summary.directory

`help(fmapviz.cam)` describes a name in full.

Draw whole runs
    visualize          Draw the views of a model for images or folders, and write them.
    Style              How pictures look: scaling, colours, columns, labels.
    InputOptions       How inputs are preprocessed, where it differs from the weights.
    Engine             How a run is divided among Ray workers.
    Part               One of several equal parts of a run.

Feature maps in your own loop
    capture            Record the feature maps, and gradients, of the last forward pass.
    Captured           The recorded feature maps, a dictionary by layer name.
    capture_attention  Record the attention weights of the last forward pass.
    FeatureMap         The output of one call of one layer.
    tile               Draw feature maps as one grid, uint8, as make_grid does.
    list_layers        List the layers of a model in the order of execution.
    LayerInfo          One of these layers: name, type, output shape, parameters.
    receptive_field    Compute which input pixels each position of a layer depends on.
    ReceptiveField     The result for one layer: size, stride, a box for each position.

Two networks
    diff               Compare two networks layer by layer, in your own loop.
    LayerDifference    The result for one layer: both values, their difference, numbers.

While a network is trained
    Watch              Draw a few images again and again, without disturbing the training.

Top images
    top_images         Draw the images with the largest values of each channel of a run.
    TopSummary         How that ended: table, numbers of pages and images.
    TopImages          Rank images by the values of each channel, in your own loop.
    TopLayer           The result for one layer: image names and values.

Class activation maps
    cam                Compute Grad-CAM or another class activation map for each image.
    ClassActivation    Its result: raw map, enlarged map, overlay, layer, class, score.

Models and images
    load_model         Load a model with its weights, preprocessing and class names.
    load_image         Read an image and preprocess it for a model.
    model_names        List the names that load_model takes.
    Model              A loaded network, its preprocessing and its class names.
    Image              A decoded image, before preprocessing.

Results and events of a run
    RunSummary         How a run ended: numbers of images, failures, directory, exit code.
    RunInfo            The settings of a run, as run.json stores them.
    Picture            A PNG picture and what it shows.
    Prediction         A class that a model predicts for an image, with its score.
    Started            Event: the run directory exists.
    Counted            Event: the number of inputs is known.
    Staged             Event: an image of an unfinished shard is drawn.
    Outcome            Event: an input is done, skipped or failed.
    Notice             Event: a remark on the whole run.

Errors
    FmapvizError       Base class, with a hint and the exit code of the command.
    RequestError       The request is wrong: an unknown name, an impossible option.
    WeightsError       Weights cannot be loaded, or do not match the model.
    UserCodeError      User code failed; report is its traceback.
    InputError         One input failed; code is the reason, such as E_DECODE.
    NothingToDoError   No input is a readable image.
    OutputError        The output could not be written.
    RefusedError       The output directory belongs to something else.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fmapviz.core.version import __version__ as __version__

if TYPE_CHECKING:
    from fmapviz.config import Engine, InputOptions, Part, RunInfo, Style
    from fmapviz.errors import (
        FmapvizError,
        InputError,
        NothingToDoError,
        OutputError,
        RefusedError,
        RequestError,
        UserCodeError,
        WeightsError,
    )
    from fmapviz.events import Counted, Notice, Outcome, RunSummary, Staged, Started
    from fmapviz.features.attention.capture.captured import capture_attention
    from fmapviz.features.cam.attribution import ClassActivation, cam
    from fmapviz.features.diff.compare import LayerDifference, diff
    from fmapviz.features.fields.receptive_field import receptive_field
    from fmapviz.features.top.finished import TopSummary, top_images
    from fmapviz.features.top.own_loop import TopImages, TopLayer
    from fmapviz.features.watch.watch import Watch
    from fmapviz.models.load import load_model, model_names
    from fmapviz.observe.captured import Captured, capture
    from fmapviz.observe.receptive_field import ReceptiveField
    from fmapviz.run.batch import load_image
    from fmapviz.run.layer_list import list_layers
    from fmapviz.run.loop import visualize
    from fmapviz.run.tile import tile
    from fmapviz.types import FeatureMap, Image, LayerInfo, Model, Picture, Prediction

__all__ = [
    "Captured",
    "ClassActivation",
    "Counted",
    "Engine",
    "FeatureMap",
    "FmapvizError",
    "Image",
    "InputError",
    "InputOptions",
    "LayerDifference",
    "LayerInfo",
    "Model",
    "NothingToDoError",
    "Notice",
    "Outcome",
    "OutputError",
    "Part",
    "Picture",
    "Prediction",
    "ReceptiveField",
    "RefusedError",
    "RequestError",
    "RunInfo",
    "RunSummary",
    "Staged",
    "Started",
    "Style",
    "TopImages",
    "TopLayer",
    "TopSummary",
    "UserCodeError",
    "Watch",
    "WeightsError",
    "cam",
    "capture",
    "capture_attention",
    "diff",
    "list_layers",
    "load_image",
    "load_model",
    "model_names",
    "receptive_field",
    "tile",
    "top_images",
    "visualize",
]  # fmt: skip


class _Names(list[str]):
    """The public names, which `help` does not expand: that would be 2,500 lines, where the docstring above has one each.

    `pydoc.visiblename` asks of every name of the module whether it is `in` this list. All others get the true answer.
    """

    def __contains__(self, name: object) -> bool:
        return sys._getframe(1).f_code.co_name != "visiblename" and super().__contains__(name)


globals()["__all__"] = _Names(__all__)  # type checkers read the list above

# The modules that define these names, imported on first use in this order: the first ones do not load torch.
_HOMES = (
    "config", "errors", "events", "types", "models.load", "observe.captured",
    "features.attention.capture.captured", "run.batch", "run.tile", "run.loop", "features.cam.attribution",
    "run.layer_list", "features.diff.compare", "features.fields.receptive_field", "features.top.finished",
    "features.top.own_loop", "features.watch.watch",
)  # fmt: skip


def __getattr__(name: str) -> Any:  # Any: values of all kinds have public names
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"fmapviz.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'fmapviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
