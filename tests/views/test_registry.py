"""The directory of views is their registry: no other module names one of them."""

from __future__ import annotations

import ast
from pathlib import Path

from fmapviz.core import registry
from fmapviz.core.registry import VIEWS

PACKAGE = Path(registry.__file__).parents[1]
# Names that are words of their own too: of statistics, of what a layer receives, of the function `fmapviz.cam`, of a box, of
# machines.
WORDS = {"max", "mean", "inputs", "cam", "top", "clusters", "attention", "diff"}
DEFAULTS = {("engine/cam/attribution.py", "gradcam"), ("core/types.py", "maps")}  # of `cam`, of `FeatureMap.show`
ORDERED = {
    ("core/config/run_config.py", name) for name in registry.names(VIEWS)
}  # in `--help`, before views not named there
# The report's page draws a content of the class `Histogram`, whichever view it is of.
REPORT = {(f"writers/html/{name}.py", "histogram") for name in ("__init__", "page", "single_file")}
OPTION = {
    (path, option) for path in ("core/config/style.py", "runs/run.py", "runs/verify.py") for option in ("pca", "clusters")
}  # `--pca` and `--clusters`, fields of the style


def strings(path):
    """Return the strings of a module but for its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = {id(node.value) for node in statements}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts)
    return {node.value for node in constants if isinstance(node.value, str)}


def test_no_module_outside_of_the_folder_names_a_view():
    names = set(registry.names(VIEWS)) - WORDS
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "views"
        for name in names & strings(path)
    }
    assert found - DEFAULTS - ORDERED - REPORT - OPTION == set()


def test_no_module_outside_of_the_folder_imports_a_view():
    contracts = {"fmapviz.views", "fmapviz.views.base"}
    for path in PACKAGE.rglob("*.py"):
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fmapviz.views")
        }
        assert path.parent.name == "views" or imported <= contracts, path
