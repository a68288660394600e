"""Each capability can be deleted: its folder and its line of the catalogue, and the rest goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import often
from waiting import PATIENCE

import fmapviz
from fmapviz.catalogue import PACKAGES

PACKAGE = Path(fmapviz.__file__).parent
FEATURES = sorted(path.parent.name for path in (PACKAGE / "features").glob("*/__init__.py"))

# Draws all views of one network in all formats.
JOB = """
import sys
from fmapviz import Style, visualize
from fmapviz.core import registry

of_attention = {"attention", "rollout"}  # which the network has not
views = [name for name, view in registry.views().items() if view.networks == 1 and name not in of_attention]
formats = [name for name, form in registry.formats().items() if form.networks == 1 and not form.requires]
visualize("shapesnet", sys.argv[1], out="runs", views=views, to=formats, style=Style(anchor="star.jpg:40,40"))
"""


def test_every_feature_is_in_the_catalogue_once():
    listed = [name.removeprefix("fmapviz.features.") for name in PACKAGES if name.startswith("fmapviz.features.")]
    assert sorted(listed) == sorted({*listed})
    assert {*listed} <= {*FEATURES}


@pytest.mark.parametrize("feature", often(["top"], FEATURES))
def test_without_a_feature_the_others_are_drawn(feature, samples, tmp_path):
    root = tmp_path / "package"
    shutil.copytree(PACKAGE, root / "fmapviz", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(root / "fmapviz" / "features" / feature)
    catalogue = root / "fmapviz" / "catalogue.py"
    lines = catalogue.read_text().splitlines(keepends=True)
    catalogue.write_text("".join(line for line in lines if f'"fmapviz.features.{feature}"' not in line))
    environment = {**os.environ, "PYTHONPATH": str(root)}
    for command in (["-c", JOB, samples / "shapes" / "star.jpg"], ["-m", "fmapviz", "verify", "runs"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
