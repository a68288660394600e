"""TensorBoard, started with the very line that a run printed, shows every page of top images."""

import pytest
from image_files import save_picture
from tensorboard_server import printed_line, serving, steps_shown

PAGES = 13  # TensorBoard shows ten by default


@pytest.mark.thorough
def test_the_printed_command_of_a_run_with_top_images_shows_each_page(fmapviz, tmp_path):
    channels = 32 * PAGES  # 32 on a page
    (tmp_path / "net.py").write_text(
        f"from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, {channels}, 3))\n"
    )
    save_picture(tmp_path / "cat.png", 0)
    words = ("net.py:build", "cat.png", "--view", "top", "--to", "tensorboard", "--size", "16x16", "--weights", "random")
    done = fmapviz(*words, cwd=tmp_path)
    with serving(printed_line(done.stdout.decode()), tmp_path) as address:
        assert len(steps_shown(address, "top/00 0")) == PAGES
