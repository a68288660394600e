"""Find members of the catalogue by their names: views, formats, sources of models and run-level results."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar, cast

from fmapviz.catalogue import PACKAGES
from fmapviz.core.own import OwnName
from fmapviz.core.synonyms import meant_member
from fmapviz.errors import RequestError, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmapviz.core.members import (
        Aggregate,
        Contribution,
        Detector,
        Format,
        NamedMember,
        ReportPart,
        Source,
        Subcommand,
        View,
    )

M = TypeVar("M", bound="NamedMember")


@cache
def views() -> Mapping[str, View]:
    """Return all views by their names, sorted."""
    return _by_name([view for each in contributions() for view in each.views])


@cache
def formats() -> Mapping[str, Format]:
    """Return all output formats by their names, sorted.

    Example:
        >>> list(formats())
        ['channels', 'gif', 'html', 'mp4', 'npz', 'numbers', 'png', 'raw', 'stats', 'svg', 'tar', 'tensorboard', 'trust']
    """
    return _by_name([form for each in contributions() for form in each.formats])


@cache
def sources() -> Mapping[str, Source]:
    """Return all sources of models by their names, sorted."""
    return _by_name([source for each in contributions() for source in each.sources])


@cache
def detectors() -> tuple[Detector, ...]:
    """Return the families of detectors."""
    return tuple(detector for each in contributions() for detector in each.detectors)


@cache
def aggregates() -> Mapping[str, Aggregate]:
    """Return all run-level results by their names, sorted."""
    return _by_name([aggregate for each in contributions() for aggregate in each.aggregates])


@cache
def stages() -> tuple[str, ...]:
    """Return the references of the stages of runs, in the order of the catalogue."""
    return tuple(stage for each in contributions() for stage in each.stages)


@cache
def report_parts() -> tuple[ReportPart, ...]:
    """Return the parts of the report that features add."""
    return tuple(part for each in contributions() for part in each.report)


@cache
def commands() -> Mapping[str, Subcommand]:
    """Return the commands of features by their names."""
    return {command.name: command for each in contributions() for command in each.commands}


def offered_views(*, pair: bool = False) -> dict[str, View]:
    """Return the views of one network, or those of a pair."""
    return {name: each for name, each in views().items() if (each.networks == 2) == pair}


def offered_formats(*, pair: bool = False) -> dict[str, Format]:
    """Return the formats that a run of one network takes, or a comparison of a pair."""
    known = formats().items()
    return {
        name: form
        for name, form in known
        if (form.networks == 2 or "pictures" in form.needs if pair else form.networks == 1)
    }


def page_formats() -> dict[str, Format]:
    """Return the formats in which pages with pictures of several images are written."""
    return {name: form for name, form in formats().items() if "pictures" in form.needs and not form.write_film}


def view(name: str) -> View:
    """Return a view; it is the user's own if the name is an `OwnName`.

    Raises:
        RequestError: There is none of this name, or its extra is not installed.
        UserCodeError: The user's code failed.
    """
    if isinstance(name, OwnName):
        return cast("View", name.member)
    return _checked("view", name, views())


def form(name: str, offered: Mapping[str, Format] | None = None) -> Format:
    """Return an output format; it is the user's own if the name is an `OwnName`.

    Args:
        name: Its name.
        offered: See `hint_for`.

    Raises:
        RequestError: There is none of this name, or its extra is not installed.
        UserCodeError: The user's code failed.
    """
    if isinstance(name, OwnName):
        return cast("Format", name.member)
    return _checked("format", name, formats(), offered)


def source(name: str) -> Source:
    """Return a source of models.

    Raises:
        RequestError: There is none of this name, or its extra is not installed.
    """
    return _checked("model source", name, sources(), sources())


@cache
def pages() -> Mapping[str, str]:
    """Return the pages that formats make, by the names of the formats.

    Example:
        >>> dict(pages())
        {'html': 'index.html'}
    """
    return {name: each.page for name, each in formats().items() if each.page}


@cache
def contributions() -> list[Contribution]:
    """Return the contributions of packages, in the order of the catalogue."""
    return [import_module(name).CONTRIBUTION for name in PACKAGES]


def _by_name(members: list[M]) -> dict[str, M]:
    return {each.name: each for each in sorted(members, key=lambda each: each.name)}


def _checked(kind: str, name: str, known: Mapping[str, M], offered: Mapping[str, M] | None = None) -> M:
    member = known.get(name)
    if member is None:
        raise RequestError(f"no such {kind}: {quote(name)}", hint=hint_for(kind, name, offered))
    if member.requires and find_spec(member.requires) is None:
        hint = f"pip install 'fmapviz[{member.extra or name}]'"
        raise RequestError(f"the {kind} {quote(name)} needs the package {member.requires}", hint=hint)
    return member


def hint_for(kind: str, name: str, offered: Mapping[str, NamedMember] | None = None) -> str:
    """Return a hint for a name that is no member: a similar one, the word of another tool, or a member of another kind.

    Args:
        kind: `view`, `format` or `model source`.
        name: The name.
        offered: The members that the caller takes; None: those of a run of one network, which takes views and formats.
    """
    word, known = name.lower(), offered or (offered_views() if kind == "view" else offered_formats())
    if not offered and kind == "format" and word in offered_views():
        return f"{quote(word)} is a view: views={quote(word)}"
    if not offered and kind == "view" and word in offered_formats():
        return f"{quote(word)} is a format: to={quote(word)}"
    words = {each.name: each.words for each in known.values()}
    return meant_member(kind, name, list(known), words) or suggest(name, known) or f"there are: {', '.join(known)}"
