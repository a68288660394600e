"""Complete weights are loaded whatever lies beside them, and what was left out is named."""

from __future__ import annotations

import os
import pickle
import threading

import pytest
import torch
from cases import thorough
from torch import nn

from fmapviz.core.errors import WeightsError
from fmapviz.models.weights.fit import load_weights


def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3))


def named():
    return nn.ModuleDict({"stem": nn.Conv2d(3, 4, 3), "head": nn.Linear(4, 2)})


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 3, 3)
        self.two = self.one

    def forward(self, images):
        return self.two(self.one(images))


def of(make, seed=1):
    torch.manual_seed(seed)
    return make().state_dict()


def without(state, *keys):
    return {key: values for key, values in state.items() if key not in keys}


COUNTERS = {"total_ops": torch.zeros(1), "0.total_params": torch.zeros(1, dtype=torch.float64)}

# The network, the content of the file, and what the notice names.
BESIDE = {
    "counters": (build, lambda: {**of(build), **COUNTERS}, "total_ops"),
    "none": (build, lambda: {**of(build), "0.scale": None}, "0.scale"),
    "decoder": (named, lambda: {**of(named), "decoder.weight": torch.ones(3)}, "decoder.weight"),
    "encoder and decoder": (
        build,
        lambda: (
            {f"{part}.{key}": values for part in ("encoder",) for key, values in of(build).items()}
            | {"decoder.0.weight": torch.ones(7, 7)}
        ),
        "decoder.0.weight",
    ),
    "tied": (Tied, lambda: without(of(Tied), "two.weight", "two.bias"), ""),
    "extra state": (build, lambda: {**of(build), "0._extra_state": {"a": 1}}, "0._extra_state"),
    "numbers": (build, lambda: {**of(build), "total_params": 12.0}, "total_params"),
    "nested": (build, lambda: {"state_dict": {**of(build), "1.mask": None}, "epoch": 3}, "state_dict.1.mask"),
    "average": (
        build,
        lambda: {
            f"{part}.{key}": values
            for part, seed in (("model", 1), ("model_ema", 2))
            for key, values in of(build, seed).items()
        },
        "model_ema.0.weight",
    ),
    "buffer": (
        build,
        lambda: {**of(build), "2.relative_position_index": torch.zeros(3, 3, dtype=torch.int64)},
        "2.relative",
    ),
    "alias": (build, lambda: (state := of(build)) | {"0.copy": state["0.weight"]}, "0.copy"),
    "no count": (build, lambda: without(of(build), "1.num_batches_tracked"), ""),
}


@pytest.mark.parametrize("kind", [*list(BESIDE)[:5], *thorough(*list(BESIDE)[5:])])
def test_complete_weights_are_loaded_and_what_is_left_out_is_named(kind, tmp_path):
    make, content, named_in_notice = BESIDE[kind]
    torch.save(content(), tmp_path / "w.pth")
    torch.manual_seed(0)
    loaded = load_weights(str(tmp_path / "w.pth"), make)
    expected = of(make)
    for key, values in loaded.module.state_dict().items():
        assert key.endswith("num_batches_tracked") or torch.equal(values, expected[key])
    assert named_in_notice in " ".join(loaded.notices)
    if kind == "tied":
        assert torch.equal(loaded.module.two.weight, loaded.module.one.weight)


REFUSED = {
    "deeper": (build, lambda: {**of(build), "3.weight": torch.ones(5)}, "unexpected 3.weight"),
    "one is missing": (build, lambda: without(of(build), "1.running_mean"), "missing 1.running_mean"),
    "another shape": (build, lambda: {**of(build), "0.weight": torch.ones(4, 1, 3, 3)}, r"0.weight is \(4, 1, 3, 3\)"),
    "integers": (build, lambda: {key: values.to(torch.int8) for key, values in of(build).items()}, "int8 in '0.weight'"),
    "eight bits": (named, lambda: {key: values.to(torch.float8_e4m3fn) for key, values in of(named).items()}, "float8"),
    "within a layer": (named, lambda: {**of(named), "stem.gain": torch.ones(4)}, "unexpected stem.gain"),
}


@pytest.mark.parametrize("kind", [*list(REFUSED)[:4], *thorough(*list(REFUSED)[4:])])
def test_weights_that_do_not_fit_are_refused_with_the_facts(kind, tmp_path):
    make, content, message = REFUSED[kind]
    torch.save(content(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(str(tmp_path / "w.pth"), make)
    assert ("shallower" in str(caught.value.hint)) is False


def test_the_hint_for_a_missing_tensor_counts_what_is_missing(tmp_path):
    torch.save(without(of(build), "1.running_mean"), tmp_path / "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_weights(str(tmp_path / "w.pth"), build)
    assert caught.value.hint == "1 of the network's 9 tensors are not in the file: save the whole state dict"


@pytest.mark.parametrize("mark", [b"(", *thorough(b"(]", b")(", b"}")])
def test_a_pickle_of_nested_marks_is_refused_at_once(mark, tmp_path):
    (tmp_path / "w.pth").write_bytes(pickle.PROTO + b"\x02" + mark * (5_000_000 // len(mark)) + b".")
    with pytest.raises(WeightsError, match="is nested too deeply"):
        load_weights(str(tmp_path / "w.pth"), build)


def test_a_pipe_is_refused_as_one(tmp_path):
    os.mkfifo(tmp_path / "w.pth")
    before = threading.active_count()
    with pytest.raises(WeightsError, match="not a regular file"):
        load_weights(str(tmp_path / "w.pth"), build)
    assert threading.active_count() == before
