"""Draw one picture with every model of torchvision and with shapesnet, and count: `make all-models`.

For each name the whole pipeline runs with random weights. It is right when every convolution that the forward pass computed,
counted below Python by a dispatch mode, has its picture or a stated reason, and every other Conv layer is named as not
executed; and when a network whose weights are loaded from a file, which initialises nothing, is in everything the one that
was saved.
"""

import json
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

import torch
from checkpoint_files import assert_holds, build, poisoned_memory
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fmapviz import InputOptions, load_model, model_names, visualize
from fmapviz.models.load import outline_model

# What torchvision's constructors do otherwise where weights are published.
AS_PUBLISHED = {
    "googlenet": {"transform_input": True},
    "inception_v3": {"transform_input": True},
    "vit_h_14": {"image_size": 518},
}
PICTURE = Path(__file__).parent.parent / "sample_images" / "shapes.png"


class ConvolutionCount(TorchDispatchMode):
    """Counts the computed convolutions."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.count = 0
        self._dimensions = dimensions

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in {torch.ops.aten.convolution.default, torch.ops.aten.mkldnn_convolution.default}:
            transposed = func is torch.ops.aten.convolution.default and args[6]
            self.count += args[0].ndim == self._dimensions and not transposed
        return func(*args, **(kwargs or {}))


def check(name: str, out: Path, options: InputOptions | None = None, *, side: int | None = None) -> str:
    """Draw with one model, make sure that nothing is missing, and say in a line what there was.

    A detector enlarges pictures itself, to 800 pixels or so; `side` is how far instead.
    """
    model = load_model(name, weights="random", preprocessing=options)
    if side:
        model.module.transform.min_size = (side,)
    convolutions = [module for module in model.module.modules() if isinstance(module, torch.nn.Conv2d)]
    kind, dimensions = (torch.nn.Conv2d, 4) if convolutions else (torch.nn.Conv3d, 5)
    layers = {layer for layer, module in model.module.named_modules() if isinstance(module, kind)}
    computed = ConvolutionCount(dimensions)

    def forward(module, batch):
        with computed:  # holds for the thread that draws
            return model.forward(module, batch)

    summary = visualize(replace(model, forward=forward), PICTURE, out=out, to=["png"], types=[kind.__name__])
    assert summary.exit_code == 0, summary.failures
    unit = summary.directory / PICTURE.name
    record = json.loads((unit / "unit.json").read_text())
    drawn = {(row["name"].rpartition(".t")[0] if dimensions == 5 else row["name"]) for row in record["layers"]}
    undrawn, missed = set(record["undrawn"]), set(record["not_executed"])
    assert drawn, "not one picture"
    assert len(drawn | undrawn) == computed.count, f"{len(drawn | undrawn)} of {computed.count} convolutions"
    assert {call.partition("#")[0] for call in drawn | undrawn} | missed == layers
    assert summary.pictures == len(record["layers"]) + 1 == len(list(unit.glob("*.png")))
    return f"{len(drawn)} drawn, {len(missed)} not executed, {len(undrawn)} without picture, {summary.pictures} pictures"


def check_loading(name: str, place: Path) -> None:
    """Save the weights of a network of torchvision, load them, and compare the state of both networks."""
    original = build(name, **AS_PUBLISHED.get(name.removeprefix("quantized_"), {}))
    file = place / "weights.pth"
    torch.save(original.state_dict(), file)
    with poisoned_memory():  # what nobody initialised would be NaN
        model = load_model(name, weights=str(file))
    file.unlink()
    assert_holds(model.module, original.state_dict())
    expected, got = _facts(original), _facts(model.module)
    assert expected.keys() == got.keys()
    assert [key for key in expected if not _equal(expected[key], got[key])] == []
    assert model.preparation.description == outline_model(name).preparation.description  # as for its best published weights


def _facts(network: torch.nn.Module) -> dict[tuple[str, int], object]:
    """List the state of a network's modules: parameters, buffers, other tensors, numbers and words."""
    found = {}
    for name, module in network.named_modules():
        known = {key: value for key, value in vars(module).items() if "hook" not in key}
        leaves = (leaf for leaf in tree_leaves(known) if isinstance(leaf, torch.Tensor | bool | int | float | str))
        found |= {(name, number): leaf for number, leaf in enumerate(leaves)}
    return found


def _equal(one: object, other: object) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def main() -> int:
    good = dict.fromkeys(model_names(), False)
    for name in good:
        begun = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as out:
                line = check(name, Path(out))
                if name != "shapesnet":
                    check_loading(name, Path(out))
            good[name] = True
        except Exception:  # noqa: BLE001  the others go on
            traceback.print_exc()
            line = "FAILED"
        print(f"{name}: {line} ({time.monotonic() - begun:.1f} s)", flush=True)
    bundled = good.pop("shapesnet")
    print(f"{sum(good.values())}/{len(good)} models of torchvision; shapesnet: {'correct' if bundled else 'FAILED'}")
    return not (bundled and all(good.values()))


if __name__ == "__main__":
    sys.exit(main())
