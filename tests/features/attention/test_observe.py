"""Attention weights against PyTorch, timm and a plain loop: equal up to rounding, with unchanged outputs."""

import extras
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

import fmapviz
from fmapviz.errors import LayerKeyError
from fmapviz.features.attention.capture.observe import AttentionMode
from fmapviz.observe.hooks import observe


def observed(network, *inputs):
    """Return every attention of a forward pass, and the output with and without hooks."""
    found = []
    observer = AttentionMode(found.append)
    network.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        with observe(network, [], bool):  # without the fused paths of PyTorch's own transformer modules, as any run
            plain = network(*inputs)
        with observe(network, [], bool), observer.attached(network), observer.watching():
            watched = network(*inputs)
    return found, plain, watched


def whole(attention):
    return torch.stack(list(attention.weights.of_heads()), 1)


def small_vit():
    return torchvision.models.VisionTransformer(
        image_size=224, patch_size=32, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128
    )


NETWORKS = {
    "vit": small_vit,
    "swin_t": torchvision.models.swin_t,
    "swin_v2_t": torchvision.models.swin_v2_t,
    "maxvit_t": torchvision.models.maxvit_t,
    "timm vit": lambda: extras.timm.create_model("vit_tiny_patch16_224"),
    "timm beit": lambda: extras.timm.create_model("beit_base_patch16_224"),
    "timm cait": lambda: extras.timm.create_model("cait_xxs24_224"),
    "timm pvt": lambda: extras.timm.create_model("pvt_v2_b0"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_the_same_bit_by_bit_and_rows_sum_to_one(name):
    found, plain, watched = observed(NETWORKS[name](), torch.randn(2, 3, 224, 224))
    assert torch.equal(plain, watched)
    assert found
    for attention in found:
        weights = whole(attention)
        assert (weights.sum(-1) - 1).abs().max() < 1e-6
        assert (weights >= 0).all()
        last = weights.shape[2] - 1
        assert (attention.weights.row(last) - weights[:, :, last]).abs().max() < 1e-6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["vit", "timm vit", "timm beit"])
def test_weights_times_values_equal_the_fused_operation(name):
    found, *_ = observed(NETWORKS[name](), torch.randn(2, 3, 224, 224))
    assert len(found) == (3 if name == "vit" else 12)
    for attention in found:
        assert (whole(attention) @ attention.value - attention.output).abs().max() < 1e-5
        shifted = whole(attention).roll(1, -1) @ attention.value  # the check can fail
        assert (shifted - attention.output).abs().max() > 1e-3


@pytest.mark.sampled
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "padding", "bias", "cross"])
def test_captured_weights_equal_those_that_multi_head_attention_returns(kind, need_weights, batch_first):
    torch.manual_seed(1)
    attention = nn.MultiheadAttention(
        16, 4, batch_first=batch_first, add_bias_kv=kind == "bias", kdim=8 if kind == "cross" else None,
        vdim=8 if kind == "cross" else None,
    ).eval()  # fmt: skip
    query = torch.randn(3, 5, 16)
    other = torch.randn(3, 7, 8) if kind == "cross" else query
    options = {
        "causal": {"attn_mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True},
        "mask": {"attn_mask": torch.randn(12, 5, 5)},
        "padding": {"key_padding_mask": torch.tensor([[False] * 4 + [True]] * 3)},
    }.get(kind, {})
    given = (query, other, other) if batch_first else tuple(each.transpose(0, 1) for each in (query, other, other))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = attention

        def forward(self, *args):
            return self.inner(*args, need_weights=need_weights, **options)[0]

    expected = attention(*given, need_weights=True, average_attn_weights=False, **options)[1]
    (found,), plain, watched = observed(Net(), *given)
    assert torch.equal(plain, watched)
    assert whole(found).shape == expected.shape
    assert (whole(found) - expected).abs().max() < 1e-6
    if kind == "causal":
        assert (whole(found).triu(1) == 0).all()


def test_a_causal_mask_leaves_no_weight_above_the_diagonal():
    class Net(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    (found,), *_ = observed(Net(), torch.randn(2, 3, 9, 4))
    assert found.name == "Net"
    assert (whole(found).triu(1) == 0).all()
    assert (found.weights.row(4)[..., 5:] == 0).all()


def test_heads_may_share_keys_and_masks_may_be_boolean():
    class Net(nn.Module):
        def forward(self, query, key, mask):
            return functional.scaled_dot_product_attention(query, key, key, mask, scale=0.3, enable_gqa=True)

    query, key, mask = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 7, 4), torch.rand(2, 1, 5, 7) > 0.4
    mask[..., 0] = True
    (found,), *_ = observed(Net(), query, key, mask)
    scores = query @ key.repeat_interleave(3, 1).mT * 0.3
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    assert (whole(found) - expected).abs().max() < 1e-6
    assert (found.weights.row(3) - expected[:, :, 3]).abs().max() < 1e-6


@pytest.mark.thorough
def test_captured_weights_equal_those_of_timms_explicit_attention():
    network, x = extras.timm.create_model("vit_tiny_patch16_224"), torch.randn(2, 3, 224, 224)
    fused, *_ = observed(network, x)
    for block in network.blocks:
        block.attn.fused_attn = False
    explicit, *_ = observed(network, x)
    assert [each.name for each in fused] == [each.name for each in explicit] == [f"blocks.{n}.attn" for n in range(12)]
    for one, other in zip(fused, explicit, strict=True):
        assert one.value is not None
        assert other.value is None
        assert (whole(one) - whole(other)).abs().max() < 1e-5


def test_softmax_over_channels_or_logits_is_not_captured():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.Flatten(), nn.LazyLinear(5), nn.Softmax(-1))
    found, *_ = observed(net, torch.randn(1, 3, 8, 8))
    assert not found


def test_the_owner_is_the_innermost_module_that_is_not_a_softmax():
    class Own(nn.Module):
        num_heads = 2

        def __init__(self):
            super().__init__()
            self.softmax = nn.Softmax(-1)

        def forward(self, x):
            heads = x.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1)  # (N * heads, L, d)
            return self.softmax(heads @ heads.mT), self.softmax(heads @ heads.mT * 2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = Own()

        def forward(self, x):
            return self.own(x)[0]

    found, *_ = observed(Net(), torch.randn(3, 5, 8))
    assert [(each.name, each.call, tuple(each.weights.shape)) for each in found] == [
        ("own", 1, (3, 2, 5, 5)), ("own#2", 2, (3, 2, 5, 5)),
    ]  # fmt: skip


@pytest.mark.thorough
def test_an_exception_in_the_network_leaves_no_hook_and_no_mode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = extras.timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2)

        def forward(self, x):
            self.inner(x)
            raise ValueError("enough")

    network = Net().eval()
    with pytest.raises(ValueError, match="enough"), fmapviz.capture_attention(network):
        network(torch.randn(1, 3, 64, 64))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert functional.softmax(torch.zeros(2, 2), -1).tolist() == [[0.5, 0.5]] * 2
    with fmapviz.capture_attention(network.inner) as attention:
        network.inner(torch.randn(2, 3, 64, 64))
        network.inner(torch.randn(1, 3, 64, 64))
    assert attention["blocks.0.attn"].shape == (1, 3, 17, 17)  # of the last pass
    with pytest.raises(LayerKeyError, match="no attention of") as caught:
        attention["blocks.0.atn"]
    assert "blocks.0.attn" in caught.value.hint


def test_which_modules_are_captured_may_be_chosen():
    network = extras.timm.create_model("vit_tiny_patch16_224")
    with fmapviz.capture_attention(network, layers=["blocks.1*", "blocks.3.attn"], exclude="blocks.10") as attention:
        network(torch.randn(1, 3, 224, 224))
    assert list(attention) == [f"blocks.{number}.attn" for number in (1, 3, 11)]
    with (
        pytest.raises(fmapviz.errors.RequestError, match="no layer matches"),
        fmapviz.capture_attention(network, layers="block"),
    ):
        pass


@pytest.mark.thorough
def test_weights_of_halves_are_computed_in_float32():
    network = extras.timm.create_model("vit_tiny_patch16_224").bfloat16()
    with fmapviz.capture_attention(network) as attention:
        network(torch.randn(1, 3, 224, 224).bfloat16())
    weights = attention["blocks.11.attn"]
    assert weights.dtype == torch.float32
    assert (weights.sum(-1) - 1).abs().max() < 1e-6


def test_fused_attention_may_be_disabled_for_a_whole_process():
    extras.timm.layers.set_fused_attn(enable=False)
    try:
        network = extras.timm.create_model("vit_tiny_patch16_224")
    finally:
        extras.timm.layers.set_fused_attn(enable=True)
    found, *_ = observed(network, torch.randn(1, 3, 224, 224))
    assert all(each.value is None for each in found)


def three_implementations():
    """Return one architecture with the same weights, as torchvision, timm and transformers implement it."""
    from extras import transformers

    torch.manual_seed(5)
    width, heads, depth, classes = 48, 4, 3, 7
    theirs = torchvision.models.VisionTransformer(64, 16, depth, heads, width, 2 * width, num_classes=classes)
    for value in theirs.parameters():
        nn.init.normal_(value, std=0.4)
    own = extras.timm.models.VisionTransformer(
        64, 16, embed_dim=width, depth=depth, num_heads=heads, mlp_ratio=2, num_classes=classes
    )
    config = transformers.ViTConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=2 * width, image_size=64,
        patch_size=16, num_labels=classes, layer_norm_eps=1e-6,
    )  # fmt: skip
    third = transformers.ViTForImageClassification(config)
    given = dict(theirs.named_parameters())
    by_name = {
        "class_token": ("cls_token", "vit.embeddings.cls_token"),
        "conv_proj": ("patch_embed.proj", "vit.embeddings.patch_embeddings.projection"),
        "encoder.pos_embedding": ("pos_embed", "vit.embeddings.position_embeddings"),
        "encoder.ln": ("norm", "vit.layernorm"),
        "heads.head": ("head", "classifier"),
    }
    in_block = {
        "ln_1": ("norm1", "layernorm_before"),
        "self_attention.in_proj_": ("attn.qkv.", "attention.{}_proj."),
        "self_attention.out_proj": ("attn.proj", "attention.o_proj"),
        "ln_2": ("norm2", "layernorm_after"),
        "mlp.0": ("mlp.fc1", "mlp.fc1"),
        "mlp.3": ("mlp.fc2", "mlp.fc2"),
    }
    for number in range(depth):
        prefixes = (f"blocks.{number}", f"vit.layers.{number}")
        for name, names in in_block.items():
            pair = tuple(f"{prefix}.{each}" for prefix, each in zip(prefixes, names, strict=True))
            by_name[f"encoder.layers.encoder_layer_{number}.{name}"] = pair
    for_timm, for_third = {}, {}
    for name, value in given.items():
        prefix = max((each for each in by_name if name.startswith(each)), key=len)
        rest = name.removeprefix(prefix)
        first, second = by_name[prefix]
        for_timm[f"{first}{rest}"] = value.detach()
        if "{}" in second:
            parts = zip(("q", "k", "v"), value.detach().chunk(3), strict=True)
            for_third |= {f"{second.format(part)}{rest}": own_part for part, own_part in parts}
        else:
            for_third[f"{second}{rest}"] = value.detach()
    own.load_state_dict(for_timm)
    third.load_state_dict(for_third)
    return theirs, own, third


@pytest.mark.thorough
def test_torchvision_timm_and_transformers_have_equal_weights():
    """One architecture with the same weights, by three libraries, the third also by its explicit attention."""
    theirs, own, third = three_implementations()
    x = torch.randn(2, 3, 64, 64)
    found = []
    for network in (theirs, own, third):
        with torch.no_grad(), fmapviz.capture_attention(network) as attention:
            network(x)
        found.append(list(attention.values()))
    third.set_attn_implementation("eager")
    with torch.no_grad():
        found.append(third(x, output_attentions=True).attentions)
    with torch.no_grad(), fmapviz.capture_attention(third) as attention:
        third(x)
    found.append(list(attention.values()))
    assert [len(each) for each in found] == [3] * 5
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.std() > 0.01  # not uniform
            assert (one - other).abs().max() < 1e-5


def test_nested_captures_have_equal_weights():
    network = torchvision.models.VisionTransformer(32, 16, 2, 4, 48, 96)
    with fmapviz.capture_attention(network) as outer, fmapviz.capture_attention(network) as inner:
        network(torch.randn(1, 3, 32, 32))
    assert outer.keys() == inner.keys() != set()
    assert all(torch.equal(weights, inner[name]) for name, weights in outer.items())
