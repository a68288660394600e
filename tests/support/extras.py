"""Modules of extras: `from extras import captum` skips the test, or the test module, where there is no such module."""

from importlib.util import find_spec

import pytest

_MODULES = {
    "av": ("av", "video"),
    "axe": ("axe_playwright_python.sync_playwright", "browser"),
    "captum": ("captum.attr", "oracles"),
    "captum_networks": ("captum.testing.helpers.basic_models", "oracles"),
    "cluster": ("sklearn.cluster", "oracles"),
    "colors": ("matplotlib.colors", "oracles"),
    "decomposition": ("sklearn.decomposition", "oracles"),
    "grad_cam": ("pytorch_grad_cam", "oracles"),
    "grad_cam_image": ("pytorch_grad_cam.utils.image", "oracles"),
    "grad_cam_targets": ("pytorch_grad_cam.utils.model_targets", "oracles"),
    "accelerate": ("accelerate", "trainers"),
    "ignite": ("ignite.engine", "trainers"),
    "lightning": ("lightning.pytorch", "trainers"),
    "mlflow": ("mlflow", "trainers"),
    "wandb": ("wandb", "trainers"),
    "huggingface_hub": ("huggingface_hub", "timm"),
    "matplotlib": ("matplotlib", "oracles"),
    "metrics": ("sklearn.metrics", "oracles"),
    "obstore": ("obstore", "remote"),
    "parquet": ("pyarrow.parquet", "scale"),
    "pillow_heif": ("pillow_heif", "heic"),
    "playwright": ("playwright.sync_api", "browser"),
    "pyarrow": ("pyarrow", "scale"),
    "timm": ("timm", "timm"),
    "transformers": ("transformers", "hf"),
    "torchcam": ("torchcam.methods", "oracles"),
    "ultralytics": ("ultralytics", "ultralytics"),
    "webdataset": ("webdataset", "oracles"),
    "yaml": ("yaml", "dev"),
}


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(name)
    return require(*_MODULES[name])


def require(module, extra):
    """Import a module; skip the test if it is missing."""
    return pytest.importorskip(module, reason=_reason(module, extra))


def needs(module, extra):
    """Return a mark for a test whose commands, not itself, import the module."""
    return pytest.mark.skipif(find_spec(module) is None, reason=_reason(module, extra))


def needs_member(member):
    """Return the marks for a test of a member of the catalogue, such as a model source."""
    return [needs(member.requires, member.extra or member.name)] if member.requires else []


def _reason(module, extra):
    return f"needs {module.partition('.')[0]}, of the extra {extra}"
