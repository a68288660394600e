"""What a run has left on the disk, without what differs from one time to the next.

Two runs are equal if their trees are, byte for byte, but for

* the time at which each event of an event file was written, and the checksums that follow from it: that of the event file in
  `unit.json`, the seal of that, and the digest of all seals in `products.json`;
* `failures.jsonl`, which is a log: of each input the last line counts, without its time.
"""

from __future__ import annotations

import json

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

HIDDEN = ".fmapviz-"


def snapshot(place):
    """Give the content of every file below a directory, None for a directory, by relative path; hidden leftovers too."""
    return {str(path.relative_to(place)): None if path.is_dir() else _content(path) for path in sorted(place.rglob("*"))}


def difference(found, expected):
    """Name what two trees do not have in common, for a message that can be read."""
    return sorted(
        f"{'-' if name not in found else '+' if name not in expected else '!'} {name}"
        for name in found.keys() | expected.keys()
        if found.get(name, 0) != expected.get(name, 0)
    )


def _content(path):
    if "tfevents" in path.name:
        return [_timeless(record) for record in RawEventFileLoader(str(path)).Load()]
    if path.name == "unit.json":
        record = json.loads(path.read_bytes())
        for entry in record["files"]:
            entry.pop("object", None)  # where else it lies, in a store
            if "tfevents" in entry["name"]:
                del entry["sha256"]
        del record["sha256"]
        return record
    if path.name == "products.json":
        record = json.loads(path.read_bytes())
        del record["of"], record["sha256"]
        return record
    if path.name == "failures.jsonl":
        return _last_lines(path)
    return path.read_bytes()


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
