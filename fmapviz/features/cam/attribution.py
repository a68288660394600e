"""Class activation maps in Python: `fmapviz.cam`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fmapviz.config import Style, check_scores, check_type, explain_arguments
from fmapviz.config.changes import Changes, GivenBaseline, check_changes
from fmapviz.config.checks import check_confidence
from fmapviz.core import registry
from fmapviz.core.members import load
from fmapviz.core.words import counted
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.draw.heatmap import gray_of, overlay
from fmapviz.draw.png import encode
from fmapviz.errors import RequestError, first_few, quote
from fmapviz.features.cam import CamView
from fmapviz.features.cam.method import Method
from fmapviz.features.cam.observer import CamObservation
from fmapviz.images.seen import Seen
from fmapviz.models.network import with_axes
from fmapviz.observe.detectors import HEAD, feeds_of
from fmapviz.observe.layers import unwrap
from fmapviz.observe.places import Places
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.observe.target_scores import NOT_FINITE
from fmapviz.observe.targets import TargetChoice, parse_one
from fmapviz.run.batch import make_batch
from fmapviz.run.findings import findings_of
from fmapviz.run.observed_passes import ObservedPasses, Wanted
from fmapviz.run.places import PlaceCache
from fmapviz.run.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.core.members import View
    from fmapviz.data import Inputs, Model, Preparation
    from fmapviz.run.batch_results import BatchResults
    from fmapviz.run.findings import Findings

_AUTO = "auto"
_PLAIN = Style()
_OF_LAYERS = "the score has to depend on a layer with rows and columns; fmapviz.list_layers(model, types='Module') lists all"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClassActivation:
    """Class activation maps of N images.

    Attributes:
        raw: float32 `(N, h, w)`, signed, at the layer's resolution.
        map: float32 `(N, H, W)`, 0..1, at the images' resolution: negative values are zero, then enlarged bilinearly, each
            value at the centre of what its position sees, then stretched from each one's minimum to its maximum.
        layer: The feature map's name; empty if the map is of the images themselves.
        target: The class of each image; empty for a method that is independent of classes.
        score: `(N,)`, what the network returns for that class: after a softmax or sigmoid by which it ends; of the first of
            two names of a single output its negative or complement.
        logit: `(N,)`, what is differentiated: before that softmax or sigmoid; None if there is no logit, and the score is
            differentiated.
        probability: `(N,)`, 0..1; None if the network has none, or the method is independent of classes.
        kind: How classes relate: `softmax`, `sigmoid`, `ordinal`, `value` or `boxes`; empty for a method that is independent
            of classes.
        names: The name of the class of each image; empty where it is unknown.
        notices: Assumptions, for the user.
    """

    raw: Tensor
    map: Tensor
    layer: str
    target: tuple[int, ...]
    score: Tensor
    _pixels: Tensor
    _preparation: Preparation
    _style: Style
    _frame: float | None = None
    logit: Tensor | None = None
    probability: Tensor | None = None
    kind: str = ""
    names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def overlay(self) -> NDArray[np.uint8]:
        """The maps in colour over the images, uint8 `(N, H, W, 3)`."""
        heats = self.map.mul(255).add(0.5).byte().cpu().numpy()
        pictures = (Seen(pixels, self._preparation).at(self._frame) for pixels in self._pixels)
        style = self._style
        below = map(gray_of, pictures) if style.gray_input else pictures
        drawn = [
            overlay(picture, heat, colormap=style.colormap or HEAT_COLORMAP, alpha=style.alpha)
            for picture, heat in zip(below, heats, strict=True)
        ]
        return np.stack(drawn)

    def __repr__(self) -> str:
        """Summarize it, without its arrays."""
        more = [("logit", self.logit), ("probability", self.probability)]
        numbers = [f"{name}={values.tolist()}" for name, values in more if values is not None]
        names = [f"names={self.names}"] if any(self.names) else []
        facts = [f"layer={self.layer!r}, target={self.target}, score={self.score.tolist()}", *numbers, *names]
        return f"ClassActivation({', '.join([*facts, *([f'kind={self.kind!r}'] if self.kind else [])])})"

    def _repr_png_(self) -> bytes:
        """Show all maps in a notebook, side by side."""
        return encode(np.concatenate(list(self.overlay), axis=1), {})


@explain_arguments
def cam(
    model: nn.Module | Model,
    x: Inputs,
    *,
    target: str | int | Sequence[str | int] | Tensor = "top1",
    layer: str | nn.Module = _AUTO,
    method: str = "gradcam",
    output: str | int | None = None,
    scores: str | None = None,
    confidence: float | None = None,
    patch: int = 32,
    stride: int | None = None,
    baseline: str | Tensor = "mean",
    steps: int = 32,
    samples: int | None = None,
    style: Style | None = None,
) -> ClassActivation:
    """Compute a class activation map of one layer, by one forward pass and the part of a backward pass that it needs.

    Or a map of the input, by many passes: `occlusion`, `integrated-gradients`, `smoothgrad` or `rise`.

    The model is as before afterwards: no gradient is kept anywhere, no flag, buffer or hook is changed. It is in evaluation
    mode meanwhile.

    Args:
        model: Any `nn.Module` that takes a batch, or what `load_model` returns, which knows the names of classes.
        x: Prepared images `(N, C, H, W)`, or one `(C, H, W)`, on the model's device; neither changed nor differentiated. Or
            what is to be prepared for the model: a path, a Pillow picture, a NumPy array, a uint8 tensor `(C, H, W)`, or a
            list of any of these. A network that `load_model` did not load has the preprocessing that `visualize` uses.
        target: The class: `top1`, `top2`, ... an index, or a name; of a detector also `box1` or `box:L,T,R,B`, of a
            segmentation `NAME@X,Y`, in pixels of the upright picture, or of a tensor. A list, or indices, has one
            for each image. `top3` is the third likeliest class alone; on the command line and in `visualize` all three.
        layer: A feature map's name, `layer4` or `layer1.0.relu#2`, or the module; `auto` takes the last layer whose output
            is a map that the class depends on; of a detector, like `head`, all that its head reads, fused.
        method: `gradcam`, `gradcam++`, `layercam`, `hirescam`, `xgradcam`, `eigencam`, `cam` or `saliency`; or `occlusion`,
            `integrated-gradients`, `smoothgrad` or `rise`.
        output: Which part of what the model returns holds the class scores, a key or an index.
        scores: Kind of the outputs: `softmax`, `sigmoid`, `ordinal`, `value` or `value:UNIT`; None: by the end of the
            network, what `load_model` knows, else `softmax`; `notices` of the result report assumptions.
        confidence: The lowest score of a detector's boxes; None: that of the network's own post-processing.
        patch: Side of the patches of `occlusion`; pixels of the input.
        stride: Distance of neighbouring patches of `occlusion`, by default half of `patch`; pixels.
        baseline: What replaces pixels for `occlusion`, `integrated-gradients` and `rise`: `mean`, `blur` or `black`; or
            values `(C, H, W)` that are prepared as the images, `(C, 1, 1)` of a colour.
        steps: Of `integrated-gradients`.
        samples: Of `smoothgrad`, 32 by default, and of `rise`, 1000 by default.
        style: `colormap`, `alpha` and `gray_input` of the overlay.

    Raises:
        RequestError: No such method, layer or class; targets of another number than images; the class does not depend on the
            layer; what the model returns holds no class scores; `cam` on a network that does not average its last maps. What
            the model itself raises comes out as it is.
        InputError: An image cannot be read or preprocessed.
        BackwardError: The backward pass failed.

    Example:
        From a photo to the map. `PIL.Image.fromarray(found.overlay[0]).save("map.png")` saves it.

        >>> from fmapviz import load_model
        >>> model = load_model("shapesnet")
        >>> found = cam(model, "sample_images/shapes/star.jpg", target="star")
        >>> found.layer, found.raw.shape, found.map.shape, found.overlay.shape
        ('features', torch.Size([1, 12, 12]), torch.Size([1, 96, 96]), (1, 96, 96, 3))

        A batch, with a class for each image:

        >>> cam(model, torch.randn(2, 3, 96, 96), target=["star", 0]).target
        (3, 0)
    """
    view = _fetch_method(check_type("method", method, str, hint="such as 'gradcam'"))
    check_type("output", output, str | int | None, hint="key or index of the class scores in what the model returns")
    check_scores(check_type("scores", scores, str | None, hint="such as 'sigmoid'"))
    check_type("style", style, Style | None, hint="such as Style(colormap='viridis')")
    changes = _check_changes(Changes(patch=patch, stride=stride, steps=steps, samples=samples), baseline)
    made = make_batch(x, model)
    batch, model = made.values, made.model
    model = replace(model, module=unwrap(model.module))
    layer = _name_of(layer, model.module)
    layer = _AUTO if layer == HEAD and feeds_of(model.module) else layer
    choice = _read_target(target, model.classes, images=len(batch))
    shown = findings_of(model)
    used = Method.of(view, [choice]) if isinstance(view, CamView) else None
    reader, chosen = shown.others.setdefault(("class activation maps", used is not None and used.exact), (ScoreReader(), {}))
    observation = CamObservation({method: used}, layer == _AUTO, chosen) if used else None
    of_input = used is None or used.of_pixels
    plan = Plan(
        observations=(observation or load(view.observe)([view], targets=[choice], automatic=False),),
        targets=(choice,),
        output=None if output is None else str(output),
        scores=scores,
        confidence=check_confidence(confidence),
        changes=changes,
        automatic=layer == _AUTO,
        placed=frozenset({method}),
    )
    places = None if of_input and not plan.located else _places(model, shown, tuple(batch.shape[1:]))
    files = made.files() if plan.located else ()
    learnt = plan.automatic and batch.shape[1:] in chosen
    passes = ObservedPasses(model, shown.layouts, reader)
    wanted = Wanted(plan, () if layer == _AUTO else {layer}, places, files)
    found = passes.observe(batch, wanted)
    if learnt and not found.layers:  # another class may depend on other layers
        chosen.pop(batch.shape[1:], None)
        found = passes.observe(batch, wanted)
    if not found.layers:
        if all(found.missing):
            raise _missing(found, 0, choice)
        reasons = [*found.undrawn.values(), *found.notices[0], "it did not run, or returned no tensor"]
        if of_input:
            raise RequestError(f"no {method} of {choice.label}: {reasons[0]}")
        message = f"no class activation map of {quote(layer)}: {reasons[0]}"
        raise RequestError(message, hint=_OF_LAYERS if plan.automatic else "layer='auto' finds one that has one")
    result = found.layers[-1]  # of a detector the last is of all scales
    targets = [each for each in result.targets or () if each]
    if result.targets and None in result.targets:
        raise _missing(found, result.targets.index(None), choice)
    content = result.drawings[method]
    assert content
    raw = content.tensors["raw"]
    unplaced = places.remarks(result.template.layer) if places else []
    for remark in unplaced:
        warnings.warn(remark, stacklevel=3)
    return ClassActivation(
        raw=raw,
        map=content.tensors["heat"],
        layer=result.template.layer,
        target=tuple(each.index for each in targets),
        score=torch.tensor([each.score for each in targets], device=raw.device),
        _pixels=batch.detach(),
        _preparation=with_axes(model, batch.shape[1:]),
        _style=style or _PLAIN,
        _frame=result.template.frame,
        logit=_all_of([each.logit for each in targets], raw.device),
        probability=_all_of([each.probability for each in targets], raw.device),
        kind=targets[0].kind if targets else "",
        names=tuple(each.name for each in targets),
        notices=(*found.remarks, *unplaced, *dict.fromkeys(chain.from_iterable(found.notices))),
    )


def _check_changes(changes: Changes, baseline: str | Tensor) -> Changes:
    """Return the changes with a baseline, by a word or by values."""
    if isinstance(baseline, Tensor):
        check_changes(changes)
        if not bool(baseline.isfinite().all()):
            raise RequestError("the baseline has NaN or infinite values", hint="finite ones, prepared as the image")
        return GivenBaseline(**vars(changes) | {"baseline": "given values", "values": baseline})
    given = check_type("baseline", baseline, str | Tensor, hint="mean, blur, black, or a tensor of the shape of an image")
    changes = replace(changes, baseline=given)
    check_changes(changes)
    return changes


def _missing(found: BatchResults, image: int, choice: TargetChoice) -> RequestError:
    """Return the error for an image that does not have the requested class, with the reason."""
    own = choice.each[image] if choice.each else choice
    reason = found.missing[image].get(choice.label) or found.notices[image][-1]
    where = f" in image {image}" if len(found.missing) > 1 else ""
    hint = "another target=" if own.rank == 1 else "another target=, or top1"
    if NOT_FINITE in reason:
        hint = "fmapviz.visualize(..., views='maps') names the first layer with such values"
    return RequestError(f"nothing is drawn for {own.label}{where}: {reason}", hint=hint)


def _all_of(numbers: Sequence[float | None], device: torch.device) -> Tensor | None:
    """Return numbers as a tensor; None if there are none."""
    known = [number for number in numbers if number is not None]
    return torch.tensor(known, device=device) if known else None


def _places(model: Model, shown: Findings, shape: tuple[int, ...]) -> Places | None:
    """Return where the maps of a network lie in inputs of a shape; the first call computes it."""
    if shape in shown.fields:
        return Places(lambda: shown.fields[shape], (shape[-2], shape[-1]))
    return PlaceCache(model, shown.fields).at(shape)


@cache
def _fetch_method(method: str) -> View:
    known = {name: view for name, view in registry.views().items() if view.method}
    if method not in known:
        raise RequestError(f"no such method: {quote(method)}", hint=registry.hint_for("view", method, known))
    return known[method]


def _read_target(target: object, classes: Sequence[str], *, images: int) -> TargetChoice:
    """Parse one class for all images, or one for each: numbers and names, also of NumPy and torch."""
    asked = target.tolist() if isinstance(target, torch.Tensor | np.ndarray | np.generic) else target
    if isinstance(asked, str | int):
        return _read_one(asked, classes)
    if not isinstance(asked, Sequence) or isinstance(asked, bytes):
        hint = "such as 'top1', 281, or a list with one for each image"
        if callable(target):
            hint = "of a score of yours fmapviz.capture(model, gradients=True) has gradients, after maps.backward(score)"
        raise RequestError(f"no such target: {quote(target)}", hint=hint)
    if len(asked) != images:
        raise RequestError(
            f"{counted(len(asked), 'target')} for {counted(images, 'image')}", hint="one for each, or a single one for all"
        )
    each = tuple(_read_one(one, classes) for one in asked)
    return TargetChoice(first_few([one.label for one in each]), rank=None, index=None, each=each)


def _read_one(target: object, classes: Sequence[str]) -> TargetChoice:
    target = target.item() if isinstance(target, torch.Tensor | np.generic) else target
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise RequestError(f"no such target: {quote(target)}", hint="such as 'top1', an index, or a name")
    return parse_one(str(target), classes)


def _name_of(layer: object, network: nn.Module) -> str:
    """Return a layer's name; the layer may be the module itself."""
    if isinstance(layer, nn.Module):
        layer = next((name for name, module in network.named_modules() if module is layer and name), layer)
    if not isinstance(layer, str):
        raise RequestError(f"no layer of the network: {quote(type(layer).__name__)}", hint="such as 'layer4', or 'auto'")
    return layer
