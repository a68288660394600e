"""A copy of the repository without some features."""

import re
import shutil
from pathlib import Path

from fmapviz.catalogue import PACKAGES

ROOT = Path(__file__).parents[2]
FEATURES = sorted(path.parent.name for path in (ROOT / "fmapviz/features").glob("*/__init__.py"))
LISTED = {name.removeprefix("fmapviz.features.") for name in PACKAGES if name.startswith("fmapviz.features.")}
# Each has a line for each contribution, or public name, of a feature.
LISTS = ("catalogue.py", "public_names.py", "__init__.py", "types.py")


def copy_without(features, root, folders=("fmapviz",), files=()):
    """Copy folders and files of the repository to `root`, and delete features: their folders, tests and lines."""
    for folder in folders:
        shutil.copytree(ROOT / folder, root / folder)
    for file in files:
        shutil.copy(ROOT / file, root / file)
    for feature in features:
        shutil.rmtree(root / "fmapviz/features" / feature)
        shutil.rmtree(root / "tests/features" / feature, ignore_errors=True)
    if "watch" in features:
        shutil.rmtree(root / "fmapviz/integrations")  # which leads to its callbacks
    names = re.compile(rf"\bfeatures\.({'|'.join(features)})\b")
    for path in (root / "fmapviz" / name for name in LISTS):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not names.search(line)))
