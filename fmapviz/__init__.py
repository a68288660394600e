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

Feature maps in your own loop
    capture            Record the feature maps, and gradients, of the last forward pass.
    capture_attention  Record the attention weights of the last forward pass.
    tile               Draw feature maps as one grid, uint8, as make_grid does.
    list_layers        List the layers of a model in the order of execution.
    receptive_field    Compute which input pixels each position of a layer depends on.
    cam                Compute Grad-CAM or another class activation map for each image.
    trust              Judge the heat maps of an image: deletion, insertion, chance, random weights.
    diff               Compare two networks layer by layer.
    Watch              Draw a few images at steps of a training, without disturbing it.

Top images
    top_images         Draw the images with the largest values of each channel of a run.
    TopImages          Rank images by the values of each channel, in your own loop.

Models and images
    load_model         Load a model with its weights, preprocessing and class names.
    model_names        List the names that load_model takes.
    load_image         Read an image and preprocess it for a model.

Errors
    FmapvizError       Base class, with a hint and the exit code of the command.

`fmapviz.errors` has the other errors, `fmapviz.events` the summary and the events of a run, and `fmapviz.types` what
functions take and return.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fmapviz.core.version import __version__ as __version__
from fmapviz.public_names import FORMER, HOMES

if TYPE_CHECKING:
    from fmapviz import errors as errors
    from fmapviz import events as events
    from fmapviz import types as types
    from fmapviz.config import InputOptions as InputOptions
    from fmapviz.config import Style as Style
    from fmapviz.errors import FmapvizError as FmapvizError
    from fmapviz.features.attention.capture.captured import capture_attention as capture_attention
    from fmapviz.features.cam.attribution import cam as cam
    from fmapviz.features.diff.compare import diff as diff
    from fmapviz.features.fields.receptive_field import receptive_field as receptive_field
    from fmapviz.features.top.own_loop import TopImages as TopImages
    from fmapviz.features.top.top_images import top_images as top_images
    from fmapviz.features.trust.compute import trust as trust
    from fmapviz.features.watch.watch import Watch as Watch
    from fmapviz.models.load import load_model as load_model
    from fmapviz.models.load import model_names as model_names
    from fmapviz.observe.captured import capture as capture
    from fmapviz.run.batch import load_image as load_image
    from fmapviz.run.layer_list import list_layers as list_layers
    from fmapviz.run.loop import visualize as visualize
    from fmapviz.run.tile import tile as tile


def __getattr__(name: str) -> Any:  # Any: values of all kinds have public names
    if name in HOMES:
        return getattr(import_module(f"fmapviz.{HOMES[name]}"), name)
    if name in {"errors", "events", "types"}:
        return import_module(f"fmapviz.{name}")
    if name == "known_names":
        warnings.warn("fmapviz.known_names is now fmapviz.model_names", DeprecationWarning, stacklevel=2)
        return __getattr__("model_names")
    if name in FORMER:
        warnings.warn(f"fmapviz.{name} is now fmapviz.{FORMER[name]}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"fmapviz.{FORMER[name]}"), name)
    raise AttributeError(f"module 'fmapviz' has no attribute {name!r}")


def __dir__() -> list[str]:  # there is no `__all__`: `help` would expand all its names
    return [*HOMES, "errors", "events", "types", *(name for name in globals() if name.startswith("__"))]
