"""Make the README's pictures of what the command has written: `make pictures`."""

import sys
from pathlib import Path

from PIL import Image


def main() -> None:
    runs, target = map(Path, sys.argv[1:])
    target.mkdir(exist_ok=True)
    beside_input(runs / "resnet18" / "still_life.jpg").save(target / "resnet18_conv1.jpg", quality=88, optimize=True)
    sheet = Image.open(runs / "shapesnet" / "star.jpg" / "sheet.png").convert("RGB")
    sheet.save(target / "sheet.jpg", quality=88, optimize=True)


def beside_input(unit: Path) -> Image.Image:
    """Set the input and a grid side by side, for the head of the page."""
    grid = Image.open(next(unit.glob("00_*.png"))).convert("RGB")
    seen = Image.open(unit / "input.png").resize((grid.height, grid.height), Image.Resampling.LANCZOS)
    page = Image.new("RGB", (seen.width + 12 + grid.width, grid.height), "white")
    page.paste(seen, (0, 0))
    page.paste(grid, (seen.width + 12, 0))
    return page


if __name__ == "__main__":
    main()
