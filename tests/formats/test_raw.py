"""Stored values equal those of plain hooks, bit for bit."""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from image_files import paint, prepared
from safetensors import safe_open
from tiny_models import Calls, Pair, Regions, Returns, as_model, overwritten
from tiny_runs import AS_IT_IS
from torch import nn
from trees import problems

from fmapviz.config import Style
from fmapviz.events import Notice, Outcome
from fmapviz.run.loop import visualize
from fmapviz.store.verify import verify
from fmapviz.types import RawValues

TOLD = {"fmapviz", "model", "weights", "sha256", "preparation", "image", "versions", "layers"}
FORMATS = ["raw", "npz"]


@pytest.fixture
def pictures(tmp_path):
    return [paint(tmp_path / f"pictures/{seed}.png", seed) for seed in range(5)]


@pytest.fixture
def look(tmp_path):
    return partial(visualize, out=tmp_path / "out", preprocessing=AS_IT_IS, to=FORMATS, workers=2, types=["Module"])


def read_raw(directory):
    """Read a safetensors file with safetensors' own reader: arrays and metadata."""
    with safe_open(directory / "raw.safetensors", framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118  it is no dict


def read_npz(directory):
    with np.load(directory / "raw.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(arrays.pop("__metadata__").item())


def read(directory):
    """Read both, which must hold the same."""
    (arrays, told), (others, said) = read_raw(directory), read_npz(directory)
    assert told == said
    assert told.keys() == TOLD
    layers = json.loads(told["layers"])
    assert [each["key"] for each in layers] == list(others)
    assert set(arrays) == set(others)
    for each in layers:
        own, other = arrays[each["key"]], others[each["key"]]
        assert own.dtype == other.dtype
        assert list(own.shape) == list(other.shape) == each["shape"]
        assert own.tobytes() == other.tobytes()
    return arrays, {each["key"]: each for each in layers}, told


def parts(output, part=""):
    if isinstance(output, torch.Tensor):
        yield part, output
    elif isinstance(output, dict):
        for key, value in output.items():
            yield from parts(value, f"{part}[{key!r}]")
    elif isinstance(output, list | tuple):
        for position, value in enumerate(output):
            yield from parts(value, f"{part}[{position}]")


def outputs(model, batch):
    """What each layer returns: clones, taken by plain hooks."""
    seen, calls = {}, defaultdict(int)

    def hook_for(name):
        def hook(_module, _args, output):
            calls[name] += 1
            for part, values in parts(output):
                seen[f"{name}{f'#{calls[name]}' if calls[name] > 1 else ''}{part}"] = values.detach().clone()

        return hook

    hooks = [module.register_forward_hook(hook_for(name)) for name, module in model.named_modules() if name]
    with torch.no_grad():
        model.eval()(batch)
    for hook in hooks:
        hook.remove()
    return seen


def assert_same(directory, expected):
    """Compare bit for bit with what one image's layers returned, `(1, ...)` or all its samples."""
    arrays, layers, _ = read(directory)
    assert list(layers) == list(expected)
    for name, values in expected.items():
        own = values[0] if values.ndim and len(values) == 1 else values
        own = own.dequantize() if own.is_quantized else own
        wanted = own.float().numpy()
        assert arrays[name].shape == wanted.shape, name
        assert arrays[name].tobytes() == wanted.tobytes(), name
        assert layers[name]["dtype"] == str(values.dtype).removeprefix("torch.")


class Makes(nn.Module):
    """Has parts that apply given functions to the input."""

    def __init__(self, **made):
        super().__init__()
        for name, make in made.items():
            self.add_module(name, Returns(make))

    def forward(self, x):
        for part in self.children():
            part(x)
        return x


def run_of(summary, path):
    return summary.directory / path.name


# --- bit for bit


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [overwritten, Calls])
@pytest.mark.parametrize("workers", [1, 4])
def test_values_are_those_before_any_later_layer_changes_them(look, pictures, make, workers):
    torch.manual_seed(0)
    model = make()
    summary = look(model, pictures, workers=workers)
    assert summary.done == 5
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path)))


SHAPES = {
    "vector": lambda x: x.flatten(1)[:, :7],
    "pixel": lambda x: x[:, :, :1, :1],
    "tokens": lambda x: x.flatten(2).transpose(1, 2),
    "odd": lambda x: x.flatten(2),
    "six": lambda x: x[:, :, None, None],
    "clip": lambda x: x.unsqueeze(2).repeat(1, 1, 2, 1, 1),
    "strided": lambda x: x.permute(0, 2, 3, 1)[:, ::2, ::3],
    "last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:, :, :1, :1].expand(-1, -1, 4, 5),
    "mask": lambda x: x > 0,
    "whole": lambda x: (x * 100).long(),
    "bytes": lambda x: (x > 0).byte(),
    "twice as long": lambda x: x.double() / 3,
    "half as long": lambda x: x.half(),
    "brain": lambda x: x.bfloat16(),
    "none": lambda x: x[:, :0],
    "spoilt": lambda x: torch.stack([x[:, 0] / 0, x[:, 0] * torch.nan, -x[:, 0].abs() / 0, x[:, 0] * -0.0], 1),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8),
    "pair": lambda x: Pair(x, x[:, :, ::2]),
    "nested": lambda x: {"out": [x, (x + 1, None, 3)], "aux": {"a": x.mean((2, 3))}},
    "samples": lambda x: torch.cat([x, x * 2, x * 3]),
    "windows": lambda x: x.unfold(2, 3, 3).flatten(0, 1),
}


@pytest.mark.filterwarnings("ignore:.*quantize.*")
@pytest.mark.parametrize("batch_size", [1, 4])
def test_outputs_of_any_structure_are_stored(look, pictures, batch_size):
    model = Makes(**SHAPES)
    summary = look(model, pictures, batch_size=batch_size)
    assert (summary.done, summary.undrawn, summary.not_executed) == (5, {}, ())
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path)))


@pytest.mark.parametrize("make", [lambda x: x.mean(), lambda x: x.mean((1, 2, 3))], ids=["of the batch", "of the image"])
def test_single_numbers_are_stored(look, pictures, make):
    model = Makes(number=make, maps=lambda x: x)
    summary = look(model, pictures, batch_size=1)
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path)))


def test_complex_numbers_are_pairs(look, pictures):
    model = Makes(waves=torch.fft.rfft2)
    summary = look(model, pictures[:1])
    arrays, layers, _ = read(run_of(summary, pictures[0]))
    expected = torch.view_as_real(outputs(model, prepared(pictures[0]))["waves"])[0]
    assert arrays["waves"].tobytes() == expected.contiguous().numpy().tobytes()
    assert (layers["waves"]["dtype"], layers["waves"]["shape"]) == ("complex64", list(expected.shape))


@pytest.mark.parametrize("make", [lambda x: x.to_sparse(), lambda x: torch.nested.nested_tensor([x[0], x[0, :, 1:]])])
@pytest.mark.filterwarnings("ignore:.*nested.*", "ignore:.*[Ss]parse.*")
def test_values_that_are_no_arrays_are_left_out(look, pictures, make):
    model = Makes(strange=make, maps=lambda x: x)
    summary = look(model, pictures)
    assert summary.done == 5
    assert "strange" in summary.undrawn
    assert list(read(run_of(summary, pictures[0]))[0]) == ["maps"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_networks_of_other_types_are_computed_in_them(look, pictures, dtype):
    model = overwritten().to(dtype)
    summary = look(model, pictures)
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path, dtype)))
    told = read(run_of(summary, pictures[0]))[1]
    assert {each["dtype"] for each in told.values()} == {str(dtype).removeprefix("torch.")}


def test_all_samples_of_an_image_are_stored(look, pictures):
    torch.manual_seed(0)
    model = Regions(3)
    summary = look(model, pictures, batch_size=4)
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_batches_are_split_by_image(look, pictures, batch_size):
    """Nothing here rounds: the same must come of every batch."""
    made = {name: SHAPES[name] for name in ("vector", "tokens", "odd", "six", "mask", "pair", "clip")}
    model = Makes(**made)
    summary = look(model, pictures, batch_size=batch_size, workers=1)
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path)))


def test_a_network_that_mixes_images_takes_one_at_a_time_by_default(look, pictures):
    model = Makes(mixed=lambda x: x.flatten(1).mean(1) - x.mean(), maps=lambda x: x)
    inputs = [*pictures, *(paint(path.with_name(f"more{path.name}"), seed + 9) for seed, path in enumerate(pictures))]
    summary = look(model, inputs, workers=1)
    for path in inputs:
        assert read_raw(run_of(summary, path))[0]["mixed"].item() == 0


# --- float16


def test_values_are_stored_in_float16(look, pictures):
    model = Makes(maps=lambda x: x, whole=lambda x: (x * 100).long(), spoilt=SHAPES["spoilt"])
    summary = look(model, pictures, dtype="float16")
    for path in pictures:
        arrays, layers, _ = read(run_of(summary, path))
        for name, values in outputs(model, prepared(path)).items():
            assert arrays[name].dtype == np.float16
            assert arrays[name].tobytes() == values[0].half().numpy().tobytes()
        assert layers["whole"]["dtype"] == "int64"


def test_values_beyond_float16_are_reported(look, pictures):
    events = []
    look(Makes(large=lambda x: x * 1e6), pictures, dtype="float16", on_event=events.append)
    told = [event.message for event in events if isinstance(event, Notice)]
    told += [notice for event in events if isinstance(event, Outcome) for notice in event.notices]
    assert any("float16" in message for message in told)


def test_values_within_float16_are_not_reported(look, pictures):
    events = []
    look(Makes(small=lambda x: x * 1e4, bad=lambda x: x / 0), pictures, dtype="float16", on_event=events.append)
    assert not [event for event in events if isinstance(event, Notice) and "float16" in event.message]
    assert not [event for event in events if isinstance(event, Outcome) and any("float16" in each for each in event.notices)]


def test_a_map_beyond_float16_is_stored_as_infinite(look, pictures):
    summary = look(Makes(large=lambda x: x.abs() * 1e6), pictures[:1], dtype="float16", views="mean")
    assert np.isinf(read(run_of(summary, pictures[0]))[0]["mean/large"]).any()


# --- views


class Pools(nn.Module):
    """A small classifier, the last of whose activations works in place."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.last(self.relu(self.first(x)))).mean((2, 3))


def by_autograd(model, path, score):
    """Inputs, outputs and gradients of the two convolutions, by name."""
    x = prepared(path).requires_grad_()
    first = model.first(x)
    relu = first.relu()
    last = model.last(relu)
    scores = last.relu().mean((2, 3))
    score = scores.max() if score == "top1" else scores[0, score]
    gradients = torch.autograd.grad(score, [first, last, x, relu])
    return {"first": first, "last": last, "inputs/first": x, "inputs/last": relu}, dict(
        zip(["grads/first", "grads/last", "grad-inputs/first", "grad-inputs/last"], gradients, strict=True)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_inputs_and_gradients_are_included(look, pictures, batch_size):
    model = Pools().eval()
    views = ["maps", "inputs", "grads", "grad-inputs"]
    summary = look(model, pictures, types=["Conv2d"], views=views, targets=["top1", 2], batch_size=batch_size)
    for path in pictures:
        arrays, layers, _ = read(run_of(summary, path))
        seen, _ = by_autograd(model, path, 2)
        gradients = {
            f"{name}.{label}": values
            for label, score in (("top1", "top1"), ("class2", 2))
            for name, values in by_autograd(model, path, score)[1].items()
        }
        assert set(arrays) == set(seen) | set(gradients)
        for name, values in (seen | gradients).items():
            np.testing.assert_allclose(arrays[name], values[0].detach().numpy(), rtol=1e-5, atol=1e-6)
        assert {layers[name]["of"] for name in arrays} == {"output", "input", "gradient", "input gradient"}
        assert {layers[name]["class"] for name in arrays if name.endswith("class2")} == {2}


def test_gradients_alone_are_stored_without_outputs(look, pictures):
    summary = look(Pools(), pictures[:1], types=["Conv2d"], views="grads")
    assert set(read(run_of(summary, pictures[0]))[0]) == {"grads/first.top1", "grads/last.top1"}


def test_heat_maps_are_stored_signed_at_the_layers_resolution(look, pictures):
    model = Pools().eval()
    summary = look(model, pictures, types=["Conv2d"], layers="last", views="mean", batch_size=1)
    for path in pictures:
        arrays, _, _ = read(run_of(summary, path))
        last = outputs(model, prepared(path))["last"]
        np.testing.assert_allclose(arrays["mean/last"], last.mean(1)[0].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_all_channels_are_stored_regardless_of_channels(look, pictures):
    model = overwritten()
    summary = look(model, pictures, style=Style(channels="top:2"), to=["raw", "npz", "png"])
    assert summary.pictures == 5 * 5
    for path in pictures:
        assert_same(run_of(summary, path), outputs(model, prepared(path)))
        assert (run_of(summary, path) / "00_0.maps.png").exists()


# --- names and notices


HOSTILE = ["__metadata__", "file", "a/b", "größe 层", 'quo"te\n', "dtype", "x" * 300, "con", "%2e", "~", "maps#2", " "]


def test_hostile_names_are_kept(look, pictures):
    model = Makes(**dict.fromkeys(HOSTILE, lambda x: x * 2))
    summary = look(model, pictures[:2])
    arrays, layers, _ = read(run_of(summary, pictures[0]))
    expected = (prepared(pictures[0]) * 2)[0].numpy()
    assert [each["layer"] for each in layers.values()] == HOSTILE
    assert set(arrays) == {name.replace("__metadata__", "__metadata__~") for name in HOSTILE}
    assert all(values.tobytes() == expected.tobytes() for values in arrays.values())


def test_two_feature_maps_of_one_name_have_different_names(look, pictures):
    class Twice(Calls):
        def __init__(self):
            super().__init__()
            self.add_module("conv#2", nn.Conv2d(3, 3, 1))

        def forward(self, x):
            return self.get_submodule("conv#2")(super().forward(x))

    torch.manual_seed(0)
    model = Twice()
    summary = look(model, pictures[:1], types=["Conv2d"])
    arrays, layers, _ = read(run_of(summary, pictures[0]))
    assert list(layers) == ["conv", "conv#2", "conv#2~"]
    assert len({values.tobytes() for values in arrays.values()}) == 3


def test_a_name_that_is_no_unicode_is_kept(look, pictures):
    assert look(as_model(Makes(**{"bad\udcff": lambda x: x})), pictures[:1]).exit_code == 0


def test_a_layer_whose_name_ends_like_a_file_is_stored(look, pictures):
    """`np.load` takes `x.npy` for the file of `x`."""
    model = Makes(x=lambda x: x * 2)
    model.x.add_module("npy", nn.Identity())
    model.x.make = lambda x: model.x.npy(x) * 2
    summary = look(model, pictures[:1], workers=1)
    arrays, layers, _ = read(run_of(summary, pictures[0]))
    expected = outputs(model, prepared(pictures[0]))
    assert [record["layer"] for record in layers.values()] == ["x.npy", "x"]
    for key, record in layers.items():
        assert arrays[key].tobytes() == expected[record["layer"]][0].numpy().tobytes()


def test_the_origin_of_values_is_recorded(look, pictures):
    summary = look(overwritten(), pictures[:1])
    _, layers, told = read(run_of(summary, pictures[0]))
    assert (told["model"], told["weights"], told["image"]) == ("sequential", "weights as given", "0.png")
    assert "size kept" in told["preparation"]
    assert json.loads(told["versions"])["torch"] == torch.__version__
    record = {
        "key": "2",
        "layer": "2",
        "of": "output",
        "index": 2,
        "type": "Conv2d",
        "dtype": "float32",
        "shape": [5, 12, 16],
    }
    assert layers["2"] == record


# --- files


def bytes_of(summary):
    return {(path.parent.name, path.name): path.read_bytes() for path in summary.directory.rglob("raw.*")}


def test_a_name_that_is_too_long_for_an_archive_is_cut(look, pictures):
    model = nn.Sequential()
    for ending in "ab":
        setattr(model, "\u00e9" * 40_000 + ending, nn.Conv2d(3, 3, 1))
    directory = look(model, pictures[:1], types=["Conv2d"]).directory / "0.png"
    (arrays, told), (others, _) = read_raw(directory), read_npz(directory)
    assert list(arrays) == list(others)
    assert len({*arrays}) == 2
    assert [record["layer"] for record in json.loads(told["layers"])] == ["\u00e9" * 40_000 + ending for ending in "ab"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["raw", "npz"])
def test_two_runs_write_the_same_bytes(look, pictures, form):
    one = bytes_of(look(overwritten(), pictures, name="one", to=form))
    other = bytes_of(look(overwritten(), pictures[::-1], name="other", to=form, workers=1))
    assert len(one) == 5
    assert one == other


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["raw.safetensors", "raw.npz"])
def test_a_flipped_byte_is_found_and_repaired_by_force(look, pictures, tmp_path, name):
    summary = look(overwritten(), pictures[:2])
    assert problems(tmp_path / "out") == []
    path = run_of(summary, pictures[0]) / name
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert [problem.path for place in verify(tmp_path / "out") for problem in place.problems] == [path]
    look(overwritten(), pictures[:2], force=True)
    assert problems(tmp_path / "out") == []


def test_values_alone_leave_no_picture(look, pictures):
    summary = look(overwritten(), pictures[:1])
    assert summary.pictures == 0
    assert sorted(path.name for path in run_of(summary, pictures[0]).iterdir()) == [
        "raw.npz",
        "raw.safetensors",
        "unit.json",
    ]


@pytest.mark.thorough
def test_values_are_freed_when_they_are_written(look, tmp_path):
    """However many images there are, no more of them are in memory than are in work."""
    inputs = [paint(tmp_path / f"{seed}.png", seed) for seed in range(12)]
    alive = []

    def kept():
        return sum(type(each) is RawValues for each in gc.get_objects())

    gc.collect()  # what other tests have left
    before = kept()

    def count(event):
        if isinstance(event, Outcome) and event.path.endswith(("4.png", "7.png", "11.png")):
            alive.append(kept() - before)

    look(overwritten(), inputs, on_event=count, workers=1, batch_size=1)
    assert len(alive) == 3
    assert max(alive) <= 4 * 4  # four layers of four of the twelve images
    gc.collect()
    assert kept() == before
