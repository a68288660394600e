"""The receptive field of each layer: which pixels of the input each position of a feature map depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.centres import Centres
from fmapviz.observe.fields.tracking import FieldTracking, ReadDetection
from fmapviz.observe.hooks import observe, undisturbed
from fmapviz.observe.outputs import OUTPUT, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fmapviz.data import FeatureMap, Layer
    from fmapviz.observe.fields.intervals import Axis, Field

NOTHING = "not computed from the picture"
TURNED = "rows and columns of the picture are exchanged"


@dataclass(frozen=True, slots=True, eq=False)
class ReceptiveField:
    """The input pixels that each position of a feature map depends on, as one box per position.

    Boxes extend beyond the picture where they contain padding, so that those of a regular network have one size. Rows and
    columns of the picture are counted from 0 at the upper left.

    A box is that of all channels together. It is never too small. It may be too large at a position where one of several
    branches has only padding.

    Attributes:
        name: The feature map's name: `relu#2` for the second call of a layer, `[0]` or `['out']` for parts of its output.
        rows: int64 `(2, h)`: the first and last row of the picture, inclusive, for each row of the map. h is 1 if they are
            the same for all rows.
        columns: int64 `(2, w)`: the same for columns.
        stride: Distance of neighbouring boxes, `(height, width)` in pixels; None where it is not the same for all.
        picture: Height and width of the input, pixels.
        reason: Why it is assumed to be the whole picture, such as the operator `aten.bmm`; empty if it is exact.
        ungated: The field without what is the same at all positions, such as squeeze-and-excitation gates and the statistics
            of an instance norm; None if there is nothing of the kind.
        centres: The centres of the positions; None if they are unknown.
        turned: Whether the map's rows are columns of the picture; the `centres` are then those of the transposed map.
    """

    name: str
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    stride: tuple[int, int] | None
    picture: tuple[int, int]
    reason: str = ""
    ungated: ReceptiveField | None = None
    centres: Centres | None = None
    turned: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the largest box, pixels."""
        return _length(self.rows), _length(self.columns)

    @property
    def start(self) -> tuple[int, int]:
        """First row and column of the box of position (0, 0); negative if it extends beyond the picture."""
        return int(self.rows[0, 0]), int(self.columns[0, 0])

    @property
    def is_whole(self) -> bool:
        """True if every position depends on the whole picture, or is taken to do so."""
        pairs = zip((self.rows, self.columns), self.picture, strict=True)
        return all(bool(((ends[0] <= 0) & (ends[1] >= pixels - 1)).all()) for ends, pixels in pairs)

    def box(self, y: int, x: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of a position's box; right and bottom are exclusive.

        Example:
            >>> from fmapviz import receptive_field
            >>> receptive_field("alexnet")["features.3"].box(0, 0)
            (-18, -18, 33, 33)
        """
        (top, bottom), (left, right) = _at(self.rows, y), _at(self.columns, x)
        return left, top, right + 1, bottom + 1

    def visible_box(self, y: int, x: int) -> tuple[int, int, int, int]:
        """Return the part of a position's box that is inside the picture.

        Example:
            >>> from fmapviz import receptive_field
            >>> receptive_field("alexnet")["features.3"].visible_box(0, 0)
            (0, 0, 33, 33)
        """
        return clipped(self.box(y, x), self.picture)


def clipped(box: tuple[int, int, int, int], picture: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the part of a box, left, top, right and bottom, that is inside a picture of a height and width."""
    left, top, right, bottom = box
    height, width = picture
    return min(max(left, 0), width), min(max(top, 0), height), max(min(right, width), 0), max(min(bottom, height), 0)


def trace_fields(
    model: nn.Module,
    layers: Sequence[Layer],
    pixels: Tensor,
    *,
    forward: Callable[[nn.Module, Tensor], object],
    placing: bool = False,
) -> dict[str, ReceptiveField]:
    """Run a model once, mostly without numbers, and return the receptive field of every output of some layers, by its name.

    Intervals of pixels are followed through every operator that runs, also where it is no module. The model is in evaluation
    mode meanwhile, and unchanged afterwards, as with `fmapviz.observe.hooks.observe`.

    Args:
        model: On any device; on the meta device nothing is computed.
        layers: See `fmapviz.observe.layers.select_layers`.
        pixels: A batch of one picture, `(1, C, H, W)`, on the device of the model.
        forward: Calls the model with the batch.
        placing: Whether to return only the `centres`, which are then also known behind attention; see `FieldTracking`. The
            pixels are all those of the picture. Also of what the model returns, whose names begin with `OUTPUT`.

    Example:
        >>> from torch import nn
        >>> from fmapviz.observe.layers import find_layers
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)).to("meta")
        >>> pixels = torch.zeros(1, 3, 9, 9, device="meta")
        >>> found = trace_fields(net, find_layers(net), pixels, forward=lambda net, batch: net(batch))
        >>> found["1"].size, found["1"].stride, found["1"].box(0, 1)
        ((4, 4), (2, 2), (2, 0, 6, 4))
    """
    found: dict[str, ReceptiveField] = {}
    tracking = FieldTracking(pixels, placing=placing, weights=model.parameters())

    def receive(feature_map: FeatureMap) -> None:
        field = tracking.field(feature_map.values) or tracking.whole(NOTHING)
        picture = (pixels.shape[-2], pixels.shape[-1])
        found[feature_map.name] = (_place if placing else _describe)(field, name=feature_map.name, picture=picture)

    def refuse(feature_map: FeatureMap, reason: str) -> None:
        picture = (pixels.shape[-2], pixels.shape[-1])
        found[feature_map.name] = unknown_field(feature_map.name, picture, reason=reason)

    observed = observe(model, layers, receive, refuse=refuse)
    with torch.no_grad(), undisturbed(pixels.device), observed, tracking, ReadDetection(tracking):
        output = forward(model, pixels)
    if placing:
        for part, values in tensors(output):
            if values.ndim == 4 and (field := tracking.field(values)):
                found[f"{OUTPUT}{part}"] = _place(
                    field, name=f"{OUTPUT}{part}", picture=(pixels.shape[-2], pixels.shape[-1])
                )
    return found


def unknown_field(name: str, picture: tuple[int, int], *, reason: str) -> ReceptiveField:
    """Return the field of a layer whose field is unknown: the whole picture."""
    rows, columns = (np.array([[0], [side - 1]]) for side in picture)
    return ReceptiveField(name, rows, columns, None, picture, reason)


def _place(field: Field, *, name: str, picture: tuple[int, int]) -> ReceptiveField:
    found = unknown_field(name, picture, reason=field.reason or (TURNED if field.is_turned else ""))
    is_turned = field.is_turned and field.rows.dim != field.columns.dim
    known = not field.reason and (is_turned or not field.is_turned)
    return replace(found, centres=_centres(field, picture), turned=is_turned) if known else found


def _describe(field: Field, *, name: str, picture: tuple[int, int]) -> ReceptiveField:
    if field.reason or field.is_turned:
        found = _place(field, name=name, picture=picture)
    else:
        rows, columns = (axis.visible(side) for axis, side in zip(field.axes, picture, strict=True))
        steps = _step(rows, field.rows), _step(columns, field.columns)
        stride = None if steps[0] is None or steps[1] is None else (steps[0], steps[1])
        found = ReceptiveField(name, rows, columns, stride, picture, centres=_centres(field, picture))
    if field.ungated is None:
        return found
    if found.is_whole and not found.reason:  # by the gate; its extent beyond the picture is meaningless
        found = unknown_field(name, picture, reason="")
    return replace(found, ungated=_describe(replace(field.ungated, ungated=None), name=name, picture=picture))


def _centres(field: Field, picture: tuple[int, int]) -> Centres | None:
    """Return where the positions of a map lie; None if they are not rows and columns of the picture."""
    if not all(axis.dim is not None and np.isfinite(axis.centres).all() for axis in field.axes):
        return None
    if any(len(np.unique(axis.centres)) < axis.positions for axis in field.axes):
        return None
    seen = _seen(field.rows, picture[0]), _seen(field.columns, picture[1])
    return Centres(field.rows.centres, field.columns.centres, picture, seen)


def _seen(axis: Axis, side: int) -> tuple[int, int]:
    """Return the first and the last pixel that some position depends on, or that is less than a step from these."""
    first, last = axis.ends[0]
    some, step = first <= last, abs(axis.step)
    low, high = (int(first[some].min()), int(last[some].max())) if some.any() else (0, -1)
    return 0 if low < step else low, side - 1 if side - 1 - high < step else high


def _step(ends: NDArray[np.int64], axis: Axis) -> int | None:
    """Return the distance of neighbouring boxes; of a single one, that of the positions that were united."""
    steps = np.diff(ends[0])
    if len(steps):
        return int(steps[0]) if steps[0] and (steps == steps[0]).all() else None
    return int(axis.step) if axis.step.denominator == 1 else None


def _length(ends: NDArray[np.int64]) -> int:
    return int((ends[1] - ends[0]).max()) + 1


def _at(ends: NDArray[np.int64], position: int) -> tuple[int, int]:
    first, last = ends[:, position if ends.shape[1] > 1 else 0].tolist()
    return first, last
