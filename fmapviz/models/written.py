"""Find which names the code of a network writes when it runs: caches, counters, what hooks collect."""

from __future__ import annotations

import dis
import sys
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fmapviz.inspection.outside_state import content_of, functions_in, names_in
from fmapviz.models.homes import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

_INDEXED = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2}  # with the number of values above the container
_TURNED = {"SWAP"}
_CHANGING = {
    *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"),
    *("pop", "popleft", "popitem", "clear", "remove", "discard", "sort"),
}
_STORED = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}
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


def written_names(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes, globals and variables of closures that code may write.

    It may assign them, or change what they hold: `self.maps.append(x)`, `features[name] = x`, `self.memory.copy_(x)`.

    Example:
        >>> def forward(self, images):
        ...     self.passes += 1
        ...     self.maps.append(images)
        ...     return images * self.gain
        >>> sorted(written_names(forward.__code__))
        ['maps', 'passes']
    """
    instructions = list(dis.get_instructions(code))
    for at, each in enumerate(instructions):
        is_free = each.opname == "STORE_DEREF" and each.argval in code.co_freevars
        if each.opname in _STORED or is_free:
            yield str(each.argval)
        elif each.opname in _INDEXED:
            yield from _loaded(instructions, at, above=_INDEXED[each.opname])
        elif each.opname in {"LOAD_METHOD", "LOAD_ATTR"} and (each.argval in _CHANGING or _is_in_place(each.argval)):
            yield from _loaded(instructions, at, above=0)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from written_names(inner)


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


def _loaded(instructions: Sequence[dis.Instruction], at: int, *, above: int) -> Iterator[str]:
    """Yield the name of what lies on the stack before an instruction, below some values; nothing if it has none.

    A local variable has none that is looked for.
    """
    while at and instructions[at - 1].opname in _TURNED:  # of `held[key] += 1`, whose value was on top
        at, above = at - 1, 2
    for each in reversed(instructions[:at]):
        if above == 0:
            if each.opname in {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR"}:
                yield str(each.argval)
            return
        above -= dis.stack_effect(each.opcode, each.arg, jump=False)
