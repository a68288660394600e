from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import thorough
from conftest import end_idle_workers
from extras import require
from image_files import paint, pixels_of, save_pixels
from PIL import Image
from run_infos import run_info
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tiny_models import TwoConvolutions
from tiny_runs import runner
from torch import nn
from trees import problems
from waiting import PATIENCE, wait_until
from warm import start_process

from fmapviz.config import InputOptions
from fmapviz.errors import OutputError
from fmapviz.events import Outcome
from fmapviz.images.find import find_images
from fmapviz.images.preprocess import standard
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.work import work
from fmapviz.run.plan import Plan
from fmapviz.run.session import Session
from fmapviz.store.run import open_run
from fmapviz.types import Model
from fmapviz.views import maps

SMALL = InputOptions(size=(16, 16))


class Net(TwoConvolutions):
    """Fails on an image with a red corner."""

    def forward(self, x):
        if (x[:, 0, :4, :4].amin((1, 2)) > 2).any():
            raise ValueError("a red corner")
        return super().forward(x)


class Folding(Net):
    """Looks at four squares of every image, as samples of their own.

    Args:
        step: Pixels between them; with 8 they are the quarters of the image.
    """

    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, x):
        squares = x.unfold(2, 8, self.step)[:, :, :2].unfold(3, 8, self.step)[:, :, :, :2]
        samples = squares.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        return super().forward(samples).unflatten(0, (len(x), 4)).mean(1)


@pytest.fixture
def pictures(tmp_path):
    """Twelve pictures in two folders."""
    names = [*(f"{n}.png" for n in range(8)), *(f"more/{n}.png" for n in range(4))]
    for seed, name in enumerate(names):
        paint(tmp_path / "pictures" / name, seed)
    return tmp_path / "pictures"


@pytest.fixture
def look(tmp_path):
    return runner(Net, out=tmp_path / "out", preprocessing=SMALL, workers=2)


def counts(summary):
    return summary.found, summary.done, summary.skipped, summary.failed


def hidden(out):
    return [path.name for path in out.rglob(".*")]


def content(out):
    """Return the content of all files below a directory, without times."""
    files = {}
    for path in filter(Path.is_file, out.rglob("*")):
        name = str(path.relative_to(out))
        if "tfevents" in name:
            events = map(Event.FromString, RawEventFileLoader(str(path)).Load())
            files[name] = [value.SerializeToString(deterministic=True) for event in events for value in event.summary.value]
        elif path.name == "unit.json":
            record = json.loads(path.read_bytes())
            del record["sha256"]
            for entry in record["files"]:
                if "tfevents" in entry["name"]:
                    del entry["sha256"]
            files[name] = record
        elif path.name == "run.json":
            files[name] = json.loads(path.read_bytes())["settings"]  # the request names the inputs
        else:
            files[name] = path.read_bytes()
    return files


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("fmapviz")}


# --- as it arrives


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [1, 8])
def test_an_image_is_finished_before_the_next_one_is_listed(batch_size, pictures, look):
    finished = threading.Event()
    waited = []

    def slowly():
        for n in range(3):
            yield pictures / f"{n}.png"
            waited.append(finished.wait(PATIENCE))
            finished.clear()

    def tell(event):
        if isinstance(event, Outcome):
            assert (event.unit / "unit.json").is_file()
            finished.set()

    assert look(slowly(), batch_size=batch_size, on_event=tell).done == 3
    assert waited == [True] * 3


def test_inputs_are_not_listed_far_ahead(pictures, look):
    """Memory does not grow with the list."""
    listed, ahead = [], []

    def listing():
        for path in sorted(pictures.rglob("*.png")):
            listed.append(path)
            yield path

    def tell(event):
        if isinstance(event, Outcome):
            ahead.append(len(listed) - len(ahead))
            time.sleep(0.02)  # slower than anything else here

    look(listing(), on_event=tell, workers=1)
    assert len(ahead) == 12
    assert max(ahead) <= 2 + 1 + 3  # in the queue, being written, in hand


class OddWriter:
    """Writes each picture to a file of its own, after something odd."""

    members = {}  # noqa: RUF012  never changed

    def __init__(self, directory, odd):
        self.directory, self.odd = directory, odd

    def add(self, _image, pictures):
        for picture in pictures:
            self.odd()
            (self.directory / picture.file_name).write_bytes(picture.png)
        return ()


@contextmanager
def open_slow_writer(directory, *, many=False):
    yield OddWriter(directory, lambda: time.sleep(0.01))


def make_session(directory, model=None, **changes):
    """A session as `visualize` loads it, with a writer of our own."""
    module = model or Net()
    info = run_info()
    fields = {
        "request": info.config,
        "model": Model("net", module, "", None, standard(SMALL), nn.Module.__call__),
        "layers": select_layers(find_layers(module)),
        "plan": Plan({"output": {"maps": maps.draw}}),
        "writers": {"slow": open_slow_writer},
        "info": info,
        "directory": open_run(directory, info),
        "device": torch.device("cpu"),
        "batch_size": 1,
        "workers": 2,
    }
    return Session(**{**fields, **changes})


@pytest.mark.thorough
def test_pictures_waiting_for_a_slow_disk_are_bounded(pictures, tmp_path):
    passes = Counter()

    class Counting(Net):
        def forward(self, x):
            passes["all"] += 1
            return super().forward(x)

    model, ahead = Counting(), []
    events = work(make_session(tmp_path / "out", model), find_images([str(pictures)]), progress=Progress())
    for finished, _ in enumerate(event for event in events if isinstance(event, Outcome)):
        ahead.append(passes["all"] - finished)
    assert len(ahead) == 12
    assert max(ahead) <= 2 + 2  # being written, and told but not yet counted here


def test_a_writer_that_fails_ends_the_run(pictures, tmp_path):
    written = []

    def fail():
        written.append(1)
        if len(written) == 10:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    @contextmanager
    def open_failing_writer(directory, *, many=False):
        yield OddWriter(directory, fail)

    session = make_session(tmp_path / "out", writers={"failing": open_failing_writer})
    outcomes = []
    with pytest.raises(OutputError, match=f"cannot write to '{session.directory}': {os.strerror(errno.EDQUOT)}"):
        outcomes.extend(work(session, find_images([str(pictures)]), progress=Progress()))
    assert hidden(tmp_path / "out") == []
    assert problems(tmp_path / "out") == []
    assert wait_until(lambda: not threads())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("error", [ValueError("no more"), OSError(5, "no more"), KeyboardInterrupt("no more")])
def test_an_exception_in_the_list_of_inputs_reaches_the_caller(error, pictures, look, tmp_path):
    def broken():
        yield pictures / "0.png"
        yield pictures / "1.png"
        raise error

    with pytest.raises(type(error)) as caught:
        look(broken())
    assert caught.value is error
    assert hidden(tmp_path / "out") == []
    assert problems(tmp_path / "out") == []
    assert wait_until(lambda: not threads())


@pytest.mark.thorough
def test_the_order_of_inputs_does_not_matter(pictures, look, tmp_path):
    paths = sorted(pictures.glob("*.png"))
    look(paths, out=tmp_path / "one", to=["png"])
    random.Random(1).shuffle(paths)
    look(paths, out=tmp_path / "other", to=["png"])
    assert content(tmp_path / "one") == content(tmp_path / "other")


# --- what fails


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_bad_image_in_the_middle_fails_alone(batch_size, pictures, look):
    (pictures / "3.png").write_bytes(b"no image")
    (pictures / "5.png").write_bytes((pictures / "4.png").read_bytes()[:200])
    (pictures / "6.png").write_bytes(b"")
    missing = pictures / "gone.png"
    events = []
    summary = look([pictures, missing], batch_size=batch_size, on_event=events.append)
    assert counts(summary) == (13, 9, 0, 4)
    assert summary.exit_code == 3
    codes = {"3.png": "E_FORMAT", "5.png": "E_DECODE", "6.png": "E_EMPTY", "gone.png": "E_MISSING"}
    assert {Path(failure.path).name: failure.code for failure in summary.failures} == codes
    outcomes = [event for event in events if isinstance(event, Outcome)]
    assert {Path(event.path).name for event in outcomes if event.status == "failed"} == set(codes)
    assert len(outcomes) == 13
    noted = [json.loads(line) for line in (summary.directory / "failures.jsonl").read_text().splitlines()]
    assert {Path(entry["path"]).name: entry["code"] for entry in noted} == codes
    assert not any((summary.directory / name).exists() for name in codes)
    assert problems(summary.directory) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_an_image_on_which_the_model_fails_fails_alone(batch_size, pictures, look):
    for name in ("2.png", "5.png"):
        pixels = pixels_of(pictures / name).copy()
        pixels[:6, :6] = (255, 0, 0)
        save_pixels(pictures / name, pixels)
    summary = look(pictures, batch_size=batch_size)
    assert counts(summary) == (12, 10, 0, 2)
    reason = "the model failed before the first layer: ValueError: a red corner"
    assert {(Path(failure.path).name, failure.code, failure.message) for failure in summary.failures} == {
        (name, "E_MODEL", f"{reason}: '{pictures / name}'") for name in ("2.png", "5.png")
    }
    assert len(list(summary.directory.rglob("unit.json"))) == 10


def test_a_model_that_always_fails_fails_each_image(pictures, look):
    class Broken(Net):
        def forward(self, x):
            return self.a(self.b(x))

    summary = look(pictures, Broken(), batch_size=8)
    assert counts(summary) == (12, 0, 0, 12)
    assert summary.exit_code == 4


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_model_with_several_samples_of_an_image_is_drawn(batch_size, pictures, look):
    summary = look(pictures, Folding(2), batch_size=batch_size, to=["png"])
    assert counts(summary) == (12, 12, 0, 0)
    record = json.loads((summary.directory / "3.png/unit.json").read_bytes())
    assert [(layer["name"], layer["samples"]) for layer in record["layers"]] == [("a", 4), ("b", 4)]
    with torch.no_grad():
        pixels = np.asarray(Image.open(summary.directory / "3.png/input.png")) / np.float32(255)
        x = torch.from_numpy((pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225]))
        first = Net().a(x.permute(2, 0, 1)[None, :, :8, :8].float())
    assert record["layers"][0]["max"] == pytest.approx(float(first.max()), rel=0.02)
    assert record["layers"][0]["shape"] == [4, 6, 6]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_samples_that_are_parts_of_an_image_are_one_map(batch_size, pictures, look):
    summary = look(pictures, Folding(8), batch_size=batch_size, to=["png"])
    record = json.loads((summary.directory / "3.png/unit.json").read_bytes())
    assert [(layer["name"], layer["samples"]) for layer in record["layers"]] == [("a", 1), ("b", 1)]
    with torch.no_grad():
        pixels = np.asarray(Image.open(summary.directory / "3.png/input.png")) / np.float32(255)
        x = torch.from_numpy((pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225]))
        x = x.permute(2, 0, 1)[None].float()
        found = [Net().a(x[..., row : row + 8, column : column + 8]).max() for row in (0, 8) for column in (0, 8)]
    assert record["layers"][0]["max"] == pytest.approx(float(max(found)), rel=0.02)


def test_a_model_without_drawable_outputs_fails(pictures, look):
    class Complex(nn.Identity):
        def forward(self, x):
            return x[0] * 1j

    class Flat(Net):
        def __init__(self):
            super().__init__()
            self.a, self.b = Complex(), None

        def forward(self, x):
            return self.a(x)

    events = []
    assert counts(look(pictures, Flat(), on_event=events.append, layers=["a"])) == (12, 0, 0, 12)
    (failure, *_) = [event.failure for event in events if isinstance(event, Outcome)]
    assert failure.code == "E_NOTHING"
    assert failure.message.startswith("none of the chosen layers could be drawn: ")
    assert "layers= and types= choose other layers" in failure.hint
    assert "'a': complex values (3, 16, 16)" in failure.message


class Loops(nn.Module):
    """Runs layers for one image without an axis of images: for the first one only, or for each."""

    def __init__(self, kind, *, each):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.each = kind, each
        self.layer = getattr(nn, kind)(3, 4, 3)
        self.relu = nn.ReLU()

    def forward(self, x):
        images = x.flatten(2) if self.kind == "Conv1d" else x
        return torch.stack([self.relu(self.layer(image)) for image in (images if self.each else images[:1])])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [4, 12, None])
@pytest.mark.parametrize("layers", [["layer"], ["relu"], ["layer", "relu"]], ids=" ".join)
@pytest.mark.parametrize(("kind", "each"), [("Conv1d", False), ("Conv2d", False), ("Conv2d", True)])
def test_layers_without_an_axis_of_images_are_drawn_for_each_image(*, kind, each, layers, batch_size, pictures, look):
    """In a batch of four, four channels of one image are not the images."""
    network = Loops(kind, each=each)
    summary = look(pictures, network, layers=layers, batch_size=batch_size, to=["png", "raw"])
    for number in range(6):
        directory = summary.directory / f"{number}.png"
        pixels = np.asarray(Image.open(directory / "input.png")) / np.float32(255)
        x = (pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
        given = torch.from_numpy(x).permute(2, 0, 1).float()
        with torch.no_grad():
            wanted = network.layer(given.flatten(1) if kind == "Conv1d" else given)
        stored = load_file(directory / "raw.safetensors")
        for name in layers:
            expected = wanted if name == "layer" else wanted.relu()
            np.testing.assert_allclose(stored[name].reshape(expected.shape), expected, atol=1e-5)
        if "layer" in layers:
            record = json.loads((directory / "unit.json").read_bytes())["layers"][0]
            assert (record["name"], record["shape"], record["samples"]) == ("layer", [*wanted.shape], 1)
            assert record["max"] == pytest.approx(float(wanted.max()), abs=1e-5)


def test_images_of_different_sizes_are_drawn_in_one_run(tmp_path, look):
    sizes = [(16, 16), (16, 16), (20, 16), (16, 16), (9, 31), (9, 31), (9, 31), (9, 31), (9, 31)]
    paths = [paint(tmp_path / "pictures" / f"{n}.png", n, size) for n, size in enumerate(sizes)]
    summary = look(paths, preprocessing=InputOptions(fit="none"), batch_size=4, to=["png"])
    assert counts(summary) == (9, 9, 0, 0)
    for path, (height, width) in zip(paths, sizes, strict=True):
        record = json.loads((summary.directory / path.name / "unit.json").read_bytes())
        assert record["layers"][1]["shape"] == [5, height - 4, width - 4]


def test_strict_ends_at_the_first_failure(pictures, look, tmp_path):
    (pictures / "2.png").write_bytes(b"no image")
    (pictures / "5.png").write_bytes(b"no image")
    summary = look(pictures, strict=True)
    assert summary.found == summary.done + summary.failed <= 7
    assert {Path(failure.path).name for failure in summary.failures} >= {"2.png"}  # another thread may have read the other
    assert (summary.stopped, summary.exit_code) == (True, 3)
    assert hidden(tmp_path / "out") == []
    assert wait_until(lambda: not threads())
    (pictures / "2.png").unlink()
    (pictures / "5.png").unlink()
    summary = look(pictures, strict=True)
    assert (summary.stopped, summary.exit_code) == (False, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"to": ["tar"], "shard": 10}])
def test_strict_draws_images_before_the_first_failure(options, pictures, look, tmp_path):
    if "shard" in options:
        require("pyarrow", "scale")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")  # it is read at once, long before the first image is drawn
    good = sorted(pictures.glob("*.png"))
    done = []
    on_event = lambda event: done.append(event.path) if isinstance(event, Outcome) and event.status == "done" else None  # noqa: E731
    summary = look([*good[:4], bad, *good[4:]], strict=True, on_event=on_event, **options)
    assert {*map(str, good[:4])} <= {*done}
    assert (summary.done, summary.failed, summary.exit_code) == (len(done), 1, 3)
    assert not summary.directory.joinpath("shard-000001").exists()


def test_strict_does_not_change_a_run_of_a_single_image(pictures, look):
    (pictures / "2.png").write_bytes(b"no image")
    summary = look(pictures / "2.png", strict=True)
    assert (summary.stopped, summary.exit_code) == (False, 4)


# --- interruption


def test_an_interruption_in_on_event_leaves_nothing_behind(pictures, look, tmp_path):
    before = {path: path.read_bytes() for path in pictures.rglob("*.png")}
    seen = []

    def tell(event):
        if isinstance(event, Outcome):
            seen.append(event)
            if len(seen) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(pictures, on_event=tell, to=["png", "tensorboard"])
    assert wait_until(lambda: not threads())
    assert hidden(tmp_path / "out") == []
    assert problems(tmp_path / "out") == []
    summary = look(pictures, to=["png", "tensorboard"])
    assert summary.skipped >= 3
    assert summary.found == 12
    assert {path: path.read_bytes() for path in pictures.rglob("*.png")} == before


def test_an_interruption_during_the_forward_pass_leaves_nothing_behind(pictures, look, tmp_path):
    passes = count(1)

    class Interrupted(Net):
        def forward(self, x):
            if next(passes) == 4:
                raise KeyboardInterrupt
            return super().forward(x)

    model = Interrupted().train()
    with pytest.raises(KeyboardInterrupt):
        look(pictures, model)
    assert wait_until(lambda: not threads())
    assert hidden(tmp_path / "out") == []
    assert problems(tmp_path / "out") == []
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("error", [RuntimeError("mine"), OSError(28, "mine")])
def test_an_exception_in_on_event_reaches_the_caller(error, pictures, look, tmp_path):
    def tell(event):
        if isinstance(event, Outcome):
            raise error

    with pytest.raises(type(error)) as caught:
        look(pictures, on_event=tell)
    assert caught.value is error
    assert hidden(tmp_path / "out") == []


def test_a_run_directory_that_disappears_is_an_output_error(pictures, look, tmp_path):
    seen = []

    def tell(event):
        if isinstance(event, Outcome):
            seen.append(event)
            shutil.rmtree(tmp_path / "out/net", ignore_errors=True)

    with pytest.raises(OutputError, match=f"cannot write to '{tmp_path}/out/net'") as caught:
        look(pictures, on_event=tell)
    assert caught.value.exit_code == 5
    hint = rf"{len(seen)} of the \d+ images listed so far are done; the same call continues"
    assert re.fullmatch(hint, caught.value.hint)
    assert wait_until(lambda: not threads())
    assert not (tmp_path / "out/net/run.json").exists()


# --- what a run uses


@pytest.mark.thorough
def test_a_run_leaves_no_threads_and_open_files(pictures, look):
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs Linux")
    (pictures / "3.png").write_bytes(b"no image")
    look(pictures, batch_size=2)  # whatever is opened once for the whole process

    def handles():
        end_idle_workers()
        return Counter(str(handle.readlink()) for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink())

    before = handles(), threading.active_count()
    for workers in (1, 4):
        look(pictures, force=True, workers=workers, to=["png", "tensorboard"])
    assert wait_until(lambda: threading.active_count() <= before[1])
    assert not handles() - before[0]
    assert not threads()


RESIDENT = """
import os, sys
from pathlib import Path
from fmapviz.config import InputOptions, Style
from fmapviz.events import Outcome
from fmapviz.run.loop import visualize
from torch import nn

resident = []

def note(event):
    if isinstance(event, Outcome):
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

visualize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)), sys.argv[1], out=sys.argv[2], on_event=note,
          preprocessing=InputOptions(size=(16, 16)), workers=2, style=Style(scale=4))
print(len(resident), resident[-1] - resident[49])
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path, torch_alone):
    """In a process of its own: one that has run other tests gains memory by itself."""
    for n in range(300):
        paint(tmp_path / "pictures" / f"{n}.png", n)
    done = torch_alone(RESIDENT, tmp_path / "pictures", tmp_path / "out")
    assert done.returncode == 0, done.stderr.decode()
    images, growth = map(int, done.stdout.split())
    assert images == 300
    assert growth < 4_000_000


# --- processes that are killed, that fail, that work side by side
#
# One process forks for every order.

SERVER = """
import errno, json, os, resource, sys
import torch
from fmapviz.core import registry
from fmapviz.errors import FmapvizError
from fmapviz.run.loop import visualize
from fmapviz.config import InputOptions
from fmapviz.run.plan import Plan
from fmapviz.views import maps
from fmapviz.formats import png, tensorboard
from PIL import Image
from torch import nn

torch.set_num_threads(1)
# Imports what a process without rights may not be able to read.
registry.views()
Image.init()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())

unstaged = set()

def watch(out):
    def hook(event, args):
        if event == "open":
            path, _, flags = args
            if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(out) and "/.fmapviz-" not in path:
                unstaged.add(os.path.basename(path))
    sys.addaudithook(hook)

def obey(order):
    inputs, out = order["inputs"], order["out"]
    if order.get("limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))
    if order.get("unprivileged") and os.getuid() == 0:
        os.setuid(65534)
    watch(out)
    try:
        summary = visualize(Net(), inputs, out=out, to=["png", "tensorboard"], preprocessing=InputOptions(size=(16, 16)),
                            workers=order.get("workers", 1), force=order.get("force", False))
    except FmapvizError as error:
        return {"error": type(error).__name__, "message": str(error), "hint": error.hint, "code": error.exit_code}
    except BaseException as error:
        return {"error": repr(error), "code": 1}
    counts = [summary.found, summary.done, summary.skipped, summary.failed]
    return {"code": summary.exit_code, "counts": counts, "unstaged": sorted(unstaged)}

def begin(order, wait, go):
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(go)
    os.read(wait, 1)  # until the parent closes the other end
    os.write(write, json.dumps(obey(order)).encode())
    os._exit(0)

print("ready", flush=True)
for line in sys.stdin:
    orders = json.loads(line)
    wait, go = os.pipe()
    children = [begin(order, wait, go) for order in orders]
    os.close(wait)
    os.close(go)
    replies = []
    for pid, read in children:
        with open(read, "rb") as pipe:
            reply = pipe.read()
        os.waitpid(pid, 0)
        replies.append(json.loads(reply))
    print(json.dumps(replies), flush=True)
"""


@pytest.fixture(scope="module")
def server(warm):
    (given, orders), (replies, told) = os.pipe(), os.pipe()
    process = start_process(warm, ["-c", SERVER], streams=[given, told, sys.__stderr__.fileno()])
    os.close(given)
    os.close(told)
    with os.fdopen(orders, "w") as stdin, os.fdopen(replies) as stdout:

        def send(*orders):
            stdin.write(json.dumps(orders, default=str) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

        assert stdout.readline() == "ready\n"
        yield send
    assert process.wait() == 0


@pytest.fixture(params=["new", "changed"])
def situation(request, server, tmp_path):
    """Two pictures, an initial OUT, and its content after a run over them.

    If they are `changed`, that is what a run over other pictures of the same names gave, None else.
    """
    inputs, start = tmp_path / "pictures", None
    paths = [inputs / "0.png", inputs / "more/1.png"]
    if request.param == "changed":
        start = tmp_path / "start"
        for path in paths:
            paint(path, 7)
        assert server({"inputs": [inputs], "out": start})[0]["counts"] == [2, 2, 0, 0]
        (start / "net/notes.txt").write_text("mine")
    for seed, path in enumerate(paths):
        paint(path, seed)
    assert server({"inputs": [inputs], "out": tmp_path / "reference"})[0]["counts"] == [2, 2, 0, 0]
    expected = content(tmp_path / "reference")
    return inputs, start, expected | ({"net/notes.txt": b"mine"} if start else {})


def prepare(out, start):
    shutil.rmtree(out, ignore_errors=True)
    if start:
        shutil.copytree(start, out)


@pytest.mark.thorough
@pytest.mark.sampled(1)
def test_everything_is_written_under_a_hidden_name(situation, server, tmp_path):
    inputs, start, _ = situation
    prepare(tmp_path / "out", start)
    (inputs / "2.png").write_bytes(b"no image")
    (reply,) = server({"inputs": [inputs], "out": tmp_path / "out"})
    assert reply["counts"] == [3, 2, 0, 1]
    assert reply["unstaged"] == ["failures.jsonl"]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit", [1000, *thorough(10, 1500, 3000)])
def test_a_full_disk_is_reported_and_leaves_no_partial_unit(limit, situation, server, tmp_path):
    """A limit on the size of files stands for the full disk: the write itself fails, not the opening."""
    inputs, start, expected = situation
    out = tmp_path / "out"
    prepare(out, start)
    (reply,) = server({"inputs": [inputs], "out": out, "limit": limit})
    assert (reply["error"], reply["code"]) == ("OutputError", 5)
    assert reply["message"].endswith("File too large")
    assert hidden(out) == []
    assert server({"inputs": [inputs], "out": out})[0]["code"] == 0
    assert content(out) == expected


@pytest.mark.thorough
def test_a_read_only_run_is_reported(server):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own cannot be entered by other users
        inputs, out = Path(folder, "pictures"), Path(folder, "out")
        paint(inputs / "0.png")
        assert server({"inputs": [inputs], "out": out})[0]["code"] == 0
        paint(inputs / "1.png")
        before = content(out)
        for path, mode in ((Path(folder), 0o755), (out, 0o777), (out / "net", 0o555)):
            path.chmod(mode)
        (reply,) = server({"inputs": [inputs], "out": out, "unprivileged": True})
        assert (reply["error"], reply["code"]) == ("OutputError", 5)
        assert reply["message"] == f"cannot write to '{out}/net': Permission denied"
        assert re.fullmatch(r"[01] of the 2 images listed so far are done; the same call continues", reply["hint"])
        assert content(out) == before
        (out / "net").chmod(0o755)


@pytest.mark.thorough
def test_eight_processes_redraw_the_same_images(pictures, server, tmp_path):
    assert server({"inputs": [pictures], "out": tmp_path / "reference"})[0]["code"] == 0
    out = tmp_path / "out"
    replies = server(*[{"inputs": [pictures], "out": out, "force": True}] * 8)
    assert [(reply["code"], reply["counts"][0], reply["counts"][3]) for reply in replies] == [(0, 12, 0)] * 8
    assert content(out) == content(tmp_path / "reference")
    assert problems(out) == []
    assert hidden(out) == []


@pytest.mark.thorough
def test_eight_processes_draw_a_part_each(pictures, server, tmp_path):
    paths = sorted(pictures.glob("*.png"))
    assert server({"inputs": paths, "out": tmp_path / "reference"})[0]["code"] == 0
    out = tmp_path / "out"
    replies = server(*({"inputs": [path], "out": out} for path in paths))
    assert [(reply["code"], reply["counts"]) for reply in replies] == [(0, [1, 1, 0, 0])] * 8
    assert content(out) == content(tmp_path / "reference")
    assert problems(out) == []
    assert hidden(out) == []
