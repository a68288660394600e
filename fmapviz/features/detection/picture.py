"""The input with the boxes that a detector finds in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent, LayerResult, percent
from fmapviz.draw.colormaps import table
from fmapviz.draw.text import NUMBERED, Typeface, has_glyphs, wrap
from fmapviz.errors import RequestError
from fmapviz.observe.score_kinds import Head
from fmapviz.observe.score_reader import ScoreReader
from fmapviz.run.batch_results import LayerBatch
from fmapviz.run.observers import PassObserver
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.core.members import View
    from fmapviz.data import Model
    from fmapviz.observe.boxes import Boxes
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.plan import Plan
    from fmapviz.run.running_pass import RunningPass

VIEW = "boxes"
_LINE, _MARGIN, _TEXT = 2, 3, 12  # width of lines, margin beside words and font size, pixels
_SMALLEST, _LETTERS = 8, 16  # font size in small pictures: at least, and letters of such a height beside each other
_LISTED = 8  # boxes whose class and score are listed in words
_STEP = 0.618034  # of hues: neighbouring classes differ most


@dataclass(frozen=True, slots=True, eq=False)
class BoxedInput(CustomContent):
    """Content of a drawing: boxes over the input.

    Attributes:
        corners: Left, top, right and bottom of each in pixels of the preprocessed input, the highest score first,
            float32 `(B, 4)`.
        labels: Class of each.
        names: Of the class of each.
        scores: Of each, in words.
        reason: Why there are none.
    """

    corners: NDArray[np.float32]
    labels: tuple[int, ...]
    names: tuple[str, ...]
    scores: tuple[str, ...]
    reason: str

    def render(self, _layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(draw_boxes(self, seen, scale=style.scale, text_size=style.text_size or _TEXT), has_input=True)

    def describe(self, _layer: LayerResult, _style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        rows = [*zip(range(1, _LISTED + 1), self.names, self.scores, strict=False)]
        found = "; ".join(f"{number}: {name} {score}" for number, name, score in rows)
        found += f"; and {len(self.names) - _LISTED} more" if len(self.names) > _LISTED else ""
        return {"Scaling": "the input as the network saw it", "Boxes": found or self.reason}


@dataclass(frozen=True, slots=True, eq=False)
class BoxObservation:
    """The boxes of a run; see `fmapviz.run.plan.Observation`."""

    views: Collection[str]

    targets: Sequence[TargetChoice] = ()
    differentiates = from_pixels = of_layers = of_modules = False
    captioned = True

    def without_pictures(self, *, values: bool) -> None:
        """Return None: there is only a picture."""

    def start(self, model: Model, plan: Plan, style: Style) -> BoxObserver:  # noqa: ARG002
        """Return an observer of one copy of the network."""
        return BoxObserver(model, plan)


def observe_boxes(
    views: Sequence[View],
    *,
    targets: Sequence[TargetChoice],  # noqa: ARG001
    automatic: bool,  # noqa: ARG001
) -> BoxObservation:
    """Plan pictures of boxes; see `fmapviz.run.plan.PlanObservation`."""
    return BoxObservation(tuple(view.name for view in views))


class BoxObserver(PassObserver):
    """Draws the boxes of passes."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self._head = Head.of(model, plan.scores, confidence=plan.confidence)
        self._output = plan.output

    def begin(self, current: RunningPass) -> None:
        """Run the pass to its end, where the boxes are."""
        current.enough = None

    def finish(self, current: RunningPass) -> None:
        """Draw the boxes.

        Raises:
            RequestError: The network returns none.
        """
        record = current.record
        scores = ScoreReader().read(record, key=self._output, head=self._head)
        if not scores.boxes or any(each.corners is None for each in scores.boxes):
            raise RequestError("the network returns no boxes", hint="the view boxes is of detectors")
        contents = [self._content(each, scores.names) for each in scores.boxes]
        for image, boxed in enumerate(contents):
            current.results.notify_once(image, boxed.reason)
        is_numbered = any(not has_glyphs(name) for boxed in contents for name in boxed.names)
        if is_numbered and NUMBERED not in current.results.remarks:
            current.results.remarks.append(NUMBERED)
        layer = LayerResult("", "", call=1, index=0, shape=tuple(record.pixels.shape[1:]))
        content = BatchContent(lambda number: contents[int(number)], {"number": torch.arange(record.images)})
        current.results.layers.append(LayerBatch(record.images, layer, drawings={VIEW: content}))

    def _content(self, found: Boxes, names: Sequence[str]) -> BoxedInput:
        assert found.corners is not None
        labels = tuple(found.labels.tolist())
        words = tuple(names[label] if label < len(names) else f"class {label}" for label in labels)
        scores = tuple(map(percent, found.scores.tolist()))
        return BoxedInput(found.corners.cpu().numpy().astype(np.float32), labels, words, scores, found.why_none())


def draw_boxes(found: BoxedInput, seen: NDArray[np.uint8], *, scale: int, text_size: int) -> NDArray[np.uint8]:
    """Draw boxes, the best one last, with number, class and score of each beside it.

    The font has Latin letters only: a class with a name of others has its index. Labels are placed in the order of the
    scores: above, below or inside of their boxes, where they cover the fewest pixels of other labels and of other boxes. In
    a small picture letters are smaller, and long names are elided.

    Args:
        found: The boxes.
        seen: The input, uint8 `(H, W)` or `(H, W, 3)`.
        scale: Size of a pixel.
        text_size: Of the letters, pixels.

    Returns:
        uint8 `(scale * H, scale * W, 3)`.
    """
    coloured = seen if seen.ndim == 3 else np.repeat(seen[..., None], 3, 2)
    page = Image.fromarray(coloured.repeat(scale, 0).repeat(scale, 1))
    drawing, face = ImageDraw.Draw(page), Typeface(min(text_size, max(_SMALLEST, page.width // _LETTERS)), 0)
    corners = (scale * found.corners).round().astype(int)
    names = [name if has_glyphs(name) else f"class {label}" for name, label in zip(found.names, found.labels, strict=True)]
    texts = [(f"{number} ", *text) for number, text in enumerate(zip(names, found.scores, strict=True), 1)]
    labels = _labels(corners, texts, page.size, face)
    for (left, top, right, bottom), label in reversed([*zip(corners.tolist(), found.labels, strict=True)]):
        outline = (left, top, max(left, right), max(top, bottom))
        drawing.rectangle(outline, outline=_colours(label)[0], width=_LINE * scale)
    for (words, (left, top, right, bottom)), label in reversed([*zip(labels, found.labels, strict=True)]):
        colour, ink = _colours(label)
        drawing.rectangle((left, top, right - 1, bottom - 1), colour)
        drawing.text((left + _MARGIN, (top + bottom) // 2), words, ink, _font(face.size), anchor="lm")
    return np.asarray(page)


def _labels(
    corners: NDArray[np.int64], texts: Sequence[tuple[str, str, str]], size: tuple[int, int], face: Typeface
) -> list[tuple[str, tuple[int, int, int, int]]]:
    """Return the words of each label, and its left, top, right and bottom, within a picture of a width and height.

    Args:
        corners: Of the boxes, `(B, 4)`.
        texts: Number, name and score of each.
        size: Width and height of the picture.
        face: Of the labels.
    """
    labels, taken = [], np.empty((0, 4), int)
    for position, ((number, name, score), (left, top, right, bottom)) in enumerate(
        zip(texts, corners.tolist(), strict=True)
    ):
        room = max(right - left, 2 * size[0] // 3) - 2 * _MARGIN - face.width(f"{number} {score}")
        words = number + " ".join([*(line for line, _ in wrap(name, face, max(1, room))), score])
        width, height = round(_font(face.size).getlength(words)) + 2 * _MARGIN, face.leading
        others = np.delete(corners, position, 0)
        places = [
            _within((x, y, x + width, y + height), size)
            for y in (top - height, bottom, top, bottom - height)
            for x in (left, right - width)
        ]
        covered = [(_shared(place, taken), _shared(place, others)) for place in places]
        best = places[covered.index(min(covered))]
        labels.append((words, best))
        taken = np.vstack([taken, best])
    return labels


def _within(place: tuple[int, int, int, int], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Move a rectangle into a picture."""
    left, top, right, bottom = place
    x = max(min(left, size[0] - (right - left)), 0)
    y = max(min(top, size[1] - (bottom - top)), 0)
    return x, y, x + right - left, y + bottom - top


def _shared(place: tuple[int, int, int, int], boxes: NDArray[np.int64]) -> int:
    """Return the sum of the areas that a rectangle has in common with boxes; pixels."""
    sides = np.minimum(place[2:], boxes[:, 2:]) - np.maximum(place[:2], boxes[:, :2])
    return int(sides.clip(0).prod(1).sum())


def _colours(label: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the colour of a class, and black or white, which can be read on it."""
    red, green, blue = map(int, table("turbo")[round(30 + 195 * (label * _STEP % 1))])
    bright = 0.3 * red + 0.59 * green + 0.11 * blue > 110
    return (red, green, blue), (0, 0, 0) if bright else (255, 255, 255)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
