"""TensorBoard, started with the very line that a training printed, shows every step."""

import shlex
import sys

import pytest
import torch
from cases import thorough
from extras import needs
from tensorboard_server import printed_line, serving, steps_shown
from torch.utils.data import TensorDataset
from torch.utils.tensorboard import SummaryWriter
from trainings import fit, network, probe

from fmapviz import Watch

pytestmark = pytest.mark.filterwarnings("default")  # of other packages
STEPS = 13  # TensorBoard shows ten by default
OPTIONS = {"every": 1, "strict": True, "budget": 100}


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
    from fmapviz.integrations.lightning import FeatureMaps
    from lightning.pytorch.loggers import TensorBoardLogger

    images = TensorDataset(torch.rand(STEPS, 3, 16, 16), torch.randint(2, (STEPS,)))
    callback = FeatureMaps(probe(), network="model", **OPTIONS)
    fit(images, folder, [callback], batch_size=1, logger=TensorBoardLogger(folder, "own"), max_epochs=1)
    return "maps/00 0/image_0"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "draw",
    [
        watch_into_a_directory,
        watch_into_a_writer,
        pytest.param(fit_with_lightning, marks=needs("lightning", "trainers")),
    ],
)
def test_the_printed_tensorboard_command_shows_each_step(draw, tmp_path, capfd):
    tag = draw(tmp_path)
    with serving(printed_line(capfd.readouterr().err), tmp_path) as address:
        assert len(steps_shown(address, tag)) == STEPS


@pytest.mark.parametrize(
    ("draw", "directory"), [(watch_into_a_directory, "my runs/fmapviz"), (watch_into_a_writer, "my 'own' runs")]
)
def test_the_printed_tensorboard_command_names_the_directory_and_asks_for_all_steps(draw, directory, tmp_path, capfd):
    draw(tmp_path)
    *command, flag, most = shlex.split(printed_line(capfd.readouterr().err))
    assert command == ["tensorboard", "--logdir", str(tmp_path / directory)]
    assert flag == "--samples_per_plugin"
    assert int(most.removeprefix("images=")) >= 1000


@pytest.mark.parametrize("draw", [watch_into_a_directory, *thorough(watch_into_a_writer)])
def test_tensorboard_is_started_with_this_python_if_it_is_not_found(draw, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    draw(tmp_path)
    printed = capfd.readouterr().err
    assert f"all steps: {shlex.quote(sys.executable)} -m tensorboard.main --logdir " in printed
