"""Parse the classes to differentiate, and find their scores in a network's output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from fmapviz.core.errors import RequestError, quote, suggest
from fmapviz.inspection.hooks import tensors

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested class: by its rank among the scores, or by its index.

    Attributes:
        label: In names of pictures: `top1`, `class3`, `star`.
        rank: From 1, the highest score; None if `index` is given.
        index: Among the classes; None if `rank` is given.
        each: Another class for each image of a batch; then neither of these counts.
    """

    label: str
    rank: int | None
    index: int | None
    each: tuple[Wanted, ...] = ()


TOP1 = Wanted("top1", rank=1, index=None)
_RANKS = re.compile(r"top(\d{1,4})", re.IGNORECASE)
INDEX = re.compile(r"-?\d{1,9}")  # of a class; a negative one is refused


@dataclass(frozen=True, slots=True, eq=False)
class ClassScores:
    """Scores of K classes for N images.

    Attributes:
        values: The score of each class, `(N, K)`, any range, a function of the network's output; zero if the image does not
            have the class.
        ranking: Decides top1, top2, ..., `(N, K)`, outside the graph.
        present: Whether the image has the class, bool `(N, K)`.
        open_ended: Whether there may be classes beyond K: a detector returns only what it found.
        of_pixels: Whether each pixel has its own scores, as of a segmentation.
        logits: Position in the graph of the logits before a softmax or sigmoid; None if `values` are logits.
    """

    values: Tensor
    ranking: Tensor
    present: Tensor
    open_ended: bool = False
    of_pixels: bool = False
    logits: GradientEdge | None = None

    @property
    def probable(self) -> bool:
        """Whether these look like probabilities: none below zero, and their sum is one."""
        sums = self.ranking.sum(1)
        like = self.ranking.shape[1] > 1 and not self.of_pixels and not self.open_ended
        return like and bool((self.ranking >= 0).all()) and bool((sums - 1).abs().max() < 1e-3)


def parse(texts: Sequence[str], classes: Sequence[str]) -> tuple[Wanted, ...]:
    """Parse classes as they are typed.

    Args:
        texts: Each the name of a class, which may have commas in it, or a list with commas of `topK`, which means top1 to
            topK, of numbers, which are always indices, and of names. Upper and lower case differ only where two names do.
        classes: The names, by index; empty if they are unknown.

    Returns:
        In the order of the texts, each class once.

    Raises:
        RequestError: No such class, several of this name, or nothing asked for.

    Example:
        >>> [each.label for each in parse(["top2,star", "0"], ["circle", "star"])]
        ['top1', 'top2', 'star', 'class0']
    """
    wanted: dict[tuple[int | None, int | None], Wanted] = {}
    for text in texts:
        is_name = "," in text and _called(text, classes)
        for part in [text] if is_name else filter(None, map(str.strip, text.split(","))):
            for each in _read_one(part, classes):
                wanted.setdefault((each.rank, each.index), each)
    if not wanted:
        raise RequestError(f"no class in the list: {quote(','.join(texts))}", hint="for example top1, or an index")
    return tuple(wanted.values())


def canonical(texts: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Return classes as they are typed, with names spelled as the model does. `parse` must accept them.

    Example:
        >>> canonical(["Top2, STAR", "0"], ["circle", "star"])
        ('top2,star', '0')
    """
    return tuple(
        _spelled(text, classes)
        if "," in text and _called(text, classes)
        else ",".join(_spelled(part, classes) for part in map(str.strip, text.split(",")) if part)
        for text in texts
    )


def class_scores(output: object, *, key: str | None, images: int) -> ClassScores:
    """Find the score of each class in a network's output.

    Args:
        output: For a batch of N images: of a classifier `(N, K)`, or `(N)` of a single class; of a segmentation
            `(N, K, H, W)` or `(N, K, T, H, W)`; of a detector one dict per image with its `labels` and `scores`. Or a
            container of such.
        key: Which part of a container: a key, an index, or several with dots between them, such as `heads.0`. None for its
            only tensor, or the one called `out` or `logits`.
        images: N.

    Returns:
        Of a classifier its output. Of a segmentation the mean of a class's values over the pixels predicted as it, ranked by
        their share. Of a detector the score of a class's best box.

    Raises:
        RequestError: There is no such part, none that can be told from the others, or no scores in it.

    Example:
        >>> class_scores({"out": torch.ones(2, 21, 64, 64)}, key=None, images=2).values.shape
        torch.Size([2, 21])
    """
    part = output if key is None else part_of(output, key)
    if isinstance(part, list) and len(part) == images and all(map(is_detection, part)):
        return _of_detections(part)
    values = _only_tensor(part)
    real = not values.is_nested and values.layout is torch.strided and values.is_floating_point()
    if not (real and values.ndim in {1, 2, 4, 5} and len(values) == images and values.numel() > 0):
        raise _no_scores(values)
    logits = _before_softmax(values) if values.ndim == 2 else None
    values = values if values.dtype in {torch.float32, torch.float64} else values.float()
    values = values[:, None] if values.ndim == 1 else values.flatten(2).squeeze(2) if values.ndim > 2 else values
    if values.ndim == 3:
        return _of_pixels(values)
    return ClassScores(values, values.detach(), torch.ones_like(values, dtype=torch.bool), logits=logits)


def part_of(output: object, key: str) -> Any:
    """Return a part of a network's output.

    Args:
        output: A dict, tuple, list, dataclass or an object with attributes; these within each other.
        key: A key, an index, or several with dots between them; a key with dots in it may also be a single step.

    Raises:
        RequestError: There is nothing under it.

    Example:
        >>> part_of({"heads": [1, 2]}, "heads.1")
        2
    """
    # Any: a network may return anything.
    entries = _entries(output)
    if key in entries:
        return entries[key]
    step, _, rest = key.partition(".")
    if step in entries and rest:
        return part_of(entries[step], rest)
    known = list(entries)
    listing = (
        f"there are: {', '.join(map(quote, known[:_LISTED]))}" if known else "omit output=: the output is a single tensor"
    )
    raise RequestError(f"the network returns nothing under {quote(key)}", hint=suggest(key, known) or listing)


def indices_of(scores: ClassScores, wanted: Wanted) -> list[int | None]:
    """Return the index of a requested class for each image; None if the image does not have it.

    Of equal classes the one with the lower number comes first, and NaN comes last.

    Raises:
        RequestError: The network has no class of that number.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 2.0]])
        >>> indices_of(class_scores(logits, key=None, images=2), Wanted("top2", 2, None))
        [2, 2]
    """
    if wanted.each:
        return [indices_of(scores, own)[image] for image, own in enumerate(wanted.each)]
    if wanted.index is not None:
        return _having(scores, wanted.index)
    rank = cast(int, wanted.rank)
    order = scores.ranking.nan_to_num(nan=-torch.inf).argsort(dim=1, descending=True, stable=True)
    # What the image does not have comes after all that it has, whatever the scores.
    absent = (~scores.present).int().gather(1, order)
    order = order.gather(1, absent.argsort(dim=1, stable=True))
    counts = scores.present.sum(1).tolist()
    return [each[rank - 1] if rank <= count else None for each, count in zip(order.tolist(), counts, strict=True)]


def scores_at(scores: ClassScores, indices: Sequence[int | None]) -> Tensor:
    """Return the score of one class of each image; zero, without a gradient, for None.

    Returns:
        `(N)`, a function of the network's output.

    Example:
        >>> scores_at(class_scores(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), key=None, images=2), [1, None])
        tensor([2., 0.])
    """
    device = scores.values.device
    rows = torch.tensor([row for row, index in enumerate(indices) if index is not None], dtype=torch.int64, device=device)
    columns = torch.tensor([index for index in indices if index is not None], dtype=torch.int64, device=device)
    return scores.values.new_zeros(len(indices)).index_put((rows,), scores.values[rows, columns])


def before_softmax(scores: ClassScores, indices: Sequence[int | None]) -> tuple[GradientEdge, Tensor] | None:
    """Return where to begin to differentiate logits, if the network applies a softmax or sigmoid to them.

    Returns:
        The position of the logits in the graph, and the gradient there of one logit of each image, `(N, K)`; None if the
        scores are logits.
    """
    if scores.logits is None:
        return None
    chosen = torch.zeros_like(scores.ranking)
    for row, index in enumerate(indices):
        if index is not None:
            chosen[row, index] = 1
    return scores.logits, chosen


def is_detection(each: object) -> bool:
    """Return True for the output of a detector for one image: a dict of `labels` `(B,)` and `scores` `(B,)`."""
    labels, scores = (each.get(name) if isinstance(each, dict) else None for name in ("labels", "scores"))
    if not isinstance(labels, Tensor) or not isinstance(scores, Tensor):
        return False
    return labels.ndim == 1 and labels.shape == scores.shape and scores.is_floating_point()


def _read_one(text: str, classes: Sequence[str]) -> list[Wanted]:
    if match := _RANKS.fullmatch(text):
        if not int(match[1]):
            raise RequestError(f"no such class: {quote(text)}", hint="ranks begin at top1")
        return [Wanted(f"top{rank}", rank, None) for rank in range(1, int(match[1]) + 1)]
    if INDEX.fullmatch(text):
        index = int(text)
        if index < 0 or (classes and index >= len(classes)):
            raise RequestError(f"no such class: '{index}'", hint=f"from 0 to {len(classes) - 1}" if classes else "from 0")
        return [Wanted(f"class{index}", None, index)]
    return [_named(text, classes)]


def _named(name: str, classes: Sequence[str]) -> Wanted:
    if not classes:
        raise RequestError(f"no such class: {quote(name)}; class names are unknown", hint="use an index, or top1")
    indices = _called(name, classes)
    if not indices:
        hint = suggest(name, classes) or f"a name, a number from 0 to {len(classes) - 1}, or top1"
        raise RequestError(f"no such class: {quote(name)}", hint=hint)
    if len(indices) > 1:
        raise RequestError(
            f"several classes are named {quote(name)}: {', '.join(map(str, indices))}", hint="choose an index"
        )
    index = indices[0]
    # A class whose name looks like the label of another's number must not share it: pictures are named after labels.
    label = f"class{index}" if re.fullmatch(r"class\d+", classes[index]) else classes[index]
    return Wanted(label, None, index)


def _spelled(text: str, classes: Sequence[str]) -> str:
    if _RANKS.fullmatch(text):
        return text.lower()
    indices = [] if INDEX.fullmatch(text) else _called(text, classes)
    return classes[indices[0]] if indices else text


def _called(name: str, classes: Sequence[str]) -> list[int]:
    exactly = [index for index, known in enumerate(classes) if known == name]
    return exactly or [index for index, known in enumerate(classes) if known.casefold() == name.casefold()]


# Any: a network may return anything.
def _entries(output: object) -> dict[str, Any]:
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, list | tuple):
        named = zip(getattr(output, "_fields", ()), output, strict=False)
        return {str(position): value for position, value in enumerate(output)} | dict(named)
    if is_dataclass(output):
        return {entry.name: getattr(output, entry.name) for entry in fields(output)}
    own = {} if isinstance(output, Tensor) else getattr(output, "__dict__", {})
    return {name: value for name, value in own.items() if not name.startswith("_")}


def _only_tensor(output: object) -> Tensor:
    found = list(tensors(output))
    if len(found) == 1:
        return found[0][1]
    entries = _entries(output)
    for name in ("out", "logits"):
        if isinstance(values := entries.get(name), Tensor):
            return values
    if not found:
        raise _no_scores(output)
    listing = ", ".join(f"{part} {_described(values)}" for part, values in found[:_LISTED])
    keys = ", ".join(re.sub(r"[\[\]'.]+", ".", part).strip(".") for part, _ in found[:_LISTED])
    raise RequestError(f"the network returns several tensors: {listing}", hint=f"output=KEY chooses one: {keys}")


_LISTED = 10  # parts named at most, of a network that returns many


def _before_softmax(values: Tensor) -> GradientEdge | None:
    node = values.grad_fn
    if node is None or node.name() not in _SOFTMAXES:
        return None
    source, number = node.next_functions[0]
    return GradientEdge(source, number) if source else None


_SOFTMAXES = {"SoftmaxBackward0", "LogSoftmaxBackward0", "SigmoidBackward0"}


def _no_scores(output: object) -> RequestError:
    hint = "output=KEY chooses a tensor of logits, (N, K) or (N, K, H, W) for N images"
    return RequestError(f"no class scores in the network's output: {_described(output)}", hint=hint)


def _described(output: object) -> str:
    if not isinstance(output, Tensor):
        return quote(type(output).__name__)
    if output.is_nested or output.layout is not torch.strided:
        return "a nested tensor" if output.is_nested else "a sparse tensor"
    kind = "" if output.is_floating_point() else f"{str(output.dtype).removeprefix('torch.')} "
    return f"{kind}{tuple(output.shape)}"


def _of_pixels(values: Tensor) -> ClassScores:
    """Return the mean of each class of `(N, K, P)` over the pixels where it has the largest value."""
    winners = values.detach().nan_to_num(nan=-torch.inf).argmax(1, keepdim=True)
    own = winners == torch.arange(values.shape[1], device=values.device)[:, None]
    counts = own.sum(2)
    means = values.where(own, 0).sum(2) / counts.clamp(min=1)
    return ClassScores(means, counts / values.shape[2], counts > 0, of_pixels=True)


def _of_detections(found: Sequence[Mapping[str, Tensor]]) -> ClassScores:
    best = [_best_boxes(each) for each in found]
    scores = [each["scores"].float() for each in found]
    classes = 1 + max((label for each in best for label in each), default=0)
    values = scores[0].new_zeros(len(found), classes)
    present = torch.zeros_like(values, dtype=torch.bool)
    for row, (own, boxes) in enumerate(zip(scores, best, strict=True)):
        values[row, list(boxes)] = own[list(boxes.values())]
        present[row, list(boxes)] = True
    return ClassScores(values, values.detach(), present, open_ended=True)


def _best_boxes(found: Mapping[str, Tensor]) -> dict[int, int]:
    """Return the position of each label's best box, the first of equal ones."""
    labels, best = found["labels"].tolist(), dict[int, int]()
    for place in found["scores"].nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True).tolist():
        best.setdefault(int(labels[place]), place)
    return best


def _having(scores: ClassScores, index: int) -> list[int | None]:
    count = scores.present.shape[1]
    if 0 <= index < count:
        return [index if there else None for there in scores.present[:, index].tolist()]
    if scores.open_ended and index < 0:
        raise RequestError(f"no class {index}", hint="from 0, or top1")
    if not scores.open_ended:
        raise RequestError(f"no class {index}: the network has {count} outputs", hint=f"from 0 to {count - 1}, or top1")
    return [None] * len(scores.present)
