"""Identities of runs, built by hand."""

from __future__ import annotations

from dataclasses import fields, replace

from fmapviz.config import RunConfig, RunInfo


def run_info(model="net", weights="random weights, seed 0", sha256=None, preparation="crop", *, versions=None, **options):
    return RunInfo(
        model,
        weights,
        sha256,
        preparation,
        RunConfig(model, **{"types": ("Conv2d",), "predictions": 0, **options}),
        versions=versions or {},
    )


def changed(info, **changes):
    """Return a run's identity with some fields of it, or of its configuration, replaced."""
    own = {field.name: changes.pop(field.name) for field in fields(info) if field.name in changes}
    return replace(info, **own, config=replace(info.config, **changes))
