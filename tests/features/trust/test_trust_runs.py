"""Runs that judge heat maps: bytes, the table, the ranking, boxes and pixels, and the report."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from cases import thorough
from PIL import Image
from planted import SMALL, scene
from spot_detector import SpotDetector
from torch import nn
from trees import difference

import fmapviz
from fmapviz.events import Advanced, Outcome
from fmapviz.features.trust import aggregate
from fmapviz.features.trust.ranking import LEAST, MethodSamples, rank, resampled_means, summary_of
from fmapviz.run.pipeline import batch_runner

pytest_plugins = ["browser"]  # its fixtures

METHODS = "gradcam,occlusion"


def pixels(images=1, *, size=24, seed=0):
    return torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """A classifier."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 3)

    def forward(self, batch):
        return self.head(3 * self.norm(self.conv(batch)).relu().mean((2, 3)))


def draw(network, images, out, **options):
    given = {"views": f"{METHODS},trust", "to": "png", "workers": 1, "patch": 8, "targets": "1", "predictions": 0, **options}
    return fmapviz.visualize(network, images, out=out, **given)


def table_of(summary):
    with (summary.directory / "trust.csv").open() as file:
        return list(csv.DictReader(file))


def found_in(summary):
    """The files that `trust` writes, by their paths in the run."""
    patterns = ("trust.csv", "*/trust.json", "*trust.png", "*/*trust.png")
    files = {path for pattern in patterns for path in summary.directory.glob(pattern)}
    return {path.relative_to(summary.directory).as_posix(): path.read_bytes() for path in files}


@pytest.mark.thorough
def test_the_bytes_do_not_depend_on_workers_order_batches_and_parts(tmp_path):
    images = [*pixels(3)]
    expected = found_in(draw(Small(), images, tmp_path / "alone"))
    assert len(expected) == 1 + 2 * 3
    assert difference(found_in(draw(Small(), images, tmp_path / "workers", workers=2, batch_size=2)), expected) == []
    draw(Small(), images, tmp_path / "parts", part=fmapviz.types.Part(1, 2))
    both = draw(Small(), images, tmp_path / "parts", part=fmapviz.types.Part(2, 2))
    assert difference(found_in(both), expected) == []
    assert draw(Small(), images, tmp_path / "parts").skipped == 3


@pytest.mark.thorough
@pytest.mark.parametrize("shard", [2, *thorough(3)])
def test_the_table_of_shards_is_that_of_single_images(tmp_path, shard):
    pytest.importorskip("pyarrow")
    images = pixels(5)
    alone = draw(Small(), images, tmp_path / "alone", views="gradcam,trust")
    shards = draw(Small(), images, tmp_path / "shards", to="tar", shard=shard, workers=2, views="gradcam,trust")
    assert table_of(shards) == table_of(alone)
    assert table_of(alone)[0]["images"] == "5"


def test_the_table_has_means_and_errors_of_all_images(tmp_path):
    summary = draw(Small(), pixels(3), tmp_path)
    units = [json.loads(path.read_text()) for path in sorted(summary.directory.glob("*/trust.json"))]
    targets = [unit["images"][0]["targets"][0] for unit in units]
    rows = table_of(summary)
    assert sorted((row["method"], row["layer"], row["rank"]) for row in rows) == [
        ("gradcam", "norm", ""),
        ("occlusion", "", ""),
    ]
    for row in rows:
        own = [next(each for each in target["methods"] if each["method"] == row["method"]) for target in targets]
        for name in ("deletion", "insertion"):
            areas = [each[name] for each in own]
            assert float(row[name]) == pytest.approx(np.mean(areas), rel=1e-6)
            assert float(row[f"{name}_error"]) == pytest.approx(np.std(areas, ddof=1) / 3**0.5, rel=1e-6)
            chance = np.array([target["chance"][name] for target in targets]).mean(0)
            assert float(row[f"chance_{name}_high"]) == pytest.approx(chance.max(), rel=1e-6)
            assert areas[0] == pytest.approx(np.trapezoid(own[0][f"{name}_curve"], own[0]["shares"]))
        assert float(row["all_random"]) == pytest.approx(np.mean([each["all_random"] for each in own]), rel=1e-6)


@pytest.mark.thorough
def test_each_class_is_judged_by_itself_and_a_lone_view_judges_the_usual_ones(tmp_path):
    rows = table_of(draw(Small(), pixels(), tmp_path, views="trust", targets="0,2", steps=3))
    methods = ["eigencam", "gradcam", "integrated-gradients", "layercam", "saliency"]
    for target in ("class0", "class2"):
        assert sorted(row["method"] for row in rows if row["target"] == target) == methods
    notes = {row["note"] for row in rows if row["method"] == "eigencam"}
    assert all("the same for every class" in note for note in notes)


def test_chosen_layers_are_judged_each(tmp_path):
    rows = table_of(draw(Small(), pixels(), tmp_path, views="gradcam,trust", layers="conv,norm"))
    assert sorted(row["layer"] for row in rows) == ["conv", "norm"]


@pytest.mark.thorough
def test_passes_that_compute_maps_are_part_of_the_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_runner, "_REPORT_SECONDS", 0)
    events, seen = [], []
    network = Small().eval()
    network.register_forward_pre_hook(lambda _module, given: seen.append(len(given[0])))
    draw(network, pixels(), tmp_path, on_event=events.append, to="trust", views="rise,trust", samples=200)
    advanced = [event for event in events if isinstance(event, Advanced)]
    (total,) = {event.total for event in advanced}
    assert [event.done for event in advanced] == sorted(event.done for event in advanced)
    assert advanced[-1].done == total
    assert total > 3 * 200
    assert total == pytest.approx(sum(seen), rel=0.05)  # some find out which layer is the last one, and how a batch may pass


def test_raw_values_are_the_curves(tmp_path):
    summary = draw(Small(), pixels(), tmp_path, to="npz", views="gradcam,trust")
    with np.load(next(summary.directory.rglob("*.npz"))) as arrays:
        shapes = {name.rpartition(".")[2]: arrays[name].shape for name in arrays if "trust" in name}
    assert shapes == {"shares": (11, 21), "deletion": (11, 21), "insertion": (11, 21), "agreement": (1, 1)}


class Constant(nn.Module):
    """Does not look."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, batch):
        return 0 * self.conv(batch).mean((2, 3))


class Noisy(Small):
    """Adds noise to the scores."""

    def forward(self, batch):
        return super().forward(batch) + 0.05 * torch.randn(len(batch), 3)


def test_what_is_not_known_is_said_and_not_drawn(tmp_path):
    events = []
    summary = draw(Constant(), pixels(), tmp_path, views="maps,eigencam,trust", targets="0", on_event=events.append)
    notices = [notice for event in events if isinstance(event, Outcome) for notice in event.notices]
    said = "no trust for class 0: its probability is the same, whichever cells are removed: it does not depend on the input"
    assert said in notices
    assert not list(summary.directory.rglob("*trust.png"))
    assert table_of(summary) == []


@pytest.mark.thorough
def test_the_spread_of_a_network_that_varies_is_said(tmp_path):
    events = []
    draw(Noisy(), pixels(), tmp_path, views="gradcam,trust", on_event=events.append)
    notices = [notice for event in events if isinstance(event, Outcome) for notice in event.notices]
    assert any("trust: the probability varies from pass to pass of the same image" in each for each in notices)
    found = fmapviz.trust(Noisy(), pixels(), target=1, methods=["gradcam"])
    assert 0 < found.spread < 0.1
    assert any("varies from pass to pass of the same image" in each for each in found.remarks)


# --- boxes and pixels


class Pixelwise(nn.Module):
    """Scores each pixel by its brightness, and the mean of its neighbours."""

    classes = ("dark", "bright")

    def __init__(self):
        super().__init__()
        self.near = nn.Conv2d(3, 1, 3, padding=1)
        nn.init.constant_(self.near.weight, 1 / 27)

    def forward(self, batch):
        bright = 2 * self.near(batch)
        return {"out": torch.cat([2 - bright, bright], 1)}


@pytest.mark.parametrize(
    ("network", "target", "edge"),
    [(Pixelwise, "bright", 4), *thorough((SpotDetector, "box1", 8), (SpotDetector, "spot", 8))],
)
def test_a_planted_object_is_removed_first_of_its_box_and_of_its_pixels(network, target, edge):
    image = torch.zeros(1, 3, 32, 32)
    image[..., 8 : 8 + edge, 16 : 16 + edge] = 3
    found = fmapviz.trust(network(), image, target=target, methods=["occlusion"], patch=edge, stride=edge // 2)
    row, column = divmod(int(found.maps[0].argmax()), 32)
    assert (8 <= row < 16, 16 <= column < 24) == (True, True)
    assert found.deletion[0, :5].min() < found.deletion[0, 0] - 0.05
    assert found.insertion[0, 5] > found.insertion[0, 0] + 0.05


SCORING = {  # the layer that the score of a box comes from; those of its corners run later
    "ssdlite": "head.classification_head.module_list.0.1",
    "faster_rcnn": "roi_heads.box_predictor.cls_score",
    "retinanet": "head.classification_head.cls_logits",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCORING)
def test_boxes_are_followed_below_the_threshold_under_random_weights(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SMALL[name]().eval()
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
    image, part = scene(np.random.default_rng(0), (33, 41))[0], getattr(network, "roi_heads", network)
    part.score_thresh = 0.0
    (own,) = network([image])
    highest = float(own["scores"].detach().max())
    found = []
    for part.score_thresh in (0.0, highest - 1e-3):
        found.append(fmapviz.trust(network, image[None], target="box1", methods=["gradcam"]))
    low, high = found
    assert (low.last_layer, high.last_layer) == (SCORING[name],) * 2
    assert np.array_equal([low.last_random, low.all_random], [high.last_random, high.all_random], equal_nan=True)
    assert np.isfinite(low.last_random).all()


@pytest.mark.thorough
def test_a_sheet_and_a_notice_have_the_rank_of_the_box(tmp_path):
    image, events = pixels(size=32), []
    named, ranked = (
        fmapviz.trust(SpotDetector(), image, target=target, methods=["occlusion"], patch=16) for target in ("spot", "box1")
    )
    assert np.array_equal(named.deletion, ranked.deletion)
    assert not np.array_equal(named.sheet, ranked.sheet)
    options = {"targets": "box1,box2", "views": "occlusion,trust", "on_event": events.append}
    draw(SpotDetector(weak=(8, 1, 0.0)), image, tmp_path, **options)
    notices = [notice for event in events if isinstance(event, Outcome) for notice in event.notices]
    assert any(notice.startswith("no trust for spot, box2: ") for notice in notices)


# --- the ranking


def samples(gains, *, seed=0):
    numbers = np.random.default_rng(seed)
    count = len(gains)
    chance = numbers.normal(0.5, 0.05, (2, count, 10))
    known = np.zeros(count)
    return MethodSamples(np.arange(count), np.full(count, 0.4), 0.4 + np.array(gains), *chance, known, known, of_class=True)


def test_methods_are_ranked_by_what_the_images_tell_apart():
    numbers = np.random.default_rng(1)
    difficult = numbers.normal(0, 0.3, 40)  # the same for all methods: only paired differences show it
    keyed = {
        ("top1", "worse", ""): samples(difficult + 0.2 + numbers.normal(0, 0.02, 40)),
        ("top1", "alike", ""): samples(difficult + 0.301 + numbers.normal(0, 0.05, 40)),
        ("top1", "best", ""): samples(difficult + 0.3 + numbers.normal(0, 0.05, 40)),
    }
    rows = rank(keyed)
    assert {row.method: row.rank for row in rows} == {"alike": 1, "best": 1, "worse": 3}
    assert "40 images do not tell them apart" in summary_of(rows)
    assert rank(keyed) == rows


def test_no_method_is_before_those_of_the_first_rank_though_others_may_be_behind_one_of_them_only():
    noise = np.random.default_rng(1).normal(0, 0.035, (3, 40))  # a difference of 0.016 is twice its standard error
    gains = np.array([[0.3], [0.29], [0.28]]) + noise - noise.mean(1, keepdims=True)
    of = dict(zip(("best", "between", "worst"), gains, strict=True))
    keyed = {("top1", name, ""): samples(each) for name, each in of.items()}
    rows = rank(keyed)
    assert {row.method: row.rank for row in rows} == {"best": 1, "between": 1, "worst": 2}
    assert summary_of(rows) == "no method is before best, between, and 40 images do not tell them apart"


def test_a_map_of_equal_values_has_no_order_and_is_no_better_than_chance(tmp_path):
    summary = draw(Small(), pixels(3, size=20), tmp_path, views="occlusion,saliency,trust", patch=20)
    row = next(row for row in table_of(summary) if row["method"] == "occlusion")
    assert row["verdict"] == "no better than chance"
    assert row["note"].startswith("empty in 3 images: all values are equal")
    for of in ("deletion", "insertion"):
        assert float(row[of]) == pytest.approx(float(row[f"chance_{of}"]), rel=1e-6)
    (found,) = fmapviz.trust(Small(), pixels(size=33), methods=["occlusion"], patch=33).verdicts
    assert found == "no better than chance"


@pytest.mark.parametrize(("count", "ranked"), [(LEAST - 1, False), (LEAST, True)])
def test_few_images_are_not_ranked(count, ranked):
    rows = rank({("top1", "one", ""): samples([0.5] * count), ("top1", "two", ""): samples([0.1] * count)})
    assert [row.rank for row in rows] == ([1, 2] if ranked else [None, None])
    assert ("not ranked" in summary_of(rows)) != ranked
    assert not ranked or summary_of(rows) == f"one is before the other over {count} images"


def test_the_first_of_several_methods_is_before_the_others():
    gains = {"best": 0.5, "second": 0.3, "third": 0.1}
    rows = rank({("top1", name, ""): samples([gain] * 8) for name, gain in gains.items()})
    assert summary_of(rows) == "best is before the others over 8 images"


def test_only_images_in_which_all_methods_have_a_map_are_compared():
    one, two = samples([0.5] * 8), samples([0.1] * 8)
    rows = rank({("top1", "one", ""): one, ("top1", "two", ""): MethodSamples(two.images + 4, *(
        getattr(two, name) for name in ("deletion", "insertion", "chance_deletion", "chance_insertion", "last", "all")
    ), of_class=True)})  # fmt: skip
    assert [row.rank for row in rows] == [None, None]


def test_the_sentence_has_the_number_of_images_in_which_all_methods_have_a_map():
    of = {name: samples(np.linspace(0.2, 0.4, 8)) for name in ("early", "late")}
    object.__setattr__(of["late"], "images", of["late"].images + 4)
    rows = rank({("top1", name, ""): each for name, each in of.items()})
    assert [(row.images, row.compared, row.rank) for row in rows] == [(8, 4, None)] * 2
    assert summary_of(rows) == "4 images in which all methods have a map: not ranked, which takes 6"


@pytest.mark.thorough
def test_copies_of_an_image_count_once(tmp_path):
    image = pixels()
    summary = draw(Small(), torch.cat([image] * 6 + [pixels(seed=1)]), tmp_path, views="saliency,trust")
    (row,) = table_of(summary)
    assert [row[name] for name in ("images", "compared", "copies", "rank")] == ["2", "2", "5", ""]
    own = json.loads(next(summary.directory.glob("*/trust.json")).read_text())["images"][0]["targets"][0]
    single = draw(Small(), torch.cat([image, pixels(seed=1)]), tmp_path / "two", views="saliency,trust")
    assert table_of(single)[0] == row | {"copies": "0"}
    assert len(own["pixels"]) == 32


def test_a_method_that_is_no_better_than_chance_at_some_layers_only_is_named_with_these(tmp_path):
    numbers = np.random.default_rng(0)
    areas = {("gradcam", "early"): 0.5, ("gradcam", "late"): 0.1, ("saliency", ""): 0.5}

    def judged(method, layer, area):
        known = {"last_random": 0.0, "all_random": 0.0, "of_class": True, "sign": "both"}
        return {"method": method, "layer": layer, "deletion": area, "insertion": 1 - area, **known}

    def image():
        chance = {name: list(numbers.uniform(0.4, 0.6, 10)) for name in ("deletion", "insertion")}
        return {
            "targets": [{"target": "top1", "chance": chance, "methods": [judged(*key, area) for key, area in areas.items()]}]
        }

    table = aggregate.publish([image() for _ in range(8)], None)
    (tmp_path / "trust.csv").write_bytes(table["trust.csv"])
    _, lines = aggregate.report(tmp_path)
    assert lines[1] == "no better than chance for top1: gradcam of early, saliency"


def test_the_interval_of_the_bootstrap_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=(400, 1))
    means = resampled_means(values)
    assert means.std() == pytest.approx(values.std() / 20, rel=0.05)
    assert np.array_equal(means, resampled_means(values))


def test_the_report_has_the_ranking(tmp_path, open_report):
    summary = draw(Small(), pixels(2), tmp_path, to="html", views="gradcam,saliency,trust")
    report = open_report(summary.directory)
    report.page.click("[data-dialog=trust]")
    text = report.page.inner_text("#trust")
    assert "2 images in which all methods have a map: not ranked, which takes 6." in text
    assert "saliency" in text
    report.page.keyboard.press("Escape")
    with Image.open(next(summary.directory.rglob("*trust.png"))) as sheet:
        assert "deletion " in sheet.text["gradcam of norm"]
