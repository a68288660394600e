"""Hidden directories to write into, until what is in them is whole.

Their names carry host and process, so that leftovers of a killed process can be told from the work of a living one.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from fmapviz import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIDDEN = ".fmapviz-"
ASIDE = "-old"  # ends the name of a finished directory that another one is to replace
WRECK = "-damaged"  # ends that of one whose record was lost
FOREIGN_SECONDS = 86_400  # what another host has not touched for so long, it has left behind

_THIS = token_hex(3)  # another process of this number, in another container, say, has another
_under_way: set[Path] = set()


@contextmanager
def stage(parent: Path, ending: str = "") -> Iterator[Path]:
    """Make a hidden directory to write into; whatever is left of it in the end is removed."""
    staging = hidden(parent, ending)
    _under_way.add(staging)
    try:
        files.make_folder(staging)
        yield staging
    finally:
        if files.exists(staging):
            files.remove_tree(staging)
        _under_way.discard(staging)


def hidden(parent: Path, ending: str = "") -> Path:
    """Give a hidden name that nothing has yet."""
    return parent / f"{HIDDEN}{_host()}-{os.getpid()}-{_THIS}-{token_hex(4)}{ending}"


def leftovers(place: Path) -> Iterator[Path]:
    """Give what processes that are gone have left under hidden names."""
    for leftover in place.glob(f"{HIDDEN}*"):
        host, _, rest = leftover.name.removeprefix(HIDDEN).partition("-")
        pid, _, rest = rest.partition("-")
        if pid.isdecimal() and (_is_gone(int(pid), rest) if host == _host() else _is_old(leftover)):
            yield leftover


def remove_staged() -> None:
    """Remove what is being written, of a process that ends now, whatever its threads are at."""
    for staging in tuple(_under_way):
        waste = hidden(staging.parent)
        with suppress(OSError):
            files.rename(staging, waste)  # so that no thread adds another file
            files.remove_tree(waste)


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _is_gone(pid: int, rest: str) -> bool:
    if pid == os.getpid():
        return not rest.startswith(f"{_THIS}-")
    return not is_running(pid)


def is_running(pid: int) -> bool:
    """Tell whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _is_old(leftover: Path) -> bool:
    with suppress(OSError):
        return leftover.lstat().st_mtime < time.time() - FOREIGN_SECONDS
    return False
