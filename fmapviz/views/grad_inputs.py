"""Gradient of a class's score that each layer passes back to its input, as a grid.

It is `grad_input` of `torch.nn.Module.register_full_backward_hook`. Of a tensor that is used elsewhere too, as in a residual
block, the whole gradient is `grads` of the layer that returned it.
"""

from fmapviz.views.maps import draw

NEEDS = "input_gradients"
LOOKS = "norm columns padding channels scale colormap labels background text_size with_input colorbar"

__all__ = ["LOOKS", "NEEDS", "draw"]
