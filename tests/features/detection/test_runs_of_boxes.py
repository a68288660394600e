"""Runs of a detector: unusual names and thresholds, images without boxes, other batches and workers, and interruptions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import thorough
from extras import needs
from image_files import save_pixels
from trees import difference
from yolo import confident, saved

import fmapviz
from fmapviz.errors import FmapvizError
from fmapviz.events import Notice, Outcome
from fmapviz.models.load import load_model

pytestmark = needs("ultralytics", "ultralytics")

NAMES = ("1", "0", "box1", "top1", "dog@1,2", "person", "2")


def renamed(content):
    confident(content)
    content["model"].names = dict(enumerate(NAMES))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("network"), "yolov8n.yaml", renamed, nc=len(NAMES))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    return [
        save_pixels(place / f"{number}.png", rng.integers(0, 255, (96 + 32 * number, 128, 3), dtype=np.uint8))
        for number in range(4)
    ]


@pytest.mark.parametrize(
    ("target", "label"),
    [
        ("box1", 2),  # the class of that name
        *thorough(("0", 0), ("person", 5), ("1", 1), ("2", 2), ("BOX1", 2), ("dog@1,2", 4)),
    ],
)
def test_numbers_are_indices_and_names_are_classes(network, photos, target, label):
    model = load_model(str(network))
    found = fmapviz.cam(model, photos[0], target=target, layer="model.15", confidence=0.0)
    assert (found.target, found.names) == ((label,), (NAMES[label],))


@pytest.mark.thorough
def test_ranks_come_before_a_class_of_that_name(network, photos):
    model = load_model(str(network))
    first, second = (
        fmapviz.cam(model, photos[0], target=rank, layer="model.15", confidence=0.0) for rank in ("top1", "box2")
    )
    assert first.score >= second.score
    own = fmapviz.cam(model, photos[0], target="3", layer="model.15", confidence=0.0)
    assert own.names == ("top1",)
    assert first.score >= own.score


@pytest.mark.thorough
def test_a_number_or_a_rank_that_is_also_a_name_is_named(network, photos, tmp_path):
    notices = []
    options = {"views": "gradcam", "layers": "model.15", "to": "png", "confidence": 0.0, "workers": 1, "out": tmp_path}
    fmapviz.visualize(str(network), photos[0], targets="0,top1", on_event=notices.append, **options)
    said = [event.message for event in notices if isinstance(event, Notice)]
    assert f"target 0 is the class with this index; the class of this name has the index {NAMES.index('0')}" in said
    assert f"target top1 is a rank; the class of this name has the index {NAMES.index('top1')}" in said


@pytest.mark.thorough
def test_a_class_without_a_box_is_missing_in_its_images_only(network, photos, tmp_path):
    model = load_model(str(network))
    scores = [float(fmapviz.cam(model, photo, target="person", layer="model.15", confidence=0.0).score) for photo in photos]
    assert len(set(scores)) == len(photos)
    least = sum(sorted(scores)[1:3]) / 2
    options = {"views": "boxes,gradcam", "targets": "person", "layers": "model.15", "to": "png", "confidence": least}
    run = fmapviz.visualize(str(network), photos, out=tmp_path, workers=1, **options)
    assert (run.done, run.failed) == (4, 0)
    drawn = {path.parent.name for path in run.directory.rglob("*person.gradcam.png")}
    assert drawn == {photo.name for photo, score in zip(photos, scores, strict=True) if score > least}
    assert len([*run.directory.rglob("*.boxes.png")]) == 4


@pytest.mark.thorough
def test_an_image_without_boxes_says_so_and_the_named_threshold_shows_one(network, photos, tmp_path):
    options = {"views": "boxes", "to": "png", "workers": 1, "out": tmp_path}
    said = []
    run = fmapviz.visualize(str(network), photos[0], confidence=1.0, on_event=said.append, **options)
    assert run.done == 1
    (notice,) = [notice for event in said for notice in getattr(event, "notices", ())]
    assert notice.startswith("no box has a score above 1: the highest is 0.")
    lower = float(notice.partition("confidence=")[2].split()[0])
    again = fmapviz.visualize(str(network), photos[0], confidence=lower, predictions=1, **options)
    (record,) = (json.loads(path.read_text()) for path in again.directory.rglob("unit.json") if path.parent.name == "0.png")
    assert record["predictions"][0]["score"] > lower


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("views", "targets", "predictions", "start"),
    [
        (
            "boxes,layercam",
            "box1,person",
            3,
            "nothing is drawn for box1, person: no box has a score above 1: the highest is 0.",
        ),
        *thorough(
            ("boxes,layercam", "box1", 0, "nothing is drawn for box1: no box has a score above 1: the highest is 0."),
            ("boxes", None, 3, "no box has a score above 1: the highest is 0."),
            ("maps", None, 3, "no box has a score above 1: the highest is 0."),
            ("maps,layercam", "box1", 3, "nothing is drawn for box1: no box has a score above 1: the highest is 0."),
        ),
    ],
)
def test_an_image_without_boxes_has_one_notice(network, photos, tmp_path, *, views, targets, predictions, start):
    options = {"views": views, "predictions": predictions, "layers": "model.15", "to": "png"}
    options |= {"targets": targets} if targets else {}
    said = []
    fmapviz.visualize(str(network), photos[:2], out=tmp_path, confidence=1.0, workers=1, on_event=said.append, **options)
    images = [event for event in said if isinstance(event, Outcome)]
    assert len(images) == 2
    for image in images:
        (notice,) = image.notices
        assert notice.startswith(start)
        assert notice.endswith(" shows it")


@pytest.mark.parametrize("confidence", [1.5, *thorough(-0.1, float("nan"), "much")])
def test_a_threshold_that_is_no_score_is_refused(network, photos, confidence, tmp_path):
    with pytest.raises(FmapvizError, match="confidence"):
        fmapviz.visualize(str(network), photos[0], confidence=confidence, views="boxes", to="png", out=tmp_path)
    with pytest.raises(FmapvizError, match="confidence"):
        fmapviz.cam(load_model(str(network)), photos[0], target="box1", confidence=confidence)
    assert [*tmp_path.iterdir()] == []


def files_of(run):
    """Return the pictures of a run by their paths."""
    return {
        str(path.relative_to(run.directory)): path.read_bytes() for path in run.directory.rglob("*.png") if path.is_file()
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{"workers": 2}, *thorough({"workers": 1, "batch_size": 4}, {"workers": 2, "batch_size": 3})]
)
def test_boxes_have_the_same_bytes_in_any_batch_and_with_any_workers(network, photos, options, tmp_path):
    same = {"views": "boxes", "to": "png", "confidence": 0.3}
    alone = fmapviz.visualize(str(network), photos, out=tmp_path / "alone", workers=1, batch_size=1, **same)
    other = fmapviz.visualize(str(network), photos, out=tmp_path / "other", **same, **options)
    assert difference(files_of(other), files_of(alone)) == []
    assert len(files_of(alone)) >= 8


@pytest.mark.thorough
def test_an_interrupted_run_of_boxes_is_finished_by_the_next(network, photos, tmp_path):
    options = {"views": "boxes,gradcam", "targets": "box2", "to": "png", "workers": 1, "batch_size": 1, "confidence": 0.1}
    whole = fmapviz.visualize(str(network), photos, out=tmp_path / "whole", **options)

    def interrupt(event):
        if isinstance(event, Outcome):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fmapviz.visualize(str(network), photos, out=tmp_path / "parts", on_event=interrupt, **options)
    again = fmapviz.visualize(str(network), photos, out=tmp_path / "parts", **options)
    assert 0 < again.done < len(photos)
    assert difference(files_of(again), files_of(whole)) == []
