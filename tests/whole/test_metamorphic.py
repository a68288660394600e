"""However a run is divided, ordered or interrupted, it leaves the same tree; see `trees` for what "the same" means.

The network's sums are of small whole numbers: exact in any order, so that nothing hides behind rounding.
"""

from __future__ import annotations

import random
import shutil
from functools import cache, partial
from itertools import product

import pytest
import torch
from cases import each_once, often, thorough
from image_files import paint
from torch import nn
from trees import difference, problems, snapshot

from fmapviz.config import InputOptions, Style, execution
from fmapviz.events import Outcome
from fmapviz.run.loop import visualize

IMAGES = 9
FORMATS = ["tensorboard", "png", "html", "raw", "npz", "stats"]


class Exact(nn.Module):
    """Two convolutions by whole numbers."""

    def __init__(self):
        super().__init__()
        numbers = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 3)
        for values in self.parameters():
            values.data = torch.randint(-2, 3, values.shape, generator=numbers).float()

    def forward(self, x):
        return self.second(self.first((x * 255).round()))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Pictures, and one that cannot be read."""
    folder = tmp_path_factory.mktemp("in")
    for number in range(IMAGES):
        paint(folder / f"{number}.png", number)
    (folder / "damaged.png").write_bytes(b"no image")
    return sorted(folder.iterdir())


def run(place, *parts, **options):
    """Draw a run, and return its files, which are removed."""
    given = {"to": FORMATS, "views": ["maps", "mean"], "workers": 1, "batch_size": 1, "out": place}
    preparation = InputOptions(fit="none", mean=(0, 0, 0), std=(1, 1, 1))
    for part in parts:
        visualize(Exact(), part, preprocessing=preparation, **{**given, **options})
    assert problems(place) == []
    found = snapshot(place)
    shutil.rmtree(place)
    return found


@pytest.fixture
def leave(tmp_path):
    return partial(run, tmp_path / "out")


@pytest.fixture(scope="module")
def straight(inputs, tmp_path_factory):
    """Return the files of a run from its first image to its last, by the name of its style."""
    return cache(lambda style: run(tmp_path_factory.mktemp("straight") / "out", inputs, style=STYLES[style]))


def shuffled(inputs, seed):
    return random.Random(seed).sample(inputs, len(inputs))


class EnoughError(Exception):
    """The user interrupts the run."""


PLAIN = "each image by itself"
STYLES = {PLAIN: Style(), "by all images": Style(norm="run")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("style", "workers", "batch_size"), often(each_once(STYLES, [4, 1], [8, 1]), of=product(STYLES, [1, 4], [8, 1]))
)
def test_order_workers_and_batch_size_change_nothing(*, style, workers, batch_size, inputs, leave, straight):
    expected = straight(style)
    found = leave(shuffled(inputs, workers + batch_size), style=STYLES[style], workers=workers, batch_size=batch_size)
    assert len(expected) > 9 * IMAGES
    assert difference(found, expected) == []


@pytest.mark.parametrize("parts", [3, *thorough(2, 10)])
def test_a_run_in_parts_equals_the_whole_run(parts, inputs, leave, straight):
    mixed = shuffled(inputs, parts)
    found = leave(*(mixed[part::parts] for part in range(parts)), workers=2)
    assert difference(found, straight(PLAIN)) == []


@pytest.mark.parametrize(("seen", "style"), often([(1, PLAIN)], of=product([1, 4, 8], STYLES)))
def test_a_resumed_run_equals_an_uninterrupted_one(*, style, seen, inputs, leave, straight, tmp_path):
    told = []

    def tell(event):
        told.append(isinstance(event, Outcome) and event.status == "done")
        if sum(told) == seen:
            raise EnoughError

    with pytest.raises(EnoughError):
        leave(inputs, style=STYLES[style], workers=2, on_event=tell)
    assert len(list(tmp_path.glob("out/*/*.png/unit.json"))) >= seen
    assert difference(leave(inputs, style=STYLES[style]), straight(style)) == []


@pytest.mark.thorough
def test_a_folder_and_a_list_of_its_files_are_the_same_inputs(inputs, leave, straight):
    assert difference(leave([inputs[0].parent]), straight(PLAIN)) == []


@pytest.mark.thorough
def test_repeating_a_run_changes_nothing(inputs, leave, straight):
    assert difference(leave(inputs, inputs, inputs), straight(PLAIN)) == []


@pytest.mark.thorough
def test_other_settings_change_the_tree(inputs, leave, straight):
    """Or nothing above could fail."""
    other = difference(leave(inputs, style=Style(padding=3)), straight(PLAIN))
    assert len([name for name in other if name.endswith(".png") and "input" not in name]) >= 2 * IMAGES


@pytest.mark.thorough
def test_the_number_of_cores_does_not_change_the_tree(inputs, leave, straight, monkeypatch):
    """The default number of workers depends on the machine; the tree does not."""
    monkeypatch.setattr(execution.os, "cpu_count", lambda: 7)
    assert difference(leave(inputs, workers=None, batch_size=None), straight(PLAIN)) == []
