"""A contact sheet shows every layer in order at its own resolution, in landscape."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_once
from PIL import Image

from fmapviz.draw.sheets import draw_contact

LONG = "encoder.layers.encoder_layer_11.self_attention.out_proj"
RED = (255, 0, 0)


def noise(*shape, seed=0):
    """Return noise that contains neither white nor red."""
    return np.random.default_rng(seed).integers(0, 120, shape, np.uint8)


def red(height, width):
    return np.full((height, width, 3), RED, np.uint8)


def reds(pixels):
    return (pixels == RED).all(-1)


def ink(pixels):
    return (pixels != 255).any(-1)


def boxes(mask):
    """Return top, bottom, left and right of each rectangle of true values, row by row."""
    padded = np.pad(mask, 1)
    corners = mask & ~padded[:-2, 1:-1] & ~padded[1:-1, :-2]
    found = []
    for top, left in np.argwhere(corners).tolist():
        right = left + int(np.argmin(padded[top + 1, left + 1 :]))
        bottom = top + int(np.argmin(padded[top + 1 :, left + 1]))
        assert mask[top:bottom, left:right].all()
        found.append((top, bottom, left, right))
    assert sum((bottom - top) * (right - left) for top, bottom, left, right in found) == mask.sum()
    return found


def sheet(count, *, seen=(224, 224), shape=(55, 55), name="features.0", title="a title", note="a note"):
    cells = [(red(*shape), name, "64 x 55 x 55")] * count
    return draw_contact(red(*seen), cells, title=title, note=note)


SHAPES = [(55, 55), (1, 1, 3), (7, 7), (112, 112, 3), (500, 500), (224, 224), (13, 27, 3), (300, 40), (1, 500), (500, 1)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seen", [(224, 224, 3), (32, 32), (180, 320, 3), (640, 480), (20, 900)], ids=str)
def test_input_and_layers_are_in_order_and_scaled_as_by_pillow(seen):
    pictures = [noise(*shape, seed=number) for number, shape in enumerate([seen, *SHAPES])]
    for picture in pictures:
        picture.flags.writeable = False
    cells = [(picture, LONG, "64 x 55 x 55") for picture in pictures[1:]]
    pixels = draw_contact(pictures[0], cells, title="title", note="note")
    marked = [(red(*picture.shape[:2]), LONG, "64 x 55 x 55") for picture in pictures]
    where = reds(draw_contact(marked[0][0], marked[1:], title="title", note="note"))
    places = boxes(where)
    assert len(places) == len(pictures)
    width, height = (max(box[end] - box[end - 1] for box in places) for end in (3, 1))
    assert max(width, height) == 200
    rows = sorted(places, key=lambda box: (box[0] + box[1]) // 2 // height)
    order = sorted(rows, key=lambda box: ((box[0] + box[1]) // (2 * (height + 30)), box[2] + box[3]))
    for picture, (top, bottom, left, right) in zip(pictures, order, strict=True):
        scale = min(width / picture.shape[1], height / picture.shape[0])
        assert abs(bottom - top - max(1, picture.shape[0] * scale)) <= 1
        assert abs(right - left - max(1, picture.shape[1] * scale)) <= 1
        assert right - left == width or bottom - top == height
        method = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        shown = np.asarray(Image.fromarray(picture).resize((right - left, bottom - top), method))
        assert np.array_equal(pixels[top:bottom, left:right], shown if shown.ndim == 3 else np.stack([shown] * 3, -1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("count", "seen"), each_once([1, 5, 20, 53, 120, 299], [(224, 224), (180, 320), (320, 240)]))
def test_a_contact_sheet_is_landscape_with_few_empty_cells(count, seen):
    pixels = sheet(count, seen=seen, shape=seen)
    places = boxes(reds(pixels))
    assert len(places) == count + 1
    sizes = {(bottom - top, right - left) for top, bottom, left, right in places}
    assert len(sizes) == 1
    ((height, width),) = sizes
    assert max(height, width) == 200 if count <= 40 else 96 <= max(height, width) <= 200
    assert abs(width / height - seen[1] / seen[0]) < 0.02
    columns, rows = len({box[2] for box in places}), len({box[0] for box in places})
    assert (rows - 1) * columns < count + 1 <= rows * columns
    if count > 1:
        assert 1.2 <= pixels.shape[1] / pixels.shape[0] <= 1.85


@pytest.mark.thorough
def test_more_layers_are_drawn_smaller():
    sides = [boxes(reds(sheet(count)))[0] for count in (20, 60, 120)]
    widths = [right - left for _, _, left, right in sides]
    assert widths == sorted(set(widths), reverse=True)
    assert 140 <= widths[1] <= 200


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 3) for name in ("conv1", LONG, LONG * 4, "\u4f60" * 300, "x" * 5000, "a b " * 500, "")), (LONG * 4, 120)],
)
def test_captions_stay_below_their_pictures(name, count):
    pixels = sheet(count, name=name, shape=(224, 224), title=name, note=name)
    places = boxes(reds(pixels))
    columns = sorted({(left, right) for _, _, left, right in places})
    top, bottom, _, _ = places[0]
    down = next((box[0] for box in places if box[0] > bottom), pixels.shape[0] - 28) - top
    for begin, _, left, right in places:
        assert ink(pixels[begin + bottom - top + 2 : begin + down - 14, left:right]).any()
    table = ink(pixels[top : places[-1][1] + 20])
    for _, right in columns:
        assert not table[:, right + 1 : right + 13].any()  # no label reaches into the gap
    frame = ink(pixels)
    frame[27:-28, 27:-27] = False  # a line around pictures stands in the margin
    assert not frame.any()


@pytest.mark.thorough
def test_long_names_remain_distinguishable():
    names = [f"features.denseblock{block}.denselayer{layer}.conv1" for block in (1, 2) for layer in (1, 12)]
    sheets = {sheet(120, name=name).tobytes() for name in names}
    assert len(sheets) == 4


def test_the_caption_of_the_input_is_its_size():
    named = draw_contact(red(32, 48), [(red(32, 48), "input", "32 x 48 pixels")], title="", note="")
    (top, bottom, left, right), (_, _, other, end) = boxes(reds(named))
    assert bottom - top == 133
    assert end - other == right - left == 200
    below = named[bottom + 2 :]
    assert ink(below[:, left:right]).any()
    assert np.array_equal(below[:, left:right], below[:, other:end])


def test_the_title_is_above_and_the_note_below():
    plain, titled, noted = sheet(5, title="", note=""), sheet(5, note=""), sheet(5, title="")
    more = len(titled) - len(plain)
    assert more > 0
    assert np.array_equal(titled[28 + more :], plain[28:])
    assert ink(titled[28 : 28 + more]).any()
    assert np.array_equal(noted[: len(plain) - 28], plain[:-28])
    assert ink(noted[len(plain) - 28 :]).any()


def test_a_contact_sheet_without_layers_shows_the_input():
    ((top, bottom, left, right),) = boxes(reds(sheet(0)))
    assert (bottom - top, right - left) == (200, 200)
