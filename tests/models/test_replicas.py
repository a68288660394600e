from __future__ import annotations

import functools
import threading
import warnings
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from cases import thorough
from tiny_models import Calls, Recursive, Tokens, Training, Twins, images, overwritten, state_of
from torch import fx, nn
from waiting import PATIENCE

import fmapviz
from fmapviz.core.lazy_torchvision import models
from fmapviz.models.replicas import replicate


class Keeps(nn.Module):
    """Keeps all kinds of things from one call to the next."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("scale", torch.full((1,), 2.0))
        self.register_buffer("hidden", torch.ones(1), persistent=False)
        self.tied = nn.Conv2d(3, 4, 3)
        self.tied.weight = self.conv.weight
        self.seen = []
        self.by_name = {"conv": self.conv, "deep": [self.tied, {"again": self.conv}]}
        self.bare = torch.zeros(3)
        self.kind = nn.ReLU
        self.function = torch.relu
        self.own_function = plain

    def forward(self, x):
        self.last = x
        self.seen.append(tuple(x.shape))
        self.bare += 1
        return self.function(self.by_name["conv"](self.last) * self.scale) + self.by_name["deep"][0](self.last)


def plain(x):
    return x


def numbers(module):
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}


def run(module, batch):
    with torch.no_grad():
        return module(batch)


def assert_same(ours, theirs):
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    else:
        assert len(ours) == len(theirs)
        for own, other in zip(ours, theirs, strict=True):
            assert_same(own, other)


# --- shared and separate parts of a copy


def test_a_copy_shares_only_its_tensors():
    network = Keeps().eval()
    copied = replicate(network)
    assert type(copied) is Keeps
    assert numbers(copied).keys() == numbers(network).keys()
    assert all(numbers(copied)[name] is values for name, values in numbers(network).items())
    assert copied.conv.weight is copied.tied.weight
    assert not set(copied.modules()) & set(network.modules())
    assert [name for name, _ in copied.named_modules()] == [name for name, _ in network.named_modules()]
    assert copied.bare is not network.bare
    assert (copied.kind, copied.function, copied.own_function) == (nn.ReLU, torch.relu, plain)
    assert copied.state_dict().keys() == network.state_dict().keys()


def test_a_copy_has_its_own_state():
    network = Keeps().eval()
    run(network, images(1))
    copied = replicate(network)
    assert_same(run(copied, images(2)), run(network, images(2)))
    run(copied, images(3))
    assert [shape[0] for shape in network.seen] == [1, 2]
    assert [shape[0] for shape in copied.seen] == [1, 2, 3]
    assert len(network.last) == 2
    assert len(copied.last) == 3
    assert network.bare.tolist() == [2] * 3
    assert copied.bare.tolist() == [3] * 3


def test_modules_in_lists_and_dicts_are_those_of_the_copy():
    network = Keeps()
    copied = replicate(network)
    assert copied.by_name["conv"] is copied.conv
    assert copied.by_name["deep"][0] is copied.tied
    assert copied.by_name["deep"][1]["again"] is copied.conv
    assert network.by_name["conv"] is network.conv


def test_shared_and_recursive_modules_stay_shared_and_recursive():
    twins = replicate(Twins())
    assert twins.key is twins.query
    assert twins.stem is twins.query[0]
    recursive = replicate(Recursive())
    assert recursive.again is recursive
    assert recursive.child.parent is recursive


def test_replacing_a_tensor_of_the_copy_does_not_change_the_original():
    network = Keeps()
    copied, before = replicate(network), network.scale
    copied.scale = torch.zeros(1)
    copied.conv.weight = nn.Parameter(torch.zeros(1))
    assert network.scale is before
    assert network.conv.weight is network.tied.weight


def test_hooks_of_the_copy_are_not_in_the_original():
    network, heard = overwritten(), []
    copied = replicate(network)
    copied[0].register_forward_hook(lambda *_: heard.append("copy"))
    run(network, images())
    assert heard == []
    run(copied, images())
    assert heard == ["copy"]


@pytest.mark.parametrize("make", [Keeps, Calls, Recursive, Tokens, Training, Twins, overwritten])
def test_copying_does_not_change_the_original(make):
    network = make()
    before = state_of(network)
    copied = replicate(network)
    assert state_of(network) == before
    assert [module.training for module in copied.modules()] == [module.training for module in network.modules()]
    assert [values.requires_grad for values in copied.parameters()] == [each.requires_grad for each in network.parameters()]


def test_a_copy_of_a_copy_is_a_copy_of_the_original():
    network = Keeps()
    copied = replicate(replicate(network))
    assert all(numbers(copied)[name] is values for name, values in numbers(network).items())
    assert not set(copied.modules()) & set(network.modules())


# --- results of a copy


@pytest.mark.parametrize("make", [Keeps, Calls, Recursive, Tokens, Training, Twins, overwritten])
def test_a_copy_computes_the_same_as_the_original(make):
    torch.manual_seed(0)
    network = make()
    for module in network.modules():
        module.training = False  # eval() has no end where a network contains itself
    assert_same(run(replicate(network), images()), run(network, images()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {}),
        *thorough(("densenet121", {}), ("googlenet", {"init_weights": False})),
        ("fasterrcnn_mobilenet_v3_large_320_fpn", {"weights_backbone": None}),
    ],
)
def test_a_copy_of_a_published_network_computes_the_same(name, options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = models.get_model(name, weights=None, **options).eval()
    copied = replicate(network)
    assert copied is not None
    assert all(numbers(copied)[name] is values for name, values in numbers(network).items())
    assert not set(copied.modules()) & set(network.modules())
    batch = list(images(2, 64)) if "rcnn" in name else images(2, 64)
    assert_same(run(copied, batch), run(network, batch))


def test_a_traced_graph_is_copied():
    network = fx.symbolic_trace(overwritten())
    copied = replicate(network)
    assert copied is not network
    assert_same(run(copied, images()), run(network, images()))


def test_original_and_copy_do_not_disturb_each_other():
    together = Barrier(2)

    class Dawdles(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            self.last = x
            together.wait(PATIENCE)
            return self.conv(self.last)

    network, given, results = Dawdles().eval(), (images(2), images(3)), {}
    both = network, replicate(network)

    def work(number):
        results[number] = [run(both[number], given[number]) for _ in range(20)]

    threads = [Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for number, batch in enumerate(given):
        expected = run(network.conv, batch)
        assert len(results[number]) == 20
        assert all(torch.allclose(each, expected) for each in results[number])


# --- networks that are not copied


def hooked(network):
    network[2].register_forward_hook(lambda *_: None)


def hooked_before(network):
    network[2].register_forward_pre_hook(lambda *_: None)


def replaced_by_a_closure(network):
    original = network[0].forward
    network[0].forward = lambda x: original(x) * 2


def replaced_by_a_method(network):
    network[0].forward = network[2].forward


def wrapped(network):
    @functools.wraps(network[0].forward)
    def forward(x):
        return nn.Conv2d.forward(network[0], x)

    network[0].forward = forward


def locked(network):
    network[1].lock = threading.Lock()


def with_a_history(network):
    network[1].kept = network[0].weight * 2


def with_a_generator(network):
    network[1].steps = (step for step in range(3))


def closures_in_a_list(network):
    network[1].steps = [lambda x: network[0](x)]  # noqa: PLW0108  it remembers the network


def closures_in_a_dict(network):
    network[1].steps = {"deep": ({"conv": lambda x: network[0](x)},)}  # noqa: PLW0108


def a_partial_of_a_closure(network):
    def call(factor, x):
        return network[0](x) * factor

    network[1].step = functools.partial(call, 2)


def a_default_that_is_a_module(network):
    network[1].step = lambda x, conv=network[0]: conv(x)


@pytest.mark.parametrize(
    "tamper",
    [
        hooked,
        hooked_before,
        replaced_by_a_closure,
        replaced_by_a_method,
        wrapped,
        locked,
        with_a_history,
        with_a_generator,
        closures_in_a_list,
        closures_in_a_dict,
        a_partial_of_a_closure,
        a_default_that_is_a_module,
    ],
)
def test_networks_whose_copies_may_differ_are_not_copied(tamper):
    network = overwritten()
    assert replicate(network) is not None
    tamper(network)
    assert replicate(network) is None


def test_a_removed_hook_does_not_prevent_copying():
    network = overwritten()
    network[0].register_forward_hook(lambda *_: None).remove()
    assert replicate(network) is not None


def test_a_method_of_a_class_does_not_prevent_copying():
    class Twice:
        @classmethod
        def apply(cls, x):
            return 2 * x

    network = overwritten()
    network[0].activate = Twice.apply  # as `torch.autograd.Function.apply` is, in Python code until PyTorch 2.13
    assert replicate(network)[0].activate(3) == 6


def test_a_bound_method_of_a_part_is_rebound_or_prevents_copying():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.steps = [self.convolve, functools.partial(self.convolve)]

        def convolve(self, x):
            return self.conv(x)

        def forward(self, x):
            return self.steps[0](x) + self.steps[1](x)

    copied, heard = replicate(Steps()), []
    if copied is not None:
        copied.conv.register_forward_hook(lambda *_: heard.append("copy"))
        run(copied, images())
        assert heard == ["copy"] * 2


def test_scripted_code_is_not_copied():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(overwritten())
    assert replicate(scripted) is None
    assert replicate(nn.Sequential(nn.Conv2d(3, 3, 1), scripted)) is None


class Merging(nn.Conv2d):
    """Adds 1 to its weights for evaluation."""

    def train(self, mode=True):
        if mode != self.training:
            with torch.no_grad():
                self.weight.add_(-1 if mode else 1)
        return super().train(mode)


def test_weights_that_are_merged_for_evaluation_are_merged_once_for_all_copies(tmp_path):
    network, images = nn.Sequential(Merging(3, 2, 3)), [torch.rand(3, 9, 9) for _ in range(9)]
    before = network[0].weight.clone()
    merged = nn.Conv2d(3, 2, 3)
    merged.load_state_dict({"weight": before + 1, "bias": network[0].bias})
    run = fmapviz.visualize(network, images, out=tmp_path, to="npz", workers=4)
    for image, path in zip(images, sorted(run.directory.rglob("*.npz")), strict=True):
        with np.load(path) as held, torch.no_grad():
            (drawn,) = (held[name] for name in held if name != "__metadata__")
            np.testing.assert_allclose(drawn, merged(image[None])[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(network[0].weight, before)
