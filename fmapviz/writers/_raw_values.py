"""Name the values of an image's feature maps, and say where they come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fmapviz.values import Of, Target, Unit

_LONGEST_KEY = 65_000  # bytes; a zip archive, which a NumPy archive is, allows 65,535

_VIEWS: dict[Of, str] = {"input": "inputs", "gradient": "grads", "input gradient": "grad-inputs"}


def collect(unit: Unit) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Give an image's arrays under their names, and what else is to be told.

    What layers return stands under their names, `layer1.0.conv1`; everything else behind the view's,
    `inputs/layer1.0.conv1`, `grads/layer1.0.conv1.top1`, `gradcam/layer4.top1`.

    Returns:
        The arrays, of any shape, in the order of execution; and texts: `fmapviz`, `model`, `weights`, `sha256`,
        `preparation`, `image`, `versions`, and `layers`, which is a JSON list of what each array is.
    """
    arrays: dict[str, NDArray[Any]] = {}
    layers = []
    for name, values, record in _named(unit):
        key = _free(_text(name).encode()[:_LONGEST_KEY].decode(errors="ignore"), arrays)
        arrays[key] = np.asarray(values, order="C")
        layers.append({"key": key, "shape": list(values.shape), **record})
    info = unit.info
    told = {
        "fmapviz": __version__,
        "model": info.model,
        "weights": info.weights,
        "sha256": info.sha256 or "",
        "preparation": info.preparation,
        "image": unit.file.unit,
        "versions": json.dumps(dict(info.versions)),
        "layers": json.dumps(layers),
    }
    return arrays, {key: _text(value) for key, value in told.items()}


def _named(unit: Unit) -> Iterator[tuple[str, NDArray[Any], dict[str, Any]]]:
    dtype = np.dtype(unit.info.dtype)
    for kept in unit.drawn.kept:
        view = _VIEWS.get(kept.of)
        record = {"layer": kept.layer, "of": kept.of, "index": kept.index, "type": kept.type, "dtype": kept.dtype}
        name = kept.layer if view is None else f"{view}/{_of_class(kept.layer, kept.target)}"
        yield name, kept.values, {**record, **(kept.target.record if kept.target else {})}
    for heat in unit.drawn.heats:
        record = {"layer": heat.layer or None, "of": heat.view, "index": heat.index, "type": heat.type or None}
        name = f"{heat.view}/{_of_class(heat.layer or 'input', heat.target)}"
        with np.errstate(over="ignore"):  # what a half cannot hold is infinite
            raw = heat.raw.astype(dtype)
        yield name, raw, {**record, **(heat.target.record if heat.target else {})}


def _of_class(layer: str, target: Target | None) -> str:
    return f"{layer}.{target.label}" if target else layer


def _free(name: str, taken: dict[str, NDArray[Any]]) -> str:
    """Keep names apart that are equal, or that NumPy takes for equal, and out of the way of what is no array."""
    while name in taken or name.removesuffix(".npy") in taken or f"{name}.npy" in taken or name == "__metadata__":
        name += "~"
    return name


def _text(text: str) -> str:
    """Write half of a surrogate pair, which UTF-8 cannot hold, as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
