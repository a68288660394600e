"""Determine which layers each class activation map of a forward pass is of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.features.cam.cam_layers import Chosen, choose_rows, find_last, find_maps
from fmapviz.features.cam.exact_cam import refuse
from fmapviz.observe.reshape import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fmapviz.features.cam.exact_cam import Pooling
    from fmapviz.features.cam.method import Method
    from fmapviz.observe.forward_record import GraphPoint
    from fmapviz.run.observers import ClassPass

    Points = Mapping[str, Sequence[GraphPoint]]  # by view


def requested_points(methods: Mapping[str, Method], pooling: Pooling | None, current: ClassPass) -> Points:
    """Return the layers that the user chose, for each view; note those without a map.

    Raises:
        RequestError: None of them enters the pooling, see `fmapviz.features.cam.exact_cam`.
    """
    record, results = current.record, current.results
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


def chosen_points(methods: Mapping[str, Method], pooling: Pooling | None, current: ClassPass, chosen: Chosen) -> Points:
    """Return the recorded layers that were chosen automatically, for each view."""
    kept = {point.name: point for point in current.record.kept}
    pooled = chosen.pooled if pooling else ""  # the scores of these images may not be finite
    points = {}
    for view, method in methods.items():
        names = chosen.rows if method.sheet else [pooled if method.exact else chosen.layer]
        points[view] = [kept[name] for name in names if name in kept]
    return points


def choose_layers(
    methods: Collection[Method], pooling: Pooling | None, current: ClassPass, indices: Sequence[int | None]
) -> tuple[Chosen, bool]:
    """Choose layers after a forward pass that recorded all of them.

    Args:
        methods: What is drawn.
        pooling: The maps that are averaged for the class scores, if they are known.
        current: The pass.
        indices: A class for each image, whose gradient decides.

    Returns:
        The layers, and whether other images have the same.

    Raises:
        NoMapError: No layer can be chosen.
    """
    record, scores = current.record, current.scores
    assert scores
    chosen, is_certain = Chosen(), True
    if any(not method.exact for method in methods):
        last = find_last(record, scores, indices)
        chosen, is_certain = Chosen(layer=last.point.name), last.certain
        record.known[last.point.identity, tuple(indices)] = last.gradient
    if any(method.sheet for method in methods):
        maps = [point for point in find_maps(record, scores) if point.edge is not None][::-1]
        maps = maps[: [point.name for point in maps].index(chosen.layer) + 1]
        rows = choose_rows([point for point in maps if point.intact or point is maps[-1]], record)
        chosen = replace(chosen, rows=tuple(point.name for point in rows))
    if pooling:
        chosen = replace(chosen, pooled=pooling.choose(find_maps(record, scores)).name)
    elif any(method.exact for method in methods):
        is_certain = False  # the scores of other images may be finite
    return chosen, is_certain
