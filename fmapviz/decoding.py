"""Decode images in processes of their own: a decoder that crashes, or does not come to an end, costs one image.

A *nursery* is a fresh interpreter that imports the decoders, looks into no file and forks a *helper* for each thread that
reads. A helper is handed files that are open already, decodes one after the other with `fmapviz.images`, and leaves the
pixels in memory that it shares with the run, which copies them. However it ends, the nursery tells how, and forks another.

What a helper says is trusted as little as the picture that it has read: numbers are checked, words are made printable. It is
no sandbox: code that a picture might smuggle in runs with the rights of the user.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Self

from fmapviz.errors import InputError, quote
from fmapviz.images import explained, open_image, read_image
from fmapviz.nursery import LostError, Nursery
from fmapviz.pixels import Image
from fmapviz.shared_pixels import pick_up
from fmapviz.values import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmapviz.nursery import Helper
    from fmapviz.shared_pixels import Found
    from fmapviz.values import ImageFile

_started: list[Nursery] = []


def start() -> None:
    """Start the nursery, which takes a fifth of a second, and keep it for all runs of this process."""
    if not _kept():
        with suppress(OSError, ValueError):  # told when it is needed
            _started.append(Nursery())
            atexit.register(_started[-1].close)


class Decoding:
    """Reads images in helpers, one for each thread that reads, until it is closed.

    Where the nursery is kept, so are they, and the next run finds them.

    Example:
        >>> from fmapviz.values import ImageFile
        >>> with Decoding() as decoding:
        ...     image = decoding.read(ImageFile("sample_images/shapes.png", "shapes.png", 0, 0), channels=1, tell=print)
        >>> image.pixels.mode, image.pixels.size
        ('L', (640, 480))
    """

    def __init__(self) -> None:
        self._nursery: Nursery | None = None
        self._at_work: set[int] = set()
        self._lock = Lock()
        self._possible = True
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the helpers that a thread still waits for; those of a nursery that is kept wait for the next run."""
        self._closed = True
        if self._nursery in _started:
            for pid in [*self._at_work]:
                self._nursery.kill(pid)
            self._nursery.rest()
        elif self._nursery:
            self._nursery.close()

    def read(self, file: ImageFile, *, channels: int, tell: Callable[[Notice], None]) -> Image:
        """Do what `fmapviz.images.read_image` does. Safe to call from several threads.

        Args:
            file: As it was found.
            channels: What the network takes.
            tell: Called once if there can be no helpers, and images are decoded in this process.

        Raises:
            InputError: As there; `E_DECODE` too if the decoder crashed or did not come to an end.
        """
        asked = self._ask(file, channels, tell)
        if asked is None:
            return read_image(file, channels=channels)
        helper, answer = asked
        try:
            if isinstance(answer, InputError):
                raise answer
            with explained(file.path):
                return Image(file, pick_up(answer, helper.memory, channels=channels), answer.notices)
        finally:
            self._put_back(helper)

    def _ask(
        self, file: ImageFile, channels: int, tell: Callable[[Notice], None], *, is_last: bool = False
    ) -> tuple[Helper, Found | InputError] | None:
        """Give a helper, and what it answered; None if there can be none."""
        with open_image(file.path, file.size) as stream:
            helper = self._take(tell)
            if helper is None:
                return None
            try:
                return helper, helper.ask(stream, file.path, channels=channels)
            except LostError as lost:
                ended = self._end(helper)
                reason = str(lost) or ended
                if reason or is_last:
                    raise InputError("E_DECODE", f"the decoder {reason or 'was ended'}: {quote(file.path)}") from lost
        # The nursery is gone as well: somebody has ended it, and with it all helpers, not for this picture.
        return self._ask(file, channels, tell, is_last=True)

    def _take(self, tell: Callable[[Notice], None]) -> Helper | None:
        """Give a helper that has nothing to do, or a new one; None if there can be none."""
        reason = ""
        with self._lock:
            self._require_open()
            for _ in range(2 if self._possible else 0):  # a nursery that somebody has killed is replaced
                try:
                    return self._hire()
                except (OSError, ValueError) as error:
                    reason = reason or getattr(error, "strerror", None) or str(error)
            self._possible = False
        if reason:
            tell(Notice(f"no process to decode in could be started ({reason}): a decoder that crashes ends the run"))
        return None

    def _hire(self) -> Helper:
        if self._nursery is None:
            self._nursery = _kept() or Nursery()
        try:
            helper = self._nursery.take()
        except (OSError, ValueError):
            self._require_open()
            self._nursery.close()
            if self._nursery in _started:
                _started.remove(self._nursery)
            self._nursery = None
            raise
        self._at_work.add(helper.pid)
        if self._closed:
            self._end(helper)
        self._require_open()
        return helper

    def _require_open(self) -> None:
        """Make a thread that goes on behind the run end, and decode nothing by itself."""
        if self._closed:
            raise InputError("E_DECODE", "the run has ended")

    def _put_back(self, helper: Helper) -> None:
        self._at_work.discard(helper.pid)
        if self._nursery and not self._closed:
            self._nursery.put_back(helper)
        else:
            self._end(helper)

    def _end(self, helper: Helper) -> str | None:
        """End a helper if it has not ended by itself, and say how it ended; None if nobody can tell."""
        self._at_work.discard(helper.pid)
        return self._nursery.end(helper) if self._nursery else None


def _kept() -> Nursery | None:
    return next((nursery for nursery in _started if nursery.is_ours), None)
