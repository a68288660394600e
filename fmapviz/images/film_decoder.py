"""Decode a film frame by frame: with PyAV, or with Pillow if it is an animated picture.

The number of a frame counts the pictures that a decoder returns from the beginning of the film. Frames are decoded in their
order, and those that were asked about but not read yet are stored. Going back, and the first frame if it is not frame 0, use
the timestamps of a film that has plain ones: the frame with the k-th smallest timestamp is frame k, and decoding begins at
the key frame before it.

One thread decodes: with several, FFmpeg reports damage in a later frame than that in which it is. FFmpeg conceals much of
it; its messages about that are taken for damage as well.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import ExitStack, closing, suppress
from fractions import Fraction
from functools import cache
from importlib import import_module
from itertools import chain, count, islice
from struct import unpack
from typing import TYPE_CHECKING, Any, BinaryIO

from PIL import Image as PillowImage

from fmapviz.core.words import counted
from fmapviz.errors import InputError
from fmapviz.images.decode import Image, remarks_on_opacity, upright_rgb
from fmapviz.images.errors import classify, require_few_pixels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEPT_BYTES = 256 * 2**20  # of frames that were asked about and not read yet
HINT = "pip install 'fmapviz[video]'"
DEFAULT_RATE = Fraction(10)  # frames per second, of a film without a rate
# Formats whose files contain all their data: a playlist would name other files.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegvideo"
_INDEXED = {"mov", "matroska", "avi"}  # in these, seeking ends at the frame that was asked for
_ANIMATED = re.compile(rb"GIF8|RIFF....WEBP|\x89PNG\r\n\x1a\n", re.DOTALL)
# FFmpeg's messages about damage that it conceals.
_DAMAGE = re.compile(r"ended prematurely|EBML number|error while decoding|damaged at|Error at MB|[Tt]runcat")
# EXIF orientations by the signs of a display matrix that swaps no axes, (a, d), and of one that swaps them, (b, c).
_KEPT = {(1, 1): 1, (-1, 1): 2, (-1, -1): 3, (1, -1): 4}
_SWAPPED = {(1, 1): 5, (1, -1): 6, (-1, -1): 7, (-1, 1): 8}
_SLANT = 0.0175  # the tangent of a degree: FFmpeg takes matrices that differ by less for one without


class FilmDecoder:
    """Decodes the frames of one film; not safe in several threads.

    Args:
        stream: The open film.

    Raises:
        InputError: `E_FORMAT` (not a film, or PyAV is missing), `E_TOO_LARGE` or `E_DECODE`. Messages do not name the file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        stream.seek(0)
        head = stream.read(64)
        stream.seek(0)
        self._source = _Animation(stream) if _ANIMATED.match(head) else _Video(stream)
        self._frames: Iterator[Any] = iter(())
        self._kept: dict[int, Any] = {}
        self._next: int | None = None  # number of the frame that is decoded next; None before the first one
        self._length: int | None = None
        self._times: list[float] | None = None
        self._damage: InputError | None = None

    @property
    def facts(self) -> tuple[int | None, Fraction]:
        """The number of frames that the header announces, or None, and the frames per second."""
        return self._source.announced, self._source.rate

    def times(self, begin: int) -> list[float]:
        """Return when frames begin if their rate varies, in seconds from the first one on; none of a constant rate.

        Args:
            begin: Number of the first of the 1,000 frames to return; behind the last one is the end of the film.
        """
        if self._times is None:
            times, unit = self._source.times()
            self._times = times if _varies(times[:-1], unit) else []
        return self._times[begin : begin + 1000]

    def has(self, number: int, progress: Callable[[], object] = lambda: None) -> bool:
        """Return True if there is a frame of this number, after decoding up to it.

        Args:
            number: From 0.
            progress: Called after each frame that was decoded.

        Raises:
            InputError: `E_DECODE`: the film is damaged before it.
        """
        if (self._length is None or number < self._length) and self._decode(number, progress) is not None:
            return True
        if self._damage:
            raise self._damage
        return False

    def read(self, number: int, progress: Callable[[], object] = lambda: None) -> Image:
        """Return a frame as an upright picture in mode RGB, notices on it, and the EXIF orientation that was applied.

        Raises:
            InputError: `E_DECODE`: the film is damaged before it. `E_MISSING`: the film is shorter.
        """
        frame = self._decode(number, progress)
        if frame is None:
            raise self._damage or InputError("E_MISSING", f"the film has {counted(self._length or 0, 'frame')}")
        self._kept.pop(number, None)
        return self._source.convert(frame)

    def _decode(self, number: int, progress: Callable[[], object]) -> Any:
        if number in self._kept:
            return self._kept[number]
        if self._next is None or number < self._next:
            self._next, self._frames = self._source.begin(number)
        frame = None
        while self._next <= number:
            try:
                frame = next(self._frames, None)
            except InputError as damage:
                behind = f" behind frame {self._next - 1}" if self._next else ""
                self._damage = InputError(damage.code, f"film is damaged{behind} ({damage})", hint=damage.hint)
                frame = None
            if frame is None:
                self._length = self._next
                return None
            self._next += 1
            progress()
        self._kept[number] = frame
        kept = sum(map(self._source.size_of, self._kept.values()))
        while kept > KEPT_BYTES and len(self._kept) > 2:
            kept -= self._source.size_of(self._kept.pop(next(iter(self._kept))))
        return frame


def is_animated(stream: BinaryIO) -> bool:
    """Return True if a file that Pillow reads holds several pictures."""
    stream.seek(0)
    if not _ANIMATED.match(stream.read(64)):
        return False
    stream.seek(0)
    with suppress(Exception), PillowImage.open(stream, formats=("GIF", "WEBP", "PNG")) as image:
        return bool(getattr(image, "is_animated", False))
    return False


class _Animation:
    """An animated GIF, WebP or PNG file, which Pillow decodes.

    Attributes:
        announced: Number of frames by the header, or None.
        rate: Frames per second: the mean of the first eight.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        image = self._open()
        require_few_pixels(image)
        self.announced: int | None = None
        with suppress(Exception):  # a damaged end
            self.announced = int(getattr(image, "n_frames", 1))
        ends = self._measure_ends(8)
        self.rate = Fraction((len(ends) - 1) / ends[-1]).limit_denominator(1000) if ends[-1] > 0 else DEFAULT_RATE

    def begin(self, _number: int) -> tuple[int, Iterator[Any]]:
        """Return the number of a frame up to the given one, and an iterator of the frames from there on.

        The iterator raises `InputError` where the film is damaged.
        """
        return 0, self._frames(self._open())

    def convert(self, frame: Any) -> Image:
        picture, notices = frame
        return Image(picture, notices)

    def size_of(self, frame: Any) -> int:
        picture, _ = frame
        return 4 * int(picture.width) * int(picture.height)

    def times(self) -> tuple[list[float], float]:
        """Return when each frame begins and the last one ends, in seconds, and the unit of these; none if unknown."""
        ends = self._measure_ends(None)
        return (ends if len(ends) > 2 and ends[-1] else []), 0.01

    def _open(self) -> PillowImage.Image:
        self._stream.seek(0)
        try:
            return PillowImage.open(self._stream, formats=("GIF", "WEBP", "PNG"))
        except Exception as error:
            raise classify(error) from error

    def _measure_ends(self, most: int | None) -> list[float]:
        """Return 0 and the times at which the first frames end, in seconds."""
        image, ends = self._open(), [0.0]
        with suppress(Exception):  # at the end, and where it is damaged
            for number in islice(count(), most):
                image.seek(number)
                image.load()
                ends.append(ends[-1] + float(image.info.get("duration", 0)) / 1000)
        return ends

    def _frames(self, image: PillowImage.Image) -> Iterator[tuple[PillowImage.Image, tuple[str, ...]]]:
        number = 0
        while True:
            try:
                image.seek(number)
                image.load()
                frame = upright_rgb(image), remarks_on_opacity(image)
            except EOFError:
                if self.announced and number < self.announced:
                    raise InputError("E_DECODE", f"it ends after {number} of {counted(self.announced, 'frame')}") from None
                return
            except Exception as error:
                raise InputError("E_DECODE", _reason(error)) from error
            yield frame
            number += 1


class _Video:
    """A film that FFmpeg decodes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        container, video = self._open()
        with closing(container):
            rate = video.average_rate or video.guessed_rate
            self.rate = Fraction(rate) if rate and 0 < rate <= 1000 else DEFAULT_RATE
            self._unit = Fraction(video.time_base or 0)
            self._listed = int(video.frames)  # 0: unknown
            seconds = float(container.duration / _av().time_base) if container.duration else 0.0
            self.announced: int | None = self._listed or (round(seconds * float(self.rate)) if seconds > 0 else None)
        self._timestamps: list[int] | None = None  # in order; empty if they do not number the frames
        self._key_frames: list[int] = []

    def begin(self, number: int) -> tuple[int, Iterator[Any]]:
        if number and (numbered := self._seek(number)):
            return numbered
        return 0, self._frames(*self._open())

    def convert(self, frame: Any) -> Image:
        try:
            pixels = frame.reformat(
                format="rgb24",
                dst_colorspace="default",
                src_color_range=frame.color_range,
                dst_color_range="JPEG",
                threads=1,
            )
            picture = PillowImage.fromarray(pixels.to_ndarray())
        except Exception as error:
            raise classify(error) from error
        orientation = _orientation_of(frame)
        return Image(upright_rgb(picture, orientation), orientation=orientation)

    def times(self) -> tuple[list[float], float]:
        if self._timestamps is None:
            self._timestamps, self._key_frames = self._index()
        first, unit = (self._timestamps or [0])[0], float(self._unit)
        begins = [(timestamp - first) * unit for timestamp in self._timestamps]
        return [*begins, begins[-1] + float(1 / self.rate)] if begins else [], unit

    def size_of(self, frame: Any) -> int:
        return sum(int(plane.buffer_size) for plane in frame.planes)

    def _open(self) -> tuple[Any, Any]:  # Any: PyAV is an extra
        av = _av()
        self._stream.seek(0)
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
        try:
            container = av.open(self._stream, "r", options=options, metadata_errors="replace")
        except Exception as error:
            raise _explain(error) from error
        pictures = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
        with ExitStack() as on_error:
            on_error.callback(container.close)
            video = next((stream for stream in container.streams.video if not stream.disposition & pictures), None)
            if video is None:
                raise InputError("E_FORMAT", "a film without pictures")
            if video.codec_context is None:
                raise InputError("E_FORMAT", "a film with an unknown codec")
            require_few_pixels(video)
            on_error.pop_all()
        video.codec_context.thread_count = 1
        return container, video

    def _frames(self, container: Any, video: Any) -> Iterator[Any]:
        """Yield frames, and raise `InputError` where the film is damaged.

        Frames that are shown before a damaged packet may come out of the decoder behind it.
        """
        packets, damage, limit = 0, "", None
        with closing(container), _av().logging.Capture(local=False) as messages:
            try:
                for packet in container.demux(video):
                    packets += packet.size > 0
                    if packet.is_corrupt:
                        damage, limit = "a packet is incomplete", _time_of(packet)
                        break
                    frames = packet.decode()
                    if damage := _first_damage(messages):
                        limit = _time_of(packet)
                        yield from _shown_before(frames, limit)
                        break
                    yield from map(_check, frames)
            except InputError:
                raise
            except Exception as error:  # noqa: BLE001  a decoder may raise anything
                damage = _reason(error)
                with suppress(Exception):
                    limit = _time_of(packet)
            if damage:
                with suppress(Exception):
                    yield from _shown_before(video.codec_context.decode(None), limit)
                raise InputError("E_DECODE", damage)
            if packets < self._listed and not self._timestamps:
                raise InputError("E_DECODE", f"it ends after {packets} of {counted(self._listed, 'frame')}")

    def _seek(self, number: int) -> tuple[int, Iterator[Any]] | None:
        """Begin at the key frame before a frame; None if the film must be decoded from its beginning."""
        if self._timestamps is None:
            self._timestamps, self._key_frames = self._index()
        if number >= len(self._timestamps):
            return None
        position = bisect_right(self._key_frames, self._timestamps[number]) - 1
        if position < 1:
            return None
        key_frame = self._key_frames[position]
        container, video = self._open()
        try:
            container.seek(key_frame, stream=video)
            frames = self._frames(container, video)
            first = next(frames, None)
        except Exception:  # noqa: BLE001  it is reported when the film is decoded from its beginning
            return None
        numbers = {timestamp: place for place, timestamp in enumerate(self._timestamps)}
        begun = numbers.get(first.pts, number + 1) if first is not None else number + 1
        return None if begun > number else (begun, chain([first], frames))

    def _index(self) -> tuple[list[int], list[int]]:
        """Return the timestamps of the frames in their order, and those of key frames; empty if they are not plain."""
        container, video = self._open()
        if container.format.name.partition(",")[0] not in _INDEXED:
            container.close()
            return [], []
        timestamps: list[int] = []
        key_frames: list[int] = []
        with closing(container), suppress(Exception):
            for packet in container.demux(video):
                if packet.size == 0 or packet.is_discard:
                    continue
                if packet.pts is None or packet.is_corrupt:
                    return [], []
                timestamps.append(packet.pts)
                if packet.is_keyframe:
                    key_frames.append(packet.pts)
        first = timestamps[:1]
        timestamps.sort()
        plain = len(set(timestamps)) == len(timestamps) and first == timestamps[:1] == key_frames[:1]
        return (timestamps, sorted(key_frames)) if plain else ([], [])


def _varies(begins: list[float], unit: float) -> bool:
    """Return True if frames do not begin at equal distances, up to the rounding of the times to their unit."""
    if len(begins) < 3:
        return False
    step = begins[-1] / (len(begins) - 1)
    return max(abs(begin - number * step) for number, begin in enumerate(begins)) > 1.5 * unit


def _orientation_of(frame: Any) -> int:
    """Return the EXIF orientation of a frame's display matrix, with its rotation and its mirroring; 1 of another angle.

    A matrix shows the pixel (x, y) at `(a x + c y, b x + d y)`:
    https://ffmpeg.org/doxygen/trunk/group__lavu__video__display.html
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return 1
    a, b, _, c, d = unpack("=5i", bytes(data)[:20])
    table, ends, others = (_KEPT, (a, d), (b, c)) if abs(a) + abs(d) > abs(b) + abs(c) else (_SWAPPED, (b, c), (a, d))
    if not all(ends) or max(map(abs, others)) > _SLANT * min(map(abs, ends)):
        return 1
    return table[1 if ends[0] > 0 else -1, 1 if ends[1] > 0 else -1]


def _shown_before(frames: list[Any], limit: int | None) -> Iterator[Any]:
    for frame in frames:
        shown = _time_of(frame)
        if limit is None or shown is None or shown >= limit or frame.is_corrupt:
            return
        yield frame


def _check(frame: Any) -> Any:
    """Return a frame that is whole and not too large: its size may change within a film.

    Raises:
        InputError: It is not.
    """
    if frame.is_corrupt:
        raise InputError("E_DECODE", "a frame is incomplete")
    require_few_pixels(frame)
    return frame


def _time_of(timed: Any) -> int | None:
    """Return the timestamp of a packet or a frame."""
    timestamp: int | None = timed.pts if timed.pts is not None else timed.dts
    return timestamp


def _first_damage(messages: list[tuple[int, str, str]]) -> str:
    """Return the first message of FFmpeg that reports damage, and discard the others."""
    found = next((text.strip() for _, _, text in messages if _DAMAGE.search(text)), "")
    messages.clear()
    return found


def _explain(error: Exception) -> InputError:
    av = _av()
    if isinstance(error, av.error.InvalidDataError):
        return InputError("E_DECODE", "film is damaged at its beginning, or not finished")
    if isinstance(error, av.error.ArgumentError):  # a format that is not allowed
        return InputError("E_FORMAT", "not a film, or of an unknown format")
    return InputError("E_DECODE", f"film is damaged ({_reason(error)})")


def _reason(error: Exception) -> str:
    return (str(getattr(error, "strerror", None) or error) or type(error).__name__).partition("\n")[0].lower()


@cache
def _av() -> Any:
    """Import PyAV, and have FFmpeg report errors."""
    try:
        av = import_module("av")
    except ImportError as error:
        raise InputError("E_FORMAT", "films need the package av", hint=HINT) from error
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    return av
