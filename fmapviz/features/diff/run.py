"""Compare two networks, or the checkpoints of a training, in a run of its own."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.file_names import RUN_FILE
from fmapviz.errors import RequestError, first_few, quote
from fmapviz.features.diff.networks import check_other
from fmapviz.features.diff.series import FIRST, REFERENCES, Series, list_steps
from fmapviz.features.diff.session import load_pair
from fmapviz.features.diff.two_runs import are_runs, compare_runs
from fmapviz.run.loop import run

if TYPE_CHECKING:
    from fmapviz.config import RunConfig
    from fmapviz.events import RunSummary
    from fmapviz.features.diff.networks import Other

_GLOB = "*?["
_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")


def run_diff(config: RunConfig, *, against: Other | None, reference: str | None = None) -> RunSummary:
    """Compare two networks, the checkpoints of a series, or two finished runs.

    Args:
        config: The first network, the images, how they are drawn, and where to. Its weights may be a glob of files, then
            each is compared with the first or the previous one. Its model and its only input may be directories of runs.
        against: The second network, see `fmapviz.features.diff.networks.load_second`.
        reference: Of a series, `first` or `previous`.

    Returns:
        What was done; its `exit_code` is the command's.

    Raises:
        RequestError: It is not known what to compare, or the two cannot be compared.
        FmapvizError: As in `fmapviz.run.loop.run`.
    """
    if are_runs(config):
        if against is not None or reference is not None:
            raise RequestError("two runs are compared with each other", hint="without against= and reference=")
        return compare_runs(config)
    if reference is not None and reference not in REFERENCES:
        raise RequestError(f"no such reference: {quote(reference)}", hint=f"one of {', '.join(REFERENCES)}")
    pattern = config.weights if isinstance(config.weights, str) and set(_GLOB) & set(config.weights) else ""
    is_series = bool(pattern) and not os.path.exists(pattern)
    if is_series and against is not None:
        raise RequestError(
            f"a series of checkpoints is compared with one of its own: {quote(pattern)}",
            hint="without against=; reference='first' or reference='previous'",
        )
    if is_series and (film := next((form for form in config.to if registry.form(form).write_film), None)):
        hint = "to='html' has a slider through the checkpoints"
        raise RequestError(f"no films of a series of checkpoints are written: {quote(film)}", hint=hint)
    if is_series:
        series = Series(list_steps(pattern), reference or FIRST)
        return run(config, open_session=series.load, rounds=series.rounds)
    if reference is not None:
        hint = "weights='ckpt/epoch_*.pt', for example"
        raise RequestError(f"a reference is of a series of checkpoints: {quote(reference)}", hint=hint)
    if against is None:
        raise RequestError("the second network or run of the comparison is missing", hint=_hint(config))
    check_other(against)
    return run(config, open_session=partial(load_pair, against=against))


def _hint(config: RunConfig) -> str:
    """Return a hint on how to name the second network."""
    inputs = [config.inputs] if isinstance(config.inputs, str | Path) else config.inputs
    given = [str(each) for each in inputs if isinstance(each, str | Path)] if isinstance(inputs, list | tuple) else []
    checkpoints = [each for each in given if each.endswith(_CHECKPOINTS)]
    if len(checkpoints) == 1 and config.weights == "default":
        (other,) = checkpoints
        return f"{quote(other)} is an input here: against={other!r} takes its weights, against='model:{other}' its network"
    if checkpoints:
        return "a series of checkpoints is one text in quotes, 'epoch_*.pt': without, the shell replaces it by the files"
    if isinstance(config.model, str | Path) and os.path.isfile(Path(config.model) / RUN_FILE):
        others = [each for each in given if not os.path.isfile(Path(each) / RUN_FILE)]
        return f"no directory of a run: {first_few(others)}" if others else "exactly two runs are compared"
    return "against='b.pth', against='dtype:bfloat16', against='model:resnet34'; or weights='ckpt/epoch_*.pt'"
