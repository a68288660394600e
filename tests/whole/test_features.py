"""Each feature can be deleted: its folder, its tests and its lines of three lists, and the rest goes on.

`make features` runs tests of other folders in copies without each of them.
"""

from __future__ import annotations

import re

import pytest
from cases import often
from deleting import FEATURES, LISTED, LISTS, ROOT, copy_without

# Draws all views of one network in all formats, and verifies the files.
JOB = """
import sys

for name in [*sys.modules]:
    if name.partition(".")[0] == "fmapviz":
        del sys.modules[name]
sys.path.insert(0, sys.argv[1])

import fmapviz
from fmapviz.core import registry
from fmapviz.store.verify import verify

assert fmapviz.__file__.startswith(sys.argv[1])
others = {"attention", "rollout", "boxes"}  # of what the network has not
views = [name for name, view in registry.views().items() if view.networks == 1 and name not in others]
formats = [name for name, form in registry.formats().items() if form.networks == 1 and not form.requires]
run = fmapviz.visualize(
    "shapesnet", sys.argv[2], out="runs", views=views, to=formats, layers=["features"],
    style=fmapviz.Style(anchor="star.jpg:40,40")
)
assert run.done == 1, run.failures
assert not [problem for each in verify(run.directory) for problem in each.problems]
"""


def test_a_feature_is_in_the_catalogue_once():
    text = (ROOT / "fmapviz/catalogue.py").read_text()
    assert {*FEATURES} >= LISTED
    assert all(text.count(f'"fmapviz.features.{name}"') == 1 for name in LISTED)


@pytest.mark.thorough
@pytest.mark.parametrize("feature", often(["top"], FEATURES))
def test_without_a_feature_the_others_are_drawn(feature, samples, torch_alone, tmp_path):
    copy_without([feature], tmp_path / "copy")
    done = torch_alone(JOB, tmp_path / "copy", samples / "shapes/star.jpg", env={"PYTHONPATH": str(tmp_path / "copy")})
    assert done.returncode == 0, done.stderr.decode()


def test_other_code_names_no_feature():
    named = re.compile(r"\bfmapviz[./]features[./](\w+)")
    others = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("fmapviz", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != ROOT / "fmapviz" or path.name not in LISTS
        for name in sorted({*named.findall(path.read_text())} & {*FEATURES})
        if path.relative_to(ROOT / folder).parts[:2] != ("features", name)
    ]
    assert others == [
        "fmapviz/cli/layers.py: fields",
        "fmapviz/integrations/__init__.py: watch",
        "tests/benchmarks/run.py: diff",
    ]
