"""The picture of the boxes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_files import pixels_of, save_pixels
from PIL import Image
from spot_detector import SpotDetector

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.data import Prediction, Target, percent
from fmapviz.errors import RequestError
from fmapviz.features.detection.labels import face_for, place_labels
from fmapviz.features.detection.picture import BoxedInput, draw_boxes

AS_IT_IS = InputOptions(fit="none", mean=(0, 0, 0), std=(1, 1, 1))


class Planted(SpotDetector):
    """Has the brightness as the score, without a sigmoid, and finds a weak box of another class."""

    def __init__(self):
        super().__init__(score=torch.Tensor.clone, weak=(4.0, 0, 0.1))


@pytest.fixture
def photo(tmp_path):
    pixels = np.full((64, 64, 3), 40, np.uint8)
    pixels[24:32, 40:48] = 250
    return save_pixels(tmp_path / "photo.png", pixels)


def test_a_planted_object_is_boxed_in_picture_predictions_and_record(photo, tmp_path):
    run = fmapviz.visualize(
        Planted(),
        photo,
        out=tmp_path / "out",
        views="boxes,gradcam",
        targets="box1",
        layers="sum",
        to="png,html",
        predictions=2,
        preprocessing=AS_IT_IS,
    )
    (unit,) = [path.parent for path in run.directory.rglob("unit.json") if (path.parent / "input.png").exists()]
    record = json.loads((unit / "unit.json").read_text())
    assert [each["class"] for each in record["predictions"]] == ["spot", "none"]
    assert record["predictions"][0]["box"] == [40, 24, 48, 32]
    (picture,) = unit.glob("*boxes*.png")
    drawn, seen = pixels_of(picture), pixels_of(photo)
    drawn = drawn if drawn.ndim == 3 else np.repeat(drawn[..., None], 3, 2)
    changed = (drawn[: len(seen)] != seen).any(2)
    assert changed[24, 40:48].all()
    assert changed[24:32, 40].all()
    assert not changed[26:30, 42:46].any()
    (heat,) = unit.glob("*box1.gradcam.png")
    assert heat.exists()


@pytest.mark.parametrize("scale", [1, 3])
def test_boxes_of_any_place_are_drawn_within_the_picture(scale):
    seen = np.zeros((40, 50), np.uint8)
    corners = np.float32([[-20, -5, 10, 20], [45, 30, 90, 80], [10, 10, 10, 10], [60, 60, 70, 70], [5, 5, 2, 2]])
    found = BoxedInput(corners, (0, 1, 2, 3, 4), ("a", "b" * 90, "c", "é\n", ""), ("9.9 %",) * 5, "")
    drawn = draw_boxes(found, seen, scale=scale, text_size=12)
    assert drawn.shape == (40 * scale, 50 * scale, 3)
    assert drawn[19 * scale, 5 * scale].any()


def test_a_network_without_boxes_is_refused(photo, tmp_path):
    with pytest.raises(RequestError, match="the network returns no boxes"):
        fmapviz.visualize("shapesnet", photo, out=tmp_path, views="boxes", to="png")


def drawn_of(seen, *boxes):
    """Draw boxes, each with the class of its position and a name."""
    corners, names = zip(*boxes, strict=True)
    labels = tuple(range(len(boxes)))
    found = BoxedInput(np.float32(corners), labels, names, ("50.0 %",) * len(names), "")
    return draw_boxes(found, seen, scale=1, text_size=12)


def test_labels_cover_neither_each_other_nor_other_boxes():
    seen = np.zeros((192, 192, 3), np.uint8)
    boxes = [((40, 50, 80, 90), "a long name"), ((40, 92, 80, 130), "other"), ((84, 50, 120, 90), "third")]
    together = drawn_of(seen, *boxes)
    for left, top, right, bottom in (corners for corners, _ in boxes):
        assert not together[top + 2 : bottom - 1, left + 2 : right - 1].any()
    shown, alone = (
        {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()} for pixels in (together, drawn_of(seen, boxes[0]))
    )
    colour = max(alone, key=lambda each: (drawn_of(seen, boxes[0]) == each).all(2).sum() if any(each) else 0)
    assert colour in shown
    assert (together == colour).all(2).sum() == (drawn_of(seen, boxes[0]) == colour).all(2).sum()


def test_long_names_are_elided_and_letters_of_small_pictures_are_smaller():
    box = (10, 30, 40, 60)
    long, short = (drawn_of(np.zeros((96, 96), np.uint8), (box, name)).any(2) for name in ("name " * 30, "cat"))
    assert long[:30].any(0).sum() <= 66
    assert long[:30].any(0).sum() > short[:30].any(0).sum()
    large = drawn_of(np.zeros((400, 400), np.uint8), (box, "cat")).any(2)
    assert large[:30].any(1).sum() > short[:30].any(1).sum()


def test_labels_of_many_boxes_cover_no_other_label_and_little_of_other_boxes():
    random = np.random.default_rng(0)
    lefts = random.integers(0, 300, (80, 2))
    corners, classes = np.hstack([lefts, lefts + random.integers(12, 60, (80, 2))]), random.integers(0, 3, 80).tolist()
    labels = place_labels(corners, classes, [("person", "50.0 %")] * 80, size=(320, 320), face=face_for(320, 12))
    covered, covers = np.zeros((320, 320), int), np.zeros(80)
    for position, label in enumerate(labels):
        if label is not None:
            left, top, right, bottom = label.corners
            assert 0 <= min(label.corners) <= max(label.corners) <= 320
            covered[top:bottom, left:right] += 1
            for other, (x, y, x2, y2) in enumerate(corners.tolist()):
                part = np.zeros((400, 400), bool)
                part[top:bottom, left:right] = True
                share = part[y:y2, x:x2].mean()
                assert share <= (0.5 if other == position else 0.25)
                covers[other] += share
    assert covered.max() == 1
    assert {label.words.count(" ") if label else None for label in labels} == {None, 0, 1, 3}
    assert all("person" in labels[classes.index(each)].words for each in range(3))


def test_a_notice_and_the_picture_report_labels_without_room(photo, tmp_path):
    def draw(scale):
        run = fmapviz.visualize(
            Crowded(),
            photo,
            out=tmp_path / str(scale),
            views="boxes",
            to="png",
            style=fmapviz.Style(scale=scale),
            preprocessing=AS_IT_IS,
        )
        (picture,) = run.directory.rglob("*boxes*.png")
        with Image.open(picture) as drawn:
            return [notice for notice in run.notices if "no label" in notice], drawn.text.get("Labels")

    notices, fact = draw(1)
    assert len(notices) == 1
    assert fact == "whole at 2 of 6 boxes, as far as there is room"
    assert draw(8) == ([], None)


class Crowded(Planted):
    """Finds six boxes at one place."""

    def forward(self, images):
        return [
            {name: values[-1:].repeat(6, *[1] * (values.ndim - 1)) for name, values in each.items()}
            for each in super().forward(images)
        ]


class Named(Planted):
    """Finds what `Planted` does, as a class whose name is not of Latin letters."""

    classes = ("none", "人")


def test_a_class_of_other_letters_has_its_index_in_the_picture_and_its_name_in_words(photo, tmp_path):
    run = fmapviz.visualize(Named(), photo, out=tmp_path, views="boxes", to="png", preprocessing=AS_IT_IS)
    (picture,) = run.directory.rglob("*boxes*.png")
    with Image.open(picture) as drawn:
        assert drawn.text["Boxes"].startswith("1: 人 ")
    assert [notice for notice in run.notices if "not of Latin letters" in notice]


def test_the_number_of_each_box_is_in_the_picture():
    corners, seen = np.float32([[10, 60, 90, 150], [110, 60, 190, 150]]), np.zeros((200, 200, 3), np.uint8)

    def labels_of(*names):
        drawn = draw_boxes(BoxedInput(corners, (1, 1), names, ("9.9 %",) * 2, ""), seen, scale=1, text_size=12)
        return drawn[40:60, 10:90], drawn[40:60, 110:190]

    first, second = labels_of("dog", "dog")
    assert first.any()
    assert not np.array_equal(first, second)
    assert np.array_equal(second, labels_of("cat", "dog")[1])
    assert np.array_equal(second, labels_of("dog", "人")[1]) is False
    assert np.array_equal(labels_of("dog", "class 1"), labels_of("dog", "人"))  # which the font lacks


@pytest.mark.parametrize("score", [0.28449, 0.98746, 0.5, 1.0, 0.00004])
def test_a_recorded_score_has_the_same_text(score):
    prediction = Prediction(0, "dog", score, probability=score, kind="softmax")
    assert str(prediction) == str(replace(prediction, score=prediction.record["score"]))
    assert percent(prediction.record["probability"]) in Target("top1", 0, "dog", 1.0, probability=score).caption
