"""The log of failed inputs, `failures.jsonl`: one checksummed line per failure, appended in one piece."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.file_names import FAILURES_FILE
from fmapviz.core.files import writing_to

if TYPE_CHECKING:
    from pathlib import Path

    from fmapviz.data import Failure

LONGEST_LOG = 2**30  # bytes; of three million failures
_LINE_START = b'{"time": '
_CHECKSUM = b', "sha256": "'


def append_failure(run: Path, failure: Failure, *, sync: bool = False) -> None:
    """Append one line in one piece, so that many processes can.

    Raises:
        OutputError: The log could not be written.
    """
    fields = asdict(failure)
    if failure.report is None:
        del fields["report"]
    body: bytes = json.dumps({"time": round(time.time(), 3), **fields}).removesuffix("}").encode("ascii")
    line = body + _CHECKSUM + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    with writing_to(run / FAILURES_FILE):
        files.append(run / FAILURES_FILE, line)
        if sync:
            files.sync(run / FAILURES_FILE)
            files.sync(run)


def is_whole(line: bytes) -> bool:
    """Return True if a line is as it was written, or the truncated start of one."""
    if line[: len(_LINE_START)] != _LINE_START[: len(line)]:
        return False
    body, _, end = line.rpartition(_CHECKSUM)
    expected = hashlib.sha256(body).hexdigest().encode() + b'"}'
    return end == expected or not (line.endswith(b"}") or (body and len(end) >= len(expected)))


def read_failures(run: Path) -> list[dict[str, Any]]:
    """Read the last failure of each input, in the order of their paths; empty if there is no log."""
    last: dict[str, dict[str, Any]] = {}
    with suppress(OSError):
        for line in files.read(run / FAILURES_FILE, most=LONGEST_LOG).splitlines():
            if failure := checksummed_json.parse(line):  # None for a truncated line
                failure.pop("sha256", None)
                last[str(failure.get("path"))] = failure
    return [last[path] for path in sorted(last)]
