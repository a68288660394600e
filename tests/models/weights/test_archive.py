"""The reader of usual archives, compared with PyTorch's; and files made to harm it."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from contextlib import suppress

import numpy as np
import pytest
import torch
from cases import thorough
from torch import nn

from fmapviz.errors import WeightsError
from fmapviz.models.weights.archive import CallError, UnusualError, read_archive
from fmapviz.models.weights.read import read_checkpoint, read_content
from fmapviz.models.weights.stand_ins import Inert, load_inertly


class Own:
    """An object beside the weights."""

    def __init__(self):
        self.lr = 0.5


def network():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 2).half())


def assert_same(one, other):
    assert type(one).__name__ == type(other).__name__
    if isinstance(one, torch.Tensor):
        assert type(one) is type(other)
        assert (one.dtype, one.stride(), one.requires_grad) == (other.dtype, other.stride(), other.requires_grad)
        assert torch.equal(one, other)
    elif isinstance(one, Inert):
        assert one.spelling == other.spelling
        assert_same([one.arguments, dict(one.state)], [other.arguments, dict(other.state)])
    elif isinstance(one, dict):
        assert [*one] == [*other]
        assert_same([*one.values(), getattr(one, "_metadata", None)], [*other.values(), getattr(other, "_metadata", None)])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for each, counterpart in zip(one, other, strict=True):
            assert_same(each, counterpart)
    else:
        assert one == other


def test_usual_files_are_read_as_pytorch_reads_them(tmp_path):
    path, tensor = tmp_path / "last.pt", torch.arange(12.0).view(3, 4)
    content = {
        "model": network(),
        "state": network().state_dict(),
        "own": Own(),
        "views": [tensor, tensor.T, tensor[1:, ::2], tensor[:0]],
        "plain": (None, True, 1, -3, 70000, 2**40, 0.5, "é", {1, "a"}, {}, [], (), ((1,), (1, 2), (1, 2, 3, 4))),
    }
    torch.save(content, path)
    read, names = read_archive(path)
    expected, replaced = load_inertly(path)
    assert names == replaced
    assert_same(read, expected)
    assert read["views"][0].data_ptr() == read["views"][1].data_ptr()
    torch.save(network().state_dict(), path)
    assert_same(read_archive(path)[0], torch.load(path, weights_only=True))


def archive(path, pickled):
    """Write an archive of one storage of three numbers, with a pickle made by hand."""
    torch.save({"w": torch.arange(3.0)}, path)
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, value in entries.items():
            new.writestr(name, pickled if name.endswith("data.pkl") else value)
    return path


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x03tQ"


def call(mark):
    """Return operations that make a file where names are not restricted."""
    return b"cbuiltins\nopen\n" + text(str(mark)) + text("w") + b"\x86R"


def harmful(mark):
    evil = call(mark)
    return {
        "reduce": evil,
        "key": b"}" + evil + b"K\x01s",
        "nested": b"](" + evil + b"]" + evil + b"ae",
        "item": b"ccollections\nOrderedDict\n)R" + text("a") + evil + b"s",
        "ordered": b"ccollections\nOrderedDict\n]" + text("a") + evil + b"\x86a\x85R",
        "ordered_state": b"ccollections\nOrderedDict\n)R}" + text("items") + b"cbuiltins\nopen\nsb",
        "state": b"cargparse\nNamespace\n)\x81}" + text("a") + evil + b"sb",
        "slots": b"cargparse\nNamespace\n)\x81N}" + text("__class__") + b"cbuiltins\nopen\ns\x86b",
        "function_state": b"ctorch._utils\n_rebuild_tensor_v2\nN}" + text("__defaults__") + b")s\x86b",
        "class_state": b"ccollections\nOrderedDict\nN}" + text("a") + b"K\x01s\x86b",
        "result": evil + text("x") + b"\x85R",
        "getattr": b"cbuiltins\ngetattr\ncbuiltins\nopen\n" + text("__call__") + b"\x86R" + text(str(mark)) + b"\x85R",
        "instance": b"(" + text(str(mark)) + text("w") + b"ibuiltins\nopen\n",
        "object": b"(cbuiltins\nopen\n" + text(str(mark)) + text("w") + b"o",
        "stack_name": text("builtins") + text("open") + b"\x93" + text(str(mark)) + text("w") + b"\x86R",
        "extension": b"\x82\x01)R",
        "text_id": b"Psome\n",
        "id_of_text": text("storage") + b"Q",
        "id_of_call": b"(" + evil + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x03tQ",
        "id_of_other": b"(" + text("storage") + evil + text("0") + text("cpu") + b"K\x03tQ",
        "id_of_path": b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("../data.pkl") + text("cpu") + b"K\x03tQ",
        "id_of_more": STORAGE.replace(b"K\x03", b"M\xff\xff"),
        "beyond": tensor(2, 3),
        "large": tensor(0, 2**30),
        "negative": tensor(-1, 1),
        "memo": b"]r\xff\xff\xff\x7f",
        "long_text": b"X\xff\xff\xff\xff",
        "underflow": b"R",
        "deep_key": b"}K\x01" + b"\x85" * 200 + b"K\x01s",
    }


def tensor(offset, size):
    ends = b"J" + struct.pack("<i", size) + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"J" + struct.pack("<i", offset) + ends


@pytest.mark.parametrize("kind", harmful(""))
def test_nothing_in_a_file_is_run(kind, tmp_path):
    mark = tmp_path / "mark"
    path = archive(tmp_path / "best.pt", b"\x80\x02" + harmful(mark)[kind] + b".")
    before = vars(torch._utils._rebuild_tensor_v2).copy(), torch._utils._rebuild_tensor_v2.__defaults__
    try:
        content, names = read_archive(path)
    except (CallError, UnusualError, EOFError, KeyError, IndexError, ValueError, TypeError, RuntimeError):
        content, names = None, ()
    assert not mark.exists()
    assert (content is not None) == (kind in {"reduce", "nested", "item", "state", "slots", "memo"})
    assert set(names) <= {"builtins.open", "argparse.Namespace"}
    if kind not in {"large", "long_text"}:  # which PyTorch itself tries to allocate
        with suppress(WeightsError):
            read_content(path)
    assert not mark.exists()
    assert before == (vars(torch._utils._rebuild_tensor_v2), torch._utils._rebuild_tensor_v2.__defaults__)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the files are not closed
def test_the_calls_work_where_names_are_not_restricted(tmp_path):
    """Otherwise the test above would prove nothing."""
    for kind in ("reduce", "nested", "item", "instance", "object", "stack_name"):
        mark = tmp_path / kind
        pickle.loads(b"\x80\x04" + harmful(mark)[kind] + b".")
        assert mark.exists(), kind


@pytest.mark.parametrize("share", [0.5, *thorough(*np.linspace(0, 0.9999, 40))])
def test_a_file_that_is_cut_off_is_refused(share, tmp_path):
    path = tmp_path / "best.pt"
    torch.save({"model": network(), "own": Own()}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(WeightsError, match="cannot read"):
        read_checkpoint(path)


@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 60))])
def test_a_changed_byte_is_noticed_or_changes_nothing(seed, tmp_path):
    path, rng = tmp_path / "best.pt", np.random.default_rng(seed)
    state = network().state_dict()
    torch.save({"model": OrderedDict(state), "own": Own()}, path)
    whole = bytearray(path.read_bytes())
    for at in rng.integers(0, len(whole), 5):
        changed = whole.copy()
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            read = read_checkpoint(path).state
        except WeightsError:
            continue
        assert all(torch.equal(read[key], state[key]) for key in state if not key.endswith("tracked"))


def test_half_precision_is_returned_in_single_precision_on_request(tmp_path):
    halves = [torch.randn(size).half() for size in (7, 3, 300, 3)]
    shared = torch.arange(12.0).half()
    content = {"halves": halves, "turned": shared.view(3, 4).mT, "part": shared[4:9], "double": torch.ones(2).double()}
    torch.save(content, tmp_path / "half.pt")
    read, _ = read_archive(tmp_path / "half.pt", single=True)
    assert [each.dtype for each in read["halves"]] == [torch.float32] * 4
    for found, half in zip(read["halves"], halves, strict=True):
        assert torch.equal(found, half.float())
    assert torch.equal(read["turned"], content["turned"].float())
    assert torch.equal(read["part"], content["part"].float())
    assert read["turned"].untyped_storage().data_ptr() == read["part"].untyped_storage().data_ptr()
    assert read["double"].dtype == torch.float64
