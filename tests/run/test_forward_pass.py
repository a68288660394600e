from __future__ import annotations

import gc
import weakref
from collections import Counter
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from results import as_grids, drawings_of
from tiny_models import Backwards, Calls, Fails, Passes, Regions, Returns, as_model, draw, images, overwritten
from torch import nn

from fmapviz.config import Style
from fmapviz.errors import FmapvizError
from fmapviz.observe.early_stop import EarlyStop
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.batch_results import MixedBatchError
from fmapviz.run.forward_pass import Drawer, ForwardError
from fmapviz.run.plan import Plan
from fmapviz.run.tile import tile
from fmapviz.types import Statistics
from fmapviz.views import maps as maps_view

NAN, INF = float("nan"), float("inf")
VIEWS = {"maps": maps_view.draw}


def draw_all(module, batch, *, types=(), style=None, views=None, forward=nn.Module.__call__):
    layers = select_layers(find_layers(module), types=types)
    return draw(as_model(module, forward=forward), layers, views or VIEWS, style or Style(), batch)


def draw_values(values, style=None):
    """Draw a tensor as if a layer had returned it: one drawing per image."""
    drawn = draw_all(nn.Sequential(nn.Identity()), values, types=["Identity"], style=style)
    return [drawings_of(each)[0] for each in drawn]


def names(drawn):
    return [drawing.layer for drawing in drawings_of(drawn)]


# --- drawings


def test_each_image_has_one_drawing_per_call_of_a_layer_and_view_in_the_order_of_execution():
    views = {"maps": maps_view.draw, "again": lambda maps, _style: as_grids((maps.values[:, 0] * 0).to(torch.uint8))}
    drawn = draw_all(Calls(), images(3), types=["Conv2d", "ReLU"], views=views)
    assert len(drawn) == 3
    for each in drawn:
        calls = [("relu", 1), ("conv", 1), ("relu#2", 2), ("conv#2", 2), ("relu#3", 3)]
        expected = [(view, *call, index) for index, call in enumerate(calls) for view in ("maps", "again")]
        assert [(drawing.view, drawing.layer, drawing.call, drawing.index) for drawing in drawings_of(each)] == expected
        assert [drawing.type for drawing in drawings_of(each)[::2]] == ["ReLU", "Conv2d", "ReLU", "Conv2d", "ReLU"]
        assert all(drawing.shape == (3, 16, 16) for drawing in drawings_of(each))
        assert all(drawing.samples == 1 for drawing in drawings_of(each))
        assert each.not_executed == ()
        assert each.undrawn == {}


def test_a_drawing_is_the_tile_of_the_layers_output():
    values = torch.randn(2, 7, 5, 6)
    for style in (Style(), Style(norm="layer", padding=1, columns=3, scale=2)):
        for image, drawing in enumerate(draw_values(values, style)):
            assert drawing.pixels.dtype == np.uint8
            assert drawing.channels is None
            assert np.array_equal(drawing.pixels, tile(values[image], style).numpy())


def test_chosen_channels_are_drawn_and_recorded_per_image():
    values = torch.zeros(2, 5, 3, 3)
    values[0, 3], values[0, 1], values[1, 4], values[1, 0] = torch.rand(4, 3, 3) + torch.tensor([9, 8, 9, 8])[:, None, None]
    for image, (drawing, expected) in enumerate(
        zip(draw_values(values, Style(channels="top:2")), [(3, 1), (4, 0)], strict=True)
    ):
        assert drawing.channels == expected
        assert drawing.shape == (5, 3, 3)
        assert np.array_equal(drawing.pixels, tile(values[image][list(expected)]).numpy())
    drawing, _ = draw_values(values, Style(channels="4,1"))
    assert drawing.channels == (4, 1)
    assert drawing.statistics == draw_values(values)[0].statistics  # of all channels, whichever are shown


def test_a_layer_without_the_chosen_channels_is_left_out_with_the_reason():
    drawn, _ = draw_all(overwritten(), images(), style=Style(channels="5-7"))
    assert names(drawn) == ["0"]
    assert drawn.undrawn == {"2": "has 5 channels, none of those chosen"}
    assert drawn.not_executed == ()


def test_a_pass_records_no_graph():
    seen = []
    draw_all(Passes(Returns(lambda _x: seen.append(torch.is_grad_enabled()))), images())
    assert seen == [False]


def test_a_clip_is_drawn_frame_by_frame():
    module = nn.Sequential(nn.Conv3d(3, 4, 3, padding=1))
    clip = torch.randn(2, 3, 12, 8, 9)
    drawn = draw_all(module, clip)
    with torch.no_grad():
        values = module(clip)
    for image, each in enumerate(drawn):
        assert names(each) == [f"0.t{time:02d}" for time in range(12)]
        for time, drawing in enumerate(drawings_of(each)):
            assert drawing.index == 0
            assert drawing.shape == (4, 12, 8, 9)
            assert np.array_equal(drawing.pixels, tile(values[image, :, time]).numpy())
            assert drawing.statistics.maximum == values[image, :, time].max().item()


def test_layers_that_did_not_run_and_outputs_that_are_no_maps_are_accounted_for():
    outputs = {
        "sum": lambda x: x.sum(),
        "complex": lambda x: x * 1j,
        "empty": lambda x: x[:0],
        "none": lambda _x: None,
    }
    module = nn.Sequential()
    for name, make in outputs.items():
        module.add_module(name, Passes(Returns(make)))
        module[-1].conv = nn.Identity()
    module.add_module("end", Backwards())
    (drawn,) = draw_all(module, images(1), types=["Returns", "Conv2d"])
    assert names(drawn) == ["end.first", "end.middle", "end.last"]
    assert drawn.not_executed == ("end.never",)
    assert drawn.undrawn == {
        "sum.part": "shape () has no batch axis: not a map of the image",
        "complex.part": "complex values (1, 3, 16, 16)",
        "empty.part": "empty: (0, 3, 16, 16)",
        "none.part": "returned no tensor",
    }


def test_drawing_twice_has_the_same_result():
    module = Backwards()
    first, second = (draw_all(module, images(count)) for count in (1, 1))
    for one, two in zip(first, second, strict=True):
        assert names(one) == names(two)
        assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(drawings_of(one), drawings_of(two), strict=True))


def test_a_network_that_overwrites_its_input_gets_a_copy():
    batch = images(2)
    before = batch.clone()
    module = Passes(Returns(lambda x: x.mul_(3).add_(1)))
    first, again = (draw_all(module, batch, types=["Returns"]) for _ in range(2))  # as where axes have to be followed
    assert torch.equal(batch, before)
    for drawn, values in zip(first + again, [*before, *before], strict=True):
        (drawing,) = drawings_of(drawn)
        assert np.array_equal(drawing.pixels, tile(values * 3 + 1, Style()).numpy())


@pytest.mark.parametrize(
    "module",
    [nn.Identity(), nn.ReLU(), nn.MaxPool2d(2), nn.Hardswish(), nn.Upsample(scale_factor=2)],
    ids=lambda module: type(module).__name__,
)
def test_a_batch_is_bit_for_bit_its_images_one_by_one(module):
    """Convolutions may add up in another order; everything else, and all of the drawing, may not."""
    batch = images(8)
    together = draw_all(nn.Sequential(module), batch, types=[type(module).__name__])
    for image, drawn in enumerate(together):
        (alone,) = draw_all(nn.Sequential(module), batch[image : image + 1], types=[type(module).__name__])
        assert np.array_equal(drawings_of(drawn)[0].pixels, drawings_of(alone)[0].pixels)
        assert drawings_of(drawn)[0].statistics == drawings_of(alone)[0].statistics


# --- regions and mixed batches


def test_the_first_of_several_regions_is_drawn_and_all_are_counted():
    module = Regions(5)
    (drawn,) = draw_all(module, images(1))
    backbone, head = drawings_of(drawn)
    assert backbone.samples == 1
    assert head.samples == 5
    assert head.shape == (2, 14, 14)
    with torch.no_grad():
        values = module(images(1))
    assert np.array_equal(head.pixels, tile(values[0]).numpy())
    assert head.statistics.maximum == values[0].max().item()


def test_regions_of_several_images_are_refused():
    with pytest.raises(MixedBatchError):
        draw_all(Regions(5), images(2))


def test_one_sample_for_several_images_is_refused():
    with pytest.raises(MixedBatchError):
        draw_all(Passes(Returns(lambda x: x.mean(0, keepdim=True))), images(2), types=["Returns"])


def test_vectors_of_regions_are_reported_as_undrawn():
    for count in (1, 2):
        (drawn, *_) = draw_all(Passes(Returns(lambda _x: torch.zeros(100, 4))), images(count), types=["Returns", "Conv2d"])
        assert names(drawn) == ["conv"]
        assert drawn.undrawn == {"part": ANY}
        assert drawn.undrawn["part"].startswith("(100, 4): not computed from the picture")


# --- failures


@pytest.mark.parametrize(
    "error", [ValueError("too small\nfor this"), RuntimeError(), ZeroDivisionError("by zero"), AssertionError()]
)
def test_a_failure_of_the_model_names_its_last_layer(error):
    with pytest.raises(ForwardError) as caught:
        draw_all(Fails(error), images())
    on_one_line = str(error).replace("\n", " ")
    assert str(caught.value) == f"the model failed after layer 'second.0': {type(error).__name__}: {on_one_line}"
    hint = "the input was 16 x 16 pixels: InputOptions(size=) chooses another size, but not for tensors of floats"
    assert caught.value.hint == (hint if "too small" in str(error) else None)
    assert caught.value.__cause__ is error


def test_a_kernel_larger_than_its_input_has_a_hint_to_size():
    """PyTorch speaks of the "padded input size per channel"."""
    with pytest.raises(ForwardError, match="Kernel size can't be greater than actual input size") as caught:
        draw_all(nn.Sequential(nn.Conv2d(3, 8, 3, stride=8), nn.Conv2d(8, 8, 7)).eval(), torch.randn(1, 3, 32, 32))
    assert (
        caught.value.hint
        == "the input was 32 x 32 pixels: InputOptions(size=) chooses another size, but not for tensors of floats"
    )


def test_a_failure_before_the_first_layer_is_reported_as_such():
    with pytest.raises(
        ForwardError, match=r"before the first layer: RuntimeError: .*expected input.* to have 3 channels"
    ) as caught:
        draw_all(overwritten(), torch.randn(1, 5, 16, 16))
    assert caught.value.hint is None  # of the channels, not of the size


def test_the_layer_a_failure_names_has_its_call():
    class Twice(Calls):
        def forward(self, x):
            raise ValueError(f"{tuple(super().forward(x).shape)}")

    with pytest.raises(ForwardError, match=r"after layer 'conv#2': ValueError: \(2, 3, 16, 16\)"):
        draw_all(Twice(), images())


def test_a_layer_that_a_view_fails_to_draw_is_named_and_the_pass_continues():
    def view(*_):
        raise ValueError("a bug of ours")

    drawn, _ = draw_all(overwritten(), images(), views={"broken": view})
    assert drawn.undrawn
    assert set(drawn.undrawn.values()) == {"cannot be drawn: ValueError: a bug of ours"}
    assert not drawn.not_executed


class Swallows(nn.Module):
    """Catches what its part raises and goes on."""

    def __init__(self, part, *, rename):
        super().__init__()
        self.part = part
        self.rename = rename

    def forward(self, x):
        try:
            return self.part(x)
        except Exception as error:
            if self.rename:
                raise RuntimeError("renamed") from error
            return x


@pytest.mark.parametrize("rename", [False, True])
def test_a_wrong_request_is_raised_though_the_model_catches_it(rename):
    error = FmapvizError("a wrong request")

    def view(*_):
        raise error

    with pytest.raises(FmapvizError, match="a wrong request") as caught:
        draw_all(Swallows(overwritten(), rename=rename), images(), views={"broken": view})
    assert caught.value is error


@pytest.mark.parametrize("rename", [False, True])
def test_a_mixed_batch_is_raised_though_the_model_catches_it(rename):
    with pytest.raises(MixedBatchError):
        draw_all(Swallows(Regions(5), rename=rename), images(2))


def test_a_failure_that_the_model_handles_is_ignored():
    drawn, _ = draw_all(Swallows(Fails(ValueError("no")), rename=False), images())
    assert names(drawn) == ["part.first", "part.second.0"]
    assert drawn.not_executed == ("part.third",)


def test_a_stop_is_no_failure_of_the_model_but_an_exit_is():
    with pytest.raises(KeyboardInterrupt):
        draw_all(Fails(KeyboardInterrupt()), images())
    with pytest.raises(ForwardError, match="SystemExit: 3"):
        draw_all(Fails(SystemExit(3)), images())


@pytest.mark.thorough
def test_endless_recursion_is_a_failure_of_the_model():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return self.forward(self.conv(x))

    with pytest.raises(ForwardError, match=r"after layer 'conv#.*RecursionError"):
        draw_all(Deep(), images(1, side=4))


def test_out_of_memory_is_distinguished_from_other_failures():
    with pytest.raises(RuntimeError) as caught:
        draw_all(Passes(Returns(lambda _x: torch.empty(1 << 50))), images())
    assert not isinstance(caught.value, ForwardError)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("Given groups=1, weight of size [4, 3, 3, 3]"))


def test_out_of_memory_in_a_view_is_distinguished():
    with pytest.raises(RuntimeError) as caught:
        draw_all(overwritten(), images(), views={"huge": lambda *_: torch.empty(1 << 50)})
    assert is_out_of_memory(caught.value)


def test_the_model_is_called_as_its_source_declares():
    def twice(module, batch):
        return module(list(batch))

    class Listed(nn.Sequential):
        def forward(self, pictures):
            return super().forward(torch.stack(pictures))

    drawn = draw_all(Listed(nn.Conv2d(3, 4, 3)), images(), forward=twice)
    assert [names(each) for each in drawn] == [["0"], ["0"]]


# --- statistics


def by_hand(values):
    """The statistics of one image's values, as NumPy sees them."""
    values = values.double().numpy()
    finite = values[np.isfinite(values)]
    single = values.shape[1] * values.shape[2] == 1
    constant = tuple(
        channel for channel, each in enumerate(values) if not single and np.isfinite(each).all() and each.min() == each.max()
    )
    return {
        "minimum": finite.min() if finite.size else None,
        "maximum": finite.max() if finite.size else None,
        "mean": pytest.approx(finite.mean(), rel=1e-5, abs=1e-6) if finite.size else None,
        "constant": constant,
        "nonfinite": values.size - finite.size,
    }


def spoilt(**spots):
    """Random values of two images, some of them replaced."""
    values = torch.randn(2, 4, 6, 7, generator=torch.Generator().manual_seed(3))
    for channel, (where, value) in enumerate(spots.values()):
        values[1, channel][where] = value
    return values


EVERYWHERE = torch.ones(6, 7, dtype=torch.bool)
ONCE = torch.zeros(6, 7, dtype=torch.bool).index_put((torch.tensor(2), torch.tensor(3)), torch.tensor(True))


@pytest.mark.parametrize(
    "values",
    [
        spoilt(),
        spoilt(constant=(EVERYWHERE, 3.5), zero=(EVERYWHERE, 0.0)),
        spoilt(nan=(ONCE, NAN), infinite=(ONCE, INF), minus=(ONCE, -INF)),
        spoilt(nan=(EVERYWHERE, NAN), constant=(EVERYWHERE, -1.0)),
        spoilt(all_but_one=(~ONCE, NAN), infinite=(EVERYWHERE, -INF)),
        spoilt().fill_(NAN),
        spoilt().fill_(2.5),
        spoilt().half(),
        spoilt().bfloat16(),
        spoilt().double(),
        spoilt().mul(50).to(torch.int8),
        spoilt().mul(50).to(torch.int64),
        spoilt() > 0,
        spoilt()[:, :1],
        spoilt()[:, :, :1, :1],
        spoilt()[:, :, :1, :1].index_fill(1, torch.tensor(2), NAN),
        spoilt()[:, :, :1],
        spoilt().contiguous(memory_format=torch.channels_last),
        spoilt() * 1e30,
        spoilt() * 1e-30,
        spoilt() + 1e4,
    ],
    ids=lambda values: f"{values.dtype}{tuple(values.shape)}".removeprefix("torch."),
)
def test_statistics_of_a_pass_equal_numpys(values):
    for drawing, expected in zip(draw_values(values), map(by_hand, values), strict=True):
        found = {name: getattr(drawing.statistics, name) for name in expected}
        assert found == expected
        assert type(drawing.statistics.nonfinite) is int
        assert all(type(channel) is int for channel in drawing.statistics.constant)


@pytest.mark.thorough
def test_numbers_of_values_beyond_float32_are_exact():
    values = torch.full((1, 1, 4097, 4097), NAN)  # 16785409, an odd number above 2**24
    (drawing,) = draw_values(values)
    assert drawing.statistics.nonfinite == 4097 * 4097


def test_values_that_float32_cannot_hold_are_counted_as_infinite():
    values = torch.tensor([[[[1e300, 1.0], [2.0, -3.0]]]], dtype=torch.float64)
    (drawing,) = draw_values(values)
    assert drawing.statistics == Statistics(minimum=-3, maximum=2, mean=0, constant=(), nonfinite=1)


def test_maps_of_a_single_pixel_have_no_constant_channels():
    (drawn,) = draw_all(nn.Sequential(nn.Conv2d(3, 9, 16), nn.ReLU()), images(1), types=["Conv2d", "ReLU"])
    conv, relu = drawings_of(drawn)
    assert conv.statistics.constant == relu.statistics.constant == ()
    assert not conv.pixels.any()  # what `make_grid` makes of single pixels: each its own minimum
    assert (conv.shape, relu.shape) == ((9, 1, 1), (9, 1, 1))
    assert relu.pixels.any()  # bars


# --- memory


def live_tensors():
    gc.collect()
    return Counter(each.dtype for each in gc.get_objects() if issubclass(type(each), torch.Tensor))


@pytest.mark.thorough
def test_thirty_forward_passes_leave_as_many_tensors_as_one():
    module, batch = overwritten(), images(2)
    layers = select_layers(find_layers(module))
    draw(as_model(module), layers, VIEWS, Style(), batch)
    before = live_tensors()
    for _ in range(30):
        draw(as_model(module), layers, VIEWS, Style(), batch)
    assert live_tensors() == before


@pytest.mark.thorough
def test_thirty_failed_forward_passes_leave_as_many_tensors_as_one():
    module, batch = Fails(ValueError("no")), images(2)
    layers = select_layers(find_layers(module))

    def fail():
        with pytest.raises(ForwardError):
            draw(as_model(module), layers, VIEWS, Style(), batch)
        module.error.__traceback__ = None

    fail()
    before = live_tensors()
    for _ in range(30):
        fail()
    assert live_tensors() == before


@pytest.mark.thorough
def test_drawings_keep_only_their_pixels_alive():
    before = live_tensors()
    drawn = draw_all(overwritten(), images(5))
    assert live_tensors() - before == {torch.uint8: 2}  # the grids of two layers, five images each
    assert [len(drawings_of(each)) for each in drawn] == [2] * 5
    del drawn
    assert live_tensors() == before


def test_a_pass_that_ends_early_frees_its_tensors_at_once():
    """An exception that is kept keeps what its traceback leads to until the garbage is collected."""
    outputs = []

    class Noted(nn.Conv2d):
        def forward(self, x):
            output = super().forward(x)
            outputs.append(weakref.ref(output))
            return output

    module = nn.Sequential(Noted(3, 4, 3), Noted(4, 4, 3), nn.Flatten(), nn.Linear(1, 1))  # the last would fail
    layers = select_layers(find_layers(module), types=["Noted"])
    gc.disable()
    try:
        with Drawer(as_model(module), layers, Plan({"output": VIEWS}), Style(), early_stop=EarlyStop(2)) as drawer:
            (drawn,) = drawer.draw(images(1))
        assert [drawing.layer for drawing in drawings_of(drawn)] == ["0", "1"]
        assert [output() for output in outputs] == [None, None]
    finally:
        gc.enable()
