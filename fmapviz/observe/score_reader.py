"""Read the class scores of a network's passes, and store the last operation of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.core.members import load
from fmapviz.observe.class_scores import class_scores
from fmapviz.observe.endings import SOFT, Ending, Endings, is_product

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.core.members import Detector
    from fmapviz.observe.boxes import Boxes
    from fmapviz.observe.class_scores import ClassScores
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.observe.score_kinds import Head


class OtherEndingError(Exception):
    """A network ends with another operation than before: a flag may switch it, or another output is requested."""


@dataclass(slots=True, eq=False)
class ScoreReader:
    """Finds class scores in the output of a network; shared by all threads that run it.

    Attributes:
        early: Whether graphs have to begin at the input.
        ending: The operation by which the network ends, see `fmapviz.observe.endings`; None if it is not known yet.
        in_graph: Whether the graph alone shows that this is a linear layer, so that the next pass can be checked by it.
    """

    early: bool = False
    ending: str | None = None
    in_graph: bool = False

    def endings(self) -> Endings | None:
        """Return what records by which operation a forward pass ends; None if nothing new would come of it.

        Of a softmax or a sigmoid, each pass's logits are needed.
        """
        return Endings() if self.ending is None or self.ending in SOFT else None

    def read(self, record: ForwardRecord, *, key: str | None, head: Head) -> ClassScores:
        """Find the class scores in the output of a forward pass; see `class_scores`.

        Raises:
            OtherEndingError: The network does not end as in an earlier pass, so that the pass has to be repeated.
        """

        def ending_of(values: Tensor) -> Ending:
            shown = is_product(values)
            if record.endings is None:
                if self.in_graph and not shown:
                    self.ending, self.in_graph = None, False
                    raise OtherEndingError
                return Ending(self.ending or "")
            found = record.endings.of(values)
            self.ending, self.in_graph = found.kind, shown and found.kind == "linear"
            return found

        if record.scores is None:
            family = head.detector if key is None else None
            record.scores = class_scores(
                record.output,
                key=key,
                images=record.images,
                head=head,
                ending_of=ending_of,
                layout=record.score_layout,
                boxes=None if family is None else _boxes_of(record, family, head.confidence),
            )
            record.endings = None  # it keeps tensors
        return record.scores


def _boxes_of(record: ForwardRecord, family: Detector, least: float | None) -> list[Boxes]:
    found: list[Boxes] = load(family.read)(record, least)
    return found
