"""Judge the maps of one image and one class: deletion and insertion, chance, random weights, and agreement."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fmapviz.errors import FmapvizError
from fmapviz.features.trust.cells import Cells, order_of, rank_correlation
from fmapviz.features.trust.curves import CHANCE, mean_curve, passes, trace
from fmapviz.features.trust.judged_maps import MapMaker
from fmapviz.features.trust.judgement import JudgedMethod, Judgement, Randomised, Sign
from fmapviz.features.trust.randomised import randomised, replaced
from fmapviz.features.trust.weight_order import noting_weights
from fmapviz.observe.blur import blurred
from fmapviz.observe.gradients import BackwardError, edge_of, gradients_at
from fmapviz.observe.image_seed import ImageSeed
from fmapviz.observe.located import AbsentError
from fmapviz.observe.reshape import picture_size
from fmapviz.run.changed_passes import REPEATS, ChangedPasses
from fmapviz.run.forward_pass import ForwardError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from fmapviz.core.layout import Layout
    from fmapviz.data import Model
    from fmapviz.features.trust.judged_maps import Followed, JudgedMap
    from fmapviz.run.changed_passes import ImagePasses
    from fmapviz.run.plan import Observation, Plan

COMPUTED = 3  # times that maps are computed: by the network, and with random weights in its last and in all layers
# Streams of random numbers of an image; the first ones are the random orders.
_TIES, _LAST, _ALL = CHANCE, CHANCE + 1, CHANCE + 2


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """An image whose maps are judged.

    Attributes:
        followed: The image and its target.
        layers: See `MapMaker.maps`.
        passes: Of changed copies.
        seed: Of its random numbers.
        cells: Its cells.
        observations: See `MapMaker.maps`.
    """

    followed: Followed
    layers: Collection[str]
    passes: ImagePasses
    seed: ImageSeed
    cells: Cells
    observations: Sequence[Observation]


class Judge:
    """Judges the maps of some views, by passes of one copy of the network.

    Args:
        model: The network, in evaluation mode.
        plan: Of the run.
        views: Names of the views.

    Attributes:
        maps: Computes the maps.
        changed: Runs changed copies.
    """

    def __init__(self, model: Model, plan: Plan, views: Sequence[str]) -> None:
        self.maps = MapMaker(model, plan, views)
        self.changed = ChangedPasses(model, plan)
        self._network = model.module

    def count(self, size: tuple[int, int]) -> int:
        """Return the number of passes of an image beside those that compute maps."""
        return passes(len(self.maps.views) + CHANCE, Cells.of(size)) + REPEATS

    def judge(
        self, followed: Followed, layout: Layout | None, *, layers: Collection[str]
    ) -> tuple[Judgement, tuple[NDArray[np.uint8], ...]]:
        """Judge the maps of an image.

        Args:
            followed: The image and its target.
            layout: Of scores of pixels in the network's output.
            layers: See `MapMaker.maps`.

        Raises:
            AbsentError: There is no map, or the probability does not depend on the image.
            ForwardError: The network failed.
            BackwardError: Likewise.
            RequestError: A method does not fit the network.

        Returns:
            The judgement, and the maps as they are drawn, uint8 `(H, W)`, in the order of its methods.
        """
        size = picture_size(followed.image)
        if size is None:
            raise AbsentError("the input is no picture: it has no rows and columns")
        image = _Judged(
            followed,
            layers,
            self.changed.of(followed.image, followed.target, layout),
            ImageSeed(followed.image),
            Cells.of(size),
            self.maps.observations(followed.choice),
        )
        with self.changed.restored():
            maps, missing = self.maps.maps(followed, image.observations, layers)
            if not maps:
                raise AbsentError(next(iter(missing.values()), "none of the methods has a map of it"))
            return self._judge(image, maps, self._reasons(maps, missing)), tuple(each.heat for each in maps)

    def _reasons(self, maps: Sequence[JudgedMap], missing: dict[str, str]) -> tuple[tuple[str, str], ...]:
        drawn = {each.view for each in maps}
        return tuple(
            (view.name, next((why for name, why in missing.items() if view.name in name), "nothing was computed"))
            for view in self.maps.views
            if view.name not in drawn
        )

    def _judge(self, image: _Judged, maps: Sequence[JudgedMap], missing: tuple[tuple[str, str], ...]) -> Judgement:
        cells, seed = image.cells, image.seed
        means = [_means(each, cells) for each in maps]
        ties = seed.numbers(_TIES).permutation(cells.count)
        orders = [order_of(each, ties) for each in means]
        orders += [seed.numbers(number).permutation(cells.count) for number in range(CHANCE)]
        pixels = image.followed.image
        blur = blurred(pixels)
        if torch.equal(blur, pixels):
            raise AbsentError("the blurred image is the image itself, of one colour or a few pixels: no cell can be removed")
        curves = trace(pixels, image.passes.weights, blur, cells=cells, orders=orders)
        measure = self._measure(image)
        _check(np.concatenate([each for curve in curves for each in (curve.deletion, curve.insertion)]), measure)
        chance = tuple(curves[len(maps) :])
        of_maps = [curve if np.ptp(mean) else mean_curve(chance) for mean, curve in zip(means, curves, strict=False)]
        spread = image.passes.spread()
        before, again = (image.passes.score(pixels)[0] for _ in range(2))
        noise = 8 * spread.score if before != again else 0.0  # those with the same random numbers may agree exactly
        last_layer = self._last_layer(image, before, noise=noise)
        same = "its score changes by no more than from pass to pass" if noise else "its score is the same"
        unknown = [Randomised(why=same)] * len(maps)
        last, everything = unknown, unknown
        if last_layer is not None:
            last = self._randomise(image, maps, means, stream=_LAST, only=(last_layer,))
            everything = self._randomise(image, maps, means, stream=_ALL)
        methods = [
            JudgedMethod(each.view, each.layer, curve, own_last, own_all, each.of_class, _sign(each.extremes))
            for each, curve, own_last, own_all in zip(maps, of_maps, last, everything, strict=True)
        ]
        agreement = np.array([[rank_correlation(one, other) for other in means] for one in means])
        named = last_layer or ("" if last_layer is None else type(self._network).__name__)
        return Judgement(tuple(methods), chance, agreement, spread.weight, named, measure, missing, seed.digest)

    def _measure(self, image: _Judged) -> str:
        found, _ = self.changed.run(image.followed.image, image.passes.layout)
        return image.followed.target.measure_of(found)

    def _last_layer(self, image: _Judged, before: float, *, noise: float) -> str | None:
        """Return the last module in the order of execution whose own weights the score depends on; None if none does.

        Of a box only those that its score is computed from, if any: others place the box, and may run later.

        Args:
            image: The image.
            before: The score.
            noise: The largest change of it that random weights need not have caused.
        """
        names = self._executed(image)
        if image.followed.target.is_box:
            names = self._scoring(image, names) or names
        for name in reversed(names):
            with randomised(self._network, image.seed.numbers(_LAST), only=(name,)):
                try:
                    after, _ = image.passes.score(image.followed.image)
                except (AbsentError, ForwardError):
                    return name
            if abs(after - before) > noise:
                return name
        return None

    def _executed(self, image: _Judged) -> list[str]:
        """Return the names of modules with weights of their own, in the order of their last use."""
        order: dict[str, None] = {}
        with noting_weights(self._network, order):
            self.changed.run(image.followed.image, image.passes.layout)
        return [*order]

    def _scoring(self, image: _Judged, names: Sequence[str]) -> list[str]:
        """Return the modules that the target's score has a gradient at; empty if it has none."""

        def leaf(parameter: nn.Parameter) -> nn.Parameter:
            return nn.Parameter(parameter.detach())

        with replaced(self._network, leaf), suppress(ForwardError, BackwardError):
            found, _ = self.changed.run(image.followed.image, image.passes.layout, graph=True)
            owned = [(name, each) for name in names for each in self._network.get_submodule(name).parameters(recurse=False)]
            gradients = gradients_at(image.followed.target.scores_in(found), [edge_of(each) for _, each in owned])
            reached = {name for (name, _), each in zip(owned, gradients, strict=True) if each is not None and each.any()}
            return [name for name in names if name in reached]
        return []

    def _randomise(
        self,
        image: _Judged,
        maps: Sequence[JudgedMap],
        means: Sequence[NDArray[np.float64]],
        *,
        stream: int,
        only: Collection[str] = (),
    ) -> list[Randomised]:
        """Compare maps with those of a network with other weights."""
        with randomised(self._network, image.seed.numbers(stream), only=only):
            try:
                others, missing = self.maps.maps(image.followed, image.observations, image.layers)
            except (ForwardError, BackwardError, FmapvizError) as error:
                others, missing = [], {"": str(error)}
            is_there = bool(others) or self._is_there(image)
        absent = next(iter(missing.values()), "it has no such map") if is_there else "it finds no such box"
        known = {each.key: _means(each, image.cells) for each in others}
        found = []
        for each, own in zip(maps, means, strict=True):
            if each.key not in known:
                found.append(Randomised(why=absent))
                continue
            correlation = rank_correlation(own, known[each.key])
            flat = np.isnan(correlation) and np.ptp(own) > 0
            found.append(Randomised(correlation, "its map is empty" if flat else ""))
        return found

    def _is_there(self, image: _Judged) -> bool:
        """Return False if the network, with the weights that it has now, finds no such box."""
        with suppress(AbsentError, ForwardError):
            return image.passes.score(image.followed.image)[1]
        return True


def _means(found: JudgedMap, cells: Cells) -> NDArray[np.float64]:
    """Return the mean of a map in each cell; zeros of equal values, whose interpolation differs by rounding."""
    low, high = found.extremes
    return np.zeros(cells.count) if low == high else cells.means(found.values)


def _check(values: NDArray[np.float64], measure: str) -> None:
    """Check that a probability depends on the image.

    Raises:
        AbsentError: It does not.
    """
    if not values.any():
        raise AbsentError(f"its {measure} is zero, whichever cells of the image are removed")
    if np.ptp(values) <= 1e-6 * abs(values).max():
        if round(float(values.max()), 6) == 1:  # the score that it is of may still depend on the image
            raise AbsentError(f"its {measure} is one, whichever cells of the image are removed")
        raise AbsentError(f"its {measure} is the same, whichever cells are removed: it does not depend on the input")


def _sign(extremes: tuple[float, float]) -> Sign:
    low, high = extremes
    if low == high:
        return "zero"
    if low >= 0:
        return "positive"
    return "negative" if high <= 0 else "both"
