"""Read the tensors of a checkpoint that also holds Python objects, without importing or running anything of them.

PyTorch's restricted reader refuses every name it does not know. Here each such name is given an empty class of its own: what
the file wants to call it with, or to put into it, is forgotten. So Lightning's checkpoints can be read, which hold what the
training was started with beside the weights.
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
    """What stands where a file has an object of a foreign class, or what a foreign function returned.

    Attributes:
        spelling: The name in the file, such as `argparse.Namespace`.
    """

    spelling = ""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """Forget what the object would be made of."""
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Forget what the object would hold."""


def load_inertly(path: Path) -> tuple[object, tuple[str, ...]]:
    """Load a file of `torch.save` with stand-ins for all that PyTorch does not know to be harmless.

    PyTorch's list of names is one for all threads: meanwhile no other may load anything.

    Returns:
        The content; subclasses of dict and list in it are plain ones, without attributes, and other objects are `Inert`.
        The names stood in for, sorted.

    Raises:
        ValueError: It is in the format from before PyTorch 1.6, or a TorchScript archive.
        pickle.UnpicklingError: It holds what cannot be stood in for: names of `os`, `sys` and `posix` never are.
    """
    names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    mappings, sequences = _containers(_pickle_in(path))
    stand_ins: list[Any] = [(_stand_in(name, name in mappings, name in sequences), name) for name in names]
    with torch.serialization.safe_globals(stand_ins):
        return torch.load(path, map_location="cpu", weights_only=True), tuple(names)


def _stand_in(name: str, mapping: bool, sequence: bool) -> type:
    """Make a class; the reader puts items into dictionaries and lists only, not into subclasses of them."""
    members: dict[str, Any] = {"spelling": name}
    if mapping or sequence:
        members["__new__"] = lambda *_args, **_kwargs: OrderedDict() if mapping else []
    return type("Inert", (Inert,), members)


def _pickle_in(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


def _containers(pickled: bytes) -> tuple[set[str], set[str]]:
    """Find out which names make what items are put into, by going through a pickle with names instead of objects.

    Returns:
        Names of which something gets keys and values, and names of which something gets elements.
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


# Operations whose result is the lowest of what they take from the stack, or comes of it.
_OF_THE_FIRST = {"NEWOBJ", "REDUCE", "BUILD", "SETITEM", "SETITEMS", "APPEND", "APPENDS"}


def _full_name(module: str, name: str) -> str:
    """Give a name as Python 3 has it, as the reader does: files are written for Python 2."""
    return ".".join(NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name)))
