"""Measure the README's figures for a million images: `make benchmark SCALE=1`, some minutes, `QUICK=1` too: one.

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
from statistics import median

import numpy as np
import torch
from PIL import Image

from fmapviz.config import RunConfig
from fmapviz.draw.picture import make_pictures
from fmapviz.formats import tar
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import find_images
from fmapviz.images.seen import Seen
from fmapviz.observe.hooks import undisturbed
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.load import load_session
from fmapviz.types import UnitImage

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "fmapviz"]
FOLDER = 1000  # files in each folder
LINKS = 20_000  # names of one file; ext4 allows 65,000
CONFIG = RunConfig("resnet18", weights="random", to="tar", device="cpu", predictions=0, batch_size=1, workers=1, shard=16)
NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3))
"""
LISTING = """
import resource, sys, time
from fmapviz.images.find import find_images

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
    for section in (names, many, engines, share):
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
        paint_pictures(folder, count)
        options = ["--fit", "none", "--batch-size", "64", "--shard", "1000", "--to", "tar,stats", "--quiet"]
        options += ["--out", place / f"out{count}"]
        command = [*COMMAND, f"{place}/net.py:build", folder, *options]
        seconds, peak = run(command)
        yield f"{count:,} images: ms each", round(1000 * seconds / count, 2)
        yield f"{count:,} images: peak memory, MiB", round(peak)
        seconds, peak = run(command)
        yield f"{count:,} images that are there: ms each", round(1000 * seconds / count, 3)


def engines(place, quick):
    """One process with all cores against two Ray workers with one each, in turns."""
    for name, more in (("resnet18", 50 if quick else 200), ("shapesnet", 200 if quick else 1000)):
        few = 32
        for count in (few, few + more):
            folder = place / f"{name}{count}"
            folder.mkdir()
            for number in range(count):
                os.link(copy_of_picture(place), folder / f"{number:04}.jpg")
        ratios, starts = [], []
        for number in range(1 if quick else 3):
            each = {}
            for engine in ((), ("--engine", "ray", "--workers", "2")):
                took = []
                for count in (few, few + more):
                    out = place / f"{name}-{len(engine)}-{count}-{number}"
                    options = ["--weights", "random"] if name != "shapesnet" else []
                    options += ["--shard", "16", "--to", "tar,stats", "--out", out, "--quiet", *engine]
                    took.append(run([*COMMAND, name, place / f"{name}{count}", *options])[0])
                each[bool(engine)] = (took[1] - took[0]) / more
                starts.append((bool(engine), took[0] - few * each[bool(engine)]))
            ratios.append(each[True] / each[False])
            yield f"{name}, round {number + 1}: one process, ms for an image", round(1000 * each[False], 1)
            yield f"{name}, round {number + 1}: two Ray workers, ms for an image", round(1000 * each[True], 1)
        yield f"{name}: two Ray workers / one process, median", round(median(ratios), 2)
        yield f"{name}: what one process needs before and after, s", round(median(s for ray, s in starts if not ray), 1)
        yield f"{name}: what Ray and two workers need before and after, s", round(median(s for ray, s in starts if ray), 1)


def share(place, quick):
    """The processor's work beside a GPU: reading an image, encoding and writing its pictures; ResNet-18."""
    torch.set_num_threads(1)
    session, _ = load_session(CONFIG)
    file = next(find_images([str(copy_of_picture(place))]))
    rounds = 5 if quick else 20
    begun = time.process_time()
    for _ in range(rounds):
        values = session.model.preparation.apply(read_image(file, channels=3).pixels)
    yield "resnet18: to read and prepare an image, core-ms", round(1000 * (time.process_time() - begun) / rounds, 1)
    with undisturbed(), Drawer(session.model, session.layers, session.plan, session.config.style) as drawer:
        (drawn,) = drawer.draw(values[None])
    seen = Seen(values, session.model.preparation)
    begun = time.process_time()
    with tar.open_writer(place, many=True) as archive:
        for number in range(rounds):
            image = UnitImage(file.unit, file.path, drawn, (), session.info, key=number)
            archive.add(image, make_pictures(drawn, seen, file.unit, session.info))
    yield "resnet18: to encode and write its pictures, core-ms", round(1000 * (time.process_time() - begun) / rounds, 1)
    size = (place / tar._FILE).stat().st_size / rounds / 1e6
    yield f"resnet18: {1 + len(drawn.layers)} pictures, MB", round(size, 2)


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


def paint_pictures(folder, count):
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
    """Return the seconds that a command took, and its highest use of memory in MiB."""
    begun = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.monotonic() - begun, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
