"""The channels of `top:K` are those that NumPy would choose, for each image."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
import torch
from cases import often
from image_files import paint, prepared
from PIL import Image
from tiny_models import Returns, overwritten
from tiny_runs import AS_IT_IS
from torch import nn
from torchvision.utils import make_grid

from fmapviz.config import Style
from fmapviz.run.loop import visualize

NAN, INF = torch.nan, torch.inf
RANKS = {"max": np.max, "mean": np.mean, "std": np.std}


@pytest.fixture
def pictures(tmp_path):
    return [paint(tmp_path / f"pictures/{seed}.png", seed) for seed in range(6)]


@pytest.fixture
def look(tmp_path):
    """Run over pictures with what all these tests have in common."""

    def run(model, inputs, channels, **options):
        style = Style(channels=channels, labels=False)
        common = {"out": tmp_path / "out", "preprocessing": AS_IT_IS, "to": "png", "workers": 2, "types": ["Module"]}
        return visualize(model, inputs, **{**common, "style": style, **options})

    return run


class Shows(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.maps = Returns(make)

    def forward(self, x):
        return self.maps(x)


def outputs(model, path):
    """What each layer returns for one image, `(C, ...)` in float64, taken by plain hooks."""
    seen, hooks = {}, []
    for name, module in model.named_modules():
        if name:
            hooks.append(module.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out[0].clone()})))
    with torch.no_grad():
        model(prepared(path))
    for hook in hooks:
        hook.remove()
    return {name: values.double().numpy() for name, values in seen.items()}


def ranked(maps, rank):
    """Rank by the finite values: the largest first, of equals the lower number, at the end what has none."""

    def place(number):
        finite = maps[number][np.isfinite(maps[number])]
        return (0, -RANKS[rank](finite), number) if finite.size else (1, 0.0, number)

    return sorted(range(len(maps)), key=place)


def shown(directory):
    """Return the description of the shown channels: by layer in the record, and in each picture's text."""
    layers = json.loads((directory / "unit.json").read_bytes())["layers"]
    texts = {}
    for each in layers:
        with Image.open(directory / f"{each['index']:02d}_{each['name']}.maps.png") as picture:
            texts[each["name"]] = [int(number) for number in picture.text["Channels"].split(", ")]
    assert texts == {each["name"]: each["channels"] for each in layers}
    return texts


def tiles(directory, name):
    with Image.open(directory / name) as picture:
        return np.asarray(picture)


def drawn(maps, numbers):
    """What make_grid makes of these channels."""
    chosen = torch.from_numpy(maps[numbers]).float()
    grid = make_grid(chosen[:, None], normalize=True, scale_each=True, nrow=int(len(numbers) ** 0.5), padding=2)
    return grid[0].mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8).numpy()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_image_shows_its_own_strongest_channels(look, pictures, rank, batch_size):
    torch.manual_seed(0)
    model = overwritten()
    summary = look(model, pictures, f"top:3:{rank}", batch_size=batch_size)
    chosen = set()
    for path in pictures:
        seen = outputs(model, path)
        numbers = shown(summary.directory / path.name)
        assert numbers == {name: ranked(maps, rank)[:3] for name, maps in seen.items()}
        assert np.array_equal(tiles(summary.directory / path.name, "00_0.maps.png"), drawn(seen["0"], numbers["0"]))
        chosen.add(tuple(numbers["0"]))
    assert len(chosen) > 1


@pytest.mark.thorough
def test_channels_are_ranked_by_the_maximum_by_default(look, pictures):
    model = Shows(lambda x: torch.cat([x, x * 2, -x], 1))
    one = look(model, pictures[:1], "top:5", name="one")
    other = look(model, pictures[:1], "top:5:max", name="other")
    expected = {"maps": ranked(outputs(model, pictures[0])["maps"], "max")[:5]}
    assert shown(one.directory / "0.png") == shown(other.directory / "0.png") == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", RANKS)
def test_a_rank_beyond_the_number_of_channels_draws_all(look, pictures, rank):
    model = Shows(lambda x: torch.cat([x, x.abs(), x * 3 - 1], 1))
    summary = look(model, pictures[:2], f"top:100:{rank}")
    for path in pictures[:2]:
        assert shown(summary.directory / path.name) == {"maps": ranked(outputs(model, path)["maps"], rank)}


@pytest.mark.parametrize(("rank", "batch_size"), often([("max", 1), ("std", 3)], of=product(RANKS, [1, 3])))
def test_equal_channels_are_ranked_by_number(look, pictures, rank, batch_size):
    def make(x):
        flat = torch.full_like(x[:, :1], 0.1)
        return torch.cat([flat, x[:, 1:2], flat, x[:, :1], x[:, 1:2], x[:, :1], flat], 1)

    model = Shows(make)
    summary = look(model, pictures, f"top:7:{rank}", batch_size=batch_size)
    for path in pictures:
        expected = ranked(outputs(model, path)["maps"], rank)
        assert expected.index(1) + 1 == expected.index(4)
        assert shown(summary.directory / path.name) == {"maps": expected}


def spoil(x):
    maps = torch.cat([x] * 3, 1) * torch.arange(1, 10)[:, None, None]
    maps[:, 0] = NAN
    maps[:, 2, 3, 4] = INF
    maps[:, 4, 1:] = NAN
    maps[:, 5] = torch.tensor([INF, -INF]).repeat(x.shape[-1] // 2)
    maps[:, 7] = -5
    maps[:, 7, 0, 0] = -INF
    maps[:, 8] = -1e30
    return maps


@pytest.mark.parametrize(("rank", "batch_size"), often([("mean", 1), ("std", 4)], of=product(RANKS, [1, 4])))
def test_values_that_are_not_finite_do_not_count_in_ranks(look, pictures, rank, batch_size):
    model = Shows(spoil)
    summary = look(model, pictures, f"top:9:{rank}", batch_size=batch_size)
    for path in pictures:
        numbers = shown(summary.directory / path.name)["maps"]
        assert numbers == ranked(outputs(model, path)["maps"], rank)
        assert numbers[-2:] == [0, 5]


def test_deviations_are_ranked_for_different_numbers_of_finite_values(look, pictures):
    """Not the sum of squares ranks but its mean."""

    def make(x):
        wide, narrow = x[:, :1].clone(), x[:, :1] * 0.9
        wide[:, :, 1:] = NAN
        wide[:, :, 0] = torch.tensor([-3.0, 3.0]).repeat(x.shape[-1] // 2)
        return torch.cat([narrow, wide], 1)

    summary = look(Shows(make), pictures[:1], "top:2:std")
    assert shown(summary.directory / "0.png") == {"maps": [1, 0]}


def test_halves_are_ranked_without_overflow(look, pictures):
    def make(x):
        return torch.cat([x[:, :1] * 1000 + number * 10000 for number in (1, 5, 3)], 1).half()

    for rank in ("max", "mean"):
        summary = look(Shows(make), pictures[:1], f"top:3:{rank}", name=rank)
        assert shown(summary.directory / "0.png") == {"maps": [1, 2, 0]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rank", "factor"),
    [("mean", 1e20), ("std", 1e15), ("std", 1e22), ("std", 1e-26)],
)
def test_very_large_and_very_small_values_are_ranked_like_others(look, pictures, rank, factor):
    model = Shows(lambda x: torch.cat([x[:, :1] * weight for weight in (0.5, 2, 1)], 1) * factor)
    summary = look(model, pictures[:1], f"top:3:{rank}")
    assert shown(summary.directory / "0.png") == {"maps": ranked(outputs(model, pictures[0])["maps"], rank)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", RANKS)
def test_numbers_of_a_ranked_vector_are_drawn(look, pictures, rank):
    model = Shows(lambda x: x.flatten(1)[:, :9])
    summary = look(model, pictures, f"top:4:{rank}", batch_size=3)
    for path in pictures:
        assert shown(summary.directory / path.name) == {"maps": ranked(outputs(model, path)["maps"][:, None], rank)[:4]}


def test_gradients_are_ranked_by_themselves(look, pictures):
    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first, self.last = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)

        def forward(self, x):
            return self.last(self.first(x).relu()).mean((2, 3))

    model = Pools().eval()
    summary = look(model, pictures, "top:3:mean", types=["Conv2d"], layers="first", views="grads", targets=2, batch_size=2)
    for path in pictures:
        first = model.first(prepared(path))
        (gradient,) = torch.autograd.grad(model.last(first.relu()).mean((2, 3))[0, 2], first)
        (layer,) = json.loads((summary.directory / path.name / "unit.json").read_bytes())["layers"]
        assert layer["channels"] == ranked(gradient[0].double().numpy(), "mean")[:3]


@pytest.mark.thorough
def test_channel_numbers_are_drawn_by_default(look, pictures):
    model = overwritten()
    bare = look(model, pictures[:1], "top:4", name="bare").directory / "0.png/00_0.maps.png"
    plain = look(model, pictures[:1], "top:4", name="plain", style=Style(channels="top:4")).directory / "0.png/00_0.maps.png"
    with Image.open(bare) as one, Image.open(plain) as other:
        assert one.text["Channels"] == other.text["Channels"]
        assert np.asarray(one).tobytes() != np.asarray(other).tobytes()
