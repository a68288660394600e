"""A film of each layer and view, H.264."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import av
from av.codec.context import Flags
from av.error import FFmpegError

from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from PIL import Image as PillowImage


_BT709, _LIMITED = 1, 1
_TICKS = 90_000  # each second, of films whose rate varies
# Without these, x264 makes files that differ by some bytes from one time to the next.
_SAME_BYTES = "threads=1:lookahead-threads=1:sync-lookahead=0:cpu-independent=1"
_CODECS = {  # the first is preferred
    "libx264": {"preset": "fast", "crf": "16", "x264-params": _SAME_BYTES},
    "libvpx-vp9": {"crf": "16", "b": "0"},
}

open_writer = base.separate_files(lambda _directory, _image, _pictures: None)


def write_film(
    target: Path,
    pictures: Iterable[PillowImage.Image],
    *,
    size: tuple[int, int],
    rate: Fraction,
    times: Sequence[float] = (),
) -> None:
    """Encode H.264 with one thread: its number would change the file."""
    width, height = (side + side % 2 for side in size)
    with av.open(str(target), "w", format="mp4", options={"movflags": "faststart", "fflags": "bitexact"}) as container:
        codec = next(filter(_is_there, _CODECS))
        stream = container.add_stream(codec, rate=rate, options=_CODECS[codec])
        context = stream.codec_context
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = _LIMITED
        context.thread_count = 1
        context.flags |= Flags.bitexact
        unit = Fraction(1, _TICKS) if times else 1 / rate
        ticks = [round(each * _TICKS) for each in times]
        context.time_base = unit
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_image(base.padded(picture, (width, height)))
            frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG", threads=1)
            frame.pts, frame.time_base = ticks[number] if times else number, unit
            if times:
                frame.duration = ticks[number + 1] - ticks[number]
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _is_there(codec: str) -> bool:
    try:
        av.Codec(codec, "w")
    except (ValueError, FFmpegError):
        return False
    return True
