"""The worker process of `fmapviz.images.decode_pool`: decode one open file after the other into shared memory.

Nothing here needs PyTorch. A request is an open file with a line of JSON: `[path, size, seconds, channels, volume]`. The
answer is a line of JSON: `[mode, width, height, planes, notices, orientation]` of a picture, of other samples
`[dtype, shape, black, white, nodata, is_picture, notices, orientation]`, or an error, `[code, message, hint]`. A large image
is announced by its number of pixels, which extends the time limit.

A request about a film is `[path, size, seconds, channels, volume, question, number]`; the film stays open until the next one
is asked about. The answer to `read` is the pixels of a frame, to `has` whether there is one, to `facts` the header's length
and rate. A sign of life, a number, extends the time limit while many frames are decoded.

Where open files cannot be passed, on Windows, the worker opens the file by its path, or, of a remote one, receives so many
bytes after the request, unless it is the one that it received last; the pixels follow the answer.

Shared memory is a nameless file (`memfd_create`): it is freed however the processes end, and is not bounded by the size of
`/dev/shm`, as `multiprocessing.shared_memory` is. Pictures of 8 bits are stored as Pillow stores
them, because its `tobytes` and `frombytes` take ten times as long as a copy.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import selectors
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from PIL import Image as PillowImage

from fmapviz.core import platforms
from fmapviz.core.samples import Samples
from fmapviz.errors import InputError
from fmapviz.images.decode import decode
from fmapviz.images.errors import MAX_VALUES, classify, wrong_channels

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fmapviz.images.film_decoder import FilmDecoder

    Memory = mmap.mmap | bytearray  # shared, or the pixels of one image

SHARED_BYTES = 8 * MAX_VALUES
_ANNOUNCED_PIXELS = 1_000_000
_OTHER_ANSWERS = 3  # most parts of an answer without pixels
_IDLE_SECONDS = 1.0  # until Pillow's cache of memory blocks is emptied
_PIECE_BYTES = 2**20  # of a file that is received
_SIGN_SECONDS = 1.0  # between two signs of life


def main(connection: int, shared: int, parent: int, memory_bytes: int) -> NoReturn:
    """Decode until the parent process closes the connection or ends.

    Args:
        connection: Descriptor of the socket, see `fmapviz.core.platforms.adopt_connection`.
        shared: Descriptor of the shared memory, if workers share memory here.
        parent: Process that started this one.
        memory_bytes: Limit of the address space.
    """
    sys.dont_write_bytecode = True
    platforms.confine(memory_bytes)
    _import_decoders()
    if os.getppid() == parent:
        with suppress(OSError):
            _serve(platforms.adopt_connection(connection), mmap.mmap(shared, 0) if platforms.PASSES_FILES else None)
    os._exit(0)


def _import_decoders() -> None:
    """Import the plugins of the usual formats; NumPy follows with the first array.

    Pillow searches all its plugins for a format that is not loaded, which takes four times as long.
    """
    PillowImage.preinit()
    for name in ("WebP", "Avif", "Tiff", "Jpeg2K", "Qoi", "Tga"):
        import_module(f"PIL.{name}ImagePlugin")


def _serve(connection: socket.socket, shared: mmap.mmap | None) -> None:
    requests = connection.makefile("rb")
    films = Films()
    arrival = getattr(selectors, "PollSelector", selectors.SelectSelector)()  # the default one has a descriptor of its own
    arrival.register(connection, selectors.EVENT_READ)
    received: BinaryIO = io.BytesIO()  # file that came last over the connection
    _send(connection, "ready")
    while True:
        if not arrival.select(_IDLE_SECONDS):
            PillowImage.core.clear_cache()  # type: ignore[attr-defined]  # Pillow's types leave it out
        passed = platforms.receive_file(connection)
        line = requests.readline()
        if not line:
            return
        path, size, seconds, *request = json.loads(line)
        limit = _Limit(connection, seconds)
        if not passed and not path and size:
            received = _receive(size, requests)
        stream = passed or (Path(path).open("rb") if path else received)  # noqa: SIM115
        memory = shared or bytearray()
        answer = _answer(stream, request, films=films, limit=limit, memory=memory)
        _send(connection, answer)
        if not shared and len(answer) > _OTHER_ANSWERS:
            connection.sendall(memory)
        if stream not in {films.stream, received}:
            stream.close()


def _receive(size: int, requests: BinaryIO) -> BinaryIO:
    """Return a temporary file of so many bytes that follow a request."""
    stream = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115  the request may be repeated
    while size and (piece := requests.read(min(size, _PIECE_BYTES))):
        stream.write(piece)
        size -= len(piece)
    stream.seek(0)
    return stream


# Any: of JSON.
def _answer(stream: BinaryIO, request: list[Any], *, films: Films, limit: _Limit, memory: Memory) -> list[object]:
    channels, volume, *about_film = request
    try:
        if not about_film:
            pixels, *facts = decode(stream, channels=channels, volume=volume, expect=limit.announce)
            return [*_store(pixels, memory), *facts]
        answer = films.ask(stream, *about_film, channels=channels, progress=limit.extend)
        return [*_store(answer[0], memory), *answer[1:]] if isinstance(answer[0], PillowImage.Image) else answer
    except Exception as error:  # noqa: BLE001 - a decoder may raise anything
        refusal = error if isinstance(error, InputError) else classify(error)
        return [refusal.code, str(refusal), refusal.hint]
    finally:
        platforms.end_process_in(0)


class _Limit:
    """The time limit of a request."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._sent = time.monotonic()
        self._end_in(seconds)

    def announce(self, pixels: int) -> None:
        """Extend the limit once for a large picture."""
        if pixels >= _ANNOUNCED_PIXELS:
            _send(self._connection, pixels)
            self._end_in(self._seconds + pixels / 1e6)

    def extend(self) -> None:
        """Begin the limit again, and send a sign of life, if a second has passed since the last one."""
        if time.monotonic() > self._sent + _SIGN_SECONDS:
            self._sent = time.monotonic()
            _send(self._connection, 0)
            self._end_in(self._seconds)

    def _end_in(self, seconds: float) -> None:
        """Ask the system to end this process a second after the parent should have, in case that is gone."""
        platforms.end_process_in(seconds + 1)


class Films:
    """Answers questions about films; the last film stays open.

    Attributes:
        stream: Of that film; None before the first one.
    """

    def __init__(self) -> None:
        self.stream: BinaryIO | None = None
        self._decoder: FilmDecoder | None = None
        self._file: tuple[int, ...] = ()

    def ask(
        self,
        stream: BinaryIO,
        question: str,
        number: int = 0,
        *,
        channels: int = 3,
        progress: Callable[[], object] = lambda: None,
    ) -> list[Any]:  # Any: pixels, notices and numbers
        """Answer a question about a film.

        Args:
            stream: The open film.
            question: `animated`, `facts`, `times`, `has` or `read`.
            number: Of the frame.
            channels: Number of channels that the model takes.
            progress: Called after each frame.

        Raises:
            InputError: See `FilmDecoder`; `E_CHANNELS`: the model takes another number.
        """
        if question == "animated":
            from fmapviz.images.film_decoder import is_animated  # noqa: PLC0415  for films only

            return [is_animated(stream)]
        film = self._open(stream)
        if question == "facts":
            announced, rate = film.facts
            return [announced, rate.numerator, rate.denominator]
        if question == "times":
            return [film.times(number)]
        if question == "has":
            return [film.has(number, progress)]
        if channels not in {1, 3}:
            raise wrong_channels("a film", channels=channels)
        image = film.read(number, progress)
        if channels == 1:
            image = image._replace(pixels=cast("PillowImage.Image", image.pixels).convert("L"))
        return [*image]

    def _open(self, stream: BinaryIO) -> FilmDecoder:
        from fmapviz.images.film_decoder import FilmDecoder  # noqa: PLC0415  for films only

        status = os.fstat(stream.fileno())
        file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._decoder is None or self._file != file:
            if self.stream and self.stream is not stream:
                self.stream.close()
            self.stream = self._decoder = None
            self._decoder, self.stream, self._file = FilmDecoder(stream), stream, file
        return self._decoder


def _store(pixels: PillowImage.Image | Samples, memory: Memory) -> tuple[object, ...]:
    """Copy pixels into the memory, and describe them."""
    buffer: Any = memory  # Pillow's types do not accept an mmap, its code accepts any buffer
    if isinstance(pixels, Samples):
        import numpy as np  # noqa: PLC0415  it is there if samples are

        values = pixels.values
        _make_room(memory, values.nbytes)
        np.copyto(np.frombuffer(buffer, values.dtype, values.size).reshape(values.shape), values)
        return values.dtype.str, values.shape, pixels.black, pixels.white, pixels.nodata, pixels.is_picture
    mode, size = pixels.mode, pixels.size
    stored_mode = "RGBX" if mode == "RGB" else mode
    _make_room(memory, size[0] * size[1] * len(stored_mode))
    view = PillowImage.frombuffer(stored_mode, size, buffer, "raw", stored_mode, 0, 1)
    view.im.paste(pixels.im, (0, 0, *size))
    return mode, *size, 1


def _make_room(memory: Memory, size: int) -> None:
    if isinstance(memory, bytearray):
        memory.extend(bytes(size))


def _send(connection: socket.socket, message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")
