"""Set the input and a grid side by side, for the head of the README: `make pictures`."""

import sys
from pathlib import Path

from PIL import Image


def main() -> None:
    unit, target = map(Path, sys.argv[1:])
    grid = Image.open(next(unit.glob("00_*.png"))).convert("RGB")
    seen = Image.open(unit / "input.png").resize((grid.height, grid.height), Image.Resampling.LANCZOS)
    page = Image.new("RGB", (seen.width + 12 + grid.width, grid.height), "white")
    page.paste(seen, (0, 0))
    page.paste(grid, (seen.width + 12, 0))
    target.parent.mkdir(exist_ok=True)
    page.save(target, quality=88, optimize=True)


if __name__ == "__main__":
    main()
