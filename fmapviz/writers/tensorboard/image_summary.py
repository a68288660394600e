"""The TensorBoard events of a picture."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from fmapviz.core.drawings import Histogram
from fmapviz.core.errors import printable
from fmapviz.render.histogram import bin_edges
from fmapviz.writers.tensorboard import event_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorboard.compat.proto.event_pb2 import Event

    from fmapviz.core.types import Picture


def summaries(picture: Picture, *, step: int = 0) -> Iterator[Event]:
    """Return the event of a picture, and one of its values if it is a histogram."""
    title = printable(picture.title or picture.name)
    yield event_file.image(
        _tag(picture.tag),
        picture.png,
        width=picture.width,
        height=picture.height,
        display_name=title,
        description=_table(picture.facts),
        step=step,
    )
    shown = picture.drawing and picture.drawing.content
    if isinstance(shown, Histogram):
        tag = _tag(f"values/{picture.name}")  # a tag belongs to one of TensorBoard's plugins
        yield event_file.histogram(tag, bin_edges(shown), shown.counts, display_name=title, step=step)


def _tag(text: str) -> str:
    """Return a tag whose picture TensorBoard's fast loader can find.

    It cannot if the tag holds a character that JSON escapes: a quotation mark, a backslash, a control character
    (`WireBlobKey` borrows its strings, https://github.com/tensorflow/tensorboard/pull/4545).

    Example:
        >>> _tag('maps/00 a"b')
        'maps/00 a%22b'
    """
    if text.isprintable() and not set(text) & {'"', "\\"}:
        return text
    return "".join(ch if ch.isprintable() and ch not in '"\\' else quote(ch, errors="surrogatepass") for ch in text)


def _table(facts: Mapping[str, str]) -> str:
    """Format facts as a Markdown table; the first one is the heading, which a table must have."""
    rows = [f"| {_literal(key)} | {_literal(value)} |" for key, value in facts.items()]
    rows.insert(1, "|---|---|")
    return "\n".join(rows) if facts else ""


@lru_cache(512)  # model, type and scaling are the same on every picture
def _literal(text: str) -> str:
    r"""Escape text for Markdown: characters with a meaning become character references.

    Example:
        >>> _literal("<b> | `c`\n")
        '&#60;b&#62; &#124; &#96;c&#96;&#92;n'
    """
    return re.sub(r"[]\\`*_[<>&|!#~]", lambda match: f"&#{ord(match[0])};", printable(text))
