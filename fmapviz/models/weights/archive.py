"""Read the usual archives of `torch.save` as data, by an interpreter of the few pickle operations in them.

PyTorch's restricted unpickler takes three to five times as long: for each object it makes a table of the allowed names, and
for each tensor it searches for a fake mode. For YOLO11n, 52,000 operations and 503 tensors, it took 120 ms, this takes 30.

Python's unpickler in C, restricted to harmless names, is not used: it calls whatever is on its
stack, sets attributes of the functions there, and lets a file of 20 bytes allocate gigabytes with a large memo index. Here

- a name is either in `_VALUES`, or a class without behaviour, `Inert`, stands for it: nothing is imported or looked up;
- only four functions of this file are called, and the stand-ins, which keep their arguments;
- only stand-ins get attributes, and only dicts and lists get items, under keys whose hash is not recursive;
- a tensor cannot extend beyond its bytes in the file, and memory grows with the length of the file.

What is not usual is left to PyTorch, see `fmapviz.models.weights.read`.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import torch
from isal import isal_zlib
from torch import Tensor

from fmapviz.models.weights.stand_ins import Inert, full_name, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

LENGTHS_AT = 26  # offset of the lengths of the name and the extra field in an entry's local header
DIRECTORY = 0x10  # in the attributes of an entry
_NEVER = ("os", "sys", "posix", "nt")  # modules of which PyTorch refuses every name


class UnusualError(Exception):
    """An archive has what is not read here."""


class CallError(Exception):
    """A file calls a function that another call returns, such as `getattr(os, "system")("...")`.

    Attributes:
        shown: The other call.
    """

    def __init__(self, function: Inert) -> None:
        names = [getattr(each, "spelling", each) for each in function.arguments]
        self.shown = f"{function.spelling}({', '.join(each for each in names if isinstance(each, str))})"
        super().__init__(self.shown)


@dataclass(frozen=True, slots=True)
class _Storage:
    """Stands for a class such as `torch.HalfStorage`."""

    dtype: torch.dtype


def read_archive(path: Path, *, single: bool = False) -> tuple[object, tuple[str, ...]]:
    """Read an archive, with stand-ins for the names that PyTorch does not know.

    Args:
        path: The file.
        single: Whether values of half precision are returned in single precision. Each storage is converted as soon as it
            is read, in the same memory: of YOLOv8m, 52 MB, this saves 30 % of the page faults and a sixth of the CPU time.

    Returns:
        The content, and the sorted names that were replaced; as `load_inertly` returns them.

    Raises:
        CallError: No data is saved like this, but code.
        UnusualError: It has what is not read here; another exception if it is damaged.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        home = archive.namelist()[0].partition("/")[0]
        names, storages = _Globals(), _Storages(file, home, archive.infolist(), single=single)
        if storages.read("byteorder").numpy().tobytes() != sys.byteorder.encode():
            raise UnusualError("of another machine")
        content = _interpret(storages.read("data.pkl").numpy().tobytes(), names.find, storages.load)
        storages.check_others()
        return content, tuple(sorted(names.replaced))


def _interpret(  # noqa: PLR0912, PLR0915  a call for each operation takes half as long again
    pickled: bytes, find: Callable[[str], Any], load: Callable[[Any], Tensor]
) -> Any:
    """Return what a pickle describes; the operations are ordered by their frequency.

    Args:
        pickled: Operations of `torch.save`; see `pickletools` for what each does.
        find: Returns the value for a name, such as `collections.OrderedDict`.
        load: Returns the storage for a persistent id.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    push, pop, integer = stack.append, stack.pop, _UINT.unpack_from
    at = 0
    while True:
        operation = pickled[at]
        at += 1
        if operation == _BINGET:
            push(memo[pickled[at]])
            at += 1
        elif operation == _LONG_BINPUT:
            memo[integer(pickled, at)[0]] = stack[-1]
            at += 4
        elif operation == _REDUCE:
            arguments = pop()
            stack[-1] = _called(stack[-1], arguments)
        elif operation in _CONSTANTS:
            push(_CONSTANTS[operation])
        elif operation in _NUMBERS:
            layout = _NUMBERS[operation]
            push(layout.unpack_from(pickled, at)[0])
            at += layout.size
        elif operation == _MARK:
            marks.append(len(stack))
        elif operation in _OF_MARKED:
            start = marks.pop()
            marked = stack[start:]
            del stack[start:]
            _OF_MARKED[operation](stack, marked)
        elif operation in _OF_LAST:
            _OF_LAST[operation](stack)
        elif operation == _BINUNICODE:
            end = at + 4 + integer(pickled, at)[0]
            if end > len(pickled):
                raise EOFError
            push(str(pickled[at + 4 : end], "utf-8", "surrogatepass"))
            at = end
        elif operation in _EMPTY:
            push(_EMPTY[operation]())
        elif operation == _BINPERSID:
            stack[-1] = load(stack[-1])
        elif operation == _BINPUT:
            memo[pickled[at]] = stack[-1]
            at += 1
        elif operation == _LONG_BINGET:
            push(memo[integer(pickled, at)[0]])
            at += 4
        elif operation == _GLOBAL:
            end = pickled.index(b"\n", pickled.index(b"\n", at) + 1)
            push(find(pickled[at:end].decode()))
            at = end + 1
        elif operation == _LONG1:
            end = at + 1 + pickled[at]
            push(pickle.decode_long(pickled[at + 1 : end]))
            at = end
        elif operation == _PROTO and pickled[at] == _PROTOCOL:
            at += 1
        elif operation == _STOP and len(stack) == 1:
            return stack[0]
        else:
            raise UnusualError(f"operation {operation}")


def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the result of a function of `_CALLED`, or a stand-in for another."""
    if made := cast("Callable[..., Any] | None", _CALLED.get(function)):
        return made(*arguments)
    if isinstance(function, type) and issubclass(function, Inert):
        return function(*arguments)
    if isinstance(function, Inert):
        raise CallError(function)
    raise UnusualError("a call of what is no name")


def _made(stack: list[Any]) -> None:
    arguments = stack.pop()
    if not (isinstance(stack[-1], type) and issubclass(stack[-1], Inert)):
        raise UnusualError("an object of what is no name")
    stack[-1] = stack[-1](*arguments)


def _built(stack: list[Any]) -> None:
    state = stack.pop()
    if type(stack[-1]) is OrderedDict and type(state) is dict and state.keys() == {"_metadata"}:
        vars(stack[-1]).update(state)  # of `Module.state_dict`
    elif isinstance(stack[-1], Inert):
        stack[-1].__setstate__(state)
    else:
        raise UnusualError("attributes of what is no object")


def _append(stack: list[Any], values: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise UnusualError("an item of what is no list")
    stack[-1].extend(values)


def _set_items(stack: list[Any], values: list[Any]) -> None:
    target, keys = stack[-1], values[::2]
    if type(target) not in {dict, OrderedDict} or len(values) % 2 or not _KEYS.issuperset(map(type, keys)):
        raise UnusualError("an item of what is no dict, or an unusual key")  # the hash of nested tuples exhausts the stack
    target.update(zip(keys, values[1::2], strict=True))


def _last(count: int, make: Callable[[list[Any], list[Any]], None]) -> Callable[[list[Any]], None]:
    """Return a function that applies another one to the last few values of the stack."""

    def of_last(stack: list[Any]) -> None:
        values = stack[-count:]
        del stack[-count:]
        make(stack, values)

    return of_last


def _tuple(stack: list[Any], values: list[Any]) -> None:
    stack.append(tuple(values))


_KEYS = {str, int, bool, float, type(None)}
_PROTOCOL = 2
_UINT = struct.Struct("<I")
(_BINGET, _LONG_BINPUT, _REDUCE, _MARK, _BINUNICODE, _BINPERSID, _BINPUT, _LONG_BINGET, _GLOBAL, _LONG1, _PROTO, _STOP) = (
    operation[0]
    for operation in (
        pickle.BINGET, pickle.LONG_BINPUT, pickle.REDUCE, pickle.MARK, pickle.BINUNICODE, pickle.BINPERSID, pickle.BINPUT,
        pickle.LONG_BINGET, pickle.GLOBAL, pickle.LONG1, pickle.PROTO, pickle.STOP,
    )
)  # fmt: skip
_EMPTY: dict[int, Callable[[], Any]] = {
    pickle.EMPTY_DICT[0]: dict,
    pickle.EMPTY_LIST[0]: list,
    pickle.EMPTY_SET[0]: set,
}
_NUMBERS = {
    pickle.BININT1[0]: struct.Struct("<B"),
    pickle.BININT2[0]: struct.Struct("<H"),
    pickle.BININT[0]: struct.Struct("<i"),
    pickle.BINFLOAT[0]: struct.Struct(">d"),
}
_OF_MARKED = {pickle.TUPLE[0]: _tuple, pickle.SETITEMS[0]: _set_items, pickle.APPENDS[0]: _append}
_OF_LAST = {
    pickle.TUPLE1[0]: _last(1, _tuple),
    pickle.TUPLE2[0]: _last(2, _tuple),
    pickle.TUPLE3[0]: _last(3, _tuple),
    pickle.SETITEM[0]: _last(2, _set_items),
    pickle.APPEND[0]: _last(1, _append),
    pickle.NEWOBJ[0]: _made,
    pickle.BUILD[0]: _built,
}
_CONSTANTS = {pickle.EMPTY_TUPLE[0]: (), pickle.NONE[0]: None, pickle.NEWTRUE[0]: True, pickle.NEWFALSE[0]: False}


def _tensor(  # noqa: PLR0917  as `torch._utils._rebuild_tensor_v2`
    values: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool, hooks: object
) -> Tensor:
    """Return the tensor on a storage, whose bounds `as_strided` checks: PyTorch's own function would enlarge the storage."""
    if hooks:
        raise UnusualError("hooks of a tensor")
    return values.as_strided(size, stride, offset).data.requires_grad_(requires_grad)


def _parameter(values: Tensor, requires_grad: bool, hooks: object) -> torch.nn.Parameter:
    if hooks or type(values) is not Tensor:
        raise UnusualError("an unusual parameter")
    return torch.nn.Parameter(values, requires_grad)


def _ordered() -> OrderedDict[Any, Any]:
    return OrderedDict()


def _set(values: list[Any]) -> set[Any]:
    if not _KEYS.issuperset(map(type, values)):
        raise UnusualError("a set of objects")
    return set(values)


_VALUES: dict[str, Any] = {
    "collections.OrderedDict": OrderedDict,
    "builtins.set": set,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.HalfStorage": _Storage(torch.float16),
    "torch.BFloat16Storage": _Storage(torch.bfloat16),
    "torch.FloatStorage": _Storage(torch.float32),
    "torch.DoubleStorage": _Storage(torch.float64),
    "torch.LongStorage": _Storage(torch.int64),
    "torch.IntStorage": _Storage(torch.int32),
    "torch.BoolStorage": _Storage(torch.bool),
    "torch.ByteStorage": _Storage(torch.uint8),
}
_CALLED = {OrderedDict: _ordered, set: _set, _tensor: _tensor, _parameter: _parameter}
_OF_TORCH = ("torch.", "_codecs.", "collections.", "builtins.bytearray", "builtins.complex")


class _Globals:
    """The values for the names in a file.

    Attributes:
        replaced: Those for which stand-ins were made.
    """

    def __init__(self) -> None:
        self.replaced: set[str] = set()
        self._found: dict[str, Any] = {}
        allowed = torch.serialization.get_safe_globals()
        self._allowed = {
            each[1] if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}" for each in allowed
        }

    def find(self, line: str) -> Any:
        """Return the value for the module and the name in a file, between which is a line break."""
        if line not in self._found:
            self._found[line] = self._new(full_name(*line.split("\n")))
        return self._found[line]

    def _new(self, name: str) -> Any:
        if name in _VALUES:
            return _VALUES[name]
        of_torch = name.startswith(_OF_TORCH) and not name.startswith("torch.nn.modules.")
        if of_torch or name in self._allowed or name.rpartition(".")[0] in _NEVER:
            raise UnusualError(name)
        self.replaced.add(name)
        return stand_in(name)


class _Storages:
    """The entries of an archive, each read once and compared with its CRC-32, as tensors of one axis."""

    def __init__(self, file: BinaryIO, home: str, entries: Iterable[zipfile.ZipInfo], *, single: bool) -> None:
        self._file = file
        self._single = single
        self._left = {entry.filename.removeprefix(f"{home}/"): entry for entry in entries}
        self._loaded: dict[str, tuple[Tensor, torch.dtype]] = {}
        self._room = torch.empty(0, dtype=torch.uint8)
        if "constants.pkl" in self._left:
            raise UnusualError("TorchScript")

    def load(self, persistent: Any) -> Tensor:
        """Return the values that a persistent id names; where they were before they were saved does not count."""
        kind, storage, key, _, count = persistent
        if kind != "storage" or type(storage) is not _Storage or type(key) is not str or type(count) is not int:
            raise UnusualError("an unusual persistent id")
        if key not in self._loaded:
            converted = self._single and storage.dtype == torch.float16
            values = self.read(f"data/{key}", reuses=converted).view(storage.dtype)
            self._loaded[key] = values.float() if converted else values, storage.dtype
        values, dtype = self._loaded[key]
        if dtype != storage.dtype or len(values) != count:
            raise UnusualError("two kinds of values in one storage")
        return values

    def read(self, name: str, *, reuses: bool = False) -> Tensor:
        """Return the bytes of an entry; `reuses`: in memory that the next such call overwrites."""
        entry = self._left.pop(name)
        if entry.compress_type != zipfile.ZIP_STORED or entry.external_attr & DIRECTORY:
            raise UnusualError("compressed, or marked as a directory")
        self._file.seek(entry.header_offset + LENGTHS_AT)
        lengths = self._file.read(4)
        self._file.seek(lengths[0] + lengths[2] + 256 * (lengths[1] + lengths[3]), os.SEEK_CUR)
        values = self._room[: entry.file_size] if reuses else torch.empty(0, dtype=torch.uint8)
        if len(values) < entry.file_size:
            values = torch.empty(entry.file_size, dtype=torch.uint8)
            self._room = values if reuses else self._room
        array = values.numpy()
        if self._file.readinto(array) != entry.file_size:  # type: ignore[attr-defined]  # of a buffered reader
            raise EOFError
        if entry.CRC and isal_zlib.crc32(array) != entry.CRC:  # 0 was not computed
            raise zipfile.BadZipFile
        return values

    def check_others(self) -> None:
        """Compare what was not read, too."""
        for name in [*self._left]:
            self.read(name)
