"""Films for tests: each frame tells its number."""

import os
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
from extras import av
from PIL import Image

CELL = 16
BITS = 7
SIZE = (BITS * CELL, 3 * CELL)
GOP = 12


def picture_of(number):
    """Return a frame: the bits of its number as black and white cells, above them a coloured stripe."""
    pixels = np.full((SIZE[1], SIZE[0], 3), (200, 60, 20), np.uint8)
    for bit in range(BITS):
        pixels[CELL:, bit * CELL : (bit + 1) * CELL] = 255 * (number >> bit & 1)
    return pixels


def number_of(pixels):
    """Return the number that a frame tells; a wrong frame tells another one."""
    row = np.asarray(pixels.convert("L"))[CELL + CELL // 2]
    return sum(int(row[bit * CELL + CELL // 2] > 127) << bit for bit in range(BITS))


@contextmanager
def scheduled_as_before():
    """Undo what SVT-AV1 does to the thread that opens it, if it may: it becomes a real-time one, as root with priority 99.

    So would each process that it starts then: a page in Chromium that is busy leaves no time to anything else.
    """
    before = (os.sched_getscheduler(0), os.sched_getparam(0)) if hasattr(os, "sched_getscheduler") else None
    try:
        yield
    finally:
        if before:
            os.sched_setscheduler(0, *before)


@scheduled_as_before()
def write_film(path, frames=60, *, codec="libx264", rate=25, noise=0, rotate=0, **options):
    """Write a film; noise makes its frames large enough to be damaged one by one."""
    chance = np.random.default_rng(0)
    with av.open(str(path), "w", options={"movflags": "faststart"} if path.suffix == ".mp4" else {}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.gop_size = GOP
        stream.options = {"preset": "7", **options} if codec == "libsvtav1" else options
        if rotate:
            stream.set_display_rotation(rotate)
        for number in range(frames):
            pixels = picture_of(number).astype(int)
            pixels[:CELL] += chance.integers(-noise, noise + 1, pixels[:CELL].shape)
            frame = av.VideoFrame.from_ndarray(pixels.clip(0, 255).astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_animation(path, frames=20, *, duration=50):
    """Write an animated GIF, WebP or PNG file, by its suffix."""
    first, *others = (Image.fromarray(picture_of(number)) for number in range(frames))
    lossless = {"lossless": True} if path.suffix == ".webp" else {}
    first.save(path, save_all=True, append_images=others, duration=duration, loop=0, **lossless)
    return path
