"""Weights under other keys or with other heads, and the messages for those that do not fit."""

from __future__ import annotations

import re
from collections import OrderedDict

import pytest
import torch
from cases import thorough
from checkpoint_files import Wrapped, assert_holds, build, constant, fill, shapes_of, without_counts
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fmapviz.errors import WeightsError
from fmapviz.models.load import load_model
from fmapviz.models.weights.state_dict import strip_prefixes

NAME = "shufflenet_v2_x0_5"


def small(channels=4, blocks=2, *, norm=True, kernel=3):
    """Build a network of blocks of one kind and a head."""

    def block(taken):
        layers = [nn.Conv2d(taken, channels, kernel), *([nn.BatchNorm2d(channels)] if norm else []), nn.ReLU()]
        return nn.Sequential(*layers)

    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, channels, 3),
            blocks=nn.Sequential(*(block(channels) for _ in range(blocks))),
            head=nn.Linear(channels, 10),
        )
    )


def refusal(weights, module):
    with pytest.raises(WeightsError) as caught:
        fill(module, str(weights))
    assert "\n" not in f"{caught.value}{caught.value.hint}"
    return str(caught.value), caught.value.hint or ""


def refusal_by(name, weights):
    with pytest.raises(WeightsError) as caught:
        load_model(name, weights=weights)
    return str(caught.value), caught.value.hint or ""


# What stands before the keys


class Lit(nn.Module):
    """A training module with parts of its own beside the network, as Lightning's are."""

    def __init__(self, **parts):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(10))
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.mark.parametrize("attribute", ["model", "net", "backbone", "encoder", "_model"])
def test_the_network_of_a_training_module_is_found_under_any_name(attribute, save):
    trained, module = small(), small()
    path = save({"state_dict": Lit(**{attribute: trained}).state_dict()}, "lit.ckpt")
    loaded = fill(module, path)
    assert_holds(module, trained.state_dict())
    assert loaded.notices == (
        f"stripped the prefix '{attribute}.' from the keys of '{path}', and ignored the other keys: loss.weight",
    )


def test_the_network_is_found_inside_several_parts(save):
    trained, module = small(), small()
    loaded = fill(module, save(Lit(task=Wrapped(Wrapped(trained))).state_dict()))
    assert_holds(module, trained.state_dict())
    assert "'task.' and 'model.' and 'model.'" in loaded.notices[0]


def test_a_network_under_two_prefixes_needs_a_choice(save):
    student, teacher = small(), small()
    path = save({"state_dict": Lit(student=student, teacher=teacher).state_dict()})
    message, hint = refusal(path, small())
    assert "'student.'" in message
    assert "'teacher.'" in message
    assert "FILE#student" in hint
    for name, trained in (("student", student), ("teacher", teacher)):
        module = small()
        loaded = fill(module, f"{path}#{name}")
        assert_holds(module, trained.state_dict())
        assert loaded.name == f"weights.pth#{name}"


def test_the_hint_is_a_valid_value_of_weights_inside_wrappers(save):
    student, teacher = small(), small()
    wrapped = {f"_orig_mod.{key}": values for key, values in Lit(student=student, teacher=teacher).state_dict().items()}
    path = save(wrapped)
    _, hint = refusal(path, small())
    module = small()
    fill(module, path + re.search(r"FILE(#[\w.]+)", hint)[1])
    assert_holds(module, student.state_dict())


@pytest.mark.thorough
def test_wrappers_in_the_middle_of_keys_are_stripped(save):
    trained, module = small(), small()
    expected = trained.state_dict()
    trained.blocks[0] = torch.compile(trained.blocks[0])
    trained.blocks[1] = checkpoint_wrapper(trained.blocks[1])
    keys = trained.state_dict()
    assert any("._orig_mod." in key for key in keys)
    keys = {key.replace("blocks.1.", "blocks.1._checkpoint_wrapped_module."): values for key, values in expected.items()}
    keys = {key.replace("blocks.0.", "blocks.0._orig_mod."): values for key, values in keys.items()}
    loaded = fill(module, save({f"_fsdp_wrapped_module.{key}": values for key, values in keys.items()}))
    assert_holds(module, expected)
    (notice,) = loaded.notices
    for wrapper in ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        assert f"'{wrapper}'" in notice


def test_keys_of_the_network_are_not_changed(tmp_path):
    """Also if the same keys are there once more under a prefix, and if a module is called as a wrapper writes it."""
    state = {"a.weight": torch.ones(1), "module.a.weight": torch.zeros(1)}
    assert strip_prefixes(state, ["a.weight"], tmp_path) == (state, ())
    assert strip_prefixes(state, ["a.weight", "module.a.weight", "a.num_batches_tracked"], tmp_path) == (state, ())
    state = {"_orig_mod.a": torch.ones(1)}
    assert strip_prefixes(state, ["_orig_mod.a"], tmp_path) == (state, ())


def test_counts_of_batches_may_be_missing_under_a_prefix_too(save):
    trained, module = small(), small()
    state = {f"net.{key}": values for key, values in without_counts(trained.state_dict()).items()}
    loaded = fill(module, save({**state, "loss.weight": torch.ones(3)}))
    assert_holds(module, trained.state_dict())
    assert "ignored the other keys: loss.weight" in loaded.notices[0]
    assert fill(module, save(without_counts(trained.state_dict()))).notices == ()


def test_prefixes_of_wrappers_are_stripped_for_another_network(save):
    other = {f"module.model.{key}": values for key, values in nn.Sequential(nn.Linear(2, 3)).state_dict().items()}
    assert "unexpected 0.weight" in refusal(save(other), small())[0]


def test_a_prefix_is_no_part_of_a_name(tmp_path):
    """`old_fc.weight` is not `fc.weight` under a prefix."""
    state = {"old_fc.weight": torch.ones(1)}
    assert strip_prefixes(state, ["fc.weight"], tmp_path) == (state, ())


# Other classes, other channels

CLASSES = {
    "lraspp_mobilenet_v3_large": 21,
    "deeplabv3_mobilenet_v3_large": 21,
    "ssdlite320_mobilenet_v3_large": 91,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 91,
    "retinanet_resnet50_fpn": 91,
    "r3d_18": 400,
    "s3d": 400,
}
# The head of each of these is another: one layer, the last of several, a convolution, with a second one, for boxes.
HEADS = ["squeezenet1_1", "vit_b_32", "resnet18", "lraspp_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"]
MORE = ["alexnet", "googlenet", "ssdlite320_mobilenet_v3_large", "r3d_18", "densenet121", "inception_v3", "swin_t",
        "mnasnet0_5", "mobilenet_v3_small", "shufflenet_v2_x0_5", "convnext_tiny", "deeplabv3_mobilenet_v3_large",
        "retinanet_resnet50_fpn", "s3d"]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*HEADS, *thorough(*MORE)])
def test_weights_for_other_classes_are_loaded(name, save):
    state = constant(shapes_of(name, num_classes=5))
    usual = CLASSES.get(name, 1000)
    path = save(state)
    model = load_model(name, weights=path)
    assert_holds(model.module, state)
    assert f"the weights are for 5 classes, not {usual}: the head was built for 5" in model.notices


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("googlenet", {"aux_logits": False}),
        ("deeplabv3_mobilenet_v3_large", {"aux_loss": True}),
        *thorough(("inception_v3", {"aux_logits": False})),
    ],
)
def test_weights_for_other_classes_are_loaded_with_and_without_a_second_head(name, kwargs, save):
    state = constant(shapes_of(name, num_classes=1, **kwargs))
    assert_holds(load_model(name, weights=save(state)).module, state)


def test_a_network_for_other_classes_computes_the_same_as_torchvisions(save):
    trained = build(NAME, num_classes=7)
    model = load_model(NAME, weights=save({"state_dict": {f"net.{key}": v for key, v in trained.state_dict().items()}}))
    pixels = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model.forward(model.module, pixels), trained(pixels))


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("resnet18", 1),
        ("squeezenet1_1", 6),
        ("vit_b_32", 4),
        *thorough(("densenet121", 4), ("googlenet", 1), ("inception_v3", 2), ("swin_t", 1)),
    ],
)
def test_weights_for_pictures_of_other_channels_are_loaded(name, channels, save):
    state = constant(shapes_of(name))
    first = next(key for key, values in state.items() if values.ndim == 4 and values.shape[1] == 3)
    rows, _, *kernel = state[first].shape
    state[first] = torch.tensor(0.5).expand(rows, channels, *kernel)
    model = load_model(name, weights=save(state))
    assert_holds(model.module, state)
    (notice,) = model.notices
    assert f"images with {channels} channel{'' if channels == 1 else 's'}, not 3" in notice
    side = 299 if name == "inception_v3" else 224
    with torch.no_grad():
        assert model.forward(model.module, torch.zeros(1, channels, side, side)).shape == (1, 1000)


@pytest.mark.thorough
def test_weights_for_other_classes_and_channels_are_loaded(save):
    state = constant(shapes_of("resnet18", num_classes=2))
    state["conv1.weight"] = torch.ones(64, 1, 7, 7)
    model = load_model("resnet18", weights=save(state))
    assert_holds(model.module, state)
    assert len(model.notices) == 2


@pytest.mark.thorough
def test_nothing_is_adapted_if_more_differs(save):
    state = constant(shapes_of("resnet18", num_classes=5))
    state["layer1.0.conv1.weight"] = torch.ones(64, 64, 1, 1)
    message, _ = refusal_by("resnet18", save(state))
    assert "layer1.0.conv1.weight is (64, 64, 1, 1), not (64, 64, 3, 3)" in message
    assert "fc.weight is (5, 512), not (1000, 512)" in message
    state["conv1.weight"] = torch.ones(64, 1, 7, 7)
    message, _ = refusal_by("resnet18", save(state))
    assert "conv1.weight is (64, 1, 7, 7), not (64, 3, 7, 7)" in message
    state = constant(shapes_of("resnet18"))
    message, _ = refusal_by("resnet18", save({**state, "fc.bias": torch.ones(5)}))
    assert message.endswith("do not fit: fc.bias is (5), not (1000)")
    message, _ = refusal_by("resnet18", save({**state, "conv1.weight": torch.ones(64, 1, 5, 5)}))
    assert message.endswith("do not fit: conv1.weight is (64, 1, 5, 5), not (64, 3, 7, 7)")
    message, _ = refusal_by("resnet18", save({**state, "fc.weight": torch.ones(0, 512), "fc.bias": torch.ones(0)}))
    assert "fc.weight is (0, 512)" in message


# What does not fit


@pytest.mark.thorough
def test_a_replaced_head_is_reported(save):
    network = build("resnet18")
    network.fc = nn.Sequential(nn.Linear(512, 8), nn.ReLU(), nn.Linear(8, 5))
    message, hint = refusal_by("resnet18", save({f"model.{key}": values for key, values in network.state_dict().items()}))
    assert "missing fc.weight; missing fc.bias; unexpected fc.0.weight; unexpected fc.0.bias and 2 more" in message
    assert "'fc'" in hint
    assert "replaced" in hint
    assert "my_net.py:build" in hint


def other_head():
    module = small()
    module.head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    return module.state_dict()


def without_head():
    return {key: values for key, values in small().state_dict().items() if not key.startswith("head")}


def renamed_head():
    return {key.replace("head.", "fc."): values for key, values in small().state_dict().items()}


def one_channel():
    return {**small().state_dict(), "stem.weight": torch.ones(4, 1, 3, 3)}


def five_classes():
    return {**small().state_dict(), "head.weight": torch.ones(5, 4), "head.bias": torch.ones(5)}


def adapter():
    return {"base_model.model.head.lora_A.weight": torch.ones(2, 4), "base_model.model.head.lora_B.weight": torch.ones(9, 2)}


def quantised():
    state = small().state_dict()
    return {**state, "stem.scale": torch.tensor(0.1), "stem.zero_point": torch.tensor(3)}


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (adapter, "adapter (LoRA)"),
        (quantised, "the weights are quantised"),
        (lambda: nn.Sequential(nn.Linear(2, 3)).state_dict(), "to another model"),
        (lambda: small(norm=False).state_dict(), "without batch normalisation, and this one has it"),
        (without_head, "no head ('head')"),
        (five_classes, "number of classes"),
        (other_head, "it was replaced"),
        (renamed_head, "another version"),
        (one_channel, "another number of channels"),
        (lambda: small(blocks=4).state_dict(), "deeper model of this family"),
        (lambda: small(blocks=1).state_dict(), "shallower model of this family"),
        (
            lambda: {key: value for key, value in small().state_dict().items() if key != "blocks.1.0.weight"},
            "save the whole",
        ),
        (lambda: {key: value for key, value in small().state_dict().items() if "blocks.1.0" not in key}, "save the whole"),
        (lambda: small(channels=8).state_dict(), "another width"),
        (lambda: small(kernel=1).state_dict(), "another version"),
    ],
)
def test_the_likely_cause_of_a_mismatch_is_named(state, cause, save):
    path = save(state())
    message, hint = refusal(path, small())
    assert message.startswith(f"the weights in '{path}' do not fit: ")
    assert cause in hint


@pytest.mark.parametrize(
    ("state", "cause"),
    [(five_classes, "only the head ('model.head') differs"), (lambda: small(channels=8).state_dict(), "another width")],
)
def test_the_head_is_found_in_a_network_in_a_module(state, cause, save):
    path = save({f"model.{key}": values for key, values in state().items()})
    assert cause in refusal(path, nn.ModuleDict({"model": small()}))[1]


def test_weights_with_batch_normalisation_for_a_network_without_are_refused(save):
    assert "with batch normalisation, and this one has none" in refusal(save(small().state_dict()), small(norm=False))[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "other", "cause"),
    [
        ("resnet18", "resnet34", "deeper"),
        ("resnet34", "resnet18", "shallower"),
        ("resnet50", "resnet101", "deeper"),
        ("resnet50", "wide_resnet50_2", "another width"),
        ("shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "another width"),
        ("mnasnet0_5", "mnasnet1_0", "another width"),
        ("vgg11", "vgg11_bn", "with batch normalisation"),
        ("vgg11_bn", "vgg11", "without batch normalisation"),
        ("squeezenet1_1", "mobilenet_v3_small", "to another model"),
    ],
)
def test_the_likely_cause_of_a_mismatch_of_torchvisions_models_is_named(name, other, cause, save):
    _, hint = refusal_by(name, save(constant(shapes_of(other))))
    assert cause in hint


def test_a_mismatch_names_the_first_keys_of_each_kind(save):
    state = {**without_head(), "stem.weight": torch.ones(1), "blocks.0.0.bias": torch.ones(2), "old": torch.ones(1)}
    message, _ = refusal(save({**state, "older": torch.ones(1)}), small())
    assert message.endswith(
        "do not fit: missing head.weight; unexpected old; stem.weight is (1), not (4, 3, 3, 3); missing head.bias and 2 more"
    )


def test_a_mismatch_is_short_and_safe_to_show(save):
    state = {f"\x1b[31m{number}": torch.ones(1) for number in range(1000)}
    message, _ = refusal(save(state), small())
    assert message.isprintable()
    assert len(message) < 500
    assert "more" in message
