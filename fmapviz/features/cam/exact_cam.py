"""Find the linear layer behind global average pooling, for which class activation maps are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from fmapviz.data import FeatureMap
    from fmapviz.observe.class_scores import ClassScores
    from fmapviz.observe.forward_record import ForwardRecord, GraphPoint

# Allowed error of the identity: relative to the largest score without its bias, plus the rounding of the scores.
_TOLERANCE = {torch.float16: (1e-2, 1e-3), torch.bfloat16: (6e-2, 1e-2)}
_USUAL = (1e-3, 1e-6)
_HINT = "gradcam works with every network"


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A linear layer whose output are the class scores.

    Attributes:
        name: The layer's.
        weight: float `(K, C)`.
        bias: float `(K,)`.
        tolerance: See `_TOLERANCE`.
    """

    name: str
    weight: Tensor
    bias: Tensor
    tolerance: tuple[float, float]


def find_classifier(heads: Sequence[FeatureMap], logits: Tensor) -> Classifier:
    """Find the layer that returned the class scores.

    Args:
        heads: Vectors that layers returned, in the order of execution.
        logits: `(N, K)`.

    Raises:
        RequestError: No linear layer did.
    """
    for head in reversed(heads):
        if head.values.flatten(1).equal(logits.detach()):
            module: Any = head.layer.module  # of these two kinds, see `fmapviz.observe.forward_record`
            weight = module.weight.detach().flatten(1).float()
            bias = weight.new_zeros(len(weight)) if module.bias is None else module.bias.detach().float()
            return Classifier(head.layer.name, weight, bias, _TOLERANCE.get(module.weight.dtype, _USUAL))
    raise RequestError("cam needs a network whose class scores come from one linear layer", hint=_HINT)


def pooled_maps(maps: Tensor, classifier: Classifier, logits: Tensor) -> Tensor | None:
    """Return the maps whose average enters the classifier; None if it is not these.

    The average over a class activation map, plus the bias, is the class's score: Zhou et al., *Learning Deep Features for
    Discriminative Localization*, CVPR 2016. So the maps that enter the pooling can be recognized.

    Args:
        maps: Output of a layer, `(N, C, h, w)`.
        classifier: See `find_classifier`.
        logits: `(N, K)`.

    Returns:
        float32 `(N, C, h, w)`: the maps, or their ReLU, whichever fits.
    """
    if maps.shape[1] != classifier.weight.shape[1]:
        return None
    for entering in (maps.float(), maps.float().relu()):
        own = logits - classifier.bias
        error = (entering.mean((2, 3)) @ classifier.weight.T - own).abs().amax()
        relative, rounding = classifier.tolerance
        allowed = relative * own.abs().amax() + rounding * logits.abs().amax()
        if bool(error <= allowed) and bool(torch.any(entering)):
            return entering
    return None


def weights_of(classifier: Classifier, indices: Sequence[int]) -> Tensor:
    """Return the row of weights `(N, C)` of the class of each image.

    Raises:
        RequestError: A row is all zero, and so would be the map.
    """
    rows = classifier.weight[list(indices)]
    if bool((rows == 0).all(1).any()):
        raise RequestError(f"cam: the weights of the class in {quote(classifier.name)} are all zero", hint=_HINT)
    return rows


def refuse(layer: str) -> RequestError:
    """Return the error that the class scores are not averages of a layer's maps."""
    return RequestError(
        f"cam needs a network that averages its last maps before one linear layer: the class scores are not averages of the "
        f"maps of {quote(layer)}",
        hint=_HINT,
    )


class Pooling:
    """The maps of a forward pass whose weighted averages are the class scores.

    Raises:
        RequestError: The scores do not come from a linear layer.
    """

    def __init__(self, record: ForwardRecord, scores: ClassScores) -> None:
        self._record = record
        if scores.columns is None or scores.signs is None:
            raise RequestError(f"cam needs a score of one output for each class, not {scores.kind} scores", hint=_HINT)
        self._logits, self._signs = scores.columns, scores.signs
        self._classifier = find_classifier(record.vectors, self._logits)
        self._maps: dict[int, Tensor | None] = {}

    def maps_of(self, point: GraphPoint) -> Tensor | None:
        """Return the maps that enter the average pooling, None if it is not these."""
        if id(point) not in self._maps:
            # If they were overwritten, most often by a ReLU, the new values enter the pooling.
            maps = self._record.maps(point, point.values)
            self._maps[id(point)] = pooled_maps(maps, self._classifier, self._logits)
        return self._maps[id(point)]

    def choose(self, maps: Iterable[GraphPoint]) -> GraphPoint:
        """Find the first of some maps that enters the average pooling.

        Raises:
            RequestError: None of them does.
        """
        last = ""
        for point in maps:
            if self.maps_of(point) is not None:
                return point
            last = last or point.name
        raise refuse(last)

    def of(self, point: GraphPoint, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the maps, and the weights of a class for each image.

        Raises:
            RequestError: These are not the maps, or a class has no weights.
        """
        maps = self.maps_of(point)
        if maps is None:
            raise refuse(point.name)
        columns, signs = zip(*(self._signs[index] for index in indices), strict=True)
        weights = weights_of(self._classifier, columns)
        return {"activations": maps, "weights": weights * weights.new_tensor(signs)[:, None]}
