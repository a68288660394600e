"""What FeatLens, DINOtool, grad-cam, captum and torchcam draw, called as their documentation shows; timed by `peers.py`.

The values of a picture, to compare with fmapviz's, are returned by the function that draws or by the one below it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from fmapviz.types import Model


@contextmanager
def featlens_extractor(model: Model, layers: Sequence[str], patch_size: int) -> Iterator[Any]:
    """Hook layers of a network that has weights already, as FeatLens hooks those of networks which it loads."""
    from featlens import FeatureExtractor
    from featlens.adapters import custom_adapter

    loaded = custom_adapter.load(
        model.module,
        patch_size=patch_size,
        hook_target=lambda network, number: network.get_submodule(layers[number]),
        num_blocks=len(layers),
    )
    extractor = FeatureExtractor(loaded, layers=range(len(layers)))
    try:
        yield extractor
    finally:
        extractor.remove_hooks()


def featlens(
    model: Model, paths: Sequence[Path], out: Path, *, layers: Sequence[str], patch_size: int = 14, **options: Any
) -> None:
    """Draw a figure for each picture, with a tile for each layer. Principal components are those of the picture's layers."""
    from featlens import batch

    with featlens_extractor(model, layers, patch_size) as extractor:
        batch(extractor, paths, out, mode="visualize", layers=range(len(layers)), **options)


def featlens_values(
    model: Model, paths: Sequence[Path], _out: Path, *, layers: Sequence[str], patch_size: int = 14, **options: Any
) -> np.ndarray:
    """Return the tile of the first layer at its resolution, NaN where it is clipped, or the values that all tiles show."""
    from featlens import FeatureGrid

    with featlens_extractor(model, layers, patch_size) as extractor:
        whole = {"basis": "shared_per_model", "interpolation_size": 0, **options}
        found = FeatureGrid([extractor], range(len(layers)), **whole).render(paths, return_data=True)
    if found["scalars"] is not None:
        return found["scalars"][0]
    tile = found["tiles"][0, 0].transpose(2, 0, 1)
    return np.where((tile > 0) & (tile < 1), tile, np.nan)


def featlens_rollout(model: Model, paths: Sequence[Path], out: Path) -> None:
    """Draw attention rollout over each picture."""
    from featlens import attention

    with featlens_extractor(model, ["norm"], 14) as extractor:
        for path in paths:
            attention(extractor, path, overlay=True, out=out / f"{path.stem}.png")


def featlens_rollout_values(model: Model, paths: Sequence[Path], _out: Path) -> np.ndarray:
    from featlens import attention

    with featlens_extractor(model, ["norm"], 14) as extractor:
        return attention(extractor, paths[0], return_data=True)["rollout"][None]


class Dino(nn.Module):
    """A network of timm that is called as DINOv2's own, which DINOtool would download."""

    patch_size = 14

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward_features(self, batch: Tensor) -> dict[str, Tensor]:
        tokens = self.network.forward_features(batch)
        return {"x_norm_clstoken": tokens[:, 0], "x_norm_patchtokens": tokens[:, self.network.num_prefix_tokens :]}


def dinotool(model: Model, paths: Sequence[Path], out: Path, **options: Any) -> None:
    """Run the command on the folder of the pictures, without loading the network."""
    from dinotool import cli

    config = cli.DinotoolConfig(input=str(paths[0].parent), output=str(out), **options)
    with patch.object(cli, "load_model", lambda _: Dino(model.module)), patch.object(cli.tqdm, "monitor_interval", 0):
        cli.DinotoolProcessor(config).run()


def dinotool_components(model: Model, paths: Sequence[Path], out: Path) -> np.ndarray:
    """Read the components of each patch from the picture, which has the input above them."""
    dinotool(model, paths, out)
    with Image.open(out / f"{paths[0].stem}.jpg") as picture:
        return np.asarray(picture)[224 + 7 :: 14, 7::14].transpose(2, 0, 1)


def dinotool_tokens(model: Model, paths: Sequence[Path], out: Path, **options: Any) -> np.ndarray:
    """Read the tokens from the table."""
    import pandas

    dinotool(model, paths, out, **options)
    return pandas.read_parquet(out / f"{paths[0].stem}.parquet").to_numpy()


def captum(model: Model, paths: Sequence[Path], out: Path) -> np.ndarray:
    """Draw Grad-CAM of the predicted class, enlarged, with captum's function that draws over a picture."""
    from captum.attr import LayerAttribution, LayerGradCam, visualization

    network = model.module
    method = LayerGradCam(network, network.layer4)
    for name, picture, batch in prepared(model, paths):
        with torch.no_grad():
            target = network(batch).argmax().item()
        found = method.attribute(batch, target=target, relu_attributions=True)
        enlarged = LayerAttribution.interpolate(found, batch.shape[2:], "bilinear").detach()
        options = {"method": "blended_heat_map", "sign": "positive", "use_pyplot": False}
        figure, _ = visualization.visualize_image_attr(enlarged[0].permute(1, 2, 0).numpy(), np.asarray(picture), **options)
        figure.savefig(out / f"{name}.png")
    return found[0].detach().numpy()


def torchcam(model: Model, paths: Sequence[Path], out: Path) -> np.ndarray:
    """Draw Grad-CAM of the predicted class with torchcam."""
    from torchcam.methods import GradCAM
    from torchcam.utils import overlay_mask
    from torchvision.transforms.v2.functional import to_pil_image

    network = model.module
    with GradCAM(network, "layer4") as extract:
        for name, picture, batch in prepared(model, paths):
            scores = network(batch)
            (found,) = extract(scores.squeeze(0).argmax().item(), scores)
            overlay_mask(picture, to_pil_image(found.squeeze(0), mode="F"), alpha=0.5).save(out / f"{name}.png")
    return found.numpy()


def grad_cam(model: Model, paths: Sequence[Path], out: Path) -> np.ndarray:
    """Draw Grad-CAM of the predicted class with pytorch-grad-cam."""
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.image import show_cam_on_image

    with GradCAM(model=model.module, target_layers=[model.module.layer4]) as method:
        for name, picture, batch in prepared(model, paths):
            found = method(input_tensor=batch, targets=None)
            overlay = show_cam_on_image(np.float32(picture) / 255, found[0], use_rgb=True)
            Image.fromarray(overlay).save(out / f"{name}.png")
    return found


def prepared(model: Model, paths: Sequence[Path]) -> Iterator[tuple[str, Image.Image, Tensor]]:
    """Read and prepare the pictures, which have the size of the network's input."""
    for path in paths:
        with Image.open(path) as file:
            picture = file.convert("RGB")
        yield path.stem, picture, model.preparation.apply(picture)[None]
