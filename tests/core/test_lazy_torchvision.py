"""torchvision without its compiler, and networks without their random initialisation."""

from __future__ import annotations

import pytest
import torch
from all_models import check_loading
from cases import thorough
from checkpoint_files import poisoned_memory
from torch import nn

from fmapviz.models.initialization import NoInitialization
from fmapviz.run.layer_list import list_layers

# What their constructors make besides parameters differs; `make all-models` goes through all of torchvision's.
ARCHITECTURES = [
    "googlenet",
    "mobilenet_v3_small",
    "quantized_mobilenet_v2",
    "raft_small",
    "shufflenet_v2_x0_5",
    "ssdlite320_mobilenet_v3_large",
    *thorough("swin_t", "maxvit_t", "r3d_18", "retinanet_resnet50_fpn"),
]


@pytest.fixture
def run(torch_alone):
    """Run code in a process that has imported only torch, in which a warning is an error."""

    def ended(code):
        done = torch_alone(f"import warnings; warnings.simplefilter('error')\n{code}")
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return ended


# Without random initialisation


@pytest.mark.thorough
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_loaded_network_equals_the_saved_one(name, tmp_path):
    check_loading(name, tmp_path)


def test_parameters_are_not_initialised():
    with poisoned_memory(), NoInitialization():
        layer = nn.Conv2d(3, 4, 3)
    assert layer.weight.isnan().all()
    assert layer.bias.isnan().all()
    layer.weight.data.fill_(7.0)
    with NoInitialization():
        nn.init.trunc_normal_(layer.weight, mean=1.0, std=0.02)
        nn.init.kaiming_normal_(tensor=layer.weight)
        nn.init.constant_(layer.bias, 1.0)
    assert (layer.weight == 7.0).all()
    assert layer.bias.isnan().all()


def test_buffers_and_plain_tensors_are_initialised():
    with poisoned_memory(), NoInitialization():
        batch_norm = nn.BatchNorm2d(4)
        index = torch.zeros(3).add_(2).mul_(3)
    assert batch_norm.running_mean.tolist() == [0.0] * 4
    assert batch_norm.running_var.tolist() == [1.0] * 4
    assert batch_norm.num_batches_tracked == 0
    assert index.tolist() == [6.0] * 3


def test_initialisation_is_restored_outside_and_after_an_error():
    functions = dict(vars(nn.init))
    with pytest.raises(ZeroDivisionError), NoInitialization():
        _ = 1 / 0
    assert vars(nn.init) == functions
    torch.manual_seed(3)
    expected = nn.Conv2d(3, 4, 3)
    torch.manual_seed(3)
    with NoInitialization():
        nn.Conv2d(3, 4, 3)
    assert torch.equal(nn.Conv2d(3, 4, 3).weight, expected.weight)


# Without the compiler


@pytest.mark.thorough
def test_torchvision_is_imported_whole_without_the_compiler(run):
    """`roi_align` asks torch._dynamo.utils whether it may be compiled, where algorithms are to be deterministic."""
    out = run(
        """
import importlib.util, sys
from fmapviz.core import lazy_torchvision as vision
heavy = {"torch._dynamo", "torch._inductor", "sympy"} & {".".join(name.split(".")[:2]) for name in sys.modules}
assert not heavy, heavy
assert "torch._dynamo.utils" not in sys.modules  # no stand-in stays behind
import torchvision
assert vision.torchvision is torchvision and vision.models is torchvision.models
assert torchvision.models.list_models() and torchvision.ops.nms and torchvision.transforms.Compose

import torch
import fmapviz
from fmapviz.run.layer_list import list_layers
print(list_layers("shufflenet_v2_x0_5"))
layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
network, x = torch.nn.Sequential(*layers).eval(), torch.rand(2, 3, 9, 9)
with fmapviz.capture(network, types="ReLU") as maps:
    network(x)
assert maps["1"].layout.text == "N C H W"
assert fmapviz.cam(network, x, target=1, layer="1").map.shape == (2, 9, 9)

maps, boxes = torch.rand(2, 3, 16, 16), torch.tensor([[0, 1.0, 2.0, 9.0, 12.0], [1, 0.0, 0.0, 15.0, 15.0]])
align = vision.torchvision.ops.roi_align
expected = align(maps, boxes, 5, spatial_scale=0.5, sampling_ratio=2)
with vision.uncompiled():
    torch.nn.BatchNorm2d(3, device="meta").eval()(torch.zeros(1, 3, 8, 8, device="meta"))
    assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
    assert importlib.util.find_spec("torch._dynamo").origin
    import torch._dynamo.utils as real
    assert real.is_compile_supported
assert sys.modules["torch._dynamo.utils"] is real and real.__spec__.origin.endswith("utils.py")
torch.use_deterministic_algorithms(True)
torch.testing.assert_close(align(maps, boxes, 5, spatial_scale=0.5, sampling_ratio=2), expected)
is_compile_supported = sys.modules["torchvision.ops.roi_align"].is_compile_supported
answer = is_compile_supported("cpu")
assert answer == real.is_compile_supported("cpu") and isinstance(answer, bool)
assert is_compile_supported is not real.is_compile_supported  # it was stood in for
"""
    )
    assert out == f"{list_layers('shufflenet_v2_x0_5')}\n"


@pytest.mark.thorough
def test_a_network_is_compiled_after_the_import(run):
    run(
        """
import torch, warnings
from fmapviz.core import lazy_torchvision as vision
network, batch, graphs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), torch.rand(1, 3, 8, 8), []
def backend(graph, inputs):
    graphs.append(graph)
    return graph
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch's own
    torch.testing.assert_close(torch.compile(network, backend=backend)(batch), network(batch))
assert len(graphs) == 1
"""
    )


@pytest.mark.thorough
def test_an_imported_compiler_stays_imported(run):
    run(
        """
import sys
import torch._dynamo as compiler
import torch._dynamo.utils as utils
from fmapviz.core import lazy_torchvision as vision
with vision.uncompiled():
    assert sys.modules["torch._dynamo"] is compiler and sys.modules["torch._dynamo.utils"] is utils
assert sys.modules["torchvision.ops.roi_align"].is_compile_supported is utils.is_compile_supported
"""
    )


@pytest.mark.thorough
def test_another_thread_gets_the_compiler_while_torchvision_is_imported(run):
    run(
        """
import sys, threading
import torch
from fmapviz.core import lazy_torchvision as vision
stand_in = sys.modules["torch._dynamo.utils"] = vision._StandIn("torch._dynamo.utils")
found = []
def import_it():
    import torch._dynamo
    from torch._dynamo.utils import counters, is_compile_supported
    found.extend([counters, is_compile_supported])
thread = threading.Thread(target=import_it)
thread.start()
thread.join()
import torch._dynamo.utils as real
assert real is not stand_in and found == [real.counters, real.is_compile_supported]
assert torch._dynamo.utils is real
"""
    )


@pytest.mark.thorough
def test_the_meta_device_is_used_without_the_compiler_which_works_afterwards(run):
    run(
        """
import sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from fmapviz.core import lazy_torchvision as vision
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Sigmoid()]
network, batch = torch.nn.Sequential(*layers).eval().to("meta"), torch.zeros(1, 3, 8, 8, device="meta")
with vision.uncompiled(), Mode():
    assert network(batch).shape == (1, 4, 6, 6)
    assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
with Mode():
    network(batch)  # its operators ask for the compiler again
assert callable(sys.modules["torch._dynamo"].optimize)
"""
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        "from torch._dynamo import config, eval_frame, OptimizedModule; assert config.recompile_limit",
        "import torch._inductor.config",
        "import functorch; functorch.vmap(torch.sin)(torch.ones(2))",
        "torch.compile(torch.sin, backend='eager')(torch.ones(2))",
        "torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).module()(torch.ones(1, 2))",
        "import inspect, sys; [inspect.getmodule(value) for value in list(sys.modules.values())]",
        "torch.func.grad(lambda x: x.sum())(torch.ones(2)); torch.compiler.allow_in_graph(torch.sin)",
    ],
)
def test_code_that_imports_the_compiler_has_it(code, run):
    run(
        f"""
import sys, warnings
import torch
from fmapviz.core import lazy_torchvision as vision
with vision.uncompiled():
    warnings.simplefilter("ignore")  # of torch's own
    torch.nn.BatchNorm2d(3, device="meta").eval()(torch.zeros(1, 3, 8, 8, device="meta"))
    {code}
compiler = sys.modules.get("torch._dynamo")
assert compiler is None or compiler.__spec__.origin.endswith("__init__.py")
"""
    )


@pytest.mark.thorough
def test_layers_of_a_network_of_volumes_are_listed_without_the_compiler(run):
    out = run(
        """
import sys
from fmapviz.run.layer_list import list_layers
print(list_layers("r3d_18"))
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
"""
    )
    assert out == f"{list_layers('r3d_18')}\n"
