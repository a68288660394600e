"""Draw the attention of each module when it has been computed, and what flows through all blocks after the pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fmapviz.core import registry
from fmapviz.data import FeatureMap, LayerResult
from fmapviz.errors import RequestError, first_few, quote
from fmapviz.features.attention import ROLLOUT, rollout
from fmapviz.features.attention.capture.blocks import Block, flow_through
from fmapviz.features.attention.capture.observe import AttentionMode
from fmapviz.features.attention.capture.placement import Query, TokenInput, has_class_token, map_of
from fmapviz.features.attention.capture.weights import Fused
from fmapviz.observe.reshape import NotAMapError, picture_size
from fmapviz.run.batch_results import LayerBatch
from fmapviz.run.layer_results import draw_feature_map
from fmapviz.run.observers import PassObserver
from fmapviz.views.base import draw_map

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from fmapviz.config import Style
    from fmapviz.core.members import View
    from fmapviz.data import Model, Target
    from fmapviz.features.attention.capture.blocks import Flow
    from fmapviz.features.attention.capture.observe import Attention
    from fmapviz.observe.layouts.find import LayoutFinder
    from fmapviz.observe.targets import TargetChoice
    from fmapviz.run.observers import ClassPass, Differentiable
    from fmapviz.run.plan import Plan
    from fmapviz.run.running_pass import RunningPass

CAPTURED = "attention"  # what the views of heads draw


@dataclass(frozen=True, slots=True, eq=False)
class AttentionObservation:
    """The attention that a run draws; see `fmapviz.run.plan.Observation`.

    Attributes:
        heads: Names of the views that draw heads.
        flows: Whether attention through all blocks is drawn.
        classes: The classes whose gradients weight the flow; empty if none was requested.
    """

    heads: frozenset[str]
    flows: bool
    classes: tuple[TargetChoice, ...]

    of_modules = True
    of_layers = False

    @property
    def views(self) -> Collection[str]:
        """Names of the views."""
        return self.heads | {ROLLOUT} if self.flows else self.heads

    @property
    def targets(self) -> tuple[TargetChoice, ...]:
        """The classes by whose scores flows are weighted."""
        return self.classes if self.flows else ()

    @property
    def differentiates(self) -> bool:
        """True if flows are weighted by gradients."""
        return bool(self.targets)

    from_pixels = captioned = differentiates

    def without_pictures(self, *, values: bool) -> AttentionObservation | None:
        """Return the views of heads, which have channels, and flows if a format stores them; None if nothing is left."""
        left = replace(self, flows=self.flows and values)
        return left if left.views else None

    def start(self, model: Model, plan: Plan, style: Style) -> AttentionObserver:
        """Return an observer of one copy of the network."""
        return AttentionObserver(self, model, plan, style)


def observe_attention(
    views: Sequence[View],
    *,
    targets: Sequence[TargetChoice],
    automatic: bool,  # noqa: ARG001
) -> AttentionObservation:
    """Plan views of attention; see `fmapviz.run.plan.PlanObservation`."""
    names = frozenset(view.name for view in views)
    return AttentionObservation(names - {ROLLOUT}, ROLLOUT in names, tuple(targets))


def with_grids(attention: Attention, layouts: LayoutFinder) -> Attention:
    """Return an attention with the positions of its queries and keys, if they can be derived."""
    weights, (queries, keys) = attention.weights, attention.weights.shape[2:]
    tensors = [weights.query, weights.key] if isinstance(weights, Fused) else [attention.output]  # which are the weights
    grids = layouts.token_grids(attention.name, attention.layer, tensors, lengths=(queries, keys))
    return replace(attention, grids=grids) if grids else attention


class AttentionObserver(PassObserver):
    """Draws the attention of passes."""

    def __init__(self, observation: AttentionObservation, model: Model, plan: Plan, style: Style) -> None:
        self._picture: TokenInput | None = None
        self._modules: list[str] = []  # that have computed attention, also those of other blocks
        self._blocks: list[Block] = []
        self._query = Query(style.position, mean=style.query == "mean")
        self._observation, self._plan, self._style = observation, plan, style
        self._mode = AttentionMode(self._receive)
        self._has_class = has_class_token(model.module)
        self._current: RunningPass | None = None
        self._drawn = 0

    def attached(self, network: nn.Module) -> AbstractContextManager[object]:
        """Attach hooks that record which module is running."""
        return self._mode.attached(network)

    def watching(self) -> AbstractContextManager[object]:
        """See the attention that is computed."""
        return self._mode.watching()

    def begin(self, current: RunningPass) -> None:
        """Begin a forward pass.

        Raises:
            RequestError: The requested position is outside of the network's input.
        """
        self._picture = TokenInput.of(current.record.pixels, has_class=self._has_class)
        self._picture.check(self._query)
        self._current, self._modules, self._blocks, self._drawn = current, [], [], 0

    def end(self) -> None:
        """Release the attention of the pass."""
        self._current, self._blocks = None, []

    def _receive(self, attention: Attention) -> None:
        """Draw an attention that has been computed; called within the network's pass."""
        current = self._current
        if current is None:
            return
        with current.hook(attention.name) as is_running:
            if is_running:
                self._draw_heads(with_grids(attention, current.layouts), current)

    @torch.no_grad()
    def _draw_heads(self, attention: Attention, current: RunningPass) -> None:
        name, plan = attention.layer.name, self._plan
        self._modules.append(name)
        if plan.modules is not None and name not in plan.modules:
            return
        if self._observation.flows:
            self._blocks.append(Block.of(attention, differentiated=self._observation.differentiates))
        if views := plan.draws.get(CAPTURED):
            assert self._picture
            try:
                maps, query = map_of(attention, self._picture, self._query)
            except NotAMapError as reason:
                current.results.note(views, attention.name, str(reason))
                return
            index = self._drawn if current.position is None else current.position
            drawn = FeatureMap(attention.layer, attention.name, attention.call, index, maps)
            self._drawn += 1
            current.results.add(
                draw_feature_map(drawn, maps, plan, self._style, record=current.record, of=CAPTURED, query=query)
            )

    def finish(self, current: RunningPass) -> None:
        """Draw the flow through all blocks, unless it is weighted by gradients.

        Raises:
            RequestError: The network has computed no attention, or the chosen modules have not.
        """
        modules, seen = self._plan.modules, self._modules
        if not seen:
            known = [view.name for view in registry.views().values() if view.networks == 1]
            others = [name for name in known if registry.view(name).observe != registry.view("attention").observe]
            views = first_few([*map(quote, sorted(self._observation.views))])
            raise RequestError(
                f"no attention is computed in {current.model}, or none that can be seen: {views}",
                hint=f"other views: {', '.join(others)}",
            )
        if modules is not None and modules.isdisjoint(seen):
            raise RequestError("none of the chosen layers computes attention", hint=f"these do: {first_few(seen)}")
        if self._observation.flows and not self._observation.differentiates:
            self._draw_flow(current, lambda flow: rollout.flow(flow.query, flow.matrices()))

    def points(self, alike: Collection[TargetChoice]) -> Iterable[Differentiable]:
        """Return the blocks, at which the gradients of a class weigh flows."""
        return self._blocks if not set(alike).isdisjoint(self._observation.targets) else ()

    def draw_class(self, current: ClassPass, choice: TargetChoice, targets: Sequence[Target | None]) -> None:
        """Draw the flow of a class."""
        if choice in self._observation.targets:
            gradients = current.gradients
            self._draw_flow(current, lambda flow: rollout.flow_of_class(flow.query, flow.gradients(gradients)), targets)

    def _draw_flow(
        self,
        current: RunningPass | ClassPass,
        follow: Callable[[Flow], Tensor],
        targets: Sequence[Target | None] | None = None,
    ) -> None:
        """Draw the flow through the blocks of a pass.

        Args:
            current: The pass; it receives the map, or the reason why there is none.
            follow: Returns the flow that reaches each token, `(N, 1, L)`.
            targets: The class of each image, if the flow is weighted by gradients.
        """
        record, results, style, plan = current.record, current.results, self._style, self._plan
        try:
            assert self._picture
            flow = flow_through(self._blocks, self._picture, self._query, record.pixels.device)
            maps = flow.as_maps(follow(flow))
        except NotAMapError as reason:
            results.undrawn[ROLLOUT] = str(reason)
            return
        centres = record.places.of_grid(ROLLOUT, flow.tokens) if record.places else None
        shown = flow.shown
        if len(self._blocks) < len(self._modules):
            part = f"{len(self._blocks)} of {len(self._modules)} blocks"
            shown = f"{shown}, through {part}"
            results.remarks.append(f"{ROLLOUT} goes through the chosen layers only, {part}")
        layer = LayerResult("", "", call=1, index=0, shape=tuple(maps.shape[1:]), query=shown, centres=centres)
        common = plan.shared.get((ROLLOUT, "", ""))
        limits = (common.low, common.high) if common else None
        content = draw_map(maps, picture_size(record.pixels), style, limits, sharp=True, centres=centres)
        results.layers.append(LayerBatch(record.images, layer, targets, drawings={ROLLOUT: content}))
