"""Determine which layers each class activation map of a forward pass is of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.inspection.cam_layers import Chosen, Eligibility, choose_rows, find_last, find_maps
from fmapviz.inspection.exact_cam import refuse
from fmapviz.inspection.reshape import NotAMapError
from fmapviz.inspection.targets import before_softmax, scores_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.engine.layer_results import BatchResults
    from fmapviz.engine.plan import Method
    from fmapviz.inspection.cam_layers import Choices
    from fmapviz.inspection.exact_cam import Pooling
    from fmapviz.inspection.forward_record import ForwardRecord, GraphPoint
    from fmapviz.inspection.targets import ClassScores

    Points = Mapping[str, Sequence[GraphPoint]]  # by view


def requested_points(
    methods: Mapping[str, Method], record: ForwardRecord, pooling: Pooling | None, results: BatchResults
) -> Points:
    """Return the layers that the user chose, for each view.

    Args:
        methods: The views that are class activation maps of layers.
        record: The forward pass.
        pooling: The maps of exact class activation maps, if some view draws them.
        results: Receives the layers without a map.

    Raises:
        RequestError: None of them enters the pooling, see `fmapviz.inspection.exact_cam`.
    """
    maps = []
    for point in record.outputs if methods else ():
        try:
            record.maps(point, point.values)
            maps.append(point)
        except NotAMapError as reason:
            results.note(methods, point.name, str(reason))
    points: dict[str, Sequence[GraphPoint]] = {}
    for view, method in methods.items():
        points[view] = maps
        if method.exact:
            points[view] = fitting = [point for point in maps if pooling and pooling.maps_of(point) is not None]
            if pooling and maps and not fitting:
                raise refuse(maps[-1].name)
            for point in maps:
                if point not in fitting:
                    results.note([view], point.name, "the class scores are not averages of its maps")
    return points


def chosen_points(methods: Mapping[str, Method], record: ForwardRecord, chosen: Chosen) -> Points:
    """Return the recorded layers that were chosen automatically, for each view."""
    kept = {point.name: point for point in record.kept}
    points = {}
    for view, method in methods.items():
        names = chosen.rows if method.sheet else [chosen.pooled if method.exact else chosen.layer]
        points[view] = [kept[name] for name in names if name in kept]
    return points


def choose_layers(
    methods: Mapping[str, Method],
    record: ForwardRecord,
    scores: ClassScores,
    *,
    indices: Sequence[int | None],
    pooling: Pooling | None,
    choices: Choices,
) -> Chosen:
    """Choose layers after a forward pass that recorded all of them, and release the others.

    Args:
        methods: The views that are class activation maps of layers.
        record: The forward pass.
        scores: Of the classes.
        indices: A class for each image, whose gradient decides.
        pooling: The maps of exact class activation maps, if some view draws them.
        choices: Receives the choice; one that another thread has made meanwhile wins.

    Raises:
        NoMapError: No layer can be chosen.
    """
    as_maps = Eligibility(record, scores).as_maps
    chosen, certain = Chosen(), True
    if any(not method.exact for method in methods.values()):
        before = before_softmax(scores, indices)
        last = find_last(record.kept, scores_at(scores, indices), as_maps, before=before)
        chosen, certain = Chosen(layer=last.point.name), last.certain
        record.known[last.point.identity, tuple(indices)] = last.gradient
    if any(method.sheet for method in methods.values()):
        maps = [point for point in find_maps(record.kept, as_maps) if point.edge is not None][::-1]
        maps = maps[: [point.name for point in maps].index(chosen.layer) + 1]
        rows = choose_rows([point for point in maps if point.intact or point is maps[-1]], as_maps)
        chosen = replace(chosen, rows=tuple(point.name for point in rows))
    if pooling:
        chosen = replace(chosen, pooled=pooling.choose(find_maps(record.kept, as_maps)).name)
    chosen = choices.layers.setdefault(record.pixels.shape[1:], chosen) if certain else chosen
    record.keep_only(chosen.names, find_maps(record.kept, as_maps))
    return chosen
