"""Read the tensors of a checkpoint that also contains Python objects, without importing or calling any of them.

PyTorch's restricted unpickler refuses every name that is not on its list. Here each such name stands for an empty class that
keeps its arguments and its state as data. Checkpoints of Lightning need this: they contain the training's settings;
and so do whole pickled networks, whose modules have their tensors in their state.
"""

from __future__ import annotations

import pickle
import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor


class Inert:
    """Stands for an object of a class, or the result of a function, that PyTorch does not know to be harmless.

    Attributes:
        spelling: The name in the file, such as `argparse.Namespace`.
        arguments: What it was made or called with.
        state: The attributes that the object had.
    """

    spelling = ""
    arguments: tuple[object, ...] = ()
    state: Mapping[str, object] = MappingProxyType({})

    def __new__(cls, *args: object) -> Self:
        """Keep the arguments; a pickle has none with names."""
        made = super().__new__(cls)
        made.arguments = args
        return made

    def __setstate__(self, state: object) -> None:
        """Keep the attributes."""
        if isinstance(state, dict):
            self.state = state


def load_inertly(path: Path) -> tuple[object, tuple[str, ...]]:
    """Load a file of `torch.save` with stand-ins for every name that PyTorch does not know to be harmless.

    PyTorch's list of safe names is global: no other thread may load a file at the same time.

    Returns:
        The content, in which subclasses of dict and list are plain and other foreign objects are `Inert`; and the sorted
        names that were replaced.

    Raises:
        ValueError: The file has the format from before PyTorch 1.6, or is a TorchScript archive.
        pickle.UnpicklingError: It contains a name that is never replaced, such as those of `os`, `sys` and `posix`.
    """
    names = tuple(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
    try:
        return _load(path, names), names
    except pickle.UnpicklingError:  # one may be a container: to find out takes as long as to load
        with zipfile.ZipFile(path) as archive:
            pickled = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
        return _load(path, names, *_containers(pickled)), names


def _load(path: Path, names: Iterable[str], mappings: Collection[str] = (), sequences: Collection[str] = ()) -> object:
    stand_ins: list[Any] = [(stand_in(name, name in mappings, name in sequences), name) for name in names]
    with torch.serialization.safe_globals(stand_ins):
        return torch.load(path, map_location="cpu", weights_only=True)


def find_tensors(module: Inert) -> dict[str, Tensor]:
    """Return the state dict of a pickled module, as its `state_dict()` returns it; empty if it is no module.

    Raises:
        RecursionError: Its modules contain each other so often that a search through them does not end.
    """
    modules: set[int] = set()
    found: dict[str, Tensor] = {}
    visits = 0

    def visit(module: object, prefix: str) -> None:
        nonlocal visits
        modules.add(id(module))
        visits += 1
        if visits > 1000 + 10 * len(modules):
            raise RecursionError
        state = module.state if isinstance(module, Inert) else {}
        hidden = state.get("_non_persistent_buffers_set", ())
        for name, values in (*_items(state, "_parameters"), *_items(state, "_buffers")):
            if isinstance(values, torch.Tensor) and not (isinstance(hidden, set) and name in hidden):
                found[f"{prefix}{name}"] = values.detach()
        for name, each in _items(state, "_modules"):
            visit(each, f"{prefix}{name}.")

    visit(module, "")
    return found


def _items(state: Mapping[str, object], name: str) -> Iterator[tuple[str, object]]:
    part = state.get(name)
    return iter(part.items()) if isinstance(part, dict) else iter(())


def stand_in(name: str, mapping: bool = False, sequence: bool = False) -> type:
    """Make a class, whose objects are plain dicts or lists if items are put into them: the unpickler accepts no subclass."""
    members: dict[str, Any] = {"spelling": name}
    if mapping or sequence:
        members["__new__"] = lambda *_args, **_kwargs: OrderedDict() if mapping else []
    return type("Inert", (Inert,), members)


def _containers(pickled: bytes) -> tuple[set[str], set[str]]:
    """Find the classes whose objects get items, by interpreting a pickle with names in place of objects.

    Returns:
        Names whose objects get keys and values, and names whose objects get elements.
    """
    stack: list[str | None] = []
    marks: list[int] = []
    memo: dict[object, str | None] = {}
    mappings: set[str] = set()
    sequences: set[str] = set()
    for opcode, argument, _ in pickletools.genops(pickled):
        taken, given = opcode.stack_before, opcode.stack_after
        match opcode.name:
            case "MARK":
                marks.append(len(stack))
                continue
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
                continue
            case "GLOBAL":
                stack.append(full_name(*str(argument).split(" ", 1)))
                continue
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
                continue
        if pickletools.markobject in taken:
            del stack[marks.pop() :]
            taken = taken[: taken.index(pickletools.markobject)]
        below = stack[len(stack) - len(taken) :]
        del stack[len(stack) - len(taken) :]
        made = below[0] if opcode.name in _OF_THE_FIRST else None
        if made and opcode.name.startswith("SETITEM"):
            mappings.add(made)
        if made and opcode.name.startswith("APPEND"):
            sequences.add(made)
        stack.extend([made] * len(given))
    return mappings, sequences


# Operations that return their lowest operand, or an object that contains it.
_OF_THE_FIRST = {"NEWOBJ", "REDUCE", "BUILD", "SETITEM", "SETITEMS", "APPEND", "APPENDS"}


def full_name(module: str, name: str) -> str:
    """Return Python 3's name for a name of Python 2, as the unpickler does: PyTorch writes protocol 2."""
    return ".".join(NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name)))
