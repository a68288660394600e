"""Say of which layers each heat map is, after a forward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.automatic import Chosen, choose_rows, find_last, find_maps
from fmapviz.classifiers import refuse
from fmapviz.eligibility import Eligibility
from fmapviz.shapes import NotAMapError
from fmapviz.tape import AgainError
from fmapviz.targets import before_softmax, scores_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.automatic import Choices
    from fmapviz.classifiers import Pooling
    from fmapviz.findings import Found
    from fmapviz.places import Place
    from fmapviz.plan import Method
    from fmapviz.tape import Tape
    from fmapviz.targets import ClassScores

    Spots = Mapping[str, Sequence[Place]]


def given_spots(methods: Mapping[str, Method], tape: Tape, pooling: Pooling | None, found: Found) -> Spots:
    """Take the layers that the user chose.

    Args:
        methods: The views that are heat maps of layers.
        tape: The forward pass.
        pooling: The maps that exact class activation maps are of, if some view draws them.
        found: Is told which layers give no heat map.

    Raises:
        RequestError: None of them is averaged for the class scores, see `fmapviz.classifiers`.
    """
    maps = []
    for place in tape.outputs if methods else ():
        try:
            tape.maps(place, place.values)
            maps.append(place)
        except NotAMapError as reason:
            found.note(methods, place, str(reason))
    return {view: _fitting(view, method, maps, pooling, found) for view, method in methods.items()}


def _fitting(view: str, method: Method, maps: Sequence[Place], pooling: Pooling | None, found: Found) -> Sequence[Place]:
    if not method.exact:
        return maps
    fitting = [place for place in maps if pooling and pooling.maps_of(place) is not None]
    if pooling and maps and not fitting:
        raise refuse(maps[-1].name)
    for place in maps:
        if place not in fitting:
            found.note([view], place, "the class scores are no averages of its maps")
    return fitting


def automatic_spots(
    methods: Mapping[str, Method],
    tape: Tape,
    scores: ClassScores,
    *,
    indices: Sequence[int | None],
    pooling: Pooling | None,
    choices: Choices,
) -> Spots:
    """Take the layers that are chosen automatically, now or at an earlier image.

    Args:
        methods: The views that are heat maps of layers.
        tape: The forward pass, in which all layers were kept if nothing was chosen before it.
        scores: Of the classes.
        indices: A class for each image, which the layer is looked for by.
        pooling: See `given_spots`.
        choices: What was chosen.

    Raises:
        NoMapError: There is no layer to choose.
        AgainError: The outputs of those chosen are not known any more.
    """
    if all(index is None for index in indices):  # a detector that found nothing
        return dict.fromkeys(methods, ())
    if tape.places.all_kept:
        _choose(methods, tape, scores, indices=indices, pooling=pooling, choices=choices)
    chosen = tape.chosen
    kept = {place.name: place for place in tape.places.kept}
    spots = {}
    for view, method in methods.items():
        names = chosen.rows if method.sheet else [chosen.pooled if method.exact else chosen.layer]
        spots[view] = [kept[name] for name in names if name in kept]
    return spots


def _choose(
    methods: Mapping[str, Method],
    tape: Tape,
    scores: ClassScores,
    *,
    indices: Sequence[int | None],
    pooling: Pooling | None,
    choices: Choices,
) -> None:
    """Choose layers, or take what another thread has chosen meanwhile, and keep only these."""
    eligible = Eligibility(tape, scores)
    see = eligible.see
    chosen, certain = Chosen(), True
    if any(not method.exact for method in methods.values()):
        before = before_softmax(scores, indices)
        last = find_last(tape.places.kept, scores_at(scores, indices), see, before=before)
        chosen, certain = Chosen(layer=last.place.name), last.certain
        tape.known[last.place.identity, tuple(indices)] = last.gradient
    if any(method.sheet for method in methods.values()):
        maps = [place for place in find_maps(tape.places.kept, see) if place.edge is not None][::-1]
        maps = maps[: [place.name for place in maps].index(chosen.layer) + 1]
        rows = choose_rows([place for place in maps if place.intact is not None or place is maps[-1]], see)
        chosen = replace(chosen, rows=tuple(place.name for place in rows))
    if pooling:
        chosen = replace(chosen, pooled=pooling.choose(find_maps(tape.places.kept, see)).name)
    tape.chosen = choices.settle(tape.pixels.shape, chosen) if certain else chosen
    tape.places.keep_only(tape.chosen.names, find_maps(tape.places.kept, see))
    if any(place.intact is None for place in tape.places.kept):  # overwritten by what is no layer
        raise AgainError(tape.chosen)
