"""Find what a target means in the scores of each image: a class, boxes or a pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torchvision.ops import box_iou

from fmapviz.core.words import counted
from fmapviz.errors import RequestError, quote
from fmapviz.observe.located import AbsentError
from fmapviz.observe.targets import BoxTarget, PixelsTarget, PixelTarget, no_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fmapviz.core.placement import Box
    from fmapviz.observe.boxes import Boxes
    from fmapviz.observe.class_scores import ClassScores, Index
    from fmapviz.observe.located import Located
    from fmapviz.observe.targets import TargetChoice

NOT_FINITE = "the class scores are not finite"
_UNKNOWN = "several anchors or queries have the same score and the same box: it is unknown which of them the network chose"


def indices_of(scores: ClassScores, choice: TargetChoice, located: Located | None = None) -> list[Index | None]:
    """Return the index of a requested class for each image, or the boxes or the pixel; None if the image does not have it.

    Of equal classes the one with the lower number comes first. An image of which some score is not finite has no ranks. A
    box has no score to differentiate if it is unknown where in the network it comes from; see `Boxes.values`.

    Args:
        scores: Of N images.
        choice: The target.
        located: Where the images lie in their files, for targets that are given by a place.

    Raises:
        RequestError: The network has no class of that number, it is not known which output has that name, or a box or a
            pixel is requested of a network that has none.

    Example:
        >>> from fmapviz.observe.class_scores import class_scores
        >>> from fmapviz.observe.targets import TargetChoice
        >>> logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 2.0]])
        >>> indices_of(class_scores(logits, key=None, images=2), TargetChoice("top2", 2, None))
        [2, 2]
    """
    found = _indices_of(scores, choice, located)
    return [None if index is None or _is_unknown(scores, image, index) else index for image, index in enumerate(found)]


def _indices_of(scores: ClassScores, choice: TargetChoice, located: Located | None) -> list[Index | None]:
    if choice.each:
        return [_indices_of(scores, own, located)[image] for image, own in enumerate(choice.each)]
    if choice.named and not scores.names:
        hint = "; ".join(["use an index, or top1", *scores.remarks[-1:]])
        raise RequestError(f"no class {quote(choice.label)}: the names of the outputs are unknown", hint=hint)
    if choice.box is not None or choice.every or choice.place:
        _check_parts(scores, choice)
        return [_part_or_none(scores, choice, image, located) for image in range(len(scores.present))]
    if choice.index is not None:
        return [*_having(scores, choice.index)]
    rank = cast(int, choice.rank)
    order = scores.ranking.argsort(dim=1, descending=True, stable=True)
    # Classes that the image lacks rank after all others, for any scores.
    absent = (~scores.present).int().gather(1, order)
    order = order.gather(1, absent.argsort(dim=1, stable=True))
    counts = scores.present.sum(1).where(scores.ranking.isfinite().all(1), 0).tolist()
    return [each[rank - 1] if rank <= count else None for each, count in zip(order.tolist(), counts, strict=True)]


def _is_unknown(scores: ClassScores, image: int, index: Index) -> bool:
    """Return True if it is unknown which logit the boxes of a target have."""
    if not scores.boxes or isinstance(index, PixelTarget | PixelsTarget):
        return False
    boxes = scores.boxes[image]
    places = index.boxes if isinstance(index, BoxTarget) else (boxes.labels == index).nonzero().view(-1)[:1].tolist()
    return not boxes.are_known(places)


def why_absent(scores: ClassScores, choice: TargetChoice, image: int, located: Located | None = None) -> str:
    """Return why an image does not have a target.

    Args:
        scores: Of N images.
        choice: The target, for which `indices_of` returns None.
        image: Position of the image.
        located: As of `indices_of`.
    """
    own = choice.each[image] if choice.each else choice
    finite = bool(
        scores.ranking[image].isfinite().all() and (scores.boxes or scores.values[image].detach().isfinite().all())
    )
    share = 0.0 if scores.unknown is None else float(scores.unknown[image])
    if not finite or share == 1:
        return NOT_FINITE
    if _indices_of(scores, own, located)[image] is not None:
        return _UNKNOWN
    reason = _why_absent(scores, own, image, located)
    return f"{reason}, or only where its scores are not finite" if share else reason


def _why_absent(scores: ClassScores, choice: TargetChoice, image: int, located: Located | None) -> str:
    if choice.place:
        try:
            _part(scores, choice, image, located)
        except AbsentError as absent:
            if str(absent):
                return str(absent)
    if scores.kind == "ordinal":
        return "its probability is zero: the thresholds of the network are out of order"
    if scores.of_pixels:
        return "no pixel is predicted as that class"
    if scores.open_ended:
        return _why_no_box(scores.boxes[image] if scores.boxes else None, choice)
    count, what = scores.values.shape[1], "output" if scores.kind == "value" else "class"
    plural = {"output": "outputs", "class": "classes"}[what] if count > 1 else what
    return f"the network has only {count} {plural}"


def _why_no_box(boxes: Boxes | None, choice: TargetChoice) -> str:
    if boxes is None:
        return "the network finds no such box in the image"
    if why := boxes.why_none():
        return why
    if choice.index is not None:
        return boxes.why_not(choice.index)
    what, labels = ("box", boxes.labels) if choice.box is not None else ("class", torch.unique(boxes.labels))
    least = "" if boxes.least is None else f" with a score above {boxes.least:g}"
    return f"the network finds only {counted(len(labels), what)}{least}"


def _check_parts(scores: ClassScores, choice: TargetChoice) -> None:
    """Check that a network has boxes, or scores of pixels, if parts of its output are requested."""
    if len(choice.place) == 2 and scores.pixels:
        if choice.index is not None and not 0 <= choice.index < scores.present.shape[1]:
            raise no_output(choice.index, scores.present.shape[1])
        return
    if scores.kind != "boxes":
        what = "neither boxes nor scores of pixels" if len(choice.place) == 2 else "no boxes"
        raise RequestError(f"no {quote(choice.label)}: the network returns {what}", hint="a class, or top1")
    if choice.place and any(each.corners is None for each in scores.boxes):
        raise RequestError(f"no {quote(choice.label)}: where the network's boxes lie is unknown", hint="box1, or top1")


def _part_or_none(scores: ClassScores, choice: TargetChoice, image: int, located: Located | None) -> Index | None:
    try:
        return _part(scores, choice, image, located)
    except AbsentError:
        return None


def _part(scores: ClassScores, choice: TargetChoice, image: int, located: Located | None) -> BoxTarget | PixelTarget:
    """Return the boxes or the pixel of a target in an image.

    Raises:
        AbsentError: The image has none.
    """
    if len(choice.place) == 2 and scores.pixels:
        return _pixel(scores, choice, image, cast("Located", located))
    boxes = scores.boxes[image]
    labels = boxes.labels.tolist()
    of_class = [at for at, label in enumerate(labels) if choice.index in {None, label}]
    if choice.box is not None:
        found = [choice.box - 1] if choice.box <= len(labels) else []
    elif choice.place:
        found = _placed(boxes, of_class, choice, image, cast("Located", located))
    else:
        found = of_class
    if not found:
        raise AbsentError
    return BoxTarget(labels[found[0]], tuple(found))


def _placed(boxes: Boxes, among: Sequence[int], choice: TargetChoice, image: int, located: Located) -> list[int]:
    """Return the box that overlaps a given one most, or the best one at a pixel.

    Raises:
        AbsentError: None does, or the place is outside of the picture.
    """
    assert boxes.corners is not None
    left, top, right, bottom = (*choice.place, *(1 + at for at in choice.place))[:4]
    wanted = torch.tensor(located.box(image, (left, top, right, bottom))).to(boxes.corners)
    if not among:
        return []
    overlaps = box_iou(wanted[None], boxes.corners[[*among]])[0].tolist()
    if not any(overlaps):
        middles = (boxes.corners[[*among], :2] + boxes.corners[[*among], 2:]) / 2
        nearest = among[int((middles - (wanted[:2] + wanted[2:]) / 2).square().sum(1).argmin())]
        at = ",".join(map(str, located.in_file(image, cast("Box", boxes.corners[nearest].tolist()))))
        raise AbsentError(f"none of the network's boxes overlaps it; the nearest one is box{nearest + 1}, at {at}")
    if len(choice.place) == 2:
        return [at for at, overlap in zip(among, overlaps, strict=True) if overlap][:1]
    return [among[overlaps.index(max(overlaps))]]


def _pixel(scores: ClassScores, choice: TargetChoice, image: int, located: Located) -> PixelTarget:
    assert scores.pixels
    x, y = choice.place
    pixel = scores.pixels.number(located.pixel(image, (x, y), grid=scores.pixels.grid))
    own = scores.pixels.read(image, pixel)
    if not bool(own.values.detach().isfinite().all()):
        raise AbsentError(f"{NOT_FINITE} at that pixel")
    return PixelTarget(int(own.ranking.argmax()) if choice.index is None else choice.index, pixel)


def scores_at(scores: ClassScores, indices: Sequence[Index | None]) -> Tensor:
    """Return the value of one class of each image, to be differentiated; zero, without a gradient, for None.

    Of several boxes or pixels it is the sum.

    Returns:
        `(N)`, a function of the network's output.

    Example:
        >>> from fmapviz.observe.class_scores import class_scores
        >>> scores_at(class_scores(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), key=None, images=2), [1, None])
        tensor([2., 0.])
    """
    if any(isinstance(index, BoxTarget | PixelTarget | PixelsTarget) for index in indices):
        return torch.stack([_value_at(scores, image, index) for image, index in enumerate(indices)])
    device = scores.values.device
    rows = torch.tensor([row for row, index in enumerate(indices) if index is not None], dtype=torch.int64, device=device)
    columns = torch.tensor([index for index in indices if index is not None], dtype=torch.int64, device=device)
    return scores.values.new_zeros(len(indices)).index_put((rows,), scores.values[rows, columns])


def _value_at(scores: ClassScores, image: int, index: Index | None) -> Tensor:
    if isinstance(index, BoxTarget):
        return scores.boxes[image].values[list(index.boxes)].sum()
    if isinstance(index, PixelTarget):
        assert scores.pixels
        return scores.pixels.read(image, index.pixel).values[0, index.index]
    if isinstance(index, PixelsTarget):
        assert scores.pixels
        return scores.pixels.of(image, index).sum()
    return scores.values.new_zeros(()) if index is None else scores.values[image, index]


def _having(scores: ClassScores, index: int) -> list[int | None]:
    count = scores.present.shape[1]
    if 0 <= index < count:
        return [index if there else None for there in scores.present[:, index].tolist()]
    if scores.open_ended and index < 0:
        raise RequestError(f"no class {index}", hint="from 0, or top1")
    if not scores.open_ended:
        raise no_output(index, count)
    return [None] * len(scores.present)
