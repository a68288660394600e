"""Compare what runs leave on the disk.

Two runs are equal if their files are, byte for byte, except for

* the time of each event in an event file, and the checksums that depend on it: that of the event file in `unit.json`, that
  of `unit.json` itself, and the digest of all of these in `products.json`;
* the inputs in `run.json` and how they were drawn, which differ where the commands do;
* `failures.jsonl`, which is a log: for each input its last line counts, without the time.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import google_crc32c
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

from fmapviz.store.unfinished import is_record
from fmapviz.store.verify import verify

HIDDEN = ".fmapviz-"
SAME_COMMAND = {"again", "finish"}  # remedies: the command that made the run makes what is missing


def snapshot(place):
    """Return the content of every file below a directory by relative path, hidden ones too; None for a directory."""
    return {str(path.relative_to(place)): None if path.is_dir() else _content(path) for path in sorted(place.rglob("*"))}


def difference(found, expected):
    """Return the paths that two snapshots do not share: + added, - missing, ! with another content."""
    return sorted(
        f"{'-' if name not in found else '+' if name not in expected else '!'} {name}"
        for name in found.keys() | expected.keys()
        if found.get(name, 0) != expected.get(name, 0)
    )


def stamps(place):
    """Return inode, modification time and size of everything below a directory: different where a file was rewritten."""
    status = {str(path.relative_to(place)): path.lstat() for path in place.rglob("*")}
    return {name: (each.st_ino, each.st_mtime_ns, each.st_size) for name, each in status.items()}


def problems(place):
    """Return the problems that `verify` reports below a directory or a URL."""
    found = [(checked, problem) for checked in verify(place) for problem in checked.problems]
    for checked, problem in found:
        if problem.remedy == "finish":  # only of a run that says itself that it is not finished
            assert checked.state != "finished", problem
            names = [path.name for path in Path(checked.directory).glob("*")]  # none below a URL
            assert not names or any(is_record(name) or name.startswith(HIDDEN) for name in names), problem
    return [problem for _, problem in found]


def _content(path):
    if "tfevents" in path.name:
        with patch.object(pywrap_tensorflow, "crc32c", google_crc32c.value):  # TensorBoard's own is in Python, and slow
            return [_timeless(record) for record in RawEventFileLoader(str(path)).Load()]
    if path.name == "unit.json":
        record = json.loads(path.read_bytes())
        for entry in record["files"]:
            entry.pop("object", None)  # its key in a store
            if "tfevents" in entry["name"]:
                del entry["sha256"]
        del record["sha256"]
        return record
    if path.name == "run.json" and (record := _parsed(path)) and "request" in record:
        for name in ("inputs", "directory", "execution", "every", "frames"):
            record["request"].pop(name, None)
        del record["sha256"]
        return record
    if path.name == "products.json":
        record = json.loads(path.read_bytes())
        del record["of"], record["sha256"]
        return record
    if path.name == "failures.jsonl":
        return _last_lines(path)
    return path.read_bytes()


def _parsed(path):
    """Return a record; None if it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def _timeless(record):
    event = Event.FromString(record)
    event.wall_time = 0
    return event.SerializeToString(deterministic=True)


def _last_lines(path):
    last = {}
    for line in path.read_bytes().splitlines():
        try:
            failure = json.loads(line)
        except ValueError:  # cut off by the end of a process
            continue
        del failure["time"], failure["sha256"]
        last[failure["path"]] = failure
    return last
