"""What takes minutes: `make features`. A short form is `tests/whole/test_features.py`.

In a copy without a feature all tests can be collected, and those of some other folders pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from deleting import FEATURES, copy_without

FOLDERS = (".agents", "fmapviz", "tests", "sample_images", ".github", ".ci", ".readme")
FILES = ("pyproject.toml", "README.md", "Makefile", ".constraints.txt")
SAMPLE = ("config", "draw", "formats", "views")


@pytest.mark.parametrize("features", [[name] for name in FEATURES] + [FEATURES], ids=" ".join)
def test_the_tests_that_are_left_pass(features, tmp_path):
    copy_without(features, tmp_path, FOLDERS, FILES)

    def pytest_(*arguments):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    collected = pytest_("--collect-only")
    assert collected.returncode == 0, collected.stdout
    assert not re.findall(rf"^tests/features/({'|'.join(features)})/", collected.stdout, re.MULTILINE)
    passed = pytest_("-n", "2", "-m", "not thorough and not zoo", *(f"tests/{folder}" for folder in SAMPLE))
    assert passed.returncode == 0, passed.stdout
