"""Small runs with known contents, for the tests of the report."""

import json
import os
from base64 import b64encode
from dataclasses import asdict
from urllib.parse import quote

import numpy as np
import torch

from fmapviz.config import Style
from fmapviz.draw.grid import lay_out
from fmapviz.draw.png import encode
from fmapviz.formats.html.page import render_page, script
from fmapviz.run.tile import tile

PLAIN = Style()
LAYERS = (("features.0", "Conv2d", (8, 12, 12)), ("features.3", "Conv2d", (12, 6, 6)), ("classifier", "Linear", (5, 3, 4)))


def values_of(unit, layer, shape):
    """Return maps that differ by image and layer; zeros in channel 1, NaN and infinity in channel 3."""
    seed = sum(f"{unit} {layer}".encode("utf-8", "surrogateescape"))
    maps = np.random.default_rng(seed).normal(1, 3, shape).astype(np.float32)
    maps[1, ::2] = 0
    maps[3, 0, :2] = np.nan, np.inf
    return maps


def measured(maps):
    """Return for each channel of `(C, ...)`: minimum, maximum, mean, deviation, shares of zeros and of non-finite values."""
    rows = []
    for channel in maps.reshape(len(maps), -1):
        finite = channel[np.isfinite(channel)].astype(np.float64)
        rows.append(
            (finite.min(), finite.max(), finite.mean(), finite.std(), (channel == 0).mean(), 1 - len(finite) / channel.size)
        )
    return np.array(rows).T


def packed(numbers):
    return b64encode(numbers.astype("<f4").tobytes()).decode()


def report_of(unit):
    """Read an image's `report.js`."""
    text = (unit / "report.js").read_text("ascii")
    assert text.startswith("fmapviz.unit(")
    assert text.endswith(");\n")
    assert not set(text) & set("<>&")
    return json.loads(text[len("fmapviz.unit(") : -len(");\n")])


def cut_tiles(pixels, laid):
    """Return the tiles of a picture, at the places that the report's record of them names."""
    found = []
    for number in range(laid["count"]):
        row, column = divmod(number, laid["columns"])
        left, top = laid["left"] + column * laid["across"], laid["top"] + row * laid["down"]
        tile = pixels[top : top + laid["height"], left : left + laid["width"]]
        assert tile.shape[:2] == (laid["height"], laid["width"])
        found.append(tile)
    return found


def input_of(unit):
    coarse = np.random.default_rng(sum(unit.encode("utf-8", "surrogateescape"))).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return coarse.repeat(4, 0).repeat(4, 1)


def describe(href, view, name, pixels, *, layer=None, facts=(), tiles=None, channels=None, statistics=None, title=""):
    height, width = pixels.shape[:2]
    record = {
        "href": quote(os.fsencode(href), safe=""),
        "view": view,
        "name": name,
        "title": title,
        "width": width,
        "height": height,
    }
    record |= {"layer": layer, "facts": [list(fact) for fact in facts], "tiles": tiles and asdict(tiles)}
    return record | {"channels": channels, "statistics": statistics}


def layer_picture(folder, maps, index, name, kind, *, view="maps", style=PLAIN, channels=None, target=""):
    """Draw one layer into a unit's directory; return the picture's record."""
    chosen = maps if channels is None else maps[list(channels)]
    pixels = tile(torch.from_numpy(chosen), style).numpy()
    file = f"{index:02d}_{name.replace('/', '_')}.{view}.png"
    (folder / file).write_bytes(encode(pixels))
    finite = maps[np.isfinite(maps)]
    low, high = finite.min(), finite.max()
    facts = (
        ("Layer", name),
        ("Type", kind),
        ("Range", f"{low:.4g} to {high:.4g}"),
        ("Mean", f"{finite.mean():.4g}"),
        ("Scaling", "each channel"),
        ("Model", "tiny"),
    )
    return describe(
        file,
        view,
        f"{index:02d} {name}{target}",
        pixels,
        layer={"index": index, "name": name, "type": kind, "shape": list(maps.shape)},
        facts=facts,
        tiles=lay_out(len(chosen), *chosen.shape[1:], style),
        channels=channels and list(channels),
        statistics={"values": maps[0].size, "data": packed(measured(chosen))},
    )


def write_unit(root, unit, *, layers=LAYERS, style=PLAIN, channels=None, predictions=(), notices=(), more=()):
    """Write one image's directory; return its entry in the page.

    `more` are pictures of other views than maps: the view, the number, the layer, and ".top1" for the first class.
    """
    folder = root / unit
    folder.mkdir(parents=True)
    seen = input_of(unit)
    (folder / "input.png").write_bytes(encode(seen))
    pictures = [describe("input.png", "input", "input", seen)]
    for index, (name, kind, shape) in enumerate(layers):
        maps = values_of(unit, name, shape)
        pictures.append(layer_picture(folder, maps, index, name, kind, style=style, channels=channels))
    for view, index, name, target in more:
        maps = values_of(unit, name, (4, 3, 3))
        pictures.append(layer_picture(folder, maps, index, name, "Conv2d", view=view, target=target))
    record = {"unit": unit, "source": f"/pictures/{unit}", "predictions": list(predictions), "notices": list(notices)}
    (folder / "report.js").write_bytes(script("unit", {**record, "pictures": pictures}))
    return {"unit": unit, "href": href_of(unit), "predictions": list(predictions)}


def href_of(unit):
    return quote(os.fsencode(unit), safe="/") + "/"


def write_kernels(root):
    """Write the pictures of the model's kernels."""
    folder = root / "_model"
    folder.mkdir()
    weights = np.random.default_rng(5).normal(0, 1, (4, 3, 3)).astype(np.float32)
    picture = layer_picture(folder, weights, 0, "features.0", "Conv2d", view="kernels")
    record = {"unit": "_model", "source": "", "predictions": [], "notices": [], "pictures": [picture]}
    (folder / "report.js").write_bytes(script("unit", record))
    return "_model/"


def write_statistics(root, units, layers=LAYERS, dead=(2, 4)):
    """Write the statistics over all images."""
    records = []
    for name, kind, shape in layers:
        maps = np.concatenate([values_of(unit, name, shape).reshape(shape[0], -1) for unit in units], 1)
        record = {"name": name, "of": "output", "type": kind, "channels": shape[0], "data": packed(measured(maps))}
        records.append(record | {"dead": list(dead) if name == layers[0][0] else []})
    (root / "stats.js").write_bytes(script("statistics", {"images": len(units), "layers": records}))
    return "stats.js"


def write_index(root, units, **changes):
    run = {"title": "tiny", "facts": [["Model", "tiny"]], "units": units, "model": None, "statistics": None, "failures": []}
    (root / "index.html").write_bytes(render_page({**run, **changes}))


def write_run(root, names=("a.png", "b.png", "more/c.png"), **options):
    """Write a whole run; options as of `write_unit`."""
    units = [write_unit(root, name, predictions=("star 98.7 %",), **options) for name in names]
    write_index(root, units)
    return units


def write_large_run(root, images, layers):
    """Write a run of many images and layers, all with the same small picture."""
    root.mkdir()
    pixels = tile(torch.arange(36.0).reshape(4, 3, 3)).numpy()
    shared = root / "shared.png"
    shared.write_bytes(encode(pixels))
    files = [f"{number:02d}_layer{number}.maps.png" for number in range(layers)]
    pictures = [describe("input.png", "input", "input", pixels)]
    for number, file in enumerate(files):
        layer = {"index": number, "name": f"layer{number}", "type": "Conv2d", "shape": [4, 3, 3]}
        pictures.append(describe(file, "maps", f"{number:02d} layer{number}", pixels, layer=layer, tiles=lay_out(4, 3, 3)))
    units = []
    for number in range(images):
        unit = f"image{number:04d}.png"
        (root / unit).mkdir()
        for file in ("input.png", *files):
            os.link(shared, root / unit / file)
        record = {"unit": unit, "source": unit, "predictions": [], "notices": [], "pictures": pictures}
        (root / unit / "report.js").write_bytes(script("unit", record))
        units.append({"unit": unit, "href": href_of(unit), "predictions": []})
    write_index(root, units)
