"""Make the README's pictures with the command itself: `make pictures`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from readme_hook import capture_like_a_tutorial
from readme_screenshots import take_report, take_tensorboard
from readme_views import PARTS, STAR, VIEWS

SAMPLES = Path(__file__).resolve().parents[2] / "sample_images"
sys.path.insert(0, str(SAMPLES))
from painting.single_shape import CLASSES, paint  # noqa: E402  beside the samples

REPORT_STATE = "image=star.jpg&view=maps&layer=01+features.1.conv&channel=12"  # the end of its address
WIDTH = 1112  # pixels: the contact sheet's; the pictures beside it are as wide


def main() -> None:
    runs, target = map(Path, sys.argv[1:])
    shutil.rmtree(runs, ignore_errors=True)
    target.mkdir(exist_ok=True)
    make_top_pictures(runs, target)
    make_view_pictures(runs / "views", target / "views")
    make_hook_pictures(runs / "hook", target)
    make_tensorboard_picture(runs / "tensorboard", target / "tensorboard.jpg")


def make_top_pictures(runs: Path, target: Path) -> None:
    """Draw the report, and the channels, the layers and the class evidence below it."""
    views = "--view=maps,gradcam,pca,contact,kernels"
    report = draw("shapesnet", SAMPLES / "shapes", "--columns=8", views, out=runs / "report", to="html,stats")
    take_report(report / "index.html", REPORT_STATE, target / "report.png")

    looks = ["--layers=conv1", "--channels=0-11", "--columns=3", "--size=308"]
    unit = draw("resnet18", SAMPLES / "still_life.jpg", "--weights=random", *looks, out=runs / "resnet18") / "still_life.jpg"
    save(set_side_by_side(unit / "input.png", unit / "00_conv1.maps.png"), target / "resnet18_conv1.jpg")

    contact = draw("shapesnet", SAMPLES / STAR, "--view=contact", out=runs / "contact") / "star.jpg" / "contact.png"
    Image.open(contact).quantize(256).save(target / "contact.png", optimize=True)

    looks = ["--target=star,ring,circle", "--layers=features.6", "--layers=features", "--size=240x320", "--fit=squash"]
    sheet = (
        draw("shapesnet", SAMPLES / "shapes.png", "--view=sheet", *looks, out=runs / "sheet") / "shapes.png" / "sheet.png"
    )
    save(resize(Image.open(sheet), width=WIDTH), target / "sheet.jpg")

    channels = ["--types=ReLU", "--layers=features.5.relu", "--channels=0,2,4-6"]
    run = draw("shapesnet", paint_many(runs / "painted"), "--view=top", *channels, out=runs / "top")
    save(resize(Image.open(run / "_top" / "00_features.5.relu.top.png"), width=WIDTH), target / "top.jpg")


def paint_many(folder: Path) -> Path:
    """Paint images of one shape each, as those that shapesnet was trained with, and return their folder."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(7)
    for number in range(600):
        picture = paint(generator)
        Image.fromarray(picture.pixels).save(folder / f"{CLASSES[picture.label]}{number}.png")
    return folder


def make_view_pictures(runs: Path, target: Path) -> None:
    """Draw a small picture of each view, and the input of most of them."""
    target.mkdir(exist_ok=True)
    for view, (picture, *options) in VIEWS.items():
        run = draw("shapesnet", SAMPLES / picture, f"--view={view}", *options, "--predictions=0", out=runs / view)
        (drawn,) = (path for path in run.rglob("*.png") if path.is_file() and path.name != "input.png")
        save_small(Image.open(drawn).crop(PARTS.get(view)), target / f"{view.replace('++', '_pp')}.jpg")
    save_small(Image.open(SAMPLES / STAR), target / "input.jpg")


def make_hook_pictures(runs: Path, target: Path) -> None:
    """Draw one layer with a tutorial's hook and with fmapviz: the same network, weights and image."""
    picture = SAMPLES / "more" / "village.jpg"
    looks = ["--layers=features.0", "--channels=0-11", "--columns=4"]
    run = draw("vgg11", picture, "--weights=random:0", *looks, out=runs / "fmapviz")
    capture_like_a_tutorial(picture, runs / "naive.png")
    drawn = run / "village.jpg" / "00_features.0.maps.png"
    for source, name in (runs / "naive.png", "hook_naive.png"), (drawn, "hook_fmapviz.png"):
        resize(Image.open(source).convert("L"), width=640).save(target / name, optimize=True)


def make_tensorboard_picture(directory: Path, target: Path) -> None:
    """Draw two images with AlexNet, and show them as TensorBoard does."""
    pictures = [SAMPLES / "still_life.jpg", SAMPLES / "more" / "village.jpg"]
    draw("alexnet", *pictures, "--weights=random", out=directory / "runs" / "alexnet", to="tensorboard")
    take_tensorboard(directory, target)


def draw(model: str, *arguments: object, out: Path, to: str = "png") -> Path:
    """Execute the command as its user does, and return the run's directory."""
    where = [f"--out={out.parent}", f"--name={out.name}", f"--to={to}"]
    subprocess.run([sys.executable, "-m", "fmapviz", "run", model, *map(str, arguments), *where, "--quiet"], check=True)
    return out


def resize(picture: Image.Image, *, width: int) -> Image.Image:
    return picture.resize((width, width * picture.height // picture.width), Image.Resampling.LANCZOS)


def save(picture: Image.Image, target: Path) -> None:
    picture.convert("RGB").save(target, quality=88, optimize=True)


def save_small(picture: Image.Image, target: Path) -> None:
    """Save a picture 240 pixels high, twice what the README shows."""
    small = picture.convert("RGB").resize((round(picture.width * 240 / picture.height), 240), Image.Resampling.LANCZOS)
    small.save(target, quality=90, subsampling=0, optimize=True)


def set_side_by_side(left: Path, right: Path) -> Image.Image:
    """Set the input beside a grid, as high as the grid."""
    grid = Image.open(right).convert("RGB")
    seen = Image.open(left).convert("RGB").resize((grid.height, grid.height), Image.Resampling.LANCZOS)
    page = Image.new("RGB", (seen.width + 16 + grid.width, grid.height), "white")
    page.paste(seen, (0, 0))
    page.paste(grid, (seen.width + 16, 0))
    return page


if __name__ == "__main__":
    main()
