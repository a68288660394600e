"""Place the labels of boxes in a picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import ImageFont

from fmapviz.draw.text import Typeface, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

MARGIN = 3  # beside the words, pixels
_SMALLEST, _LETTERS = 8, 16  # font size in small pictures: at least, and letters of such a height beside each other
_OTHER, _OWN = 0.25, 0.5  # the largest part of another box, and of its own, that a label covers

Corners = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a box.

    Attributes:
        words: Number, class and score, number and class, or the number only.
        corners: Its left, top, right and bottom, pixels of the picture.
        is_whole: Whether it has number, class and score.
    """

    words: str
    corners: Corners
    is_whole: bool = True


def place_labels(
    corners: NDArray[np.int64],
    classes: Sequence[int],
    texts: Sequence[tuple[str, str]],
    *,
    size: tuple[int, int],
    face: Typeface,
) -> list[Label | None]:
    """Place the labels of boxes above, below, beside or inside of them.

    A label covers no other label, at most a quarter of each other box, and at most half of its own. One that does not fit
    has no score, then the number only. Labels are placed in the order of the boxes, after the first box of each class: its
    colour then names the class of the others.

    Args:
        corners: Left, top, right and bottom of the B boxes, pixels of the picture, `(B, 4)`.
        classes: Of each.
        texts: Name and score of each.
        size: Width and height of the picture.
        face: Of the words, see `face_for`.

    Returns:
        B labels; None where not even the number fits.

    Example:
        >>> boxes, texts = np.array([[10, 20, 60, 40]] * 5), [("cat", "9 %")] * 5
        >>> labels = place_labels(boxes, [0] * 5, texts, size=(80, 60), face=Typeface(8, 0))
        >>> [label and label.words for label in labels]
        ['1 cat 9 %', '2 cat 9 %', '3 cat 9 %', '4 cat', None]
    """
    labels: list[Label | None] = [None] * len(corners)
    taken, areas = np.empty((0, 4), int), (corners[:, 2:] - corners[:, :2]).clip(1).prod(1)
    for box in sorted(range(len(corners)), key=lambda each: classes.index(classes[each]) != each):
        most = np.where(np.arange(len(corners)) == box, _OWN, _OTHER) * areas
        left, _, right, _ = corners[box].tolist()
        for shorter, words in enumerate(
            _wordings(box + 1, *texts[box], face=face, room=max(right - left, 2 * size[0] // 3))
        ):
            width = round(font(face.size).getlength(words)) + 2 * MARGIN
            places = _places(corners[box].tolist(), width, face.leading, size)
            is_free = ~_shared(places, taken).any(1) & (_shared(places, corners) <= most).all(1)
            if is_free.any():
                best = places[is_free.argmax()]
                labels[box], taken = Label(words, tuple(best.tolist()), not shorter), np.vstack([taken, best])
                break
    return labels


def face_for(width: int, text_size: int) -> Typeface:
    """Return the look of labels in a picture of a width; letters are smaller in a small one."""
    return Typeface(min(text_size, max(_SMALLEST, width // _LETTERS)), 0)


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font of labels."""
    return ImageFont.load_default(size)


def _wordings(number: int, name: str, score: str, *, face: Typeface, room: int) -> Iterator[str]:
    """Yield the words of a label, the longest first; a name that is longer than the room is elided."""
    for rest in ([score], []):
        left = room - 2 * MARGIN - face.width(" ".join([f"{number} ", *rest]))
        yield " ".join([str(number), *(line for line, _ in wrap(name, face, max(1, left))), *rest])
    yield str(number)


def _places(box: Corners, width: int, height: int, size: tuple[int, int]) -> NDArray[np.int64]:
    """Return where a label may be, the best place first, moved into the picture, `(P, 4)`."""
    left, top, right, bottom = box
    rows = (top - height, bottom, top, bottom - height)
    starts = [(x, y) for y in rows for x in (left, right - width)]
    starts += [(x, y) for y in rows[2:] for x in (right, left - width)]
    begin = np.minimum(starts, np.subtract(size, (width, height))).clip(0)
    return np.hstack([begin, np.add(begin, (width, height))])


def _shared(places: NDArray[np.int64], boxes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the areas that rectangles have in common with others, `(P, B)`; pixels."""
    sides = np.minimum(places[:, None, 2:], boxes[:, 2:]) - np.maximum(places[:, None, :2], boxes[:, :2])
    areas: NDArray[np.int64] = sides.clip(0).prod(2)
    return areas
