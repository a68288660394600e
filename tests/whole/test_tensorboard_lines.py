"""TensorBoard, started with the very line that was printed, shows every image."""

from __future__ import annotations

import re
import shlex

import pytest
from documents import DOCUMENTS, text_of
from image_files import save_picture
from tensorboard_server import printed_line, serving, steps_shown

from fmapviz.core import registry

pytestmark = pytest.mark.filterwarnings("default")  # of other packages
IMAGES = 13  # TensorBoard shows ten by default


@pytest.mark.thorough
def test_the_printed_command_of_a_run_of_shards_shows_each_image(fmapviz, tmp_path):
    for seed in range(IMAGES):
        save_picture(tmp_path / "in" / f"{seed:02d}.png", seed)
    words = ("in", "--layers", "features.0.conv", "--shard", "100", "--out", "runs")
    line = printed_line(fmapviz("shapesnet", *words, cwd=tmp_path).stdout.decode())
    with serving(line, tmp_path) as address:
        assert len(steps_shown(address, "maps/00 features.0.conv")) == IMAGES


def test_the_guide_has_the_printed_command():
    flags = shlex.split(registry.form("tensorboard").open_steps_with)[3:]
    named = [each for name in DOCUMENTS for each in re.findall(r"--samples_per_plugin images=\d+", text_of(name))]
    assert named
    assert {*named} == {" ".join(flags)}
