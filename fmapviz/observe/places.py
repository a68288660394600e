"""Locate the maps of a network's layers in its input."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from fmapviz.core.centres import Centres
from fmapviz.errors import first_few
from fmapviz.observe.outputs import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from fmapviz.data import FeatureMap
    from fmapviz.observe.layouts.tokens import TokenGrid
    from fmapviz.observe.receptive_field import ReceptiveField


class Places:
    """Where the maps of a network's layers lie in inputs of one shape.

    Args:
        find: Returns the receptive fields by the name of the feature map, which may take a forward pass.
        picture: Height and width of the inputs.

    Attributes:
        unknown: Why it is not known of maps that were asked for, by their names.
        turned: Names of maps that were asked for and whose rows are the picture's columns.
        unframed: Names of maps of clips or volumes that are of several frames, or of one that is not known.
    """

    def __init__(self, find: Callable[[], Mapping[str, ReceptiveField]], picture: tuple[int, int]) -> None:
        self.unknown: dict[str, str] = {}
        self.turned: dict[str, None] = {}
        self.unframed: dict[str, None] = {}
        self._find, self._picture = find, picture

    @cached_property
    def fields(self) -> Mapping[str, ReceptiveField]:
        """The receptive fields by the name of the feature map."""
        return self._find()

    def upright(self, feature_map: FeatureMap, maps: Tensor) -> Tensor:
        """Return maps `(N, ..., H, W)` with rows that are rows of the picture, as they are laid over it."""
        field, layout = self.fields.get(feature_map.name), feature_map.layout
        is_upright = layout is not None and len(layout.order) > 1 and layout.order[-2] > layout.order[-1]  # as N C W H is
        if field is None or not field.turned or field.centres is None or is_upright:
            return maps
        self.turned[feature_map.name] = None
        return maps.transpose(-2, -1)

    def of(self, feature_map: FeatureMap, grid: tuple[int, int], suffix: str = "") -> Centres | None:
        """Return the positions of a feature map in the input; None if it spans the input, or is assumed to.

        Args:
            feature_map: All frames of a clip lie where their layer does.
            grid: Its rows and columns, `upright`.
            suffix: Of the frame.
        """
        field, layout = self.fields.get(feature_map.name), feature_map.layout
        centres = field.centres if field else None
        if layout and layout.lines and centres is None:
            centres = Centres(*layout.lines, self._picture)
        elif layout and layout.lines and centres and not layout.by_type:
            centres = centres.part(*layout.lines)  # in the order of the picture, without positions beyond its border
        if centres is None or centres.grid != grid:
            self.unknown[f"{feature_map.name}{suffix}"] = field.reason if field else ""
            return None
        return None if centres.is_spread else centres

    def of_output(self, part: str) -> Centres | None:
        """Return the positions in the input of a map that the network returns, by its path; None if they are unknown."""
        field = self.fields.get(f"{OUTPUT}{part}")
        return field.centres if field and not field.turned else None

    def of_grid(self, name: str, tokens: TokenGrid) -> Centres | None:
        """Return the positions in the input of the patches between which attention is computed.

        Unless that is known of the tokens, and that no pixels are left out, it is as in all layers of this size.
        """
        if tokens.lines and (own := Centres(*tokens.lines, self._picture)).reaches_borders:
            return None if own.is_spread else own
        grid = tokens.grid
        fields = (field for own, field in self.fields.items() if not own.startswith(OUTPUT))
        known = [field.centres for field in fields if field.centres and field.centres.grid == grid]
        if not known or not all(each.equals(known[0]) for each in known):
            self.unknown[name] = ""
            return None
        return None if known[0].is_spread else known[0]

    def remarks(self, *names: str) -> list[str]:
        """Return remarks on maps that are turned, or whose position in the input is unknown."""
        unknown = {name: why for name, why in self.unknown.items() if not names or name in names}
        turned = [name for name in self.turned if not names or name in names]
        remarks = [_describe_unknown(unknown)] if unknown else []
        if turned:
            why = "the network exchanges rows and columns of the picture"
            remarks.append(f"{why}: what is drawn over the input is transposed: {first_few(turned)}")
        if unframed := [name for name in self.unframed if not names or name in names]:
            why = "they are of several, or their own is not known"
            remarks.append(f"laid over a single frame or slice, because {why}: {first_few(unframed)}")
        return remarks


def _describe_unknown(reasons: Mapping[str, str]) -> str:
    """Return a remark on maps that are assumed to span the input, with the operators that hide their position."""
    known = [why for why in dict.fromkeys(reasons.values()) if why]
    operators = [why for why in known if re.fullmatch(r"[\w.]+", why)]
    sentences = [
        *([f"through {', '.join(operators)}"] if operators else []),
        *(why for why in known if why not in operators),
    ]
    listed = f" ({'; '.join(sentences)})" if sentences else ""
    why = f"because where their positions lie is not known{listed}"
    return f"drawn as if they spanned the input, {why}: {first_few([*reasons])}"
