"""How a run is executed: device, batches, threads, parts of the work, a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from fmapviz.config.arguments import explain_arguments
from fmapviz.config.checks import check_number, check_type, check_types
from fmapviz.config.options import CLUSTER, RUNNING, documented, option
from fmapviz.errors import RequestError, quote

_option = partial(option, panel=RUNNING)
_cluster = partial(option, panel=CLUSTER)
_ENGINES = "ray, ray:auto, ray:HOST:PORT"
_PARTS = "such as 1/4, 2/4, 3/4 and 4/4"


@explain_arguments
@dataclass(frozen=True, slots=True)
class Part:
    """One of several commands that share the work.

    Attributes:
        number: Number of the part, from 1.
        count: Number of parts.

    Raises:
        RequestError: `number` is not in 1 to `count`.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        for name in ("number", "count"):
            check_type(name, getattr(self, name), int, hint=_PARTS)
        if not 1 <= self.number <= self.count:
            raise RequestError(f"no such part: '{self.number}/{self.count}'", hint=_PARTS)

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse `I/N`.

        Raises:
            RequestError: The text has another form, or there is no such part.

        Example:
            >>> Part.parse("2/8")
            Part(number=2, count=8)
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", check_type("text", text, str, hint=_PARTS))
        if not match:
            raise RequestError(f"no such part: {quote(text)}", hint=_PARTS)
        return cls(int(match[1]), int(match[2]))

    def has(self, index: int) -> bool:
        """Return True if the item with this index, from 0, belongs to the part.

        Example:
            >>> [index for index in range(8) if Part(2, 3).has(index)]
            [1, 4, 7]
        """
        check_type("index", index, int, hint="position of an item, from 0")
        return index % self.count == self.number - 1


@explain_arguments
@documented
@dataclass(frozen=True, slots=True)
class Engine:
    """A Ray cluster that executes the run.

    Raises:
        RequestError: A number is out of range.
    """

    address: str | None = _cluster(
        None,
        "Execute the run with Ray; ADDRESS of a running cluster: auto or HOST:PORT.",
        flag="--engine",
        metavar="ray[:ADDRESS]",
        shown="this process",
    )
    workers: int | None = option(None, "Number of worker processes.", shown="as many as fit")
    cpus: int = _cluster(
        1,
        "CPU cores of each Ray worker, and the number of images that it processes at once.",
        flag="--worker-cpus",
        metavar="N",
    )
    gpus: float = _cluster(0.0, "GPUs of each Ray worker, or a fraction.", flag="--worker-gpus", metavar="G", shown="0")

    def __post_init__(self) -> None:
        check_types(self)
        check_number("workers", self.workers)
        check_number("worker CPUs", self.cpus, hint="leave out Engine(cpus=) for one")
        if not 0 <= self.gpus < 1024:
            raise RequestError(f"worker GPUs must be 0 or more: '{self.gpus:g}'", hint="such as 0.5, 1, 2")
        if self.gpus > 1 and self.gpus % 1:
            raise RequestError(f"worker GPUs above 1 must be a whole number: '{self.gpus:g}'", hint="such as 0.5, 1, 2")

    @classmethod
    def parse(cls, text: str, *, workers: int | None = None, cpus: int = 1, gpus: float = 0.0) -> Engine:
        """Parse `ray` or `ray:ADDRESS`.

        Raises:
            RequestError: The text has another form, or the extra `ray` is not installed.

        Example:
            >>> Engine.parse("ray:10.0.0.1:6379").address
            '10.0.0.1:6379'
        """
        name, colon, address = check_type("text", text, str, hint=_ENGINES).partition(":")
        if name != "ray" or (colon and not address):
            raise RequestError(f"no such engine: {quote(text)}", hint=_ENGINES)
        if find_spec("ray") is None:
            raise RequestError("the engine 'ray' needs the package ray", hint="pip install 'fmapviz[ray]'")
        return cls(address or None, workers, cpus, gpus)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is executed; these options change pictures by rounding at most."""

    device: str = _option(
        "auto",
        "Device to compute on: auto, cpu, cuda, cuda:1 or mps.",
        "`auto` leaves a given module on its device.",
        metavar="NAME",
        words=("auto", "cpu", "cuda", "mps"),
    )
    batch_size: int | None = _option(None, "Images per forward pass.", metavar="N", shown="1 on the CPU, 16 on a GPU")
    workers: int | None = _option(
        None,
        "Images processed at once, each in its own thread or process.",
        "On the CPU each thread gets a copy of the model that shares its parameters, unless a given module has hooks. "
        "On Linux forks of this process draw from the third image on, unless the model, a view or a format is your own.",
        metavar="N",
        shown="one per core, at most 8",
    )
    strict: bool = _option(False, "Stop at the first input that fails.")
    force: bool = _option(False, "Redraw finished images.")
    repair: bool = _option(False, "Redraw finished images with missing or changed files.")
    part: Part | None = _option(
        None, "Do only the I-th of N parts of the work.", metavar="I/N", shown="all of it", parse=Part.parse
    )
    engine: Engine | None = option(None, "The cluster that executes the run. Needs the extra `ray`.", shown="this process")
    on_event: Callable[[Any], None] | None = option(  # Any: an event; that package builds on this one
        None,
        "Called in the calling thread with each event: `Started`, `Counted`, `Outcome`, `Notice`, `Advanced`, or "
        "`Staged` with shards.",
    )

    progress: bool = option(True, "Whether to show a progress bar in a notebook.")

    @property
    def threads(self) -> int:
        """Number of images processed at once, at least 1."""
        return self.workers or min(8, os.cpu_count() or 1)
