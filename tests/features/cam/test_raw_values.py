"""The raw values of class activation maps are those of autograd, with their sign."""

import json

import numpy as np
import torch
from image_files import paint, prepared
from safetensors import safe_open
from tiny_runs import AS_IT_IS
from torch import nn

from fmapviz.run.loop import visualize


class Pools(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x):
        return self.last(self.first(x)).square().mean((2, 3))


def test_heat_maps_are_stored_signed_at_the_layers_resolution(tmp_path):
    model, path = Pools().eval(), paint(tmp_path / "a.png")
    options = {"layers": "last", "views": "gradcam", "targets": [1], "to": "raw", "preprocessing": AS_IT_IS}
    run = visualize(model, path, out=tmp_path / "out", **options).directory
    last = model.last(model.first(prepared(path))).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(last.square().mean((2, 3))[0, 1], last)
    expected = (gradient.mean((2, 3), keepdim=True) * last).sum(1)[0].detach().numpy()
    with safe_open(run / "a.png/raw.safetensors", "np") as file:
        np.testing.assert_allclose(file.get_tensor("gradcam/last.class1"), expected, rtol=1e-4, atol=1e-7)
        layers = {each["key"]: each for each in json.loads(file.metadata()["layers"])}
    assert (layers["gradcam/last.class1"]["layer"], layers["gradcam/last.class1"]["class"]) == ("last", 1)
