"""TensorBoard, started with the very line that a comparison printed, shows every step."""

import pytest
import torch
from image_files import save_picture
from tensorboard_server import printed_line, serving, steps_shown
from torch import nn

STEPS = 13  # TensorBoard shows ten by default


@pytest.mark.thorough
def test_the_printed_tensorboard_command_of_a_series_shows_each_step(fmapviz, tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3))\n")
    for step in range(STEPS + 1):
        torch.manual_seed(step)
        torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict(), tmp_path / f"epoch_{step}.pt")
    save_picture(tmp_path / "cat.png", 0)
    words = ("diff", "net.py:build", "cat.png", "--weights", "epoch_*.pt", "--to", "tensorboard", "--size", "16x16")
    done = fmapviz(*words, cwd=tmp_path)
    with serving(printed_line(done.stdout.decode()), tmp_path) as address:
        assert len(steps_shown(address, "diff/00 0/cat.png")) >= STEPS
