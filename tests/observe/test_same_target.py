"""The same target in another pass: its class, its box, its pixels."""

from __future__ import annotations

import pytest
import torch
from cases import thorough

from fmapviz.errors import RequestError
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.same_target import SameTarget
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.target_scores import indices_of, scores_at
from fmapviz.observe.targets import TOP1, BoxTarget, PixelsTarget, PixelTarget

NAMES = ("sky", "cat", "dog")


def read(output, images, **head):
    return class_scores(output, key=None, images=images, head=Head(**head))


def test_top1_stays_the_class_of_the_unchanged_image():
    of = read(torch.tensor([[0.0, 1.0, 3.0], [5.0, 1.0, 3.0]]), 2)
    copies = read(torch.tensor([[9.0, 1.0, 2.0], [0.0, 8.0, 1.5]]), 2)
    expected = {0: [2.0, 1.5], 1: [9.0, 0.0]}
    for image, index in enumerate(indices_of(of, TOP1)):
        target = SameTarget.of(of, image, index)
        assert target.scores_in(copies).tolist() == expected[image]
        assert torch.equal(target.weights_in(copies), copies.values.softmax(1)[:, index])
        assert target.is_in(copies)


@pytest.mark.parametrize(("word", "weights"), [("value", lambda each: each), ("sigmoid", torch.sigmoid), ("ordinal", None)])
def test_the_weight_is_the_probability_or_the_score_where_there_is_none(word, weights):
    output = torch.tensor([[2.0, -1.0]])
    of = read(output, 1, word=word)
    found = SameTarget.of(of, 0, 1).weights_in(of)
    expected = torch.tensor([[2.0]]).sigmoid() - torch.tensor([[-1.0]]).sigmoid() if word == "ordinal" else None
    assert found.item() == pytest.approx(float(weights(output)[0, 1] if weights else expected))


def pixelwise(seed, images=1):
    return torch.randn(images, 3, 4, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("word", ["", *thorough("sigmoid", "value")])
def test_a_segmentations_class_is_summed_over_the_pixels_of_the_unchanged_image(word):
    first, others = pixelwise(0), pixelwise(1, images=3).requires_grad_()
    of, copies = read(first, 1, word=word), read(others, 3, word=word)
    own = {"": first.argmax(1) == 1, "sigmoid": first[:, 1] > 0, "value": torch.ones(1, 4, 5, dtype=torch.bool)}[word][0]
    target = SameTarget.of(of, 0, 1)
    torch.testing.assert_close(target.scores_in(copies), others[:, 1, own].sum(1))
    (gradient,) = torch.autograd.grad(target.scores_in(copies).sum(), others)
    assert torch.equal(gradient[:, 1], own.float().expand(3, -1, -1))
    assert not gradient[:, [0, 2]].any()
    shown = {"": others.softmax(1), "sigmoid": others.sigmoid(), "value": others}[word]
    torch.testing.assert_close(target.weights_in(copies), shown[:, 1, own].mean(1).detach())
    torch.testing.assert_close(target.scores_in(of), scores_at(of, [1]))


def test_a_pixel_stays_where_it_is():
    of, others = read(pixelwise(0), 1), pixelwise(1, images=2)
    copies = read(others, 2)
    target = SameTarget.of(of, 0, PixelTarget(2, 7))
    assert torch.equal(target.scores_in(copies), others[:, 2, 1, 2])
    assert torch.equal(target.weights_in(copies), others[:, :, 1, 2].softmax(1)[:, 2])


def found(*boxes):
    corners, labels, scores = zip(*boxes, strict=True) if boxes else ((), (), ())
    return {
        "boxes": torch.tensor(corners).float().view(-1, 4),
        "labels": torch.tensor(labels).long(),
        "scores": torch.tensor(scores).float(),
    }


HERE, BESIDE, SHIFTED, FAR = (0, 0, 10, 10), (0, 0, 10, 8), (5, 0, 15, 10), (50, 50, 60, 60)


def test_a_box_is_followed_by_overlap_times_score_among_those_of_its_class():
    of = read([found((HERE, 1, 0.9), (FAR, 1, 0.8))], 1, names=NAMES)
    copies = read(
        [
            found((FAR, 1, 0.99), (SHIFTED, 1, 0.9), (BESIDE, 1, 0.5), (HERE, 2, 0.99)),
            found((FAR, 1, 0.99), (HERE, 2, 0.9)),
            found(),
        ],
        3,
        names=NAMES,
    )
    target = SameTarget.of(of, 0, BoxTarget(1, (0,)))
    assert target.scores_in(copies).tolist() == pytest.approx([0.5, 0, 0])  # 0.8 * 0.5, above 1 / 3 * 0.9
    assert target.weights_in(copies).tolist() == pytest.approx([0.4, 0, 0])
    assert not target.is_in(copies)
    assert target.is_in(of)
    assert target.weights_in(of).tolist() == pytest.approx([0.9])
    every = SameTarget.of(of, 0, BoxTarget(1, (0, 1)))
    assert every.scores_in(copies).tolist() == pytest.approx([0.5 + 0.99, 0.99, 0])
    assert every.weights_in(of).tolist() == pytest.approx([1.7])


def test_the_class_of_a_detector_is_its_best_box():
    of = read([found((FAR, 1, 0.8), (HERE, 1, 0.9))], 1, names=NAMES)
    copies = read([found((FAR, 1, 0.95), (HERE, 1, 0.2))], 1, names=NAMES)
    (index,) = indices_of(of, TOP1)
    assert SameTarget.of(of, 0, index).scores_in(copies).tolist() == pytest.approx([0.2])


def test_boxes_of_unknown_corners_are_followed_by_class():
    plain = {"labels": torch.tensor([1, 2]), "scores": torch.tensor([0.3, 0.9])}
    of = read([plain], 1, names=NAMES)
    assert SameTarget.of(of, 0, BoxTarget(1, (1,))).scores_in(of).tolist() == pytest.approx([0.3])


def test_pixels_of_clips_are_refused():
    of = read(torch.randn(1, 3, 2, 4, 5), 1)
    with pytest.raises(RequestError, match="pixels of clips"):
        SameTarget.of(of, 0, 1)


def test_the_index_in_another_pass_is_that_of_the_same_class_pixels_and_boxes():
    first, others = pixelwise(0), pixelwise(1, images=2)
    of, copies = read(first, 1), read(others, 2)
    target = SameTarget.of(of, 0, 1)
    index = target.index_in(copies, 1)
    assert index == PixelsTarget(1, tuple((first.argmax(1) == 1).flatten().nonzero().flatten().tolist()))
    torch.testing.assert_close(scores_at(copies, [None, index])[1], target.scores_in(copies)[1])
    torch.testing.assert_close(SameTarget.of(copies, 1, index).weights_in(copies), target.weights_in(copies))
    boxes = read([found((HERE, 1, 0.9), (FAR, 1, 0.8))], 1, names=NAMES)
    moved = read([found((FAR, 1, 0.99), (BESIDE, 1, 0.5)), found((FAR, 1, 0.99))], 2, names=NAMES)
    box = SameTarget.of(boxes, 0, BoxTarget(1, (0,)))
    assert [box.index_in(moved, image) for image in (0, 1)] == [BoxTarget(1, (1,)), None]
    assert SameTarget.of(boxes, 0, BoxTarget(1, (0, 1))).index_in(moved, 1) is None
