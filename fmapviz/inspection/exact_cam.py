"""Find the linear layer behind global average pooling, for which class activation maps are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from fmapviz.places import Place
    from fmapviz.tape import Tape
    from fmapviz.targets import ClassScores
    from fmapviz.values import FeatureMap

# How far the identity may be off: relative to the largest score without its bias, plus what rounding does to the scores.
_TOLERANCE = {torch.float16: (1e-2, 1e-3), torch.bfloat16: (6e-2, 1e-2)}
_USUAL = (1e-3, 1e-6)
_HINT = "gradcam works with every network: --view gradcam"


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
            module: Any = head.layer.module  # of these two kinds, see `fmapviz.places`
            weight = module.weight.detach().flatten(1).float()
            bias = weight.new_zeros(len(weight)) if module.bias is None else module.bias.detach().float()
            return Classifier(head.layer.name, weight, bias, _TOLERANCE.get(module.weight.dtype, _USUAL))
    raise RequestError("cam needs a network whose class scores come from one linear layer", hint=_HINT)


def pooled_maps(maps: Tensor, classifier: Classifier, logits: Tensor) -> Tensor | None:
    """Give the maps that the classifier sees the average of; None if it is not these.

    The average over a class activation map, plus the bias, is the class's score: Zhou et al., *Learning Deep Features for
    Discriminative Localization*, CVPR 2016. So what enters the pooling can be told from what does not.

    Args:
        maps: What some layer returned, `(N, C, h, w)`.
        classifier: See `find_classifier`.
        logits: `(N, K)`.

    Returns:
        float32 `(N, C, h, w)`: the maps, or what a ReLU leaves of them, whichever fits.
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
    """Give the row of weights `(N, C)` of the class of each image.

    Raises:
        RequestError: A row is all zero, so the map would say nothing.
    """
    rows = classifier.weight[list(indices)]
    if bool((rows == 0).all(1).any()):
        raise RequestError(f"cam: the weights of the class in {quote(classifier.name)} are all zero", hint=_HINT)
    return rows


def refuse(layer: str) -> RequestError:
    """Say that the class scores are no averages of a layer's maps."""
    return RequestError(
        f"cam needs a network that averages its last maps before one linear layer: the class scores are no averages of the "
        f"maps of {quote(layer)}",
        hint=_HINT,
    )


class Pooling:
    """The maps of a forward pass whose weighted averages are the class scores.

    Raises:
        RequestError: The scores do not come from a linear layer.
    """

    def __init__(self, tape: Tape, scores: ClassScores) -> None:
        self._tape = tape
        self._logits = scores.values.detach()
        self._classifier = find_classifier(tape.places.heads, self._logits)
        self._maps: dict[int, Tensor | None] = {}

    def maps_of(self, place: Place) -> Tensor | None:
        """Give the maps that the average is taken of, if these are they."""
        if id(place) not in self._maps:
            # Where they have been overwritten, by a ReLU most often, that is what enters the pooling.
            values = place.feature_map.values.detach() if place.intact is None else place.intact
            maps = self._tape.maps(place, values)
            self._maps[id(place)] = pooled_maps(maps, self._classifier, self._logits)
        return self._maps[id(place)]

    def choose(self, maps: Iterable[Place]) -> Place:
        """Find the first of some maps that the average is taken of.

        Raises:
            RequestError: There is none.
        """
        last = ""
        for place in maps:
            if self.maps_of(place) is not None:
                return place
            last = last or place.name
        raise refuse(last)

    def of(self, place: Place, indices: Sequence[int]) -> dict[str, Tensor]:
        """Give the maps, and the weights of a class for each image.

        Raises:
            RequestError: These are not the maps, or a class has no weights.
        """
        maps = self.maps_of(place)
        if maps is None:
            raise refuse(place.name)
        return {"activations": maps, "weights": weights_of(self._classifier, indices)}
