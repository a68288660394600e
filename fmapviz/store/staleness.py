"""Find results over all images of a run that are older than its images."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.platforms import in_shell
from fmapviz.store.run_files import find_units
from fmapviz.store.unit import holds_images, read_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def state_of_images(run: Path, units: Iterable[Path]) -> str:
    """Return a digest of the images of units: of the units' names and versions."""
    state = hashlib.sha256()
    for unit in units:
        record = read_unit(unit)
        if record and holds_images(record):
            state.update(os.fsencode(unit.relative_to(run).as_posix()))
            state.update(f"\0{sorted(key_of(record).version.items())}\0".encode())
    return state.hexdigest()


def stale_files(run: Path) -> dict[str, str]:
    """Return the run-level files whose unit was drawn from other images than the run has now, with the command for them."""
    drawn = [(each, read_unit(run / each.unit)) for each in registry.aggregates().values() if each.unit]
    made = [(each, key_of(record).version.get("of")) for each, record in drawn if record]
    state = state_of_images(run, find_units(run)) if made else ""
    return {name: each.command for each, of in made if of != state for name in each.run_files if os.path.exists(run / name)}


def describe_stale(run: Path, where: object) -> str | None:
    """Return a notice of the stale files of a run at an address, and the command that draws them; None without any."""
    if not (stale := stale_files(run)):
        return None
    commands = " and ".join(f"`{in_shell('fmapviz', command, str(where))}`" for command in dict.fromkeys(stale.values()))
    return f"{', '.join(stale)} and their pages show fewer or other images: {commands} draws them again"
