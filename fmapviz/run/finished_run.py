"""Open a finished run: load its settings, network and layers."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.core.urls import UrlPath, check_address, is_url, join, split
from fmapviz.errors import RefusedError, RequestError, quote
from fmapviz.run.load import load_session, moved
from fmapviz.run.recorded import config_of, only_recorded_code
from fmapviz.store.remote.destination import open_destination
from fmapviz.store.run import describe_contents, load_run, marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from fmapviz.config import InputOptions
    from fmapviz.data import Model, Weights
    from fmapviz.run.session import Session


@contextmanager
def open_finished_run(
    run: str | Path,
    *,
    model: str | nn.Module | Model | None = None,
    weights: Weights | None = None,
    preprocessing: InputOptions | None = None,
    device: str = "auto",
    workers: int | None = None,
    aggregates: Iterable[str] = (),
) -> Iterator[Session]:
    """Load the network of a run as it was drawn, with the run's directory.

    Args:
        run: The run's directory, or its address.
        model: The network; None: by the name that the run records. A network that was given to the run must be given again.
        weights: Its weights; None: those that the run records.
        preprocessing: The preprocessing; None: that of the run.
        device: Device to compute on.
        workers: Images processed at once.
        aggregates: Results over all images that will be made besides those of the run's settings.

    Raises:
        RequestError: It is no run, or what is needed to load its network is not recorded.
        RefusedError: The network, its weights, code or preprocessing are others than those of the run.
    """
    out, name = _split(run)
    with open_destination(out) as destination:
        directory = destination.join_run(name)
        record = load_run(directory)
        with _explaining(record, model, weights), only_recorded_code(record, run, model=model):
            config = config_of(record, run, model=model, weights=weights, preprocessing=preprocessing)
            session, _ = load_session(replace(config, out=out, name=name, device=device, workers=workers))
        known = [session.info]
        if session.info.sha256 is not None:  # the same weights may lie in a file of another name by now
            known.append(replace(session.info, weights=str(record["settings"]["weights"])))
        info = next((each for each in known if each.fingerprint == record.get("fingerprint")), None)
        if info is None:
            different = describe_contents(directory, session.info).partition(" (")[2].removesuffix(")")
            raise RefusedError(
                f"{quote(run)} was drawn with something else: {different or 'its settings are damaged'}",
                hint="it needs the network, the weights and the preprocessing that it was drawn with",
            )
        session = replace(
            session,
            info=info,
            output=destination,
            directory=destination.open_run(info, name=name, sync=config.fsync, more=aggregates),
        )
        is_marked = marked(session.directory) if destination.is_local else nullcontext()
        with is_marked, moved(session.model.module, session.device):
            yield session


@contextmanager
def _explaining(record: Mapping[str, Any], model: object, weights: object) -> Iterator[None]:
    """Explain a missing file of a network or of weights that the run names by a relative path."""
    try:
        yield
    except RequestError as error:
        settings, request = record.get("settings") or {}, record.get("request") or {}
        recorded = [str(settings.get("model")).partition(":")[0]] if model is None else []
        recorded += [str(request.get("weights"))] if weights is None else []
        for name in recorded:
            if Path(name).suffix and not Path(name).is_absolute() and not os.path.exists(name):
                error.hint = f"the run names {quote(name)} relative to the directory where it was made: run it there"
        raise


def _split(run: str | Path) -> tuple[str | Path, str]:
    """Return the directory of all runs, and the name of the run in it.

    Raises:
        RequestError: It is an incomplete address, or that of a bucket.
    """
    if is_url(run):
        check_address(run)
        if not split(str(run))[1]:
            raise RequestError(f"no run of fmapviz: {quote(run)}", hint=join(str(run), "RUN"))
        address = UrlPath(str(run).rstrip("/"))
        return str(address.parent), address.name
    directory = Path(run).absolute()
    return directory.parent, directory.name
