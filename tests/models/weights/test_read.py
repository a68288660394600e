"""Checkpoints as training scripts, Lightning and Hugging Face leave them; and nothing in them is run."""

from __future__ import annotations

import argparse
import builtins
import collections
import gzip
import hashlib
import importlib
import json
import os
import pickle
import shlex
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from allpairspy import AllPairs
from cases import thorough
from checkpoint_files import Call, Malice, assert_holds, fill
from safetensors.torch import save_file
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.optim.swa_utils import AveragedModel

from fmapviz.errors import WeightsError, printable, quote
from fmapviz.models.weights.file import digesting, find_weights
from fmapviz.models.weights.read import read_checkpoint
from fmapviz.models.weights.stand_ins import Inert, load_inertly


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))


@pytest.fixture
def state():
    return network().state_dict()


@pytest.fixture
def save(tmp_path):
    def write(content, name="weights.pth", **how):
        torch.save(content, tmp_path / name, **how)
        return tmp_path / name

    return write


@pytest.fixture
def lightning(tmp_path, monkeypatch):
    """A module whose classes are as those that Lightning and projects pickle; it is gone when the file is read.

    Importing it a second time leaves a trace.
    """
    source = f"""
import enum
from pathlib import Path
trace = Path({str(tmp_path / "imported")!r})
trace.write_text(trace.read_text() + "." if trace.exists() else ".")

class AttributeDict(dict):
    def __getattr__(self, key):
        return self[key]

class Names(list):
    pass

class Config:
    def __init__(self):
        self.lr = 0.1
    def __setstate__(self, state):
        trace.write_text("ran")

class Slots:
    __slots__ = ("a",)
    def __init__(self):
        self.a = 1

class Stage(enum.Enum):
    FIT = "fit"

def scheduled(*args):
    trace.write_text("ran")
"""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/my_lightning.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "code")
    module = importlib.import_module("my_lightning")
    yield module
    assert (tmp_path / "imported").read_text() == "."
    sys.modules.pop("my_lightning", None)


def forget(module):
    """Remove a module from memory, so that using one of its classes imports it."""
    del sys.modules[module.__name__]


def lightning_file(classes, state):
    parameters = classes.AttributeDict(lr=0.1, data=PurePosixPath("/data"), classes=["cat", "dog"])
    return {
        "epoch": np.float64(3),
        "global_step": np.int64(1000),
        "pytorch-lightning_version": "2.5.0",
        "state_dict": collections.OrderedDict((f"model.{key}", values) for key, values in state.items()),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}, "stage": classes.Stage.FIT}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"best": torch.tensor(0.5), "dirpath": PurePosixPath("/a")}},
        "optimizer_states": [
            torch.optim.Adam([nn.Parameter(torch.ones(2))]).state_dict(),
            collections.defaultdict(dict, a={}),
        ],
        "lr_schedulers": [{"base_lrs": np.array([0.1]), "call": Call(classes.scheduled, 1)}],
        "hparams_name": "kwargs",
        "hyper_parameters": parameters,
        "args": argparse.Namespace(lr=0.1, config=classes.Config()),
        "more": [classes.Names(["a", "b"]), classes.Slots(), classes.Config, frozenset({1}), range(3)],
    }


# Python objects beside the weights


def test_a_checkpoint_of_lightning_is_read_and_nothing_in_it_runs(lightning, state, save):
    path = save(lightning_file(lightning, state), "last.ckpt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)  # what this test is about
    forget(lightning)
    module = network()
    loaded = fill(module, str(path))
    assert_holds(module, state)
    assert loaded.classes == ("cat", "dog")
    assert loaded.notices[0].startswith(f"ignored Python objects in '{path}': argparse.Namespace")
    assert "more" in loaded.notices[0]
    assert "my_lightning" not in sys.modules


def test_foreign_objects_become_placeholders(lightning, state, save):
    content = lightning_file(lightning, state)
    path = save(content, "last.ckpt")
    forget(lightning)
    allowed = set(torch.serialization.get_safe_globals())
    read, names = load_inertly(path)
    assert set(torch.serialization.get_safe_globals()) == allowed
    assert type(read["hyper_parameters"]) is collections.OrderedDict
    assert read["hyper_parameters"]["lr"] == 0.1
    assert read["optimizer_states"][1] == {"a": {}}
    assert read["more"][0] == ["a", "b"]
    for object_ in (read["args"], read["epoch"], read["more"][1], read["lr_schedulers"][0]["call"]):
        assert isinstance(object_, Inert)
        assert vars(object_).keys() <= {"arguments", "state"}
    assert read["args"].spelling == "argparse.Namespace"
    assert read["args"].state["lr"] == 0.1
    assert issubclass(read["more"][2], Inert)  # a class is one, not an object of it
    assert {"my_lightning.Config", "my_lightning.scheduled", "numpy.dtype", "builtins.range"} <= set(names)


@pytest.mark.thorough
def test_several_threads_read_at_once(lightning, state, save):
    content = lightning_file(lightning, state)
    path = save(content, "last.ckpt")
    forget(lightning)
    alone = read_checkpoint(path)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            checkpoints = list(pool.map(read_checkpoint, [path] * 32))
    finally:
        sys.setswitchinterval(interval)
    for checkpoint in checkpoints:
        assert checkpoint.state.keys() == {f"model.{key}" for key in state}
        assert checkpoint.notices == alone.notices


def _calls(marker):
    """Return calls that leave a file if they are executed."""
    touch = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return {
        "eval": Call(builtins.eval, touch),
        "exec": Call(builtins.exec, touch),
        "open": Call(builtins.open, str(marker), "w"),
        "os": Malice(marker),
        "subprocess": Call(subprocess.call, ["touch", str(marker)]),
        "write": Call(Path.write_text, Path(marker), ""),
        "import": Call(importlib.import_module, "canary"),
        "load": Call(torch.load, str(marker), None, None),
        "getattr": Call(Call(getattr, Call(importlib.import_module, "os"), "system"), f"touch '{marker}'"),
        "lambda": Call(Call(builtins.eval, f"lambda: {touch}")),
    }


@pytest.mark.parametrize(
    ("kind", "place"),
    [*((kind, "beside") for kind in _calls("x")), *product(("eval", "os"), ("within", "key", "first"))],
)
def test_reading_a_checkpoint_calls_nothing(kind, place, state, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    (tmp_path / "canary.py").write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    call = _calls(marker)[kind]
    path = tmp_path / "weights.pth"
    content = {
        "beside": {"state_dict": state, "epoch": call},
        "within": {"state_dict": {**state, "0.weight": call}},
        "key": {"state_dict": state, (1, call): 1},
        "first": [call, state],
    }
    torch.save(content[place], path)
    refused = kind in {"os", "getattr", "lambda", "write"} or place in {"within", "first"}
    if refused:
        with pytest.raises(WeightsError) as caught:
            read_checkpoint(path)
        assert str(caught.value).startswith("refused: ")
    else:
        assert read_checkpoint(path).state.keys() == state.keys()
    assert not marker.exists()
    assert "canary" not in sys.modules


def test_the_attacks_work_without_weights_only(state, save, tmp_path):
    """Otherwise the test above would prove nothing."""
    for kind in ("eval", "exec", "os", "subprocess", "getattr", "lambda", "write"):
        marker = tmp_path / kind
        torch.load(save({"state_dict": state, "epoch": _calls(marker)[kind]}), weights_only=False)
        assert marker.exists(), kind


def test_foreign_names_are_never_resolved(state, save):
    functions = [torch.load, getattr, importlib.import_module, eval, exec, compile, subprocess.call, open]
    content, names = load_inertly(save({"state_dict": state, "functions": functions}))
    for function, found in zip(functions, content["functions"], strict=True):
        assert found is not function
        assert issubclass(found, Inert)
        assert isinstance(found("anything"), Inert)
    assert "builtins.eval" in names


@pytest.mark.parametrize("function", [os.system, os.popen, sys.exit])
def test_references_to_the_system_are_refused_even_if_not_called(function, state, save):
    with pytest.raises(WeightsError, match="refused: "):
        read_checkpoint(save({"state_dict": state, "function": function}) if function is os.system else save(
            {"state_dict": state, "function": Call(function, "x")}))  # fmt: skip


def test_the_old_format_with_python_objects_is_refused(state, save):
    path = save({"state_dict": state, "args": argparse.Namespace(lr=1)}, _use_new_zipfile_serialization=False)
    with pytest.raises(WeightsError, match=r"refused: .* \(argparse.Namespace\)"):
        read_checkpoint(path)


# Where the state dict is


@pytest.mark.parametrize(
    "nest", ["state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params"]
)
def test_common_names_of_state_dicts_are_recognised(nest, state, save):
    beside = {"meters": {"loss": torch.tensor(0.5)}, "optimizer": {"state": {"0": {"step": torch.ones(1)}}}}
    checkpoint = read_checkpoint(save({"epoch": 3, **beside, nest: state}))
    assert checkpoint.state.keys() == state.keys()
    assert checkpoint.notices == ()


def test_the_first_common_name_is_loaded_and_others_are_reported(state, save):
    other = {key: values + 1 for key, values in state.items()}
    path = save({"params": other, "model": other, "state_dict": state})
    checkpoint = read_checkpoint(path)
    assert torch.equal(checkpoint.state["0.weight"], state["0.weight"])
    assert checkpoint.notices == (f"'{path}' also contains 'params', 'model': weights='{path}#params' loads the first",)


def averaged(module):
    average = AveragedModel(module)
    average.update_parameters(module)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.add_(1)
    return average


@pytest.mark.parametrize(
    ("place", "entry"),
    [
        (lambda ema: {"ema": ema}, "ema"),
        (lambda ema: {"model_ema": ema}, "model_ema"),
        (lambda ema: {"state_dict_ema": ema}, "state_dict_ema"),
        (lambda ema: {"ema": {"state_dict": ema, "decay": 0.99}}, "ema.state_dict"),
        (lambda ema: {"ema": {"state_dict": ema, "decay": 0.99}}, "ema"),
        (lambda ema: {"callbacks": {"EMA.v2": {"model": ema}}}, "callbacks.EMA.v2"),
    ],
)
def test_a_moving_average_is_loaded_only_on_request(place, entry, save):
    module, target = network(), network()
    average = averaged(module)
    assert "n_averaged" in average.state_dict()
    path = save({"model": module.state_dict(), **place(average.state_dict())}, "file.pth")
    loaded = fill(target, str(path))
    assert_holds(target, module.state_dict())
    assert "also contains" in loaded.notices[0]
    loaded = fill(target, f"{path}#{entry}")
    assert_holds(target, average.module.state_dict())
    assert loaded.name == f"file.pth#{entry}"
    assert not any("also contains" in notice for notice in loaded.notices)


def test_the_text_of_a_notice_is_a_valid_value_of_weights(save, state):
    path = save({"model": state, "training": {"ema": {"weights": {key: values + 1 for key, values in state.items()}}}})
    (notice,) = read_checkpoint(path).notices
    assert "'training.ema.weights'" in notice
    found = find_weights(notice.rsplit("'", 2)[1])
    assert found == (path, "training.ema.weights")
    assert torch.equal(read_checkpoint(*found).state["0.bias"], state["0.bias"] + 1)


def test_a_missing_entry_is_an_error_with_the_existing_ones(save, state):
    path = save({"model": {f"net.{key}": values for key, values in state.items()}, "ema": state})
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(path, "emma")
    assert str(caught.value) == "no entry 'emma' in the weights file"
    assert caught.value.hint == "there are: 'model', 'ema'; parts of the weights: 'net'"
    with pytest.raises(WeightsError, match="no state dict"):
        read_checkpoint(save({"model": state, "epoch": 3}), "epoch")


def test_the_only_state_dict_is_loaded_under_any_name(save, state):
    path = save({"generator": {"weights_": state}, "optimizer_g": {"exp": {"avg": torch.ones(3)}}, "loss": torch.ones(1)})
    checkpoint = read_checkpoint(path)
    assert checkpoint.state.keys() == state.keys()
    assert checkpoint.notices == (f"loaded the state dict under 'generator.weights_' in '{path}'",)


def test_several_state_dicts_without_a_common_name_need_a_choice(save, state):
    path = save({"teacher": state, "student": {key: values + 1 for key, values in state.items()}})
    with pytest.raises(WeightsError, match="several state dicts: 'teacher', 'student'") as caught:
        read_checkpoint(path)
    assert "FILE#teacher" in caught.value.hint
    assert torch.equal(read_checkpoint(path, "student").state["0.bias"], state["0.bias"] + 1)
    with pytest.raises(WeightsError, match=r"no entry 'x' in"):
        read_checkpoint(path, "x")


def test_other_weights_do_not_replace_unreadable_ones(save, state):
    """An average is loaded on request only, also if the model itself was pickled."""
    for content in ({"model": Holder(network()), "ema": state}, {"state_dict": {**state, "x": [3]}, "ema": state}):
        path = save(content)
        with pytest.raises(WeightsError, match=r"refused|no state dict"):
            read_checkpoint(path)
        assert read_checkpoint(path, "ema").state.keys() == state.keys()
    content = {"params": {"lr": 0.1}, "model": "resnet18", "net_g": state}
    assert read_checkpoint(save(content)).state.keys() == state.keys()


def test_recursive_and_too_deep_content_is_refused(save, state):
    circle = {"a": state}
    circle["b"] = circle
    deep, limit = {}, sys.getrecursionlimit()
    for _ in range(limit * 2):
        deep = {"model": deep}
    path = save(circle)
    with pytest.raises(WeightsError, match="nested too deeply"):
        read_checkpoint(path)
    assert read_checkpoint(path, "a").state.keys() == state.keys()
    sys.setrecursionlimit(limit * 20)  # for writing it
    try:
        in_python = SimpleNamespace(__name__="pickle", Pickler=pickle._Pickler)  # in C, 3.12 has a limit that cannot be set
        path = save(deep, pickle_module=in_python)
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(WeightsError, match="nested too deeply"):
        read_checkpoint(path)


def test_exponentially_repeated_content_is_refused(save, state):
    """In the file each is there once, but a search through them does not end."""
    for names in (("a", "b"), ("model", "net"), ("meta", "config")):
        content = {"epoch": 3}
        for _ in range(60):
            content = dict.fromkeys(names, content)
        with pytest.raises(WeightsError, match="nested too deeply"):
            read_checkpoint(save({**content, "weights": state}))


def test_an_optimizer_of_many_parameters_is_accepted(save, state):
    optimizer = {"state": {number: {"step": 1.0, "more": {}} for number in range(5000)}}
    assert read_checkpoint(save({"state_dict": state, "optimizer": optimizer})).state.keys() == state.keys()


# What is damaged


@pytest.mark.thorough
def test_a_damaged_byte_of_an_archive_is_detected(save, state):
    path = save(state)
    whole, refused = path.read_bytes(), 0
    for position in (*range(0, len(whole), 7), *range(whole.index(b"PK\1\2"), len(whole))):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            found = read_checkpoint(path).state
        except WeightsError:
            refused += 1
        else:
            assert found.keys() == state.keys()  # it was between the tensors
            assert all(torch.equal(values, state[key]) for key, values in found.items())
    assert refused > sum(values.nbytes for values in state.values()) / 7


def test_a_damaged_tensor_is_reported(save):
    path = save({"a": torch.zeros(1000)})
    whole = path.read_bytes()
    at = whole.index(bytes(4000)) + 2000
    path.write_bytes(whole[:at] + b"\1" + whole[at + 1 :])
    with pytest.raises(WeightsError, match="checksum does not match"):
        read_checkpoint(path)


@pytest.fixture
def without_checksums():
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


def test_an_archive_without_checksums_is_read(without_checksums, save, state):
    path = save(state)
    with zipfile.ZipFile(path) as archive:
        assert {entry.CRC for entry in archive.infolist()} == {0}
    assert read_checkpoint(path).state.keys() == state.keys()


def packed(path, target):
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name in archive.namelist():
            made.writestr(name, archive.read(name))
    return target


def test_a_compressed_archive_is_read(save, state, tmp_path):
    assert read_checkpoint(packed(save(state), tmp_path / "packed.pth")).state.keys() == state.keys()


def test_an_archive_that_unpacks_to_far_more_than_itself_is_refused(save, state, tmp_path, monkeypatch):
    monkeypatch.setattr("fmapviz.models.weights.read._UNPACKED_BYTES", 2**22)  # to write fewer bytes
    path = tmp_path / "packed.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with zipfile.ZipFile(save(state)) as whole:
            archive.writestr("packed/data.pkl", whole.read("weights/data.pkl"))
        for number in range(3):
            archive.writestr(f"packed/data/{number}", bytes(2**21))
    assert path.stat().st_size < 2**16
    with pytest.raises(WeightsError, match="unpacks to 6,29"):
        read_checkpoint(path)


@pytest.mark.parametrize(("place", "values"), [(b"data.pkl", b"\xff"), (b"PK\1\2\0\0", b"PK\1\2\xff\xff\xff\xff")])
def test_an_archive_whose_directory_is_damaged_is_refused(place, values, save, state):
    path = save(state)
    content = path.read_bytes()
    at = content.rindex(place)
    path.write_bytes(content[:at] + values + content[at + len(values) :])
    with pytest.raises(WeightsError, match="cannot read"):
        read_checkpoint(path)


# What is found by what is typed


def test_a_file_with_a_number_sign_in_its_name_is_that_file(save, state):
    path = save(state, "a#ema")
    save({"ema": state}, "a")
    assert find_weights(str(path)) == (path, None)
    assert find_weights(f"{path}#b") == (path, "b")
    path.unlink()
    assert find_weights(f"{path}") == (path.with_name("a"), "ema")


def test_an_entry_of_a_url_is_loaded(save, state):
    path = save({"model": state, "ema": {key: values + 1 for key, values in state.items()}}, "a#b.pth")
    assert "%23" in path.as_uri()
    assert find_weights(path.as_uri()) == (path, None)
    assert find_weights(f"{path.as_uri()}#ema") == (path, "ema")


@pytest.mark.parametrize(
    "weights", ["none.pth", "none.pth#ema", "folder/none#ema", "#ema", "./#", "x.pth#", "", "x" * 5000, f"{'x' * 5000}#ema"]
)
def test_a_missing_file_is_an_error(weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="no such weights"):
        find_weights(weights)


def test_misspelled_words_have_a_hint():
    with pytest.raises(WeightsError, match="no such weights or file: 'defualt'") as caught:
        find_weights("defualt", known=("default", "random"))
    assert caught.value.hint == "did you mean 'default'?"
    with pytest.raises(WeightsError) as caught:
        find_weights("qqq", known=("default", "random"))
    assert caught.value.hint == "there are: default, random"


# Hugging Face's folders


def write_shards(folder, state, *, safe=True, first="model"):
    """Write a sharded checkpoint as `huggingface_hub.save_torch_state_dict` does; return its index."""
    suffix = "safetensors" if safe else "bin"
    keys = list(state)
    shards = {f"{first}-0000{number}-of-00002.{suffix}": keys[number - 1 :: 2] for number in (1, 2)}
    for name, part in shards.items():
        content = {key: state[key].clone() for key in part}
        (save_file if safe else torch.save)(content, folder / name)
    index = folder / f"{first}.{suffix}.index.json"
    weight_map = {key: name for name, part in shards.items() for key in part}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("typed", ["index", "folder"])
def test_weights_in_several_files_are_loaded(safe, typed, state, tmp_path):
    index = write_shards(tmp_path, state, safe=safe, first="model" if safe else "pytorch_model")
    module = network()
    loaded = fill(module, str(index if typed == "index" else tmp_path))
    assert_holds(module, state)
    assert loaded.name == index.name
    shards = sorted(tmp_path.glob("*-of-00002.*"))
    assert len(shards) == 2
    assert loaded.sha256 == hashlib.sha256(b"".join(path.read_bytes() for path in (index, *shards))).hexdigest()


def test_weights_in_several_files_of_hugging_face_are_loaded(state, tmp_path):
    from extras import huggingface_hub

    huggingface_hub.save_torch_state_dict(dict(state), tmp_path, max_shard_size=100)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    module = network()
    fill(module, str(tmp_path))
    assert_holds(module, state)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_with_one_file_is_loaded(name, state, tmp_path):
    (save_file if name.endswith("safetensors") else torch.save)(state, tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    assert find_weights(str(tmp_path)) == (tmp_path / name, None)
    assert find_weights(f"{tmp_path}#net") == (tmp_path / name, "net")
    file, _ = find_weights(str(tmp_path))
    assert read_checkpoint(file).state.keys() == state.keys()
    with digesting(file) as digest:
        assert digest.result() == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    module = network()
    assert fill(module, str(tmp_path)).name == name
    assert_holds(module, state)


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(WeightsError, match="no such weights file") as caught:
        find_weights(str(tmp_path))
    assert "model.safetensors" in caught.value.hint


def test_an_index_with_missing_files_or_tensors_is_refused(state, tmp_path):
    index = write_shards(tmp_path, state)
    content = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], "none": content["weight_map"]["0.weight"]}}))
    with pytest.raises(WeightsError, match=r"a tensor that is not in 'model-00001-of-\d+\.safetensors': 'none'"):
        read_checkpoint(index)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    for attempt in (lambda: read_checkpoint(index), lambda: fill(network(), str(index))):
        with pytest.raises(WeightsError, match=r"a missing file: 'model-00002-of-\d+\.safetensors'"):
            attempt()


@pytest.mark.parametrize(
    "name",
    [
        "../out.safetensors",
        "/out.safetensors",
        "a/b.safetensors",
        "..",
        ".",
        "",
        "a\\b",
        "a\0b",
        3,
        "model.safetensors.index.json",
    ],
)
def test_an_index_that_names_other_folders_is_refused(name, state, tmp_path):
    save_file(state, tmp_path / "out.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    name = str(tmp_path / "out.safetensors") if name == "/out.safetensors" else name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(state, name)}))
    with pytest.raises(WeightsError, match=r"refused: .* a file that is not beside it"):
        read_checkpoint(folder / "model.safetensors.index.json")
    with digesting(folder / "model.safetensors.index.json") as digest:
        assert isinstance(digest.exception(), WeightsError)


@pytest.mark.parametrize("name", ["x" * 256, "\u00e9" * 128, "\ud800"])
def test_an_index_with_impossible_file_names_is_refused(name, tmp_path):
    (tmp_path / "a.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match=r"names a (file with an impossible name|missing file)"):
        fill(network(), str(tmp_path / "a.index.json"))


@pytest.mark.parametrize("content", [[torch.ones(3)], argparse.Namespace(), {"model": {"a": torch.ones(3)}}])
def test_an_index_whose_file_is_no_state_dict_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "a.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "a.bin"}}')
    with pytest.raises(WeightsError, match=r"no state dict in '.*a\.bin'"):
        read_checkpoint(tmp_path / "pytorch_model.bin.index.json")


def test_links_in_a_folder_are_followed(state, tmp_path):
    """Hugging Face's cache consists of links."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for path in write_shards(tmp_path / "blobs", state).parent.iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    module = network()
    fill(module, str(tmp_path / "snapshot"))
    assert_holds(module, state)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": ["b"]}}', "\x00"])
def test_a_malformed_index_is_refused(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match="not an index of weights"):
        read_checkpoint(tmp_path / "model.safetensors.index.json")


# The names of the classes


@pytest.mark.parametrize(
    ("key", "place", "kind"),
    [
        *AllPairs(
            [
                ["classes", "class_names", "categories", "names", "labels", "CLASSES", "id2label"],
                [None, "hyper_parameters", "config", "meta"],
                [list, tuple, dict],
            ]
        )
    ],
)
def test_class_names_are_read(key, place, kind, state, save):
    names = dict(enumerate(["cat", "dog", "ä"])) if kind is dict else kind(["cat", "dog", "ä"])
    content = {"state_dict": state, "epoch": 3, **({key: names} if place is None else {place: {key: names}})}
    assert read_checkpoint(save(content)).classes == ("cat", "dog", "ä")


@pytest.mark.parametrize(
    "names", [{"dog": 1, "cat": 0}, {"0": "cat", "1": "dog"}, {1: "dog", 0: "cat"}, {"1": "dog", "0": "cat"}]
)
def test_class_names_are_read_with_their_numbers(names, state, save):
    assert read_checkpoint(save({"model": state, "class_to_idx": names})).classes == ("cat", "dog")


@pytest.mark.parametrize(
    "names", [3, "cat", ["cat", 3], {}, [], {"cat": 0, "dog": 2}, {"cat": 0, "dog": 0}, {"a": "b"}, {0.5: "cat"}, None,
              torch.ones(3), {0: 1}, {True: "cat"}, {"²": "cat"}]
)  # fmt: skip
def test_other_lists_are_no_class_names(names, state, save):
    assert read_checkpoint(save({"model": state, "names": names})).classes == ()
    assert read_checkpoint(save({"model": state, "names": names, "labels": ["a"]})).classes == ("a",)


def test_a_huge_class_number_takes_no_memory(save, state):
    assert read_checkpoint(save({"state_dict": state, "id2label": {"9" * 5000: "cat"}})).classes == ()


def test_class_names_are_read_from_a_safetensors_header(state, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(state, path, metadata={"format": "pt", "id2label": json.dumps({0: "cat", 1: "dog"}), "config": "{"})
    assert read_checkpoint(path).classes == ("cat", "dog")
    save_file(state, path, metadata={"config": json.dumps({"id2label": {0: "a", 1: "b"}})})
    assert read_checkpoint(path).classes == ("a", "b")
    save_file(state, path, metadata={"classes": "cat,dog"})
    assert read_checkpoint(path).classes == ()


# What is no state dict


def script(path):
    torch.jit.script(nn.Conv2d(3, 4, 3)).save(path)


def export(path):
    torch.export.save(torch.export.export(nn.Conv2d(3, 4, 3).eval(), (torch.zeros(1, 3, 8, 8),)), path)


def arrays(path):
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))


def array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def keras(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n")


def zipped(path):
    torch.save({}, path)
    weights = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.pth", weights)


def safetensors(path):
    save_file({"a": torch.ones(3)}, path)


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors", "weights"])
@pytest.mark.parametrize(
    ("content", "kind", "advice"),
    [
        (b"<!DOCTYPE html><html><body>Not here</body></html>", "a web page", "the link to the file itself"),
        (b"\xef\xbb\xbf\n  <HTML lang='de'>", "a web page", "the link to the file itself"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer", "git lfs pull"),
        (b'{"error": "Repository not found\x1b[31m"}', 'a JSON text that begins with {"error"', "download the weights"),
        (b'[{"id": 1}]', "a JSON text", "download the weights"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file", "PyTorch"),
        (b"\x08\x08\x12\x07pytorch\x1a\x051.13", "an ONNX model", "PyTorch model it was exported from"),
        (script, "a TorchScript archive", "torch.jit.load("),
        *thorough((export, "an exported program", "torch.export.load(")),  # its export imports a compiler
        (arrays, "a NumPy archive", "torch.from_numpy"),
        (array, "a NumPy array", "torch.save"),
        (keras, "a Keras archive", "PyTorch"),
        (b"<?xml version='1.0'?>\n<html lang='de'>", "a web page", "the link to the file itself"),
        (b"<?xml version='1.0'?>\n<Error>AccessDenied</Error>", "a text that begins with <?xml", "an error message"),
        ("Nicht gefunden: Gewichte für 'n'\n".encode(), "a text that begins with Nicht gefunden", "an error message"),
        (gzip.compress(b"weights", mtime=0), "a compressed file", "unpack it"),
        (zipped, "a ZIP archive without a checkpoint", "unpack it"),
        (bytes(257) + b"ustar" + bytes(250), "a tar archive", "unpack it"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "a picture or a document", "inputs follow the model"),
    ],
)  # fmt: skip
def test_files_of_other_kinds_are_refused(content, kind, advice, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"cannot read '{path}': it is {kind}")
    assert message.isprintable()
    assert advice in caught.value.hint


def test_onnx_files_are_recognised_by_name(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"\x08\x07\x12\x03tf2")
    with pytest.raises(WeightsError, match="an ONNX model"):
        read_checkpoint(tmp_path / "net.onnx")


def test_safetensors_are_recognised_under_another_name(tmp_path):
    safetensors(tmp_path / "net.pth")
    with pytest.raises(WeightsError, match="it is a safetensors file") as caught:
        read_checkpoint(tmp_path / "net.pth")
    (tmp_path / "net.pth").rename(tmp_path / caught.value.hint.split("'")[1])
    assert read_checkpoint(tmp_path / "net.safetensors").state["a"].tolist() == [1, 1, 1]


ODD_NAMES = (
    "a b.pt",
    "it's.pt",
    '"quoted".pt',
    "$HOME.pt",
    "`id`.pt",
    "back\\slash.pt",
    "two\nlines.pt",
    "-ré🙂{0}.pt",
    "!\udcff.pt",
)


def run_printed(hint):
    """Run the Python of a command at the end of a hint, as a shell and Python read what is printed."""
    python, flag, code = shlex.split(printable(hint.partition(": ")[2]))
    assert (python, flag) == ("python", "-c")
    exec(code, {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "name"), [(script, "s.pt"), *thorough((export, "e.pt2")), (arrays, "a.npz"), (arrays, "it's.npz")]
)
def test_the_command_of_a_hint_saves_a_state_dict(make, name, tmp_path, monkeypatch):
    make(tmp_path / name)
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    run_printed(caught.value.hint)
    assert read_checkpoint(tmp_path / "weights.pth").state.keys() in ({"weight", "bias"}, {"a"})


class Holder:
    """Something that is no module of torch, and has a state dict."""

    def __init__(self, module):
        self.module = module

    def state_dict(self):
        return self.module.state_dict()


@pytest.mark.parametrize(("nest", "name"), [("model", "yolo.pt"), ("ema", "yolo.pt"), *((None, name) for name in ODD_NAMES)])
def test_an_object_in_place_of_a_network_is_refused_with_the_conversion(nest, name, tmp_path, monkeypatch):
    module = network()
    path = tmp_path / name
    torch.save(Holder(module) if nest is None else {"epoch": -1, nest: Holder(module), "optimizer": None}, path)
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"refused: {quote(path)} contains a whole model ({Holder.__module__}.Holder)")
    assert "runs what is in the file: " in caught.value.hint
    monkeypatch.chdir(tmp_path)
    run_printed(caught.value.hint)
    assert_holds_file(tmp_path / "weights.pth", module)


@pytest.mark.parametrize(("nest", "name"), [(None, "yolo.pt"), ("model", "yolo.pt"), ("ema", "yolo.pt")])
def test_the_tensors_of_a_pickled_network_are_read_and_no_class_of_it_is_looked_up(nest, name, tmp_path):
    module = network()
    module.classes, module.names = ["cat", "dog"], {0: "cat", 1: "dog"}
    path = tmp_path / name
    torch.save(module if nest is None else {"epoch": -1, nest: module, "optimizer": None}, path)
    assert_holds_file(path, module)
    read = read_checkpoint(path)
    assert read.classes == ("cat", "dog")
    (notice,) = read.notices[-1:]
    assert "only the tensors of the network pickled in" in notice
    assert "torch.nn.modules.container.Sequential" in notice


class Odd(nn.Module):
    """A network with shared and empty parts, and with tensors that its state dict does not have."""

    def __init__(self, seed):
        super().__init__()
        part = nn.Sequential(nn.Conv2d(seed % 3 + 1, 2, 1), nn.BatchNorm2d(2))
        self.first, self.again, self.none = part, part, None
        self.parts = nn.ModuleDict({"a": nn.ParameterList([torch.rand(2)]), "b": nn.Identity()})
        self.weight, self.empty = nn.Parameter(torch.rand(seed + 1)), None
        self.register_parameter("nothing", None)
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("hidden", torch.arange(3), persistent=False)
        self.other = torch.rand(3)
        if seed % 2:
            self.half()


@pytest.mark.parametrize("seed", range(4))
def test_the_tensors_of_a_pickled_network_are_those_of_its_state_dict(seed, save):
    module = Odd(seed)
    read = read_checkpoint(save({"model": module}))
    expected = module.state_dict()
    assert [*read.state] == [*expected]
    assert all(torch.equal(read.state[key], expected[key]) for key in expected)


def test_a_pickled_network_whose_parts_hold_each_other_many_times_is_refused(save):
    module = nn.Linear(1, 1)
    for _ in range(40):
        module = nn.Sequential(module, module)
    with pytest.raises(WeightsError, match="nested too deeply"):
        read_checkpoint(save({"model": module}))


def assert_holds_file(path, module):
    other = network()
    fill(other, str(path))
    assert_holds(other, module.state_dict())


@pytest.mark.filterwarnings("ignore")  # this way to quantise is deprecated
def test_a_quantised_model_is_refused(save):
    quantised = quantize_dynamic(nn.Sequential(nn.Linear(3, 4)), dtype=torch.qint8)
    with pytest.raises(WeightsError, match="it is quantised"):
        read_checkpoint(save({"model": quantised.state_dict()}))


def test_a_head_with_swapped_axes_is_reported_as_transposed(save):
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(6, 16))
    state = {key: values.T.clone() if key == "2.weight" else values for key, values in network.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        fill(network, str(save(state, "file.pth")))
    assert "save '2.weight' transposed" in caught.value.hint
