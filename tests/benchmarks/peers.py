"""Measure fmapviz beside FeatLens, DINOtool, grad-cam, captum and torchcam on the same pictures: the table in the guide.

Each job is done in turns with the same network and random weights, from JPEG files to files. Imports and loading the network
are not counted. A ratio is the time that another takes for an image, divided by fmapviz's. What other processes disturb is
repeated, since a library that divides each operation among the cores waits for the slowest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from statistics import median

import numpy as np
import peer_ways
from PIL import Image
from run import PICTURE, ROOT, cam_times, describe_machine
from safetensors.numpy import load_file

import fmapviz
from fmapviz.config import Style

PEERS = {
    "FeatLens": "featlens",
    "DINOtool": "dinotool",
    "grad-cam": "pytorch_grad_cam",
    "captum": "captum",
    "torchcam": "torchcam",
}
VIT, RESNET = "timm:vit_small_patch14_reg4_dinov2", "resnet18"
BLOCKS = [f"blocks.{number}.norm2" for number in (2, 5, 8, 11)]
TRIES, CALM = 3, 0.05
NUMBERS = "Grad-CAM, numbers only: ResNet-18, four images as one batch"


@dataclass(frozen=True)
class Job:
    """What fmapviz and others do with pictures.

    Attributes:
        what: Words for the table.
        spec: The network.
        options: Those of `visualize`.
        peers: By name, a function that draws, and one that returns the values of a picture, or None if they are others.
        values: Takes an image's directory and returns fmapviz's values.
    """

    what: str
    spec: str = VIT
    options: dict = field(default_factory=dict)
    peers: dict = field(default_factory=dict)
    values: object = None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer pictures, one round")
    parser.add_argument("--only", default="", help="jobs whose words contain this")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmark", help="where the figures go")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(options.out)
    begun = time.monotonic()
    found = {name: version(name.lower()) if find_spec(module) else None for name, module in PEERS.items()}
    measures = {job.what: partial(measure, job) for job in JOBS} | {NUMBERS: measure_numbers}
    jobs = []
    with tempfile.TemporaryDirectory() as place:
        for what, work in measures.items():
            if options.only in what:
                jobs.append({"job": what, **work(Path(place), found, options.quick)})
                others = max((share for shares in jobs[-1]["others"].values() for share in shares), default=0)
                print(f"{time.monotonic() - begun:4.0f} s  {what}; others took up to {others:.0%} of the cores", flush=True)
    figures = {"machine": describe_machine(), "versions": found, "jobs": jobs}
    (options.out / "peers.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(*(f"{key}: {value}" for key, value in figures["machine"].items()), sep="\n")
    print(f"\n{table(figures)}\n\n{options.out / 'peers.json'}")


def measure(job, place, found, quick):
    """Return seconds of an image for each round, the share of the cores that others took, and how well the values agree."""
    peers = {name: functions for name, functions in job.peers.items() if found[name]}
    result = {"can": [*job.peers], "seconds": {}, "others": {}, "agreement": {}}
    if not peers:
        return result
    model = fmapviz.load_model(job.spec, weights="random", preprocessing=fmapviz.InputOptions(size=224, fit="squash"))

    def own(model, paths, out, to="png"):
        return fmapviz.visualize(model, paths, **{"out": out, "to": to} | job.options)

    (one,) = pictures(place, 1)
    directory = own(model, [one], tempfile.mkdtemp(dir=place), to=["png", "raw"]).directory / one.name
    for name, (_, values) in peers.items():
        if values:
            result["agreement"][name] = agreement(quietly(values, model, [one], place), job.values(directory))
    ways = {"fmapviz": own} | {name: draw for name, (draw, _) in peers.items()}
    for _ in range(1 if quick else 3):
        for name, draw in ways.items():
            count = 3 if name == "FeatLens" else 4 if quick else 24  # FeatLens takes as long for each of 3 images as of 12
            share, needed, _ = undisturbed(partial(quietly, draw, model, pictures(place, count), place))
            result["seconds"].setdefault(name, []).append(needed / count)
            result["others"].setdefault(name, []).append(share)
    return result


def measure_numbers(_place, found, quick):
    """Return the same of the benchmark's Grad-CAM, which needs all three libraries."""
    result = {"can": ["grad-cam", "captum", "torchcam"], "seconds": {}, "others": {}}
    if all(found[name] for name in result["can"]):
        for _ in range(1 if quick else 6):
            share, _, times = undisturbed(partial(cam_times, 4))
            result["others"].setdefault("all", []).append(share)
            for name in ("fmapviz", *result["can"]):
                result["seconds"].setdefault(name, []).append(median(times[name]) / 4)
    return result


def undisturbed(work):
    """Return the share of the cores that others took, the seconds, and what work returns, of the calmest of some tries."""
    tries = []
    while len(tries) < TRIES and all(share > CALM for share, *_ in tries):
        begun, before = time.perf_counter(), busy_seconds() - processor_seconds()
        result = work()
        needed = time.perf_counter() - begun
        tries.append(((busy_seconds() - processor_seconds() - before) / needed / os.cpu_count(), needed, result))
    return min(tries, key=lambda each: each[0])


def table(figures):
    """Return the ratios as a table in Markdown."""
    names = [f"{name} {number or '(not installed)'}" for name, number in figures["versions"].items()]
    rows = [["", "fmapviz, an image", *names], ["---"] * (len(names) + 2)]
    for job in figures["jobs"]:
        own = job["seconds"].get("fmapviz", [])
        rows.append([job["job"], f"{median(own) * 1e3:.0f} ms" if own else ""])
        for name in figures["versions"]:
            rounds = [theirs / ours for theirs, ours in zip(job["seconds"].get(name, []), own, strict=False)]
            rows[-1].append(cell(rounds) if name in job["can"] else "—")
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(rounds):
    if not rounds:
        return "not measured"
    middle, low, high = (
        f"{each:.2f}" if each < 10 else f"{each:.0f}" for each in (median(rounds), min(rounds), max(rounds))
    )
    return f"{middle} ({low} to {high})"


def agreement(theirs, ours):
    """Return the smallest correlation of two rows or maps, without signs: components have none, and scales differ."""
    correlations = []
    for one, other in zip(theirs, ours, strict=True):
        known = np.isfinite(one)
        correlations.append(abs(np.corrcoef(one[known], other[known])[0, 1]))
    return float(min(correlations))


def components(directory, step=14):
    (path,) = directory.glob("*.pca.png")
    with Image.open(path) as picture:
        return np.asarray(picture)[step // 2 :: step, step // 2 :: step].transpose(2, 0, 1)


def raw(*names):
    """Return a function that reads values of an image's directory."""
    return lambda directory: np.stack([load_file(directory / "raw.safetensors")[name] for name in names])


def pictures(place, count):
    """Write as many pictures of the input's size into a folder of their own. To DINOtool, names of digits are frames."""
    folder = place / f"{count} pictures"
    paths = [folder / f"still_life_{number:02}.jpg" for number in range(count)]
    if not folder.exists():
        folder.mkdir()
        with Image.open(PICTURE) as picture:
            for number, path in enumerate(paths):
                picture.rotate(number % 4).resize((224, 224)).save(path, quality=92)
    return paths


def quietly(way, model, paths, place):
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return way(model, paths, Path(tempfile.mkdtemp(dir=place)))


def processor_seconds():
    """Return the seconds of all cores so far, of this process and of those that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def busy_seconds():
    """Return the seconds that all cores have worked so far, for any process."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _wait, *interrupts = (int(word) for word in words[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def featlens(**options):
    return {"FeatLens": (partial(peer_ways.featlens, **options), partial(peer_ways.featlens_values, **options))}


TOKENS = {"save_features": "flat", "no_vis": True}
JOBS = (
    Job("every channel of every convolution, as pictures"),
    Job(
        "three principal components of the last tokens: ViT-S/14",
        options={"views": "pca", "layers": "norm", "types": "LayerNorm"},
        peers=featlens(layers=["norm"], method="pca") | {"DINOtool": (peer_ways.dinotool, peer_ways.dinotool_components)},
        values=components,
    ),
    Job(
        "three principal components of the last map: ResNet-18",
        RESNET,
        options={"views": "pca", "layers": "layer4", "types": "Module"},
        peers=featlens(layers=["layer4"], patch_size=32, method="pca"),
        values=partial(components, step=32),
    ),
    Job(
        "cosines to one position, four blocks: ViT-S/14",
        options={"views": "similarity", "layers": BLOCKS, "types": "LayerNorm", "style": Style(anchor="112,112")},
        peers=featlens(layers=BLOCKS, method="cosine"),
        values=raw(*(f"similarity/{name}" for name in BLOCKS)),
    ),
    Job(
        "six clusters, four blocks: ViT-S/14",
        options={"views": "clusters", "layers": BLOCKS, "types": "LayerNorm"},
        peers={"FeatLens": (partial(peer_ways.featlens, layers=BLOCKS, method="kmeans", k=6), None)},
    ),
    Job(
        "attention rollout over the image: ViT-S/14",
        options={"views": "rollout"},
        peers={"FeatLens": (peer_ways.featlens_rollout, peer_ways.featlens_rollout_values)},
        values=raw("rollout/input"),
    ),
    Job(
        "last tokens, numbers in a file: ViT-S/14",
        options={"to": "raw", "layers": "norm", "types": "LayerNorm"},
        peers={"DINOtool": (partial(peer_ways.dinotool, **TOKENS), partial(peer_ways.dinotool_tokens, **TOKENS))},
        values=lambda directory: raw("norm")(directory)[0, 5:],
    ),
    Job(
        "Grad-CAM of the predicted class over the image: ResNet-18",
        RESNET,
        options={"views": "gradcam"},
        peers={
            "grad-cam": (peer_ways.grad_cam, lambda *given: peer_ways.grad_cam(*given)[:, 16::32, 16::32]),
            "captum": (peer_ways.captum, peer_ways.captum),
            "torchcam": (peer_ways.torchcam, peer_ways.torchcam),
        },
        values=lambda directory: raw("gradcam/layer4.top1")(directory).clip(0),
    ),
)


if __name__ == "__main__":
    main()
