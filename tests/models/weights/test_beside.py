"""Complete weights beside other entries are loaded; incomplete ones and those of other networks are refused."""

import os
import pickle
import threading
import zipfile
from collections import OrderedDict

import pytest
import torch
from checkpoint_files import assert_holds, fill
from torch import nn

from fmapviz.errors import WeightsError
from fmapviz.models.weights.fit import load_weights
from fmapviz.models.weights.read import read_checkpoint


def network(channels=4):
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels)),
            blocks=nn.ModuleList(nn.Conv2d(channels, channels, 3) for _ in range(2)),
        )
    )


class Tied(nn.Module):
    """Two names of one weight."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def state():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return network().state_dict()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.pth"


def loaded(content, path, module=None):
    torch.save(content, path)
    return fill(module or network(), str(path))


def refusal(content, path, module=None):
    with pytest.raises(WeightsError) as caught:
        loaded(content, path, module)
    return f"{caught.value} | {caught.value.hint}"


COUNT = torch.zeros(1, dtype=torch.float64)
BESIDE = {
    "counters of a profiler": {"total_ops": COUNT, "stem.0.total_ops": COUNT, "blocks.0.total_params": COUNT},
    "extra state as a tensor": {"stem._extra_state": torch.zeros(9, dtype=torch.uint8)},
    "a buffer that is computed now": {"blocks.0.relative_position_index": torch.zeros(49, 49, dtype=torch.int64)},
    "a mask": {"blocks.1.attn_mask": torch.zeros(4, 4)},
    "another module": {"decoder.conv.weight": torch.ones(2, 2), "logit_scale": torch.tensor(4.6)},
    "numbers of a profiler": {"blocks.0.total_params": torch.tensor(12.0)},
    "a counter of batches": {"blocks.0.num_batches_tracked": torch.tensor(7)},
}
NO_TENSORS = {
    "extra state of None": {"stem._extra_state": None},
    "extra state of a dict": {"stem._extra_state": {"scale": 3}},
    "None in place of a bias": {"stem.0.gamma": None},
    "what training notes": {"epoch": 3, "arch": "mine", "best": 0.9},
}


@pytest.mark.parametrize("more", BESIDE.values(), ids=BESIDE)
def test_complete_weights_are_loaded_and_other_entries_are_named(more, state, path):
    filled = loaded({**more, **state}, path)
    assert_holds(filled.module, state)
    (notice,) = filled.notices
    assert notice.startswith(f"not used of '{path}': ")
    assert all(key in notice for key in more)


@pytest.mark.sampled
@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
@pytest.mark.parametrize("more", NO_TENSORS.values(), ids=NO_TENSORS)
def test_other_objects_do_not_hide_the_weights(more, nest, state, path):
    content = {**state, **more}
    filled = loaded({nest: content} if nest else content, path)
    assert_holds(filled.module, state)
    assert filled.notices == (f"not used of '{path}': {', '.join(f'{nest}.{key}' if nest else key for key in more)}",)


def test_a_state_dict_with_other_entries_is_accepted_in_python(state):
    filled = load_weights({**state, "epoch": 3}, network)
    assert filled.notices == ("not used of the state dict: epoch",)
    assert_holds(filled.module, state)


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"blocks.2.weight": torch.ones(4, 4, 3, 3), "blocks.2.bias": torch.ones(4)}, "deeper model"),
        ({"blocks.0.gate.weight": torch.ones(4)}, "unexpected blocks.0.gate.weight"),
        ({"stem.0.lora_A.weight": torch.ones(4)}, "LoRA"),
        ({"stem.0.scale": torch.tensor(0.1), "stem.0.zero_point": torch.tensor(3)}, "quantised"),
    ],
)
def test_weights_of_a_network_that_computes_more_are_refused(more, cause, state, path):
    assert cause in refusal({**state, **more}, path)


@pytest.mark.parametrize("key", ["stem.1.running_mean", "stem.0.bias", "blocks.1.weight"])
def test_weights_that_lack_a_tensor_are_refused_without_a_guess_about_depth(key, state, path):
    del state[key]
    said = refusal(state, path)
    assert f"do not fit: missing {key}" in said
    assert f"1 of the network's {len(state) + 1} tensors are not in the file" in said


def test_a_missing_weight_is_not_replaced_by_another_tensor(state, path):
    del state["stem.0.bias"]
    assert "missing stem.0.bias" in refusal({**state, "total_ops": COUNT, "decoder.weight": torch.ones(1)}, path)


@pytest.mark.parametrize("kept", ["embed.weight", "head.weight"])
def test_a_shared_weight_may_be_in_the_file_under_one_name(kept, path):
    weight = torch.arange(16.0).view(4, 4)
    module = loaded({kept: weight}, path, Tied()).module
    assert torch.equal(module.head.weight, weight)
    assert torch.equal(module.embed.weight, weight)


def test_another_name_of_a_weight_is_left_out(state, path):
    alias = state["stem.0.weight"]
    assert_holds(loaded({**state, "blocks.0.tied": alias}, path).module, state)
    assert "unexpected blocks.0.tied" in refusal({**state, "blocks.0.tied": alias.clone()}, path)


def test_a_network_is_loaded_rather_than_its_moving_average(state, path):
    average = {key: values + 1 for key, values in state.items()}
    content = {f"model.{key}": values for key, values in state.items()}
    filled = loaded(content | {f"model_ema.{key}": values for key, values in average.items()}, path)
    assert_holds(filled.module, state)
    assert "model_ema.stem.0.weight" in filled.notices[0]


def test_the_fitting_one_of_encoder_and_decoder_is_loaded(state, path):
    other = network(6).state_dict()
    both = {
        f"{name}.{key}": values for name, part in (("decoder", other), ("encoder", state)) for key, values in part.items()
    }
    filled = loaded(both, path)
    assert_holds(filled.module, state)
    assert "stripped the prefix 'encoder.'" in filled.notices[0]
    assert "ignored the other keys: decoder." in filled.notices[0]
    twice = {key.replace("decoder.", "copy."): values for key, values in both.items()}
    twice |= {key.replace("encoder.", "copy."): values for key, values in both.items() if key.startswith("encoder.")}
    assert "contains the network 2 times" in refusal(twice, path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_tensors_are_not_loaded_as_weights(dtype, state, path):
    state["stem.0.weight"] = (state["stem.0.weight"] * 127).to(dtype)
    said = refusal(state, path)
    assert f"{str(dtype).removeprefix('torch.')} in 'stem.0.weight'" in said
    assert "quantised" in said


MARKS = 400_000
DEEP = {
    "marks": b"(" * MARKS,
    "lists": b"](" * MARKS,
    "tuples": b"(" * MARKS + b"t" * MARKS,
    "objects": b"]" * MARKS + b"a" * MARKS,
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("pickled", DEEP.values(), ids=DEEP)
def test_a_pickle_of_nested_marks_is_refused_before_it_is_run(pickled, zipped, path):
    content = b"\x80\x02" + pickled + b"."
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/version", "3\n")
    else:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match="is nested too deeply"):
        read_checkpoint(path)


def test_a_pipe_is_refused_without_waiting_for_it(path):
    os.mkfifo(path)
    before = threading.active_count()
    with pytest.raises(WeightsError, match="not a regular file"):
        fill(network(), str(path))
    assert threading.active_count() == before


@pytest.mark.thorough
@pytest.mark.parametrize("old", [True, False])
def test_a_long_pickle_of_real_weights_is_read(old, path):
    state = {f"blocks.{number}.a_long_name_of_a_layer.weight": torch.zeros(1) for number in range(3000)}
    torch.save({"state_dict": state, "log": [*range(150_000)]}, path, _use_new_zipfile_serialization=not old)
    assert len(pickle.dumps([*state])) > 2**17 // 2
    assert read_checkpoint(path).state.keys() == state.keys()
