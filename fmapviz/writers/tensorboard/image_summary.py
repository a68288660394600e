"""A picture as TensorBoard shows it: the events that are written of it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from fmapviz import events
from fmapviz.errors import printable
from fmapviz.values import Drawing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorboard.compat.proto.event_pb2 import Event

    from fmapviz.histograms import Histogram
    from fmapviz.values import Picture


def summaries(picture: Picture, *, step: int = 0) -> Iterator[Event]:
    """Give the event that shows a picture, and one that counts the values if it is a histogram."""
    yield events.image(
        _tag(picture.tag),
        picture.png,
        width=picture.width,
        height=picture.height,
        display_name=printable(picture.title or picture.name),
        description=_table(picture.facts),
        step=step,
    )
    if isinstance(picture.source, Drawing) and picture.source.histogram:
        yield _histogram(picture, picture.source.histogram, step)


def _histogram(picture: Picture, shown: Histogram, step: int) -> Event:
    tag = _tag(f"values/{picture.name}")  # a tag belongs to one of TensorBoard's plugins
    name = printable(picture.title or picture.name)
    return events.histogram(tag, shown.edges, shown.counts, display_name=name, step=step)


def _tag(text: str) -> str:
    """Make a tag whose picture TensorBoard's fast loader can find again.

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
    """Lay facts out as a Markdown table. A table must have a heading, so the first fact is it."""
    rows = [f"| {_literal(key)} | {_literal(value)} |" for key, value in facts.items()]
    rows.insert(1, "|---|---|")
    return "\n".join(rows) if facts else ""


@lru_cache(512)  # model, type and scaling are the same on every picture
def _literal(text: str) -> str:
    r"""Write text so that Markdown shows it as it is: what it would act on within a line becomes a character reference.

    Example:
        >>> _literal("<b> | `c`\n")
        '&#60;b&#62; &#124; &#96;c&#96;&#92;n'
    """
    return re.sub(r"[]\\`*_[<>&|!#~]", lambda match: f"&#{ord(match[0])};", printable(text))
