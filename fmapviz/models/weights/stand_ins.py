"""Read the tensors of a checkpoint that also contains Python objects, without importing or calling any of them.

PyTorch's restricted unpickler refuses every name that is not on its list. Here each such name stands for an empty class that
discards its arguments and its state. Checkpoints of Lightning need this: they contain the training's settings.
"""

from __future__ import annotations

import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Self

import torch

if TYPE_CHECKING:
    from pathlib import Path


class Inert:
    """Stands for an object of a class, or the result of a function, that PyTorch does not know to be harmless.

    Attributes:
        spelling: The name in the file, such as `argparse.Namespace`.
    """

    spelling = ""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """Discard the arguments."""
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Discard the state."""


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
    names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
    mappings, sequences = _containers(pickled)
    stand_ins: list[Any] = [(_stand_in(name, name in mappings, name in sequences), name) for name in names]
    with torch.serialization.safe_globals(stand_ins):
        return torch.load(path, map_location="cpu", weights_only=True), tuple(names)


def _stand_in(name: str, mapping: bool, sequence: bool) -> type:
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
                stack.append(_full_name(*str(argument).split(" ", 1)))
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


def _full_name(module: str, name: str) -> str:
    """Return Python 3's name for a name of Python 2, as the unpickler does: PyTorch writes protocol 2."""
    return ".".join(NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name)))
