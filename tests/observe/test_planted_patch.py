"""Tokens are laid out as their patches: a planted patch is brightest at its own position.

A network with random weights sees a constant picture, and the same one with a bright square at one patch. The first block
mixes all positions a little, but changes none as much as the patch's own.
"""

from __future__ import annotations

import pytest
import torch
from cases import thorough
from extras import require
from PIL import Image

from fmapviz.models.load import load_model
from fmapviz.observe.captured import capture
from fmapviz.observe.layers import find_layers, repeated_block
from fmapviz.observe.reshape import NotAMapError, frames_of

SIZES = "num_hidden_layers=2, hidden_size=48, num_attention_heads=3"
MLP = f"{SIZES}, intermediate_size=64"

FAMILIES = ["vit_b_32", "timm:vit_tiny_patch16_224", "timm:deit_tiny_distilled_patch16_224"]
MORE = [
    "swin_t",
    "swin_v2_t",
    "timm:beit_base_patch16_224",
    "timm:cait_xxs24_224",
    "timm:coat_tiny",
    "timm:crossvit_tiny_240",
    "timm:eva02_tiny_patch14_224",
    "timm:levit_128s",
    "timm:maxvit_rmlp_pico_rw_256",
    "timm:mvitv2_tiny",
    "timm:pit_ti_224",
    "timm:pvt_v2_b0",
    "timm:swin_tiny_patch4_window7_224",
    "timm:swinv2_tiny_window8_256",
    "timm:twins_svt_small",
    "timm:vit_small_patch14_reg4_dinov2",
    "timm:volo_d1_224",
    "timm:xcit_nano_12_p16_224",
    f"hf:beit({MLP})",
    f"hf:deit({MLP})",
    f"hf:dinov2({SIZES})",
    f"hf:dinov2_with_registers({SIZES})",
    f"hf:dinov3_vit({MLP})",
    "hf:swin(depths=[2, 2], num_heads=[3, 6])",
    "hf:pvt_v2",
    f"hf:vit({MLP})",
    f"hf:vit_mae({MLP})",
    "hf:hiera",
    f"hf:yolos({MLP})",
    "timm:hiera_tiny_224",
    "timm:mobilevit_xxs",
    "timm:nest_tiny",
    "timm:efficientformer_l1",
    "timm:edgenext_xx_small",
]


def first_block(spec):
    if ":" in spec:
        require(*{"timm": ("timm", "timm"), "hf": ("transformers", "hf")}[spec.partition(":")[0]])
    model = load_model(spec, weights="random")
    layers = find_layers(model.module)
    kind, _ = repeated_block(layers)
    return model, next(layer.name for layer in layers if layer.type == kind)


def maps_of(model, layer, pixels):
    """Return the maps of a layer, `(C, h, w)`, and the reasons why others are not drawn."""
    with torch.no_grad(), capture(model.module, layers=layer) as captured:
        model.forward(model.module, pixels)
    maps, reasons = [], []
    for found in captured.values():
        try:
            frames = frames_of(found, found.values)
        except NotAMapError as reason:
            reasons.append(str(reason))
        else:
            maps += [values[0] for values in frames.values() if values.ndim == 4]
    return maps, reasons


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("spec", [*FAMILIES, *thorough(*MORE)])
def test_a_planted_patch_changes_its_own_position_most(spec):
    model, layer = first_block(spec)
    grey = model.preparation.apply(Image.new("RGB", (640, 640), "grey"))[None]
    sides = tuple(grey.shape[-2:])
    plain, _ = maps_of(model, layer, grey)
    assert plain
    step = sides[1] // plain[0].shape[-1]
    # A patch; several if they are small or overlap, as in PVT v2 and LeViT.
    length, slack = (32, step) if step < 12 or "levit" in spec else (step, 0)
    for down, across in ((28, 60), (72, 41), (10, 90)):
        top, left = (side * percent // 100 // length * length for side, percent in zip(sides, (down, across), strict=True))
        square = grey.clone()
        square[..., top : top + length, left : left + length] = 3
        planted, _ = maps_of(model, layer, square)
        for before, after in zip(plain, planted, strict=True):
            change = (after - before).norm(dim=0)
            y, x = divmod(change.argmax().item(), change.shape[1])
            row, column = ((at + 0.5) * side / count for at, side, count in zip((y, x), sides, change.shape, strict=True))
            assert top - slack <= row <= top + length + slack, tuple(change.shape)
            assert left - slack <= column <= left + length + slack, tuple(change.shape)
