"""Find which names the code of a network writes when it runs: caches, counters, what hooks collect."""

from __future__ import annotations

import dis
import sys
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fmapviz.models.homes import is_users
from fmapviz.observe.outside_state import content_of, functions_in, names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

_LOADED = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"}
_STORED = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}
_INDEXED = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2}  # with the number of values above the container
_TURNED = {"SWAP"}
# Methods of containers that change them and tell nothing of what is in them.
_COLLECTING = {
    *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "clear", "remove", "discard", "sort"),
}
_BEGUN = ("forward", "__call__")


def is_own(code: Any) -> bool:  # Any: a class or a function
    """Return True for code that is neither of a library nor of Python."""
    module = sys.modules.get(code.__module__)
    return module is None or is_users(module)


def running_codes(network: nn.Module, called: Iterable[object] = ()) -> set[CodeType]:
    """Return the code of the user's functions that run in a forward pass, as far as their names tell.

    Args:
        network: The network.
        called: What else is called for each image.
    """
    functions: list[FunctionType] = []
    classes: dict[type, None] = {}
    names = {*_BEGUN}

    def meet(value: Any) -> None:  # Any: whatever user code names
        if isinstance(value, MethodType):
            meet(value.__self__)
        kind = value if isinstance(value, type) else type(value)
        if not isinstance(value, FunctionType) and is_own(kind):
            classes.update(dict.fromkeys(each for each in kind.__mro__ if is_own(each)))
        functions.extend(functions_in(value))

    for module in network.modules():
        hooks = chain(module._forward_pre_hooks.values(), module._forward_hooks.values())
        for each in (module, *hooks, *vars(module).values()):
            meet(each)
    for each in called:
        meet(each)
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
            if code in codes or not is_own(function):
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
    """Return names that code writes and never reads, so that they decide nothing of what it computes.

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
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    assigned, filled, other = set[str](), set[str](), set[int]()
    for at, each in enumerate(instructions):
        is_free = each.opname == "STORE_DEREF" and each.argval in code.co_freevars
        if each.opname in _STORED or is_free:
            assigned.add(str(each.argval))
            other |= _of_update(instructions, at)
        above = _INDEXED.get(each.opname, 0 if _is_method(each) and each.argval in _COLLECTING else None)
        if above is not None and (found := _container(instructions, at, above)) is not None:
            filled.add(str(instructions[found].argval))
            other.add(found)
    read = {str(each.argval) for at, each in enumerate(instructions) if each.opname in _LOADED and at not in other}
    read |= {each for each in code.co_consts if isinstance(each, str)}  # getattr may take it
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for names, more in zip((assigned, filled, read), _uses_in(inner), strict=True):
                names.update(more)
    return assigned, filled, read


def _is_method(each: dis.Instruction) -> bool:
    """Return True if an instruction loads a method that is called at once."""
    is_marked = sys.version_info >= (3, 12) and each.opname == "LOAD_ATTR" and bool((each.arg or 0) & 1)
    return each.opname == "LOAD_METHOD" or is_marked


def _of_update(instructions: Sequence[dis.Instruction], at: int) -> set[int]:
    """Return the number of the instruction that loads what `+=` updates and stores at another one."""
    operated = next(
        (before for before in range(at - 1, max(at - 4, 0), -1) if instructions[before].opname == "BINARY_OP"), None
    )
    if operated is None or "=" not in instructions[operated].argrepr:
        return set()
    name = instructions[at].argval
    loads = [each for each in range(operated) if instructions[each].opname in _LOADED and instructions[each].argval == name]
    return set(loads[-1:])


def _container(instructions: Sequence[dis.Instruction], at: int, above: int) -> int | None:
    """Return the number of the instruction that loads what lies on the stack before another one, below some values.

    None if it is no attribute, global or variable of a closure.
    """
    while at and instructions[at - 1].opname in _TURNED:  # of `held[key] += 1`, whose value was on top
        at, above = at - 1, 2
    for number in range(at - 1, -1, -1):
        each = instructions[number]
        if above == 0:
            return number if each.opname in _LOADED else None
        above -= dis.stack_effect(each.opcode, each.arg, jump=False)
    return None
