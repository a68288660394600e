"""The meaning of a network's outputs: declared by the user, derived from its end or configuration, or assumed."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from math import isnan

import numpy as np
import pytest
import torch
from torch import nn

from fmapviz.errors import RequestError
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.endings import Endings
from fmapviz.observe.predictions import predict
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.target_scores import indices_of
from fmapviz.observe.targets import TargetChoice, parse

TWO, FOUR = ("benign", "malignant"), ("a", "b", "c", "d")


def logits_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def of(logits, end=lambda z: z, *, linear=False, **known):
    """Return the class scores of a network with this ending, as in a forward pass."""
    last = nn.Linear(logits.shape[-1], logits.shape[-1], bias=False)
    with torch.no_grad():
        last.weight.copy_(torch.eye(logits.shape[-1]))
    with Endings() as endings:
        output = end(last(logits) if linear else logits)
    return class_scores(output, key=None, images=len(logits), head=Head(**known), ending_of=endings.of)


# Logits, the end, what is known; what the scores are, the probabilities by torch, and a word of what is assumed.
MEANINGS = [
    ((3, 4), None, {"names": FOUR}, "softmax", "softmax", "(softmax)"),
    ((3, 4), None, {"configured": "softmax"}, "softmax", "softmax", ""),
    ((3, 4), None, {"configured": "sigmoid"}, "sigmoid", "sigmoid", ""),
    ((3, 4), None, {"configured": "value"}, "value", None, ""),
    ((3, 4), None, {"word": "sigmoid", "configured": "softmax"}, "sigmoid", "sigmoid", ""),
    ((3, 4), None, {"word": "value", "unit": "mm"}, "value", None, ""),
    ((3, 4), nn.Softmax(1), {}, "softmax", "softmax", ""),
    ((3, 4), nn.LogSoftmax(1), {"configured": "sigmoid"}, "softmax", "softmax", ""),
    ((3, 4), nn.Sigmoid(), {"configured": "softmax"}, "sigmoid", "sigmoid", ""),
    ((3, 4), nn.LogSigmoid(), {}, "sigmoid", "sigmoid", ""),
    ((3, 4), nn.Softmax(1), {"word": "value"}, "value", None, ""),
    ((3, 4), nn.Tanh(), {"names": FOUR}, "value", None, "ends with a tanh"),
    ((3, 4), lambda z: z.exp() / z.exp().sum(1, keepdim=True), {}, "softmax", "softmax", "returns probabilities"),
    ((3, 4), lambda z: z[:, None], {}, "softmax", "softmax", "(softmax)"),
    ((3, 4), lambda z: z[:, :, None, None].softmax(1), {}, "softmax", "softmax", ""),
    ((3, 1), None, {}, "value", None, "quantity"),
    ((3, 1), lambda z: z[:, 0], {}, "value", None, "quantity"),
    ((3, 1), None, {"names": ("smile",)}, "sigmoid", "sigmoid", "logit of 'smile'"),
    ((3, 1), None, {"configured": "softmax"}, "value", None, "quantity"),
    ((3, 1), None, {"word": "sigmoid"}, "sigmoid", "sigmoid", ""),
    ((3, 1), nn.Sigmoid(), {}, "sigmoid", "sigmoid", ""),
    ((1, 4), torch.squeeze, {}, "softmax", "softmax", "(softmax)"),
    ((1, 4), lambda z: z.softmax(1).squeeze(), {}, "softmax", "softmax", ""),
    ((1, 1), torch.squeeze, {"names": ("smile",)}, "sigmoid", "sigmoid", "logit of 'smile'"),
    ((1, 1), lambda z: z.sigmoid().squeeze(), {}, "sigmoid", "sigmoid", ""),
]


@pytest.mark.parametrize("meaning", MEANINGS, ids=map(str, range(len(MEANINGS))))
def test_the_kind_of_outputs_is_detected_or_reported(meaning):
    shape, end, known, kind, by, said = meaning
    logits = logits_of(*shape)
    scores = of(logits, end or (lambda z: z), **known)
    assert scores.kind == kind
    expected = {None: None, "softmax": logits.softmax(1), "sigmoid": logits.sigmoid()}[by]
    if expected is None:
        assert scores.probabilities is None
    else:
        torch.testing.assert_close(scores.probabilities, expected)
        assert scores.logits != ("returns probabilities" in said)
        if scores.logits:
            torch.testing.assert_close(scores.values, logits)
    remarks = " ".join(scores.remarks)
    assert (said in remarks) if said else not remarks


@pytest.mark.parametrize("end", [lambda z: z, nn.Sigmoid(), nn.LogSigmoid(), lambda z: z.sigmoid().squeeze(1)])
def test_a_single_output_with_two_names_is_the_network_with_two_outputs(end):
    logits = logits_of(6, 1)
    one, twin = of(logits, end, names=TWO), of(torch.cat([-logits / 2, logits / 2], 1), names=TWO)
    torch.testing.assert_close(one.probabilities, twin.probabilities)
    torch.testing.assert_close(one.values, torch.cat([-logits, logits], 1))
    for wanted in (
        TargetChoice("top1", 1, None),
        TargetChoice("top2", 2, None),
        TargetChoice("benign", None, 0, named=True),
    ):
        assert indices_of(one, wanted) == indices_of(twin, wanted)
    assert [names_of(each) for each in predict(one, most=2)] == [names_of(each) for each in predict(twin, most=2)]


def names_of(predictions):
    return [each.name for each in predictions]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_outputs_of_a_linear_layer_are_logits_for_any_values(count):
    one_hot = torch.eye(max(count, 2))[:, :count]
    scores = of(one_hot, linear=True, configured="softmax" if count > 1 else "sigmoid")
    assert scores.logits
    assert not scores.remarks
    assert scores.probabilities.max() < 0.9


@pytest.mark.parametrize(("outputs", "names"), [(4, 5), (5, 4), (4, 2), (1, 3), (3, 1)])
def test_names_of_another_number_than_outputs_are_never_used(outputs, names):
    scores = of(logits_of(2, outputs), names=tuple("abcdefgh"[:names]))
    assert scores.names == ()
    assert f"{names} class name" in scores.remarks[-1]
    with pytest.raises(RequestError, match=r"^no class 'a': "):
        indices_of(scores, TargetChoice("a", None, 0, named=True))
    assert indices_of(scores, TargetChoice("class0", None, 0)) == [0, 0]


def test_thresholds_between_classes_in_order_are_cumulative_probabilities():
    thresholds = torch.tensor([[2.0, 0.5, -1.0], [-3.0, -4.0, -6.0]])
    scores = of(thresholds, word="ordinal", names=FOUR)
    above = torch.cat([torch.ones(2, 1), thresholds.sigmoid(), torch.zeros(2, 1)], 1)
    torch.testing.assert_close(scores.probabilities, above[:, :-1] - above[:, 1:])
    torch.testing.assert_close(scores.values, scores.probabilities.logit(), rtol=1e-3, atol=1e-3)
    assert scores.names == FOUR
    assert indices_of(scores, TargetChoice("top1", 1, None)) == scores.probabilities.argmax(1).tolist()
    assert not any("out of order" in remark for remark in scores.remarks)
    out_of_order = of(torch.tensor([[-1.0, 1.0]]), word="ordinal")
    assert any("out of order" in remark for remark in out_of_order.remarks)
    assert indices_of(out_of_order, TargetChoice("class1", None, 1)) == [None]


@pytest.mark.parametrize(
    ("shape", "end", "word", "message"),
    [
        ((2, 1), None, "softmax", "always 100 %"),
        ((2, 4), nn.Sigmoid(), "softmax", "ends with a sigmoid"),
        ((2, 4), nn.Softmax(1), "sigmoid", "ends with a softmax"),
        ((2, 4), nn.LogSoftmax(1), "ordinal", "ends with a softmax"),
    ],
)
def test_declarations_that_contradict_the_network_are_refused(shape, end, word, message):
    with pytest.raises(RequestError, match=message):
        of(logits_of(*shape), end or (lambda z: z), word=word)


def test_a_single_mask_counts_the_pixels_above_one_half():
    logits = logits_of(2, 1, 5, 7)
    inside = logits.flatten(1) > 0
    for scores in (of(logits), of(logits, nn.Sigmoid()), of(logits, word="sigmoid")):
        torch.testing.assert_close(scores.shares[:, 0], inside.float().mean(1))
        torch.testing.assert_close(scores.values[:, 0], torch.stack([z.flatten()[z.flatten() > 0].sum() for z in logits]))
    both = of(logits, names=("healthy", "lesion"))
    torch.testing.assert_close(both.shares.sum(1), torch.ones(2))
    torch.testing.assert_close(both.values[:, 0], torch.stack([-z.flatten()[z.flatten() <= 0].sum() for z in logits]))
    depth = of(logits, word="value", unit="m")
    torch.testing.assert_close(depth.outputs[:, 0], logits.flatten(1).mean(1))
    torch.testing.assert_close(depth.values[:, 0], logits.flatten(1).sum(1))


def test_several_masks_are_independent_and_may_overlap():
    logits = torch.full((1, 3, 4, 4), -1.0)
    logits[0, 0], logits[0, 1, :2] = 2.0, 3.0
    scores = of(logits, word="sigmoid", names=("road", "car", "sky"))
    assert scores.shares.tolist() == [[1.0, 0.5, 0.0]]
    assert [str(each) for each in predict(scores, most=3)[0]] == ["road 100.0 % of the pixels", "car 50.0 % of the pixels"]


def test_a_softmax_over_other_things_than_classes_makes_no_probabilities():
    heat = logits_of(2, 3, 4, 4)
    scores = of(heat, lambda z: z.flatten(2).softmax(2).unflatten(2, (4, 4)))
    assert scores.kind == "value"
    assert "softmax over other things than classes" in scores.remarks[0]


def test_a_softmax_of_one_class_is_a_probability():
    logits = logits_of(3, 2)
    scores = of(logits, lambda z: z.softmax(1)[:, 1], names=TWO)
    torch.testing.assert_close(scores.probabilities, logits.softmax(1))
    torch.testing.assert_close(scores.values[:, 1], logits[:, 1] - logits[:, 0], rtol=1e-4, atol=1e-4)


def test_labels_of_several_kinds_do_not_add_up_to_one():
    scores = of(torch.tensor([[3.0, 2.0, -4.0, 0.0]]), nn.Sigmoid(), names=FOUR)
    (found,) = predict(scores, most=4)
    assert [each.name for each in found] == ["a", "b", "d", "c"]
    np.testing.assert_allclose([each.probability for each in found], [0.9526, 0.8808, 0.5, 0.018], atol=1e-4)
    np.testing.assert_allclose([each.logit for each in found], [3, 2, 0, -4], atol=1e-6)


def test_a_regression_has_values_with_a_sign_and_a_unit():
    scores = of(torch.tensor([[-37.25, 4.0]]), word="value", unit="mm", names=("x", "y"))
    (found,) = predict(scores, most=2)
    assert [str(each) for each in found] == ["x -37.25 mm", "y 4 mm"]
    assert found[0].record == {
        "index": 0, "class": "x", "score": -37.25, "probability": None, "logit": None, "scores": "value", "unit": "mm",
    }  # fmt: skip


Named = namedtuple("Named", "features scores")  # noqa: PYI024  networks return such


@dataclass
class Answer:
    features: torch.Tensor
    scores: torch.Tensor


@pytest.mark.parametrize("make", [dict, Named, Answer])
def test_the_part_with_as_many_channels_as_names_holds_the_scores(make):
    output = make(features=torch.zeros(2, 64), scores=logits_of(2, 4))
    scores = class_scores(output, key=None, images=2, head=Head(FOUR))
    assert torch.equal(scores.values, logits_of(2, 4))
    with pytest.raises(RequestError, match="returns several tensors"):
        class_scores(output, key=None, images=2)


def test_the_names_of_a_detector_include_its_background():
    found = [{"labels": torch.tensor([1, 2]), "scores": torch.tensor([0.9, 0.2])}]
    named = class_scores(found, key=None, images=1, head=Head(("none", "cat", "dog"), boxes=3))
    assert [str(each) for each in predict(named, most=3)[0]] == ["cat 90.0 %", "dog 20.0 %"]
    shifted = class_scores(found, key=None, images=1, head=Head(("cat", "dog"), boxes=3))
    assert [str(each) for each in predict(shifted, most=3)[0]] == ["class 1 90.0 %", "class 2 20.0 %"]
    assert "the first class of the network is the background" in shifted.remarks[0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_class_whose_score_is_not_finite_is_skipped_and_its_image_has_no_ranks(bad):
    scores = class_scores(torch.tensor([[1.0, bad, 2.0], [3.0, 1.0, 2.0]]), key=None, images=2, head=Head(("a", "b", "c")))
    assert [indices_of(scores, *parse([word], ())) for word in ("0", "1")] == [
        [0, 0], [None, 1],
    ]  # fmt: skip
    assert [indices_of(scores, TargetChoice(f"top{rank}", rank, None)) for rank in (1, 3)] == [[None, 0], [None, 1]]
    assert scores.numbers(0, 0)["score"] == 1
    assert not isnan(scores.numbers(0, 0)["probability"] or 0)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 4)])
def test_scores_without_a_finite_value_are_no_probabilities_and_no_class(shape):
    scores = class_scores(torch.full(shape, torch.nan), key=None, images=2)
    assert not any("probabilities" in remark for remark in scores.remarks)
    assert [indices_of(scores, *parse([word], ())) for word in ("top1", "0")] == [[None, None]] * 2


def test_the_hint_for_indices_of_classes_names_the_scores_before_them():
    logits = torch.randn(2, 5, 6, 7)
    with pytest.raises(RequestError, match=r"int64 \(2, 6, 7\)") as caught:
        class_scores(logits.argmax(1), key=None, images=2)
    assert caught.value.hint.startswith("integers and booleans, such as of argmax, have no gradient")
    with pytest.raises(RequestError) as caught:
        class_scores(logits[:, 0], key=None, images=2)
    assert "mask[:, None]" in caught.value.hint
