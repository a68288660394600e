"""Names and metadata of the values of an image's feature maps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fmapviz.data import Target, UnitImage

_LONGEST_KEY = 65_000  # bytes; a zip archive, which a NumPy archive is, allows 65,535


def collect(image: UnitImage) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return an image's arrays by name, and their metadata.

    Outputs are named like their layer, `layer1.0.conv1`; other values have the view in front, `inputs/layer1.0.conv1`,
    `grads/layer1.0.conv1.top1`, `mean/layer4`.

    Returns:
        The arrays, of any shape, in the order of execution; and texts: `fmapviz`, `model`, `weights`, `sha256`,
        `preparation`, `image`, `versions`, and `layers`, a JSON list that describes each array.
    """
    arrays: dict[str, NDArray[Any]] = {}
    layers = []
    for name, values, record in _named(image):
        key = _free(_text(name).encode()[:_LONGEST_KEY].decode(errors="ignore"), arrays)
        arrays[key] = np.asarray(values, order="C")
        layers.append({"key": key, "shape": list(values.shape), **record})
    info = image.info
    metadata = {
        "fmapviz": __version__,
        "model": info.model,
        "weights": info.weights,
        "sha256": info.sha256 or "",
        "preparation": info.preparation,
        "image": image.name,
        "versions": json.dumps(dict(info.versions)),
        "layers": json.dumps(layers),
    }
    return arrays, {key: _text(value) for key, value in metadata.items()}


def _named(image: UnitImage) -> Iterator[tuple[str, NDArray[Any], dict[str, Any]]]:
    dtype = np.dtype(image.info.config.dtype)
    for layer in image.result.layers:
        values = layer.values
        if values:
            record = {"layer": layer.layer, "of": layer.of, "index": layer.index, "type": layer.type, "dtype": values.dtype}
            name = f"{values.view}/{_of_class(layer.layer, layer.target)}" if values.view else layer.layer
            yield name, values.array, {**record, **(layer.target.record if layer.target else {})}
    for layer, view, drawn in image.result.valued:
        record = {"layer": layer.layer or None, "of": view, "index": layer.index, "type": layer.type or None}
        name = f"{view}/{_of_class(layer.layer or 'input', layer.target)}"
        for suffix, own in drawn.items():
            with np.errstate(over="ignore"):  # values too large for float16 become infinite
                raw = own.astype(dtype) if own.dtype.kind == "f" else own
            yield f"{name}{suffix}", raw, {**record, **(layer.target.record if layer.target else {})}


def _of_class(layer: str, target: Target | None) -> str:
    return f"{layer}.{target.label}" if target else layer


def _free(name: str, taken: dict[str, NDArray[Any]]) -> str:
    """Return a free name, also for NumPy, which is not the key of the metadata."""
    while name in taken or name.removesuffix(".npy") in taken or f"{name}.npy" in taken or name == "__metadata__":
        name += "~"
    return name


def _text(text: str) -> str:
    """Escape unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()
