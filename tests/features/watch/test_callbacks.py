"""The callbacks of trainers draw at the steps of the optimiser, and trackers receive pictures and numbers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs, require
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from trainings import fit, network, probe

from fmapviz import Watch
from fmapviz.errors import ArgumentError, RequestError
from fmapviz.run.batch import describe_given

STAR = Path(__file__).parents[3] / "sample_images/shapes/star.jpg"
CALLBACKS = [("transformers", "FeatureMapsCallback"), *thorough(("lightning", "FeatureMaps"))]  # slow to import
QUIET = {"strict": True, "budget": 1, "on_event": lambda _: None}

pytestmark = pytest.mark.filterwarnings("default")  # of other packages


def data():
    torch.manual_seed(1)
    return TensorDataset(torch.rand(32, 3, 16, 16), torch.randint(2, (32,)))


def steps_in(folder, tag):
    events = EventAccumulator(str(folder), {"images": 0})
    events.Reload()
    return [each.step for each in events.Images(tag)]


def steps_of(run):
    return sorted(
        json.loads(path.read_bytes())["unit"]["version"]["step"] for path in (run / "image_0").glob("step_*/unit.json")
    )


# --- Lightning


@needs("lightning", "trainers")
@pytest.mark.thorough
def test_lightning_draws_into_its_own_writer_and_skips_the_sanity_check(tmp_path):
    from fmapviz.integrations.lightning import FeatureMaps
    from lightning.pytorch.loggers import TensorBoardLogger

    options = {"max_epochs": 2, "accumulate_grad_batches": 2, "num_sanity_val_steps": 2}
    expected = fit(data(), tmp_path, [], logger=False, **options)
    callback = FeatureMaps(probe(), network="model", every=3, **QUIET)
    logger = TensorBoardLogger(tmp_path, "own")
    assert fit(data(), tmp_path, [callback], logger=logger, **options) == expected
    assert len(list((tmp_path / "own" / "version_0").glob("events.*"))) == 1
    assert steps_in(tmp_path / "own" / "version_0", "maps/00 0/image_0") == [0, 3, 6, 8]


@pytest.mark.thorough
@needs("lightning", "trainers")
def test_lightning_draws_without_a_logger_and_in_a_training_that_fails(tmp_path):
    from fmapviz.integrations.lightning import FeatureMaps

    pl = require("lightning.pytorch", "trainers")

    class Failing(pl.Callback):
        def on_train_batch_end(self, trainer, *_args):
            if trainer.global_step == 6:
                raise KeyError("something else")

    callback = FeatureMaps(probe(), every="epoch", **QUIET)
    with pytest.raises(KeyError, match="something else"):
        fit(data(), tmp_path, [callback, Failing()], logger=False, max_epochs=3, limit_train_batches=4)
    assert steps_of(tmp_path / "fmapviz") == [1, 5, 6]
    assert (tmp_path / "fmapviz" / "image_0" / "_filmstrip" / "unit.json").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("module", "name"), CALLBACKS)
@pytest.mark.filterwarnings("ignore:::(?!fmapviz|test)")  # of other packages
def test_wrong_options_are_refused_by_the_callback(module, name):
    pytest.importorskip(module)
    callback = getattr(importlib.import_module(f"fmapviz.integrations.{module}"), name)
    for options in ({"evry": 3}, {"views": "typo"}, {"every": "day"}, {"network": 3}):
        with pytest.raises(RequestError):
            callback(probe(), **options)


@pytest.mark.thorough
@needs("lightning", "trainers")
def test_a_wrong_network_is_refused_before_the_training(tmp_path):
    from fmapviz.integrations.lightning import FeatureMaps

    with pytest.raises(RequestError, match="no such network"):
        fit(data(), tmp_path, [FeatureMaps(probe(), network="modle")], logger=False, max_epochs=1)


# --- transformers


def test_the_callback_of_transformers_draws_steps(tmp_path, monkeypatch):
    """Called as by the Trainer, which takes seconds to import."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    require("transformers", "hf")
    from fmapviz.integrations.transformers import FeatureMapsCallback

    callback, arguments = FeatureMapsCallback(probe(), every=3, **QUIET), SimpleNamespace(output_dir=tmp_path)
    callback.on_train_begin(arguments, None, None, model=network())
    for step in range(1, 9):
        callback.on_step_end(arguments, SimpleNamespace(global_step=step, epoch=step / 4), None)
    callback.on_train_end(arguments, None, None)
    assert steps_of(tmp_path / "fmapviz") == [1, 3, 6, 8]


@pytest.mark.thorough
@needs("accelerate", "trainers")
def test_the_trainer_of_transformers_draws_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = require("transformers", "hf")
    from fmapviz.integrations.transformers import FeatureMapsCallback

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = network()

        def forward(self, pixel_values, labels=None):
            logits = self.model(pixel_values)
            if labels is None:
                return {"logits": logits}
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def train(callbacks):
        module = Classifier()
        arguments = transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2, report_to=[],
            use_cpu=True, save_strategy="no", seed=0, disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        rows = [{"pixel_values": pixels, "labels": label} for pixels, label in data()]
        transformers.Trainer(module, arguments, train_dataset=rows, callbacks=callbacks).train()
        return {name: values.numpy().tobytes() for name, values in module.state_dict().items()}

    assert train([FeatureMapsCallback(probe(), every=3, **QUIET)]) == train([])
    assert steps_of(tmp_path / "fmapviz") == [1, 3, 6, 8]


# --- Ignite


@pytest.mark.thorough
@needs("ignite", "trainers")
def test_an_engine_of_ignite_draws_steps(tmp_path):
    engine = require("ignite.engine", "trainers")
    from fmapviz.integrations.ignite import attach

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    trainer = engine.create_supervised_trainer(net, optimizer, nn.functional.cross_entropy)
    attach(trainer, Watch(net, probe(), out=tmp_path, every=4, **QUIET))
    trainer.run(DataLoader(data(), 4), max_epochs=2)
    assert steps_of(tmp_path / "fmapviz") == [1, 4, 8, 12, 16]


# --- trackers


def watch_three_steps(writer):
    net = network()
    with Watch(net, probe(), out=writer, every=1, **QUIET) as watch:
        for step in range(3):
            watch(step)


def test_the_writer_of_mlflow_logs_pictures_and_numbers(monkeypatch):
    """Without MLflow, which takes seconds to import: its client notes what it is given."""
    images, numbers, module = [], [], "fmapviz.integrations.mlflow"
    client = SimpleNamespace(
        log_image=lambda run, pixels, *, key, step: images.append((run, key, step, pixels.dtype, pixels.shape[2:])),
        log_metric=lambda run, key, _value, *, step: numbers.append((run, key, step)),
    )
    stub = ModuleType("mlflow")
    stub.active_run, stub.MlflowClient = lambda: None, lambda: client
    monkeypatch.setitem(sys.modules, "mlflow", stub)
    monkeypatch.setitem(sys.modules, module, None)  # or as it was afterwards
    del sys.modules[module]
    writer = importlib.import_module(module).Writer
    with pytest.raises(RequestError, match="no run of MLflow is active"):
        writer()
    watch_three_steps(writer("7"))
    for step in range(3):
        assert ("7", "maps/00 0/image_0", step, np.uint8, (3,)) in images
        assert ("7", "zeros/00 0", step) in numbers


@pytest.mark.thorough
@needs("mlflow", "trainers")
def test_mlflow_receives_pictures_and_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = require("mlflow", "trainers")
    from fmapviz.integrations.mlflow import Writer

    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    with mlflow.start_run() as run:
        watch_three_steps(Writer())
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "zeros/00 0")
    assert [each.step for each in history] == [0, 1, 2]
    pictures = sorted((tmp_path / "mlflow" / "0" / run.info.run_id / "artifacts" / "images").glob("maps?00 0?image_0*.png"))
    assert len(pictures) == 3
    expected = Watch(network(), probe(), out=tmp_path / "own", **QUIET)
    expected(0)
    expected.close()
    drawn = Image.open(tmp_path / "own" / "fmapviz" / "image_0" / "step_000000" / "00_0.maps.png").convert("RGB")
    assert np.array_equal(np.asarray(Image.open(pictures[0]).convert("RGB")), np.asarray(drawn))


WANDB = """
import sys, wandb, torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from fmapviz import Watch
wandb.init(project="tests", mode="offline", dir=sys.argv[1], sync_tensorboard=True)
writer = SummaryWriter(sys.argv[1] + "/tensorboard")
torch.manual_seed(0)
with Watch(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(3, 16, 16), out=writer, every=1, strict=True, budget=1) as watch:
    for step in range(3):
        watch(step)
writer.close()
wandb.finish()
"""


@pytest.mark.thorough
@needs("wandb", "trainers")
def test_wandb_copies_the_events_of_tensorboard(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WANDB, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    copied = list(tmp_path.glob("wandb/offline-run-*/files/media/images/*.png"))
    written = EventAccumulator(str(tmp_path / "tensorboard"), {"images": 0})
    written.Reload()
    pictures = [each.encoded_image_string for tag in written.Tags()["images"] for each in written.Images(tag)]
    shown = {np.asarray(Image.open(path).convert("RGB")).tobytes() for path in copied}
    assert len(pictures) == 7  # the input, three steps, filmstrips of one, two and three rows
    assert len(copied) == 7
    assert len(shown) >= 4


@pytest.mark.thorough
def test_importing_watch_imports_no_trainer(torch_alone):
    packages = {"lightning", "transformers", "ignite", "wandb", "mlflow"}
    code = f"import sys, fmapviz; fmapviz.Watch; print(*({packages} & {{*sys.modules}}))"
    assert torch_alone(code).stdout == b"\n"


def test_a_writer_of_tensorboard_is_used_directly(tmp_path):
    writer = SummaryWriter(tmp_path)
    watch_three_steps(writer)
    writer.add_scalar("own", 1.0, 3)  # it is still open
    writer.close()
    assert steps_in(tmp_path, "maps/00 0/image_0") == [0, 1, 2]


@pytest.mark.thorough
def test_the_callback_reports_an_assumed_preprocessing_once(tmp_path, capfd):
    require("lightning.pytorch", "trainers")
    from fmapviz.integrations.lightning import FeatureMaps

    callback = FeatureMaps(STAR, out=tmp_path / "watch", every=1, budget=1)
    trainer = SimpleNamespace(loggers=[], log_dir=None, default_root_dir=tmp_path, global_step=0, current_epoch=0)
    callback.on_train_start(trainer, network())
    callback.on_train_batch_end(trainer)
    callback.on_train_end(trainer)
    lines = capfd.readouterr().err.splitlines()
    assert lines.count(f"fmapviz: {describe_given(network()).assumption}") == 1


@pytest.mark.parametrize(("module", "name"), CALLBACKS)
@pytest.mark.filterwarnings("ignore:::(?!fmapviz|test)")  # of other packages
def test_a_callback_accepts_the_former_name_of_out(module, name, tmp_path):
    pytest.importorskip(module)
    callback = getattr(importlib.import_module(f"fmapviz.integrations.{module}"), name)
    with pytest.warns(DeprecationWarning, match=rf"^{name}\(\): to= is now out=$"):
        callback(STAR, to=tmp_path)
    with pytest.raises(ArgumentError, match="both are given"):
        callback(STAR, to=tmp_path, out=tmp_path)
