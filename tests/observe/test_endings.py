"""The operation that ends a network is detected, with a graph and without."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from fmapviz.observe.endings import Endings

ENDS = {
    "module": (nn.Softmax(1), "softmax"),
    "method": (lambda z: z.softmax(-1), "softmax"),
    "another type": (lambda z: z.softmax(1, dtype=torch.float64), "softmax"),
    "half": (lambda z: z.softmax(1).half(), "softmax"),
    "transposed": (lambda z: z.softmax(1).t().contiguous().t(), "softmax"),
    "logarithm": (nn.LogSoftmax(1), "log_softmax"),
    "logarithm of softmax": (lambda z: z.softmax(1).log(), "log_softmax"),
    "exponential of logarithm": (lambda z: z.log_softmax(1).exp(), "softmax"),
    "sigmoid": (nn.Sigmoid(), "sigmoid"),
    "function": (functional.sigmoid, "sigmoid"),
    "expit": (torch.special.expit, "sigmoid"),
    "logsigmoid": (nn.LogSigmoid(), "log_sigmoid"),
    "clamped": (lambda z: z.sigmoid().clamp(1e-4, 1 - 1e-4), "sigmoid"),
    "reshaped": (lambda z: z.sigmoid().view(-1, 3, 1, 1), "sigmoid"),
    "split": (lambda z: z.sigmoid().split(1, 1)[2], "sigmoid"),
    "in place": (lambda z: z.sigmoid_(), "sigmoid"),
    "tanh": (nn.Tanh(), "tanh"),
    "relu in place": (nn.ReLU(inplace=True), "relu"),
    "nothing": (lambda z: z, "linear"),
    "scaled": (lambda z: z.sigmoid() * 2, ""),
    "scaled in place": (lambda z: z.sigmoid().mul_(2), ""),
    "by hand": (lambda z: z.exp() / z.exp().sum(1, keepdim=True), ""),
}


@pytest.mark.sampled
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", ENDS)
def test_the_operation_of_a_tensor_is_detected(name, graph):
    end, kind = ENDS[name]
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.set_grad_enabled(graph), Endings() as endings:
        output = end(layer(x))
    found = endings.of(output)
    assert found.kind == kind
    if kind in {"softmax", "sigmoid", "log_softmax", "log_sigmoid"} and name != "in place":
        assert found.logits is not None
        assert found.logits.requires_grad == graph
        if found.logits.shape == (2, 3):
            assert torch.equal(found.logits.float(), layer(x)) or name == "half"


@pytest.mark.thorough
def test_a_network_computes_the_same_and_its_activations_are_freed():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Softmax(1), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    alive = []
    network[0].register_forward_hook(lambda _module, _given, output: alive.append(weakref.ref(output)))
    x = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        expected = network(x)
        alive.clear()
        with Endings() as endings:
            output = network(x)
            torch.randn(2, 3).softmax(1)  # a later ending: what the earlier one received is released
    gc.collect()
    assert torch.equal(output, expected)
    assert endings.of(output).kind == ""
    assert [each() for each in alive] == [None]


def test_torchs_compiler_is_not_imported(torch_alone):
    code = "import sys; from fmapviz.observe.endings import Endings; import torch\nwith Endings(): torch.ones(2) + 1\n"
    torch_alone(code + "assert 'torch._dynamo.eval_frame' not in sys.modules")
