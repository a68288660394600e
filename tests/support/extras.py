"""Modules of extras: `from extras import captum` skips the test, or the test module, where there is no such module."""

from importlib.util import find_spec

import pytest

_MODULES = {
    "axe": ("axe_playwright_python.sync_playwright", "browser"),
    "captum": ("captum.attr", "oracles"),
    "captum_networks": ("captum.testing.helpers.basic_models", "oracles"),
    "colors": ("matplotlib.colors", "oracles"),
    "grad_cam": ("pytorch_grad_cam", "oracles"),
    "grad_cam_image": ("pytorch_grad_cam.utils.image", "oracles"),
    "grad_cam_targets": ("pytorch_grad_cam.utils.model_targets", "oracles"),
    "matplotlib": ("matplotlib", "oracles"),
    "obstore": ("obstore", "remote"),
    "parquet": ("pyarrow.parquet", "scale"),
    "pillow_heif": ("pillow_heif", "heic"),
    "playwright": ("playwright.sync_api", "browser"),
    "pyarrow": ("pyarrow", "scale"),
    "timm": ("timm", "timm"),
    "torchcam": ("torchcam.methods", "oracles"),
    "webdataset": ("webdataset", "oracles"),
}


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(name)
    module, extra = _MODULES[name]
    return pytest.importorskip(module, reason=f"needs {module.partition('.')[0]}, of the extra {extra}")


def needs(module, extra):
    """Return a mark for a test whose commands, not itself, import the module."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs {module}, of the extra {extra}")
