"""Write units: their files in the formats of a run, and their record."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fmapviz.core.files import staging_folder, writing_to
from fmapviz.data import ImageResult, UnitImage
from fmapviz.draw.picture import make_pictures
from fmapviz.draw.records import find_empty_maps, heat_records, layer_records, notices_of
from fmapviz.images.preprocess import digest_of
from fmapviz.images.seen import Seen
from fmapviz.run.load import needs_of
from fmapviz.store.unit import commit
from fmapviz.store.unit_key import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.data import Picture
    from fmapviz.run.pipeline.scheduler import Processed
    from fmapviz.run.session import Session
    from fmapviz.store.unit_key import UnitKey

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def draw_pictures(drawn: Processed, session: Session) -> Iterator[Picture]:
    """Draw the pictures of an image, one at a time; see `fmapviz.draw.picture.make_pictures`."""
    image, plan = drawn.image, session.plan
    if not plan.drawn:
        return
    seen = Seen(image.values, session.preparation_of(image.values, as_given=image.as_given), facts=image.facts)
    file = image.member.file
    is_marked = plan.anchor_path in {"", file.path}
    name = plain_name(file.unit, file.path)
    yield from make_pictures(drawn.drawn, seen, name, session.info, sheets=plan.sheets, marked=is_marked)


def describe_result(drawn: Processed, session: Session) -> UnitImage:
    """Return an image and its results as a format's writer gets them."""
    image, result, plan = drawn.image, drawn.drawn, session.plan
    member, empty_maps = image.member, tuple(find_empty_maps(result, sheets=plan.sheets))
    return UnitImage(
        name=plain_name(member.file.unit, member.file.path),
        path=member.file.path,
        result=result,
        notices=(*image.notices, *result.notices, *notices_of(result, empty_maps)),
        info=session.info,
        key=member.group.key(member.position),
        input=digest_of(image.values) if plan.moments else "",
        empty_maps=empty_maps,
    )


def write_unit(
    session: Session,
    key: UnitKey,
    pictures: Sequence[Picture],
    *,
    image: UnitImage | None = None,
    more: Mapping[str, Any] = _NOTHING,
    force: bool = True,
) -> Path:
    """Write a unit outside of the pipeline in all formats of a run; without layers, in those that are made of pictures.

    Args:
        session: The run.
        key: The key of the unit.
        pictures: Its pictures.
        image: The image and its results, under any name; None: the unit is of no image.
        more: Further fields of `unit.json`.
        force: Whether to replace an up-to-date unit.

    Returns:
        The finished unit.

    Raises:
        OutputError: It could not be written.
    """
    run = session.directory
    shown = replace(image or UnitImage("", "", ImageResult((), (), {}), (), session.info), name=key.name, path=key.path)
    with writing_to(run), staging_folder(run) as staging:
        with ExitStack() as stack:
            for form, open_writer in session.writers.items():
                if shown.result.layers or "pictures" in needs_of(form):
                    stack.enter_context(open_writer(staging)).add(shown, pictures)
        return finish_unit(session, staging, key, {**more, **(describe_image(image) if image else {})}, force=force)


def finish_unit(
    session: Session,
    staging: Path,
    key: UnitKey,
    more: Mapping[str, Any],
    *,
    members: Mapping[str, int] = _NOTHING,
    force: bool = True,
) -> Path:
    """Write the record of a staged unit, and publish the unit; see `fmapviz.store.unit.commit`."""
    info = session.info
    record = {"run": info.fingerprint, "model": info.label, "weights": info.weights, **more}
    unit = commit(staging, session.directory, key, record, members=members, force=force, sync=session.config.fsync)
    return session.output.upload(unit)


def describe_image(image: UnitImage) -> dict[str, Any]:
    """Return the fields of `unit.json` about an image that has its own unit."""
    result = image.result
    heat_maps = heat_records(result)
    predicts = image.info.config.predictions or result.predictions
    return {
        "notices": list(image.notices),
        "layers": layer_records(result),
        **({"heat_maps": heat_maps} if heat_maps else {}),
        "not_executed": list(result.not_executed),
        "undrawn": dict(result.undrawn),
        **({"predictions": [each.record for each in result.predictions]} if predicts else {}),
    }
