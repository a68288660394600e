"""Show the first pictures of a run in the terminal (`--show`)."""

from __future__ import annotations

import io
import re
import struct
import sys
from base64 import standard_b64encode
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from fmapviz.cli.printing import is_terminal, print_line, print_message
from fmapviz.cli.terminal import find_graphics, window_pixels
from fmapviz.core import registry
from fmapviz.core.members import load
from fmapviz.core.urls import UrlPath
from fmapviz.errors import RequestError, printable
from fmapviz.store.run_files import find_units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from PIL import Image as PillowImage

    from fmapviz.cli.terminal import Graphics

_MOST = 4  # pictures
_MOST_PIXELS = 50_000_000  # of a picture: a larger one takes seconds to shrink
_DEFINITION = re.compile(r"(#\d+);2;\d+;\d+;\d+")  # of a colour in sixels
_INSTALL = "pip install 'fmapviz[show]'"
_CHUNK = 4096  # bytes of base64 in one sequence of kitty


def check_show() -> None:
    """Refuse `--show` before a run if this terminal shows pictures in sixels, and the package for them is missing.

    Raises:
        RequestError: It is missing.
    """
    if not _has_sixels() and is_terminal(sys.stdout):
        graphics = find_graphics(sys.stdout.fileno())
        if graphics and graphics.protocol == "sixel":
            raise RequestError("pictures in this terminal need the package textual-image", hint=_INSTALL)


def show_pictures(units: Sequence[Path], run: Path) -> None:
    """Print the first pictures of some units with their names, or a notice why this terminal cannot show them.

    Args:
        units: Directories of images, or of pages; empty: the first one of the run, such as that of its model.
        run: The run directory, which names are relative to.

    Raises:
        OutputError: Standard output cannot be written.
    """
    if not is_terminal(sys.stdout):
        return print_message("notice: --show is for a terminal, and standard output is not one")
    graphics = find_graphics(sys.stdout.fileno())
    if graphics is None:
        return print_message("notice: this terminal shows no pictures; kitty, iTerm2, WezTerm and terminals with sixels do")
    if graphics.protocol == "sixel" and not _has_sixels():
        print_message("notice: pictures in this terminal need one more package")
        return print_message(f"hint: {_INSTALL}")
    size = window_pixels(sys.stdout.fileno())
    shown = 0
    for name, png in _first_pictures(units, run):
        if encoded := _encode(png, size, graphics):
            print_line(printable(name))
            print_line(encoded)
            shown += 1
    if not shown:
        remote = isinstance(run, UrlPath)
        print_message(f"notice: no pictures to show: {'they are in a remote store' if remote else '--to png writes some'}")
    return None


def _first_pictures(units: Sequence[Path], run: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the PNG file of the first pictures of each unit."""
    local = [
        unit for unit in units or ([] if isinstance(run, UrlPath) else find_units(run)[:1]) if not isinstance(unit, UrlPath)
    ]
    for unit in local:
        place = unit.relative_to(run) if unit.is_relative_to(run) else unit
        for name, png in _pictures_of(unit, max(1, _MOST // len(local))):
            yield f"{place}: {name}", png


def _pictures_of(unit: Path, most: int) -> list[tuple[str, bytes]]:
    """Return the first pictures of a unit, from the files of one of its formats."""
    for form in registry.formats().values():
        if form.read_pictures and any(any(unit.glob(pattern)) for pattern in form.unit_files):
            with suppress(Exception):  # of several libraries, for a damaged file, which `fmapviz verify` reports
                return [*islice(load(form.read_pictures)(unit), most)]
    return []


def _encode(png: bytes, size: tuple[int, int], graphics: Graphics) -> str:
    """Return the escape sequences that show a picture; empty if it is damaged or too large."""
    width, height = struct.unpack(">II", png[16:24]) if len(png) > 24 else (0, 0)
    if not 0 < width * height <= _MOST_PIXELS:
        return ""
    try:
        if graphics.protocol == "sixel":
            return _sixels(_shrunk(png, size), colors=graphics.colors)
        if width > size[0] or height > size[1]:
            buffer = io.BytesIO()
            _shrunk(png, size).save(buffer, "PNG")
            png = buffer.getvalue()
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for a damaged file
        return ""
    return _kitty(png) if graphics.protocol == "kitty" else _iterm2(png)


def _shrunk(png: bytes, size: tuple[int, int]) -> PillowImage.Image:
    """Return a picture that is no larger than a size, in pixels."""
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        whole = picture.convert(picture.mode if picture.mode in {"L", "RGB", "RGBA"} else "RGBA")
        whole.thumbnail(size, Image.Resampling.LANCZOS)
        return whole


def _kitty(png: bytes) -> str:
    """Return the sequences of kitty; with `q=2` the terminal answers nothing.

    Protocol: https://sw.kovidgoyal.net/kitty/graphics-protocol/
    """
    data = standard_b64encode(png).decode()
    parts = [data[begin : begin + _CHUNK] for begin in range(0, len(data), _CHUNK)]
    keys = ["a=T,f=100,q=2,", *[""] * (len(parts) - 1)]
    more = [*[1] * (len(parts) - 1), 0]
    return "".join(f"\x1b_G{key}m={follows};{part}\x1b\\" for key, follows, part in zip(keys, more, parts, strict=True))


def _iterm2(png: bytes) -> str:
    """Return the sequence of iTerm2, see https://iterm2.com/documentation-images.html."""
    return f"\x1b]1337;File=inline=1;size={len(png)};preserveAspectRatio=1:{standard_b64encode(png).decode()}\a"


def _has_sixels() -> bool:
    try:
        import textual_image._sixel  # noqa: F401  its public modules ask the terminal when they are imported
    except ImportError:
        return False
    return True


def _sixels(picture: PillowImage.Image, *, colors: int) -> str:
    """Return a picture in sixels that defines all colours first: xterm 379 changes pixels before a later definition."""
    from textual_image._sixel import SixelOptions, image_to_sixels

    sixels = image_to_sixels(picture, SixelOptions(colors=colors))
    start = sixels.index("#")  # behind the size
    defined = "".join(each[0] for each in _DEFINITION.finditer(sixels))
    return sixels[:start] + defined + _DEFINITION.sub(r"\1", sixels[start:])
