"""What is found of the maps of one image and one class, and what that says in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fmapviz.features.trust.curves import Curve

ALIKE = 0.9  # a rank correlation at or above it is near 1
_LEFT = 0.5  # of the probability that the blurred image may keep
Sign = Literal["both", "positive", "negative", "zero"]


@dataclass(frozen=True, slots=True)
class Randomised:
    """How alike a map is to that of the same network with other weights.

    Attributes:
        correlation: Spearman's, over the cells; NaN if it is unknown.
        why: Why it is unknown, of the network with random weights; empty if it is known.
    """

    correlation: float = nan
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedMethod:
    """A method, judged by its map of one image.

    Attributes:
        view: Name of the view.
        layer: Name of the feature map; empty of a map of the input.
        curve: Of its order.
        last: With random weights in the last layer.
        all: With random weights in all layers.
        of_class: Whether the method computes another map for another class.
        sign: The signs of its values, `zero` if all are equal.
    """

    view: str
    layer: str
    curve: Curve
    last: Randomised
    all: Randomised
    of_class: bool
    sign: Sign

    @property
    def name(self) -> str:
        """Its view and its layer, for people."""
        return f"{self.view} of {self.layer}" if self.layer else self.view


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The methods of one image and one class, judged.

    Attributes:
        methods: M of them, in the order in which they were requested.
        chance: The curves of random orders.
        agreement: Rank correlations of the maps, float64 `(M, M)`; NaN where one is unknown.
        spread: Standard deviation of the probability in repeated passes of the unchanged image; 0 for most networks.
        last_layer: Name of the last module whose weights the score depends on; empty if there is none.
        measure: What the curves are of, `probability`, `score`, or of a box `overlap x score`.
        missing: Why a view has no map, by its name.
        pixels: Digest of the image, which only its copies share; empty if it is unknown.
    """

    methods: tuple[JudgedMethod, ...]
    chance: tuple[Curve, ...]
    agreement: NDArray[np.float64]
    spread: float
    last_layer: str
    measure: str
    missing: tuple[tuple[str, str], ...] = ()
    pixels: str = ""

    @property
    def whole(self) -> float:
        """The probability in the unchanged image."""
        return float(self.chance[0].deletion[0])

    @property
    def blurred(self) -> float:
        """The probability in the blurred image, in which all cells are removed."""
        return float(self.chance[0].deletion[-1])


def against_chance(value: float, chance: Sequence[float], *, lower: bool) -> str:
    """Compare an area with those of random orders.

    Args:
        value: The area.
        chance: The others.
        lower: Whether a low area is good, as of deletion.

    Returns:
        `better`, `worse` or `within` their range.

    Example:
        >>> against_chance(0.1, [0.2, 0.3], lower=True), against_chance(0.2, [0.2, 0.3], lower=True)
        ('better', 'within')
    """
    low, high = min(chance), max(chance)
    if low <= value <= high:
        return "within"
    return "better" if (value < low) == lower else "worse"


def verdict(method: JudgedMethod, chance: Sequence[Curve]) -> str:
    """Return in words how a method compares with random orders of the same cells."""
    return in_words(
        against_chance(method.curve.deletion_area, [each.deletion_area for each in chance], lower=True),
        against_chance(method.curve.insertion_area, [each.insertion_area for each in chance], lower=False),
    )


def in_words(deletion: str, insertion: str) -> str:
    """Return the verdict of both curves.

    Example:
        >>> in_words("better", "better"), in_words("within", "better"), in_words("worse", "within")
        ('better than chance', 'better than chance by insertion only', 'no better than chance')
    """
    if deletion == insertion == "better":
        return "better than chance"
    if "better" in (deletion, insertion):
        return f"better than chance by {'deletion' if deletion == 'better' else 'insertion'} only"
    return "worse than chance" if deletion == insertion == "worse" else "no better than chance"


def remarks(judgement: Judgement) -> list[str]:
    """Return what must be known of the numbers, a sentence each."""
    found = []
    if judgement.blurred > _LEFT * judgement.whole:
        found.append(
            f"The blurred image still has the {judgement.measure} {judgement.blurred:.3g} of {judgement.whole:.3g}: "
            "removing cells removes little of the evidence, and the curves can tell little."
        )
    if judgement.spread:
        found.append(
            f"The {judgement.measure} varies from pass to pass of the same image: standard deviation {judgement.spread:.2g}."
        )
    methods = judgement.methods
    for names, text in (
        ([each.name for each in methods if not each.of_class], "the map is the same for every class"),
        ([each.name for each in methods if each.sign == "zero"], "the map is empty: all its values are equal"),
        ([each.name for each in methods if each.sign == "negative"], "no value is above zero: nothing is drawn of the map"),
        ([each.name for each in methods if each.sign == "positive"], "no value is below zero: only the order counts"),
        (
            [each.name for each in methods if each.all.correlation >= ALIKE],
            "the map does not depend on what was learnt: with random weights it is nearly the same",
        ),
        (
            [each.name for each in methods if each.of_class and each.last.correlation >= ALIKE > each.all.correlation],
            f"the map hardly depends on the weights of the last layer, {judgement.last_layer}",
        ),
    ):
        if names:
            found.append(f"{', '.join(names)}: {text}.")
    found += [f"{view}: no map, {why}." for view, why in judgement.missing]
    return found + [
        f"With random weights in {layers}, {reason}: nothing is known of {', '.join(names)}."
        for (layers, reason), names in _unknown(methods).items()
    ]


def _unknown(methods: Sequence[JudgedMethod]) -> dict[tuple[str, str], list[str]]:
    """Return the names of methods of which it is unknown how they depend on weights, by the layers and the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in methods:
        for layers, why in (("the last layer", each.last.why), ("all layers", each.all.why)):
            if why:
                found.setdefault((layers, why), []).append(each.name)
    return found
