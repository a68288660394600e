"""Render the report: one page for the run, one script of data per image.

A page opened by double click may not fetch anything, but it may load scripts from beside it: so data are scripts that hand
over one JSON value. What stands in them comes from files and models, and is never more than text.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# The page's script, in parts that follow each other inside one function: each may use at once only what stands before it.
_SCRIPTS = (
    "text.js",
    "data.js",
    "tiles.js",
    "list.js",
    "camera.js",
    "pane.js",
    "state.js",
    "show.js",
    "pins.js",
    "address.js",
    "keys.js",
    "statistics.js",
    "start.js",
)

# What ends a script element or a line of JavaScript is written as an escape; inside JSON that is the same text.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render_page(run: Mapping[str, Any]) -> bytes:
    """Render `index.html`, ASCII.

    Args:
        run: What the page is to know at once: `title`, `facts` (pairs), `units` (of each `unit`, `href`, `predictions`),
            `model` and `statistics` (addresses, or None), `failures` (of each `path`, `message`, `code`); and `views`, the
            order in which they are shown. A unit without a picture of the input has a `thumbnail` that is False.

    Raises:
        ValueError: A number in it is NaN or infinite.

    Example:
        >>> run = {"title": "<b>", "facts": [], "units": [], "model": None, "statistics": None, "failures": []}
        >>> page = render_page(run)
        >>> b"<title>&lt;b&gt;" in page, b"<b>" in page
        (True, False)
    """
    style = _read("report.css")
    script = "\n".join(['"use strict";\n(() => {', *map(_read, _SCRIPTS), "})();\n"])
    page = _template().render(
        run=run,
        data=Markup(_to_json(run)),  # noqa: S704 - escaped there
        style=Markup(style),  # noqa: S704 - our own
        script=Markup(script),  # noqa: S704 - our own
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    return page.encode("ascii", "xmlcharrefreplace")


def unit_script(unit: Mapping[str, Any]) -> bytes:
    r"""Write the `report.js` of one image, ASCII.

    Args:
        unit: Its `unit`, `source`, `predictions`, `notices` and `pictures`.

    Raises:
        ValueError: A number in it is NaN or infinite.

    Example:
        >>> unit_script({"unit": "</script>"})
        b'fmapviz.unit({"unit":"\\u003c/script\\u003e"});\n'
    """
    return f"fmapviz.unit({_to_json(unit)});\n".encode("ascii")


def statistics_script(statistics: Mapping[str, Any]) -> bytes:
    r"""Write `stats.js`, ASCII: what is known of every channel over the whole run.

    Args:
        statistics: The number of `images`, and `layers`.

    Raises:
        ValueError: A number in it is NaN or infinite.

    Example:
        >>> statistics_script({"images": 6, "layers": []})
        b'fmapviz.statistics({"images":6,"layers":[]});\n'
    """
    return f"fmapviz.statistics({_to_json(statistics)});\n".encode("ascii")


def pack(rows: NDArray[Any]) -> str:
    """Write numbers as the page's scripts read them: little-endian float32, row by row, in base64.

    Example:
        >>> import numpy as np
        >>> pack(np.array([[1.0]]))
        'AACAPw=='
    """
    return b64encode(np.ascontiguousarray(rows, "<f4").tobytes()).decode()


@cache
def _template() -> Template:
    """Compile the page: that takes longer than to render it."""
    environment = Environment(
        loader=PackageLoader("fmapviz", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    return environment.get_template("index.html.jinja")


@cache
def _read(name: str) -> str:
    return files("fmapviz.report").joinpath(name).read_text("utf-8")


def _to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _hash(text: str) -> str:
    """Name a text as a Content-Security-Policy does, https://www.w3.org/TR/CSP3/#grammardef-hash-source."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
