"""Maps over a clip or a volume lie over their frame or slice, which the gradient determines."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fmapviz
from fmapviz import InputOptions, Style

FRAMES, SIDE = 9, 16
OVER = Style(alpha=0.0, gray_input=False)  # the input alone


class InSpaceAndTime(nn.Module):
    """Convolutions over rows, columns and time."""

    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.conv = nn.Conv3d(3, 4, (kernel, 3, 3), (stride, 1, 1), (padding, 1, 1))
        self.last = nn.Conv3d(4, 4, (3, 3, 3), (stride, 2, 2), (1, 1, 1))
        self.head = nn.Linear(4, 5)

    def forward(self, clips):
        return self.head(self.last(self.conv(clips).relu()).mean((2, 3, 4)))


class FrameByFrame(nn.Module):
    """Processes frames one by one, and joins the results."""

    def __init__(self, time, order, *, unbinds):
        super().__init__()
        self.time, self.order, self.unbinds = time, order, unbinds
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv3d(4, 4, 3, (2, 1, 1), 1)
        self.head = nn.Linear(4, 5)

    def forward(self, clips):
        frames = clips.unbind(self.time) if self.unbinds else [clips.select(self.time, each) for each in range(FRAMES)]
        seen = {each: self.conv(frames[each]).relu() for each in self.order}
        return self.head(self.last(torch.stack([seen[each] for each in range(FRAMES)], 2)).mean((2, 3, 4)))


class AsImages(nn.Module):
    """Folds the frames into the images, after every second one is dropped."""

    def __init__(self, step):
        super().__init__()
        self.step, self.conv, self.head = step, nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, clips):
        images, _, channels, height, width = clips.shape
        maps = self.conv(clips[:, :: self.step].reshape(-1, channels, height, width))
        return self.head(maps.view(images, -1, 4, height, width).mean((1, 3, 4)))


NETWORKS = {
    "convolutions": (lambda: InSpaceAndTime(3, 1, 1), 2),
    "strides": (lambda: InSpaceAndTime(3, 2, 1), 2),
    "without padding": (lambda: InSpaceAndTime(4, 1, 0), 2),
    "of one frame": (lambda: InSpaceAndTime(1, 2, 0), 2),
    "frame by frame": (lambda: FrameByFrame(2, range(FRAMES), unbinds=False), 2),
    "frame by frame, frames first": (lambda: FrameByFrame(1, range(FRAMES), unbinds=True), 1),
    "frame by frame, backwards": (lambda: FrameByFrame(2, range(FRAMES - 1, -1, -1), unbinds=True), 2),
    "as images": (lambda: AsImages(1), 1),
    "as images, every third": (lambda: AsImages(3), 1),
}


@pytest.fixture(autouse=True)
def forgotten(tmp_path):
    """Forget the modules that a test has written: fmapviz looks in modules for what belongs to a network."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def clip_of(time):
    """A clip `(3, T, H, W)` or `(T, 3, H, W)` of frames that differ."""
    return torch.rand(3, FRAMES, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).movedim(1, time - 1).contiguous()


def frames_seen(network, clip, time):
    """Return the first and last frame that each map depends on, by layer, call and frame of the map."""
    found, calls, clip = {}, {}, clip[None].clone().requires_grad_()

    def note(name, output):
        calls[name] = calls.get(name, 0) + 1
        call = name if calls[name] == 1 else f"{name}#{calls[name]}"
        maps = output if output.ndim == 5 else output[:, :, None] if len(output) == 1 else output.movedim(0, 1)[None]
        for frame in range(maps.shape[2]):
            (gradient,) = torch.autograd.grad(maps[:, :, frame].sum(), clip, retain_graph=True)
            numbers = gradient.movedim(time, 0).flatten(1).abs().sum(1).nonzero().flatten().tolist()
            suffix = f".t{frame}" if maps.shape[2] > 1 else ""
            found[f"{call}{suffix}"] = min(numbers), max(numbers)

    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Conv3d)
    ]
    network(clip)
    for hook in hooks:
        hook.remove()
    return found


def numbered(picture):
    return int(picture.text["Frame"].split()[1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_heat_map_lies_over_the_middle_frame_of_its_field(name, tmp_path):
    torch.manual_seed(0)
    build, time = NETWORKS[name]
    network, clip = build().eval(), clip_of(time)
    summary = fmapviz.visualize(
        network,
        clip[None],
        types=["Conv2d", "Conv3d"],
        views=["mean"],
        to="png",
        style=OVER,
        out=tmp_path,
    )
    assert not [notice for notice in summary.notices if "laid over" in notice]
    expected = frames_seen(network, clip, time)
    found = {path.name.split("_", 1)[1].removesuffix(".mean.png"): path for path in summary.directory.rglob("*.mean.png")}
    assert found.keys() == expected.keys(), summary.failures
    longest = max(last - first for first, last in expected.values())
    for layer, path in found.items():
        (first, last), picture = expected[layer], Image.open(path)
        within = first > 0 and last < FRAMES - 1
        if last == first or within or last - first == longest:  # elsewhere padding is a part of what it sees
            assert numbered(picture) in {(first + last) // 2, (first + last + 1) // 2}, layer
        frame = clip.select(time - 1, numbered(picture)).permute(1, 2, 0)
        np.testing.assert_allclose(np.asarray(picture), frame.numpy() * 255, atol=0.51)


@pytest.mark.thorough
def test_top_images_are_cropped_from_the_frame_of_the_map(tmp_path):
    torch.manual_seed(0)
    clips = torch.zeros(2, 3, FRAMES, SIDE, SIDE)
    for number, clip in enumerate(clips):
        for frame in range(FRAMES):
            clip[:, frame] = (number * FRAMES + frame + 1) / (2 * FRAMES + 1)
    run = fmapviz.visualize(
        InSpaceAndTime(3, 1, 1).eval(),
        clips,
        layers="conv",
        types=["Conv3d"],
        views=["top"],
        to="png",
        out=tmp_path,
    ).directory
    rows = list(csv.DictReader((run / "top.csv").read_text().splitlines()))
    assert len(rows) == FRAMES * 4 * 2
    for row in rows:
        frame = int(row["layer"].rpartition(".t")[2])
        assert f"slice {frame} of {FRAMES}, from 0" in row["note"]


class Pooled(nn.Module):
    """Has a layer that sees the whole clip, and one that takes a frame chosen by its values."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, clips):
        brightest = clips.mean((1, 3, 4)).argmax(1)
        chosen = clips[torch.arange(len(clips)), :, brightest]
        return self.head((self.conv(clips.mean(2)) + self.conv(chosen)).mean((2, 3)))


def test_maps_of_several_or_unknown_frames_are_reported(tmp_path):
    summary = fmapviz.visualize(Pooled().eval(), clip_of(2)[None], views=["mean"], to="png", out=tmp_path)
    (said,) = [notice for notice in summary.notices if "laid over a single frame" in notice]
    assert said.endswith(": conv, conv#2")
    (picture, _) = sorted(summary.directory.rglob("*.mean.png"))
    assert Image.open(picture).text["Frame"] == f"laid over frame 0 of {FRAMES}, from 0"


def test_saliency_of_a_clip_is_reported_as_of_all_frames(tmp_path):
    summary = fmapviz.visualize(InSpaceAndTime(3, 1, 1).eval(), clip_of(2)[None], views=["saliency"], to="png", out=tmp_path)
    assert [notice for notice in summary.notices if notice.startswith("saliency of a clip or volume is the largest")]


def test_a_volume_is_shown_in_one_range_of_all_its_slices(tmp_path):
    volume = np.linspace(-3, 8, FRAMES)[:, None, None] * np.ones((FRAMES, SIDE, SIDE))
    summary = fmapviz.visualize(
        InSpaceAndTime(1, 1, 0).eval(), torch.from_numpy(volume).float().expand(1, 3, -1, -1, -1), layers="conv",
        types=["Conv3d"], views=["mean"], to="png", style=OVER, out=tmp_path,
    )  # fmt: skip
    shades = [np.asarray(Image.open(path))[0, 0, 0] for path in sorted(summary.directory.rglob("*.mean.png"))]
    assert shades == [round(255 * slice_number / (FRAMES - 1)) for slice_number in range(FRAMES)]


@pytest.mark.parametrize("number", [0, 4, 8])
def test_a_class_activation_map_of_one_frame_lies_over_it(number):
    torch.manual_seed(0)
    network, clip = FrameByFrame(1, range(FRAMES), unbinds=False).eval(), clip_of(1)
    layer = "conv" if number == 0 else f"conv#{number + 1}"
    found = fmapviz.cam(network, clip[None], target=1, layer=layer, style=OVER)
    np.testing.assert_allclose(found.overlay[0], clip[number].permute(1, 2, 0).numpy() * 255, atol=0.51)
    assert not [notice for notice in found.notices if "laid over" in notice]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["FrameByFrame(1, range(9), unbinds=False)", "AsImages(1)"])
@pytest.mark.parametrize("given", ["film", "picture"])
def test_frames_of_a_film_come_first_where_the_network_takes_them_first(kind, given, tmp_path, monkeypatch):
    """Frame number t has the shade 20 t."""
    code = f"from test_frames import *\ninputs = (9, 3, 16, 16)\ndef build(): return {kind}\n"
    (tmp_path / "own.py").write_text(code)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    frames = [Image.new("L", (16, 16), 20 * number) for number in range(FRAMES)]
    path = tmp_path / f"{given}.{'gif' if given == 'film' else 'png'}"
    frames[3].save(path) if given == "picture" else frames[0].save(path, save_all=True, append_images=frames[1:])
    summary = fmapviz.visualize(
        f"{tmp_path}/own.py:build", path, views=["mean"], to="png", style=OVER, out=tmp_path / "out",
        preprocessing=InputOptions(mean=(0.0,), std=(1.0,)),
    )  # fmt: skip
    assert not summary.failures
    shades = [np.asarray(Image.open(each))[0, 0, 0] for each in sorted(summary.directory.rglob("*_conv*.mean.png"))]
    assert shades == ([60] * FRAMES if given == "picture" else [20 * number for number in range(FRAMES)])


def test_clips_of_a_users_preprocessing_are_shown_by_frames(tmp_path, monkeypatch):
    """It returns the frames first, of the shade 20 t."""
    code = (
        "from test_frames import *\ninputs = (9, 3, 16, 16)\ndef build(): return AsImages(1)\n"
        "def preprocess(picture): return (torch.arange(9.0) * 20 / 255)[:, None, None, None].expand(9, 3, 16, 16)\n"
    )
    (tmp_path / "prepared.py").write_text(code)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    summary = fmapviz.visualize(
        f"{tmp_path}/prepared.py:build", tmp_path / "a.png", views=["mean"], to="png", style=OVER, out=tmp_path / "out"
    )
    assert not summary.failures
    shades = [np.asarray(Image.open(each))[0, 0, 0] for each in sorted(summary.directory.rglob("*_conv*.mean.png"))]
    assert shades == [20 * number for number in range(FRAMES)]
