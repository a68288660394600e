"""Draw the attention of each module when it has been computed, and keep what the flow through all blocks needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fmapviz.core import registry
from fmapviz.errors import RequestError, first_few
from fmapviz.features.attention import AttentionView, FlowView
from fmapviz.features.attention.capture.blocks import Block
from fmapviz.features.attention.capture.placement import Picture, map_of
from fmapviz.features.attention.flow import draw_flow, query_of
from fmapviz.observe.reshape import NotAMapError
from fmapviz.run.layer_results import draw_feature_map
from fmapviz.types import FeatureMap

if TYPE_CHECKING:
    from fmapviz.config import Style
    from fmapviz.features.attention.capture.observe import Attention
    from fmapviz.features.attention.capture.placement import Query
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.run.layer_results import BatchResults
    from fmapviz.run.plan import Plan


@dataclass(slots=True, eq=False)
class AttentionMaps:
    """What views draw of the attention of one forward pass.

    Attributes:
        plan: The views.
        style: How pictures look.
        record: The forward pass.
        results: Receives what is drawn.
        picture: The input.
        query: Whose attention is drawn.
        seen: Names of the modules that computed attention.
        drawn: Number of maps.
    """

    plan: Plan
    style: Style
    record: ForwardRecord
    results: BatchResults
    picture: Picture
    query: Query
    seen: list[str] = field(default_factory=list)
    drawn: int = 0

    @classmethod
    def of(cls, plan: Plan, style: Style, record: ForwardRecord, results: BatchResults, *, has_class: bool) -> AttentionMaps:
        """Begin a forward pass.

        Raises:
            RequestError: The requested position is outside of the network's input.
        """
        picture, query = Picture.of(record.pixels, has_class=has_class), query_of(style)
        picture.check(query)
        record.picture = picture
        return cls(plan, style, record, results, picture, query)

    @torch.no_grad()
    def receive(self, attention: Attention, *, index: int | None) -> None:
        """Draw an attention that has been computed.

        Args:
            attention: Of one module.
            index: Number of layers that have been drawn before, among which it is sorted; None if no layers are drawn.
        """
        self.seen.append(attention.layer.name)
        self.record.attentions += 1
        plan = self.plan
        if plan.attending is not None and attention.layer.name not in plan.attending:
            return
        if plan.flows:
            differentiated = any(flow.targets for flow in plan.flows.values())
            self.record.blocks.append(Block.of(attention, differentiated=differentiated))
        if views := plan.draws.get("attention"):
            try:
                maps, query = map_of(attention, self.picture, self.query)
            except NotAMapError as reason:
                self.results.note(views, attention.name, str(reason))
                return
            drawn = FeatureMap(attention.layer, attention.name, attention.call, self.drawn if index is None else index, maps)
            self.drawn += 1
            self.results.add(
                draw_feature_map(drawn, maps, plan, self.style, record=self.record, of="attention", query=query)
            )

    def finish(self, model: str) -> None:
        """Draw the flow through all blocks, after the forward pass.

        Raises:
            RequestError: The network has computed no attention, or the chosen modules have not.
        """
        if not self.seen:
            known = registry.views().values()
            others = [each.name for each in known if each.networks == 1 and not isinstance(each, AttentionView | FlowView)]
            raise RequestError(
                f"no attention is computed in {model}, or none that can be seen", hint=f"other views: {', '.join(others)}"
            )
        if self.plan.attending is not None and self.plan.attending.isdisjoint(self.seen):
            raise RequestError("none of the chosen layers computes attention", hint=f"these do: {first_few(self.seen)}")
        for view, flow in self.plan.flows.items():
            if not flow.targets:
                draw_flow(view, self.plan, self.style, record=self.record, results=self.results)
