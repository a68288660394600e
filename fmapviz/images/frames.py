"""Names of the frames of films: `clip.mp4/000042`, and `clip.mp4/000000-000015` for a clip of frames at equal distances."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fmapviz.core.platforms import SLASH
from fmapviz.core.urls import is_url
from fmapviz.errors import InputError, quote

if TYPE_CHECKING:
    from fmapviz.data import ImageFile

FILMS = (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg")  # read by PyAV
ANIMATED = (".gif", ".webp", ".apng")  # read by Pillow: films if they hold several pictures
_FRAME = re.compile(rf"(?P<film>.+){SLASH}(?P<first>\d{{6,12}})(?:-(?P<last>\d{{6,12}}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Frames:
    """One frame of a film, or a clip.

    Attributes:
        film: Absolute path or address of the film.
        first: Number of the first frame, from 0.
        last: Number of the last frame; the same for a single frame.
    """

    film: str
    first: int
    last: int

    def numbers(self, count: int) -> range:
        """Return the numbers of the frames of a clip.

        Args:
            count: Number of frames that the network takes.

        Raises:
            InputError: `E_NOTHING`: there are fewer frames at equal distances.

        Example:
            >>> list(Frames("clip.mp4", 0, 6).numbers(4))
            [0, 2, 4, 6]
        """
        if self.first == self.last:
            return range(self.first, self.first + 1)
        step, rest = divmod(self.last - self.first, max(1, count - 1))
        if count < 2 or step < 1 or rest:
            takes = f"clips of {count} frames at equal distances" if count > 1 else "single frames"
            named = quote(f"{self.film}/{numbered(self.first, self.last)}")
            raise InputError("E_NOTHING", f"the network takes {takes}: {named}")
        return range(self.first, self.last + 1, step)


def frames_of(path: str) -> Frames | None:
    """Return the frame or clip that a path names; None for the path of a file.

    Example:
        >>> frames_of("/films/clip.mp4/000042"), frames_of("/films/clip.mp4")
        (Frames(film='/films/clip.mp4', first=42, last=42), None)
    """
    match = _FRAME.fullmatch(path)
    if match is None or not may_be_film(match["film"]):
        return None
    first, last = int(match["first"]), int(match["last"] or match["first"])
    is_folder = not is_url(path) and os.path.isdir(match["film"])
    return None if last < first or is_folder else Frames(match["film"], first, last)


def file_of(path: str) -> str:
    """Return the path of the file that an image is in: of the film, for a frame.

    Example:
        >>> file_of("/films/clip.mp4/000042"), file_of("/photos/lena.png")
        ('/films/clip.mp4', '/photos/lena.png')
    """
    frames = frames_of(path)
    return frames.film if frames else path


def numbered(first: int, last: int | None = None) -> str:
    """Return the name of a frame within its film.

    Example:
        >>> numbered(42), numbered(0, 15)
        ('000042', '000000-000015')
    """
    return f"{first:06d}" if last in {None, first} else f"{first:06d}-{last:06d}"


def frame_of(film: ImageFile, first: int, last: int) -> ImageFile:
    """Return a frame of a film, or a clip, as an image."""
    name = numbered(first, last)
    return replace(film, path=f"{film.path}/{name}", unit=f"{film.unit}/{name}")


def is_film(path: str) -> bool:
    """Return True if a path or an address has the suffix of a film."""
    return _name_of(path).endswith(FILMS)


def may_be_film(path: str) -> bool:
    """Return True if a path or an address has the suffix of a film, or of a format that may be animated."""
    return _name_of(path).endswith((*FILMS, *ANIMATED))


def _name_of(path: str) -> str:
    return (re.split("[?#]", path, maxsplit=1)[0] if is_url(path) else path).lower()  # it may be no valid address
