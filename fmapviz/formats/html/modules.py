"""Join ES modules into one script. A page that is opened from a file may not load modules.

Each module becomes a function that takes its imports and returns its exports: it has a scope of its own, and follows those
that it imports. A module may use `import { name, name as other } from "./path.js";`, and `export` before a function, a class
or a `const`, each at the beginning of a line. Everything else is refused: an exported `let` would keep its first value in
other modules.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_IMPORT = re.compile(r'^import \{([^{}"]*)\} from "(\.{1,2}/[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:(?:async )?function|class|const) (\w+))", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as (\w+))?")
# Types are for `make check`: the page is smaller by a tenth without them.
_TYPES = re.compile(r"^ *(?:// @ts-check|/\*\*(?:(?!\*/).)*\*/)\n", re.MULTILINE | re.DOTALL)
# Other statements at the beginning of a line; dynamic imports anywhere but in a comment.
_OTHER = re.compile(r"^\s*(?:import|export)\b.*|^(?!\s*//).*\bimport\s*[(.].*", re.MULTILINE)


class _Module(NamedTuple):
    imports: list[tuple[str, list[tuple[str, str]]]]  # of a path: pairs of the name there and the name here
    exports: list[str]
    body: str


def join(entry: str, source: str, read: Callable[[str], str]) -> str:
    r"""Return a script that runs a module and all that it imports, ASCII if they are.

    Args:
        entry: The module's path, to which its imports are relative.
        source: Its text.
        read: Returns the text of a module by its path.

    Raises:
        ValueError: A statement cannot be joined, a name that is imported is not exported, or modules import each other.
        OSError: From `read`, of a module that does not exist.

    Example:
        >>> print(join("b.js", 'import { one } from "./a.js";\nalert(one);\n', lambda path: "export const one = 1;\n"))
        "use strict";
        (() => {
        const modules = {};
        modules["a.js"] = (() => {
        const one = 1;
        return { one };
        })();
        modules["b.js"] = (({ one }) => {
        alert(one);
        return {  };
        })(modules["a.js"]);
        })();
        <BLANKLINE>
    """
    modules: dict[str, _Module] = {}  # in the order in which they run
    _add(entry, _parse(entry, source), read, modules, ())
    return "\n".join(
        ['"use strict";', "(() => {", "const modules = {};", *map(_wrap, modules, modules.values()), "})();", ""]
    )


def _add(
    path: str, module: _Module, read: Callable[[str], str], modules: dict[str, _Module], importers: tuple[str, ...]
) -> None:
    """Add a module behind those that it imports."""
    chain = (*importers, path)
    for other, names in module.imports:
        if other in chain:
            raise ValueError(f"modules import each other: {' > '.join([*chain[chain.index(other) :], other])}")
        if other not in modules:
            _add(other, _parse(other, read(other)), read, modules, chain)
        for name, _ in names:
            if name not in modules[other].exports:
                raise ValueError(f'{path} imports "{name}", which {other} does not export')
    modules[path] = module


def _parse(path: str, source: str) -> _Module:
    source = _TYPES.sub("", source)
    imports = []
    for names, relative in _IMPORT.findall(source):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))
        imports.append((other, [_parse_name(path, name) for each in names.split(",") if (name := each.strip())]))
    body = _EXPORT.sub("", _IMPORT.sub("", source))
    if refused := _OTHER.search(body):
        raise ValueError(f'{path} cannot be joined: "{refused[0].strip()}"')
    return _Module(imports, _EXPORT.findall(source), body.strip("\n"))


def _parse_name(path: str, text: str) -> tuple[str, str]:
    found = _NAME.fullmatch(text)
    if not found:
        raise ValueError(f'{path} cannot be joined: "import {{ {text} }}"')
    return found[1], found[2] or found[1]


def _wrap(path: str, module: _Module) -> str:
    taken = ", ".join(
        f"{{ {', '.join(name if name == here else f'{name}: {here}' for name, here in names)} }}"
        for _, names in module.imports
    )
    given = ", ".join(f'modules["{other}"]' for other, _ in module.imports)
    exports = f"return {{ {', '.join(module.exports)} }};"
    return f'modules["{path}"] = (({taken}) => {{\n{module.body}\n{exports}\n}})({given});'
