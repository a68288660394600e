"""Join ES modules into one script. A page that is opened from a file may not load modules.

Each module becomes a function that takes its imports and returns its exports: it has a scope of its own, and follows those
that it imports. A module may use `import { name, name as other } from "./path.js";`, and `export` before a function, a class
or a `const`, each at the beginning of a line. Everything else is refused: an exported `let` would keep its first value in
other modules.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_IMPORT = re.compile(r'^import \{([^{}"]*)\} from "(\.{1,2}/[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:(?:async )?function|class|const) (\w+))", re.MULTILINE)
# Types are for `make check`: the page is smaller by a tenth without them.
_TYPES = re.compile(r"^ *(?:// @ts-check|/\*\*(?:(?!\*/).)*\*/)\n", re.MULTILINE | re.DOTALL)
# Other statements at the beginning of a line; dynamic imports anywhere but in a comment.
_OTHER = re.compile(r"^\s*(?:import|export)\b.*|^(?!\s*//).*\bimport\s*[(.].*", re.MULTILINE)


def join(entry: str, source: str, read: Callable[[str], str]) -> str:
    r"""Return a script that runs a module and all that it imports, ASCII if they are.

    Args:
        entry: The module's path, to which its imports are relative.
        source: Its text.
        read: Returns the text of a module by its path.

    Raises:
        ValueError: A statement cannot be joined, or modules import each other. `make check` finds unknown names.
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
    wrapped: dict[str, str] = {}  # by path, in the order in which they run
    _add(entry, source, read, wrapped, ())
    return "\n".join(['"use strict";', "(() => {", "const modules = {};", *wrapped.values(), "})();", ""])


def _add(path: str, source: str, read: Callable[[str], str], wrapped: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module behind those that it imports."""
    source, importers = _TYPES.sub("", source), (*importers, path)
    taken, given = [], []
    for listed, relative in _IMPORT.findall(source):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))
        if other in importers:
            raise ValueError(f"modules import each other: {' > '.join((*importers, other))}")
        if other not in wrapped:
            _add(other, read(other), read, wrapped, importers)
        names = (name.strip().replace(" as ", ": ") for name in listed.split(","))
        taken.append(f"{{ {', '.join(filter(None, names))} }}")
        given.append(f'modules["{other}"]')
    body = _EXPORT.sub("", _IMPORT.sub("", source)).strip("\n")
    if refused := _OTHER.search(body):
        raise ValueError(f'{path} cannot be joined: "{refused[0].strip()}"')
    exports = f"return {{ {', '.join(_EXPORT.findall(source))} }};"
    wrapped[path] = f'modules["{path}"] = (({", ".join(taken)}) => {{\n{body}\n{exports}\n}})({", ".join(given)});'
