"""A small network, an image to watch, and a training with Lightning."""

import torch
from extras import require
from torch import nn
from torch.utils.data import DataLoader


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def probe():
    return torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))


def fit(images, folder, callbacks, *, batch_size=4, **options):
    """Train with Lightning; return the trained weights."""
    pl = require("lightning.pytorch", "trainers")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, _index):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _index):
            self.model(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=callbacks, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    pl.seed_everything(0)
    loader = DataLoader(images, batch_size)
    trainer.fit(module, loader, loader)
    return {name: values.numpy().tobytes() for name, values in module.model.state_dict().items()}
