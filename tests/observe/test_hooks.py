"""One test for each of seventeen known ways in which hooks show wrong values.

Further down: everything about a network that must be as before, however a capture ends.
"""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
from results import drawings_of
from tiny_models import (
    Backwards,
    Calls,
    Fails,
    Pair,
    Passes,
    Recursive,
    Regions,
    Returns,
    Tokens,
    Training,
    Twins,
    as_model,
    draw,
    images,
    overwritten,
    state_of,
)
from torch import nn
from torch.nn import functional
from torchvision.models.feature_extraction import create_feature_extractor

from fmapviz.config import Style
from fmapviz.errors import RequestError
from fmapviz.observe.captured import capture
from fmapviz.observe.hooks import describe_training, observe, unobserved
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.views import maps as maps_view

VIEWS = {"maps": maps_view.draw}


def run(model, *inputs, **options):
    """Capture one forward pass: from name to values."""
    with torch.no_grad(), capture(model, **options) as maps:
        model(*(inputs or (images(),)))
    return {name: feature_map.values for name, feature_map in maps.items()}


def draw_all(module, batch, *, types=(), style=None):
    return draw(as_model(module), select_layers(find_layers(module), types=types), VIEWS, style or Style(), batch)


def convolved(conv, x):
    """What a convolution computes, without the module."""
    return functional.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)


# --- the seventeen traps


@torch.no_grad()
def test_trap_01_an_activation_in_place_does_not_change_captured_values():
    model, x, kept = overwritten(), images(), []
    hook = model[0].register_forward_hook(lambda _module, _args, output: kept.append(output.detach()))
    found = run(model, x)
    hook.remove()
    truth = convolved(model[0], x)
    assert kept[0].min() == 0  # what the tutorial shows
    assert truth.min() < 0
    assert torch.equal(found["0"], truth)
    assert torch.equal(found["2"], convolved(model[2], truth.relu()))


@torch.no_grad()
def test_trap_02_torchvisions_feature_extractor_returns_overwritten_values():
    model, x = overwritten(), images()
    extracted = create_feature_extractor(model, ["0", "2"])(x)
    assert not torch.equal(extracted["0"], convolved(model[0], x))
    assert torch.equal(run(model, x)["0"], convolved(model[0], x))


def test_trap_03_layers_whose_weights_have_the_same_shape_are_all_captured():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    found = run(model)
    assert list(found) == ["0", "1", "2"]
    assert len({values.sum().item() for values in found.values()}) == 3


def test_trap_04_names_keep_their_dots():
    def nest(depth):
        return nn.Conv2d(3, 3, 1) if depth == 0 else nn.Sequential(nest(depth - 1), nn.Conv2d(3, 3, 1))

    assert list(run(nest(4))) == ["0.0.0.0", "0.0.0.1", "0.0.1", "0.1", "1"]


@torch.no_grad()
def test_trap_05_each_call_of_a_module_has_its_own_map():
    model, x = Calls(), images()
    found = run(model, x, types=["Conv2d", "ReLU"])
    assert list(found) == ["relu", "conv", "relu#2", "conv#2", "relu#3"]
    first = convolved(model.conv, (x - 1).relu())
    assert torch.equal(found["relu"], (x - 1).relu())
    assert torch.equal(found["conv"], first)
    assert torch.equal(found["relu#2"], first.relu())
    assert torch.equal(found["conv#2"], convolved(model.conv, first.relu()))
    assert torch.equal(found["relu#3"], found["conv#2"].relu())


def test_trap_06_a_module_under_two_names_goes_by_the_first_and_counts_every_call():
    model = Twins()
    with torch.no_grad(), capture(model) as maps:
        model(images())
    assert list(maps) == ["query.0", "query.0#2"]
    assert set(maps["query.0"].layer.aliases) == {"key.0", "stem"}


def test_trap_07_a_layer_that_did_not_run_has_no_map_and_is_named():
    assert list(run(Backwards())) == ["first", "middle", "last"]
    (drawn,) = draw_all(Backwards(), images(1))
    assert drawn.not_executed == ("never",)
    assert [drawing.layer for drawing in drawings_of(drawn)] == ["first", "middle", "last"]


def test_trap_07_a_layer_that_ran_only_the_time_before_leaves_no_stale_map():
    class Sometimes(nn.Sequential):
        def forward(self, x, *, whole):
            return self[1](self[0](x)) if whole else x

    model = Sometimes(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3))
    with torch.no_grad(), capture(model) as maps:
        model(images(), whole=True)
        assert list(maps) == ["0", "1"]
        model(images(), whole=False)
        assert not maps


def test_trap_08_positions_count_in_the_order_of_execution():
    with torch.no_grad(), capture(model := Backwards()) as maps:
        model(images())
    assert [(feature_map.name, feature_map.index) for feature_map in maps.values()] == [
        ("first", 0),
        ("middle", 1),
        ("last", 2),
    ]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x: (x, x * 2), ["part[0]", "part[1]"]),
        (lambda x: {"out": x, "aux": [x * 2]}, ["part['out']", "part['aux'][0]"]),
        (lambda x: Pair(x, x * 2), ["part[0]", "part[1]"]),
        (lambda x: [x, None, 3, x * 2], ["part[0]", "part[3]"]),
    ],
)
def test_trap_09_outputs_of_any_structure_are_flattened(make, names):
    found = run(Passes(Returns(make)), types=["Returns", "Conv2d"])
    assert list(found) == [*names, "conv"]
    assert torch.equal(found[names[1]], found[names[0]] * 2)


def test_trap_09_outputs_that_cannot_be_drawn_are_named_with_the_reason():
    model = Passes(Returns(lambda x: {"number": x.mean(), "map": x}))
    (drawn,) = draw_all(model, images(1), types=["Returns", "Conv2d"])
    assert [drawing.layer for drawing in drawings_of(drawn)] == ["part['map']", "conv"]
    assert drawn.undrawn == {"part['number']": "shape () has no batch axis: not a map of the image"}
    (drawn,) = draw_all(Passes(Returns(lambda _x: "text")), images(1), types=["Returns", "Conv2d"])
    assert drawn.undrawn == {"part": "returned no tensor"}
    assert drawn.not_executed == ()


def test_trap_10_scripted_models_are_refused_and_other_convolutions_are_matched_by_type():
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    with warnings.catch_warnings(action="ignore"):  # announces its own end
        scripted = torch.jit.script(model)
    with pytest.raises(RequestError, match="hooks need Python modules"), capture(scripted):
        pass
    assert list(run(model)) == ["1"]
    assert list(run(model, types=["ConvTranspose2d"])) == ["0"]


def test_trap_11_the_fused_path_of_a_transformer_is_off_during_a_pass():
    model, seen = Tokens().eval(), []
    model.encoder.layers[0].norm1.register_forward_hook(lambda *_: seen.append(torch.backends.mha.get_fastpath_enabled()))
    found = run(model, types=["Linear"])
    assert list(found) == [f"encoder.layers.{layer}.linear{number}" for layer in (0, 1) for number in (1, 2)]
    assert found["encoder.layers.0.linear1"].shape == (2, 65, 24)
    assert seen == [False]
    assert torch.backends.mha.get_fastpath_enabled()


def test_trap_11_tokens_with_a_mask_are_not_packed_into_a_nested_tensor():
    model = Tokens().eval()
    mask = torch.zeros(2, 65, dtype=torch.bool)
    mask[1, 40:] = True
    found = run(model, images(), mask, types=["Linear"])
    assert {tuple(values.shape) for values in found.values()} == {(2, 65, 24), (2, 65, 16)}


@pytest.mark.thorough
def test_trap_11_compiled_code_is_off_during_a_pass_and_on_afterwards():
    compiled_graphs = []

    def backend(graph, _inputs):
        compiled_graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    plain, x = overwritten(), images()
    model = torch.compile(plain, backend=backend, dynamic=False)
    with torch.no_grad():
        expected = model(x)  # compiled without hooks
        assert len(compiled_graphs) == 1
        found = run(model, x)
        assert torch.equal(found["0"], convolved(plain[0], x))
        assert list(run(plain, x)) == list(found) == ["0", "2"]
        assert len(compiled_graphs) == 1
        assert torch.equal(model(x), expected)
        assert len(compiled_graphs) == 1
        model(images(3, side=20))
        assert len(compiled_graphs) == 2


@pytest.mark.thorough
def test_trap_11_a_network_compiled_in_place_is_unwrapped():
    torch.compiler.reset()
    model, x = overwritten(), images()
    model.compile(backend="eager")
    with torch.no_grad():
        model(x)
        assert torch.equal(run(model, x)["0"], convolved(model[0], x))


def test_trap_12_data_parallel_is_unwrapped():
    model, x = overwritten(), images(3)
    wrapped = nn.DataParallel(model)
    found = run(wrapped, x)
    assert list(found) == ["0", "2"]
    assert torch.equal(found["0"], convolved(model[0], x))
    drawn = draw(as_model(wrapped), select_layers(find_layers(model)), VIEWS, Style(), x)
    assert [[drawing.layer for drawing in drawings_of(each)] for each in drawn] == [["0", "2"]] * 3
    with torch.no_grad(), capture(wrapped) as maps:
        for _ in range(2):
            model(x)  # what is inside may be called as well
    assert list(maps) == ["0", "2"]


def test_trap_12_distributed_data_parallel_is_unwrapped(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, x = overwritten(), images()
        found = run(nn.parallel.DistributedDataParallel(model), x)
        assert torch.equal(found["0"], convolved(model[0], x))
        assert list(found) == ["0", "2"]
    finally:
        torch.distributed.destroy_process_group()


def test_trap_13_a_network_in_training_is_captured_in_evaluation_and_does_not_learn():
    model, x = Training(), images(4)
    before = state_of(model)
    found = run(model, x)
    assert state_of(model) == before
    reference = run(model.eval(), x)
    assert list(found) == list(reference)
    assert all(torch.equal(found[name], reference[name]) for name in found)


@pytest.mark.thorough
def test_trap_14_no_hook_is_left_behind_and_nothing_is_kept_alive():
    model = overwritten()
    before = state_of(model)
    with torch.no_grad(), capture(model) as maps:
        model(images())
    kept = weakref.ref(maps["0"].values)
    del maps
    for _ in range(5):
        run(model)
        draw_all(model, images())
    gc.collect()
    assert kept() is None
    assert state_of(model) == before


def test_trap_15_a_constant_channel_is_black_and_a_nan_affects_no_neighbour():
    x = images(1, side=4)
    x[0, 1] = 7
    x[0, 2, 0, 0] = torch.nan
    (drawn,) = draw_all(nn.Sequential(nn.Identity()), x, types=["Identity"], style=Style(columns=3, padding=0))
    (drawing,) = drawings_of(drawn)
    clean, constant, poisoned = np.split(drawing.pixels, 3, axis=1)
    assert clean.min() == 0
    assert clean.max() == 255
    assert not constant.any()
    assert poisoned.max() == 255
    assert drawing.statistics.constant == (1,)
    assert drawing.statistics.nonfinite == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_trap_16_half_precision_is_scaled_in_float32(dtype):
    model, x = overwritten().to(dtype), images(1).to(dtype)
    truth = convolved(model[0], x)
    found = run(model, x)["0"]
    assert found.dtype == dtype
    assert torch.equal(found, truth)
    (half,) = draw_all(model, x)
    (single,) = draw_all(nn.Sequential(nn.Identity()), truth.float(), types=["Identity"])
    assert np.array_equal(drawings_of(half)[0].pixels, drawings_of(single)[0].pixels)
    assert drawings_of(half)[0].statistics.minimum == truth.min().item()


def test_trap_16_a_mean_whose_sum_exceeds_float16_is_right():
    (drawn,) = draw_all(nn.Sequential(nn.Identity()), torch.full((1, 3, 64, 64), 1000.0).half(), types=["Identity"])
    assert drawings_of(drawn)[0].statistics.mean == 1000


@torch.no_grad()
def test_trap_17_each_image_of_a_batch_has_its_own_grid_and_the_batch_is_not_changed():
    model, x = overwritten(), images(3)
    before = x.clone()
    drawn = draw_all(model, x)
    assert len(drawn) == 3
    for number, each in enumerate(drawn):
        truth = convolved(model[0], x)[number]
        assert drawings_of(each)[0].shape == (8, 14, 14)
        assert drawings_of(each)[0].statistics.minimum == truth.min().item()
        assert drawings_of(each)[0].statistics.maximum == truth.max().item()
    assert torch.equal(x, before)
    assert x._version == 0


# --- one's own loop


def test_a_second_pass_has_no_values_of_the_first():
    model = Calls()
    with torch.no_grad(), capture(model) as maps:
        model(images(2))
        first = {name: feature_map.values for name, feature_map in maps.items()}
        model(images(5))
        assert list(maps) == list(first) == ["conv", "conv#2"]
        assert [feature_map.index for feature_map in maps.values()] == [0, 1]
        assert maps["conv"].shape[0] == 5
    assert first["conv"].shape[0] == 2  # what was taken out stays


def test_a_pass_after_a_failed_one_has_none_of_its_values():
    model = Fails(RuntimeError("no"))
    with torch.no_grad(), capture(model) as maps:
        with pytest.raises(RuntimeError, match="no"):
            model(images())
        assert list(maps) == ["first", "second.0"]
        model.error = None
        model(images())
        assert list(maps) == ["first", "second.0", "third"]


def test_feature_maps_are_named_by_layer_call_and_part():
    class Last(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return {"out": [x]} if self.calls == 3 else x

    layer, entered, received = Last(), [], []

    def enter(feature_map):
        entered.append((feature_map.name, feature_map.call))
        return feature_map.values

    model = nn.Sequential(nn.Sequential(layer, layer, layer))
    with observe(model, select_layers(find_layers(model), types=["Last"]), received.append, enter=enter):
        model(images())
    assert entered == [("0.0", 1), ("0.0#2", 2), ("0.0#3", 3)]
    assert [(each.name, each.call) for each in received] == [("0.0", 1), ("0.0#2", 2), ("0.0#3['out'][0]", 3)]


def test_a_network_that_calls_itself_is_one_pass():
    model = Recursive()
    for _ in range(2):
        assert list(run(model)) == ["conv", "conv#2", "conv#3"]


def test_maps_outlive_the_capture_and_carry_no_graph():
    model = overwritten()
    with capture(model) as maps:
        output = model(images())
    output.sum().backward()  # the network's own graph is whole
    assert maps["0"].values.min() < 0
    assert not maps["0"].values.requires_grad
    assert maps["0"].values.grad_fn is None
    assert model[0].weight.grad is not None


def test_maps_are_captured_inside_inference_mode_and_autocast():
    model = overwritten()
    with torch.inference_mode():
        assert run(model)["0"].min() < 0
    with torch.autocast("cpu", torch.bfloat16):
        assert run(model)["0"].dtype == torch.bfloat16


def test_a_module_that_returns_its_input_is_captured_before_it_is_overwritten():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Identity(), nn.ReLU(inplace=True))
    found = run(model, types=["Conv2d", "Identity", "ReLU"])
    assert torch.equal(found["0"], found["1"])
    assert torch.equal(found["2"], found["0"].relu())
    assert not torch.equal(found["2"], found["1"])


def test_a_capture_inside_a_capture_has_the_same_maps():
    model = overwritten()
    before = state_of(model)
    with torch.no_grad(), capture(model, layers="0") as outer:
        with capture(model, layers="2") as inner:
            model(images())
        assert list(inner) == ["2"]
        assert list(outer) == ["0"]
        assert not model.training
        assert not torch.backends.mha.get_fastpath_enabled()
    assert state_of(model) == before


def test_captures_that_overlap_call_every_layer_until_the_last_one_ends():
    """Threads that draw images end in the order in which they began, not like brackets."""
    first, second = (capture(Tokens(), types=["Linear"]) for _ in range(2))
    model = Tokens().eval()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with torch.no_grad():
        assert not torch.backends.mha.get_fastpath_enabled()
        assert list(run(model, types=["Linear"])) != []
        assert not torch.backends.mha.get_fastpath_enabled()
    second.__exit__(None, None, None)
    assert torch.backends.mha.get_fastpath_enabled()


def test_names_and_globs_may_be_one_or_several():
    model = overwritten()
    assert list(run(model, layers="0")) == list(run(model, layers=["0"])) == ["0"]
    assert list(run(model, exclude="0")) == list(run(model, exclude=("0",))) == ["2"]
    assert list(run(model, types="ReLU")) == list(run(model, types={"ReLU"})) == ["1", "3"]


@pytest.mark.parametrize("options", [{"layers": "conv"}, {"types": "Linear"}, {"exclude": "*"}])
def test_a_wrong_request_leaves_no_trace(options):
    model = Training()
    before = state_of(model)
    with pytest.raises(RequestError), capture(model, **options):
        pass
    assert state_of(model) == before


def test_hooks_of_the_user_stay_and_are_called():
    model, called = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), []
    handles = [
        model[0].register_forward_hook(lambda *_: called.append("forward")),
        model[0].register_forward_pre_hook(lambda *_: called.append("before")),
        model.register_forward_hook(lambda *_: called.append("network"), always_call=True),
        model[2].register_full_backward_hook(lambda *_: called.append("backward")),
    ]
    before = state_of(model)
    with capture(model) as maps:
        model(images()).sum().backward()
    assert called == ["before", "forward", "network", "backward"]
    model.zero_grad()
    after = state_of(model)
    assert after["modules"] == before["modules"]
    assert list(maps) == ["0", "2"]
    for handle in handles:
        handle.remove()


def test_an_output_that_a_users_hook_replaces_is_captured():
    model = overwritten()
    model[0].register_forward_hook(lambda _module, _args, output: output * 2)
    assert torch.equal(run(model, x := images())["0"], convolved(model[0], x) * 2)


# --- side effects forbidden


class ReceiverError(Exception):
    """Raised by a function that the hook calls."""


def networks():
    return {
        "training": Training(),
        "in place": overwritten().train(),
        "calls": Calls(),
        "recursive": Recursive(),
        "twins": Twins(),
        "regions": Regions(1),
        "tokens": Tokens(),
    }


def prepared(model):
    """Give a network gradients and a past, so that their loss would show."""
    torch.manual_seed(1)
    for values in model.parameters():
        values.grad = torch.randn_like(values) if values.requires_grad else None
    return model


@pytest.mark.sampled
@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("gradients", [True, False])
def test_a_capture_that_succeeds_leaves_everything_as_it_was(name, gradients):
    model = prepared(networks()[name])
    before = state_of(model)
    with torch.set_grad_enabled(gradients), capture(model, types=["Module"]) as maps:
        model(images())
    assert maps
    assert state_of(model) == before


@pytest.mark.parametrize("name", networks())
def test_a_drawing_that_succeeds_leaves_everything_as_it_was(name):
    model = prepared(networks()[name])
    before = state_of(model)
    (drawn,) = draw_all(model, images(1), types=["Module"])
    assert drawings_of(drawn)
    assert state_of(model) == before


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_an_error_in_the_model_leaves_everything_as_it_was(error):
    model = prepared(Fails(error))
    before = state_of(model)
    with pytest.raises(type(error)) as caught, capture(model) as maps:
        model(images())
    assert caught.value is error
    assert list(maps) == ["first", "second.0"]
    assert state_of(model) == before


@pytest.mark.sampled
@pytest.mark.parametrize("error", [ReceiverError("no"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_error_in_the_receiver_leaves_everything_as_it_was(error, at):
    model = prepared(Training())
    before, received = state_of(model), []

    def receive(feature_map):
        received.append(feature_map.name)
        if len(received) == at:
            raise error

    with pytest.raises(type(error)) as caught, observe(model, select_layers(find_layers(model)), receive):
        model(images(4))
    assert caught.value is error
    assert len(received) == at
    assert state_of(model) == before


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_an_error_in_user_code_leaves_everything_as_it_was(error):
    model = prepared(Training())
    before = state_of(model)

    def use():
        with capture(model):
            model(images(4))
            raise error

    with pytest.raises(type(error)):
        use()
    assert state_of(model) == before


@pytest.mark.parametrize("error", [RequestError("no"), KeyboardInterrupt()], ids=repr)
def test_an_error_while_drawing_leaves_everything_as_it_was(error):
    model = prepared(Training())
    layers, before = select_layers(find_layers(model)), state_of(model)

    def view(*_):
        raise error

    with pytest.raises(type(error)) as caught:
        draw(as_model(model), layers, {"broken": view}, Style(), images(4))
    assert caught.value is error
    assert state_of(model) == before


def test_an_error_while_hooks_are_set_leaves_everything_as_it_was():
    class Unhookable(nn.Conv2d):
        def register_forward_hook(self, *_args, **_kwargs):
            raise ReceiverError

    model = prepared(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Unhookable(4, 4, 3)))
    before = state_of(model)
    with pytest.raises(ReceiverError), capture(model):
        pass
    assert state_of(model) == before


def test_a_fast_path_that_was_off_stays_off():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        run(overwritten())
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_drawing_a_network_that_draws_random_numbers_restores_the_generator():
    model = Passes(Returns(lambda x: functional.dropout(x, 0.5, training=True)))
    torch.manual_seed(5)
    before = state_of(model)
    draw_all(model, images())
    assert state_of(model) == before
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), expected)


def test_training_flags_that_differ_are_restored_for_each_module():
    model = nn.Sequential(*(nn.Dropout() for _ in range(6)), nn.Conv2d(3, 3, 1))
    flags = [True, False, True, True, False, False, True]
    for module, flag in zip(model, flags, strict=True):
        module.training = flag
    model.training = False
    with torch.no_grad(), capture(model):
        assert not any(module.training for module in model.modules())
        model(images())
    assert [module.training for module in model] == flags
    assert not model.training


class Merging(nn.Conv2d):
    """Adds a learnt change to the weights for evaluation, as adapters of low rank do."""

    def __init__(self):
        super().__init__(3, 4, 3)
        self.delta = nn.Parameter(torch.randn(4, 3, 3, 3) / 3)
        self.modes = []

    def train(self, mode=True):
        if mode != self.training:
            with torch.no_grad():
                self.weight.add_(self.delta, alpha=-1 if mode else 1)
        self.modes.append(mode)
        return super().train(mode)


class Frozen(nn.Sequential):
    """Keeps its batch norm in evaluation mode."""

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize("around", [nn.Sequential, lambda conv: Frozen(conv, nn.BatchNorm2d(4))])
def test_train_and_eval_that_do_more_than_set_a_flag_are_called(around):
    torch.manual_seed(0)
    conv = Merging()
    network = around(conv)
    network.train()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    flags = [module.training for module in network.modules()]
    image = torch.randn(1, 3, 6, 6)
    expected = functional.conv2d(image, conv.weight + conv.delta, conv.bias)
    del conv.modes[:]
    assert torch.equal(run(network, image)["0"], expected)
    assert conv.modes == [False, True]
    assert [module.training for module in network.modules()] == flags
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())  # bit by bit


class StaysOn(nn.Dropout):
    """Dropout of Monte Carlo, which stays on."""

    def train(self, _mode=True):
        return super().train()


class OwnEval(nn.Sequential):
    """Evaluates all but its batch norm."""

    def eval(self):
        for module in self.modules():
            module.training = isinstance(module, nn.BatchNorm2d)
        return self


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize(
    ("network", "left"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 1), StaysOn(), nn.Dropout()), ["1 (StaysOn)"]),
        (OwnEval(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Dropout())), ["1 (BatchNorm2d)"]),
        (nn.Sequential(nn.Dropout(), OwnEval(nn.BatchNorm2d(3), Merging())), ["1.0 (BatchNorm2d)"]),
        (Frozen(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), []),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Dropout()), []),
    ],
)
def test_modules_that_the_networks_eval_leaves_in_training_stay_in_training(network, left, evaluated):
    network.train()
    if evaluated:
        network.eval()
        for module in network.modules():  # a plain eval() does not call the own one of what is within
            if isinstance(module, OwnEval):
                module.eval()
    flags = [module.training for module in network.modules()]
    with capture(network):
        found = describe_training(network)
    assert [module.training for module in network.modules()] == flags
    assert found.partition(": ")[2] == ", ".join(left)


def test_a_training_inside_capture_warns():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train():
        with capture(net):
            net(images(2)).sum().backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="trained while its feature maps were captured"):
        train()
    assert net.training
    assert net[1].num_batches_tracked == 0


def test_a_backward_pass_inside_capture_does_not_warn():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with capture(net, gradients=True) as maps:
        maps.backward(net(images(2)).sum(), retain_graph=True)
        net(images(2)).sum().backward()
    net.eval()
    with capture(net):  # fine-tuning with frozen averages
        net(images(2)).sum().backward()
        torch.optim.SGD(net.parameters(), 0.1).step()


def test_hooks_that_are_attached_while_others_are_paused_see_the_passes():
    network, seen = nn.Sequential(nn.ReLU()), {"outer": [], "inner": []}

    def watching(who):
        return observe(network, find_layers(network), lambda found: seen[who].append(found.name))

    with watching("outer"), unobserved(network):
        with watching("inner"):
            network(torch.ones(1, 3, 2, 2))
            with unobserved(network):
                network(torch.ones(1, 3, 2, 2))
        network(torch.ones(1, 3, 2, 2))
    assert seen == {"outer": [], "inner": ["0"]}
