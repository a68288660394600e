"""Schedule the steps to draw: every N steps, each epoch, doubling steps, or a function of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fmapviz.errors import ArgumentError, RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    Every = int | str | Callable[[int], object]

_FORMS = "a number of steps, 'epoch', 'log' (1, 2, 4, 8, ...), or a function of the step"
NEVER = -1  # below every step


class StepSchedule:
    """The steps at which a training is drawn; its first step always is.

    Args:
        every: A number of steps; `epoch`; `log` for the steps 1, 2, 4, 8, ...; or a function that takes the step and says
            whether to draw.

    Raises:
        RequestError: It is none of these.

    Attributes:
        interval: Number of steps; None of the other schedules.

    Example:
        >>> schedule = StepSchedule(100)
        >>> schedule.next_after(0), schedule.next_after(250)
        (100, 300)
    """

    def __init__(self, every: Every) -> None:
        given: object = every  # also numbers of NumPy
        every = int(given) if isinstance(given, np.integer) else every
        is_number = isinstance(every, int) and not isinstance(every, bool)
        if not (is_number or every in ("epoch", "log") or (callable(every) and not isinstance(every, type))):
            raise RequestError(f"every must be a number of steps or a word, not {quote(every)}", hint=_FORMS)
        if isinstance(every, int) and every < 1:
            raise RequestError(f"every must be at least 1: {every}", hint=_FORMS)
        self.interval = every if isinstance(every, int) else None
        self._every = every
        self._epoch: int | None = None

    def is_due(self, step: int, epoch: int | None, *, next_step: int) -> bool:
        """Return True if a step is due.

        Args:
            step: The step.
            epoch: Of the step, if it is known.
            next_step: Result of `next_after` for the last drawn step.

        Raises:
            ArgumentError: The epoch decides, and is not known.
        """
        if callable(self._every):
            return bool(self._every(step))
        if self._every != "epoch":
            return step >= next_step
        if epoch is None:
            raise ArgumentError("every='epoch' needs the epoch", hint="watch(step, epoch=epoch)")
        is_new, self._epoch = epoch != self._epoch, epoch
        return is_new

    def next_after(self, step: int) -> int:
        """Return the next step that may be due; `NEVER` if `is_due` must be called at every step."""
        if self.interval:
            return (step // self.interval + 1) * self.interval
        return 1 << max(0, step).bit_length() if self._every == "log" else NEVER

    def double(self) -> int | None:
        """Double the number of steps, and return it; None of a schedule without one."""
        if self.interval:
            self.interval *= 2
        return self.interval
