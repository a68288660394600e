"""Match the images of two runs by their files and names, for the page that shows both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from fmapviz.formats.html.listing import describe_steps, group_steps, identify, name_images
from fmapviz.images.find import in_natural_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.formats.html.listing import Identity
    from fmapviz.store.aggregates.images import ListedUnit


def pair_images(
    runs: Sequence[Sequence[ListedUnit]], directories: Sequence[Path], addresses: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the entries of the page's list, in natural order of their names.

    Two images are one entry if they are the same file, or else if they have the same name.

    Args:
        runs: Of each of two runs, the units of its images.
        directories: The run directories.
        addresses: Their addresses relative to the page, each with a slash at its end.

    Returns:
        For each image `unit` (its name) and `of`: its entry in each run, as in `list_images`, or None. If one of them is a
        series, `steps` has the numbers of the steps of both, ascending.
    """
    first, second = (_read(units, run, address) for units, run, address in zip(runs, directories, addresses, strict=True))
    partners = _match(first, second)
    rows: list[_Pair] = [(image, second[partners[at]] if at in partners else None) for at, image in enumerate(first)]
    alone: list[_Pair] = [(None, image) for at, image in enumerate(second) if at not in partners.values()]
    pairs = sorted([*rows, *alone], key=lambda pair: in_natural_order(_one_of(pair).identity.unit.parts))
    names = name_images([_one_of(pair).identity for pair in pairs])
    return [_entry(name, pair) for name, pair in zip(names, pairs, strict=True)]


def move_steps(steps: Sequence[Mapping[str, Any]], address: str) -> list[dict[str, Any]]:
    """Return the steps of a series with addresses relative to the page of two runs."""
    return [{**step, "href": address + step["href"]} for step in steps]


@dataclass(frozen=True, slots=True, eq=False)
class _Image:
    """An image or a series of one run.

    Attributes:
        identity: Its unit and its file.
        name: Its name in the report of its run.
        is_series: Whether it is a series.
        about: Its entry in the list.
    """

    identity: Identity
    name: str
    is_series: bool
    about: Mapping[str, Any]


_Pair: TypeAlias = tuple[_Image | None, _Image | None]


def _read(units: Sequence[ListedUnit], run: Path, address: str) -> list[_Image]:
    groups = list(group_steps(units).values())
    identities = [identify(steps[0], run) for steps in groups]
    return [
        _Image(identity, name, steps[0].step is not None, _move(describe_steps(steps, run), address))
        for identity, name, steps in zip(identities, name_images(identities), groups, strict=True)
    ]


def _move(about: Mapping[str, Any], address: str) -> dict[str, Any]:
    moved = {"steps": move_steps(about["steps"], address)} if "steps" in about else {}
    return {**about, "href": address + about["href"], **moved}


def _match(first: Sequence[_Image], second: Sequence[_Image]) -> dict[int, int]:
    """Return the positions of images in the second run by those of the same images in the first run."""
    partners: dict[int, int] = {}
    keys: tuple[Callable[[_Image], object], ...] = (
        lambda image: (image.identity.file, image.is_series),
        lambda image: image.name,
        lambda image: image.identity.unit,
    )
    for key in keys:
        taken = {*partners.values()}
        left = {key(image): at for at, image in enumerate(second) if at not in taken}
        for at, image in enumerate(first):
            if at not in partners and key(image) in left:
                partners[at] = left.pop(key(image))
    return partners


def _one_of(pair: _Pair) -> _Image:
    return next(image for image in pair if image)


def _entry(name: str, pair: _Pair) -> dict[str, Any]:
    both = [image and image.about for image in pair]
    numbers = sorted({step["step"] for about in both if about for step in about.get("steps", ())})
    return {"unit": name, "of": both, **({"steps": [{"step": number} for number in numbers]} if numbers else {})}
