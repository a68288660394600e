"""The state of a running forward pass that hooks share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmapviz.core.user_code import one_line
from fmapviz.errors import FmapvizError
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.run.batch_results import MixedBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmapviz.observe.early_stop import ReadDetector
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.observe.layouts.find import LayoutFinder
    from fmapviz.run.batch_results import BatchResults
    from fmapviz.run.kept_passes import KeptPass


class EnoughError(Exception):
    """The last requested layer has run."""


@dataclass(slots=True, eq=False)
class RunningPass:
    """One forward pass.

    Attributes:
        record: For its backward passes.
        results: Of these.
        layouts: Finds the axes of what layers return.
        check: Called in each hook; its exception ends the pass.
        model: Name of the model.
        report: Called with the numbers of passes that are done, and that an observer needs in all, if it needs many.
        enough: Number of outputs after which it ends, None if it runs to its end.
        reads: Detects decisions by the values of tensors, if the number of outputs is to be learnt.
        draws_layers: Whether there are layers to draw.
        received: Number of outputs so far.
        seen: Layers that returned a tensor.
        indices: Of the feature maps so far, by their names.
        last: The last feature map.
        complete: Whether it has been ended early.
        error: An exception of ours within the network's pass, also if the network has caught it.
        kept: Copies of what the layers return, if it is to be drawn again.
        ran: Names of the layers that ran.
    """

    record: ForwardRecord
    results: BatchResults
    layouts: LayoutFinder
    check: Callable[[], object]
    model: str
    report: Callable[[int, int], object] = max  # ignored
    enough: int | None = None
    reads: ReadDetector | None = None
    draws_layers: bool = True
    received: int = 0
    seen: set[str] = field(default_factory=set)
    indices: dict[str, int] = field(default_factory=dict)
    last: str = ""
    complete: bool = False
    error: Exception | None = None
    kept: KeptPass | None = None
    ran: frozenset[str] = frozenset()

    @property
    def position(self) -> int | None:
        """Number of layers drawn so far, for sorting an observer's drawings; None if no layers are drawn."""
        return self.received if self.draws_layers else None

    @contextmanager
    def hook(self, name: str) -> Iterator[bool]:
        """Draw within a hook; a layer that cannot be drawn is recorded, and the network continues.

        Args:
            name: Name of the drawn values.

        Yields:
            Whether the forward pass is still running.
        """
        with self.drawing() as is_running, self.layouts.paused():
            if not is_running:
                yield False
                return
            self.check()
            with self.surviving(name):
                yield True

    @contextmanager
    def surviving(self, name: str) -> Iterator[None]:
        """Record a layer that cannot be drawn, and let the network continue."""
        try:
            yield
        except (FmapvizError, MixedBatchError, RecursionError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.results.undrawn[name] = f"cannot be drawn: {one_line(error)}"

    @contextmanager
    def drawing(self) -> Iterator[bool]:
        """Separate the work of a hook from that of the network.

        Yields:
            Whether the forward pass is still running.
        """
        if self.reads:
            self.reads.paused = True
        try:
            yield not self.record.over
        except EnoughError:  # not stored: its traceback would keep every tensor of the pass
            self.complete = True
            raise
        except RecursionError:  # the model's: hooks are never deep
            raise
        except Exception as error:
            self.error = error
            raise
        finally:
            if self.reads:
                self.reads.paused = False
