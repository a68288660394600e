from __future__ import annotations

import re
import warnings
from functools import cache

import pytest
import torch
import torchvision
from cases import thorough
from tiny_models import Backwards, Recursive, Twins, images, overwritten
from torch import nn

from fmapviz.errors import RequestError
from fmapviz.models.load import model_names, outline_model
from fmapviz.observe.layers import (
    absent_types,
    default_types,
    find_layers,
    is_type,
    notice_blocks,
    notice_left_out,
    repeated_block,
    scripted_parts,
    select_layers,
    unwrap,
)


def names(layers):
    return [layer.name for layer in layers]


@cache
def resnet18():
    with torch.device("meta"):
        return torchvision.models.resnet18()


def chosen(model, **options):
    return names(select_layers(find_layers(model), **options))


class MyConv(nn.Conv2d):
    """A subclass, such as weight standardisation needs."""


# --- finding


@pytest.mark.parametrize(
    "name", ["alexnet", "googlenet", *thorough("resnet18", "densenet121", "mobilenet_v3_small", "swin_t")]
)
def test_each_module_is_listed_once_by_its_name_in_torch(name):
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        network = torchvision.models.get_model(name)
    found = [(layer.name, layer.module, layer.type) for layer in find_layers(network)]
    assert found == [(path, module, type(module).__name__) for path, module in network.named_modules() if path]
    assert not any(layer.aliases for layer in find_layers(network))


def test_the_network_itself_is_not_listed_as_a_layer():
    assert find_layers(nn.Conv2d(3, 4, 3)) == []


def test_a_module_under_two_names_is_found_once_and_its_other_names_are_mentioned():
    network = Twins()
    found = {layer.name: layer for layer in find_layers(network)}
    assert list(found) == ["query", "query.0", "query.1"]
    assert found["query"].aliases == ("key",)
    assert found["query.1"].aliases == ("key.1",)
    assert set(found["query.0"].aliases) == {"key.0", "stem"}
    for layer in found.values():
        assert all(network.get_submodule(alias) is layer.module for alias in layer.aliases)


def test_a_network_that_contains_itself_is_listed_once():
    found = {layer.name: layer.aliases for layer in find_layers(Recursive())}
    assert list(found) == ["conv", "child"]


def test_modules_that_refer_to_each_other_are_listed_once():
    network = nn.ModuleList(nn.Module() for _ in range(12))  # 12! paths
    for module in network:
        for number, other in enumerate(network):
            module.add_module(f"to{number}", other)
    assert len(find_layers(network)) == 12


def test_dots_in_names_of_children_are_no_levels():
    """`add_module` refuses them, but a network may hold its modules as it likes."""
    network = nn.Sequential(nn.Sequential(nn.ReLU()))
    network._modules["."] = network._modules["a.b"] = nn.ReLU()
    network[0]._modules[".."] = nn.Conv2d(3, 3, 1)
    found = [(layer.name, layer.aliases) for layer in find_layers(network)]
    assert found == [("0", ()), ("0.0", ()), ("0...", ()), (".", ("a.b",))]


# --- choosing by type


def test_without_a_type_all_conv2d_layers_are_chosen_in_the_order_of_definition():
    assert chosen(Backwards()) == ["last", "never", "middle", "first"]


def test_a_type_is_matched_through_base_classes():
    network = nn.Sequential(MyConv(3, 4, 3), nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.ReLU())
    assert chosen(network) == ["0", "1"]
    assert chosen(network, types=["MyConv"]) == ["0"]
    assert chosen(network, types=["ConvTranspose2d"]) == ["2"]
    assert chosen(network, types=["_ConvNd"]) == ["0", "1", "2"]
    assert chosen(network, types=["ReLU", "MyConv"]) == ["0", "3"]
    assert chosen(network, types=["Module"]) == ["0", "1", "2", "3"]


def test_a_parametrized_convolution_is_a_convolution():
    network = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    assert "0" in chosen(network)


def test_a_quantized_convolution_is_a_convolution_though_it_is_not_torchs():
    with warnings.catch_warnings(action="ignore"):  # announces its own end
        from torch.ao.nn import quantized

        network = nn.Sequential(quantized.Conv2d(3, 4, 3))
    assert not isinstance(network[0], nn.Conv2d)
    assert chosen(network) == ["0"]


def test_conv3d_is_chosen_only_where_there_is_no_conv2d():
    clips = nn.Sequential(nn.Conv3d(3, 4, 3), nn.ReLU())
    assert default_types(find_layers(clips)) == ("Conv3d",)
    assert chosen(clips) == ["0"]
    assert chosen(nn.Sequential(*clips, nn.Conv2d(4, 4, 3))) == ["2"]
    assert default_types(find_layers(nn.Sequential(nn.Linear(3, 4)))) == ("Conv2d",)


def test_a_type_is_a_whole_class_name():
    (layer,) = find_layers(nn.Sequential(nn.Conv2d(3, 4, 3)))
    assert is_type(layer, "Conv2d")
    assert not is_type(layer, "Conv")
    assert not is_type(layer, "conv2d")


@pytest.mark.parametrize(
    ("types", "hint"), [(["Conv2D"], "did you mean 'Conv2d'?"), (["Transformer"], "there are: Conv2d, ReLU")]
)
def test_a_type_that_does_not_occur_is_refused_with_those_that_do(types, hint):
    with pytest.raises(RequestError, match=f"'{types[0]}'") as caught:
        chosen(overwritten(), types=types)
    assert caught.value.hint == hint


def test_one_of_several_types_must_occur():
    assert chosen(overwritten(), types=["Conv2d", "Linear"]) == chosen(overwritten(), types=["Conv2d"])
    assert absent_types(find_layers(overwritten()), ["Linear", "Conv2d", "Block"]) == ["Linear", "Block"]
    with pytest.raises(RequestError, match="'Linear'"):
        chosen(overwritten(), types=["Linear", "Block"])


def test_a_network_without_any_layer_is_refused_with_a_whole_sentence():
    with pytest.raises(RequestError, match="'Conv2d'") as caught:
        chosen(nn.Conv2d(3, 4, 3))
    assert caught.value.hint == "there are: none inside it"


# --- choosing by name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ["layer1.*"]}, ["layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1", "layer1.1.conv2"]),
        ({"include": ["layer1.0.conv1"]}, ["layer1.0.conv1"]),
        ({"include": ["*.downsample.0"]}, ["layer2.0.downsample.0", "layer3.0.downsample.0", "layer4.0.downsample.0"]),
        ({"include": ["layer[34].0.conv?"], "exclude": ["*.conv2"]}, ["layer3.0.conv1", "layer4.0.conv1"]),
        ({"include": ["layer4.0.conv2", "conv1"]}, ["conv1", "layer4.0.conv2"]),
        ({"exclude": ["layer*"]}, ["conv1"]),
        ({"include": ["layer1*"], "types": ["BasicBlock"]}, ["layer1.0", "layer1.1"]),
        ({"include": "layer[1,2].0.conv1,conv1", "exclude": "layer1.*, fc"}, ["conv1", "layer2.0.conv1"]),
        ({"include": "layer4.1,layer4.*.conv1"}, ["layer4.0.conv1", "layer4.1", "layer4.1.conv1"]),
    ],
)
def test_globs_span_dots_and_the_order_is_the_networks(options, expected):
    assert chosen(resnet18(), **options) == expected


def test_a_glob_is_case_sensitive_and_matches_whole_names():
    network = nn.Sequential()
    for name in ("conv", "Conv", "conv1"):
        network.add_module(name, nn.Conv2d(3, 3, 3))
    assert chosen(network, include=["conv"]) == ["conv"]
    assert chosen(network, include=["C*"]) == ["Conv"]


@pytest.mark.parametrize("glob", ["stem", "key.0", "key.*"])
def test_a_layer_is_also_found_by_its_other_names(glob):
    assert chosen(Twins(), include=[glob]) == ["query.0"]


def test_a_layer_is_also_left_out_by_its_other_names():
    with pytest.raises(RequestError, match="no layer is left"):
        chosen(Twins(), exclude=["stem"])


def test_a_glob_without_a_match_is_refused_with_the_nearest_name():
    with pytest.raises(RequestError, match=r"no layer matches 'layer1\.0\.conv3'") as caught:
        chosen(resnet18(), include=["conv1", "layer1.0.conv3"])
    assert "layer1.0.conv2" in caught.value.hint


@pytest.mark.parametrize(
    ("wanted", "near"),
    [("layer5", "'layer4.*'"), ("layer1.2", "'layer1.1.*'"), ("layer9.1.conv1", "'layer4.1.conv1'"), ("conv2", "'conv1'")],
)
def test_the_nearest_name_is_as_deep_as_the_wanted_one(wanted, near):
    with pytest.raises(RequestError) as caught:
        chosen(resnet18(), include=[wanted])
    assert near in caught.value.hint
    named = re.findall("'(.*?)'", caught.value.hint)
    assert {name.removesuffix(".*").count(".") for name in named} == {wanted.count(".")}
    for name in named:
        assert chosen(resnet18(), include=[name])


def test_a_word_that_is_near_no_name_is_refused_with_the_names():
    few = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(5)))
    with pytest.raises(RequestError) as caught:
        chosen(few, include=["conv3"])
    assert caught.value.hint == "there are: 0, 1, 2, 3, 4"
    with pytest.raises(RequestError) as caught:
        chosen(nn.Sequential(*few, *(nn.Conv2d(3, 3, 1) for _ in range(20))), include=["conv3"])
    assert caught.value.hint == "there are: 0, 1, 2, 3 and 21 more; fmapviz.list_layers(model) lists all"


def test_an_exact_name_is_chosen_for_any_type():
    assert chosen(overwritten(), include=["1"]) == ["1"]
    assert chosen(nn.Sequential(nn.ReLU()), include=["0"]) == ["0"]


def test_hints_name_a_list_with_the_searched_layers():
    layers = find_layers(nn.Sequential(*(nn.ReLU() for _ in range(30))))
    with pytest.raises(RequestError) as caught:
        select_layers(layers, types=["ReLU"], include=["head"])
    assert caught.value.hint.endswith("; fmapviz.list_layers(model, types='Module') lists all")
    with pytest.raises(RequestError) as caught:
        select_layers(layers, include=["ReLU"], types=["Module"])
    assert caught.value.hint == "this is a type, no name: types='ReLU'"
    with pytest.raises(RequestError) as caught:
        select_layers(layers, include=["relu"], types=["Module"])
    assert caught.value.hint == "this is a type, no name: types='ReLU'"
    with pytest.raises(RequestError) as caught:
        select_layers(layers, types=["3"])
    assert caught.value.hint == "this is the name of a layer, no type: layers='3'"


def test_a_glob_that_matches_layers_of_another_type_is_refused_with_the_type():
    with pytest.raises(RequestError, match=r"no Conv2d among the layers that match '\[1\]'") as caught:
        chosen(overwritten(), include=["[1]"])
    assert caught.value.hint.endswith("types=['ReLU']")


def test_a_transformer_has_a_notice_about_its_blocks_and_a_network_of_convolutions_has_none():
    with torch.device("meta"):
        transformer, convolutions = torchvision.models.vit_b_32(), torchvision.models.resnet18()
    expected = "vit has 1 Conv2d and 12 blocks, EncoderBlock: both are drawn; types='Conv2d' leaves out the blocks"
    assert notice_blocks("vit", find_layers(transformer)) == expected
    assert notice_blocks("resnet", find_layers(convolutions)) is None
    alone = find_layers(transformer.encoder)
    assert default_types(alone) == ("EncoderBlock",)
    assert notice_blocks("encoder", alone) == "encoder has no convolutions: its 12 blocks are drawn, types='EncoderBlock'"
    assert default_types(alone, blocks=False) == ("Conv2d",)
    with pytest.raises(RequestError) as caught:
        chosen(transformer.encoder, types=["Conv2d"])
    assert caught.value.hint.startswith("types='EncoderBlock' draws its 12 blocks; there are: ")


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.grow, self.shrink = nn.Linear(8, 32), nn.Linear(32, 8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), Mlp()


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.merge = nn.Sequential(Block(), Block()), nn.Linear(8, 8)


def test_blocks_are_neither_their_containers_nor_their_parts():
    stages = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ModuleList([Stage(), Stage(), Stage()]))
    assert repeated_block(find_layers(stages)) == ("Block", 6)
    assert default_types(find_layers(stages)) == ("Block", "Conv2d")
    apart = nn.Module()
    apart.first, apart.second = Block(), Block()
    assert repeated_block(find_layers(apart)) == ("Block", 2)
    assert repeated_block(find_layers(nn.Sequential(*(nn.Linear(8, 8) for _ in range(9))))) is None


@pytest.mark.parametrize("count", [5, 6, 7])
def test_a_network_has_blocks_by_default_only_if_it_has_fewer_convolutions(count):
    network = nn.Sequential(*(nn.Conv2d(8, 8, 1) for _ in range(count)), nn.ModuleList([Stage(), Stage(), Stage()]))
    expected = ("Block", "Conv2d") if count < 6 else ("Conv2d",)
    assert default_types(find_layers(network)) == expected
    assert (notice_blocks("net", find_layers(network)) is None) == (count >= 6)


@pytest.mark.thorough
def test_of_torchvisions_models_only_transformers_draw_blocks_by_default():
    found = {}
    for name in model_names():
        layers = find_layers(outline_model(name).module)
        if not set(default_types(layers)) <= {"Conv2d", "Conv3d"}:
            found[name] = default_types(layers)
    plain = dict.fromkeys(model_names("vit_*"), ("Conv2d", "EncoderBlock"))
    shifted = {name: ("Conv2d", f"SwinTransformerBlock{'V2' if '_v2' in name else ''}") for name in model_names("swin_*")}
    clips = dict.fromkeys(model_names("swin3d_*"), ("Conv3d", "SwinTransformerBlock"))
    assert found == plain | shifted | clips
    assert (len(plain), len(shifted), len(clips)) == (5, 6, 3)


def test_excluding_all_layers_is_refused():
    with pytest.raises(RequestError, match="no layer is left"):
        chosen(overwritten(), exclude=["*"])


# --- wrappers


@pytest.mark.thorough
def test_any_number_of_wrappers_is_removed():
    network = overwritten()
    assert unwrap(network) is network
    assert unwrap(nn.DataParallel(network)) is network
    assert unwrap(torch.compile(network, backend="eager")) is network
    assert unwrap(torch.compile(nn.DataParallel(torch.compile(network, backend="eager")), backend="eager")) is network


def test_a_network_with_a_part_called_module_is_not_a_wrapper():
    network = nn.Module()
    network.module = nn.Conv2d(3, 4, 3)
    assert unwrap(network) is network


@pytest.mark.parametrize("make", [torch.jit.script, lambda network: torch.jit.trace(network, images())])
def test_a_scripted_model_is_refused(make):
    with warnings.catch_warnings(action="ignore"):  # announces its own end
        scripted = make(overwritten())
    for wrapped in (scripted, nn.DataParallel(scripted)):
        with pytest.raises(RequestError, match="hooks need Python modules") as caught:
            unwrap(wrapped)
        assert caught.value.hint == "pass the nn.Module it was made from"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.jit announces its own end
def test_the_scripted_parts_of_a_network_are_named():
    block = torch.jit.script(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()))
    network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(block))
    assert scripted_parts(find_layers(network)) == ["1.0"]
    assert chosen(network) == ["0"]
    assert scripted_parts(find_layers(nn.Sequential(nn.Conv2d(3, 3, 1)))) == []


@pytest.mark.thorough
def test_an_exported_model_is_refused():
    with warnings.catch_warnings(action="ignore"):
        exported = torch.export.export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (images(),))
    with pytest.raises(RequestError, match="ExportedProgram: hooks need Python modules"):
        unwrap(exported)
    with pytest.raises(RequestError, match=r"torch\.export calls no layers") as caught:
        unwrap(exported.module())  # its convolutions are calls of functions
    assert "the nn.Module it was exported from" in caught.value.hint


@pytest.mark.parametrize("thing", ["alexnet", {"weight": torch.zeros(1)}, nn.Conv2d, None])
def test_a_value_that_is_no_module_is_refused(thing):
    with pytest.raises(RequestError, match=r"^not an nn\.Module: "):
        unwrap(thing)


# --- what the default types leave out


class Mixer(nn.Module):
    """A layer of a type of its own, with weights of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))


def left_out(network, **narrowing):
    layers = find_layers(network)
    return notice_left_out(layers, select_layers(layers, **narrowing), **narrowing)


def test_layers_of_other_types_that_a_glob_matches_are_counted_by_type():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(), nn.Identity()
    )
    assert left_out(network, include="*") == (
        "layers= matches 3 layers of other types, which are left out: 2 LayerNorm, 1 Linear; types= chooses others"
    )
    assert "matches 2 layers" in left_out(network, include="*", exclude="1")
    assert "1 layer of other types, which is left out: 1 Linear" in left_out(network, include="[0,2]")
    assert left_out(network, include="0") is None
    assert left_out(network, include="0,2") is None  # which names the linear one, and so chooses it
    assert left_out(network, include="*", exclude="1,2,3") is None


@pytest.mark.parametrize(
    "name", ["resnet18", "vit_b_32", *thorough("alexnet", "vgg11_bn", "mobilenet_v3_small", "densenet121", "swin_t")]
)
def test_norms_activations_and_a_linear_head_are_not_reported_as_left_out(name):
    assert left_out(outline_model(name).module) is None


@pytest.mark.parametrize("kind", [lambda: nn.Conv1d(4, 4, 3), lambda: nn.ConvTranspose2d(4, 4, 3), Mixer])
def test_half_of_the_layers_with_weights_left_out_is_reported(kind):
    name = type(kind()).__name__
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), kind(), kind(), nn.ReLU(), nn.Linear(4, 4))
    assert left_out(network) == (
        f"2 of the 4 layers with weights are of other types, which are left out: 2 {name}; types= chooses others"
    )
    assert left_out(network, exclude="2") is None
    assert left_out(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), kind())) is None


def test_modules_inside_chosen_layers_are_not_reported_as_left_out():
    network = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    assert left_out(network) is None
