"""The input with the boxes that a detector finds in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent, LayerResult
from fmapviz.draw.colormaps import table
from fmapviz.draw.text import legible
from fmapviz.errors import RequestError
from fmapviz.observe.class_scores import Head
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
_LINE, _TEXT = 2, 12  # width and font size, pixels
_LISTED = 8  # boxes whose class and score are listed in words
_STEP = 0.618034  # of hues: neighbouring classes differ most


@dataclass(frozen=True, slots=True, eq=False)
class BoxedInput(CustomContent):
    """Content of a drawing: boxes over the input.

    Attributes:
        corners: Left, top, right and bottom of each in pixels of the preprocessed input, the highest score first,
            float32 `(B, 4)`.
        labels: Class of each.
        texts: Class and score of each, in words.
        reason: Why there are none.
    """

    corners: NDArray[np.float32]
    labels: tuple[int, ...]
    texts: tuple[str, ...]
    reason: str

    def render(self, _layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(draw_boxes(self, seen, scale=style.scale, text_size=style.text_size or _TEXT), has_input=True)

    def describe(self, _layer: LayerResult, _style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        found = "; ".join(f"{number}: {text}" for number, text in enumerate(self.texts[:_LISTED], 1))
        found += f"; and {len(self.texts) - _LISTED} more" if len(self.texts) > _LISTED else ""
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
        layer = LayerResult("", "", call=1, index=0, shape=tuple(record.pixels.shape[1:]))
        content = BatchContent(lambda number: contents[int(number)], {"number": torch.arange(record.images)})
        current.results.layers.append(LayerBatch(record.images, layer, drawings={VIEW: content}))

    def _content(self, found: Boxes, names: Sequence[str]) -> BoxedInput:
        assert found.corners is not None
        labels = tuple(found.labels.tolist())
        words = (names[label] if label < len(names) else f"class {label}" for label in labels)
        texts = (f"{word} {score:.2f}" for word, score in zip(words, found.scores.tolist(), strict=True))
        return BoxedInput(found.corners.cpu().numpy().astype(np.float32), labels, tuple(texts), found.why_none())


def draw_boxes(found: BoxedInput, seen: NDArray[np.uint8], *, scale: int, text_size: int) -> NDArray[np.uint8]:
    """Draw boxes, the best one last, with class and score above each, or inside it where there is no room above.

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
    drawing, font = ImageDraw.Draw(page), _font(text_size)
    for corners, label, text in reversed([*zip(found.corners.tolist(), found.labels, found.texts, strict=True)]):
        colour, ink = _colours(label)
        left, top, right, bottom = (round(scale * side) for side in corners)
        drawing.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=_LINE * scale)
        words = legible(text)
        width, height = round(drawing.textlength(words, font)) + 6, round(1.35 * text_size)
        x = min(max(0, left), max(0, page.width - width))
        y = top - height if top >= height else max(0, top)
        drawing.rectangle((x, y, x + width, y + height), colour)
        drawing.text((x + 3, y + height // 2), words, ink, font, anchor="lm")
    return np.asarray(page)


def _colours(label: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the colour of a class, and black or white, which can be read on it."""
    red, green, blue = map(int, table("turbo")[round(30 + 195 * (label * _STEP % 1))])
    bright = 0.3 * red + 0.59 * green + 0.11 * blue > 110
    return (red, green, blue), (0, 0, 0) if bright else (255, 255, 255)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
