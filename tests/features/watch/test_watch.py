"""Watching does not change a training, and its pictures equal those of the command."""

from __future__ import annotations

import copy
import io
import json
import linecache
import random
import re
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import thorough
from failing_disk import FULL, PART, Disk, put_in
from image_files import save_pixels
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from trees import problems

import fmapviz
from fmapviz import InputOptions, Style, Watch
from fmapviz.errors import InputError, RequestError
from fmapviz.features.watch.filmstrip import ROWS

AS_IT_IS = InputOptions(fit="none")


class Net(nn.Module):
    """Has dropout, batch norms of which one is frozen, an in-place activation, and random numbers of every kind."""

    noisy = True

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.second, self.frozen = nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(4, 5)

    def forward(self, x):
        x = nn.functional.relu_(self.norm(self.first(x)))
        if self.noisy:
            x = x * (1 + 0.01 * random.random() + 0.01 * np.random.rand())  # noqa: NPY002
        return self.head(self.dropout(self.frozen(self.second(x)).mean((2, 3))))


class TakesDictionary(nn.Module):
    """Is called with a dictionary."""

    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(3, 4, 3)

    def forward(self, batch):
        return {name: self.only(images) for name, images in batch.items()}


def trained(steps=10, *, watch=None, net=None, autocast=False):
    """Train a network; return everything that a training consists of."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    net = net or Net()
    net.train()
    net.frozen.eval()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    watching = watch(net) if watch else None
    losses = []
    for step in range(steps):
        batch, classes = torch.randn(4, 3, 12, 12), torch.randint(5, (4,))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(net(batch), classes)
            if watching and autocast:
                watching(step)
        optimizer.zero_grad()
        loss.backward()
        if watching and step % 2:
            watching(step)  # between the backward pass and the step: gradients are there
        optimizer.step()
        losses.append(loss.item())
        if watching:
            watching(step)
    if watching:
        watching.close()
    return {
        "losses": losses,
        "state": {name: values.numpy().tobytes() for name, values in net.state_dict().items()},
        "optimizer": repr(
            [{key: np.asarray(each).tobytes() for key, each in own.items()} for own in optimizer.state.values()]
        ),
        "gradients": [values.grad.numpy().tobytes() for values in net.parameters()],
        "flags": [module.training for module in net.modules()],
        "random": (random.random(), float(np.random.rand()), float(torch.rand(1))),  # noqa: NPY002
    }


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "in" / "noise.png"
    save_pixels(path, np.random.default_rng(0).integers(0, 256, (14, 18, 3)).astype(np.uint8))
    return path


def images_of(folder, *, most=0):
    """Read TensorBoard's images: by tag, their steps and pixels."""
    events = EventAccumulator(str(folder), {"images": most, "scalars": 0})
    events.Reload()
    return {
        tag: {each.step: np.asarray(Image.open(io.BytesIO(each.encoded_image_string))) for each in events.Images(tag)}
        for tag in events.Tags()["images"]
    }, events


def watching(picture, out, **options):
    defaults = {"every": 3, "preprocessing": AS_IT_IS, "strict": True, "budget": 1, "on_event": lambda _: None}
    return lambda net: Watch(net, picture, out=out, **{**defaults, **options})


def draw_steps(make, steps, *, before=bool):
    with make(Net()) as watch:
        for step in steps:
            before(step)
            watch(step)


# --- the training


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"views": "maps,histogram,kernels,pca"},
        {"views": "maps,gradcam,saliency,grads", "targets": 2, "layers": ["first", "second"]},
        {"every": lambda step: step % 4 == 1},
        {"every": "log", "style": Style(channels="top:3")},
    ],
    ids=["maps", "more views", "gradients", "a function", "log"],
)
@pytest.mark.parametrize("to_writer", [False, True], ids=["run", "writer"])
def test_watching_does_not_change_a_training(picture, tmp_path, options, to_writer):
    expected = trained()
    out = SummaryWriter(tmp_path / "out") if to_writer else tmp_path / "out"
    assert trained(watch=watching(picture, out, **options)) == expected
    if to_writer:
        out.close()


@pytest.mark.thorough
def test_autocast_is_off_during_drawing(picture, tmp_path):
    expected = trained(4, autocast=True)
    seen = []

    class Typed(Net):
        def forward(self, x):
            if not self.training:
                seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    torch.manual_seed(0)
    assert trained(4, watch=watching(picture, tmp_path), net=Typed(), autocast=True)["losses"] != []
    torch.manual_seed(0)
    assert trained(4, watch=watching(picture, tmp_path / "b"), autocast=True) == expected
    assert seen
    assert not any(seen)


def test_the_check_detects_a_network_switched_to_training():
    """The negative control: what others do thaws the frozen batch norm."""

    def naive(net):
        class Naive:
            def __call__(self, _step):
                net.eval()
                with torch.no_grad():
                    net(torch.zeros(1, 3, 12, 12))
                net.train()

            def close(self):
                pass

        return Naive()

    expected, found = trained(), trained(watch=naive)
    assert found["flags"] != expected["flags"]
    assert found["state"] != expected["state"]
    assert found["random"] != expected["random"]


def test_a_buffer_that_is_changed_in_evaluation_mode_is_restored(picture, tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return self.conv(x)

    net = Counting()
    with watching(picture, tmp_path)(net) as watch:
        watch(0)
        watch(3)
    assert float(net.count) == 0


def test_no_hook_is_left_behind(picture, tmp_path):
    net = Net()

    def hooks():
        return [{key: dict(value) for key, value in vars(module).items() if "hooks" in key} for module in net.modules()]

    before, attributes = hooks(), [set(vars(module)) for module in net.modules()]
    with watching(picture, tmp_path)(net) as watch:
        watch(0)
        assert hooks() == before
    assert hooks() == before
    assert [set(vars(module)) for module in net.modules()] == attributes


@pytest.mark.thorough
def test_a_compiled_network_is_not_compiled_again(picture, tmp_path):
    counted = []

    def backend(graph, _inputs):
        counted.append(graph)
        return graph.forward

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    compiled = torch.compile(net, backend=backend)
    watch = watching(picture, tmp_path)(compiled)
    batch = torch.randn(2, 3, 8, 8)
    compiled(batch).sum().backward()
    once = len(counted)
    for step in range(0, 12, 3):
        watch(step)
        compiled(batch).sum().backward()
    watch.close()
    assert len(counted) == once >= 1
    assert len(list((tmp_path / "fmapviz" / "noise.png").glob("step_*"))) == 4


# --- the pictures


def test_pictures_equal_those_of_the_command_for_a_checkpoint(picture, tmp_path):
    saved = {}

    def watch_and_save(net):
        watch = watching(picture, tmp_path / "out", views="maps,gradcam", layers=["first", "second"], targets="top1")(net)

        class Both:
            def __call__(self, step):
                watch(step)
                if step not in saved:  # a repeated step is drawn once
                    saved[step] = copy.deepcopy(net)

            def close(self):
                watch.close()

        return Both()

    torch.manual_seed(0)
    net = Net()
    net.noisy = False
    trained(4, watch=watch_and_save, net=net)
    for step in (0, 3):
        summary = fmapviz.visualize(
            saved[step], picture, views="maps,gradcam", layers=["first", "second"], targets="top1", preprocessing=AS_IT_IS,
            to="png", out=tmp_path / str(step), workers=1,
        )  # fmt: skip
        folder = tmp_path / "out" / "fmapviz" / "noise.png" / f"step_{step:06d}"
        expected = {path.name: path for path in (summary.directory / "noise.png").glob("*.png")}
        assert expected.keys() == {path.name for path in folder.glob("*.png")}
        assert len(expected) == 5
        for name, path in expected.items():
            assert np.array_equal(np.asarray(Image.open(path)), np.asarray(Image.open(folder / name))), (step, name)


def test_tensorboard_has_each_step_and_the_filmstrip(picture, tmp_path):
    writer = SummaryWriter(tmp_path)
    net = Net()
    with watching(picture, writer, every=1)(net) as watch:
        for step in range(12):
            with torch.no_grad():
                net.first.weight += 0.01
            watch(step)
    writer.close()
    assert len(list(tmp_path.glob("events.*"))) == 1
    images, events = images_of(tmp_path)
    assert sorted(images["maps/00 first/noise.png"]) == list(range(12))
    assert sorted(images["input/noise.png"]) == [0]
    kept, _ = images_of(tmp_path, most=10)
    assert len(kept["maps/00 first/noise.png"]) == 10  # what TensorBoard shows without the flag
    film = kept["film/00 first/noise.png"]
    assert max(film) == 11
    assert len(watch._recorder.strips.strips["first", "noise.png"].steps) == 12
    assert film[11].shape[0] > film[0].shape[0] + 11 * 14
    tags = events.Tags()["scalars"]
    assert {"zeros/00 first", "dead/00 first", "change/00 first", "zeros/01 second"} <= set(tags)
    assert [each.step for each in events.Scalars("change/00 first")] == list(range(1, 12))


def test_a_second_writer_in_one_directory_is_detected(picture, tmp_path):
    """The negative control: others open a writer of their own."""
    writer = SummaryWriter(tmp_path)
    with watching(picture, writer)(Net()) as watch:
        watch(0)
    assert len(list(tmp_path.glob("events.*"))) == 1
    other = SummaryWriter(tmp_path, filename_suffix=".second")
    other.close()
    writer.close()
    assert len(list(tmp_path.glob("events.*"))) == 2


def test_a_step_that_is_repeated_is_drawn_once(picture, tmp_path):
    writer = SummaryWriter(tmp_path)
    with watching(picture, writer, every=2)(Net()) as watch:
        for step in (0, 0, 0, 0, 1, 1, 2, 2, 2, 2):
            watch(step)
    writer.close()
    assert sorted(images_of(tmp_path)[0]["maps/00 first/noise.png"]) == [0, 2]
    events = EventAccumulator(str(tmp_path), {"images": 0})
    events.Reload()
    assert [each.step for each in events.Images("maps/00 first/noise.png")] == [0, 2]


def test_scalars_equal_the_statistics_of_the_layers(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with torch.no_grad():
        net[0].bias[1] = -1000  # a dead channel behind the activation
    images = torch.rand(2, 3, 9, 9)
    writer = SummaryWriter(tmp_path)
    with Watch(net, images, out=writer, every=1, types="ReLU", strict=True, budget=1, on_event=lambda _: None) as watch:
        before = net(images).detach()
        watch(0)
        with torch.no_grad():
            net[0].weight *= 1.5
        after = net(images).detach()
        watch(1)
    writer.close()
    events = EventAccumulator(str(tmp_path), {"scalars": 0})
    events.Reload()
    found = {tag: [each.value for each in events.Scalars(tag)] for tag in ("zeros/00 1", "dead/00 1", "change/00 1")}
    assert found["zeros/00 1"] == pytest.approx([float((each == 0).float().mean()) for each in (before, after)])
    constant = (before.amax((2, 3)) == before.amin((2, 3))).all(0)
    assert 0 < found["dead/00 1"][0] == pytest.approx(float(constant.float().mean()))
    assert found["change/00 1"] == pytest.approx([float((after - before).norm() / before.norm())])


def test_a_filmstrip_has_one_range_for_each_column(tmp_path, picture):
    net = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False))
    with watching(picture, tmp_path, every=1)(net) as watch:
        for step in range(4):
            with torch.no_grad():
                net[0].weight.fill_(0.1 * (step + 1))
            watch(step)
    strip = watch._recorder.strips.strips["0", "noise.png"]
    assert strip.steps == [0, 1, 2, 3]
    ratio = strip.rows[3].std() / strip.rows[0].std()
    assert ratio == pytest.approx(4, rel=1e-4)
    assert (tmp_path / "fmapviz" / "noise.png" / "_filmstrip" / "00_0.filmstrip.png").exists()


@pytest.mark.thorough
def test_the_filmstrip_of_a_long_training_keeps_evenly_spaced_rows(picture, tmp_path):
    with watching(picture, tmp_path / "a", every=1, layers="first")(Net()) as watch:
        for step in range(100):
            watch(step)
    steps = watch._recorder.strips.strips["first", "noise.png"].steps
    assert (len(steps), steps[0], steps[-1]) == (ROWS, 0, 99)
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps) <= 3 * min(gaps)


@pytest.mark.thorough
def test_a_training_that_is_resumed_continues_its_filmstrips(picture, tmp_path):
    net = Net()
    with watching(picture, tmp_path, every=10)(net) as watch:
        for step in range(31):
            watch(step)
    with watching(picture, tmp_path, every=10)(net) as watch:
        for step in range(21, 52):  # from a checkpoint of step 20
            watch(step)
    assert watch._recorder.strips.strips["first", "noise.png"].steps == [0, 10, 20, 21, 30, 40, 50, 51]
    assert fmapviz_units(tmp_path) == [0, 10, 20, 21, 30, 40, 50, 51]
    assert problems(tmp_path) == []
    (tmp_path / "fmapviz" / "film.npz").write_bytes(b"damaged")
    with watching(picture, tmp_path, every=10)(net) as watch:
        watch(60)
    assert watch._recorder.strips.strips["first", "noise.png"].steps == [60]


def fmapviz_units(folder, name="noise.png"):
    units = (folder / "fmapviz" / name).glob("step_*/unit.json")
    return sorted(json.loads(path.read_bytes())["unit"]["version"]["step"] for path in units)


@pytest.mark.thorough
def test_a_decreasing_step_is_reported_once(picture, tmp_path):
    told = []
    watch = watching(picture, tmp_path, every=10, on_event=lambda event: told.append(event.message))(Net())
    for step in (0, 10, 20, 5, 6, 10, 3):
        watch(step)
    watch.close()
    assert sum("comes after" in message for message in told) == 1
    assert watch._recorder.strips.strips["first", "noise.png"].steps == [0, 3]


# --- when


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("log", [0, 1, 2, 4, 8, 16, 25]),
        *thorough((10, [0, 10, 20, 25]), (1000, [0, 25]), (lambda step: step in {7, 9}, [0, 7, 9, 25])),
    ],
)
def test_drawn_steps_follow_the_schedule(picture, tmp_path, every, expected):
    with watching(picture, tmp_path, every=every)(Net()) as watch:
        for step in range(26):
            watch(step)
    assert fmapviz_units(tmp_path) == expected


def test_an_epoch_is_drawn_at_its_first_step(picture, tmp_path):
    with watching(picture, tmp_path, every="epoch")(Net()) as watch:
        for step in range(12):
            watch(step, epoch=step // 5)
    assert fmapviz_units(tmp_path) == [0, 5, 10, 11]
    with pytest.raises(RequestError, match="needs the epoch"), watching(picture, tmp_path, every="epoch")(Net()) as watch:
        watch(1)


@pytest.mark.thorough
def test_slow_drawing_becomes_less_frequent(picture, tmp_path):
    told = []
    with watching(picture, tmp_path, every=1, budget=0, on_event=lambda event: told.append(event.message))(Net()) as watch:
        for step in range(10):
            watch(step)
    assert fmapviz_units(tmp_path) == [0, 1, 2, 4, 8, 9]
    assert sum("of the time" in message for message in told) == 1


# --- other networks


def test_a_moving_average_of_weights_is_drawn_at_each_step(picture, tmp_path):
    average = torch.optim.swa_utils.AveragedModel(Net(), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    with watching(picture, tmp_path, every=1)(lambda: average.module) as watch:
        watch(0)
        average.module = copy.deepcopy(average.module)
        with torch.no_grad():
            average.module.first.weight.zero_()
        watch(1)
    first, last = (rows.std((1, 2)).max() for rows in watch._recorder.strips.strips["first", "noise.png"].rows)
    assert last < 1e-6 < first


def test_a_network_that_is_converted_to_another_type_is_drawn_in_it(picture, tmp_path):
    net = Net()
    with watching(picture, tmp_path, every=1)(net) as watch:
        watch(0)
        net.double()
        watch(1)
    assert fmapviz_units(tmp_path) == [0, 1]


def test_a_network_with_sharded_parameters_is_refused(picture, tmp_path):
    class FullyShardedDataParallel(Net):
        pass

    with pytest.raises(RequestError, match="divided among processes"):
        watching(picture, tmp_path)(FullyShardedDataParallel())
    net = Net()
    net.first.weight.ds_id = 3
    with pytest.raises(RequestError, match="ZeRO-3"):
        watching(picture, tmp_path)(net)


# --- failures


class FullWriter:
    """A writer whose disk is full from the tenth picture on."""

    def __init__(self):
        self.count = 0

    def add_image(self, *_args, **_options):
        self.count += 1
        if self.count > 9:
            raise OSError(28, "No space left on device")

    def add_scalar(self, *_args):
        pass


@pytest.mark.thorough
def test_a_full_disk_is_one_warning_and_the_training_continues(picture):
    expected = trained()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = trained(watch=watching(picture, FullWriter(), every=1, strict=False))
    assert found == expected
    (warning,) = caught
    assert "No space left on device" in str(warning.message)
    assert linecache.getline(warning.filename, warning.lineno).strip().startswith("watching(step)")
    with pytest.raises(OSError, match="No space"):
        trained(watch=watching(picture, FullWriter(), every=1))


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [30, 100, 200, 300])
@pytest.mark.parametrize("fault", [FULL, PART])
def test_a_disk_that_fills_up_is_one_warning_and_the_run_can_continue(picture, tmp_path, monkeypatch, number, fault):
    expected = trained()
    disk = Disk(number, fault)
    with warnings.catch_warnings(record=True) as caught, put_in(monkeypatch, disk):
        warnings.simplefilter("always")
        watch = watching(picture, tmp_path, every=1, strict=False)
        assert trained(watch=watch) == expected
    assert disk.failed
    assert len(caught) == 1
    assert "No space left" in str(caught[0].message)
    with watching(picture, tmp_path, every=1)(Net()) as again:
        again(20)
    assert problems(tmp_path) == []


def test_a_network_that_fails_is_one_warning(picture, tmp_path):
    class Failing(Net):
        def forward(self, x):
            if not self.training:
                raise ValueError("no evaluation")
            return super().forward(x)

    torch.manual_seed(0)
    net = Failing()
    with pytest.warns(UserWarning, match="no evaluation") as caught:
        trained(4, watch=watching(picture, tmp_path, every=1, strict=False), net=net)
    assert len(caught) == 1
    assert net.training


@pytest.mark.parametrize(
    ("images", "options", "error"),
    [
        ("missing.png", {}, InputError),
        (__file__, {}, InputError),
        ([], {}, RequestError),
        (torch.zeros(3, dtype=torch.int64), {}, RequestError),
        (3, {}, RequestError),
        (None, {"layers": "nothing"}, RequestError),
        (None, {"every": 0}, RequestError),
        (None, {"every": "day"}, RequestError),
        (None, {"views": "mapps"}, RequestError),
        (None, {"views": "clusters"}, RequestError),
        (None, {"views": "top"}, RequestError),
        (None, {"style": Style(norm="run")}, RequestError),
        (None, {"colour": 3}, RequestError),
        (None, {"device": "cpu"}, RequestError),
        (None, {"out": 7}, RequestError),
        (None, {"out": "s3://bucket/out"}, RequestError),
    ],
)
def test_wrong_arguments_of_watch_are_refused_at_once(picture, tmp_path, images, options, error):
    with pytest.raises(error) as caught:
        Watch(
            Net(), picture if images is None else images, **{"out": tmp_path / "out", "preprocessing": AS_IT_IS, **options}
        )
    assert caught.value.hint or isinstance(caught.value, InputError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("network", "hint"),
    [
        (lambda _batch: Net(), "lambda: ema.module"),
        (lambda: 5, "a torch.nn.Module"),
        (nn.Conv2d(3, 4, 3, device="meta"), "to_empty"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), "types='Linear'"),
    ],
)
def test_a_value_that_is_no_network_is_refused_at_once(picture, tmp_path, network, hint):
    with pytest.raises(RequestError) as caught:
        Watch(network, picture, out=tmp_path / "out")
    assert hint in caught.value.hint
    assert not (tmp_path / "out").exists()


class TakesClips(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by, self.body = by, nn.Conv2d(3, 4, 3)

    def forward(self, x):
        if self.by == "unpack":
            images, frames, channels, height, width = x.shape
            return self.body(x.reshape(images * frames, channels, height, width))
        frames = x.permute(0, 2, 1, 3, 4) if self.by == "permute" else x.transpose(-4, -5)
        return self.body(frames.flatten(0, 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("network", "shape", "hint"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), (32, 32, 3), "tensor.permute(0, 3, 1, 2)"),
        (TakesDictionary(), (3, 8, 8), "call(network, images)"),
        (TakesClips("unpack"), (3, 8, 8), "inputs = (channels, frames, height, width)"),
        (TakesClips("permute"), (3, 8, 8), "inputs = (channels, frames, height, width)"),
        (TakesClips("transpose"), (3, 8, 8), "inputs = (channels, frames, height, width)"),
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (3, 9, 9), "not for tensors of floats"),
    ],
)
def test_the_warning_of_a_failing_network_names_likely_causes(tmp_path, network, shape, hint):
    with pytest.warns(UserWarning, match=re.escape(hint)):
        Watch(network, torch.rand(shape), out=tmp_path)(0)


def test_a_watch_describes_itself(picture, tmp_path):
    watch = watching(picture, tmp_path)(Net())
    assert repr(watch) == f"<fmapviz.Watch: images: 1, into {str(tmp_path / 'fmapviz')!r}; not begun>"
    watch(4)
    watch.close()
    assert repr(watch).endswith("; step 4, closed>")


@pytest.mark.thorough
def test_the_home_directory_may_be_abbreviated(picture, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Watch(Net(), picture, out="~/out", preprocessing=AS_IT_IS).directory == tmp_path / "out" / "fmapviz"
    (tmp_path / "home.png").write_bytes(Path(picture).read_bytes())
    summary = fmapviz.visualize(Net(), "~/home.png", out="~/runs", preprocessing=AS_IT_IS)
    assert summary.directory == tmp_path / "runs" / "net"
    assert summary.done == 1


def test_top_images_of_a_training_are_refused(picture, tmp_path):
    with watching(picture, tmp_path)(Net()) as watch:
        watch(0)
    for model in ({}, {"model": Net()}):
        with pytest.raises(RequestError, match="while it was trained"):
            fmapviz.top_images(watch.directory, **model)


@pytest.mark.thorough
def test_filmstrips_are_written_once_at_a_step(picture, tmp_path):
    with watching(picture, tmp_path, every=1)(Net()) as watch:
        for step in range(4):
            watch(step)
    events = EventAccumulator(str(tmp_path / "fmapviz"), {"images": 0}).Reload()
    assert [event.step for event in events.Images("film/00 first/noise.png")] == [0, 1, 3]


def test_a_step_that_is_no_number_is_refused(picture, tmp_path):
    watch = watching(picture, tmp_path)(Net())
    for step in ("first", None, [1]):
        with pytest.raises(RequestError, match="no step"):
            watch(step)


def test_a_run_with_other_settings_is_refused(picture, tmp_path):
    with watching(picture, tmp_path)(Net()) as watch:
        watch(0)
    with pytest.raises(fmapviz.errors.RefusedError):
        watching(picture, tmp_path, views="maps,histogram")(Net())
    with pytest.raises(fmapviz.errors.RefusedError) as caught:
        watching(picture, tmp_path)(nn.Sequential(nn.Conv2d(3, 4, 3)))
    assert "out=" in caught.value.hint


def test_a_network_of_another_precision_is_drawn(picture, tmp_path):
    net = Net().bfloat16()
    net.noisy = False
    with watching(picture, tmp_path)(net) as watch:
        watch(0)
    assert watch._recorder.strips.strips["first", "noise.png"].rows.dtype == np.float32


@pytest.mark.parametrize("options", [{"views": "gradcam", "layers": "head"}, {"style": Style(channels="99")}])
def test_a_network_without_drawable_layers_warns(picture, tmp_path, options):
    make = watching(picture, tmp_path, strict=False, **options)
    with pytest.warns(UserWarning, match="nothing could be drawn") as caught:
        draw_steps(make, [0, 3])
    assert len(caught) == 1


def test_replaced_layers_are_drawn_afterwards(picture, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3))
    with watching(picture, tmp_path, every=1)(net) as watch:
        watch(0)
        net[1] = nn.Conv2d(4, 2, 3)
        watch(1)
    assert (tmp_path / "fmapviz" / "noise.png" / "step_000001" / "01_1.maps.png").exists()
    assert watch._recorder.strips.strips["1", "noise.png"].steps == [1]


def test_inference_mode_is_off_during_drawing(picture, tmp_path):
    net = Net()
    with torch.inference_mode(), watching(picture, tmp_path, views="saliency,gradcam")(net) as watch:
        watch(0)
    names = {path.name for path in (tmp_path / "fmapviz" / "noise.png" / "step_000000").glob("*.png")}
    assert any("saliency" in name for name in names)
    assert any("gradcam" in name for name in names)


# --- several at once


def told_by(messages):
    return lambda event: messages.append(event.message)


def draw_together(one, other, steps=3):
    with one, other:
        for step in range(steps):
            one(step)
            other(step)


def pixels_at(images, tag, steps=(0, 1, 2)):
    return [images[tag][step] for step in steps]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("writers", [1, 2], ids=["one writer", "two writers of one directory"])
def test_two_networks_in_one_writer_have_different_tags(picture, tmp_path, writers):
    messages, opened = [], [SummaryWriter(tmp_path / "both") for _ in range(writers)]
    nets = [nn.Sequential(nn.Conv2d(3, 4, 3)) for _ in range(2)]
    draw_together(
        watching(picture, opened[0], every=1)(nets[0]),
        watching(picture, opened[-1], every=1, on_event=told_by(messages))(nets[1]),
    )
    for each in opened:
        each.close()
    for number, net in enumerate(nets):
        with watching(picture, tmp_path / str(number), every=1)(net) as watch:
            draw_steps(lambda _, watch=watch: watch, range(3))
    both, events = images_of(tmp_path / "both")
    expected = [images_of(tmp_path / str(number) / "fmapviz")[0] for number in range(2)]
    for tag in ("maps/00 0/noise.png", "film/00 0/noise.png"):
        steps = (0, 1, 2) if tag.startswith("maps") else (2,)
        assert np.array_equal(pixels_at(both, tag, steps), pixels_at(expected[0], tag, steps))
        assert np.array_equal(pixels_at(both, f"fmapviz-2/{tag}", steps), pixels_at(expected[1], tag, steps))
    assert [each.step for each in events.Scalars("zeros/00 0")] == [0, 1, 2]
    assert [each.step for each in events.Scalars("fmapviz-2/zeros/00 0")] == [0, 1, 2]
    assert [message for message in messages if "another Watch" in message and "'fmapviz-2'" in message]


@pytest.mark.thorough
def test_watches_of_different_images_in_a_directory_have_different_runs(picture, tmp_path):
    other = picture.with_name("other.png")
    other.write_bytes(picture.read_bytes())
    net, messages = Net(), []
    first = watching(picture, tmp_path, every=1)(net)
    second = watching(other, tmp_path, every=1, on_event=told_by(messages))(net)
    draw_together(first, second)
    assert (first.directory, second.directory) == (tmp_path / "fmapviz", tmp_path / "fmapviz-2")
    assert fmapviz_units(tmp_path) == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "fmapviz-2" / "other.png").glob("step_*")) == [
        "step_000000", "step_000001", "step_000002",
    ]  # fmt: skip
    assert problems(tmp_path) == []
    assert len([message for message in messages if "another Watch" in message]) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("to_writer", [False, True], ids=["run", "writer"])
def test_two_watches_of_one_network_have_different_names_until_the_first_is_closed(picture, tmp_path, to_writer):
    net, messages = Net(), []
    out = SummaryWriter(tmp_path) if to_writer else tmp_path
    first, second = (watching(picture, out, every=1, on_event=told_by(messages))(net) for _ in range(2))
    draw_together(first, second)
    assert [message for message in messages if "another Watch" in message and "'fmapviz-2'" in message]
    if to_writer:
        out.close()
        assert {tag.partition("/")[0] for tag in images_of(tmp_path)[0]} >= {"maps", "fmapviz-2"}
        return
    assert (first.directory, second.directory) == (tmp_path / "fmapviz", tmp_path / "fmapviz-2")
    assert problems(tmp_path) == []
    with watching(picture, out, every=1)(net) as third:
        third(5)
    assert third.directory == first.directory
    assert fmapviz_units(tmp_path) == [0, 1, 2, 5]


@pytest.mark.thorough
def test_watches_of_different_views_in_a_directory_have_different_runs(picture, tmp_path):
    messages = []
    one = Watch(Net(), picture, out=tmp_path, preprocessing=AS_IT_IS, on_event=told_by(messages))
    other = Watch(Net(), picture, out=tmp_path, views="mean", preprocessing=AS_IT_IS, on_event=told_by(messages))
    draw_together(one, other)
    assert [watch.directory.name for watch in (one, other)] == ["fmapviz", "fmapviz-2"]
    assert [message for message in messages if "another Watch" in message] == [
        "another Watch draws there: the name of this one is 'fmapviz-2'; name= chooses another"
    ]
    with pytest.raises(fmapviz.errors.RefusedError):  # both are closed
        Watch(Net(), picture, out=tmp_path, views="max", preprocessing=AS_IT_IS)


@pytest.mark.thorough
def test_a_name_separates_two_watches(picture, tmp_path):
    writer, messages = SummaryWriter(tmp_path / "writer"), []
    for to in (writer, tmp_path):
        draw_together(
            watching(picture, to, every=1, name="teacher", on_event=told_by(messages))(Net()),
            watching(picture, to, every=1, name="student", on_event=told_by(messages))(Net()),
            steps=1,
        )
    writer.close()
    images, events = images_of(tmp_path / "writer")
    assert {tag.partition("/")[0] for tag in images} == {"teacher", "student"}
    assert "student/zeros/00 first" in events.Tags()["scalars"]
    assert {path.name for path in tmp_path.iterdir()} == {"in", "writer", "teacher", "student"}
    assert not any("another Watch" in message for message in messages)
    assert sorted(path.name for path in (tmp_path / "writer").glob("*.npz")) == ["student.film.npz", "teacher.film.npz"]
    with pytest.raises(RequestError, match="not a directory name"):
        watching(picture, tmp_path, name="a/b")(Net())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to_writer", [False, True], ids=["run", "writer"])
def test_a_training_that_is_started_again_continues_under_the_same_names(picture, tmp_path, to_writer):
    messages = []
    for begin in (0, 2):  # the second from a checkpoint, in the same process or another
        to = SummaryWriter(tmp_path / "out") if to_writer else tmp_path / "out"
        with watching(picture, to, every=2, on_event=told_by(messages))(Net()) as watch:
            for step in range(begin, begin + 5):
                watch(step)
        if to_writer:
            to.close()
    assert watch.directory == (None if to_writer else tmp_path / "out" / "fmapviz")
    images, _ = images_of(tmp_path / "out" / ("" if to_writer else "fmapviz"))
    assert sorted(images["maps/00 first/noise.png"]) == [0, 2, 4, 6]
    assert watch._recorder.strips.strips["first", "noise.png"].steps == [0, 2, 4, 6]
    assert not any("another Watch" in message for message in messages)
    assert [message for message in messages if "drew up to step 4" in message and "from step 2" in message]


def test_only_the_first_process_of_torchrun_draws(picture, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with watching(picture, tmp_path / "out")(Net()) as watch:
        watch(0)
    assert "another process draws" in repr(watch)
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("RANK", "0")
    with watching(picture, tmp_path / "out")(Net()) as watch:
        watch(0)
    assert fmapviz_units(tmp_path / "out") == [0]


# --- tags


@pytest.mark.thorough
def test_tags_are_in_the_order_of_execution_at_all_steps(picture, tmp_path):
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            for number in range(11):
                self.add_module(f"conv{number}", nn.Conv2d(3, 3, 1))
            self.more = nn.Sequential()

        def forward(self, x):
            for number in reversed(range(11)):
                x = getattr(self, f"conv{number}")(x)
            return self.more(x)

    net = Reversed()
    run = fmapviz.visualize(
        net, picture, to="tensorboard", out=tmp_path / "run", preprocessing=AS_IT_IS, style=Style()
    ).directory
    of_run = images_of(run / "noise.png")[1].Tags()["tensors"]
    expected = [tag for tag in sorted(of_run) if tag.startswith("maps/")]
    writer = SummaryWriter(tmp_path / "writer")
    with watching(picture, writer, every=1, views="maps,kernels,histogram")(net) as watch:
        watch(0)
        watch(1)
        net.more.append(nn.Conv2d(3, 3, 1))
        net.conv4 = nn.Identity()
        watch(2)
    writer.close()
    images, events = images_of(tmp_path / "writer")
    assert len(expected) == 11
    named = [tag.removesuffix("/noise.png") for tag in sorted(images) if tag.startswith("maps/")]
    assert named == [*expected, "maps/10 more.0"]  # of then eleven layers
    for tag in expected:
        layer = tag.partition("/")[2]
        steps = [0, 1] if layer.endswith("conv4") else [0, 1, 2]
        assert sorted(images[f"{tag}/noise.png"]) == steps
        assert sorted(images[f"kernels/{layer}"]) == steps
        assert sorted(images[f"histogram/{layer}/noise.png"]) == steps
        assert [each.step for each in events.Scalars(f"zeros/{layer}")] == steps
        assert f"values/{layer}/noise.png" in events.Tags()["histograms"]


def test_images_of_the_same_name_have_different_folders(picture, tmp_path):
    other = tmp_path / "b" / picture.name
    other.parent.mkdir()
    other.write_bytes(picture.read_bytes())
    with watching([picture, other], tmp_path)(Net()) as watch:
        watch(0)
    units = [path.name for path in (tmp_path / "fmapviz").glob("noise.png*")]
    assert len(units) == 2


def test_a_relative_directory_is_resolved_once(picture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with watching(picture, "runs", every=1)(Net()) as watch:
        watch(0)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        watch(1)
    assert fmapviz_units(tmp_path / "runs") == [0, 1]


def test_a_function_of_the_step_that_fails_is_one_warning(picture, tmp_path):
    make = watching(picture, tmp_path, every=lambda step: 1 / (step - 2), strict=False)
    with pytest.warns(UserWarning, match="ZeroDivisionError") as caught:
        draw_steps(make, [0, 1, 2, 2, 3])
    assert len(caught) == 1
    assert fmapviz_units(tmp_path) == [0, 1, 3]


@pytest.mark.thorough
def test_files_that_may_not_grow_for_a_while_are_one_warning(picture, tmp_path):
    import resource
    import signal

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(step):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 if step in {2, 3} else limits[0], limits[1]))

    try:
        with pytest.warns(UserWarning, match="not drawn") as caught:
            draw_steps(watching(picture, tmp_path, every=1, strict=False), range(8), before=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(caught) == 1
    assert fmapviz_units(tmp_path) == [0, 1, 4, 5, 6, 7]
    images, _ = images_of(tmp_path / "fmapviz")
    assert {0, 1, 4, 5, 6, 7} <= set(images["maps/00 first/noise.png"])
    assert problems(tmp_path) == []


# --- several processes


def take_part(rank, port, out, picture):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.manual_seed(0)
        net = nn.parallel.DistributedDataParallel(Net())
        watch = Watch(net, picture, out=Path(out) / str(rank), every=2, preprocessing=AS_IT_IS, strict=True, budget=1)
        for step in range(5):
            net(torch.randn(2, 3, 12, 12)).sum().backward()
            watch(step)
        watch.close()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.thorough
def test_one_of_two_processes_draws_and_both_end(picture, tmp_path):
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    torch.multiprocessing.spawn(take_part, (port, str(tmp_path), str(picture)), nprocs=2)
    assert fmapviz_units(tmp_path / "0") == [0, 2, 4]
    assert not (tmp_path / "1").exists()


# --- what other commands make of its runs


@pytest.mark.thorough
def test_runs_of_trainings_are_removed_by_the_listed_name(picture, tmp_path, fmapviz):
    for training in ("one", "two"):
        with watching(picture, tmp_path / "runs" / training, views="maps,kernels")(Net()) as watch:
            for step in range(5):
                watch(step)
    with watching(picture, tmp_path / "runs" / "two", name="average")(Net()) as watch:
        watch(0)
    (tmp_path / "runs" / "two" / "last.ckpt").write_bytes(b"weights")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs" / "one")
    listed = [json.loads(line) for line in fmapviz("runs", "--json").stdout.splitlines()]
    assert [each["name"] for each in listed if each["event"] == "run"] == ["one/fmapviz", "two/average", "two/fmapviz"]
    table = fmapviz("runs").stdout.decode()
    assert table.count("in training") == 3
    refused = fmapviz("runs", "remove", "two", "--yes")
    assert (refused.returncode, b"runs/two/average, runs/two/fmapviz" in refused.stderr) == (2, True)
    for name in ("two/fmapviz", "two/average", "one"):
        done = fmapviz("runs", "remove", name, "--yes")
        assert done.returncode == 0, done.stderr
    left = {str(path.relative_to(tmp_path / "runs")) for path in (tmp_path / "runs").rglob("*")}
    assert left == {"one", "two", "two/last.ckpt", "loop"}
    assert fmapviz("runs").stderr.decode().strip() == "no runs in 'runs'"
