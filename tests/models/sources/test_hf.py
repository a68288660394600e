"""The models of transformers, with random weights and with a cache of the hub made here; nothing is downloaded."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import captum.attr
import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from PIL import Image
from sources import check_protocol

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import RequestError, WeightsError
from fmapviz.events import Outcome
from fmapviz.models.load import check_name, load_model, model_names, outline_model
from fmapviz.run.layer_list import list_layers
from fmapviz.run.loop import visualize

pytestmark = needs("transformers", "hf")

TINY = "num_hidden_layers=2, hidden_size=24, num_attention_heads=3, intermediate_size=32"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLASSES = ("tench", "goldfish", "great white shark")


@pytest.fixture(scope="module")
def transformers():
    from extras import transformers  # takes seconds

    return transformers


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "gradient.png"
    generator = np.random.default_rng(1)
    noise = Image.fromarray(generator.integers(0, 256, (26, 30, 3), dtype=np.uint8))
    noise.resize((300, 260)).save(path)
    return path


def tiny_vit(transformers, **options):
    torch.manual_seed(4)
    config = transformers.ViTConfig(
        num_hidden_layers=2,
        hidden_size=24,
        num_attention_heads=3,
        intermediate_size=32,
        image_size=64,
        id2label=dict(enumerate(CLASSES)),
        **options,
    )
    return transformers.ViTForImageClassification(config).eval()


@pytest.fixture
def hub(transformers, tmp_path, monkeypatch):
    """A cache of the hub with one model in it, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    refuse_connections(monkeypatch)
    network = tiny_vit(transformers)
    home = tmp_path / "hub" / "models--some--vit"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    network.save_pretrained(home / "snapshots" / COMMIT)
    processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64}, image_mean=[0.4, 0.5, 0.6])
    processor.save_pretrained(home / "snapshots" / COMMIT)
    network.folder = home / "snapshots" / COMMIT
    return network


def refuse_connections(monkeypatch):
    connect = socket.socket.connect

    def refuse(self, address):
        if self.family != socket.AF_UNIX:
            raise OSError("no network in this test")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)


def pixels_of(picture):
    with Image.open(picture) as image:
        return image.convert("RGB")


@pytest.mark.thorough
def test_published_weights_come_from_the_hubs_cache_with_class_names(hub, transformers, picture, tmp_path):
    for name in ("hf:some/vit", "hf:some/vit@main", f"hf:some/vit@{COMMIT}"):
        model = load_model(name)
        assert all(torch.equal(value, model.module.state_dict()[key]) for key, value in hub.state_dict().items())
        assert (model.name, model.weights, model.classes) == (name, f"revision {COMMIT[:12]}", CLASSES)
        assert len(model.sha256) == 64
        assert model.notices == ()
    events = []
    summary = visualize(model, picture, to="png", out=tmp_path / "out", on_event=events.append, views=["maps", "gradcam"])
    assert (summary.done, dict(summary.undrawn)) == (1, {})
    (outcome,) = (event for event in events if isinstance(event, Outcome))
    with torch.no_grad():
        given = transformers.AutoImageProcessor.from_pretrained(hub.folder)(pixels_of(picture), return_tensors="pt")
        scores = hub(**given).logits.softmax(1)[0]
    assert outcome.predictions[0].name == CLASSES[scores.argmax()]
    assert outcome.predictions[0].score == pytest.approx(scores.max().item(), rel=1e-4)


@pytest.mark.thorough
def test_layers_and_blocks_have_the_outputs_of_transformers(hub, picture, tmp_path):
    summary = visualize("hf:some/vit", picture, to="raw", out=tmp_path / "out")
    from safetensors.torch import load_file

    (file,) = summary.directory.rglob("*.safetensors")
    values = load_file(file)
    batch = load_model("hf:some/vit").preparation.apply(pixels_of(picture))[None]
    with torch.no_grad():
        states = hub(pixel_values=batch, output_hidden_states=True).hidden_states
    for number in (0, 1):
        (key,) = (key for key in values if f"layers.{number}" in key)
        assert torch.allclose(values[key], states[number + 1][0], atol=1e-6), key


def test_a_folder_of_the_user_is_a_model(hub, tmp_path):
    folder = shutil.copytree(hub.folder, tmp_path / "mine (1)")
    first = load_model(f"hf:{folder}")
    assert all(torch.equal(value, first.module.state_dict()[key]) for key, value in hub.state_dict().items())
    assert (first.weights, first.classes) == ("model.safetensors", CLASSES)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    assert load_model(f"hf:{folder}").sha256 != first.sha256
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="cannot read"):
        load_model(f"hf:{folder}")


def test_files_with_keys_of_any_version_are_loaded(hub, transformers, tmp_path):
    state = hub.state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "own.pth")
    for file in (tmp_path / "own.pth", hub.folder / "model.safetensors", hub.folder):
        model = load_model("hf:some/vit", weights=str(file))
        assert all(torch.equal(value, model.module.state_dict()[key]) for key, value in state.items())
    torch.save({key: value for key, value in state.items() if "layers.1" not in key}, tmp_path / "less.pth")
    with pytest.raises(WeightsError, match=r"do not fit: missing vit\.layers\.1\."):
        load_model("hf:some/vit", weights=str(tmp_path / "less.pth"))
    torch.save(state | {"more": torch.zeros(2)}, tmp_path / "more.pth")
    with pytest.raises(WeightsError, match="do not fit: unexpected more"):
        load_model("hf:some/vit", weights=str(tmp_path / "more.pth"))
    with pytest.raises(WeightsError, match=r"classifier\.weight is \(3, 24\), not \(7, 24\)") as caught:
        load_model("hf:some/vit(num_labels=7)", weights=str(tmp_path / "own.pth"))
    assert "num_labels=3" in caught.value.hint
    assert load_model("hf:some/vit(num_labels=7)", weights="random").module.classifier.out_features == 7


def test_without_a_head_the_backbone_is_drawn_and_a_missing_pooler_is_named(transformers, tmp_path):
    network = tiny_vit(transformers)
    network.config.architectures = ["ViTModel"]
    network.save_pretrained(tmp_path / "mine")
    config = json.loads((tmp_path / "mine/config.json").read_text()) | {"architectures": ["ViTModel"]}
    (tmp_path / "mine/config.json").write_text(json.dumps(config))
    model = load_model(f"hf:{tmp_path / 'mine'}")
    assert type(model.module).__name__ == "ViTModel"
    assert model.classes == ()
    expected = ("pooler.dense.bias", "not used of", "no head of classes", "no preprocessing is published")
    assert all(any(part in notice for notice in model.notices) for part in expected), model.notices
    again = load_model(f"hf:{tmp_path / 'mine'}")
    assert torch.equal(model.module.pooler.dense.weight, again.module.pooler.dense.weight)


@pytest.mark.thorough
def test_the_vision_part_of_a_model_of_pictures_and_texts_is_drawn(picture, tmp_path):
    parts = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    texts = parts | {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    spec = f"hf:blip(vision_config={parts | {'image_size': 32, 'patch_size': 8}}, text_config={texts})"
    model = load_model(spec, weights="random", preprocessing=InputOptions(size=32))
    assert type(model.module).__name__ == "BlipVisionModel"
    assert any("vision_model is drawn" in notice for notice in model.notices)
    summary = visualize(model, picture, to="png", out=tmp_path / "out")
    assert (summary.done, summary.layers, dict(summary.undrawn)) == (1, 3, {})


def test_types_with_arguments_are_built_at_random():
    name = f"hf:vit({TINY}, num_labels=5)"
    first, again, other = (load_model(name, weights=each) for each in ("random", "random:0", "random:1"))
    assert first.label == f"{name} (random weights, seed 0)"
    weights = [each.module.classifier.weight for each in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert [row.shape for row in list_layers(name, types=["ViTLayer"])] == [(197, 24)] * 2
    assert load_model(name, weights="random", preprocessing=InputOptions(size=(32, 48))).module.config.image_size == (32, 48)
    assert next(outline_model(name).module.parameters()).is_meta


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("hf:vitt", "no such model in transformers: 'vitt'", "'vit'"),
        ("hf:vit(hidden_sizes=3)", "no argument of this name: 'hidden_sizes'", "'hidden_size'"),
        ("hf:vit(hidden_size='x')", "transformers cannot build 'vit'", "ViTConfig"),
        ("hf:vit(attn_implementation='some/kernel')", "no argument of this name", ""),
        (f"hf:bert({TINY})", "BertModel takes input_ids", "code of yours"),
        (f"hf:videomae({TINY})", "takes clips of several frames", "code of yours"),
        ("hf:oneformer", "takes pixel_values, task_inputs", "code of yours"),
    ],
)
def test_models_that_cannot_be_built_are_an_error_with_a_hint(name, message, hint):
    with pytest.raises(RequestError) as caught:
        load_model(name, weights="random")
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_a_type_has_no_published_weights():
    with pytest.raises(WeightsError, match="no published weights: 'vit' is a type of models"):
        load_model("hf:vit")


def test_weights_that_are_not_cached_are_an_error_without_network(hub):
    with pytest.raises(
        WeightsError, match=r"cannot download .*google/vit-base-patch16-224/resolve/main/config\.json"
    ) as caught:
        load_model("hf:google/vit-base-patch16-224", weights="random")
    assert "hf download google/vit-base-patch16-224" in caught.value.hint
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"cannot download .*model\.safetensors"):
        load_model("hf:some/vit")


@pytest.mark.thorough
def test_the_variable_that_forbids_downloads_is_named(fmapviz, picture, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = fmapviz("hf:google/vit-base-patch16-224", picture)
    assert result.returncode == 2
    assert b"HF_HUB_OFFLINE is set" in result.stderr


# --- what a repository must not do


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kinds",
    [
        "vit convnext",
        *thorough(
            "beit bit clip convnextv2 cvt data2vec-vision deit dinov2 dinov2_with_registers donut-swin efficientnet",
            "focalnet hgnet_v2 hiera ijepa levit metaclip_2 mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer",
            "pp_lcnet pvt pvt_v2 regnet resnet segformer siglip swiftformer swin swinv2 textnet vit_msn",
        ),
    ],
)
def test_the_layers_of_every_type_of_images_are_listed_in_a_process_without_the_compiler(kinds, torch_alone):
    """Most modules of transformers import torch._dynamo."""
    done = torch_alone(f"import fmapviz; print(*(len(fmapviz.list_layers('hf:' + kind)) for kind in {kinds.split()}))")
    assert done.returncode == 0, done.stderr.decode()
    assert all(int(count) > 1 for count in done.stdout.split())


@pytest.mark.parametrize("where", ["config", "part"])
def test_a_configuration_names_no_kernel_that_would_be_downloaded_and_run(hub, where):
    file = hub.folder / "config.json"
    own = {"_attn_implementation": "some/kernel", "attn_implementation": "some/kernel"}
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | (own if where == "config" else {"text_config": own})))
    assert load_model("hf:some/vit").module.config._attn_implementation in {"sdpa", "eager"}


def test_names_that_no_repository_has_are_an_error():
    for name in (f"{'a' * 300}/b", "a--b/c", "a/b.git"):
        with pytest.raises(WeightsError, match="not a name of the Hugging Face hub"):
            load_model(f"hf:{name}")


def test_code_of_a_repository_is_not_run(hub, tmp_path):
    file = hub.folder / "config.json"
    values = json.loads(file.read_text())
    (hub.folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    code = {
        "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Net", "AutoModelForImageClassification": "evil.Net"}
    }
    file.write_text(json.dumps(values | code))
    load_model("hf:some/vit")
    file.write_text(json.dumps(values | code | {"model_type": "evil"}))
    with pytest.raises(RequestError, match="code in its repository, which is not run"):
        load_model("hf:some/vit")
    processor = hub.folder / "preprocessor_config.json"
    file.write_text(json.dumps(values))
    known = {"auto_map": {"AutoImageProcessor": "evil.Processor"}, "image_processor_type": "EvilProcessor"}
    processor.write_text(json.dumps(json.loads(processor.read_text()) | known))
    load_model_or_refuse("hf:some/vit")
    assert not (tmp_path / "ran").exists()


def load_model_or_refuse(name):
    try:
        load_model(name)
    except RequestError:
        return


def test_a_pickle_is_read_as_data(hub, tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    (hub.folder / "model.safetensors").unlink()
    torch.save(hub.state_dict() | {"evil": Evil()}, hub.folder / "pytorch_model.bin")
    load_model_or_refuse("hf:some/vit")
    assert not (tmp_path / "ran").exists()


# --- preprocessing

PROCESSORS = {
    "ViTImageProcessor": {},
    "BitImageProcessor": {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}},  # DINOv2
    "ConvNextImageProcessor": {"size": {"shortest_edge": 224}, "crop_pct": 0.875},
    "BeitImageProcessor": {"do_center_crop": True, "crop_size": {"height": 192, "width": 192}},
    "CLIPImageProcessor": {},
    "EfficientNetImageProcessor": {},
    "LevitImageProcessor": {},
    "SegformerImageProcessor": {},
    "SiglipImageProcessor": {"rescale_factor": 1 / 127.5, "do_normalize": False},
}


@pytest.mark.parametrize("kind", [*list(PROCESSORS)[:2], *thorough(*list(PROCESSORS)[2:])])
def test_the_input_is_preprocessed_as_by_the_processor(kind, hub, transformers, picture):
    processor = getattr(transformers, kind)(**PROCESSORS[kind])
    processor.save_pretrained(hub.folder)
    preparation = load_model("hf:some/vit").preparation
    pixels = pixels_of(picture)
    expected = processor(pixels, return_tensors="pt")["pixel_values"][0]
    assert torch.equal(preparation.apply(pixels), expected)
    assert kind in preparation.description
    # The mean and the deviation undo the normalisation: a black and a white picture are 0 and 1.
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (preparation.mean, preparation.std))
    for colour, value in (("black", 0), ("white", 1)):
        shown = preparation.apply(Image.new("RGB", (300, 260), colour)) * std + mean
        assert torch.allclose(shown, torch.full_like(shown, value), atol=1e-4)


def test_options_change_the_preprocessing(hub, picture):
    pixels = pixels_of(picture)
    usual = load_model("hf:some/vit").preparation
    assert usual.mean == pytest.approx((0.4, 0.5, 0.6), abs=1e-4)
    shifted = load_model("hf:some/vit", preprocessing=InputOptions(mean=(0.0,), std=(1.0,))).preparation
    assert shifted.description != usual.description
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (usual.mean, usual.std))
    assert torch.allclose(shifted.apply(pixels), usual.apply(pixels) * std + mean, atol=1e-5)
    sized = load_model("hf:some/vit", preprocessing=InputOptions(size=(96, 128), fit="pad"))
    assert sized.preparation.apply(pixels).shape == (3, 96, 128)
    with torch.no_grad():
        assert sized.forward(sized.module, sized.preparation.apply(pixels)[None]).logits.shape == (1, 3)


# --- names


def test_names_are_those_in_the_cache_and_the_types(hub):
    assert {"hf:some/vit", "hf:vit", "hf:swin"} <= set(model_names("hf:*"))
    assert model_names("hf:some*") == ["hf:some/vit"]
    assert not any(name.startswith("hf:") for name in model_names())


def test_a_name_of_the_hub_without_the_prefix_has_a_hint():
    with pytest.raises(RequestError, match="looks like a name of the Hugging Face hub") as caught:
        check_name("google/vit-base-patch16-224")
    assert "type hf:google/vit-base-patch16-224" in caught.value.hint
    assert Path("google").exists() is False


@pytest.mark.thorough
def test_a_name_of_another_source_has_a_hint_to_the_source():
    """It asks all sources that are installed; here transformers, which takes seconds, is imported already."""
    pytest.importorskip("timm")
    with pytest.raises(RequestError) as error:
        load_model("vit_tiny_patch16_224")
    assert error.value.hint == "type timm:vit_tiny_patch16_224"
    with pytest.raises(RequestError) as error:
        load_model("mobilenet_v3_smal")
    assert error.value.hint.startswith("did you mean 'mobilenet_v3_small'")


def test_the_source_has_the_functions_of_the_protocol():
    check_protocol("hf")


def tiny_segmenter(transformers, kind):
    """Return a network whose queries have a mask and a class each, or boxes too."""
    swin = {"embed_dim": 16, "depths": [1] * 4, "num_heads": [1, 1, 2, 2], "window_size": 2, "image_size": 64}
    backbone = transformers.SwinConfig(**swin, out_features=[f"stage{each}" for each in range(1, 5)])
    resnet = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1] * 4, "layer_type": "basic"}
    names = {"id2label": dict(enumerate(CLASSES)), "num_queries": 12}
    heads = {f"{part}_attention_heads": 8 for part in ("encoder", "decoder")}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    if kind == "detr":
        own = transformers.ResNetConfig(**resnet, out_features=[f"stage{each}" for each in range(1, 5)])
        off = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
        return transformers.DetrForSegmentation(
            transformers.DetrConfig(backbone_config=own, d_model=128, **off, **heads, **sizes, **names)
        )
    if kind == "eomt":
        vit = {"image_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_blocks": 1}
        network = transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**vit, num_upscale_blocks=2, **names))
        network.attn_mask_probs.zero_()  # as after training: masks are predicted once
        return network
    if kind == "mask2former":
        common = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 32}
        layers = {"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "dim_feedforward": 32}
        config = transformers.Mask2FormerConfig(backbone_config=backbone, **common, **layers, **names)
        return transformers.Mask2FormerForUniversalSegmentation(config)
    decoder = transformers.DetrConfig(d_model=32, **heads, **sizes, num_queries=12)
    config = transformers.MaskFormerConfig(
        backbone_config=backbone, decoder_config=decoder, fpn_feature_size=32, mask_feature_size=32, **names
    )
    return transformers.MaskFormerForInstanceSegmentation(config)


@torch.no_grad()
def balanced(network, batch):
    """Return a network in evaluation mode of which several classes win at some pixels."""
    for module in network.eval().modules():  # the small weights of the library make all queries alike
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight)
        elif isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)
    classes = network(batch).class_queries_logits
    last = network.class_predictor
    last.weight.data *= 4 / classes.std(1)[0][:, None]
    last.bias.data = -4 * classes.mean(1)[0] / classes.std(1)[0]
    return network


def saved(network, folder):
    network.eval().save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", ["maskformer", *thorough("mask2former", "eomt")])
def test_a_segmenter_of_masks_has_the_scores_of_its_own_post_processing(kind, transformers, tmp_path):
    torch.manual_seed(2)
    batch = torch.from_numpy(np.random.default_rng(3).normal(size=(1, 3, 64, 64)).astype(np.float32))
    network = balanced(tiny_segmenter(transformers, kind), batch)
    layers = {
        "maskformer": "model.pixel_level_module.decoder.mask_projection",
        "mask2former": "model.pixel_level_module.decoder.mask_projection",
        "eomt": "upscale_block.block.1.conv2",
    }
    model = load_model(saved(network, tmp_path / kind))
    assert type(model.module) is type(network)
    assert (model.classes, model.scores) == (CLASSES, "softmax")

    output = network(batch)
    side = output.masks_queries_logits.shape[-1]
    processor = transformers.MaskFormerImageProcessor()  # that of Mask2Former would enlarge the masks first
    (scores,) = processor.post_process_semantic_segmentation(output, return_segmentation_scores=True)
    winners = scores.segmentation
    index = int(winners.flatten().bincount(minlength=3).argmax())
    found = fmapviz.cam(model, batch, layer=layers[kind], method="gradcam")
    assert found.target == (index,)

    pixels = winners == index
    assert 0 < pixels.sum() < side * side

    class Score(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, batch):
            own = self.network(batch)
            shares = own.class_queries_logits.softmax(-1)[:, :, index, None, None] * own.masks_queries_logits.sigmoid()
            return (shares.sum(1) * pixels).sum((1, 2))

    expected = captum.attr.LayerGradCam(Score(), network.get_submodule(layers[kind])).attribute(batch)[0, 0].detach()
    torch.testing.assert_close(found.raw[0] / found.raw[0].norm(), expected / expected.norm(), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_a_detr_with_masks_is_a_detector(transformers, picture, tmp_path):
    torch.manual_seed(2)
    network = tiny_segmenter(transformers, "detr")
    model = load_model(saved(network, tmp_path / "detr"))
    assert type(model.module) is transformers.DetrForSegmentation
    options = {"views": ["boxes"], "confidence": 0.01, "predictions": 1, "to": "png"}
    events = []
    visualize(model, picture, out=tmp_path / "out", on_event=events.append, **options)
    (outcome,) = (event for event in events if isinstance(event, Outcome))
    batch = fmapviz.load_image(picture, model)
    with torch.no_grad():
        output = network(batch)
    (expected,) = transformers.DetrImageProcessor().post_process_object_detection(output, threshold=0.01)
    assert outcome.predictions[0].score == pytest.approx(expected["scores"].max().item(), rel=1e-4)


def test_a_network_of_depth_has_its_head(transformers, tmp_path):
    config = transformers.GLPNConfig(
        num_attention_heads=[1] * 4, depths=[1] * 4, hidden_sizes=[8] * 4, decoder_hidden_size=8
    )
    model = load_model(saved(transformers.GLPNForDepthEstimation(config), tmp_path / "depth"))
    assert type(model.module) is transformers.GLPNForDepthEstimation
    assert (model.classes, model.scores) == ((), "")
    assert "GLPNForDepthEstimation has no head of classes" in model.notices
