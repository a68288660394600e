"""Predictions of an image follow from the network's output."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import segmentation
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.observe import predictions
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.score_kinds import Head

CLASSES = ("cat", "dog", "cow")


def predict(output, classes=CLASSES, *, top=3, images=1, **known):
    scores = class_scores(output, key=None, images=images, head=Head(tuple(classes), **known))
    return predictions.predict(scores, most=top)


def names(predictions):
    return [each.name for each in predictions]


def test_logits_become_probabilities_the_likeliest_first():
    logits = torch.tensor([[1.0, 3.0, 2.0], [9.0, -9.0, 0.0]])
    first, second = predict(logits, CLASSES, top=2, images=2)
    assert [each.name for each in first] == ["dog", "cow"]
    assert [each.index for each in second] == [0, 2]
    assert [each.score for each in first] == pytest.approx(nn.functional.softmax(logits[0], 0)[[1, 2]].tolist())


def test_probabilities_are_not_changed():
    ((first, *_),) = predict(torch.tensor([[0.1, 0.7, 0.2]]), CLASSES, top=3, images=1)
    assert (first.name, first.score) == ("dog", pytest.approx(0.7))


def test_predictions_of_a_segmentation_are_shares_of_the_picture():
    scores = torch.zeros(1, 3, 4, 5)
    scores[0, 2, :3] = 1  # 15 of 20 pixels; the others are the first class
    (seen,) = predict({"out": scores, "aux": scores[:, :, :2]}, CLASSES, top=3, images=1)
    assert [str(each) for each in seen] == ["cow 75.0 % of the pixels", "cat 25.0 % of the pixels"]


def test_predictions_of_a_detector_are_its_boxes():
    found = {
        "labels": torch.tensor([1, 2, 1, 1, 9]),
        "scores": torch.tensor([0.9, 0.95, 0.6, 0.1, 0.05]),
        "boxes": torch.zeros(5, 4),
    }
    (seen, nothing) = predict([found, {"labels": torch.zeros(0), "scores": torch.zeros(0)}], CLASSES, top=3, images=2)
    assert [str(each) for each in seen] == ["cow 95.0 % at 0,0,0,0", "dog 90.0 % at 0,0,0,0", "dog 60.0 % at 0,0,0,0"]
    assert nothing == ()


@pytest.mark.parametrize(
    "output",
    [
        torch.zeros(3, 3),  # other images
        torch.zeros(2, 3, 5),
        torch.zeros(2, 3, dtype=torch.complex64),
        {"boxes": torch.zeros(2, 3, 9), "labels": torch.zeros(2, 3)[:, :0]},
        [torch.zeros(3), torch.zeros(3)],
        [{"labels": 1}, {"labels": 2}],
        (),
        None,
        "cat",
    ],
    ids=str,
)
def test_an_output_without_scores_is_refused(output):
    with pytest.raises(RequestError):
        predict(output, images=2)


@pytest.mark.parametrize("output", [torch.full((2, 3), float("nan")), torch.full((2, 3, 1, 1), float("inf"))], ids=str)
def test_scores_that_are_not_finite_predict_nothing(output):
    assert predict(output, images=2) == [(), ()]


def test_classes_of_another_number_than_names_are_numbered():
    ((first, *_),) = predict(torch.tensor([[0.0, 0.0, 0.0, 9.0]]))
    assert str(first) == "class 3 100.0 %"
    assert (
        "3 class names for 4 outputs" in class_scores(torch.zeros(1, 4), key=None, images=1, head=Head(CLASSES)).remarks[-1]
    )


def test_the_first_of_a_tuple_and_the_logits_of_a_dict_count():
    logits = torch.tensor([[0.0, 0.0, 5.0]])
    for output in ((logits, "attention"), {"logits": logits, "loss": None}, logits.half(), (torch.zeros(1, 7), logits)):
        assert names(predict(output, CLASSES, top=1, images=1)[0]) == ["cow"]


@pytest.mark.thorough
def test_torchvisions_networks_are_understood():
    torch.manual_seed(0)
    batch = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        masks = segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=3).eval()(batch)
        backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
        detector = FasterRCNN(backbone, num_classes=3, min_size=64, max_size=64, box_score_thresh=0.0).eval()
        boxes = detector(list(batch))
    (seen,) = predict(masks, CLASSES, top=3, images=1)
    assert sum(each.score for each in seen) == pytest.approx(1)
    shares = (masks["out"].argmax(1) == seen[0].index).float().mean().item()
    assert seen[0].score == pytest.approx(shares)
    (seen,) = predict(boxes, CLASSES, top=3, images=1)
    assert seen[0].score == pytest.approx(boxes[0]["scores"].max().item())


# --- in a run


class Bright(nn.Module):
    """Classifies bright pictures as `light`, others as `dark`; its last layer runs after the convolution."""

    classes = ("dark", "light")
    ended: ClassVar[list[int]] = []  # not a module's own: what a pass changes there would keep the next from ending early

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        self.second(self.first(x))
        self.ended.append(len(x))
        level = x.mean((1, 2, 3))
        return torch.stack([-level, level], 1) * 9


@pytest.fixture
def pictures(tmp_path):
    for name, level in (("dark.png", 20), ("light.png", 230)):
        Image.new("RGB", (32, 32), (level, level, level)).save(tmp_path / name)
    return [tmp_path / "dark.png", tmp_path / "light.png"]


def run(network, pictures, tmp_path, **options):
    events = []
    summary = fmapviz.visualize(network, pictures, out=tmp_path / "out", to="png", on_event=events.append, **options)
    outcomes = {event.unit.name: event for event in events if isinstance(event, fmapviz.events.Outcome)}
    return summary, outcomes, events


def test_predictions_are_in_the_outcome_the_record_and_the_pictures(tmp_path, pictures):
    summary, outcomes, _ = run(Bright(), pictures, tmp_path)
    assert {name: names(each.predictions) for name, each in outcomes.items()} == {
        "dark.png": ["dark", "light"],
        "light.png": ["light", "dark"],
    }
    unit = summary.directory / "light.png"
    predictions = json.loads((unit / "unit.json").read_text())["predictions"]
    assert [each["class"] for each in predictions] == ["light", "dark"]
    assert predictions[0]["score"] == round(outcomes["light.png"].predictions[0].score, 4) == predictions[0]["probability"]
    for picture in unit.glob("*.png"):
        with Image.open(picture) as image:
            assert image.text["Predicted"].startswith("light 100.0 %")


@pytest.mark.thorough
def test_nothing_is_predicted_by_default_without_class_names(tmp_path, pictures):
    nameless = Bright()
    nameless.classes = None
    for network, options in ((nameless, {}), (Bright(), {"predictions": 0}), (Bright(), {"layers": "first"})):
        summary, outcomes, _ = run(network, pictures, tmp_path, **options)
        assert all(each.predictions == () for each in outcomes.values())
        record = json.loads((summary.directory / "light.png" / "unit.json").read_text())
        assert "predictions" not in record


def test_requested_predictions_take_a_whole_forward_pass(tmp_path, pictures):
    ended = []
    for options in ({"layers": "first"}, {"layers": "first", "predictions": 1}):
        Bright.ended.clear()
        _, outcomes, _ = run(Bright(), pictures, tmp_path, workers=1, **options)
        ended.append((len(Bright.ended), [len(each.predictions) for each in outcomes.values()]))
    (early, none), (whole, one) = ended
    assert early < whole == 2
    assert (none, one) == ([0, 0], [1, 1])


@pytest.mark.thorough
def test_predictions_without_names_are_numbers_and_at_most_all_classes(tmp_path, pictures):
    nameless = Bright()
    nameless.classes = None
    _, outcomes, _ = run(nameless, pictures, tmp_path, predictions=99)
    assert {name: names(each.predictions) for name, each in outcomes.items()} == {
        "dark.png": ["class 0", "class 1"],
        "light.png": ["class 1", "class 0"],
    }
    summary, outcomes, _ = run(Bright(), pictures, tmp_path, predictions=99)
    assert all(len(each.predictions) == 2 for each in outcomes.values())
    assert json.loads((summary.directory / "run.json").read_text())["settings"]["predictions"] == 2
    with pytest.raises(fmapviz.errors.RequestError, match="predictions must be at least 0"):
        run(Bright(), pictures, tmp_path, predictions=-1)


class TwoHeads(nn.Module):
    classes = CLASSES

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3)) * 0 + torch.tensor([5.0, 0, 0]), torch.tensor([[0, 5.0, 0]]).expand(len(x), 3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("output", "name"), [(None, None), ("0", "cat"), ("1", "dog")])
def test_output_chooses_the_part_that_holds_the_scores(output, name, tmp_path, pictures):
    outcomes = []
    fmapviz.visualize(
        TwoHeads(),
        pictures,
        out=tmp_path / "out",
        output=output,
        on_event=outcomes.append,
        preprocessing=fmapviz.InputOptions((8, 8)),
    )
    predicted = [
        each.name for event in outcomes if isinstance(event, fmapviz.events.Outcome) for each in event.predictions[:1]
    ]
    assert set(predicted) == ({name} if name else set())
    told = [event.message for event in outcomes if isinstance(event, fmapviz.events.Notice)]
    assert any("output=KEY chooses one: 0, 1" in message for message in told) == (name is None)
