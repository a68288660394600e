"""Networks with telling values, and weights files as people have them: good, old, foreign, damaged and malicious."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import contextmanager

import torch
from torch import nn
from torchvision import models

from fmapviz.models.weights.fit import load_weights


def build(name, **kwargs):
    """Build a torchvision model in which no parameter and no buffer is 0 or 1 throughout, as if it had been trained.

    A bias that is 0 could not be told from memory that nobody has written to.
    """
    builder = models.get_model_builder(name).__module__
    if ".detection." in builder or ".segmentation." in builder:
        kwargs.setdefault("weights_backbone", None)
    if "googlenet" in name or "inception" in name:
        kwargs.setdefault("init_weights", True)  # None is a warning
    torch.manual_seed(len(name))
    return stir(models.get_model(name, weights=None, **kwargs))


def fill(module, weights):
    """Load weights into a network that exists."""
    return load_weights(str(weights), lambda: module)


def stir(module):
    with torch.no_grad():
        for number, values in enumerate(module.state_dict().values()):
            if (values == values.flatten()[0]).all():
                values.add_(0.01 + 0.001 * (number % 7) if values.is_floating_point() else number % 7 + 1)
    return module.eval()


def assert_holds(module, state):
    """Make sure that a network has exactly the values of a state dict, bit by bit."""
    own = module.state_dict()
    assert own.keys() == state.keys()
    for key, values in own.items():
        assert values.dtype == state[key].dtype, key
        assert torch.equal(values, state[key]), key


@contextmanager
def poisoned_memory():
    """Have torch fill memory that nobody has written to with NaN and with the largest integer."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(2).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Malice:
    """Its pickle runs a shell command when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


def renamed(state, *replacements):
    """Give every key the name it had in former days, and keep the order."""
    older = OrderedDict()
    for key, values in state.items():
        for new, old in replacements:
            key = key.replace(new, old)  # noqa: PLW2901
        older[key] = values
    return older


def without_counts(state):
    """Leave out what BatchNorm did not count before torch 0.4.1; the published files are from before or look like it."""
    return {key: values for key, values in state.items() if not key.endswith(".num_batches_tracked")}


class Wrapped(nn.Module):
    """A network inside another, as Lightning and many training scripts have it."""

    def __init__(self, model):
        super().__init__()
        self.model = model


class Call:
    """Its pickle calls something when it is loaded; so can what it calls, or calls it with, be such a call."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __call__(self):
        """Be something that can be called: pickle looks at that."""

    def __reduce__(self):
        return self.function, self.arguments


def constant(state):
    """Give tensors of the same shapes that take no space in a file: each is one number, another one in each tensor."""
    return {
        key: torch.tensor(number % 100 + 1).to(values.dtype).expand(values.shape)
        for number, (key, values) in enumerate(state.items())
    }


def shapes_of(name, **kwargs):
    """Give the state dict of a torchvision model on the meta device."""
    builder = models.get_model_builder(name).__module__
    if ".detection." in builder or ".segmentation." in builder:
        kwargs.setdefault("weights_backbone", None)
    if "googlenet" in name or "inception" in name:
        kwargs.setdefault("init_weights", False)
    with torch.device("cpu" if name.startswith("regnet") else "meta"):  # RegNet computes its widths with tensors
        return models.get_model(name, weights=None, **kwargs).state_dict()
