"""Ways to make a Grad-CAM, each timed by `run.py`; the libraries take seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from captum.attr import LayerGradCam
from pytorch_grad_cam import GradCAM as PytorchGradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torchcam.methods import GradCAM

from fmapviz import cam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn


def forward_only(model: nn.Module, batch: Tensor, _targets: Sequence[int]) -> None:
    """Run the network, nothing else."""
    with torch.no_grad():
        model(batch)


def ours(model: nn.Module, batch: Tensor, targets: Sequence[int]) -> None:
    """Grad-CAM as fmapviz does it, which finds the layer itself."""
    cam(model, batch, target=targets)


def captums(model: nn.Module, batch: Tensor, targets: Sequence[int]) -> None:
    """Grad-CAM of captum at the last block, at the layer's resolution."""
    LayerGradCam(model, model.layer4).attribute(batch, target=torch.tensor(targets), relu_attributions=True)


def torchcams(model: nn.Module, batch: Tensor, targets: Sequence[int]) -> None:
    """Grad-CAM as torchcam does it."""
    with GradCAM(model, "layer4", input_shape=tuple(batch.shape[1:])) as extract:
        extract(list(targets), model(batch))


def grad_cams(model: nn.Module, batch: Tensor, targets: Sequence[int]) -> None:
    """Grad-CAM as pytorch-grad-cam does it."""
    with PytorchGradCAM(model, [model.layer4]) as extract:
        extract(input_tensor=batch, targets=[ClassifierOutputTarget(target) for target in targets])
