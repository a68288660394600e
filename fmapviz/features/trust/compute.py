"""Judge heat maps in Python: `fmapviz.trust`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.config import Style, check_scores, check_type, explain_arguments
from fmapviz.config.changes import Changes, check_changes
from fmapviz.config.checks import check_confidence
from fmapviz.core import registry
from fmapviz.core.words import counted
from fmapviz.draw.png import encode
from fmapviz.errors import RequestError, quote
from fmapviz.features.trust.judged_maps import passes_of
from fmapviz.features.trust.judgement import remarks, verdict
from fmapviz.features.trust.trust_observer import VIEW, TrustObservation, usual_views
from fmapviz.features.trust.trust_sheet import TrustDrawn, draw_trust
from fmapviz.images.seen import Seen
from fmapviz.models.network import with_axes
from fmapviz.observe.layers import find_layers, unwrap
from fmapviz.observe.target_scores import NOT_FINITE
from fmapviz.observe.targets import parse_one
from fmapviz.run.batch import make_batch
from fmapviz.run.findings import findings_of
from fmapviz.run.observed_passes import Wanted
from fmapviz.run.places import PlaceCache
from fmapviz.run.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from fmapviz.data import Inputs, LayerResult, Model, Target

_AUTO = "auto"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trust:
    """M methods of heat maps, judged by one image and one class.

    Attributes:
        methods: Names of the methods.
        layers: The feature map of each; empty of a map of the input.
        shares: Of the image that is removed or revealed at each of S + 1 points, float64 `(M, S + 1)`, from 0 to 1.
        deletion: The class's probability while the highest cells of the map are replaced by the blurred image, float64
            `(M, S + 1)`.
        insertion: The probability while they are revealed in the blurred image.
        deletion_area: The areas under `deletion`, float64 `(M,)`; low if the cells that matter come first.
        insertion_area: The areas under `insertion`; high if the cells that matter come first.
        chance_deletion: The areas of ten random orders of the same cells, float64 `(10,)`.
        chance_insertion: Likewise.
        verdicts: How each method compares with these, in words.
        last_random: Rank correlation of each map with that of the network with random weights in its last layer, float64
            `(M,)`; NaN where it is unknown. Near 1, the map does not depend on that layer.
        all_random: With random weights in all layers.
        agreement: Rank correlations of the maps with each other, float64 `(M, M)`; NaN of a map of equal values.
        of_class: Whether each method computes another map for another class.
        spread: Standard deviation of the probability from pass to pass of the unchanged image; 0 for most networks.
        last_layer: Name of the last layer; empty if the score depends on no weights.
        maps: The positive part of the maps, uint8 `(M, H, W)`.
        target: The class.
        remarks: What must be known of the numbers, a sentence each.
        sheet: All of it, drawn as the view `trust` does, uint8 `(H, W, 3)`.
    """

    methods: tuple[str, ...]
    layers: tuple[str, ...]
    shares: NDArray[np.float64]
    deletion: NDArray[np.float64]
    insertion: NDArray[np.float64]
    deletion_area: NDArray[np.float64]
    insertion_area: NDArray[np.float64]
    chance_deletion: NDArray[np.float64]
    chance_insertion: NDArray[np.float64]
    verdicts: tuple[str, ...]
    last_random: NDArray[np.float64]
    all_random: NDArray[np.float64]
    agreement: NDArray[np.float64]
    of_class: tuple[bool, ...]
    spread: float
    last_layer: str
    maps: NDArray[np.uint8]
    target: Target
    remarks: tuple[str, ...]
    sheet: NDArray[np.uint8]

    def __repr__(self) -> str:
        """Return a line for each method."""
        lines = [
            f"  {method}: deletion {removed:.3f}, insertion {revealed:.3f}, {words}"
            for method, removed, revealed, words in zip(
                self.methods, self.deletion_area, self.insertion_area, self.verdicts, strict=True
            )
        ]
        return "\n".join([f"Trust({self.target})", *lines])

    def _repr_png_(self) -> bytes:
        """Show the sheet in a notebook."""
        return encode(self.sheet, {})


@explain_arguments
def trust(
    model: nn.Module | Model,
    x: Inputs,
    *,
    target: str | int = "top1",
    methods: Sequence[str] = (),
    layer: str = _AUTO,
    output: str | int | None = None,
    scores: str | None = None,
    confidence: float | None = None,
    patch: int = 32,
    stride: int | None = None,
    baseline: str = "mean",
    steps: int = 32,
    samples: int | None = None,
) -> Trust:
    """Judge the heat maps of an image: deletion and insertion, against chance and random weights, and agreement.

    The 20 x 20 cells of the image are removed, replaced by the blurred image, and revealed in it, in 20 steps in the order
    of the map: Petsiuk et al., "RISE: Randomized Input Sampling for Explanation of Black-box Models", 2018. The maps are
    computed again with random weights: Adebayo et al., "Sanity Checks for Saliency Maps", 2018. The model is as before
    afterwards, bit for bit.

    Args:
        model: As of `cam`.
        x: One image, as of `cam`.
        target: The class: `top1`, an index, a name, or what else `--target` takes.
        methods: Names of methods, as of `cam`; empty: some of each kind that need few passes.
        layer: A feature map's name; `auto` takes the last layer whose output is a map that the class depends on.
        output: As of `cam`.
        scores: Likewise.
        confidence: Likewise.
        patch: Likewise.
        stride: Likewise.
        baseline: Likewise; removed cells are always replaced by the blurred image.
        steps: Likewise.
        samples: Likewise.

    Raises:
        RequestError: No such method, layer or class; several images; no method has a map, or the class's probability does
            not depend on the image.
        InputError: The image cannot be read or preprocessed.
        ForwardError: The network failed.

    Example:
        >>> from fmapviz import load_model
        >>> found = trust(load_model("shapesnet"), "sample_images/shapes/star.jpg", methods=["gradcam", "eigencam"])
        >>> found.methods, found.deletion.shape, found.of_class
        (('gradcam', 'eigencam'), (2, 21), (True, False))
        >>> found.deletion_area[0] < found.chance_deletion.min()
        np.True_
    """
    check_type("output", output, str | int | None, hint="key or index of the class scores in what the model returns")
    check_scores(check_type("scores", scores, str | None, hint="such as 'sigmoid'"))
    changes = Changes(patch=patch, stride=stride, baseline=baseline, steps=steps, samples=samples)
    check_changes(changes)
    judged = _check_methods(methods)
    made = make_batch(x, model)
    if len(made.values) > 1:
        message = f"{counted(len(made.values), 'image')} at once"
        raise RequestError(message, hint=f"call once for each; fmapviz.visualize(..., views='{VIEW}') judges over many")
    model = replace(made.model, module=unwrap(made.model.module))
    layers = _check_layer(layer, model)
    target = check_type("target", target, str | int, hint="such as 'top1', an index, or a name; call once for each class")
    choice = parse_one(str(target), model.classes)
    plan = Plan(
        observations=(TrustObservation((VIEW,), (choice,), judged),),
        targets=(choice,),
        output=None if output is None else str(output),
        scores=scores,
        confidence=check_confidence(confidence),
        changes=changes,
        automatic=not layers,
        placed=frozenset({VIEW}),
    )
    places = PlaceCache(model, findings_of(model).fields).at(tuple(made.values.shape[1:]))
    files = made.files() if plan.located else ()
    results = passes_of(model).observe(made.values, Wanted(plan, layers, places, files))
    if not results.layers:
        reasons = [*results.missing[0].values(), *results.undrawn.values(), "nothing was computed"]
        hint = "another target=, or other methods="
        if reasons[0] == NOT_FINITE:
            hint = "fmapviz.visualize(..., views='maps') names the first layer with such values"
        raise RequestError(f"nothing is judged for {choice.label}: {reasons[0]}", hint=hint)
    (batch,) = results.layers
    assert batch.targets
    assert batch.targets[0]
    content = batch.drawings[VIEW]
    assert content
    drawn = content.make(0)
    assert isinstance(drawn, TrustDrawn)
    seen = Seen(made.values[0].detach(), with_axes(model, made.values.shape[1:])).at(None)
    return _public(drawn, replace(batch.template, target=batch.targets[0]), seen)


def _check_methods(methods: Sequence[str]) -> tuple[str, ...]:
    names: tuple[str, ...] = check_type("methods", methods, Sequence[str], hint="such as ['gradcam', 'rise']")
    known = {name: view for name, view in registry.views().items() if view.method}
    for name in names:
        if name not in known:
            raise RequestError(f"no such method: {quote(name)}", hint=registry.hint_for("view", str(name), known))
    return tuple(dict.fromkeys(names)) or usual_views()


def _check_layer(layer: str, model: Model) -> tuple[str, ...]:
    if check_type("layer", layer, str, hint="a name, or auto") == _AUTO:
        return ()
    name = layer.partition("#")[0].partition("[")[0]
    if all(name != each.name for each in find_layers(model.module)):
        raise RequestError(f"no such layer: {quote(layer)}", hint="fmapviz.list_layers(model, types='Module') lists all")
    return (layer,)


def _public(drawn: TrustDrawn, layer: LayerResult, seen: NDArray[np.uint8]) -> Trust:
    found, target = drawn.judgement, layer.target
    assert target
    methods, chance = found.methods, found.chance
    return Trust(
        methods=tuple(each.view for each in methods),
        layers=tuple(each.layer for each in methods),
        shares=np.stack([each.curve.shares for each in methods]),
        deletion=np.stack([each.curve.deletion for each in methods]),
        insertion=np.stack([each.curve.insertion for each in methods]),
        deletion_area=np.array([each.curve.deletion_area for each in methods]),
        insertion_area=np.array([each.curve.insertion_area for each in methods]),
        chance_deletion=np.array([each.deletion_area for each in chance]),
        chance_insertion=np.array([each.insertion_area for each in chance]),
        verdicts=tuple(verdict(each, chance) for each in methods),
        last_random=np.array([each.last.correlation for each in methods]),
        all_random=np.array([each.all.correlation for each in methods]),
        agreement=found.agreement,
        of_class=tuple(each.of_class for each in methods),
        spread=found.spread,
        last_layer=found.last_layer,
        maps=np.stack(drawn.pixels),
        target=target,
        remarks=tuple(remarks(found)),
        sheet=draw_trust(drawn, layer, seen, Style()),
    )
