"""What comes of the backward passes over a batch of images, while a GPU may still be computing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmapviz.heat import heat_of
from fmapviz.values import HeatMap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import Tensor

    from fmapviz.keeping import KeptBatch
    from fmapviz.places import Place
    from fmapviz.plan import Method
    from fmapviz.sketches import Sketch
    from fmapviz.tape import Tape
    from fmapviz.values import Target


@dataclass(frozen=True, slots=True, eq=False)
class HeatSketch:
    """One heat map of each image of a batch.

    Attributes:
        view: The view that it belongs to.
        place: Which layer's output; None for the network's input.
        targets: The class for each image; None for a view that knows no classes.
        skipped: The images that do not have the class.
        raw: float32 `(N, h, w)`, signed, on the model's device.
        heat: float32 `(N, H, W)`, 0..1, see `fmapviz.heat.heat_of`.
        automatic: Whether the layer was chosen automatically.
        over: Whether it is to be laid over the input.
    """

    view: str
    place: Place | None
    targets: Sequence[Target | None]
    skipped: Collection[int]
    raw: Tensor
    heat: Tensor
    automatic: bool
    over: bool

    def finish(self) -> Iterator[HeatMap | None]:
        """Give each image's map, None where there is none."""
        raw, pixels = self.raw.cpu().numpy(), self.heat.mul(255).add_(0.5).byte().cpu().numpy()
        feature_map = self.place.feature_map if self.place else None
        for image, target in enumerate(self.targets):
            if image in self.skipped:
                yield None
                continue
            yield HeatMap(
                view=self.view,
                layer=feature_map.name if feature_map else "",
                type=feature_map.layer.type if feature_map else "",
                index=feature_map.index if feature_map and not self.automatic else 0,
                shape=feature_map.shape[1:] if feature_map else raw.shape[1:],
                target=target,
                raw=raw[image],
                pixels=pixels[image],
                automatic=self.automatic,
                over=self.over,
            )


class Found:
    """What came of the backward passes.

    Attributes:
        notices: For each image.
        remarks: On the network.
        sketches: Gradients, drawn.
        kept: Gradients themselves, if those were asked for.
        heats: Heat maps.
        undrawn: What gave no picture, with the reason.
    """

    def __init__(self, images: int) -> None:
        self.notices: list[list[str]] = [[] for _ in range(images)]
        self.remarks: list[str] = []
        self.sketches: list[Sketch] = []
        self.heats: list[HeatSketch] = []
        self.kept: list[KeptBatch] = []
        self.undrawn: dict[str, str] = {}
        self._absent: list[list[str]] = [[] for _ in range(images)]

    def miss(self, target: str, images: Iterable[bool]) -> None:
        """Note that some images do not have a class."""
        for own, is_missing in zip(self._absent, images, strict=True):
            if is_missing:
                own.append(target)

    def tell_missing(self, reason: str) -> None:
        """Say of each image which classes it does not have."""
        for own, absent in zip(self.notices, self._absent, strict=True):
            if absent:
                shown = ", ".join(absent) if len(absent) < 4 else f"{absent[0]}, {absent[1]}, ... {absent[-1]}"
                own.append(f"nothing is drawn for {shown}: {reason}")

    def note(self, views: Iterable[str], place: Place, reason: str) -> None:
        """Say why some views of a layer give no picture."""
        self.undrawn[f"{', '.join(views)} of {place.name}"] = reason

    def tell_where(self, chosen: Iterable[bool], notice: str) -> None:
        """Say something of some images."""
        for own, is_chosen in zip(self.notices, chosen, strict=True):
            if is_chosen:
                own.append(notice)

    def tell_all(self, notice: str) -> None:
        """Say something of every image."""
        self.tell_where([True] * len(self.notices), notice)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What is known when the gradients of one class of each image are there, or before any are."""

    tape: Tape
    found: Found
    targets: Sequence[Target | None]
    gradients: dict[int, Tensor | None] = field(default_factory=dict)

    def add(self, view: str, method: Method, place: Place | None, raw: Tensor, *, automatic: bool) -> None:
        """Add one heat map."""
        heat = heat_of(raw, self.tape.picture or (raw.shape[1], raw.shape[2]))
        missing = {image for image, target in enumerate(self.targets) if target is None} if method.targets else ()
        self.found.heats.append(HeatSketch(view, place, self.targets, missing, raw, heat, automatic, method.over))
