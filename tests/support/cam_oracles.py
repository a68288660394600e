"""Class activation maps of other packages."""

import torch


def of_grad_cam(method, network, layer, batch, classes):
    """Return the final maps of pytorch-grad-cam, one for each image and its class."""
    from extras import grad_cam, grad_cam_targets  # take a second and a half

    with getattr(grad_cam, method)(network, [network.get_submodule(layer)]) as extract:
        return torch.from_numpy(extract(batch, [grad_cam_targets.ClassifierOutputTarget(index) for index in classes]))
