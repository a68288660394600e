"""Time a whole run beside the tutorials' pipeline and beside the forward passes alone: `make benchmark`.

All three do the same images with the same random weights in one process, one after another, and the ratios are what counts:
the seconds belong to the machine. The tutorials' way is written out plainly: a hook per convolution keeps the output,
`make_grid` tiles it and `SummaryWriter.add_image` writes it.
"""

import argparse
import os
import platform
import tempfile
import time
import warnings
from math import isqrt
from pathlib import Path
from statistics import median

import torch
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import make_grid

from fmapviz import load_model, visualize

PICTURE = Path(__file__).parent.parent.parent / "sample_images" / "still_life.jpg"


def prepared(model, paths):
    """Read and prepare the pictures, as all three ways have to."""
    for path in paths:
        with Image.open(path) as picture:
            yield path, model.preparation.apply(picture.convert("RGB"))[None]


def forward_alone(model, paths, _out):
    with torch.no_grad():
        for _, batch in prepared(model, paths):
            model.module(batch)


def tutorial(model, paths, out):
    kept = {}
    convolutions = {name: module for name, module in model.module.named_modules() if isinstance(module, torch.nn.Conv2d)}
    hooks = [
        module.register_forward_hook(lambda _module, _args, output, name=name: kept.__setitem__(name, output.detach()))
        for name, module in convolutions.items()
    ]
    try:
        with torch.no_grad():
            for path, batch in prepared(model, paths):
                model.module(batch)
                with SummaryWriter(out / path.name) as writer:
                    for name, maps in kept.items():
                        channels = maps.transpose(0, 1)
                        grid = make_grid(channels, normalize=True, scale_each=True, nrow=isqrt(len(channels)))
                        writer.add_image(name, grid)
    finally:
        for hook in hooks:
            hook.remove()


def to_tensorboard(model, paths, out):
    visualize(model, paths, out=out, to=["tensorboard"])


def to_png(model, paths, out):
    visualize(model, paths, out=out, to=["png"])


def seconds(way, model, paths):
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        way(model, paths, Path(out))
        return time.perf_counter() - begun


def copies(place, count):
    """Write as many different pictures."""
    with Image.open(PICTURE) as picture:
        for number in range(count):
            path = Path(place) / f"{number:04}.jpg"
            picture.rotate(number % 4, expand=False).save(path, quality=92)
            yield path


def compare(name, images, rounds):
    """Print one row: medians per image in milliseconds, and the two ratios."""
    model = load_model(name, weights="random")
    with tempfile.TemporaryDirectory() as place:
        paths = list(copies(place, images))
        forward_alone(model, paths[:2], None)
        slow = seconds(tutorial, model, paths[: max(2, images // 8)]) / max(2, images // 8)
        times = {way: [] for way in (forward_alone, to_tensorboard, to_png)}
        for _ in range(rounds):
            for way, measured in times.items():
                measured.append(seconds(way, model, paths) / images)
    alone, board, png = (median(measured) for measured in times.values())
    print(
        f"{name:20}{images:5}{slow * 1e3:10.0f}{alone * 1e3:10.1f}{board * 1e3:13.1f}{png * 1e3:8.1f}"
        f"{slow / board:12.1f} x{board / alone:11.2f} x",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer images and rounds")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}; milliseconds per image")
    print(f"{'model':20}{'n':>5}{'tutorial':>10}{'forward':>10}{'TensorBoard':>13}{'PNG':>8}{'faster':>14}{'forward':>13}")
    for name, images in (("alexnet", 64), ("vgg16", 32), ("resnet50", 64), ("mobilenet_v3_large", 64)):
        compare(name, images // 4 if quick else images, 1 if quick else 3)


if __name__ == "__main__":
    main()
