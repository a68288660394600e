"""Write a unit outside of the pipeline: of the model, of all images, or of an image that is drawn elsewhere."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from fmapviz.core.files import stage, writing_to
from fmapviz.run.session import needs_of
from fmapviz.store.unit import commit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fmapviz.run.session import Session
    from fmapviz.types import Picture, UnitImage


def write_unit(
    session: Session, image: UnitImage, pictures: Sequence[Picture], record: Mapping[str, Any], *, force: bool = True
) -> Path:
    """Write a unit in all formats of a run; without layers, in those that are made of pictures.

    Args:
        session: The run.
        image: The image, or what stands for it, and its results.
        pictures: Its pictures.
        record: Further fields of `unit.json`.
        force: Whether to replace an up-to-date unit.

    Returns:
        The finished unit.

    Raises:
        OutputError: It could not be written.
    """
    run, info = session.directory, session.info
    with writing_to(run), stage(run) as staging:
        with ExitStack() as stack:
            for form, open_writer in session.writers.items():
                if image.result.layers or "pictures" in needs_of(form):
                    stack.enter_context(open_writer(staging)).add(image, pictures)
        made_of = {"run": info.fingerprint, "model": info.label, "weights": info.weights}
        unit = commit(staging, run, image.file, {**made_of, **record}, force=force, sync=session.config.fsync)
    return session.output.upload(unit)
