"""Class activation maps of boxes, of each scale and of all."""

from __future__ import annotations

import re

import captum.attr
import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from PIL import Image
from torch import nn
from yolo import confident, saved

import fmapviz
from fmapviz.errors import RequestError
from fmapviz.events import Outcome
from fmapviz.models.load import load_model
from fmapviz.run.layer_list import load_and_list

feeds = pytest.importorskip("fmapviz.features.detection.yolo").feeds
pytestmark = needs("ultralytics", "ultralytics")

SCALES = ("model.16", "model.19", "model.22")
BOXES = ("box1", "box2", "box3", "box4", "box5")


@pytest.fixture
def network(tmp_path):
    return saved(tmp_path, "yolo11n.yaml", confident)


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 255, (96, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


class Logit(nn.Module):
    """Returns the logit of one class at one anchor."""

    def __init__(self, module, label, anchor):
        super().__init__()
        self.module, self.label, self.anchor = module, label, anchor

    def forward(self, batch):
        return self.module(batch)[1]["scores"][:, self.label, self.anchor]


def test_the_map_of_a_box_is_that_of_captum_on_its_logit_at_each_scale(network, photo, tmp_path):
    model = load_model(str(network))
    batch = fmapviz.load_image(photo, model)
    with torch.no_grad():
        logits = model.module(batch)[1]["scores"][0]
    anchor, label = divmod(int(logits.mT.flatten().argmax()), len(logits))
    for scale in SCALES:
        found = fmapviz.cam(model, batch, target="top1", layer=scale)
        assert found.target == (label,)
        assert float(found.logit) == pytest.approx(float(logits[label, anchor]))
        oracle = captum.attr.LayerGradCam(Logit(model.module, label, anchor), model.module.get_submodule(scale))
        expected = oracle.attribute(batch, None)[0, 0].detach()
        assert torch.allclose(found.raw[0], expected, atol=1e-6 * float(expected.abs().max() + 1e-12), rtol=1e-5)


@pytest.mark.thorough
def test_maps_of_all_scales_and_the_largest_of_them_are_drawn(network, photo, tmp_path):
    model = load_model(str(network))
    batch = fmapviz.load_image(photo, model)
    found = fmapviz.cam(model, batch, target="box1")
    assert found.layer == "fused"
    raw = [fmapviz.cam(model, batch, target="box1", layer=scale).raw for scale in SCALES]
    size = tuple(batch.shape[2:])
    enlarged = [nn.functional.interpolate(each[None].relu(), size, mode="bilinear")[0, 0] for each in raw]
    expected = torch.stack([each / each.max().clamp(min=1e-30) for each in enlarged]).amax(0)
    torch.testing.assert_close(found.map[0], expected, atol=1e-5, rtol=1e-4)
    assert float(found.map.max()) == 1
    options = {"views": "gradcam", "targets": "box1,box2", "to": "png"}
    run = fmapviz.visualize(str(network), photo, out=tmp_path / "out", **options)
    drawn = {tuple(path.stem.partition("_")[2].rsplit(".", 2)[:2]) for path in run.directory.rglob("*.gradcam.png")}
    assert {("fused", "box1"), ("fused", "box2")} < drawn
    assert {layer for layer, _ in drawn} <= {"fused", *SCALES}


def heat_maps_in(directory):
    """Return the layers with a heat map, by image."""
    found = {}
    for path in directory.rglob("*.gradcam.png"):
        found.setdefault(path.parent.name, set()).add(path.name.partition("_")[2].partition(".box")[0])
    return found


@pytest.mark.thorough
def test_scales_of_an_image_do_not_depend_on_those_ofothers_in_its_batch(network, tmp_path):
    photos = [np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8), np.full((112, 96, 3), 128, np.uint8)]
    for number, pixels in enumerate(photos):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    options = {"views": "gradcam", "targets": "box1", "to": "png", "workers": 1}
    alone, together = (
        fmapviz.visualize(str(network), sorted(tmp_path.glob("?.png")), out=tmp_path / f"{size}", batch_size=size, **options)
        for size in (1, 2)
    )
    layers = heat_maps_in(alone.directory)
    assert layers == {"0.png": {"model.16", "fused"}, "1.png": {*SCALES, "fused"}}
    assert heat_maps_in(together.directory) == layers
    assert not [notice for notice in together.notices if "mixes" in notice or "zero everywhere" in notice]


@pytest.mark.thorough
def test_the_layers_of_a_view_do_not_depend_onother_views(network, photo, tmp_path):
    options = {"targets": "box1", "to": "png", "workers": 1}
    alone = fmapviz.visualize(str(network), photo, out=tmp_path / "alone", views="gradcam", **options)
    beside = fmapviz.visualize(str(network), photo, out=tmp_path / "beside", views="gradcam,sheet", **options)
    assert heat_maps_in(beside.directory) == heat_maps_in(alone.directory)
    for path in alone.directory.rglob("*.gradcam.png"):
        assert (beside.directory / path.relative_to(alone.directory)).read_bytes() == path.read_bytes()
    assert len([*beside.directory.rglob("sheet.png")]) == 1


@pytest.mark.thorough
def test_the_layers_that_feed_the_head_are_chosen_by_one_word(network, photo, tmp_path):
    options = {"views": ["gradcam", "maps"], "targets": "box1", "to": "png", "layers": "head"}
    run = fmapviz.visualize(str(network), photo, out=tmp_path / "out", **options)
    heats, maps = ([path.stem for path in run.directory.rglob(f"*.{view}.png")] for view in ("gradcam", "maps"))
    assert {name.partition("_")[2].removesuffix(".maps") for name in maps} == {*SCALES}
    assert any("fused" in name for name in heats)
    with pytest.raises(RequestError, match="'head'"):
        fmapviz.visualize("shapesnet", photo, out=tmp_path / "other", layers="head")
    model = load_model(str(network))
    assert {each.name for each in fmapviz.list_layers(model, layers="head")} == {*SCALES}
    assert load_and_list(model, layers="head").outputs == {}  # it has boxes, and `output=` chooses no class scores
    with fmapviz.capture(model, layers=["head"]) as captured:
        model.module(fmapviz.load_image(photo, model))
    assert {*captured} == {*SCALES}
    other = fmapviz.load_model(str(network))
    assert {each.layer for each in fmapviz.diff(model, other, photo, layers="head")} == {*SCALES}


@pytest.mark.thorough
def test_five_boxes_take_one_forward_pass_and_five_backward_passes(network, photo, monkeypatch, tmp_path):
    model = load_model(str(network))
    forward, backward, differentiate = [], [], torch.autograd.grad
    model.module.register_forward_hook(lambda *_: forward.append(1))
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *args, **options: (backward.append(1), differentiate(*args, **options))[1]
    )
    options = {"views": "gradcam", "targets": ",".join(BOXES), "to": "png", "workers": 1, "out": tmp_path}
    run = fmapviz.visualize(model, photo, **options)
    assert (run.done, len(forward), len(backward)) == (1, 1, 5)
    drawn = {path.stem.rsplit(".", 2)[1] for path in run.directory.rglob("*.gradcam.png")}
    assert drawn == {*BOXES}


@pytest.mark.thorough
def test_nothing_found_names_the_threshold_that_shows_something(photo, tmp_path):
    network = saved(tmp_path)
    model = load_model(str(network))
    with pytest.raises(RequestError, match=r"no box has a score above 0\.25: .* shows it"):
        fmapviz.cam(model, fmapviz.load_image(photo, model), target="box1")
    run = fmapviz.visualize(str(network), photo, out=tmp_path, views="gradcam", to="png", targets="box1")
    ((failure,),) = [run.failures]
    assert "no box has a score above 0.25: the highest is" in failure.message
    assert failure.hint.startswith("confidence=")
    lower = float(failure.hint.split()[0].partition("=")[2])
    again = fmapviz.visualize(str(network), photo, out=tmp_path, views="gradcam", to="png", targets="box1", confidence=lower)
    assert (again.done, again.failed) == (1, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("targets", ["box1", *thorough(",".join(BOXES))])
def test_rows_of_a_sheet_are_what_a_box_depends_on_before_the_head(network, photo, tmp_path, targets):
    run = fmapviz.visualize(str(network), photo, out=tmp_path, views="gradcam,sheet", targets=targets, to="png")
    (sheet,) = run.directory.rglob("sheet.png")
    with Image.open(sheet) as drawn:
        rows, columns = (drawn.text[fact].removesuffix(" (chosen automatically)") for fact in ("Rows", "Columns"))
    rows = rows.split(", ")
    scales = {scale for scale in SCALES if [*run.directory.rglob(f"*{scale}.box*.gradcam.png")]}
    assert scales == {*rows} & {*SCALES}
    assert {"model.0", *scales} <= {*rows}
    assert all(int(row.split(".")[1]) <= 22 for row in rows)
    assert len(columns.split("; ")) == len(targets.split(","))
    assert not any("nothing to see" in notice for notice in run.notices)


@pytest.mark.parametrize("name", [*thorough("yolo26n.yaml", "yolov8n.yaml", "rtdetr-resnet50.yaml")])
def test_the_scales_are_what_the_head_reads(name):
    model = load_model(f"ultralytics:{name}")
    read = []
    model.module.model[-1].register_forward_pre_hook(lambda _, given: read.extend(given[0]))
    outputs = {}
    for path in feeds(model.module):
        keep = lambda _module, _given, output, path=path: outputs.update({path: output})  # noqa: E731
        model.module.get_submodule(path).register_forward_hook(keep)
    with torch.no_grad():
        model.module(torch.rand(1, 3, 64, 64))
    assert [id(each) for each in outputs.values()] == [id(each) for each in read]


@pytest.mark.thorough
def test_no_notice_is_of_a_layer_that_is_not_drawn(network, photo, tmp_path):
    run = fmapviz.visualize(str(network), photo, out=tmp_path, views="gradcam", targets="box1", to="png")
    assert not any("model.23" in notice for notice in run.notices)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("target", "reason", "hint"),
    [
        ("box:500,500,600,600", "it is outside the picture, which has", "places are in pixels of the upright picture"),
        ("box9999", "the network finds only", "targets='top1' takes the best box"),
    ],
)
def test_a_picture_without_the_box_says_so_first(network, photo, tmp_path, *, target, reason, hint):
    events = []
    fmapviz.visualize(str(network), photo, out=tmp_path, views="layercam", targets=target, on_event=events.append)
    (failure,) = [event.failure for event in events if isinstance(event, Outcome)]
    assert failure.message.startswith(f"nothing is drawn for {target}: {reason}")
    assert failure.hint.startswith(hint)


@pytest.mark.thorough
def test_a_picture_without_any_of_the_targets_says_why_of_each(network, photo, tmp_path):
    events = []
    outside = "box:500,500,600,600"
    options = {"views": "layercam", "confidence": 0.999, "to": "png", "on_event": events.append, "out": tmp_path}
    fmapviz.visualize(str(network), photo, targets=f"top1,{outside},box1", **options)
    (failure,) = [event.failure for event in events if isinstance(event, Outcome)]
    reasons = (
        r"top1, box1: no box has a score above 0.999: the highest is 0\.\d+",
        f"{outside}: it is outside the picture, .*",
    )
    assert re.fullmatch(f"nothing is drawn for {'; for '.join(reasons)}", failure.message)
    assert re.fullmatch(r"confidence=0\.\d+ shows one of them", failure.hint)


@pytest.mark.thorough
def test_a_named_layer_is_drawn_also_after_layers_were_chosen(network, photo):
    model = load_model(str(network))
    shapes = {layer: fmapviz.cam(model, photo, target="box1", layer=layer) for layer in ("auto", "head", *SCALES)}
    assert [each.layer for each in shapes.values()] == ["fused", "fused", *SCALES]
    assert torch.equal(shapes["auto"].map, shapes["head"].map)
    assert shapes[SCALES[0]].raw.shape[1] == 2 * shapes[SCALES[1]].raw.shape[1]


@pytest.mark.thorough
def test_the_confidence_has_an_effect_on_the_view_of_boxes(network, photo, tmp_path):
    run = fmapviz.visualize(str(network), photo, out=tmp_path, views="boxes", confidence=0.3, predictions=0, to="png")
    assert not any("confidence" in notice for notice in run.notices)


@pytest.mark.thorough
def test_a_class_that_is_not_in_the_picture_has_its_highest_score(network, photo):
    model = load_model(str(network))
    batch = fmapviz.load_image(photo, model)
    with torch.no_grad():
        scores = model.module(batch)[1]["scores"][0].sigmoid()
    best = scores.argmax(0)
    highest = {label: float(scores[label][best == label].max()) for label in best.unique().tolist()}
    lowest = min(highest, key=highest.__getitem__)
    least = (highest[lowest] + max(highest.values())) / 2
    with pytest.raises(RequestError, match=f"no box of the class has .*: the highest is {highest[lowest]:.3g}"):
        fmapviz.cam(model, batch, target=lowest, confidence=least)
