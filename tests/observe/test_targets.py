"""Targets select the typed classes, whose scores are those of the network."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import one_hot
from torchvision.models import ResNet18_Weights, detection, segmentation
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from fmapviz.errors import RequestError
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.target_scores import indices_of, scores_at
from fmapviz.observe.targets import TargetChoice, canonical, parse

CLASSES = (
    "circle",
    "square",
    "star",
    "tench, Tinca tinca",
    "Star",
    "7",
    "crane",
    "crane",
    "class2",
    "top1",
    "ring, no hole",
)
IMAGENET_CLASSES = ResNet18_Weights.DEFAULT.meta["categories"]


def labels(texts, classes=CLASSES):
    return [(each.label, each.rank, each.index) for each in parse(texts, classes)]


def random(*shape, seed=0, **kind):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **kind)


def scores_of(output, key=None, images=2):
    return class_scores(output, key=key, images=images)


def top(rank):
    return TargetChoice(f"top{rank}", rank, None)


def number(index):
    return TargetChoice(f"class{index}", None, index)


# --- typed targets


def test_ranks_numbers_and_names_are_distinguished():
    assert labels(["top3"]) == [("top1", 1, None), ("top2", 2, None), ("top3", 3, None)]
    assert labels(["7"]) == [("class7", None, 7)]  # always an index, though a class is called so
    assert labels(["circle", " square "]) == [("circle", None, 0), ("square", None, 1)]
    assert labels(["square, 3,top1 ,,"]) == [("square", None, 1), ("class3", None, 3), ("top1", 1, None)]
    assert labels(["007", "top2"], ()) == [("class7", None, 7), ("top1", 1, None), ("top2", 2, None)]


def test_a_name_is_matched_exactly_first():
    assert labels(["star"]) == [("star", None, 2)]
    assert labels(["Star"]) == [("Star", None, 4)]
    assert labels(["CIRCLE,Square"]) == [("circle", None, 0), ("square", None, 1)]


def test_a_name_may_have_commas():
    assert labels(["tench, Tinca tinca"]) == [("tench, Tinca tinca", None, 3)]
    assert labels(["Tench, tinca TINCA", "top1"]) == [("tench, Tinca tinca", None, 3), ("top1", 1, None)]


@pytest.mark.parametrize(
    ("form", "every", "place"), [("{}*", True, ()), ("{}@3,4", False, (3.0, 4.0)), ("{} @3, 4", False, (3, 4))]
)
@pytest.mark.parametrize("name", ["tench, Tinca tinca", "a,b,,c", "b, c: d"])
def test_a_name_with_commas_may_have_all_its_boxes_and_a_place(name, form, every, place):
    classes = ["other", name]
    (found,) = parse([form.format(name)], classes)
    assert (found.index, found.every, found.place) == (1, every, place)
    assert parse(canonical([form.format(name)], classes), classes) == (found,)


def test_repeated_targets_are_dropped():
    assert labels(["top1,top2,2", "star,top1", "2,circle,0"]) == [
        ("top1", 1, None),
        ("top2", 2, None),
        ("class2", None, 2),
        ("circle", None, 0),
    ]


def test_no_two_classes_share_a_label():
    everything = parse([*(name for name in CLASSES if name != "crane"), "top5", *map(str, range(len(CLASSES)))], CLASSES)
    assert len({each.label for each in everything}) == len(everything) == len(CLASSES) + 5


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        (["squere"], "no such class: 'squere'", "did you mean 'square'?"),
        (["circle,xyz"], "no such class: 'xyz'", f"there are: {', '.join(CLASSES)}; or a number from 0 to 10, or top1"),
        (["STAR"], "several classes are named 'STAR': 2, 4", "choose an index"),
        (["crane"], "several classes are named 'crane': 6, 7", "choose an index"),
        (["11"], "no such class: '11'", "from 0 to 10"),
        (["-1"], "no such class: '-1'", "from 0 to 10"),
        (["top0"], "no such class: 'top0'", "ranks begin at top1"),
        (["top-1"], "no such class: 'top-1'", "did you mean 'top1'?"),
        (
            ["99999999999"],
            "no such class: '99999999999'",
            f"there are: {', '.join(CLASSES)}; or a number from 0 to 10, or top1",
        ),
        ([], "no class in the list: ''", "for example top1, or an index"),
        ([" ", ","], "no class in the list: ' ,,'", "for example top1, or an index"),
        (
            ["a\x1b[31m"],
            r"no such class: 'a\x1b[31m'",
            f"there are: {', '.join(CLASSES)}; or a number from 0 to 10, or top1",
        ),
    ],
)
def test_a_value_that_is_no_class_is_an_error(texts, message, hint):
    with pytest.raises(RequestError) as caught:
        parse(texts, CLASSES)
    assert (str(caught.value), caught.value.hint) == (message, hint)


BOX_FORM = "box:LEFT,TOP,RIGHT,BOTTOM, in pixels of the upright picture"
PIXEL_FORM = "CLASS@X,Y or @X,Y, in whole pixels of the upright picture"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        *((text, f"not a box: '{text}'", BOX_FORM) for text in ("box:", "box:1,2,3", "box:a", "Box:1 2 3 4", "box:1,2,3,x")),
        *((text, f"an empty box: '{text}'", f"LEFT below RIGHT and TOP below BOTTOM: {BOX_FORM}")
          for text in ("box:5,5,5,5", "box:3,4,1,6")),
        *((text, f"not a box: '{text}'", f"box1 is the one with the highest score; or {BOX_FORM}")
          for text in ("box", "box1.5", "box-1", "box 1", "box99999")),
        ("box0", "no such box: 'box0'", "ranks begin at box1"),
        *((text, f"not a class at a pixel: '{text}'", PIXEL_FORM)
          for text in ("person@12", "star@12", "star@", "@", "@a,b", "@1.5,2", "star@-1,5", "star@1 2")),
        ("top1@3,4", "not a class at a pixel: 'top1@3,4'", f"a name or an index before @: {PIXEL_FORM}"),
        *((text, f"no such class: '{text}'", "a name or an index before *, for all its boxes")
          for text in ("*", " *", "box1*", "top1*", "top3*")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("classes", [CLASSES, ()])
@pytest.mark.parametrize("before", ["", "0,"])
def test_an_ill_formed_place_is_named_whole_with_the_form_that_is_expected(text, message, hint, classes, before):
    with pytest.raises(RequestError) as caught:
        parse([before + text], classes)
    assert (str(caught.value), caught.value.hint) == (message.replace("' ", "'"), hint)


@pytest.mark.parametrize("name", ["box:1,2,3", "a@b", "box", "box1.5", "me@12", "*"])
def test_a_class_is_named_like_an_ill_formed_place(name):
    (choice,) = parse([name], [name, "box:"])
    assert choice.index == 0


def test_a_hint_names_no_thousand_classes():
    with pytest.raises(RequestError) as caught:
        parse(["xyz"], [f"{number}" for number in range(1000)])
    assert caught.value.hint == "a name, a number from 0 to 999, or top1"


def test_networks_without_class_names_refuse_only_names():
    assert labels(["2000"], ()) == [("class2000", None, 2000)]
    for text, message, hint in (
        ("star", "no such class: 'star'; class names are unknown", "use an index, or top1"),
        ("-1", "no such class: '-1'", "from 0"),
    ):
        with pytest.raises(RequestError) as caught:
            parse([text], ())
        assert (str(caught.value), caught.value.hint) == (message, hint)


def test_every_class_of_imagenet_can_be_named():
    for index, name in enumerate(IMAGENET_CLASSES):
        assert parse([name], IMAGENET_CLASSES) == (TargetChoice(name, None, index),)
    # A dog and a jacket.
    with pytest.raises(RequestError, match=r"^several classes are named 'CARDIGAN': 264, 474\nhint"):
        parse(["CARDIGAN"], IMAGENET_CLASSES)


# --- classifiers


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 1, 1), (2, 5, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_logits_are_their_own_scores(shape, dtype):
    logits = random(*shape).to(dtype).requires_grad_()
    scores = scores_of(logits)
    kept = dtype if dtype is torch.float64 else torch.float32
    assert scores.values.dtype == kept
    assert torch.equal(scores.values, logits.reshape(2, 5).to(kept))
    assert torch.equal(scores.ranking, scores.values)
    assert scores.values.requires_grad
    assert not scores.ranking.requires_grad
    assert scores.present.all()
    expected = logits.detach().reshape(2, 5).topk(5).indices.T.tolist()
    assert [indices_of(scores, top(rank)) for rank in range(1, 6)] == expected


def test_a_single_output_is_one_class():
    scores = scores_of(random(3), images=3)
    assert scores.values.shape == scores.present.shape == (3, 1)
    assert indices_of(scores, top(1)) == indices_of(scores, number(0)) == [0, 0, 0]
    assert indices_of(scores, top(2)) == [None, None, None]


def test_equal_classes_are_ranked_by_number_and_none_of_an_image_with_scores_that_are_not_finite():
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [nan, -inf, inf, nan, 0.0], [nan] * 5])
    scores = scores_of(logits, images=3)
    ranked = [indices_of(scores, top(rank)) for rank in range(1, 7)]
    assert [list(column) for column in zip(*ranked, strict=True)] == [
        [1, 2, 4, 0, 3, None],
        [None] * 6,
        [None] * 6,
    ]
    torch.testing.assert_close(scores.values, logits, equal_nan=True, rtol=0, atol=0)


def test_many_equal_classes_are_ranked_by_number():
    scores = scores_of(torch.zeros(2, 5000))
    assert [indices_of(scores, top(rank)) for rank in (1, 2, 777, 5000)] == [[0, 0], [1, 1], [776, 776], [4999, 4999]]


def test_a_class_that_the_network_does_not_have_is_an_error():
    scores = scores_of(random(2, 1000))
    assert indices_of(scores, number(999)) == [999, 999]
    for index in (1000, 2000):
        with pytest.raises(RequestError, match=f"^no class {index}: the network has 1000 outputs\nhint: from 0 to 999"):
            indices_of(scores, number(index))


def test_a_negative_index_is_no_class_of_any_network():
    with pytest.raises(RequestError, match=r"^no class -1: the network has 1000 outputs\nhint: from 0 to 999, or top1"):
        indices_of(scores_of(random(2, 1000)), number(-1))
    found = {"labels": torch.tensor([1]), "scores": torch.tensor([0.5])}
    with pytest.raises(RequestError, match=r"^no class -1\nhint: from 0, or top1"):
        indices_of(class_scores([found], key=None, images=1), number(-1))


def test_each_image_may_have_its_own_class():
    scores = scores_of(random(3, 5), images=3)
    best, second = indices_of(scores, top(1)), indices_of(scores, top(2))
    assert indices_of(scores, TargetChoice("given", None, None, (top(2), number(4), top(1)))) == [second[0], 4, best[2]]


def test_the_gradient_of_the_scores_is_one_at_each_images_class():
    logits = random(4, 5).requires_grad_()
    indices = [3, None, 0, 3]
    scores = scores_at(scores_of(logits, images=4), indices)
    assert scores.tolist() == [logits[0, 3].item(), 0, logits[2, 0].item(), logits[3, 3].item()]
    (gradient,) = torch.autograd.grad(scores.sum(), logits)
    expected = one_hot(torch.tensor([3, 0, 0, 3]), 5).float()
    expected[1] = 0
    assert torch.equal(gradient, expected)


def test_targets_without_a_class_have_no_gradient():
    logits = torch.full((2, 3), torch.nan, requires_grad=True)
    scores = scores_at(scores_of(logits), [None, None])
    assert scores.tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(scores.sum(), logits)
    assert gradient.tolist() == [[0] * 3] * 2


# --- segmentations


def by_hand(logits):
    """Each class's sum of logits over the pixels predicted as it, their mean, and the share of the pixels, one by one."""
    sums, means, shares = torch.zeros(3, *logits.shape[:2])
    for image, maps in enumerate(logits.detach()):
        columns = maps.flatten(1).T
        for index in range(len(maps)):
            own = [column[index].item() for column in columns if column.argmax() == index]
            sums[image, index] = sum(own)
            means[image, index] = sum(own) / max(1, len(own))
            shares[image, index] = len(own) / len(columns)
    return sums, means, shares


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (2, 6, 1, 2), (2, 3, 2, 4, 5)], ids=str)
def test_a_segmentation_scores_the_pixels_predicted_as_a_class(shape):
    logits = random(*shape)
    logits[0, -1] -= 99
    logits.requires_grad_()
    scores = scores_of(logits)
    sums, means, shares = by_hand(logits)
    torch.testing.assert_close(scores.values, sums)
    torch.testing.assert_close(scores.outputs, means)
    assert scores.numbers(1, 0)["logit"] == pytest.approx(float(means[1, 0]))
    torch.testing.assert_close(scores.ranking, shares)
    assert torch.equal(scores.present, shares > 0)
    assert scores.of_pixels
    assert not scores.ranking.requires_grad
    # The score of a class of one image changes with its own pixels alone, with each alike.
    index = indices_of(scores, top(1))[1]
    (gradient,) = torch.autograd.grad(scores.values[1, index], logits)
    own = (logits[1].argmax(0) == index).float()
    expected = torch.zeros_like(logits)
    expected[1, index] = own
    torch.testing.assert_close(gradient, expected)


def test_a_class_that_no_pixel_is_predicted_as_is_not_in_the_image():
    logits = torch.zeros(2, 3, 4, 5)
    logits[:, 2, :3] = 1
    logits[1, 2] = 1
    scores = scores_of({"out": logits, "aux": logits[:, :2]})
    assert [indices_of(scores, top(rank)) for rank in (1, 2, 3)] == [[2, 2], [0, None], [None, None]]
    assert indices_of(scores, number(0)) == [0, None]
    assert indices_of(scores, number(1)) == [None, None]
    assert scores_at(scores, [2, None]).tolist() == [15, 0]
    with pytest.raises(RequestError, match="no class 3: the network has 3 outputs"):
        indices_of(scores, number(3))


def test_pixels_of_half_precision_are_summed_in_float32():
    logits = torch.full((1, 1, 300, 300), 3.0, dtype=torch.float16)  # the sum is more than float16 holds
    assert class_scores(logits, key=None, images=1).values.tolist() == [[270_000]]


def test_a_nan_pixel_affects_only_its_own_class():
    logits = torch.zeros(1, 3, 2, 2)
    logits[0, 1] = 1
    logits[0, 2, 0, 0] = 5
    logits[0, 0, 1, 1] = torch.nan
    assert class_scores(logits, key=None, images=1).values.tolist() == [[0, 3, 5]]


# --- detectors


def test_the_score_of_a_detected_class_is_that_of_its_best_box():
    first = {
        "boxes": torch.zeros(5, 4),
        "labels": torch.tensor([1, 3, 1, 3, 3]),
        "scores": torch.tensor([0.5, 0.2, 0.9, 0.7, 0.7], requires_grad=True),
    }
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    scores = scores_of([first, nothing])
    torch.testing.assert_close(scores.values, torch.tensor([[0, 0.9, 0, 0.7], [0] * 4]))
    assert torch.equal(scores.ranking, scores.values)
    assert scores.present.tolist() == [[False, True, False, True], [False] * 4]
    assert [indices_of(scores, top(rank)) for rank in (1, 2, 3)] == [[1, None], [3, None], [None, None]]
    # Classes that were not found in these images may well be found in others.
    assert [indices_of(scores, number(index)) for index in (3, 2, 90)] == [[3, None], [None, None], [None, None]]
    (gradient,) = torch.autograd.grad(scores_at(scores, [3, None]).sum(), first["scores"])
    assert gradient.tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("low", [-0.5, 0.0, 0.4])
def test_detected_classes_rank_before_all_others(low):
    found = {"labels": torch.tensor([4, 2]), "scores": torch.tensor([low, 0.5])}
    scores = scores_of([found, found])
    assert [indices_of(scores, top(rank)) for rank in (1, 2, 3)] == [[2, 2], [4, 4], [None, None]]


def test_scores_of_a_detector_in_half_precision_become_floats():
    found = {"labels": torch.tensor([1]), "scores": torch.tensor([0.5], dtype=torch.float16)}
    assert scores_of([found, found]).values.dtype == torch.float32


def test_a_detector_without_detections_has_no_class():
    nothing = {"labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    scores = scores_of([nothing, nothing])
    assert scores.values.shape == (2, 1)
    assert indices_of(scores, top(1)) == indices_of(scores, number(0)) == [None, None]


@pytest.mark.thorough
def test_torchvisions_networks_have_gradients_down_to_the_input():
    torch.manual_seed(0)
    batch = random(2, 3, 64, 64).requires_grad_()
    segments = segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=3).eval()
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    detector = detection.FasterRCNN(backbone, num_classes=3, min_size=64, max_size=64, box_score_thresh=0.0).eval()
    for output in (segments(batch), detector(list(batch))):
        scores = scores_of(output)
        indices = indices_of(scores, top(1))
        values = scores_at(scores, indices)
        if isinstance(output, list):
            assert values.tolist() == [each["scores"].max().item() for each in output]
            assert indices == [each["labels"][each["scores"].argmax()].item() for each in output]
        else:
            assert indices == [maps.argmax(0).flatten().mode().values.item() for maps in output["out"]]
        for image in range(2):
            (gradient,) = torch.autograd.grad(values[image], batch, retain_graph=True)
            assert [bool(each.any()) for each in gradient] == [image == 0, image == 1]


# --- containers


@dataclass
class Answer:
    heads: list
    loss: None = None


Named = namedtuple("Named", "logits aux")  # noqa: PYI024  # networks return such
WANTED, OTHER = random(2, 5, seed=1), random(2, 5, seed=2)
SINGLE = "omit output=: the output is a single tensor; out= is the directory of the results"


@pytest.mark.parametrize(
    ("output", "key"),
    [
        (WANTED, None),
        ([WANTED], None),
        ({"prediction": WANTED, "loss": None}, None),
        ({"aux": OTHER, "out": WANTED}, None),
        ({"aux": OTHER, "logits": WANTED}, None),
        (OrderedDict(hidden=(OTHER, OTHER), logits=WANTED), None),
        (Named(WANTED, OTHER), None),
        (SimpleNamespace(aux=OTHER, logits=WANTED), None),
        ({"out": OTHER, "aux": WANTED}, "aux"),
        ((OTHER, WANTED), "1"),
        ({0: OTHER, 1: WANTED}, "1"),
        (Named(OTHER, WANTED), "aux"),
        (Named(OTHER, WANTED), "1"),
        (Answer([OTHER, WANTED]), "heads.1"),
        (SimpleNamespace(logits=OTHER, heads={"a.b": (WANTED,)}), "heads.a.b"),
        ({"heads.1": WANTED, "heads": [OTHER, OTHER]}, "heads.1"),
        ([{"a": OTHER}, {"a": {"logits": WANTED, "b": OTHER}}], "1.a"),
        ([WANTED, OTHER], "0"),
    ],
)
def test_the_part_that_holds_the_scores_is_found(output, key):
    assert torch.equal(scores_of(output, key).values, WANTED)


def test_detections_may_lie_in_a_container():
    found = [{"labels": torch.tensor([1]), "scores": torch.tensor([0.5])}] * 2
    assert scores_of(({"loss": OTHER}, found), "1").values.tolist() == [[0, 0.5]] * 2


@pytest.mark.parametrize(
    ("output", "key", "message", "hint"),
    [
        (
            {"main": torch.zeros(2, 21, 64, 64), "aux": [torch.zeros(2, 21), torch.zeros(2)]},
            None,
            "the network returns several tensors: ['main'] (2, 21, 64, 64), ['aux'][0] (2, 21), ['aux'][1] (2,)",
            "output=KEY chooses one: main, aux.0, aux.1",
        ),
        (
            Answer([WANTED, OTHER.int()]),
            None,
            "the network returns several tensors: .heads[0] (2, 5), .heads[1] int32 (2, 5)",
            "output=KEY chooses one: heads.0, heads.1",
        ),
        ({"out": WANTED, "aux": OTHER}, "auxx", "the network returns nothing under 'auxx'", "did you mean 'aux'?"),
        ({"out": WANTED, "aux": OTHER}, "zzz", "the network returns nothing under 'zzz'", "there are: 'out', 'aux'"),
        ((WANTED, OTHER), "2", "the network returns nothing under '2'", "there are: '0', '1'"),
        ((WANTED, OTHER), "-1", "the network returns nothing under '-1'", "did you mean '1'?"),
        ({"heads": [WANTED, OTHER]}, "heads.5", "the network returns nothing under '5'", "there are: '0', '1'"),
        ({"heads": WANTED}, "heads.", "the network returns nothing under 'heads.'", "did you mean 'heads'?"),
        (WANTED, "out", "the network returns nothing under 'out'", SINGLE),
        (WANTED, "grad", "the network returns nothing under 'grad'", SINGLE),
    ],
)
def test_an_ambiguous_part_is_an_error_that_names_the_parts(output, key, message, hint):
    with pytest.raises(RequestError) as caught:
        scores_of(output, key)
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("output", "described"),
    [
        (random(3, 5), "(3, 5)"),
        (random(5), "(5,)"),
        (random(2, 5, 6), "(2, 5, 6)"),
        (random(2, 1, 1, 1, 1, 1), "(2, 1, 1, 1, 1, 1)"),
        (random(2, 0), "(2, 0)"),
        (random(2, 5, 0, 4), "(2, 5, 0, 4)"),
        (torch.tensor(1.0), "()"),
        (torch.zeros(2, 5, dtype=torch.int64), "int64 (2, 5)"),
        (torch.zeros(2, 5, dtype=torch.bool), "bool (2, 5)"),
        (torch.zeros(2, 5, dtype=torch.complex64), "complex64 (2, 5)"),
        (torch.eye(2).to_sparse(), "a sparse tensor"),
        (None, "'NoneType'"),
        ([], "'list'"),
        ("star", "'str'"),
        ({"labels": torch.tensor([1, 2])}, "int64 (2,)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_output_without_scores_is_an_error(output, described):
    assert_holds_no_scores(output, described)


def test_a_nested_tensor_holds_no_scores():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)  # the first takes a second
    assert_holds_no_scores(nested, "a nested tensor")


def assert_holds_no_scores(output, described):
    with pytest.raises(RequestError) as caught:
        scores_of(output)
    assert str(caught.value) == f"no class scores in the network's output: {described}"
    hint = "output="
    if isinstance(output, torch.Tensor):
        hint = "mask[:, None]" if output.is_floating_point() or output.is_complex() else "have no gradient"
    assert hint in caught.value.hint
