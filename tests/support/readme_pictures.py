"""Make the README's pictures of what the command has written: `make pictures`."""

import sys
from pathlib import Path

from chromium import NAMES, find_browser
from PIL import Image
from playwright.sync_api import sync_playwright


def main() -> None:
    runs, target = map(Path, sys.argv[1:])
    target.mkdir(exist_ok=True)
    beside_input(runs / "resnet18" / "still_life.jpg").save(target / "resnet18_conv1.jpg", quality=88, optimize=True)
    sheet = Image.open(runs / "shapesnet" / "star.jpg" / "sheet.png").convert("RGB")
    sheet.save(target / "sheet.jpg", quality=88, optimize=True)
    contact = Image.open(runs / "contact" / "star.jpg" / "contact.png").convert("RGB")
    contact.quantize(256).save(target / "contact.png", optimize=True)
    take_screenshot(runs / "report" / "index.html", target / "report.png")


def beside_input(unit: Path) -> Image.Image:
    """Set the input and a grid side by side."""
    grid = Image.open(next(unit.glob("00_*.png"))).convert("RGB")
    seen = Image.open(unit / "input.png").resize((grid.height, grid.height), Image.Resampling.LANCZOS)
    page = Image.new("RGB", (seen.width + 12 + grid.width, grid.height), "white")
    page.paste(seen, (0, 0))
    page.paste(grid, (seen.width + 12, 0))
    return page


def take_screenshot(page: Path, target: Path) -> None:
    """Open the report, walk to a picture with something to see, and pin a channel."""
    executable, arguments = find_browser()
    if executable is None:
        sys.exit(f"no browser: none of {', '.join(NAMES)} is in PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        tab = browser.new_page(viewport={"width": 1400, "height": 840}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        tab.get_by_text("rotated_exif.jpg", exact=True).first.click()
        tab.wait_for_timeout(500)
        tab.mouse.click(*PINNED)
        tab.wait_for_timeout(500)
        tab.mouse.move(5, 5)
        tab.screenshot(path=target)
        browser.close()
    Image.open(target).convert("RGB").save(target, optimize=True)


PINNED = 845, 445  # somewhere on the grid


if __name__ == "__main__":
    main()
