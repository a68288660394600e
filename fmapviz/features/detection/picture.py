"""The input with the boxes that a detector finds in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent, LayerResult, percent
from fmapviz.draw.colormaps import table
from fmapviz.draw.text import NUMBERED, has_glyphs
from fmapviz.errors import RequestError
from fmapviz.features.detection.labels import MARGIN, face_for, font, place_labels
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
    from fmapviz.features.detection.labels import Label
    from fmapviz.observe.boxes import Boxes
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.plan import Plan
    from fmapviz.run.running_pass import RunningPass

VIEW = "boxes"
_LINE, _TEXT = 2, 12  # width of lines and font size, pixels
_LISTED = 8  # boxes whose class and score are listed in words
_CROWDED = "some boxes have no label, or one without class or score, where it would cover others: a larger scale makes room"
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
        return Rendered(draw_boxes(self, seen, scale=style.scale, text_size=_text_size(style)), has_input=True)

    def describe(self, layer: LayerResult, style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        rows = [*zip(range(1, _LISTED + 1), self.names, self.scores, strict=False)]
        found = "; ".join(f"{number}: {name} {score}" for number, name, score in rows)
        found += f"; and {len(self.names) - _LISTED} more" if len(self.names) > _LISTED else ""
        shortened = _shortened(self, (layer.shape[-1], layer.shape[-2]), style)
        return {
            "Scaling": "the input as the network saw it",
            "Boxes": found or self.reason,
            "Labels": f"whole at {len(self.names) - shortened} of {len(self.names)} boxes, as far as there is room"
            if shortened
            else None,
        }


@dataclass(frozen=True, slots=True, eq=False)
class BoxObservation:
    """The boxes of a run; see `fmapviz.run.plan.Observation`."""

    views: Collection[str]

    targets: Sequence[TargetChoice] = ()
    differentiates = from_pixels = of_layers = of_modules = False
    captioned = True

    def without_pictures(self, *, values: bool) -> None:
        """Return None: there is only a picture."""

    def start(self, model: Model, plan: Plan, style: Style) -> BoxObserver:
        """Return an observer of one copy of the network."""
        return BoxObserver(model, plan, style)


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

    def __init__(self, model: Model, plan: Plan, style: Style) -> None:
        self._head = Head.of(model, plan.scores, confidence=plan.confidence)
        self._output, self._style = plan.output, style

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
        size = (record.pixels.shape[-1], record.pixels.shape[-2])
        is_crowded = any(_shortened(boxed, size, self._style) for boxed in contents)
        remarks = [text for text, applies in ((NUMBERED, is_numbered), (_CROWDED, is_crowded)) if applies]
        current.results.remarks += [text for text in remarks if text not in current.results.remarks]
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
    """Draw boxes, the best one last, with number, class and score of each where they fit, see `place_labels`.

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
    drawing, letters = ImageDraw.Draw(page), font(face_for(page.width, text_size).size)
    boxes = (scale * found.corners).round().astype(int).tolist()
    for (left, top, right, bottom), label in reversed([*zip(boxes, found.labels, strict=True)]):
        outline = (left, top, max(left, right), max(top, bottom))
        drawing.rectangle(outline, outline=_colours(label)[0], width=_LINE * scale)
    for placed, label in zip(_placed(found, page.size, scale=scale, text_size=text_size), found.labels, strict=True):
        if placed is None:
            continue
        (left, top, right, bottom), (colour, ink) = placed.corners, _colours(label)
        drawing.rectangle((left, top, right - 1, bottom - 1), colour)
        drawing.text((left + MARGIN, (top + bottom) // 2), placed.words, ink, letters, anchor="lm")
    return np.asarray(page)


def _shortened(found: BoxedInput, size: tuple[int, int], style: Style) -> int:
    """Return how many boxes have no label, or one without class or score, in a picture of an input of a width and height."""
    page = (style.scale * size[0], style.scale * size[1])
    labels = _placed(found, page, scale=style.scale, text_size=_text_size(style))
    return sum(label is None or not label.is_whole for label in labels)


def _text_size(style: Style) -> int:
    return style.text_size or _TEXT


@lru_cache(maxsize=32)  # the notice, the picture and its facts need the same labels
def _placed(found: BoxedInput, size: tuple[int, int], *, scale: int, text_size: int) -> list[Label | None]:
    """Place the labels; a class whose name the font lacks has its index."""
    names = [name if has_glyphs(name) else f"class {label}" for name, label in zip(found.names, found.labels, strict=True)]
    corners, texts = (scale * found.corners).round().astype(int), [*zip(names, found.scores, strict=True)]
    return place_labels(corners, found.labels, texts, size=size, face=face_for(size[0], text_size))


def _colours(label: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the colour of a class, and black or white, which can be read on it."""
    red, green, blue = map(int, table("turbo")[round(30 + 195 * (label * _STEP % 1))])
    bright = 0.3 * red + 0.59 * green + 0.11 * blue > 110
    return (red, green, blue), (0, 0, 0) if bright else (255, 255, 255)
