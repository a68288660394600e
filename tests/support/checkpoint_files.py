"""Networks with distinctive values, and weights files: good, old, foreign, damaged and malicious."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import contextmanager

import torch
from torch import nn
from torchvision import models

from fmapviz.models.initialization import NoInitialization
from fmapviz.models.weights.fit import load_weights


def build(name, **kwargs):
    """Build a torchvision model in which no parameter or buffer is constant, as after training.

    A bias of 0 would look like unwritten memory. torchvision's own initialization takes seconds for some models.
    """
    builder = models.get_model_builder(name).__module__
    if ".detection." in builder or ".segmentation." in builder:
        kwargs.setdefault("weights_backbone", None)
    if "googlenet" in name or "inception" in name:
        kwargs.setdefault("init_weights", True)  # None is a warning
    with NoInitialization():
        network = models.get_model(name, weights=None, **kwargs)
    numbers = torch.Generator().manual_seed(len(name))
    for values in network.state_dict().values():
        if values.is_floating_point():
            values.uniform_(0.01, 0.1, generator=numbers)
    return stir(network)


def fill(module, weights):
    """Load weights into a network."""
    return load_weights(str(weights), lambda: module)


def stir(module):
    with torch.no_grad():
        for number, values in enumerate(module.state_dict().values()):
            if (values == values.flatten()[0]).all():
                values.add_(0.01 + 0.001 * (number % 7) if values.is_floating_point() else number % 7 + 1)
    return module.eval()


def assert_holds(module, state):
    """Check that a network has exactly the values of a state dict."""
    own = module.state_dict()
    assert own.keys() == state.keys()
    for key, values in own.items():
        assert values.dtype == state[key].dtype, key
        assert torch.equal(values, state[key]), key


@contextmanager
def poisoned_memory():
    """Let torch fill uninitialized memory with NaN and with the largest integer."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(2).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Malice:
    """A pickle that runs a shell command when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


def renamed(state, *replacements):
    """Rename keys to older names, in the same order."""
    older = OrderedDict()
    for key, values in state.items():
        for new, old in replacements:
            key = key.replace(new, old)  # noqa: PLW2901
        older[key] = values
    return older


def without_counts(state):
    """Remove `num_batches_tracked`, which torch before 0.4.1 and published files do not have."""
    return {key: values for key, values in state.items() if not key.endswith(".num_batches_tracked")}


class Wrapped(nn.Module):
    """A network inside another, as in Lightning and many training scripts."""

    def __init__(self, model):
        super().__init__()
        self.model = model


class Call:
    """A pickle that calls a function when it is loaded; function and arguments may be such calls too."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __call__(self):
        """Make this callable, which pickle requires."""

    def __reduce__(self):
        return self.function, self.arguments


def constant(state):
    """Return tensors of the same shapes that take no space in a file: each expands one number."""
    return {
        key: torch.tensor(number % 100 + 1).to(values.dtype).expand(values.shape)
        for number, (key, values) in enumerate(state.items())
    }


def shapes_of(name, **kwargs):
    """Return the state dict of a torchvision model on the meta device."""
    builder = models.get_model_builder(name).__module__
    if ".detection." in builder or ".segmentation." in builder:
        kwargs.setdefault("weights_backbone", None)
    if "googlenet" in name or "inception" in name:
        kwargs.setdefault("init_weights", False)
    with torch.device("cpu" if name.startswith("regnet") else "meta"):  # RegNet computes its widths with tensors
        return models.get_model(name, weights=None, **kwargs).state_dict()
