"""Heat maps, and the pictures that are drawn of them."""

from io import BytesIO

import numpy as np
import torch
from PIL import Image
from results import result_of, seen_of
from run_infos import run_info

from fmapviz.config import Style
from fmapviz.core.drawings import HeatMap
from fmapviz.draw.heatmap import heat_and_ends
from fmapviz.draw.picture import make_pictures
from fmapviz.types import Drawing, LayerResult, Target
from fmapviz.views import contact

NAME = "cats/lena.png"
SEEN = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
SHEETS = {"contact": contact.compose}
COMMON = {"Model", "Weights", "Image", "Software", "Predicted"}
STAR, FOURTH = Target("top1", 3, "star", 2.34567), Target("class4", 4, "", -0.5)


def info(**style):
    return run_info(weights="random", views="mean", to="png", style=Style(**{"labels": False, **style}))


def heat(view="gradcam", layer="layer4", *, target=STAR, raw=None, **others):
    raw = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32) if raw is None else np.asarray(raw, np.float32)
    found, *ends = heat_and_ends(torch.from_numpy(raw)[None], (16, 24))
    pixels = found[0].mul(255).add(0.5).byte().numpy()
    over = others.pop("over", True)
    fields = {"type": "Sequential" if layer else "", "index": 0, "call": 1, "shape": (512, 4, 6), **others}
    drawing = Drawing(view, HeatMap(raw, pixels, over, "turbo" if over else "gray", ends=tuple(map(float, ends))))
    return LayerResult(layer, target=target, drawings=(drawing,), **fields)


def drawn(*heats, predictions=(), drawings=()):
    return result_of(*drawings, *heats, predictions=predictions)


def content(layer):
    return layer.drawings[0].content


def pictures(*heats, style=None, seen=SEEN, sheets=SHEETS, **others):
    """Return the pictures of heat maps and sheets, decoded."""
    made = make_pictures(drawn(*heats, **others), seen_of(seen), NAME, info(**(style or {})), sheets=sheets)
    return [Shown(each, np.asarray(Image.open(BytesIO(each.png)))) for each in made if each.group != "input"]


class Shown:
    """A picture, its pixels, and the facts that other pictures of the image do not share."""

    def __init__(self, picture, pixels):
        self.view, self.name, self.title, self.pixels = picture.group, picture.name, picture.title, pixels
        self.facts = {key: value for key, value in picture.facts.items() if key not in COMMON}
