"""Measure the README's figures for speed and memory: `make benchmark`, or `make benchmark QUICK=1` for one minute.

Everything is a ratio of two things measured side by side in this one run, on the same pictures with the same random weights;
the seconds belong to the machine. Of several rounds the median is given, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
import torchvision
from PIL import Image
from plot import draw_plot
from torch import nn
from ways import (
    attention_of_heads,
    attention_rollout,
    decoded_in_threads,
    forward_alone,
    in_batches,
    to_png,
    to_report,
    to_statistics,
    to_statistics_in_a_shard,
    to_tensorboard,
    to_tensorboard_with_statistics,
    tutorial,
    unranked,
    unranked_shard,
)

import fmapviz
from fmapviz.config import RunConfig, Style
from fmapviz.features.diff.run import run_diff
from fmapviz.models.shapesnet.network import ShapesNet
from fmapviz.observe.early_stop import EarlyStop
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import Plan

ROOT = Path(__file__).parent.parent.parent
PICTURE = ROOT / "sample_images" / "still_life.jpg"
COMMAND = [sys.executable, "-m", "fmapviz"]


@dataclass
class Ratio:
    """How two things compare, round by round."""

    what: str
    target: str
    rounds: list[float]
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.rounds)

    def __str__(self) -> str:
        spread = f"{min(self.rounds):.2f} - {max(self.rounds):.2f}" if len(self.rounds) > 1 else ""
        return f"{self.what:58}{self.median:8.2f}   {spread:15}{self.target:12}{self.note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer pictures and rounds, a minute in all")
    parser.add_argument("--only", help="sections whose name contains this")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmark", help="where the figures and the plot go")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    scratch = ROOT / "build" / "benchmark"
    scratch.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(scratch)  # not the system's: making a file there may take ten times as long
    begun = time.monotonic()
    machine = describe_machine()
    print(*(f"{key}: {value}" for key, value in machine.items()), sep="\n")
    print(f"\n{'':58}{'median':>8}   {'spread':15}{'target':12}")
    ratios = []
    # What was written is removed when everything is measured: some file systems, ext4 without a journal for one, take ten
    # times as long to make a file while many have just been deleted.
    with ExitStack() as places:
        for section in (
            memory,
            ranking,
            start_up,
            attention,
            speed,
            grad_cam,
            statistics,
            decoding,
            batches,
            early,
            growth,
            skipping,
            training,
            comparing,
            tokens,
        ):
            if options.only and options.only not in section.__name__:
                continue
            place = Path(places.enter_context(tempfile.TemporaryDirectory()))
            for ratio in section(place, options.quick):
                print(ratio, flush=True)
                ratios.append(ratio)
    print(f"\n{time.monotonic() - begun:.0f} s")
    options.out.mkdir(parents=True, exist_ok=True)
    figures = {"machine": machine, "ratios": [{**asdict(ratio), "median": ratio.median} for ratio in ratios]}
    (options.out / "benchmark.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw_plot(figures, options.out / "benchmark.png")
    print(f"{options.out / 'benchmark.json'}\n{options.out / 'benchmark.png'}")


def speed(place, quick):
    """Whole runs of four networks, against the tutorials' way and against the forward passes alone."""
    for name, count, rounds, faster, forward in (
        ("resnet50", 64, 3, 45, 2.0),
        ("vgg16", 32, 3, 16, 1.4),
        ("alexnet", 64, 5, 12, 1.4),
        ("mobilenet_v3_large", 64, 5, 45, 2.0),
    ):
        model = fmapviz.load_model(name, weights="random")
        paths = copies(place, count // 4 if quick else count)
        few = paths[: 1 if quick else 3]  # a minute's work otherwise; the time per image is the same
        forward_alone(model, paths[:2], place)
        times = {way: [] for way in (forward_alone, to_tensorboard, to_png)}
        slow = []
        for number in range(1 if quick else rounds):
            if number < 2:
                slow.append(seconds(tutorial, model, few) / len(few))
            for way, measured in times.items():
                measured.append(seconds(way, model, paths) / len(paths))
        alone, board, png = times.values()
        note = f"{median(slow) * 1e3:.0f}, {median(alone) * 1e3:.1f}, {median(board) * 1e3:.1f}, {median(png) * 1e3:.1f} ms"
        what = f"{name}, {len(paths)} images: times faster than the tutorial"
        yield Ratio(what, f">= {faster}", [median(slow) / b for b in board])
        yield Ratio(f"{name}: time / forward passes alone", f"<= {forward}", [b / median(alone) for b in board], note)
        yield Ratio(f"{name}: PNG files / TensorBoard", "<= 1.25", [p / median(board) for p in png])


def grad_cam(place, quick):
    """Grad-CAM of four images for a class each, against the forward pass alone and the libraries that have it."""
    times = cam_times(6 if quick else 32)
    alone, own = times["forward"], times["fmapviz"]
    note = ", ".join(f"{median(each) * 1e3:.1f}" for each in times.values()) + " ms"
    yield Ratio(
        "resnet18, 4 images, gradcam / forward pass alone", "<= 1.1", [o / a for o, a in zip(own, alone, strict=True)], note
    )
    for name, target in (("captum", 1), ("torchcam", 1), ("grad-cam", 2)):
        rounds = [other / o for other, o in zip(times[name], own, strict=True)]
        yield Ratio(f"resnet18, 4 images, gradcam: times faster than {name}", f">= {target}", rounds)


def cam_times(rounds):
    """Return the seconds that each way to a Grad-CAM of four images takes in each round, without the first two."""
    import cams

    model = fmapviz.load_model("resnet18", weights="random").module.eval()
    batch = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    ways = {
        "forward": cams.forward_only,
        "fmapviz": cams.ours,
        "captum": cams.captums,
        "torchcam": cams.torchcams,
        "grad-cam": cams.grad_cams,
    }
    times = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            needed = timed(lambda way=way: way(model, batch, [1, 2, 3, 4]))
            if number > 1:
                times[name].append(needed)
    return times


def attention(place, quick):
    """Attention of all blocks of vision transformers, against the forward passes alone: time, and memory at 518 pixels."""
    model = fmapviz.load_model("vit_b_16", weights="random")
    paths = copies(place, 4 if quick else 16)
    forward_alone(model, paths[:2], place)
    times = {way: [] for way in (forward_alone, attention_of_heads, attention_rollout)}
    for _ in range(2 if quick else 5):
        for way, measured in times.items():
            measured.append(seconds(way, model, paths))
    alone, heads, rollout = times.values()
    note = f"{median(alone) / len(paths) * 1e3:.0f}, {median(heads) / len(paths) * 1e3:.0f} ms"
    yield Ratio(
        "vit_b_16: attention / forward passes alone", "<= 1.4", [h / a for h, a in zip(heads, alone, strict=True)], note
    )
    yield Ratio("vit_b_16: rollout / forward passes alone", "<= 1.4", [r / a for r, a in zip(rollout, alone, strict=True)])
    name, folder = "timm:vit_small_patch14_dinov2", place / "large"
    folder.mkdir()
    copies(folder, 2 if quick else 8)
    _, forward = whole_process([sys.executable, "-c", FORWARD, name, folder])
    with tempfile.TemporaryDirectory() as out:
        views = "attention,rollout"
        _, own = whole_process([*COMMAND, name, folder, "--weights", "random", "--view", views, "--out", out, "--quiet"])
    yield Ratio("DINOv2, 518 pixels: peak memory above forward, MiB", "<= 300", [own - forward], f"{forward:.0f} MiB alone")


def statistics(place, quick):
    """What statistics of every channel, and a report, cost beside pictures."""
    for name, count, rounds in (("resnet50", 48, 3), ("mobilenet_v3_large", 96, 3), ("vgg16", 16, 3)):
        model = fmapviz.load_model(name, weights="random")
        paths = copies(place, count // 4 if quick else count)
        ways = (to_tensorboard, to_tensorboard_with_statistics, to_png, to_report, to_statistics, forward_alone)
        times = {way: [] for way in ways}
        for way in times:
            seconds(way, model, paths[:4])
        for _ in range(1 if quick else rounds):
            for way, measured in times.items():
                measured.append(seconds(way, model, paths) / len(paths))
        board, both, png, report, alone, forward = times.values()
        yield Ratio(f"{name}: TensorBoard with statistics / without", "<= 1.1", [b / median(board) for b in both])
        yield Ratio(f"{name}: report / PNG files", "", [r / median(png) for r in report])
        yield Ratio(f"{name}: statistics alone / forward passes alone", "", [a / median(forward) for a in alone])


MERGE = """
import sys
import numpy as np
from fmapviz.store.aggregates.channels import FeatureMapInfo
from fmapviz.store.aggregates.ranker import Ranker
images, channels = map(int, sys.argv[1:])
maps = (FeatureMapInfo("layer", "output", "", "Conv2d", channels, 0),)
rows = np.random.default_rng(0).standard_normal((997, channels), np.float32)
ranker = Ranker("max", 9)
for image in range(images):
    ranker.add(maps, f"{image}.png", image * 0x9E3779B97F4A7C15 % 2**64, rows[image % 997] * np.float32(1 + image % 1009))
ranker.finish()
"""


def ranking(place, quick):
    """What top images cost: the ranking during a run, merging many summaries, and receptive fields."""
    few, many = (10_000, 50_000) if quick else (100_000, 1_000_000)
    (short, low), (long, high) = (whole_process([sys.executable, "-c", MERGE, str(n), "1000"]) for n in (few, many))
    yield Ratio(f"{many:,} images x 1,000 channels ranked on one core, seconds", "<= 60", [long], f"{high:.0f} MiB")
    yield Ratio(f"peak memory of that / of {few:,} images", "<= 1.1", [high / low], f"{low:.0f} MiB, {short:.1f} s")
    for name, count in (("alexnet", 256), ("resnet50", 64)):
        model = fmapviz.load_model(name, weights="random")
        paths = copies(place, count // 4 if quick else count)
        ways = (unranked, to_statistics, unranked_shard, to_statistics_in_a_shard)
        times = {way: [] for way in ways}
        for way in times:
            seconds(way, model, paths[:4])
        for _ in range(2 if quick else 5):
            for way, measured in times.items():
                measured.append(seconds(way, model, paths))
        plain, ranked, plain_shard, ranked_shard = times.values()
        for what, without, with_ranking in (("", plain, ranked), (", one shard", plain_shard, ranked_shard)):
            rounds = [r / median(without) for r in with_ranking]
            yield Ratio(f"{name}: statistics{what}: ranked / not ranked", "<= 1.05", rounds)
    fmapviz.receptive_field("alexnet")
    rounds = [timed(lambda: fmapviz.receptive_field("resnet50", types="Module")) for _ in range(3)]
    yield Ratio("receptive fields of all modules of ResNet-50, seconds", "<= 2", rounds)


THREADS = """
from fmapviz.images import decode_pool
from fmapviz.images.decode_pool import read_image
decode_pool.start = lambda: None
decode_pool.DecodePool.read = lambda self, file, *, notify, **wanted: read_image(file, **wanted)
from fmapviz.__main__ import main
main()
"""


def decoding(place, quick):
    """Images decoded in processes of their own, against in threads of the run."""
    for name, count in (("mobilenet_v3_large", 96), ("resnet50", 48)):
        model = fmapviz.load_model(name, weights="random")
        paths = copies(place, count // 4 if quick else count)
        times = {decoded_in_threads: [], to_tensorboard: []}
        for way in times:
            seconds(way, model, paths[:4])
        for _ in range(1 if quick else 5):
            for way, measured in times.items():
                measured.append(seconds(way, model, paths))
        threads, processes = times.values()
        yield Ratio(f"{name}: decoding in processes / in threads", "", [p / median(threads) for p in processes])
    threads, processes = [], []
    for _ in range(2 if quick else 8):
        for command, measured in (([sys.executable, "-c", THREADS], threads), (COMMAND, processes)):
            with tempfile.TemporaryDirectory() as out:
                measured.append(whole_process([*command, "shapesnet", PICTURE, "--out", out, "--quiet"])[0])
    note = f"{median(processes):.2f} s, {median(threads):.2f} s"
    what = "shapesnet, one picture, cold: in processes / in threads"
    yield Ratio(what, "", [p / median(threads) for p in processes], note)


def batches(place, quick):
    """Several images in one forward pass, against one."""
    for name, count in (("mobilenet_v3_large", 48), ("resnet50", 16)):
        model = fmapviz.load_model(name, weights="random")
        paths = copies(place, count // 4 if quick else count)
        times = {size: [] for size in (1, 2, 4)}
        for _ in range(1 if quick else 2):
            for size, measured in times.items():
                measured.append(seconds(lambda *args, size=size: in_batches(*args, size), model, paths))
        for size in (2, 4):
            yield Ratio(f"{name}: --batch-size {size} / 1", "", [some / median(times[1]) for some in times[size]])


def early(place, quick):
    """A forward pass that ends with the last layer that is wanted."""
    model = fmapviz.load_model("resnet50", weights="random")
    layers = select_layers(find_layers(model.module), types=["Conv2d"], include=["layer1.*"])
    batch = model.preparation.apply(Image.open(PICTURE).convert("RGB"))[None]
    unhooked = fmapviz.load_model("resnet50", weights="random")
    whole, part = [], []
    with Drawer(model, layers, Plan(), Style(), early_stop=EarlyStop(len(layers))) as drawer:
        for _ in range(4 if quick else 30):
            part.append(timed(lambda: drawer.draw(batch)))
            with torch.no_grad():
                whole.append(timed(lambda: unhooked.module(batch)))
    yield Ratio("resnet50 --layers 'layer1.*': forward pass / whole one", "<= 0.5", [p / median(whole) for p in part[2:]])


BARE = """
import sys, torch, torchvision
from PIL import Image
from torchvision.transforms.functional import convert_image_dtype, normalize, pil_to_tensor
name, weights, picture = sys.argv[1:]
with torch.device("meta"):
    model = torchvision.models.get_model(name)
model.load_state_dict(torch.load(weights, weights_only=True, mmap=True), assign=True)
pixels = pil_to_tensor(Image.open(picture).convert("RGB").resize((224, 224)))
batch = normalize(convert_image_dtype(pixels), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])[None]
with torch.no_grad():
    model.eval()(batch)
"""


def start_up(place, quick):
    """The command on one picture, against the least that Python and torch need for a forward pass; and help."""
    for name in ("alexnet",) if quick else ("alexnet", "vgg16"):
        weights = place / f"{name}.pth"
        torch.save(fmapviz.load_model(name, weights="random").module.state_dict(), weights)
        own, bare = [], []
        for _ in range(2 if quick else 4):
            bare.append(whole_process([sys.executable, "-c", BARE, name, weights, PICTURE])[0])
            with tempfile.TemporaryDirectory() as out:
                own.append(whole_process([*COMMAND, name, PICTURE, "--weights", weights, "--out", out, "--quiet"])[0])
        note = f"{median(own):.2f} s, {median(bare):.2f} s"
        what = f"{name}, one picture, cold / bare imports, load, forward"
        yield Ratio(what, "<= 1.15", [o / median(bare) for o in own], note)
    for words in (["-h"], ["--help"], ["run", "--help"]):
        yield Ratio(
            f"fmapviz {' '.join(words)}, seconds", "<= 0.15", [whole_process([*COMMAND, *words])[0] for _ in range(5)]
        )


FORWARD = """
import sys, torch
from pathlib import Path
from PIL import Image
from fmapviz import load_model
model = load_model(sys.argv[1], weights="random")
with torch.no_grad():
    for path in Path(sys.argv[2]).iterdir():
        model.module(model.preparation.apply(Image.open(path).convert("RGB"))[None])
"""


def memory(place, quick):
    """The highest use of memory of whole processes."""
    name, counts = ("resnet18", (10, 50)) if quick else ("resnet50", (20, 400))
    peaks = []
    for count in counts:
        folder = place / f"{count}"
        folder.mkdir()
        copies(folder, count)
        with tempfile.TemporaryDirectory() as out:
            command = [*COMMAND, name, folder, "--weights", "random", "--out", out, "--quiet"]
            peaks.append(whole_process(command)[1])
    few, many = peaks
    _, alone = whole_process([sys.executable, "-c", FORWARD, name, place / f"{counts[0]}"])
    note = f"{few:.0f} MiB, {many:.0f} MiB"
    yield Ratio(f"{name}: peak memory, {counts[1]} images / {counts[0]}", "<= 1.05", [many / few], note)
    what = f"{name}: peak memory above the forward passes' own, MiB"
    yield Ratio(what, "<= 300", [many - alone], f"{alone:.0f} MiB alone")


def growth(place, quick):
    """The time per image of a long run, against a short one."""
    model = fmapviz.load_model("alexnet", weights="random")
    few, many = (16, 128) if quick else (64, 2000)
    paths = copies(place, few)
    for number in range(few, many):
        path = place / f"{number:05}.jpg"
        os.link(paths[number % few], path)
        paths.append(path)
    seconds(to_tensorboard, model, paths[:few])
    short = [seconds(to_tensorboard, model, paths[:few]) / few for _ in range(3)]
    long = seconds(to_tensorboard, model, paths) / many
    note = f"{long * 1e3:.1f}, {median(short) * 1e3:.1f} ms"
    yield Ratio(f"alexnet: time per image, {many} images / {few}", "<= 1.1", [long / s for s in short], note)


def skipping(place, quick):
    """Passing over images that are finished."""
    count = 1000 if quick else 10_000
    folder = place / "many"
    folder.mkdir()
    first = folder / "00000.png"
    Image.open(PICTURE).resize((8, 8)).save(first)
    for number in range(1, count):
        os.link(first, folder / f"{number:05}.png")
    model, size = nn.Sequential(nn.Conv2d(3, 4, 3)), fmapviz.InputOptions(size=(8, 8))
    with tempfile.TemporaryDirectory() as out:
        fmapviz.visualize(model, folder, out=out, preprocessing=size)
        again = [timed(lambda: fmapviz.visualize(model, folder, out=out, preprocessing=size)) for _ in range(2)]
    yield Ratio(f"{count} finished images passed over, seconds", "<= 5", again)


FEATLENS = """
import sys, featlens
from pathlib import Path
method, model, folder, out = sys.argv[1:]
if method == "rollout":
    network = featlens.FeatureExtractor(f"timm:{model}", layers=[-1], img_size=224, pretrained=False)
    for path in Path(folder).iterdir():
        featlens.attention(network, path, layer=-1, img_size=224, overlay=True, out=f"{out}/{path.stem}.png")
    sys.exit()
options = {"cosine": {"seed": (0.5, 0.5)}, "kmeans": {"k": 6}}[method] | {"method": method, "pretrained": False}
featlens.batch(f"timm:{model}", folder, out, mode="visualize", layers=list(range(12)), **options)
"""


def training(place, quick):
    """A training that is watched, against the same that is not."""
    sys.path.append(str(ROOT / "sample_images"))
    import train_shapesnet

    count = 100_000 if quick else 1_000_000
    quiet = {"budget": 1, "strict": True, "on_event": lambda _: None}
    net = fmapviz.load_model("shapesnet", weights="random").module
    with fmapviz.Watch(net, torch.rand(3, 96, 96), out=place / "idle", every=10 * count, **quiet) as watch:
        watch(0)

        def call():
            for step in range(1, count):
                watch(step)

        def do_nothing():
            for _ in range(1, count):
                pass

        rounds = [(timed(call) - timed(do_nothing)) / count * 1e6 for _ in range(3)]
    yield Ratio("a step of a training that is not due, microseconds", "<= 1", rounds)
    model = fmapviz.load_model("resnet50", weights="random")
    paths = copies(place, 4)

    def run_alike(model, paths, out):
        fmapviz.visualize(model, paths, out=out, to=["html", "tensorboard"])

    alone, drawn, watched = [], [], []
    with fmapviz.Watch(model, paths, out=place / "due", every=1, **quiet) as watch:
        for step in range(4):  # filmstrips are written with the first, second and fourth, and next with the eighth
            watch(step)
        for step in range(4, 7):
            alone.append(seconds(forward_alone, model, paths))
            drawn.append(seconds(run_alike, model, paths))
            watched.append(timed(lambda step=step: watch(step)))
    own = median(drawn) / median(alone)
    beyond = [each / median(alone) - own for each in watched]
    yield Ratio("resnet50, 4 images, due: forward passes beyond a run's", "<= 1.5", beyond, f"a run's: {own:.2f}")
    pictures = train_shapesnet.painted(320 if quick else 640)
    times = {True: [], False: []}
    for number in range(1 if quick else 3):
        for is_watched, measured in times.items():
            torch.manual_seed(0)
            net = ShapesNet()
            given = fmapviz.load_model("shapesnet", weights="random")
            images = [ROOT / "sample_images" / "shapes" / name for name in ("star.jpg", "ring.jpg")]
            options = {"to": place / f"run{number}", "every": 50, **quiet}
            watch = fmapviz.Watch(replace(given, module=net), images, **options) if is_watched else bool
            begun = time.perf_counter()
            list(train_shapesnet.fit(net, pictures, epochs=10, draw=watch))
            measured.append(time.perf_counter() - begun)
    rounds = [w / n for w, n in zip(times[True], times[False], strict=True)]
    yield Ratio("training of shapesnet, every 50 of 100 steps: time", "<= 1.03", rounds, f"{median(times[False]):.0f} s")


def comparing(place, quick):
    """A comparison of two networks, against two runs, whose pictures together show the same layers."""
    for name in ("resnet50", "mobilenet_v3_large"):
        paths = copies(place, 4 if quick else 16)
        one = fmapviz.load_model(name, weights="random")
        state = {
            key: values + 0.01 * values.std() if values.ndim > 1 else values
            for key, values in one.module.state_dict().items()
        }
        other = fmapviz.load_model(name, weights=state)
        rounds = {"pictures and numbers": [], "numbers alone": []}
        for number in range(1 if quick else 5):
            out = place / f"{name}{number}"

            def compare(to, out=out, one=one, other=other, paths=paths):
                run_diff(RunConfig(one, paths, views="diff", to=[to], out=out / to), against=other)

            def run_both(out=out, one=one, other=other, paths=paths):
                for model, own in ((one, "a"), (other, "b")):
                    fmapviz.visualize(model, paths, name=own, to=["png"], out=out)

            both = timed(run_both)
            for what, to in zip(rounds, ("png", "numbers"), strict=True):
                rounds[what].append(timed(partial(compare, to)) / both)
        for what, measured in rounds.items():
            yield Ratio(f"{name}: a comparison, {what} / two runs", "<= 1.3", measured)
    yield from memory_of_comparisons(place / "memory", quick)


def memory_of_comparisons(place, quick):
    """The highest use of memory of comparisons of few and many images, and of few and many checkpoints."""
    checkpoints = [place / f"{number:02}.pt" for number in range(5 if quick else 30)]
    place.mkdir()
    state = fmapviz.load_model("mobilenet_v3_small", weights="random").module.state_dict()
    for number, path in enumerate(checkpoints):
        moved = {key: values + 1e-4 * number if values.ndim > 1 else values for key, values in state.items()}
        torch.save(moved, path)
    counts = {"images": (5, 20 if quick else 100), "checkpoints": (3, len(checkpoints))}
    for what, sizes in counts.items():
        peaks = []
        for count in sizes:
            folder, chosen = place / f"{what}{count}", place / f"{what}{count}.pt"
            for each in (folder, chosen):
                each.mkdir()
            copies(folder, count if what == "images" else 4)
            for path in checkpoints[: 2 if what == "images" else count]:
                (chosen / path.name).hardlink_to(path)
            command = [*COMMAND, "diff", "mobilenet_v3_small", folder, "--weights", f"{chosen}/*.pt", "--quiet"]
            peaks.append(whole_process([*command, "--out", place / f"out {what}{count}"])[1])
        note = f"{peaks[0]:.0f} MiB, {peaks[1]:.0f} MiB"
        yield Ratio(f"comparing: peak memory, {sizes[1]} {what} / {sizes[0]}", "<= 1.05", [peaks[1] / peaks[0]], note)


def tokens(place, quick):
    """Tokens of all blocks of a vision transformer as pictures, against FeatLens: CPU seconds of whole processes."""
    if find_spec("featlens") is None:
        print("tokens: needs featlens[timm], which no extra installs")
        return
    name, folder = "vit_small_patch16_224", place / "pictures"
    folder.mkdir()
    for path in copies(folder, 4 if quick else 64):  # of 16 images, a third of the time is the imports'
        with Image.open(path) as picture:
            picture.resize((224, 224)).save(path)
    ways = {
        "rollout": ["--view", "rollout"],
        "cosine": ["--view", "similarity", "--anchor", "112,112", "--types", "Block"],
        "kmeans": ["--view", "clusters", "--types", "Block"],
    }
    for method, options in ways.items():
        own, other = [], []
        for _ in range(1 if quick else 2):
            with tempfile.TemporaryDirectory() as out:
                other.append(processor_seconds([sys.executable, "-c", FEATLENS, method, name, folder, out]))
            with tempfile.TemporaryDirectory() as out:
                command = [*COMMAND, f"timm:{name}", folder, "--weights", "random", "--to", "png"]
                own.append(processor_seconds([*command, *options, "--out", out, "--quiet"]))
        note = f"{median(other):.1f} s, {median(own):.1f} s"
        yield Ratio(f"{name}, {options[1]}: CPU of FeatLens / ours", ">= 3", [each / median(own) for each in other], note)


def describe_machine():
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    packages = ("torch", "torchvision", "numpy", "pillow", "isal", "tensorboard")
    instructions = torch.backends.cpu.get_cpu_capability()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.system()}",
        "class": f"{instructions}; a forward pass of ResNet-50 takes {forward_pass() * 1e3:.0f} ms",
        "versions": ", ".join((f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages))),
        "fmapviz": fmapviz.__version__,
    }


def forward_pass():
    """Measure a forward pass: ratios to it depend on what the processor is good at."""
    network, batch = torchvision.models.resnet50().eval(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        return median(timed(lambda: network(batch)) for _ in range(12))


def copies(place, count):
    """Write as many pictures, four different ones."""
    paths = [place / f"{number:05}.jpg" for number in range(count)]
    with Image.open(PICTURE) as picture:
        for number, path in enumerate(paths):
            picture.rotate(number % 4).save(path, quality=92)
    return paths


def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def seconds(way, model, paths):
    out = Path(tempfile.mkdtemp(dir=paths[0].parent))
    needed = timed(lambda: way(model, paths, out))
    for path in out.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)  # before it has gone to the disk, and disturbs the next
    return needed


LAUNCH = """
import json, os, subprocess, sys, time
begun = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
used = usage.ru_utime + usage.ru_stime
print(json.dumps([time.perf_counter() - begun, usage.ru_maxrss, used, os.waitstatus_to_exitcode(status)]))
"""


def whole_process(command):
    """Return the seconds of a process, and its highest use of memory in MiB."""
    seconds, peak, _ = launch(command)
    return seconds, peak / (1024 if sys.platform != "darwin" else 2**20)


def processor_seconds(command):
    """Return the seconds of all cores that a process and its children take."""
    return launch(command)[2]


def launch(command):
    """Run a process that a small one starts: the peak of a process is at least that of the one which started it."""
    launched = subprocess.run([sys.executable, "-c", LAUNCH, *map(str, command)], stdout=subprocess.PIPE, check=True)
    *measured, code = json.loads(launched.stdout)
    if code:
        raise subprocess.CalledProcessError(code, command)
    return measured


if __name__ == "__main__":
    main()
