"""Render the report: one page per run, one script of data per image.

A page opened from a file may not fetch anything, but it may load scripts from beside it. Data are therefore scripts that
pass one JSON value to a function of the page. Names in them come from files and models: they are escaped, and shown as text.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from functools import cache, reduce
from hashlib import sha256
from importlib.resources import files as resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fmapviz.core import registry
from fmapviz.errors import printable
from fmapviz.formats.html.modules import join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import PurePath

    from numpy.typing import NDArray

# Scripts that register themselves with the page; it works without any of them.
SCRIPTS = tuple(f"formats/html/{name}.js" for name in ("field", "swipe", "series", "curves", "statistics", "pairs")) + tuple(
    part.script for part in registry.report_parts()
)
_STYLES = ("formats/html/report.css", *(part.style for part in registry.report_parts() if part.style))

# Characters that could end a script element are written as escapes, which JSON reads as the same text.
_STRING_ESCAPES = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"))  # of binary data
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def render_page(
    run: Mapping[str, Any], files: Mapping[str, str] = MappingProxyType({}), *, scripts: tuple[str, ...] = SCRIPTS
) -> bytes:
    """Render `index.html`, ASCII.

    Args:
        run: The data in the page itself: `title`, `facts` (pairs), `units` (see `listing.list_images`; each with `thumbnail`
            False if it has no picture of the input), `model`, `top` and `statistics` (relative addresses,
            or None), `failures` (each with `path`, `message` and `code`), and `views` in the order in which they are shown;
            in an object store also `objects` (the addresses of files that have other names there); with series `curves`
            (a relative address), and `models` (the steps of a model that is drawn at each, see `listing.list_steps`). The
            page of two runs has `runs` (see `two_runs`), and its `units` are those of `pairs.pair_images`.
        files: Files inside the page, by their relative addresses: scripts as JSON of their data, pictures in base64. With
            them, the page loads no others.
        scripts: The modules of features, by path in the package; each exports `register`, see `registry.js`.

    Raises:
        ValueError: A number in the data is NaN or infinite.

    Example:
        >>> run = {"title": "<b>", "facts": [], "units": [], "model": None, "statistics": None, "failures": []}
        >>> page = render_page(run)
        >>> b"<title>&lt;b&gt;" in page, b"<b>" in page
        (True, False)
    """
    style = "\n".join(map(_read, _STYLES))
    code = _join(scripts)
    page = _template().render(
        run=run,
        has_series=any("steps" in unit for unit in run["units"]),
        files={name: Markup(content) for name, content in files.items()},  # noqa: S704 - JSON escaped as the data, or base64
        data=Markup(to_json(run)),  # noqa: S704 - escaped there
        style=Markup(style),  # noqa: S704 - from the package
        script=Markup(code),  # noqa: S704 - from the package
        style_hash=_hash(style),
        script_hash=_hash(code),
    )
    return page.encode("ascii", "xmlcharrefreplace")


def script(function: str, value: Mapping[str, Any]) -> bytes:
    r"""Render a script that passes data to a function of the page, ASCII.

    Args:
        function: `unit` for `report.js` of one image, `statistics` for `stats.js`, of every channel over the whole run, or
            `curves` for `steps.js`, of every layer over the steps of a training.
        value: The `unit`, `source`, `predictions`, `notices` and `pictures`; or the number of `images`, and `layers`; or
            what `listing.list_curves` returns.

    Raises:
        ValueError: A number in the data is NaN or infinite.

    Example:
        >>> script("unit", {"unit": "</script>"})
        b'fmapviz.unit({"unit":"\\u003c/script\\u003e"});\n'
    """
    return f"fmapviz.{function}({to_json(value)});\n".encode("ascii")


def read_script(content: bytes) -> dict[str, Any]:
    r"""Return the data of a script.

    Raises:
        ValueError: The script is damaged.

    Example:
        >>> read_script(script("unit", {"unit": "a.png"}))
        {'unit': 'a.png'}
    """
    value = json.loads(content.removesuffix(b");\n").partition(b"(")[2])
    if not isinstance(value, dict):
        raise ValueError("not the data of a page")  # noqa: TRY004  the file is damaged
    return value


def to_json(value: Mapping[str, Any]) -> str:
    """Encode data as JSON, ASCII, without a character that could end a script element.

    Raises:
        ValueError: A number in the data is NaN or infinite.
    """
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def pixel_script(pictures: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    r"""Yield the pieces of a script that passes PNG files to the page.

    A page that is opened from a file may show a picture, but not read its pixels. It may run a script, which holds the bytes
    as characters of a string: it is two per cent larger than the files, where base64 adds a third.

    Args:
        pictures: Address and content of each file.

    Example:
        >>> b"".join(pixel_script([("a.png", b'\x89"\n')]))
        b'fmapviz.pixels({\n"a.png":"\x89\\"\\n",\n});\n'
    """
    yield b"fmapviz.pixels({\n"
    for href, content in pictures:
        yield b'%b:"' % json.dumps(href).encode("ascii")
        yield reduce(lambda escaped, pair: escaped.replace(*pair), _STRING_ESCAPES, content)
        yield b'",\n'
    yield b"});\n"


def pack(rows: NDArray[Any]) -> str:
    """Encode numbers for the page's scripts: little-endian float32, row by row, in base64.

    Example:
        >>> import numpy as np
        >>> pack(np.array([[1.0]]))
        'AACAPw=='
    """
    return b64encode(np.ascontiguousarray(rows, "<f4").tobytes()).decode()


def link(path: PurePath) -> str:
    """Return a relative path as an address in the page, byte for byte as the file system has it.

    Example:
        >>> from pathlib import PurePosixPath
        >>> link(PurePosixPath("a b/50%#1?.png"))
        'a%20b/50%25%231%3F.png'
    """
    return "/".join(quote(os.fsencode(part), safe="") for part in path.parts)


@cache
def _template() -> Template:
    """Compile the page, which takes longer than rendering it."""
    environment = Environment(
        loader=PackageLoader("fmapviz.formats.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    return environment.get_template("index.html.jinja")


@cache
def _join(scripts: tuple[str, ...]) -> str:
    """Return the script of a page with the scripts of some features."""
    kernel = 'import { report } from "./registry.js";\nimport { start } from "./start.js";\n'
    imports = "".join(f'import {{ register as register{at} }} from "../../{path}";\n' for at, path in enumerate(scripts))
    calls = "".join(f"register{at}(report);\n" for at in range(len(scripts)))
    return join("formats/html/page.js", f"{kernel}{imports}{calls}start();\n", _read)


def _read(path: str) -> str:
    """Read a file of the package: a script or style may lie beside its feature."""
    return resources("fmapviz").joinpath(path).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a text.

    https://www.w3.org/TR/CSP3/#grammardef-hash-source
    """
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
