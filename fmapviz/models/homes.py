"""Find the modules that define a network given in Python, which may define its preprocessing and class names too."""

from __future__ import annotations

import sys
import sysconfig
from itertools import filterfalse
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fmapviz.errors import first_few

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

_OWN = Path(__file__).parents[1]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_installed = set[ModuleType]()  # never the user's; looking into thousands of them again would take as long as some layers


def find_homes(network: nn.Module) -> tuple[list[ModuleType], str]:
    """Return the user's modules that define the class of a network, its base classes, and those of its parts.

    A network of library classes alone, such as a `Sequential`, has none of these. For it, the module of the user that
    defines a preprocessing is taken, if there is only one.

    Returns:
        The modules, the nearest first; and a notice if the choice is a guess, else an empty string.
    """
    kinds = [*type(network).__mro__, *(type(module) for module in network.modules())]
    homes = [sys.modules.get(name) for name in dict.fromkeys(kind.__module__ for kind in kinds)]
    own = [home for home in homes if home is not None and is_users(home)]
    if own:
        return own, ""
    candidates = [module for module in _not_installed() if callable(vars(module).get("preprocess")) and is_users(module)]
    names = [f"{module.__name__}.preprocess" for module in candidates]
    if len(candidates) == 1:
        notice = f"the network's classes are of a library: {names[0]} is taken for its preprocessing, the only one there is"
        return candidates, notice
    if candidates:
        return [], f"the network's classes are of a library, and several preprocessings could be its own: {first_few(names)}"
    return [], ""


def is_users(module: ModuleType) -> bool:
    """Return True for a module that is neither installed nor part of Python or fmapviz."""
    if module.__name__ == "__main__":
        return not _is_command(module)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or file.startswith(_LIBRARIES):
        return False
    path = Path(file)
    return not path.is_relative_to(_OWN) and not {"site-packages", "dist-packages"} & {*path.parts}


def _not_installed() -> Iterable[ModuleType]:
    """Return the imported modules that are not in the directories of Python and its libraries, each once."""
    others = filterfalse(_installed.__contains__, list(sys.modules.values()))
    modules = [each for each in others if type(each) is ModuleType]
    _installed.update(filter(_is_installed, modules))
    return dict.fromkeys(module for module in modules if module not in _installed)


def _is_installed(module: ModuleType) -> bool:
    file = vars(module).get("__file__")
    return isinstance(file, str) and file.startswith(_LIBRARIES)


def _is_command(main: ModuleType) -> bool:
    """Return True if `__main__` is the program of an installed command or of `python -m`, no script of the user."""
    file = getattr(main, "__file__", None)
    return isinstance(file, str) and (
        file.startswith(_LIBRARIES) or Path(file).parent == Path(sysconfig.get_path("scripts"))
    )
