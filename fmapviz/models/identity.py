"""Compute the digest by which a later run finds a network unchanged: its weights, its code, and what that code reads."""

from __future__ import annotations

import dis
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fmapviz.models.homes import is_users
from fmapviz.models.weights.file import sha256_of
from fmapviz.models.weights.state_dict import digest_of_state
from fmapviz.observe.outside_state import content_of, functions_in, names_in

_OF_TORCH = frozenset(vars(nn.Module()))
_LIBRARIES = ("torch", "torchvision", "timm")  # whose versions a run records
# Objects of these are read too; those of other libraries may hold anything, such as a connection or the time.
_READ = (*_LIBRARIES, "transformers", "argparse")
_PLAIN = bool | int | float | complex | str | bytes | None
_NAMED = torch.dtype | torch.device | torch.layout | torch.memory_format | PurePath | range | slice
_DEEPEST = 50  # of values in values, and of functions that call functions

_LOADED = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"}
_STORED = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}
_INDEXED = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2}  # with the number of values above the container
_TURNED = {"SWAP"}
# Methods of containers that change them and do not return their content.
_COLLECTING = {
    *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "clear", "remove", "discard", "sort"),
}
_BEGUN = ("forward", "__call__")


def digest_of_network(network: nn.Module, *, files: Iterable[Path] = (), called: Iterable[object] = ()) -> str:
    """Return a SHA-256, hexadecimal, of everything that determines the output of a network.

    Weights alone are not enough: strides, activations, the forward pass, attributes and hooks decide the feature maps too.
    Covered are parameters and buffers; the source files of the user's classes, or their byte code if they were typed in a
    notebook; plain attributes of modules, and what these contain; hooks; and globals and variables of closures that the
    user's code names. What this code itself writes in a forward pass is left out, such as a cache or a list that hooks
    collect in. Of objects of other libraries only the type is covered.

    Args:
        network: The network; the source files of its classes are included, except those of libraries.
        files: Further source files.
        called: Further functions that are called for each image, such as a preprocessing.
    """
    called = list(called)
    running = running_codes(network, called)
    reader = _Reader(files, running)
    read = [*reader.network(network), *(reader.value(item, _DEEPEST) for item in called)]
    code = sorted({sha256_of(path) for path in reader.files if os.path.isfile(path)})
    return hashlib.sha256("\n".join([*read, *code]).encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_code(called: Iterable[object]) -> str:
    """Return a SHA-256 of functions, classes and objects of the user; see `called` of `digest_of_network`."""
    return digest_of_network(nn.Identity(), called=called)


def without_addresses(text: str) -> str:
    """Return a text without the addresses of objects in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


class _Reader:
    """Describes what a network reads in words that are equal in another process if it is unchanged.

    Args:
        files: Source files that are known already.
        running: The code that runs in a forward pass. What only other methods of classes read does not count, nor what it
            writes itself and never reads.

    Attributes:
        files: The source files of all code that was met.
    """

    def __init__(self, files: Iterable[Path], running: set[CodeType]) -> None:
        self.files = {*files}
        self._running = running
        self._assigned, self._filled = written_names(running)
        # By identity, with the words; the values are held, so that no identity is used twice.
        self._met: dict[int, tuple[object, str]] = {}
        self._classes = set[type]()

    def network(self, network: nn.Module) -> Iterator[str]:
        """Yield weights, structure, plain attributes and hooks of all modules, and what the code of their classes reads."""
        modules = dict(network.named_modules())
        self._met |= {id(module): (module, f"module {name}") for name, module in modules.items()}
        # Not repr() and state_dict(), which do not terminate for a module that contains itself.
        yield digest_of_state(dict(chain(network.named_parameters(), network.named_buffers())))
        for name, module in modules.items():
            kind = type(module)
            yield without_addresses(f"{name} {kind.__qualname__} {module.extra_repr()}")
            hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
            needed = set()
            if not _is_own(kind):  # what the code of a library reads
                needed = {*inspect.signature(kind).parameters, *inspect.get_annotations(kind)}
            for key, value in {**vars(module), "hooks": hooks}.items():
                if key not in _OF_TORCH and (key in needed or not self._is_written(key, value)):
                    yield f"{name}.{key}={self.value(value, _DEEPEST)}"
            if kind.__module__.partition(".")[0] not in _LIBRARIES:
                self.files.update(_source_of(kind))
            yield from self._class(kind, _DEEPEST)

    def value(self, value: Any, depth: int) -> str:  # Any: whatever a user's code holds
        """Return a value in words."""
        plain = _words_of_plain(value)
        if plain is not None:
            return plain
        if id(value) not in self._met:
            name = type(value).__qualname__
            self._met[id(value)] = value, name
            try:
                parts = ", ".join(self._parts(value, depth - 1)) if depth else ""
            except Exception:  # noqa: BLE001  of a container of the user
                parts = "unreadable"
            self._met[id(value)] = value, f"{name}({parts})"
        return self._met[id(value)][1]

    def _parts(self, value: Any, depth: int) -> Iterator[str]:  # Any: likewise
        if isinstance(value, nn.Module):
            yield from self.network(value)
        elif isinstance(value, MethodType):
            yield from (self.value(value.__func__, depth), self.value(value.__self__, depth))
        elif isinstance(value, FunctionType):
            yield from self._function(value, depth)
        elif isinstance(value, partial):
            yield from (self.value(item, depth) for item in (value.func, value.args, value.keywords))
        elif isinstance(value, type):
            yield value.__qualname__  # without its module, which has another name where it is the program
            yield from self._class(value, depth)
        elif isinstance(value, Mapping):
            yield from sorted(f"{self.value(key, depth)}: {self.value(item, depth)}" for key, item in value.items())
        elif isinstance(value, AbstractSet):
            yield from sorted(self.value(item, depth) for item in value)
        elif isinstance(value, Sequence):
            yield from (self.value(item, depth) for item in value)
        elif isinstance(value, SimpleNamespace) or type(value).__module__.partition(".")[0] in _READ or _is_own(type(value)):
            yield from self._class(type(value), depth)
            slots = [key for kind in type(value).__mro__ for key in _names(vars(kind).get("__slots__", ()))]
            held = {key: getattr(value, key) for key in slots if hasattr(value, key)} | getattr(value, "__dict__", {})
            yield from (f"{key}={self.value(item, depth)}" for key, item in held.items() if not self._is_written(key, item))
        else:
            yield str(getattr(value, "__qualname__", ""))  # of a function in C

    def _class(self, kind: type, depth: int) -> Iterator[str]:
        """Yield what the code of a class and of its bases reads; of one without a file, the code too."""
        for own in (base for base in kind.__mro__ if _is_own(base) and base not in self._classes):
            self._classes.add(own)
            self.files.update(_source_of(own))
            for key, value in list(vars(own).items()):
                functions = functions_in(value)
                read = [self.value if function.__code__ in self._running else self._source for function in functions]
                if functions:
                    yield f"{key} {[words(function, depth) for words, function in zip(read, functions, strict=True)]}"
                elif not self._is_written(key, value) and not key.startswith(("__", "_abc_")):
                    yield f"{key} {self.value(value, depth)}"

    def _function(self, function: FunctionType, depth: int) -> Iterator[str]:
        """Yield a function's source and byte code, of which a file may hold many, with the values that it names."""
        code, known = function.__code__, function.__globals__
        yield self._source(function, depth)
        yield self._code(code, depth) if _is_own(function) else ""
        yield self.value((function.__defaults__, function.__kwdefaults__), depth)
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if not self._is_written(key, content_of(cell)):
                yield f"{key}={self.value(content_of(cell), depth)}"
        if not _is_own(function):
            return
        names = {name for name in names_in(code) if not name.startswith("__")}
        for key in sorted(names & known.keys()):
            held = known[key]
            if not isinstance(held, ModuleType) and not self._is_written(key, held):
                yield f"{key}={self.value(held, depth)}"
            elif isinstance(held, ModuleType) and is_users(held):
                inner = sorted(names & vars(held).keys())
                yield from (f"{key}.{name}={self.value(vars(held)[name], depth)}" for name in inner)

    def _is_written(self, name: str, value: object) -> bool:
        return name in self._assigned or (name in self._filled and not isinstance(value, Tensor | np.ndarray))

    def _source(self, function: FunctionType, depth: int) -> str:
        """Return a function's byte code; nothing if it has a file, which counts as a whole; of a library's its name."""
        if not _is_own(function):
            return f"{function.__module__}.{function.__qualname__}"
        path = Path(function.__code__.co_filename)
        if not os.path.isfile(path):
            return self._code(function.__code__, depth)
        self.files.add(path)
        return ""

    def _code(self, code: CodeType, depth: int) -> str:
        constants = [
            self._code(constant, depth) if isinstance(constant, CodeType) else self.value(constant, depth)
            for constant in code.co_consts
        ]
        return f"{code.co_code.hex()} {code.co_names} {constants}"


def _words_of_plain(value: Any) -> str | None:  # Any: likewise
    """Return a value without parts in words; None if it is of another kind."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, _NAMED):
        return str(value)
    return _numbers(value) if isinstance(value, Tensor | np.ndarray | np.generic) else None


def _numbers(values: Any) -> str:  # Any: a tensor or an array
    try:
        held = (
            values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if isinstance(values, Tensor) else values
        )
        return f"{values.dtype} {tuple(values.shape)} {hashlib.sha256(held.tobytes()).hexdigest()}"
    except (RuntimeError, TypeError, ValueError):  # sparse, quantized, without values, or of another kind
        return f"{values.dtype} {tuple(values.shape)}"


def _names(slots: str | Iterable[str]) -> list[str]:
    return [slots] if isinstance(slots, str) else [*slots]


def _source_of(kind: type) -> list[Path]:
    try:
        return [Path(inspect.getfile(kind))]
    except (TypeError, OSError):  # defined in a notebook or in C
        return []


def _is_own(code: Any) -> bool:  # Any: a class or a function
    """Return True for code that is neither of a library nor of Python."""
    module = sys.modules.get(code.__module__)
    return module is None or is_users(module)


def running_codes(network: nn.Module, called: Iterable[object] = ()) -> set[CodeType]:
    """Return the code of the user's functions that run in a forward pass, judged by their names.

    Args:
        network: The network.
        called: Further functions that are called for each image.
    """
    functions: list[FunctionType] = []
    classes: dict[type, None] = {}
    names = {*_BEGUN}

    def meet(value: Any) -> None:  # Any: whatever user code names
        if isinstance(value, MethodType):
            meet(value.__self__)
        kind = value if isinstance(value, type) else type(value)
        if not isinstance(value, FunctionType) and _is_own(kind):
            classes.update(dict.fromkeys(base for base in kind.__mro__ if _is_own(base)))
        functions.extend(functions_in(value))

    for module in network.modules():
        hooks = chain(module._forward_pre_hooks.values(), module._forward_hooks.values())
        for item in (module, *hooks, *vars(module).values()):
            meet(item)
    for item in called:
        meet(item)
    codes = set[CodeType]()
    count = -1
    while count != len(codes) + len(names) + len(classes):
        count = len(codes) + len(names) + len(classes)
        for own in list(classes):
            for name in names & vars(own).keys():
                functions.extend(functions_in(vars(own)[name]))
        while functions:
            function = functions.pop()
            code = function.__code__
            if code in codes or not _is_own(function):
                continue
            codes.add(code)
            named = {*names_in(code)}
            names |= named
            for value in [
                *(function.__globals__[name] for name in named & function.__globals__.keys()),
                *map(content_of, function.__closure__ or ()),
            ]:
                meet(value)
    return codes


def written_names(codes: Iterable[CodeType]) -> tuple[set[str], set[str]]:
    """Return names that code writes and never reads, so that its result does not depend on them.

    Returns:
        Attributes, globals and variables of closures that it assigns, as in `self.maps = x` and `self.passes += 1`; and of
        containers that it only fills, as in `self.maps.append(x)` and `features[name] = x`.

    Example:
        >>> def forward(self, images):
        ...     self.passes += 1
        ...     self.mean = self.mean.to(images.device)
        ...     self.maps.append(images)
        ...     return images * self.gain
        >>> written_names([forward.__code__])
        ({'passes'}, {'maps'})
    """
    assigned, filled, read = set[str](), set[str](), set[str]()
    for code in codes:
        for found, names in zip((assigned, filled, read), _uses_in(code), strict=True):
            found.update(names)
    return assigned - read - filled, filled - read


def _uses_in(code: CodeType) -> tuple[set[str], set[str], set[str]]:
    """Return the names that code assigns, those of containers that it fills, and those that it reads for another purpose."""
    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname != "EXTENDED_ARG"]
    assigned, filled, other = set[str](), set[str](), set[int]()
    for at, instruction in enumerate(instructions):
        is_free = instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars
        if instruction.opname in _STORED or is_free:
            assigned.add(str(instruction.argval))
            other |= _of_update(instructions, at)
        above = _INDEXED.get(
            instruction.opname, 0 if _is_method(instruction) and instruction.argval in _COLLECTING else None
        )
        if above is not None and (found := _container(instructions, at, above)) is not None:
            filled.add(str(instructions[found].argval))
            other.add(found)
    read = {
        str(instruction.argval)
        for at, instruction in enumerate(instructions)
        if instruction.opname in _LOADED and at not in other
    }
    read |= {constant for constant in code.co_consts if isinstance(constant, str)}  # getattr may take it
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for names, more in zip((assigned, filled, read), _uses_in(inner), strict=True):
                names.update(more)
    return assigned, filled, read


def _is_method(instruction: dis.Instruction) -> bool:
    """Return True if an instruction loads a method that is called at once."""
    is_marked = sys.version_info >= (3, 12) and instruction.opname == "LOAD_ATTR" and bool((instruction.arg or 0) & 1)
    return instruction.opname == "LOAD_METHOD" or is_marked


def _of_update(instructions: Sequence[dis.Instruction], at: int) -> set[int]:
    """Return the number of the instruction that loads what `+=` updates and stores at another one."""
    operated = next(
        (before for before in range(at - 1, max(at - 4, 0), -1) if instructions[before].opname == "BINARY_OP"), None
    )
    if operated is None or "=" not in instructions[operated].argrepr:
        return set()
    name = instructions[at].argval
    loads = [
        index for index in range(operated) if instructions[index].opname in _LOADED and instructions[index].argval == name
    ]
    return set(loads[-1:])


def _container(instructions: Sequence[dis.Instruction], at: int, above: int) -> int | None:
    """Return the number of the instruction that loads what lies on the stack before another one, below some values.

    None if it is no attribute, global or variable of a closure.
    """
    while at and instructions[at - 1].opname in _TURNED:  # of `held[key] += 1`, whose value was on top
        at, above = at - 1, 2
    for number in range(at - 1, -1, -1):
        instruction = instructions[number]
        if above == 0:
            return number if instruction.opname in _LOADED else None
        above -= dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
    return None
