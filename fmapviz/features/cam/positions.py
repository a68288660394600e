"""Determine which layers each class activation map of a forward pass is of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.features.cam.cam_layers import Chosen, choose_rows, find_last, find_maps
from fmapviz.features.cam.exact_cam import refuse
from fmapviz.observe.reshape import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.features.cam.class_maps import Pass
    from fmapviz.observe.forward_record import GraphPoint

    Points = Mapping[str, Sequence[GraphPoint]]  # by view


def requested_points(current: Pass) -> Points:
    """Return the layers that the user chose, for each view; note those without a map.

    Raises:
        RequestError: None of them enters the pooling, see `fmapviz.features.cam.exact_cam`.
    """
    methods, record, pooling, results = current.maps.of_layers, current.record, current.pooling, current.results
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


def chosen_points(current: Pass, chosen: Chosen) -> Points:
    """Return the recorded layers that were chosen automatically, for each view."""
    kept = {point.name: point for point in current.record.kept}
    pooled = chosen.pooled if current.pooling else ""  # the scores of these images may not be finite
    points = {}
    for view, method in current.maps.of_layers.items():
        names = chosen.rows if method.sheet else [pooled if method.exact else chosen.layer]
        points[view] = [kept[name] for name in names if name in kept]
    return points


def choose_layers(current: Pass, indices: Sequence[int | None]) -> Chosen:
    """Choose layers after a forward pass that recorded all of them, and release the others.

    A choice that another thread has made meanwhile wins.

    Args:
        current: The pass.
        indices: A class for each image, whose gradient decides.

    Raises:
        NoMapError: No layer can be chosen.
    """
    record, scores, methods = current.record, current.scores, current.maps.of_layers.values()
    assert scores
    chosen, certain = Chosen(), True
    if any(not method.exact for method in methods):
        last = find_last(record, scores, indices)
        chosen, certain = Chosen(layer=last.point.name), last.certain
        record.known[last.point.identity, tuple(indices)] = last.gradient
    if any(method.sheet for method in methods):
        maps = [point for point in find_maps(record, scores) if point.edge is not None][::-1]
        maps = maps[: [point.name for point in maps].index(chosen.layer) + 1]
        rows = choose_rows([point for point in maps if point.intact or point is maps[-1]], record)
        chosen = replace(chosen, rows=tuple(point.name for point in rows))
    if current.pooling:
        chosen = replace(chosen, pooled=current.pooling.choose(find_maps(record, scores)).name)
    elif current.maps.exact:
        certain = False  # the scores of other images may be finite
    chosen = current.maps.choices.layers.setdefault(record.pixels.shape[1:], chosen) if certain else chosen
    record.keep_only(chosen.names, find_maps(record, scores))
    return chosen
