"""What kind of scores a network returns: decided by the user, by its last operation, or by its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from fmapviz.errors import RequestError, quote
from fmapviz.observe.detectors import detected_classes, find_detector
from fmapviz.observe.endings import SOFT

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.core.members import Detector
    from fmapviz.data import Model
Kind = Literal["softmax", "sigmoid", "ordinal", "value", "boxes"]
Given = Literal["logit", "probability", "logarithm"]  # what the network returns

PROBABILITIES = "the network returns probabilities: these are differentiated, not logits"
_LOGITS = (
    "the outputs are taken as logits of classes of which one is right (softmax); scores='sigmoid' if an image may have "
    "several classes, scores='value' if they are quantities"
)
_ALIKE = 2e-2  # by which the sum of probabilities of a half type may miss one
_EXACTLY = 1e-3
_ELSEWHERE = "softmax over other things than classes"
# What such a layer returns is no logit.
_VALUES = {"tanh", "relu", "softplus", "hardtanh", "hardsigmoid", "elu", _ELSEWHERE}


@dataclass(frozen=True, slots=True)
class Head:
    """The kind of a network's scores, as far as it is known before the network runs.

    Attributes:
        names: Of the classes; empty if unknown.
        word: The user's declaration: `softmax`, `sigmoid`, `ordinal` or `value`; empty if there is none.
        unit: The unit of values, to be displayed.
        configured: The kind according to the network's configuration or its published weights; empty if unknown.
        boxes: Number of classes of a detector, with the background; None if unknown.
        detector: The family of detectors that the network is of; None if it is of none that is known.
        confidence: The lowest score of a box that counts; None: the network's own.
    """

    names: tuple[str, ...] = ()
    word: str = ""
    unit: str = ""
    configured: str = ""
    boxes: int | None = None
    detector: Detector | None = None
    confidence: float | None = None

    @classmethod
    def of(cls, model: Model, word: str | None, *, confidence: float | None = None) -> Head:
        """Return the head of a model.

        Args:
            model: The model; user code may declare its scores.
            word: The declaration for this run, which takes precedence.
            confidence: The lowest score of a box that counts in this run.
        """
        said = word or (model.scores if model.own else "")
        kind, _, unit = said.partition(":")
        configured = "" if model.own else model.scores.partition(":")[0]
        known, detector = detected_classes(model.module), find_detector(model.module)
        return cls(model.classes, kind, unit, configured, known, detector, confidence)


UNKNOWN = Head()


@dataclass(frozen=True, slots=True)
class ScoreKind:
    """The kind of the outputs.

    Attributes:
        kind: See `ClassScores`.
        given: The form in which the network returns it.
        ending: The operation by which it ends, as far as that counts.
        mirrored: Whether a single output stands for two classes of opposite signs.
        remarks: Assumptions.
    """

    kind: Kind
    given: Given = "logit"
    ending: str = ""
    mirrored: bool = False
    remarks: tuple[str, ...] = ()


def decide(ending: str, columns: Tensor, head: Head) -> ScoreKind:
    """Decide what the outputs of a network mean.

    Args:
        ending: The operation by which the network ends; see `Ending.kind`.
        columns: The outputs, outside the graph, `(N, K)`, or `(N, K, P)` of pixels.
        head: What is known without them.

    Raises:
        RequestError: The user's declaration contradicts the network.
    """
    count, names = columns.shape[1], len(head.names)
    ending = _effective(ending, columns)
    base = ending.removeprefix("log_") if ending in SOFT else ""
    given: Given = "logarithm" if base != ending and base else "probability" if base else "logit"
    sums_to_one = not ending and columns.ndim == 2 and count > 1 and _is_distribution(columns, _EXACTLY)
    if head.word:
        _check_word(head.word, base, count)
        plain = head.word in {"value", "ordinal"} and not base
        given = "logit" if plain else "probability" if sums_to_one and head.word == "softmax" else given
        return ScoreKind(cast(Kind, head.word), given, ending, mirrored=_is_mirrored(head.word, count, names))
    configured = head.configured if head.configured != "softmax" or count > 1 else ""
    if base or configured:
        if not base and configured == "softmax" and sums_to_one:
            given = "probability"
        kind = base or configured
        return ScoreKind(cast(Kind, kind), given, ending, mirrored=_is_mirrored(kind, count, names))
    if ending in _VALUES:
        remark = (
            f"the network ends with a {ending}: its outputs are shown as values, without probabilities; "
            "scores= says otherwise, such as scores='sigmoid'"
        )
        return ScoreKind("value", mirrored=count == 1 and names == 2, remarks=(remark,))
    if count == 1:
        return _single(columns, head)
    if sums_to_one:
        return ScoreKind("softmax", "probability", remarks=(PROBABILITIES,))
    return ScoreKind("softmax", remarks=(_LOGITS,))


def _single(columns: Tensor, head: Head) -> ScoreKind:
    """Return the assumed kind of a single output."""
    names = len(head.names)
    quantity = "scores='value' if it is a quantity"
    if names in {1, 2}:
        remark = f"the single output is taken as the logit of {quote(head.names[-1])} (sigmoid); {quantity}"
        return ScoreKind("sigmoid", mirrored=names == 2, remarks=(remark,))
    if columns.ndim == 3:
        return ScoreKind("sigmoid", remarks=(f"the single map is taken as the logit of a mask (sigmoid); {quantity}",))
    remark = "the single output is taken as a quantity; scores='sigmoid' if it is the logit of a class"
    return ScoreKind("value", remarks=(remark,))


def _effective(ending: str, columns: Tensor) -> str:
    """Return an ending as it counts: a softmax only if it is over the classes."""
    if ending not in {"softmax", "log_softmax"}:
        return ending
    if columns.shape[1] == 1:  # one of its classes alone
        return ending.replace("softmax", "sigmoid")
    return ending if _is_distribution(columns.exp() if ending == "log_softmax" else columns, _ALIKE) else _ELSEWHERE


def _is_distribution(columns: Tensor, tolerance: float) -> bool:
    """Return True unless a value is negative or a sum differs from one; values that are not finite are ignored."""
    sums = columns.sum(1)
    differs = (sums - 1).abs() > tolerance
    return bool(sums.isfinite().any()) and not bool((columns < 0).any()) and not bool((differs & sums.isfinite()).any())


def _is_mirrored(kind: str, count: int, names: int) -> bool:
    return kind == "sigmoid" and count == 1 and names == 2


def _check_word(word: str, base: str, count: int) -> None:
    """Check the user's declaration of the outputs."""
    other = "leave out scores=, or scores='value' for the outputs as they are"
    if word == "softmax" and count == 1:
        raise RequestError("the softmax of a single output is always 100 %", hint="scores='sigmoid', or scores='value'")
    if base and word != "value" and (word == "softmax") != (base == "softmax"):
        raise RequestError(f"the network ends with a {base}, which contradicts {quote(word)}", hint=other)
