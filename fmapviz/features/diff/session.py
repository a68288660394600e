"""Load both networks of a comparison for a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fmapviz.features.diff.cka_stage import AlignmentStage
from fmapviz.features.diff.layer_pairs import pair_drawer
from fmapviz.features.diff.networks import (
    NetworkPair,
    PairSetup,
    choose_layers,
    compare_networks,
    load_second,
    remark_on_weights,
)
from fmapviz.run.load import load_session

if TYPE_CHECKING:
    from fmapviz.config import RunConfig
    from fmapviz.data import Model
    from fmapviz.features.diff.networks import Other
    from fmapviz.run.session import Session

UNRELATED = (
    "the weights have nothing in common: channels of one number are different features, whose differences mean nothing; "
    "pictures show the mean of the channels, and CKA compares the layers as a whole"
)


def load_pair(config: RunConfig, *, against: Other) -> tuple[Session, list[str]]:
    """Load two networks; see `fmapviz.run.load.load_session`.

    Args:
        config: The first network, the images, and how they are drawn.
        against: See `fmapviz.features.diff.networks.load_second`.

    Raises:
        RequestError: One of them cannot be loaded, or they cannot be compared.
    """
    session, notices = load_session(replace(config, predictions=0), pair=True)
    second = load_second(session.model, against, weights=config.weights, preprocessing=config.preprocessing)
    session, setup = add_second(session, second)
    if not setup.compared.related:
        notices.append(UNRELATED)
    if not config.types and not config.layers and (remark := remark_on_weights(setup.compared, session.layers)):
        notices.append(remark)
    if not setup.layers:
        notices.append(f"{setup.compared.names[1]} has no layers of these names and types")
    return session, [*notices, *(notice for notice in second.notices if notice not in notices)]


def add_second(
    session: Session, second: Model, *, step: int | None = None, against: dict[str, Any] | None = None
) -> tuple[Session, PairSetup]:
    """Add a second network to a session; return the session and both networks.

    Args:
        session: Of the first network.
        second: The other one.
        step: The step of a series that it is.
        against: Its record in the run's settings; None: its name, weights and checksum.

    Raises:
        RequestError: The two cannot be compared.
    """
    compared = compare_networks(session.model, second)
    config = session.config
    layers = choose_layers(compared, types=config.types, include=config.layers, exclude=config.exclude)
    recorded: dict[str, Any] = {"model": second.name, "weights": second.weights, "sha256": second.sha256}
    recorded |= {} if compared.related else {"related": False}
    checksums = {"first": compared.first.sha256 or "", "second": compared.second.sha256 or ""}
    setup = PairSetup(compared, layers, at={} if step is None else {"step": step, "weights": second.weights, **checksums})
    return replace(
        session,
        info=replace(session.info, against=recorded if against is None else against),
        model=replace(session.model, module=NetworkPair(session.model.module, compared.second.module), batches=False),
        stages=[AlignmentStage(compared.names, setup.at), *(session.stages if step is None else ())],
        attach=partial(pair_drawer, setup),
        measured={"B": compared.second.module},
        batch_size=1,
        early_stop=None,
    ), setup
