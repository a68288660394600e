"""Runs of a network in a file, which are drawn again, forged, and compared by their digests."""

from __future__ import annotations

import hashlib
import json
import textwrap
from contextlib import chdir

from image_files import paint

from fmapviz.config import InputOptions, Style
from fmapviz.core import checksummed_json
from fmapviz.run.loop import visualize
from fmapviz.store.digest import Digests
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.verify import verify_copy

CODE = """
    import torch
    from torch import nn

    inputs = (3, 24, 24)


    def build():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), *head)


    def energy(maps):
        return maps.square().mean(1)
"""
KINDS = {
    "pictures, values and statistics": {"to": "png,html,raw,npz,stats,tensorboard,svg", "views": "maps,kernels,gradcam"},
    "values of all images": {"to": "png,raw", "views": "maps,pca,clusters", "norm": "run", "pca": "shared"},
    "shards": {"to": "tar,tensorboard,stats", "shard": 2, "views": "maps,mean"},
    "events alone": {"to": "tensorboard", "views": "maps,grads,mean"},
    "chosen layers": {"to": "png", "views": "layercam,histogram", "layers": "0,2", "targets": "1,top2"},
    "a view of one's own": {"to": "png", "views": "net.py:energy"},
    "other inputs": {"to": "png,stats", "size": 31, "fit": "pad", "predictions": 2, "channels": "top:2"},
    "torchvision": {"model": "squeezenet1_1", "weights": "random:3", "layers": "classifier.1", "to": "png", "size": 64},
    "pages of several images": {"to": "png,stats", "views": "maps,top"},
}
OFTEN = ("pictures, values and statistics", "values of all images")


def furnish(place):
    """Write the code of a network and three images into a directory; return it."""
    (place / "net.py").write_text(textwrap.dedent(CODE))
    for number, name in enumerate(("a.png", "b.png", "more/c.png")):
        paint(place / "in" / name, number, (24, 24))
    return place


def draw(place, out, **options):
    """Draw three images in a directory with the code of a network."""
    groups = {}
    for name, kind in (("style", Style), ("preprocessing", InputOptions)):
        given = {key: options.pop(key) for key in [*options] if key in kind.__dataclass_fields__}
        groups[name] = kind(**given)
    with chdir(place):
        return visualize(options.pop("model", "net.py:build"), "in", out=out, workers=1, **groups, **options).directory


def comment(code):
    code.write_text(code.read_text() + "# a comment\n")


def digest_of(place, *, partial=False):
    """Return the only digest below a directory; `partial`: run-level files may be out of date."""
    with local_copy(place) as copy:
        digests = Digests()
        list(verify_copy(copy, digests=digests))
    (run,) = digests.runs
    return digests.digest(run, partial=partial)


def forge(directory, name, data, *, record="unit.json"):
    """Replace a file of a unit, or of the run by its `products.json`, and correct all checksums."""
    (directory / name).write_bytes(data)
    content = json.loads((directory / record).read_bytes())
    del content["sha256"]
    for entry in content["files"]:
        if entry["name"] == name:
            entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (directory / record).write_bytes(checksummed_json.dumps(content))
