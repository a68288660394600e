"""Every picture of a sheet is in its cell, and no text leaves its area."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_once
from PIL import Image, ImageDraw, ImageFont

from fmapviz.draw.sheets import draw_sheet

LONG = "encoder.layers.encoder_layer_11.self_attention.out_proj"
HOSTILE = {
    "empty": "",
    "lines": "\n\n\n",
    "long": "x" * 5000,
    "many lines": "x\n" * 5000,
    "many words": "a few words " * 400,
    "blanks": " \t " * 1000,
    "controls": "\x1b[31mred\x00\x07\r\x0b\x85",
    "marks": "\u202eabc\u202c\u200b\ufeff",
    "right to left": "\u05e9\u05dc\u05d5\u05dd " * 30,
    "emoji": "\U0001f469\u200d\U0001f680" * 60,
    "combining": "z" + "\u0301" * 1000,
    "one letter a page long": "\ufdfa" * 300,
    "surrogate": "a\ud800b",
}


def sheet(cells, *, rows=None, columns=None, title="", note="", corner=None):
    rows, columns = rows or [""] * len(cells), columns or [""] * len(cells[0])
    return draw_sheet(cells, rows=rows, columns=columns, title=title, note=note, corner=corner)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def red(height=224, width=224):
    """Return a red picture; text is grey."""
    return np.full((height, width, 3), (255, 0, 0), np.uint8)


def ink(pixels):
    """Return where something is drawn, bool `(H, W)`."""
    return (pixels != 255).any(-1)


def box(mask):
    """Return top, bottom, left and right of the true values; bottom and right are exclusive."""
    rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
    return rows[0], rows[-1] + 1, columns[0], columns[-1] + 1


def runs(line):
    """Return (begin, end) of each stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], line, [False])).astype(int)))
    return [tuple(pair) for pair in edges.reshape(-1, 2).tolist()]


def reds(pixels):
    return (pixels == (255, 0, 0)).all(-1)


def resized(picture, width, height):
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))


# --- pictures


@pytest.mark.parametrize(
    ("height", "width", "shown"),
    [
        (224, 224, (224, 224)),
        (180, 320, (180, 320)),
        (160, 160, (160, 160)),
        (32, 32, (224, 224)),
        (90, 159, (127, 224)),
        (640, 480, (320, 240)),
        (224, 448, (160, 320)),
        (400, 150, (320, 120)),
        (600, 20, (320, 11)),
        (1, 1, (224, 224)),
        (1, 5000, (1, 320)),
    ],
)
def test_pictures_are_resized_as_by_pillow(height, width, shown):
    picture = noise(height, width) // 2  # nowhere white
    pixels = sheet([[picture]])
    assert pixels.dtype == np.uint8
    top, bottom, left, right = box(ink(pixels))
    assert (bottom - top, right - left) == shown
    assert np.array_equal(pixels[top:bottom, left:right], resized(picture, shown[1], shown[0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 6), (5, 2)])
@pytest.mark.parametrize("shape", [(224, 224), (180, 320), (224, 170), (20, 320)], ids=str)
def test_pictures_are_in_rows_and_columns_in_order(rows, columns, shape):
    cells = [[noise(*shape, seed=10 * row + column) // 2 for column in range(columns)] for row in range(rows)]
    pixels = sheet(cells, rows=["a\nb"] * rows, columns=["c\nd"] * columns, title="t", note="n")
    marked = sheet([[red(*shape)] * columns] * rows, rows=["a\nb"] * rows, columns=["c\nd"] * columns, title="t", note="n")
    down, across = runs(reds(marked).any(1)), runs(reds(marked).any(0))
    assert (len(down), len(across)) == (rows, columns)
    assert len({end - begin for begin, end in down}) == len({end - begin for begin, end in across}) == 1
    for line, (top, bottom) in zip(cells, down, strict=True):
        for cell, (left, right) in zip(line, across, strict=True):
            assert np.array_equal(pixels[top:bottom, left:right], cell)
            pixels[top:bottom, left:right] = (255, 0, 0)
    assert np.array_equal(pixels, marked)


def test_pictures_may_be_read_only_or_views():
    whole = noise(300, 300)
    whole.flags.writeable = False
    part = whole[10:234, 20:244]
    assert np.array_equal(sheet([[part]]), sheet([[part.copy()]]))
    pixels = sheet([[part]])
    pixels[:] = 0  # the caller's own


def test_sheets_are_deterministic():
    request = {"rows": [LONG], "columns": ["a\nb"], "title": "t", "note": "n", "corner": noise(50, 60)}
    first = sheet([[noise(30, 40)]], **request)
    assert np.array_equal(first, sheet([[noise(30, 40)]], **request))


# --- the corner


@pytest.mark.parametrize("shape", [(224, 224, 3), (224, 224), (100, 400, 3), (500, 90), (7, 5, 3)], ids=str)
def test_the_corner_keeps_the_aspect_ratio_of_the_input(shape):
    corner = np.random.default_rng(0).integers(0, 200, shape, np.uint8)
    pixels = sheet([[red()]], corner=corner)
    top, _, left, _ = box(reds(pixels))
    assert not ink(pixels[:top, left:]).any()
    assert not ink(pixels[top:, :left]).any()
    shown = pixels[:top, :left]
    high, low, begin, end = box(ink(shown))
    width, height = end - begin, low - high
    assert width == 240 or height == 112
    assert width <= 240
    assert height <= 112
    assert abs(width / height - shape[1] / shape[0]) * height <= 1 + shape[1] / shape[0]  # whole pixels
    wanted = resized(corner, width, height)
    assert np.array_equal(shown[high:low, begin:end], wanted if corner.ndim == 3 else np.stack([wanted] * 3, -1))


# --- text


def outside(marked, places):
    """Return whether a value outside these stretches is true."""
    kept = marked.copy()
    for begin, end in places:
        kept[begin:end] = False
    return kept.any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "shape"), each_once(HOSTILE, [(20, 320), (320, 20)]))
def test_hostile_text_stays_within_its_area(name, shape):
    text = HOSTILE[name]
    cells = [[red(*shape), text, red(*shape)], [red(*shape)] * 3]
    pixels = sheet(cells, rows=[text, "r"], columns=[text, "c", text], title=text, note=text)
    height, width, _ = pixels.shape
    assert outside(ink(pixels).any(1), [(28, height - 28)]) is outside(ink(pixels).any(0), [(28, width - 28)]) is np.False_
    assert reds(pixels).sum() == 5 * shape[0] * shape[1]  # nothing is written over a picture
    assert width <= 2 * 28 + 240 + 3 * (14 + max(shape[1], 120))
    above, below, row = 3 * 27 + 14 + 160 + 7, 14 + 6 * 18, max(shape[0], 160)
    assert height <= 28 + above + 2 * row + 14 + below + 28


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [LONG, "x" * 500, "many short words " * 20, f"{LONG}\n{LONG}\n{LONG}"])
@pytest.mark.parametrize("width", [224, 120], ids=str)
def test_wide_text_stays_within_its_column(name, width):
    pixels = sheet([[red(width=224), red(), red()]] * 2, rows=[name, ""], columns=[name, "", name])
    (top, _), *_ = runs(reds(pixels).any(1))
    first, _, last = runs(reds(pixels).any(0))
    header = ink(pixels[:top]).any(0)
    assert header[slice(*first)].any()
    assert header[slice(*last)].any()
    assert not outside(header, [first, last])
    assert not outside(ink(pixels).any(0), [(28, first[0] - 14), (first[0], last[1])])
    assert ink(pixels[:, : first[0]]).any()


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a\x1b[31mb\u202e", r"a\x1b[31mb\u202e"),
        ("a\ud800", r"a\ud800"),
        ("M\u00fcller Caf\u00e9", "Muller Cafe"),
        ("  a \t b ", "a b"),
        ("a\u00a0b\ufb01", "a bfi"),
    ],
)
def test_sheets_transliterate_and_escape_text(text, same):
    def written(label):
        return sheet([[red(), label]], rows=[label], columns=[label, "c"], title=label, note=label)

    assert np.array_equal(written(text), written(same))


@pytest.mark.parametrize(
    "lines",
    [
        ["encoder.layers.encoder_layer_11.", "self_attention.out_proj"],
        ["down_blocks/resnets/convolution-", "shortcut"],
        ["one_name_of_many_words_that_", "goes_on"],
        ["the very first of many rather short ", "words.here"],
        ["m" * 20, "m" * 12],
    ],
    ids=str,
)
def test_lines_break_between_words_else_in_dotted_names_else_anywhere(lines):
    assert np.array_equal(sheet([[red()]], rows=["\n" + "".join(lines)]), sheet([[red()]], rows=["\n" + "\n".join(lines)]))


@pytest.mark.parametrize("place", ["rows", "columns"])
def test_long_names_keep_both_ends(place):
    names = ["a" + "." * 300 + "c", "a" + "." * 300 + "d", "b" + "." * 300 + "c", "b" + "." * 300 + "d"]
    drawn = {sheet([[red()]], **{place: [name]}).tobytes() for name in names}
    assert len(drawn) == 4
    assert len({sheet([[red()]], **{place: [f"a{'.' * 300}{middle}{'.' * 300}c"]}).tobytes() for middle in "xy"}) == 1


@pytest.mark.parametrize("text", ["gradcam", "layer4.1.conv2", "W j g"])
def test_a_label_has_the_size_of_pillows_text(text):
    pixels = sheet([[red()]], columns=[f"\n{text}"])
    (top, _), *_ = runs(reds(pixels).any(1))
    high, low, begin, end = box(ink(pixels[:top]))
    left, above, right, below = ImageFont.load_default(14).getbbox(text)
    assert abs((end - begin) - (right - left)) <= 3
    assert abs((low - high) - (below - above)) <= 2
    first, *_ = runs(reds(pixels).any(0))
    assert abs((begin + end) / 2 - sum(first) / 2) <= 2  # in the middle


def test_the_first_line_of_a_label_is_the_strongest():
    pixels = sheet([[red()]], columns=["HHHH\nHHHH\nHHHH"])
    (top, _), *_ = runs(reds(pixels).any(1))
    lines = runs(ink(pixels[:top]).any(1))
    assert len(lines) == 3
    darkness = [(255.0 - pixels[begin:end]).sum() for begin, end in lines]
    assert darkness[1] == darkness[2]
    thin = Image.new("L", (100, 30), 255)
    ImageDraw.Draw(thin).text((5, 5), "HHHH", 20, ImageFont.load_default(15))
    assert darkness[0] > 1.1 * 3 * (255.0 - np.asarray(thin)).sum() > 1.1 * darkness[1]


def test_column_labels_are_centred_and_row_labels_right_aligned():
    pixels = sheet([[red()], [red()]], rows=["HHHHHHHHH\nH", "H"], columns=["HHHHHHHHH\nH"])
    (top, _), *_ = runs(reds(pixels).any(1))
    ((left, right),) = runs(reds(pixels).any(0))
    for begin, end in runs(ink(pixels[:top]).any(1)):
        _, _, first, last = box(ink(pixels[begin:end]))
        assert abs((first + last) - (left + right)) <= 2
    beside = pixels[top:, :left]
    for begin, end in runs(ink(beside).any(1)):
        assert left - 14 - 3 <= box(ink(beside[begin:end]))[3] <= left - 14


@pytest.mark.parametrize("label", ["x" * 500, "\n" + "x" * 500], ids=["strong", "dim"])
def test_a_label_has_at_most_two_lines(label):
    pixels = sheet([[red()]], columns=[label])
    (top, _), *_ = runs(reds(pixels).any(1))
    assert len(runs(ink(pixels[:top]).any(1))) == 2


def test_the_title_is_above_and_the_note_below():
    plain, named, noted = sheet([[red()]]), sheet([[red()]], title="a title"), sheet([[red()]], note="a note")
    both = sheet([[red()]], title="a title", note="a note")
    more = len(named) - len(plain)
    assert np.array_equal(both[28 + more :], noted[28:])
    assert np.array_equal(both[: len(named) - 28], named[:-28])
    assert ink(named[:more]).any()
    assert not ink(plain[:28]).any()
    assert len(noted) > len(plain)


# --- cells without a picture


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(224, 224), (180, 320), (20, 320), (320, 20)], ids=str)
@pytest.mark.parametrize("reason", ["no gradient reaches this layer", "one reason after another " * 40, "x" * 5000])
def test_a_text_replaces_a_picture_within_a_border(shape, reason):
    pixels = sheet([[red(*shape), reason]])
    height, width = max(shape[0], 40), max(shape[1], 120)
    frame = pixels[28 : 28 + height, -28 - width : -28]
    grey = frame[0, 0]
    assert len(set(grey.tolist())) == 1
    assert 150 < grey[0] < 240
    for edge in (frame[0], frame[-1], frame[:, 0], frame[:, -1]):
        assert (edge == grey).all()
    top, bottom, left, right = box(ink(frame[1:-1, 1:-1]))
    assert min(top, left, height - 2 - bottom, width - 2 - right) >= 4
    outer = pixels.copy()
    outer[28 : 28 + height, -28 - width : -28] = 255
    assert ink(outer).sum() == reds(pixels).sum()


def test_a_sheet_without_pictures_takes_its_size_from_the_corner():
    assert sheet([["a", "b"]], corner=noise(100, 200)).shape == sheet([[red(100, 200), "b"]], corner=noise(100, 200)).shape
    assert sheet([["a", "b"]]).shape == sheet([[red(), red()]]).shape
