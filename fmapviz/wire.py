"""Messages between two processes: JSON, a value on each line, and open files."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from typing import Any

_LONGEST_LINE = 1 << 20


class Line:
    """A connection between two processes: JSON, a value on each line, and open files."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    # Any: what JSON can hold.
    def send(self, message: Any, *descriptors: int) -> None:
        """Send a message, with open files that go with it.

        Raises:
            OSError: The other side is gone.
        """
        content = json.dumps(message).encode() + b"\n"
        self._connection.settimeout(None)
        sent = socket.send_fds(self._connection, [content], descriptors)
        if sent < len(content):  # sending nothing fails if the other side has taken it all, answered and gone
            self._connection.sendall(content[sent:])

    def receive(self, *, until: float | None = None) -> Any:
        """Give the next message.

        Raises:
            EOFError: The other side is gone.
            TimeoutError: Nothing came until then.
            ValueError: This is no message.
        """
        return self._receive(0, until)[0]

    def receive_files(self, most: int) -> tuple[Any, list[int]]:
        """Give the next message and the descriptors of the files that came with it."""
        return self._receive(most, None)

    def is_quiet(self) -> bool:
        """Tell whether the other side is there and has nothing to say."""
        self._connection.settimeout(0)
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._rest
        except OSError:
            return False
        return False

    def shut(self) -> None:
        """Make whoever waits at either end go on."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def _receive(self, most: int, until: float | None) -> tuple[Any, list[int]]:
        files: list[int] = []
        while b"\n" not in self._rest:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            piece, received, _, _ = socket.recv_fds(self._connection, 1 << 16, most)
            files += received
            self._rest += piece
            if not piece:
                raise EOFError
            if len(self._rest) > _LONGEST_LINE:
                raise ValueError
        content, _, self._rest = self._rest.partition(b"\n")
        return json.loads(content), files
