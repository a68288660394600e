"""Pointwise convolutions in one thread: the same bits as the user's own forward pass in several."""

import pytest
import torch
from torch import nn

from fmapviz.models.onednn import with_onednn


class Doubled(nn.Conv2d):
    def _conv_forward(self, values, weight, bias):
        return 2 * super()._conv_forward(values, weight, bias)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1),
        nn.Conv2d(64, 256, 1),
        nn.Conv2d(256, 64, 1, groups=4, bias=False),
        nn.Conv2d(64, 32, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(32, 8, 1),  # of so few values, which PyTorch never gives to oneDNN
        Doubled(8, 8, 1),
    ).eval()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("grad", [False, True])
def test_one_thread_and_two_threads_compute_the_same(grad, threads):
    net, image = network(), torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)

    def run():
        outputs = []
        hooks = [each.register_forward_hook(lambda _m, _a, out: outputs.append(out.detach().clone())) for each in net]
        net.zero_grad()
        net(image).square().sum().backward()
        for hook in hooks:
            hook.remove()
        return outputs, [each.grad.clone() for each in net.parameters()] if grad else []

    threads(2)
    expected, gradients = run()
    threads(1)
    with with_onednn(net):
        outputs, own = run()
    assert all(map(torch.equal, outputs, expected))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(own, gradients, strict=True))


def test_a_padded_convolution_equals_that_of_onednn(threads):
    # On a processor without AVX-512, oneDNN itself divides such a one among threads, and rounds by their number.
    net, image = nn.Conv2d(64, 32, 1, padding=1), torch.randn(1, 64, 48, 48, generator=torch.Generator().manual_seed(0))
    threads(2)
    expected = net(image)
    threads(1)
    with with_onednn(net):
        output = net(image)
    assert torch.equal(output, torch.mkldnn_convolution(image, net.weight, net.bias, (1, 1), (1, 1), (1, 1), 1))
    assert torch.allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_each_image_of_a_batch_is_computed_as_alone(threads):
    threads(1)
    images = torch.randn(4, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    net = network()
    with torch.no_grad(), with_onednn(net):
        assert torch.equal(net(images)[:1], net(images[:1]))


def test_the_network_is_restored():
    net = network()
    before = [dict(vars(each)) for each in net]
    with with_onednn(net):
        changed = [position for position, each in enumerate(net) if "_conv_forward" in vars(each)]
    assert changed == ([1, 2, 3, 5] if torch.backends.mkldnn.is_available() else [])
    assert [dict(vars(each)) for each in net] == before


def test_autocast_and_other_types_are_left_to_pytorch(threads):
    threads(1)
    net, image = network(), torch.randn(1, 3, 96, 96)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = net(image)
        with with_onednn(net):
            assert torch.equal(net(image), expected)
    double = network().double()
    with torch.no_grad(), with_onednn(double):
        assert double(image.double()).dtype == torch.float64
