"""Run two networks on the same image, pair their layers by name, call and shape, and draw how each pair differs.

What the layers of A return is copied in their hooks: a later layer may change it in place. B is compared as it runs.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from fmapviz.data import Difference, Drawing, FeatureMap, ImageResult, LayerResult
from fmapviz.draw.grid import Ranges, as_floats, measure
from fmapviz.errors import first_few
from fmapviz.features.diff.difference import compare, means_of
from fmapviz.features.diff.networks import NetworkPair
from fmapviz.features.diff.view import PairMaps
from fmapviz.models.network import input_type
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.observe.hooks import Numbers, describe_training, observe, undisturbed
from fmapviz.observe.lasting_state import LastingState
from fmapviz.observe.layouts.find import LayoutCache, LayoutFinder
from fmapviz.observe.reshape import NotAMapError, frames_of
from fmapviz.run.batch_results import statistics_of
from fmapviz.run.forward_pass import ForwardError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fmapviz.config import Style
    from fmapviz.core.placement import InFile
    from fmapviz.data import Layer, Model
    from fmapviz.features.diff.networks import Compared, PairSetup
    from fmapviz.run.kept_passes import KeptPasses
    from fmapviz.run.plan import Draw, Plan
    from fmapviz.run.session import Session


def draw_pair(
    result: LayerResult,
    maps: tuple[Tensor, Tensor],
    difference: Difference,
    draws: Mapping[str, Draw],
    style: Style,
    *,
    compared: Compared,
    vector: bool | None = None,
) -> tuple[LayerResult, str]:
    """Draw one feature map of two networks.

    Args:
        result: The result so far.
        maps: Of A and of B, `(N, C, h, w)`, of N samples; the first is drawn.
        difference: Their difference.
        draws: The views.
        style: How pictures look.
        compared: The networks A and B.
        vector: Whether they have no rows and columns; None: if they are of a single position.

    Returns:
        The result with its drawings, and why one is missing; empty if none is.
    """
    single = maps[0].shape[-1] * maps[0].shape[-2] == 1
    ranges = [_range(each, means, difference, style) for each, means in zip(maps, difference.means, strict=True)]
    drawings, why = [], ""
    for view, draw in draws.items():
        if draw is None:
            continue
        pair = PairMaps(
            maps[0][:1],
            maps[1][:1],
            single if vector is None else vector,
            compared.names,
            difference.of_channels("rms"),
            difference.of_channels("max_abs"),
            (ranges[0], ranges[1]),
            related=compared.related,
        )
        try:
            drawings.append(Drawing(view, draw(pair, style)))
        except NotAMapError as reason:
            why = str(reason)
    statistics = statistics_of(ranges[1], single=single)[0]
    drawn = replace(result, samples=len(maps[0]), difference=difference, statistics=statistics, drawings=tuple(drawings))
    return drawn, why


def _range(maps: Tensor, means: NDArray[np.float64] | None, difference: Difference, style: Style) -> Ranges:
    """Return the extremes of the first sample; measure its mean only if `means` does not give it."""
    floats = as_floats(maps[:1])
    moments = style.rank in {"mean", "std"}
    is_finite = difference.whole is not None and not difference.numbers["nonfinite"]
    # float32 may not hold values of float64.
    if moments or means is None or not is_finite or len(maps) > 1 or maps.dtype == torch.float64:
        return measure(floats, moments=moments)
    low, high = floats.amin((-2, -1)).float(), floats.amax((-2, -1)).float()
    return Ranges(low, high, torch.tensor([means.mean()], dtype=torch.float32, device=low.device))


def pair_drawer(setup: PairSetup, session: Session, pair: nn.Module, check: Callable[[], object]) -> PairDrawer:
    """Return a drawer of the networks of a session, or of copies of them.

    Args:
        setup: Both networks, and the layers of the second.
        session: The first network and its layers.
        pair: Both networks, or a copy of both; see `fmapviz.features.diff.networks.NetworkPair`.
        check: Called at each layer; raises if the run has ended.
    """
    assert isinstance(pair, NetworkPair)
    known = setup.compared
    compared = replace(
        known, first=replace(known.first, module=pair.first), second=replace(known.second, module=pair.second)
    )
    layers = tuple(
        [replace(layer, module=dict(network.named_modules())[layer.name]) for layer in chosen]
        for network, chosen in ((pair.first, session.layers), (pair.second, setup.layers))
    )
    caches = session.layouts, setup.layouts
    return PairDrawer(compared, (layers[0], layers[1]), session.plan, session.config.style, caches=caches, check=check)


class PairDrawer:
    """Draws the layers of two networks, whose hooks are attached within `with`; see `fmapviz.run.forward_pass.Drawer`.

    Args:
        compared: The networks.
        layers: The chosen layers of each.
        plan: The views and requests.
        style: How pictures look.
        caches: The layouts of the layers of each, if other threads share them.
        check: Called at each layer; raises if the run has ended.

    Attributes:
        numbers: Whether one of the networks drew random numbers.
        lasting: State that each of them keeps between passes.
        receive: Called with each layer that both networks have, and copies of what it returns in A and in B; None: nothing
            is kept.
    """

    def __init__(
        self,
        compared: Compared,
        layers: tuple[Sequence[Layer], Sequence[Layer]],
        plan: Plan,
        style: Style,
        *,
        caches: tuple[LayoutCache, LayoutCache] | None = None,
        check: Callable[[], object] = bool,
    ) -> None:
        self.numbers = Numbers()
        self.lasting = tuple(LastingState(each.module) for each in (compared.first, compared.second))
        self.receive: Callable[[LayerResult, Tensor, Tensor], None] | None = None
        self._compared = compared
        self._layers = layers
        self._draws = plan.draws.get("output", {})
        self._style = style
        self._check = check
        self._types = [input_type(each.module) for each in (compared.first, compared.second)]
        models = (compared.first, compared.second)
        self._layouts = [
            LayoutFinder(each.module, own, cache, given=each.layout)
            for each, own, cache in zip(models, layers, caches or (None, None), strict=True)
        ]
        self._hooks = ExitStack()
        self._calls: list[Mapping[nn.Module, int]] = [{}, {}]
        self._held: dict[str, FeatureMap] = {}
        self._found: list[LayerResult] = []
        self._undrawn: dict[str, str] = {}
        self._apart: dict[str, list[str]] = {}
        self._pixels = torch.empty(0)
        self._last = ""
        self._remarks: list[str] = []
        self._error: Exception | None = None  # of ours within a network's pass, also if the network has caught it

    def __enter__(self) -> Self:
        """Attach the hooks."""
        with ExitStack() as hooks:
            for at, (model, receive) in enumerate(
                ((self._compared.first, self._keep), (self._compared.second, self._compare))
            ):
                own = partial(self._receive, receive)
                layouts = self._layouts[at]
                observed = observe(model.module, self._layers[at], own, refuse=self._refuse, layouts=layouts)
                self._calls[at] = hooks.enter_context(observed)
                if left := describe_training(model.module):
                    self._remarks.append(f"{self._compared.names[at]}: {left}")
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the hooks, and restore the state of the networks."""
        self._hooks.close()
        for each in self.lasting:
            each.restore()

    def draw(
        self,
        batch: Tensor,
        *,
        keep: KeptPasses | None = None,  # noqa: ARG002
        files: Sequence[InFile | None] = (),  # noqa: ARG002
    ) -> list[ImageResult]:
        """Run both networks and draw their outputs.

        Args:
            batch: One prepared image `(1, ...)`.
            keep: Without effect.
            files: Without effect.

        Returns:
            One result.

        Raises:
            ForwardError: A network raised an exception.
            torch.OutOfMemoryError: And a RuntimeError of the CPU's allocator: see `is_out_of_memory`.
        """
        self._held, self._found, self._undrawn, self._pixels = {}, [], {}, batch
        self._error = None
        self._apart = {"only in A": [], "only in B": [], "of other shapes": []}
        try:
            drawn = [self._run(at, model, batch) for at, model in enumerate((self._compared.first, self._compared.second))]
            self.numbers = Numbers(drawn=any(drawn))
            for name, feature_map in self._held.items():
                self._apart["only in A"].append(name)
                self._add_alone(feature_map, first=True)
            return [self._finish()]
        finally:
            self._held, self._pixels = {}, torch.empty(0)

    def draw_kept(self, image: Tensor, kept: object) -> ImageResult:
        """Not called: passes of two networks are not stored."""
        raise NotImplementedError

    def _run(self, at: int, model: Model, batch: Tensor) -> bool:
        """Run a network; return True if it drew random numbers."""
        self._last = ""
        try:
            given = batch.to(self._types[at], copy=True)  # it may change its input in place
            lasting = self.lasting[at].one_pass(given)
            with lasting, torch.no_grad(), undisturbed(batch.device) as numbers, self._layouts[at].following(given):
                model.forward(model.module, given)
        except (Exception, SystemExit) as error:  # a script's sys.exit() too
            if self._error or is_out_of_memory(error):
                raise
            failure = ForwardError.after(self._last, error, given=batch.shape)
            message = f"{self._compared.names[at]}: {failure}"
            raise ForwardError(message, hint=failure.hint) from error
        if self._error:
            raise self._error
        return numbers.drawn

    def _receive(self, use: Callable[[FeatureMap], None], feature_map: FeatureMap) -> None:
        """Receive the output of a layer; called by its hook."""
        self._last = feature_map.name
        try:
            self._check()
            use(feature_map)
        except Exception as error:
            self._error = error
            raise

    def _keep(self, feature_map: FeatureMap) -> None:
        self._held[feature_map.name] = replace(feature_map, values=feature_map.values.clone())

    def _refuse(self, feature_map: FeatureMap, reason: str) -> None:
        self._undrawn[feature_map.name] = reason

    def _compare(self, second: FeatureMap) -> None:
        """Measure and draw a feature map of B and its pair: A's of the same shape and name, which includes the call."""
        first = self._held.pop(second.name, None)
        if first is None or first.values.shape != second.values.shape:
            self._apart["only in B" if first is None else "of other shapes"].append(second.name)
            if first:
                self._add_alone(first, first=True)
            self._add_alone(second, first=False)
            return
        result = _template(second)
        if self.receive:
            self.receive(
                replace(result, difference=_measure_all(first, second)),
                first.values,
                second.values.clone(),
            )
            return
        try:
            pairs = [frames_of(each, each.values) for each in (first, second)]
        except NotAMapError as reason:
            self._undrawn[second.name] = str(reason)
            self._found.append(replace(result, difference=_measure_all(first, second)))
            return
        for suffix, maps in pairs[0].items():
            named = replace(result, layer=f"{result.layer}{suffix}")
            self._found.append(self._draw(named, first, second, (maps, pairs[1][suffix])))

    def _draw(self, result: LayerResult, first: FeatureMap, second: FeatureMap, maps: tuple[Tensor, Tensor]) -> LayerResult:
        """Measure and draw one feature map, or one frame of it."""
        a, b = (each[:, :, None, None] if each.ndim == 2 else each for each in maps)
        difference = _measure(first, second, a, b)
        drawn, reason = draw_pair(
            result, (a, b), difference, self._draws, self._style, compared=self._compared, vector=maps[0].ndim == 2
        )
        if reason:
            self._undrawn[result.layer] = reason
        return drawn

    def _add_alone(self, feature_map: FeatureMap, *, first: bool) -> None:
        """Add the means of a layer that the other network lacks."""
        try:
            frames = frames_of(feature_map, feature_map.values)
        except NotAMapError:
            return
        result = _template(feature_map)
        for suffix, maps in frames.items():
            means, index = means_of(maps), feature_map.index
            difference = (
                Difference((means, None), indices=(index, None))
                if first
                else Difference((None, means), indices=(None, index))
            )
            self._found.append(replace(result, layer=f"{result.layer}{suffix}", difference=difference))

    def _finish(self) -> ImageResult:
        first, second = self._calls
        missed = [layer.name for layer in self._layers[0] if not first[layer.module]]
        missed += [layer.name for layer in self._layers[1] if not second[layer.module]]
        apart = "; ".join(f"{how}: {first_few(names)}" for how, names in self._apart.items() if names)
        remarks = (*self._remarks, *([f"layers that are not compared, {apart}"] if apart else []))
        return ImageResult(
            tuple(self._found), tuple(dict.fromkeys(missed)), MappingProxyType(dict(self._undrawn)), remarks=remarks
        )


def _measure_all(first: FeatureMap, second: FeatureMap) -> Difference:
    """Measure all values of a layer; without channels if it is no map."""
    a, b = first.values, second.values
    with suppress(NotAMapError):
        frames = [frames_of(each, each.values) for each in (first, second)]
        maps = [one[""] for one in frames if "" in one]
        if maps and maps[0].numel() == a.numel():
            return _measure(first, second, maps[0], maps[1])
    flat = _measure(first, second, a.flatten()[None, None], b.flatten()[None, None])
    return replace(flat, channels=None, means=(None, None))


def _measure(first: FeatureMap, second: FeatureMap, a: Tensor, b: Tensor) -> Difference:
    return replace(compare(a, b), indices=(first.index, second.index))


def _template(feature_map: FeatureMap) -> LayerResult:
    shape = tuple(feature_map.values.shape[1:])
    return LayerResult(feature_map.name, feature_map.layer.type, feature_map.call, feature_map.index, shape)
