"""A terminal of a pseudo-terminal, which answers questions as a real one, late, wrongly or not at all; and what it shows."""

import fcntl
import io
import os
import re
import select
import struct
import termios
import time
from base64 import b64decode
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image
from waiting import PATIENCE
from warm import start_process

# Answers to the questions of fmapviz/cli/terminal.py, as these terminals give them.
KITTY = b"\x1b_Gi=31;OK\x1b\\\x1bP>|kitty(0.35.2)\x1b\\\x1b[?62;c"
ITERM2 = b"\x1bP>|iTerm2 3.5.4\x1b\\\x1b[?62;4c"
WEZTERM = b"\x1bP>|WezTerm 20240203-110809-5046fc22\x1b\\\x1b[?65;4;6;18;22c"
XTERM = b"\x1bP>|XTerm(390)\x1b\\\x1b[?1;0;1024S\x1b[?64;1;2;4;6;9;15;16;17;18;21;22;28c"
VT340 = b"\x1bP>|XTerm(390)\x1b\\\x1b[?1;0;16S\x1b[?63;1;2;4;6;9;15;16;22c"
PLAIN = b"\x1b[?1;2c"  # Terminal of macOS
# A program that runs in the session and in the foreground of the terminal, as one that a shell starts there.
OWN = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
COMMAND = (
    f"{OWN}from fmapviz.cli import terminal; terminal.TIMEOUT_SECONDS = {PATIENCE}; from fmapviz.cli.app import main; main()"
)


@dataclass
class Ended:
    """How a program ended, all that the terminal received, and what it had typed that the program left unread."""

    code: int
    shown: bytes
    left: bytes


@contextmanager
def _opened(size):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def run_in_terminal(
    server, program, *arguments, place, answer=b"", typed=b"", size=(40, 100, 1000, 800), stdout=None, **variables
):
    """Run a program in a terminal; compare the terminal's settings before and after.

    Args:
        server: Socket of `warm.py`.
        program: Python, which begins with `OWN`.
        arguments: Its arguments.
        place: Its working directory.
        answer: What the terminal says when it is asked for its attributes.
        typed: Keys that are pressed before.
        size: Rows, columns, width and height in pixels.
        stdout: A file as standard output; None: the terminal.
        variables: The environment, in place of those of this process's terminal.
    """
    ignored = ("TERM", "TMUX", "KITTY", "LC_TERMINAL", "COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ignored)} | variables
    with _opened(size) as (ours, theirs):
        before = termios.tcgetattr(theirs)
        os.write(ours, typed)
        streams = [theirs, theirs if stdout is None else stdout.fileno(), theirs]
        command = ["-c", program, *map(str, arguments)]
        process = start_process(server, command, environment=environment, directory=place, streams=streams)
        shown, asked, ended, deadline = b"", False, False, time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline
            if select.select([ours], [], [], 0 if ended else 0.01)[0]:
                shown += os.read(ours, 65536)
                if not asked and b"\x1b[c" in shown:
                    asked = True
                    for part in (answer[:7], answer[7:]):  # as through a network
                        os.write(ours, part)
                        time.sleep(0.02)
            elif ended:
                break
            else:
                ended = process.poll() is not None
        assert termios.tcgetattr(theirs) == before
        raw = [*before]
        raw[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(theirs, termios.TCSANOW, raw)
        left = os.read(theirs, 65536) if select.select([theirs], [], [], 0)[0] else b""
        return Ended(process.wait(), shown, left)


def text_of(shown):
    """Return what a terminal receives without its escape sequences, as lines."""
    sequences = rb"\x1b[_P][^\x1b]*\x1b\\|\x1b\][^\x07]*\x07|\x1b\[[?>]?[\d;]*[A-Za-z]"
    return re.sub(sequences, b"", shown).decode().replace("\r", "\n").splitlines()


def pictures_of_kitty(shown):
    """Return the PNG files in the sequences of kitty."""
    files, data = [], b""
    for keys, part in re.findall(rb"\x1b_G([^;]*);([^\x1b]*)\x1b\\", shown):
        named = dict(key.split(b"=") for key in keys.split(b","))
        if named.get(b"a") == b"q":
            continue
        assert len(part) <= 4096
        assert data or named == {b"a": b"T", b"f": b"100", b"q": b"2", b"m": named[b"m"]}
        data += part
        if named[b"m"] == b"0":
            files.append(b64decode(data, validate=True))
            data = b""
    assert not data
    return files


def pictures_of_iterm2(shown):
    """Return the PNG files in the sequences of iTerm2."""
    found = re.findall(rb"\x1b\]1337;File=inline=1;size=(\d+);preserveAspectRatio=1:([^\x07]*)\x07", shown)
    files = [b64decode(data, validate=True) for _, data in found]
    assert [int(size) for size, _ in found] == [len(file) for file in files]
    return files


def pictures_in_sixels(shown):
    """Return the pixels of sixels, uint8 `(H, W, 3)`; those of PNG files differ by the rounding to 101 levels."""
    return [_read_sixels(data) for data in re.findall(rb"\x1bP[\d;]*q([^\x1b]*)\x1b\\", shown)]


def _read_sixels(data):
    width, height = map(int, re.match(rb'"1;1;(\d+);(\d+)', data).groups())
    pixels, colors = np.zeros((-(-height // 6) * 6, width, 3), np.uint8), {}
    color, x, y = 0, 0, 0
    for word in re.findall(rb"#\d+;2;\d+;\d+;\d+|#\d+|!\d+[?-~]|[?-~$-]", data.partition(b"#")[1] + data.partition(b"#")[2]):
        if word.startswith(b"#"):
            color, *parts = map(int, word[1:].split(b";"))
            if parts:
                assert (x, y) == (0, 0), "xterm 379 changes pixels before a definition"
                colors[color] = [round(each * 255 / 100) for each in parts[1:]]
        elif word in b"$-":
            x, y = 0, y + 6 * (word == b"-")
        else:
            bits, count = word[-1] - 63, int(word[1:-1] or 1)
            for row in range(6):
                if bits >> row & 1:
                    pixels[y + row, x : x + count] = colors[color]
            x += count
    assert len(colors) <= 256
    return pixels[:height]


def pixels_of(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))
