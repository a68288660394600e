"""A run that shows images at the steps of a training: units named `IMAGE/step_000500`, with a `step`."""

import json
import shutil
from dataclasses import replace

import torch
from image_files import paint
from torch import nn

from fmapviz.config import InputOptions
from fmapviz.core.files import staging_folder
from fmapviz.run.loop import visualize
from fmapviz.store.unit import commit, read_unit
from fmapviz.store.unit_key import key_of

STEPS = (0, 10, 20, 50, 100, 1000, 1500)
OPTIONS = {"name": "net", "preprocessing": InputOptions(fit="none"), "types": ["Conv2d", "ReLU"], "workers": 1, "to": "html"}
DYING = 3  # the channel that is dead behind the activation from the step 50 on


class Net(nn.Module):
    """Two convolutions with an activation between them."""

    def __init__(self, first=6, second=9):
        super().__init__()
        self.first = nn.Conv2d(3, first, 3)
        self.relu = nn.ReLU()
        self.second = nn.Conv2d(first, second, 3)

    def forward(self, x):
        return self.second(self.relu(self.first(x))).mean((2, 3))


def net_at(step, last=STEPS[-1]):
    """Return the network at a step: weights on the way from one random set to another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one, other = Net(), Net()
    share = step / last
    with torch.no_grad():
        for mine, its in zip(one.parameters(), other.parameters(), strict=True):
            mine.lerp_(its, share)
        if step >= 50:
            one.first.bias[DYING] = -20
    return one


def write_step_run(root, *, images=("cat.png",), steps=STEPS, plain=("plain.png",), size=(24, 30), **options):
    """Draw a run of series and of ordinary images by the code that draws any run; return its directory.

    Args:
        root: An empty directory.
        images: Names of the series.
        steps: Their steps.
        plain: Names of images that belong to no series, at the last step; at least one.
        size: Height and width of the images.
        **options: Of `visualize`.
    """
    paths = {name: paint(root / "in" / name, seed, size) for seed, name in enumerate((*images, *plain), 1)}
    ordinary = [paths[name] for name in plain]
    options = {**OPTIONS, **options}
    last = net_at(steps[-1])
    run = visualize(last, ordinary, out=root / "out", **options).directory
    drawn = {**options, "single_file": False}
    for step in steps:
        made = visualize(net_at(step), [paths[name] for name in images], out=root / f"step{step}", **drawn).directory
        for name in images:
            add_step(run, made / name, name, step)
        shutil.rmtree(root / f"step{step}")
    visualize(last, ordinary, out=root / "out", **options)  # which lists the units that were added
    return run


def add_step(run, drawn, series, step):
    """Add a drawn unit to a run, as the step of a series."""
    record = read_unit(drawn)
    rest = {key: value for key, value in record.items() if key not in {"fmapviz", "unit", "files", "sha256"}}
    rest["run"] = json.loads((run / "run.json").read_bytes())["fingerprint"]
    drawn_as = key_of(record)
    key = replace(drawn_as, name=f"{series}/step_{step:06d}", version={**drawn_as.version, "step": step})
    with staging_folder(run) as staging:
        for path in drawn.iterdir():
            if path.name != "unit.json":
                shutil.copy(path, staging)
        return commit(staging, run, key, rest)


def page_of(run):
    """Return the data in the report's page."""
    text = (run / "index.html").read_text("ascii")
    begin = '<script type="application/json" id="run">'
    return json.loads(text.partition(begin)[2].partition("</script>")[0])
