"""Follow a target of one image through passes of changed copies of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torchvision.ops import box_iou

from fmapviz.errors import RequestError
from fmapviz.observe.targets import BoxTarget, PixelsTarget, PixelTarget

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.observe.boxes import Boxes
    from fmapviz.observe.class_scores import ClassScores, Index


@dataclass(frozen=True, slots=True, eq=False)
class SameTarget:
    """A target as it is in the unchanged image.

    The class is that of the unchanged image: `top1` does not change with the copy.

    Attributes:
        index: Of the class.
        pixels: Of a segmentation the positions of the pixels whose scores are summed, int64 `(P,)`; else None.
        is_box: Whether it is of boxes.
        corners: Of boxes their left, top, right and bottom, `(B, 4)`; None if they are unknown.
    """

    index: int
    pixels: Tensor | None = None
    is_box: bool = False
    corners: Tensor | None = None

    @classmethod
    def of(cls, scores: ClassScores, image: int, index: Index) -> SameTarget:
        """Return a target of an image.

        Args:
            scores: Of the pass of the unchanged image.
            image: Position of the image in that pass.
            index: See `fmapviz.observe.target_scores.indices_of`.

        Raises:
            RequestError: The scores are of the pixels of a clip.
        """
        if scores.kind == "boxes":
            return cls._of_boxes(scores.boxes[image], index)
        if isinstance(index, PixelTarget):
            return cls(index.index, torch.tensor([index.pixel], device=scores.values.device))
        if isinstance(index, PixelsTarget):
            return cls(index.index, torch.tensor(index.pixels, device=scores.values.device))
        assert isinstance(index, int)
        if not scores.of_pixels:
            return cls(index)
        if scores.pixels is None:
            raise RequestError("scores of the pixels of clips cannot be followed from pass to pass", hint="views='saliency'")
        return cls(index, scores.pixels.predicted(image, index))

    @classmethod
    def _of_boxes(cls, boxes: Boxes, index: Index) -> SameTarget:
        if isinstance(index, BoxTarget):
            label, places = index.index, list(index.boxes)
        else:
            assert isinstance(index, int)
            label, places = index, (boxes.labels == index).nonzero().view(-1)[:1].tolist()
        return cls(label, is_box=True, corners=None if boxes.corners is None else boxes.corners[places])

    def index_in(self, scores: ClassScores, image: int) -> Index | None:
        """Return the index of the target in an image of another pass; None if that does not have it.

        Example:
            >>> from fmapviz.observe.class_scores import class_scores
            >>> of = class_scores(torch.tensor([[1.0, 2.0]]), key=None, images=1)
            >>> SameTarget.of(of, 0, 1).index_in(of, 0)
            1
        """
        if self.is_box:
            places = [place for place, _ in self.follow(scores.boxes[image])]
            known = tuple(place for place in places if place is not None)
            whole = 0 < len(known) == len(places) and scores.boxes[image].are_known(known)
            return BoxTarget(self.index, known) if whole else None
        if self.pixels is not None:
            return PixelsTarget(self.index, tuple(self.pixels.tolist())) if len(self.pixels) else None
        return self.index if bool(scores.present[image, self.index]) else None

    def scores_in(self, scores: ClassScores) -> Tensor:
        """Return the target's score in each of N changed copies, to be differentiated, as `scores_at` does.

        Of a segmentation the scores are summed over the same pixels. A box is followed by `follow`; zero, without a
        gradient, where the copy has no such box.

        Args:
            scores: Of the pass of the copies.

        Returns:
            `(N)`.

        Example:
            >>> from fmapviz.observe.class_scores import class_scores
            >>> of = class_scores(torch.tensor([[1.0, 2.0]]), key=None, images=1)
            >>> copies = class_scores(torch.tensor([[5.0, 2.5], [5.0, 3.0]]), key=None, images=2)
            >>> SameTarget.of(of, 0, 1).scores_in(copies)
            tensor([2.5000, 3.0000])
        """
        if self.is_box:
            return torch.stack([self._values(each) for each in scores.boxes])
        if self.pixels is None:
            return scores.values[:, self.index]
        return self._at_pixels(scores).values[:, self.index].view(-1, len(self.pixels)).sum(1)

    def weights_in(self, scores: ClassScores) -> Tensor:
        """Return the target's probability in each of N changed copies, or its score where there is no probability.

        Of a segmentation it is the mean over the same pixels. Of a box it is the product of `follow`, from 0 to 1; of
        several boxes the sum.

        Returns:
            `(N)`, outside the graph.

        Example:
            >>> from fmapviz.observe.class_scores import class_scores
            >>> of = class_scores(torch.zeros(1, 2), key=None, images=1)
            >>> SameTarget.of(of, 0, 1).weights_in(of)
            tensor([0.5000])
        """
        if self.is_box:
            return torch.tensor([sum(product for _, product in self.follow(each)) for each in scores.boxes])
        if self.pixels is None:
            return _weights(scores)[:, self.index]
        weights = _weights(self._at_pixels(scores))
        return weights[:, self.index].view(-1, len(self.pixels)).mean(1)

    def measure_of(self, scores: ClassScores) -> str:
        """Return what `weights_in` returns: `probability`, `score`, or of a box `overlap x score`."""
        if self.is_box:
            return "overlap x score"
        read = scores if self.pixels is None else self._at_pixels(scores)
        return "score" if read.probabilities is None else "probability"

    def compared_in(self, scores: ClassScores) -> Tensor:
        """Return the target's score in each of N copies, to be compared with that of the unchanged image.

        Of boxes it is the product of `weights_in`, which falls if the followed box is another one; its logit may rise. Of
        other targets it is the score of `scores_in`.

        Returns:
            `(N)`, outside the graph.

        Example:
            >>> from fmapviz.observe.class_scores import class_scores
            >>> of = class_scores(torch.tensor([[1.0, 2.0]]), key=None, images=1)
            >>> SameTarget.of(of, 0, 1).compared_in(of)
            tensor([2.])
        """
        return self.weights_in(scores) if self.is_box else self.scores_in(scores).detach()

    def is_in(self, scores: ClassScores) -> bool:
        """Return True if each of the copies has the target; a copy may have no box of the class that overlaps it."""
        return not self.is_box or all(place is not None for each in scores.boxes for place, _ in self.follow(each))

    def follow(self, boxes: Boxes) -> list[tuple[int | None, float]]:
        """Return the box of a copy that each box of the target has become, and how alike the two are.

        It is the box of the same class with the largest product of its score and its intersection over union with the box
        of the target (Petsiuk et al., "Black-box Explanation of Object Detectors via Saliency Maps", 2021, D-RISE). Where
        corners are unknown it is the best box of the class.

        Args:
            boxes: Of one copy.

        Returns:
            Positions among the boxes of the copy, and the products, from 0 to 1; None and 0 if no such box overlaps it.
        """
        of_class = (boxes.labels == self.index).nonzero().view(-1)
        if self.corners is None or boxes.corners is None:
            return [(int(of_class[0]), float(boxes.scores[of_class[0]])) if len(of_class) else (None, 0.0)]
        found: list[tuple[int | None, float]] = []
        overlaps = box_iou(self.corners.to(boxes.corners), boxes.corners[of_class])
        for products in overlaps * boxes.scores[of_class]:
            best = int(products.argmax()) if len(products) else 0
            there = len(products) > 0 and bool(products[best] > 0)
            found.append((int(of_class[best]), float(products[best])) if there else (None, 0.0))
        return found

    def _values(self, boxes: Boxes) -> Tensor:
        return boxes.values[[place for place, _ in self.follow(boxes) if place is not None]].sum()

    def _at_pixels(self, scores: ClassScores) -> ClassScores:
        assert scores.pixels is not None
        assert self.pixels is not None
        return scores.pixels.at(self.pixels)


def _weights(scores: ClassScores) -> Tensor:
    return scores.outputs if scores.probabilities is None else scores.probabilities
