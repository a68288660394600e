"""Measure what the README says of a million images: `make benchmark SCALE=1`, some minutes, `QUICK=1` too: one.

Tiny pictures and a tiny network, so that what is measured is what grows with the number of images, not what an image costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "fmapviz"]
FOLDER = 1000  # files in each folder
LINKS = 20_000  # names of one file; ext4 allows 65,000
NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3))
"""
LISTING = """
import resource, sys, time
from fmapviz.inputs import find_images

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before, begun = peak(), time.monotonic()
found = find_images([sys.argv[1]])
next(found)
first = time.monotonic() - begun
count = 1 + sum(1 for _ in found)
print(count, first, time.monotonic() - begun, peak() - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", help="sections whose name contains this")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    scratch = ROOT / "build" / "benchmark"
    scratch.mkdir(parents=True, exist_ok=True)
    figures = {"cores": os.cpu_count()}
    for section in (names, many, engines):
        if options.only and options.only not in section.__name__:
            continue
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            for name, value in section(Path(place), options.quick):
                print(f"{name:72}{value:>12}", flush=True)
                figures[name] = value
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


def names(place, quick):
    """Names in folders of a thousand: when the first comes, when the last, and what memory it takes."""
    counts = (10_000, 100_000) if quick else (10_000, 1_000_000)
    make_names(place / "many", counts[1])
    make_names(place / "few", counts[0])
    for folder, count in zip(("few", "many"), counts, strict=True):
        command = [sys.executable, "-c", LISTING, place / folder]
        found, first, whole, memory = map(float, subprocess.check_output(command).split())
        assert found == count
        yield f"{count:,} names: the first after, s", round(first, 2)
        yield f"{count:,} names: all after, s", round(whole, 1)
        yield f"{count:,} names: memory, MiB", round(memory, 1)


def many(place, quick):
    """Tiny images in shards of a thousand: time for each and memory, from a thousand to a hundred thousand."""
    (place / "net.py").write_text(NETWORK)
    for count in (1000, 5000) if quick else (1000, 10_000, 100_000):
        folder = place / f"in{count}"
        make_pictures(folder, count)
        options = ["--fit", "none", "--shard", "1000", "--to", "tar,stats", "--out", place / f"out{count}", "--quiet"]
        command = [*COMMAND, f"{place}/net.py:build", folder, *options]
        seconds, peak = run(command)
        yield f"{count:,} images: ms each", round(1000 * seconds / count, 2)
        yield f"{count:,} images: peak memory, MiB", round(peak)
        seconds, peak = run(command)
        yield f"{count:,} images that are there: ms each", round(1000 * seconds / count, 3)


def engines(place, quick):
    """One process with all cores against two Ray workers with one each."""
    few, more = (16, 48) if quick else (32, 160)
    for count in (few, more):
        folder = place / f"in{count}"
        folder.mkdir()
        for number in range(count):
            os.link(copy_of_picture(place), folder / f"{number:04}.jpg")
    for name, size in (("resnet18", 16), ("shapesnet", 16)):
        each = {}
        for engine in ((), ("--engine", "ray", "--workers", "2")):
            took = []
            for count in (few, more):
                out = place / f"{name}{len(engine)}{count}"
                options = ["--weights", "random"] if name != "shapesnet" else []
                options += ["--shard", str(size), "--to", "tar,stats", "--out", out, "--quiet", *engine]
                took.append(run([*COMMAND, name, place / f"in{count}", *options])[0])
            what = "two Ray workers" if engine else "one process"
            each[what] = (took[1] - took[0]) / (more - few)
            yield f"{name}, {what}: {few} images, s", round(took[0], 1)
            yield f"{name}, {what}: an image more, ms", round(1000 * each[what], 1)
        yield (
            f"{name}: two Ray workers / one process, an image more",
            round(each["two Ray workers"] / each["one process"], 2),
        )


def make_names(folder, count):
    for number in range(count):
        if number % LINKS == 0:
            source = folder / f"{number // FOLDER:04}" / f"{number}.png"
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(b"x")
            continue
        name = folder / f"{number // FOLDER:04}" / f"{number}.png"
        if number % FOLDER == 0:
            name.parent.mkdir()
        os.link(source, name)


def make_pictures(folder, count):
    numbers = np.random.default_rng(0)
    for number in range(count):
        name = folder / f"{number // FOLDER:04}" / f"{number}.png"
        if number % FOLDER == 0:
            name.parent.mkdir(parents=True)
        if number % FOLDER < 20:
            Image.fromarray(numbers.integers(0, 256, (8, 9, 3), np.uint8)).save(name)
        else:
            os.link(name.with_name(f"{number - number % FOLDER + number % 20}.png"), name)


def copy_of_picture(place):
    path = place / "picture.jpg"
    if not path.exists():
        path.write_bytes((ROOT / "sample_images" / "still_life.jpg").read_bytes())
    return path


def run(command):
    """Give the seconds that a command took, and its highest use of memory in MiB."""
    begun = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.monotonic() - begun, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
