"""Which formats go with what, as far as that can be said before anything is loaded."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fmapviz import registry
from fmapviz.errors import RequestError
from fmapviz.registry import SHARD_WRITERS

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_SHARD = 100_000  # images: so many are lost, not finished, when a run is killed


def check_shards(shard: int | None, formats: Sequence[str]) -> None:
    """Make sure that so many images can share a directory, in these formats.

    Raises:
        RequestError: They cannot.
    """
    if shard is None:
        return
    if not 1 <= shard <= LARGEST_SHARD:
        raise RequestError(f"a shard has 1 to {LARGEST_SHARD} images: '{shard}'")
    together = registry.names(SHARD_WRITERS)
    for form in formats:
        if form not in together:
            raise RequestError(f"{form} is of single images, not of shards", hint=f"--shard goes with {', '.join(together)}")
    if find_spec("pyarrow") is None:
        raise RequestError("--shard needs one more package, pyarrow", hint="pip install 'fmapviz[scale]'")
