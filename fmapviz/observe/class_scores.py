"""Interpret a network's output: score, logit, probability, sign and name of each class."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fmapviz.errors import RequestError
from fmapviz.observe.boxes import Boxes, boxes_in
from fmapviz.observe.detectors import is_detection
from fmapviz.observe.endings import Ending
from fmapviz.observe.outputs import no_scores, part_of, scores_in, tensors
from fmapviz.observe.score_kinds import PROBABILITIES, UNKNOWN, Head, decide
from fmapviz.observe.targets import BoxTarget, PixelsTarget, PixelTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmapviz.core.layout import Layout
    from fmapviz.observe.score_kinds import Kind, ScoreKind
Index = int | BoxTarget | PixelTarget | PixelsTarget  # of a class in an image, or some of its boxes, or of its pixels

_UNORDERED = (
    "the network's thresholds are out of order in some images: there the probabilities of its classes do not sum to 100 %"
)
_ROUNDING = 1e-7  # of a probability near 0 or 1


@dataclass(frozen=True, slots=True, eq=False)
class PixelScores:
    """The scores of each pixel of a segmentation.

    Attributes:
        grid: Rows and columns of the scores.
        steps: Distances of two neighbours in a column, and in a row, among all pixels.
        part: Path of the scores in the network's output.
        columns: The network's outputs, `(N, K, P)`.
        before: Likewise, before a softmax or sigmoid by which it ends; None if there is none.
        decided: The kind of the outputs.
        head: See `Head`.
    """

    grid: tuple[int, int]
    steps: tuple[int, int]
    part: str
    columns: Tensor
    before: Tensor | None
    decided: ScoreKind
    head: Head

    def read(self, image: int, pixel: int) -> ClassScores:
        """Return the scores of an image at a pixel, those of a batch of one."""
        one, ends = slice(image, image + 1), self.before
        return _scores_of(
            self.decided, self.columns[one, :, pixel], None if ends is None else ends[one, :, pixel], self.head
        )

    def at(self, pixels: Tensor) -> ClassScores:
        """Return the scores at some pixels of all images, those of a batch of N * P in the order of images.

        Args:
            pixels: Positions, int64 `(P,)`.
        """
        columns, ends = (
            None if each is None else each[:, :, pixels].mT.flatten(0, 1) for each in (self.columns, self.before)
        )
        return _scores_of(self.decided, cast("Tensor", columns), ends, self.head)

    def of(self, image: int, target: PixelsTarget) -> Tensor:
        """Return the differentiated scores of a class at some pixels of an image, `(P,)`."""
        pixels = torch.tensor(target.pixels, device=self.columns.device)
        return self.at(pixels).values[:, target.index].view(-1, len(pixels))[image]

    def predicted(self, image: int, index: int) -> Tensor:
        """Return the positions of the pixels of an image that are predicted as a class, int64 `(P,)`."""
        one, ends = slice(image, image + 1), self.before
        scores = _each_of(self.decided, self.columns[one], None if ends is None else ends[one], self.head)
        return _predicted(scores, self.decided)[0, index].nonzero().view(-1)

    def number(self, at: tuple[int, int]) -> int:
        """Return the position of a row and a column among all pixels."""
        return at[0] * self.steps[0] + at[1] * self.steps[1]


@dataclass(frozen=True, slots=True, eq=False)
class ClassScores:
    """Scores of C classes for N images.

    Attributes:
        values: The differentiated scores, `(N, C)`: the logit of each class, if there is one, else the network's output;
            zero if the image does not have the class. Of a segmentation it is the sum over the pixels that are predicted as
            the class, of quantities over all pixels.
        ranking: Decides top1, top2, ..., `(N, C)`, outside the graph.
        present: Whether the image has the class, with a finite score, bool `(N, C)`.
        outputs: The network's output for the class, `(N, C)`, outside the graph: of the first of two names of one output
            its negative or its complement; of pixels the mean.
        means: Means over the pixels whose sums `values` are, `(N, C)`, outside the graph; None unless each has its own.
        kind: How classes relate: `softmax`, one of them is right; `sigmoid`, each by itself; `ordinal`, they are in order;
            `value`, quantities and no classes; `boxes`, of a detector.
        names: Of the classes; empty if unknown, or if it is not known which belongs to which output.
        unit: The unit of values, to be displayed.
        probabilities: `(N, C)`, outside the graph; None if there are none.
        shares: Share of the pixels that are predicted as the class, `(N, C)`; None unless each pixel has its own scores.
        unknown: Share of the pixels of which some score is not finite, `(N,)`; None unless each pixel has its own scores.
        pixels: The scores of each pixel; None unless each of a picture has its own.
        boxes: Those of each image; empty unless it is a detector.
        logits: Whether `values` are logits.
        width: K, the number of the network's outputs.
        ended: Whether `values` are the logits before a softmax or sigmoid by which the network ends.
        columns: The network's own outputs or the logits before them, `(N, K)`, outside the graph; None of pixels.
        signs: For each class its column, and 1 or -1; None if a class depends on several columns.
        remarks: Assumptions, for the user.
    """

    values: Tensor
    ranking: Tensor
    present: Tensor
    outputs: Tensor
    kind: Kind
    means: Tensor | None = None
    names: tuple[str, ...] = ()
    unit: str = ""
    probabilities: Tensor | None = None
    shares: Tensor | None = None
    unknown: Tensor | None = None
    pixels: PixelScores | None = None
    boxes: tuple[Boxes, ...] = ()
    logits: bool = False
    width: int = 0
    ended: bool = False
    columns: Tensor | None = None
    signs: tuple[tuple[int, int], ...] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def open_ended(self) -> bool:
        """True if there may be classes beyond C: a detector returns only detected ones."""
        return self.kind == "boxes"

    @property
    def of_pixels(self) -> bool:
        """True if each pixel has its own scores, as of a segmentation."""
        return self.shares is not None

    def name(self, index: int) -> str:
        """Return the name of a class; empty if it is unknown."""
        return self.names[index] if index < len(self.names) else ""

    def numbers(self, image: int, index: Index) -> dict[str, Any]:
        """Return the numbers of a class in an image, as arguments of `Target` and `Prediction`; of boxes their sums."""
        if isinstance(index, BoxTarget):
            boxes, places = self.boxes[image], list(index.boxes)
            logit = float(boxes.values.detach()[places].sum()) if boxes.logits and boxes.are_known(places) else None
            return {"score": float(boxes.scores[places].sum()), "logit": logit, "kind": self.kind}
        if isinstance(index, PixelTarget):
            assert self.pixels
            return self.pixels.read(image, index.pixel).numbers(0, index.index)
        if isinstance(index, PixelsTarget):
            assert self.pixels
            return {"score": float(self.pixels.of(image, index).detach().mean()), "kind": self.kind}

        def at(values: Tensor | None) -> float | None:
            number = None if values is None else float(values[image, index])
            return None if number is None or isnan(number) else number

        return {
            "score": float(self.outputs[image, index]),
            "logit": at(self.values.detach() if self.means is None else self.means) if self.logits else None,
            "probability": at(self.probabilities),
            "share": None if self.kind == "value" else at(self.shares),
            "kind": self.kind,
            "unit": self.unit,
        }


def class_scores(
    output: object,
    *,
    key: str | None,
    images: int,
    head: Head = UNKNOWN,
    ending_of: Callable[[Tensor], Ending] = lambda _: Ending(),
    layout: Layout | None = None,
    boxes: Sequence[Boxes] | None = None,
) -> ClassScores:
    """Find the score of each class in a network's output, and its kind.

    The user, the last operation of the network, or its configuration decides what the scores mean, in this order. Otherwise
    it is assumed, and `remarks` reports that.

    Args:
        output: For a batch of N images: of a classifier `(N, K)`, or `(N)` of a single class; of a segmentation
            `(N, K, H, W)` or `(N, K, T, H, W)`; of a detector one dict per image with its `labels` and `scores`. Or a
            container of such. Of a single image the axis of length 1 may be missing: `(K)`, or `()` of a single class.
        key: Which part of a container: a key, an index, or several with dots between them, such as `heads.0`. None for its
            only tensor, the one called `out` or `logits`, or the only one with as many channels as there are names.
        images: N.
        head: See `Head`.
        ending_of: Returns the operation that a tensor comes from.
        layout: Of scores of pixels; None: their classes are assumed to be on the second axis.
        boxes: Those that a detector of a known family found in each image.

    Returns:
        Of a classifier a score for each output; of a single output with two names one for each name, with opposite signs. Of
        a segmentation the sum of a class's values over the pixels predicted as it, ranked by their share. Of a detector the
        score of a class's best box.

    Raises:
        RequestError: There is no such part, several parts are possible, or it holds no scores; or the user's declaration
            contradicts the network.

    Example:
        >>> class_scores({"out": torch.ones(2, 21, 64, 64)}, key=None, images=2).values.shape
        torch.Size([2, 21])
        >>> one = class_scores(torch.tensor([[2.0]]), key=None, images=1, head=Head(("benign", "malignant")))
        >>> one.values, one.probabilities
        (tensor([[-2.,  2.]]), tensor([[0.1192, 0.8808]]))
    """
    if boxes is not None:
        return _of_boxes(boxes, head)
    part = output if key is None else part_of(output, key)
    if isinstance(part, list) and len(part) == images and all(map(is_detection, part)):
        return _of_boxes([boxes_in(each).above(head.confidence) for each in part], head)
    values = scores_in(part, classes=len(head.names))
    real = not values.is_nested and values.layout is torch.strided and values.is_floating_point()
    flat = values.ndim in {1, 2, 4, 5} or (values.ndim == 3 and 1 in values.shape[1:])
    squeezed = images == 1 and values.ndim < 2  # `.squeeze()` drops the axis of a single image
    if not (real and values.numel() > 0 and (squeezed or (flat and len(values) == images))):
        raise no_scores(values, alone=isinstance(output, Tensor))
    ending = ending_of(values)
    before = ending.logits if ending.logits is not None and ending.logits.shape == values.shape else None
    if squeezed:
        values, before = values.reshape(1, -1), None if before is None else before.reshape(1, -1)
    axis, assumed = _axis_of_classes(values, layout)
    columns = _columns(values, axis)
    decided = decide(ending.kind, columns.detach(), head)
    if decided.ending not in {ending.kind, ""}:  # one class of a softmax: the other logits are unknown
        before = None
    ends = None if before is None else _columns(before, axis)
    found = _scores_of(decided, columns, ends, head)
    if values.ndim == 4 and columns.ndim == 3:
        grid, steps = _grid_of(values, axis, layout)
        path = next((path for path, each in tensors(output) if each is values), "")
        found = replace(found, pixels=PixelScores(grid, steps, path, columns, ends, decided, head))
    idle = () if head.confidence is None else ("confidence= has no effect: the network returns no boxes",)
    return replace(found, remarks=(*found.remarks, *assumed, *idle))


def scores_of_pixels(output: object, *, key: str | None, images: int, head: Head) -> Tensor | None:
    """Return the scores in a network's output if each pixel has its own, None otherwise; see `class_scores`."""
    with suppress(RequestError):
        part = output if key is None else part_of(output, key)
        values = (
            None if isinstance(part, list) and any(map(is_detection, part)) else scores_in(part, classes=len(head.names))
        )
        if values is not None and _has_pixels(values) and len(values) == images:
            return values
    return None


def _has_pixels(values: Tensor) -> bool:
    plain = not values.is_nested and values.layout is torch.strided and values.is_floating_point()
    return plain and values.ndim > 3 and sum(size > 1 for size in values.shape[1:]) > 1


def _axis_of_classes(values: Tensor, layout: Layout | None) -> tuple[int, tuple[str, ...]]:
    """Return the axis of classes, and the assumption about it."""
    if not _has_pixels(values):
        return 1, ()
    if layout is not None and len(layout.dims) == values.ndim == len(layout.order) and not layout.refused:
        images, channels = layout.counts
        if images == channels == 1 and layout.grid is not None:
            return layout.order[1], ()
    shown = f"({', '.join(map(str, values.shape))})"
    return 1, (f"the axes of the scores {shown} could not be followed: their second one is taken to be that of the classes",)


def _grid_of(values: Tensor, axis: int, layout: Layout | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return rows and columns of scores of pixels, and the distances of neighbours among all pixels."""
    first, second = (length for at, length in enumerate(values.shape) if at not in {0, axis})
    is_turned = layout is not None and len(layout.order) == values.ndim and layout.order[-2] > layout.order[-1]
    return ((second, first), (1, second)) if is_turned else ((first, second), (second, 1))


def _columns(values: Tensor, axis: int) -> Tensor:
    """Return float `(N, K)`, or `(N, K, P)` of pixels, whose classes lie along an axis."""
    values = values if axis == 1 else values.movedim(axis, 1)
    values = values if values.dtype in {torch.float32, torch.float64} else values.float()
    if values.ndim == 1:
        return values[:, None]
    if values.ndim == 3:
        return values.flatten(1)
    return values.flatten(2).squeeze(2) if values.ndim > 2 else values


# --- what follows for each class


def _scores_of(decided: ScoreKind, columns: Tensor, before: Tensor | None, head: Head) -> ClassScores:
    scores = _each_of(decided, columns, before, head)
    return _of_pixels(scores, decided) if columns.ndim == 3 else scores


def _each_of(decided: ScoreKind, columns: Tensor, before: Tensor | None, head: Head) -> ClassScores:
    """Return the scores of all classes; of pixels `(N, C, P)`."""
    plain = columns.detach()
    values, probabilities = _differentiated(decided, columns, before)
    logits = decided.kind != "value" and not (decided.given == "probability" and values is columns)
    signs: tuple[tuple[int, int], ...] | None = tuple((column, 1) for column in range(columns.shape[1]))
    raw = values.detach()
    outputs = plain
    if decided.kind == "ordinal":
        signs, (values, probabilities) = None, _ordinal(values)
        outputs = probabilities
    elif decided.mirrored:
        signs = ((0, -1), (0, 1))
        values = torch.cat([-values, values], 1)
        mirrored = {"probability": 1 - plain, "logarithm": (-plain.expm1()).log(), "logit": -plain}[decided.given]
        outputs = torch.cat([mirrored, plain], 1)
        probabilities = None if probabilities is None else torch.cat([1 - probabilities, probabilities], 1)
    if decided.given == "probability" and not logits and decided.kind != "value" and not decided.remarks:
        decided = replace(decided, remarks=(PROBABILITIES,))
    unordered = decided.kind == "ordinal" and bool((plain[:, 1:] > plain[:, :-1]).any())
    names, remark = _names_of(values.shape[1], columns.shape[1], head, mapped=decided.kind == "ordinal" or decided.mirrored)
    ranking = values.detach()
    scores = ClassScores(
        values,
        ranking,
        ranking.isfinite() if decided.kind != "ordinal" else cast(Tensor, probabilities) > 0,
        outputs,
        decided.kind,
        names=names,
        unit=head.unit if decided.kind == "value" else "",
        probabilities=probabilities,
        logits=logits,
        width=columns.shape[1],
        ended=before is not None and decided.kind != "value",
        columns=raw,
        signs=signs,
        remarks=tuple(filter(None, (*decided.remarks, _UNORDERED if unordered else "", remark))),
    )
    if decided.kind == "ordinal":
        scores = replace(scores, ranking=cast(Tensor, probabilities))
    return scores


def _differentiated(decided: ScoreKind, columns: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the differentiated score of each output, and its probability, outside the graph."""
    plain = columns.detach()
    if decided.kind == "value":
        return columns, None
    softmax = decided.kind == "softmax"
    if decided.given == "logit":
        # For segmentations the share of the pixels is more useful, and costs nothing.
        return columns, None if columns.ndim == 3 else plain.softmax(1) if softmax else plain.sigmoid()
    if decided.given == "probability":
        logits = columns if softmax else columns.logit(eps=_ROUNDING)
        return logits if before is None else before, plain
    low = columns.clamp(max=-_ROUNDING)
    logits = columns if softmax else low - (-low.expm1()).log()
    return logits if before is None else before, plain.exp()


def _ordinal(thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-odds and the probabilities of classes in order, from K logits of exceeding a threshold.

    The probability of exceeding threshold k is `sigmoid(logit[k])`, as in Cao et al., *Rank consistent ordinal regression
    for neural networks*, 2020. Those of the classes are the differences; where the thresholds are out of order, zero.

    Args:
        thresholds: `(N, K)` or `(N, K, P)`.

    Returns:
        `(N, K + 1)` or `(N, K + 1, P)` each.
    """
    upper, lower = thresholds[:, :-1], thresholds[:, 1:]
    gap = (upper - lower).clamp(min=torch.finfo(thresholds.dtype).tiny)
    logarithms = logsigmoid(upper) + logsigmoid(-lower) + (-torch.expm1(-gap)).log()
    complements = torch.logaddexp(logsigmoid(-upper), logsigmoid(lower))
    odds = torch.cat([-thresholds[:, :1], logarithms - complements, thresholds[:, -1:]], 1)
    exceeding = thresholds.detach().sigmoid()
    edge = torch.ones_like(exceeding[:, :1])
    return odds, (torch.cat([edge, exceeding], 1) - torch.cat([exceeding, 0 * edge], 1)).clamp(min=0)


def _names_of(classes: int, outputs: int, head: Head, *, mapped: bool) -> tuple[tuple[str, ...], str]:
    """Return the names of the classes, and a remark if their number does not fit."""
    names = len(head.names)
    if names in {0, classes}:
        return head.names, ""
    why = ""
    if names == outputs + 1 and not mapped:
        why = "; scores='ordinal' if each output is a threshold between two classes in order"
    elif names == outputs - 1:
        why = "; if one output is the background, it needs a name too"
    plural = "" if outputs == 1 else "s"
    unknown = "the order of names and outputs is unknown, and no name is used"
    return (), f"{names} class names for {outputs} output{plural}: {unknown}{why}"


def _of_pixels(scores: ClassScores, decided: ScoreKind) -> ClassScores:
    """Return the sum of each class of `(N, C, P)` over the pixels that are predicted as it."""
    own = _predicted(scores, decided)
    counts = own.sum(2)

    def mean(values: Tensor) -> Tensor:
        return values.where(own, 0).sum(2) / counts.clamp(min=1)

    means = mean(scores.values.detach())
    same = scores.outputs.data_ptr() == scores.values.data_ptr()
    return replace(
        scores,
        values=scores.values.where(own, 0).sum(2),
        means=means,
        ranking=means if decided.kind == "value" else counts / own.shape[2],
        present=(counts > 0) & means.isfinite(),
        outputs=means if same else mean(scores.outputs),
        probabilities=None if scores.probabilities is None else mean(scores.probabilities),
        shares=counts / own.shape[2],
        unknown=1 - scores.values.detach().isfinite().all(1).float().mean(1),
        columns=None,
        signs=None,
    )


def _predicted(scores: ClassScores, decided: ScoreKind) -> Tensor:
    """Return which pixels are predicted as each class, bool `(N, C, P)`."""
    plain = scores.values.detach().nan_to_num(nan=-torch.inf)
    if decided.kind == "value":
        own = torch.ones_like(plain, dtype=torch.bool)
    elif decided.mirrored:
        positive = plain[:, 1:] > 0
        own = torch.cat([~positive, positive], 1)
    elif decided.kind == "sigmoid":
        own = plain > 0
    else:
        winners = scores.ranking.nan_to_num(nan=-torch.inf).argmax(1, keepdim=True)
        own = winners == torch.arange(plain.shape[1], device=plain.device)[:, None]
    return own & (plain > -torch.inf)


# --- detectors


def _of_boxes(found: Sequence[Boxes], head: Head) -> ClassScores:
    best = [_best_boxes(each) for each in found]
    classes = 1 + max((label for each in best for label in each), default=0)
    values = found[0].values.new_zeros(len(found), classes)
    outputs = torch.zeros_like(values)
    present = torch.zeros_like(values, dtype=torch.bool)
    for row, (each, boxes) in enumerate(zip(found, best, strict=True)):
        labels, places = list(boxes), list(boxes.values())
        values[row, labels] = each.values[places]
        outputs[row, labels] = each.scores[places].to(outputs)
        present[row, labels] = True
    names, remarks = head.names, tuple[str, ...]()
    if names and head.boxes not in {None, len(names)}:
        known = "; the first class of the network is the background, and needs a name too" * (head.boxes == len(names) + 1)
        remarks = (f"{len(names)} class names for {head.boxes} classes of the detector: none is used{known}",)
        names = ()
    return ClassScores(
        values,
        outputs,
        present,
        outputs,
        "boxes",
        names=names,
        boxes=tuple(found),
        logits=all(each.logits for each in found),
        width=classes,
        remarks=remarks,
    )


def _best_boxes(found: Boxes) -> dict[int, int]:
    """Return the position of each label's best box, the first of equal ones."""
    best = dict[int, int]()
    for place, label in enumerate(found.labels.tolist()):
        best.setdefault(label, place)
    return best
