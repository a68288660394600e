"""TensorBoard, started with the very line that was printed, shows every step."""

from __future__ import annotations

import re
import shlex

import pytest
import torch
from documents import DOCUMENTS, text_of
from extras import needs, require
from image_files import save_picture
from tensorboard_server import serving, steps_shown
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

from fmapviz import Watch
from fmapviz.core import registry

pytestmark = pytest.mark.filterwarnings("default")  # of other packages
STEPS = 13  # TensorBoard shows ten by default
OPTIONS = {"every": 1, "strict": True, "budget": 100}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def probe():
    return torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))


def printed_line(text):
    """Return the only command for TensorBoard in what was printed."""
    (line,) = re.findall(r"tensorboard --logdir .*", text)
    return line


def train(watch):
    with watch:
        for step in range(STEPS):
            watch(step)


def watch_into_a_directory(folder):
    train(Watch(network(), probe(), out=folder / "my runs", **OPTIONS))
    return "maps/00 0/image_0"


def watch_into_a_writer(folder):
    with SummaryWriter(folder / "my 'own' runs") as writer:
        train(Watch(network(), probe(), out=writer, **OPTIONS))
    return "maps/00 0/image_0"


def fit_with_lightning(folder):
    pl = require("lightning.pytorch", "trainers")
    from fmapviz.integrations.lightning import FeatureMaps
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, _index):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    images = TensorDataset(torch.rand(STEPS, 3, 16, 16), torch.randint(2, (STEPS,)))
    trainer = pl.Trainer(
        accelerator="cpu", callbacks=[FeatureMaps(probe(), network="model", **OPTIONS)], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, logger=TensorBoardLogger(folder, "own"), max_epochs=1,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(images, 1))
    return "maps/00 0/image_0"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "draw",
    [
        watch_into_a_directory,
        watch_into_a_writer,
        pytest.param(fit_with_lightning, marks=needs("lightning", "trainers")),
    ],
)
def test_the_line_that_a_training_prints_shows_every_step(draw, tmp_path, capfd):
    tag = draw(tmp_path)
    with serving(printed_line(capfd.readouterr().err), tmp_path) as address:
        assert len(steps_shown(address, tag)) == STEPS


def test_the_line_that_a_run_of_shards_prints_shows_every_image(fmapviz, tmp_path):
    for seed in range(STEPS):
        save_picture(tmp_path / "in" / f"{seed:02d}.png", seed)
    words = ("in", "--layers", "features.0.conv", "--shard", "100", "--out", "runs")
    line = printed_line(fmapviz("shapesnet", *words, cwd=tmp_path).stdout.decode())
    with serving(line, tmp_path) as address:
        assert len(steps_shown(address, "maps/00 features.0.conv")) == STEPS


@pytest.mark.thorough
def test_the_line_that_a_series_of_checkpoints_prints_shows_every_step(fmapviz, tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3))\n")
    for step in range(STEPS + 1):
        torch.manual_seed(step)
        torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict(), tmp_path / f"epoch_{step}.pt")
    save_picture(tmp_path / "cat.png", 0)
    words = ("diff", "net.py:build", "cat.png", "--weights", "epoch_*.pt", "--to", "tensorboard", "--size", "16x16")
    done = fmapviz(*words, cwd=tmp_path)
    with serving(printed_line(done.stdout.decode()), tmp_path) as address:
        assert len(steps_shown(address, "diff/00 0/cat.png")) >= STEPS


@pytest.mark.thorough
def test_the_line_that_a_run_with_top_images_prints_shows_every_page(fmapviz, tmp_path):
    channels = 32 * STEPS  # 32 on a page
    (tmp_path / "net.py").write_text(
        f"from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, {channels}, 3))\n"
    )
    save_picture(tmp_path / "cat.png", 0)
    words = ("net.py:build", "cat.png", "--view", "top", "--to", "tensorboard", "--size", "16x16", "--weights", "random")
    done = fmapviz(*words, cwd=tmp_path)
    with serving(printed_line(done.stdout.decode()), tmp_path) as address:
        assert len(steps_shown(address, "top/00 0")) == STEPS


def test_the_guide_names_the_line_that_is_printed():
    flags = shlex.split(registry.form("tensorboard").open_steps_with)[3:]
    named = [each for name in DOCUMENTS for each in re.findall(r"--samples_per_plugin images=\d+", text_of(name))]
    assert named
    assert {*named} == {" ".join(flags)}
