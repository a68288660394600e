"""The directory of views is their registry: no other module imports one of them."""

from __future__ import annotations

import ast
from pathlib import Path

from fmapviz.core import registry

PACKAGE = Path(registry.__file__).parents[1]


def test_no_module_outside_of_the_folder_imports_a_view():
    contracts = {"fmapviz.views", "fmapviz.views.base"}
    for path in PACKAGE.rglob("*.py"):
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fmapviz.views")
        }
        assert path.parent.name == "views" or imported <= contracts, path
