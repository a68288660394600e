"""Views of attention in whole runs, against weights that hooks read from explicit attention."""

from __future__ import annotations

import csv
import json

import extras
import numpy as np
import pytest
import torch
from image_files import prepared, save_pixels
from PIL import Image
from safetensors.numpy import load_file
from tiny_runs import AS_IT_IS
from torch import nn
from torch.nn import functional
from trees import difference, snapshot

from fmapviz import Style, visualize
from fmapviz.errors import RequestError
from fmapviz.features.attention.rollout import flow, flow_of_class

SIZE = (64, 96)  # 4 x 6 patches of 16 pixels


def network(**options):
    torch.manual_seed(3)
    settings = {
        "img_size": SIZE,
        "embed_dim": 48,
        "depth": 3,
        "num_heads": 4,
        "num_classes": 5,
        "weight_init": "",
        **options,
    }
    net = extras.timm.models.vision_transformer.VisionTransformer(**settings)
    for value in net.parameters():  # far from uniform attention
        nn.init.normal_(value, std=0.2)
    return net.eval()


def draw(net, inputs, out, **options):
    options = {
        "views": ["attention", "rollout"],
        "to": ["raw"],
        "preprocessing": AS_IT_IS,
        **options,
    }
    return visualize(net, inputs, out=out, **options)


def raw_of(summary, name="a.png"):
    return load_file(summary.directory / name / "raw.safetensors")


def explicit(net, x, target=None):
    """Return the weights of each block, and the gradients of a class's logit, read by hooks on timm's own softmax."""
    for block in net.blocks:
        block.attn.fused_attn = False
    weights = []
    hooks = [
        block.attn.attn_drop.register_forward_pre_hook(lambda _module, args: weights.append(args[0])) for block in net.blocks
    ]
    logits = net(x)
    for each in weights:
        each.retain_grad()
    logits[:, logits[0].argmax() if target is None else target].sum().backward()
    for hook in hooks:
        hook.remove()
    for block in net.blocks:
        block.attn.fused_attn = True
    net.zero_grad()
    return [each.detach() for each in weights], [each.grad for each in weights]


def multiplied(weights):
    """Attention rollout as the paper has it: a product of matrices."""
    product = torch.eye(weights[0].shape[-1])
    for block in weights:
        matrix = block[0].mean(0) + torch.eye(len(product))
        matrix = matrix / matrix.sum(-1, keepdim=True)
        product = matrix @ product
    return product


def weighted(weights, gradients):
    """Chefer's rule for self-attention: R <- R + mean_h((G * A)+) R."""
    relevance = torch.eye(weights[0].shape[-1])
    for block, gradient in zip(weights, gradients, strict=True):
        relevance = relevance + (block[0] * gradient[0]).clamp(min=0).mean(0) @ relevance
    return relevance - torch.eye(len(relevance))


@pytest.fixture
def folder(tmp_path):
    """Return a folder of pictures as large as the network's input."""
    random = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for name in "abcde":
        save_pixels(tmp_path / "in" / f"{name}.png", random.integers(0, 256, (*SIZE, 3), np.uint8))
    return tmp_path / "in"


@pytest.fixture
def image(folder):
    return folder / "a.png"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("query", "rows"), [(None, slice(0, 1)), ("mean", slice(1, None)), ("20,95", slice(1 + 1 * 6 + 5, 1 + 1 * 6 + 6))]
)
def test_attention_and_rollout_follow_from_the_weights(image, tmp_path, query, rows):
    net = network()
    weights, _ = explicit(net, prepared(image))
    raw = raw_of(draw(net, image, tmp_path, style=Style(query=query)))
    assert sorted(raw) == ["attention/blocks.0.attn", "attention/blocks.1.attn", "attention/blocks.2.attn", "rollout/input"]
    for number, block in enumerate(weights):
        expected = block[0, :, rows, 1:].mean(1).view(4, 4, 6)
        assert np.abs(raw[f"attention/blocks.{number}.attn"] - expected.numpy()).max() < 1e-5
    product = multiplied(weights)
    assert np.abs(raw["rollout/input"] - product[rows, 1:].mean(0).view(4, 6).numpy()).max() < 1e-6
    # Mistakes that published tools make: the other order, without the residual connection, columns for rows.
    for mistaken in (weights[::-1], [2 * block for block in weights], [block.mT for block in weights]):
        assert np.abs(raw["rollout/input"] - multiplied(mistaken)[rows, 1:].mean(0).view(4, 6).numpy()).max() > 1e-5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("explicitly", [False, True])
@pytest.mark.parametrize("query", [None, "0,0"])
def test_rollout_of_a_class_is_weighted_by_its_gradients(image, tmp_path, query, explicitly):
    net = network()
    weights, gradients = explicit(net, prepared(image), target=2)
    for block in net.blocks:
        block.attn.fused_attn = not explicitly
    raw = raw_of(draw(net, image, tmp_path, views="rollout", targets=[2, 4], style=Style(query=query)))
    assert sorted(raw) == ["rollout/input.class2", "rollout/input.class4"]
    expected = weighted(weights, gradients)[0 if query is None else 1, 1:].view(4, 6).numpy()
    assert np.abs(raw["rollout/input.class2"] - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(raw["rollout/input.class4"] - expected).max() > 1e-2 * np.abs(expected).max()
    assert all(value.grad is None or not value.grad.any() for value in net.parameters())


def test_uniform_attention_has_a_uniform_rollout(image, tmp_path):
    net = network(class_token=False, global_pool="avg")
    for block in net.blocks:
        nn.init.zeros_(block.attn.qkv.weight)
        nn.init.zeros_(block.attn.qkv.bias)
    raw = raw_of(draw(net, image, tmp_path))
    assert np.allclose(raw["rollout/input"], 1 / 24, atol=1e-7)
    assert np.allclose(raw["attention/blocks.0.attn"], 1 / 24, atol=1e-7)


def test_formulas_of_rollout_hold_on_small_matrices():
    blocks = torch.rand(3, 1, 1, 5, 5).softmax(-1)
    query = torch.eye(5)[None, 1:2]
    assert torch.allclose(flow(query, [block[0] for block in blocks.flip(0)])[0, 0], multiplied(blocks)[1], atol=1e-6)
    heads, gradients = torch.rand(3, 1, 2, 5, 5), torch.randn(3, 1, 2, 5, 5)
    found = flow_of_class(query, list(zip(heads, gradients, strict=True))[::-1])
    assert torch.allclose(found[0, 0], weighted(heads, gradients)[1], atol=1e-6)


@pytest.mark.thorough
def test_batches_workers_and_repetitions_change_nothing(folder, tmp_path):
    net = network()
    runs = {
        "one": {"batch_size": 1, "workers": 1},
        "batch": {"batch_size": 5, "workers": 1},
        "workers": {"batch_size": 2, "workers": 3},
    }
    arrays = []
    for name, options in runs.items():
        summary = draw(net, folder, tmp_path / name, **options)
        units = sorted(path.parent.name for path in summary.directory.rglob("raw.safetensors"))
        arrays.append({unit: raw_of(summary, unit) for unit in units})
    for other in arrays[1:]:
        for unit, raw in arrays[0].items():
            for key, values in raw.items():
                assert np.abs(values - other[unit][key]).max() < 1e-5
    pictures = draw(net, folder, tmp_path / "again", to=["png"], batch_size=1, workers=1)
    repeated = draw(net, folder, tmp_path / "repeated", to=["png"], batch_size=1, workers=2)
    assert difference(snapshot(pictures.directory), snapshot(repeated.directory)) == []


@pytest.mark.thorough
def test_heads_are_channels_with_statistics_and_a_range(image, tmp_path):
    net = network()
    summary = draw(net, image, tmp_path, views="attention", to=["stats", "png", "html", "raw"])
    raw = raw_of(summary)
    with (summary.directory / "stats.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == "blocks.1.attn"]
    assert [row["of"] for row in rows] == ["attention"] * 4
    assert [float(row["max"]) for row in rows] == pytest.approx(raw["attention/blocks.1.attn"].max((1, 2)).tolist())
    shown = Image.open(summary.directory / "a.png" / "01_blocks.1.attn.attention.png").text
    assert shown["Attention of"] == "the class token"
    assert shown["Shape"] == "4 x 4 x 6"
    record = json.loads((summary.directory / "a.png" / "unit.json").read_bytes())
    assert [layer["of"] for layer in record["layers"]] == ["attention"] * 3
    one = draw(net, image, tmp_path, views="attention", to=["png"], style=Style(norm="run"))
    low, high = raw["attention/blocks.1.attn"].min(), raw["attention/blocks.1.attn"].max()
    shown = Image.open(one.directory / "a.png" / "01_blocks.1.attn.attention.png").text
    assert shown["Scaling"].startswith(f"{low:.4g} to {high:.4g}, the range of all images of the run")


@pytest.mark.thorough
def test_rollout_is_drawn_in_patches_or_smoothly(image, tmp_path):
    net = network()
    plain = draw(net, image, tmp_path / "plain", to=["png"], style=Style(alpha=1))
    smooth = draw(net, image, tmp_path / "smooth", to=["png"], style=Style(alpha=1, smooth=True))
    path = "a.png/00_input.rollout.png"
    sharp, soft = (np.asarray(Image.open(summary.directory / path)) for summary in (plain, smooth))
    tiles = sharp.reshape(4, 16, 6, 16, 3)
    assert (tiles == tiles[:, :1, :, :1]).all()
    assert len(np.unique(soft.reshape(-1, 3), axis=0)) > 24
    assert Image.open(plain.directory / path).text["Attention of"] == "the class token"


@pytest.mark.thorough
def test_only_chosen_layers_are_drawn(image, tmp_path):
    net = network()
    raw = raw_of(draw(net, image, tmp_path, views="attention", layers=["blocks.[01]"], exclude="blocks.0"))
    assert sorted(raw) == ["attention/blocks.1.attn"]
    raw = raw_of(draw(net, image, tmp_path, views="attention", types="Block", exclude="blocks.0.attn"))
    assert sorted(raw) == ["attention/blocks.1.attn", "attention/blocks.2.attn"]
    with pytest.raises(RequestError, match="none of the chosen layers computes attention") as caught:
        draw(net, image, tmp_path, views="attention", layers="head")
    assert "blocks.0.attn" in caught.value.hint


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("targets", [(), (2, 4)])
@pytest.mark.parametrize(("layers", "chosen"), [("blocks.2*", [2]), ("blocks.[12]*", [1, 2]), ("*", [0, 1, 2])])
def test_rollout_through_chosen_layers_names_them(image, tmp_path, layers, chosen, targets):
    net = network()
    weights, gradients = explicit(net, prepared(image), target=4)
    summary = draw(net, image, tmp_path, views="rollout", layers=layers, targets=targets, to=["raw", "png"])
    own = [weights[number] for number in chosen]
    expected = weighted(own, [gradients[number] for number in chosen]) if targets else multiplied(own)
    values = raw_of(summary)["rollout/input" + (".class4" if targets else "")]
    assert np.abs(values - expected[0, 1:].view(4, 6).numpy()).max() < 1e-5 * float(expected[0, 1:].abs().max()) + 1e-7
    part = f"{len(chosen)} of 3 blocks"
    said = [notice for notice in summary.notices if notice == f"rollout goes through the chosen layers only, {part}"]
    assert bool(said) == (len(chosen) < 3)
    for path in summary.directory.rglob("*rollout.png"):
        assert Image.open(path).text["Attention of"].endswith(f", through {part}") == (len(chosen) < 3)


def test_maps_and_attention_are_sorted_by_execution(image, tmp_path):
    summary = draw(network(), image, tmp_path, views="maps,attention", to="png", types="Attention")
    names = sorted(path.name for path in (summary.directory / "a.png").glob("*.png"))
    assert names == [
        "00_blocks.0.attn.attention.png", "00_blocks.0.attn.maps.png", "01_blocks.1.attn.attention.png",
        "01_blocks.1.attn.maps.png", "02_blocks.2.attn.attention.png", "02_blocks.2.attn.maps.png", "input.png",
    ]  # fmt: skip


def test_a_network_without_attention_names_other_views(samples, tmp_path):
    with pytest.raises(RequestError, match="no attention is computed in shapesnet") as caught:
        visualize("shapesnet", samples / "shapes" / "star.jpg", out=tmp_path, views="attention", to="png")
    assert "maps" in caught.value.hint


@pytest.mark.sampled(1)
@pytest.mark.parametrize("query", ["64,0", "0,96", "1000,1000"])
def test_a_query_outside_of_the_picture_is_refused(image, tmp_path, query):
    with pytest.raises(RequestError, match="is outside the picture"):
        draw(network(), image, tmp_path, style=Style(query=query))


@pytest.mark.parametrize("query", ["", "1", "-1,2", "a,b", "1,2,3", "center"])
def test_a_query_of_another_form_is_refused(query):
    with pytest.raises(RequestError, match="no such position"):
        Style(query=query)


class TwoKinds(nn.Module):
    """Its second attention has more tokens than its first."""

    def forward(self, x):
        tokens = functional.avg_pool2d(x, 16).flatten(2).mT[:, None]
        functional.scaled_dot_product_attention(tokens, tokens, tokens)
        finer = functional.avg_pool2d(x, 8).flatten(2).mT[:, None]
        return functional.scaled_dot_product_attention(finer, finer, finer)


def test_rollout_through_blocks_of_different_tokens_is_refused_with_the_reason(image, tmp_path):
    summary = draw(TwoKinds(), image, tmp_path, to=["png"])
    (reason,) = [
        text for view, text in json.loads((summary.directory / "a.png" / "unit.json").read_bytes())["undrawn"].items()
    ]
    assert reason.startswith("the tokens are not the same in all blocks")


def test_a_hint_names_no_other_layers_where_they_would_not_help(image, tmp_path):
    summary = draw(TwoKinds(), image, tmp_path, views="rollout", to=["png"])
    (failure,) = summary.failures
    assert failure.message.startswith("nothing could be drawn: 'rollout': the tokens are not the same in all blocks")
    assert failure.hint is None


def test_a_class_without_a_gradient_is_reported(image, tmp_path):
    net = network()
    nn.init.zeros_(net.head.weight)
    summary = draw(net, image, tmp_path, views="rollout", targets=2, to=["png"])
    (notice,) = json.loads((summary.directory / "a.png" / "unit.json").read_bytes())["notices"]
    assert notice.startswith("rollout for class 2 is zero everywhere: so is the gradient of the class score")
