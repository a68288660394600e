"""Compare two networks, or the checkpoints of a training, in a run of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core.errors import RequestError, quote
from fmapviz.engine.diff.finished import are_runs, compare_runs
from fmapviz.engine.diff.networks import check_other
from fmapviz.engine.diff.series import FIRST, REFERENCES, Series, list_steps
from fmapviz.engine.diff.session import load_pair
from fmapviz.engine.run import run

if TYPE_CHECKING:
    from fmapviz.core.config import RunConfig
    from fmapviz.core.events import RunSummary
    from fmapviz.engine.diff.networks import Other

_GLOB = "*?["


def run_diff(config: RunConfig, *, against: Other | None, reference: str | None = None) -> RunSummary:
    """Compare two networks, the checkpoints of a series, or two finished runs.

    Args:
        config: The first network, the images, how they are drawn, and where to. Its weights may be a glob of files, then
            each is compared with the first or the previous one. Its model and its only input may be directories of runs.
        against: The second network, see `fmapviz.engine.diff.networks.load_second`.
        reference: Of a series, `first` or `previous`.

    Returns:
        What was done; its `exit_code` is the command's.

    Raises:
        RequestError: It is not known what to compare, or the two cannot be compared.
        FmapvizError: As in `fmapviz.engine.run.run`.
    """
    if against is None and are_runs(config):
        return compare_runs(config)
    if reference is not None and reference not in REFERENCES:
        raise RequestError(f"no such reference: {quote(reference)}", hint=f"one of {', '.join(REFERENCES)}")
    pattern = config.weights if isinstance(config.weights, str) and set(_GLOB) & set(config.weights) else ""
    if against is None and pattern and not Path(pattern).exists():
        series = Series(list_steps(pattern), reference or FIRST)
        return run(config, load=series.load, draw=series.draw)
    if reference is not None:
        raise RequestError("a reference is of a series of checkpoints", hint="weights='ckpt/epoch_*.pt', for example")
    if against is None:
        raise RequestError(
            "what to compare with is missing",
            hint="against='b.pth', against='dtype:bfloat16', against='model:resnet34'; or weights='ckpt/epoch_*.pt'",
        )
    check_other(against)
    return run(config, load=partial(load_pair, against=against))
