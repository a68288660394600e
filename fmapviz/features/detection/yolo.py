"""Boxes of the networks of ultralytics, with its own non-maximum suppression."""

from __future__ import annotations

from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torchvision.ops import box_convert

from fmapviz.errors import RequestError
from fmapviz.models.sources.ultralytics import unpatched
from fmapviz.observe.boxes import Boxes, highest_among, highest_of, logits_at

with unpatched():
    from ultralytics.nn.modules import OBB, RTDETRDecoder, Segment
    from ultralytics.utils.ops import process_mask

    try:
        from ultralytics.utils.nms import non_max_suppression
    except ImportError:  # before 8.3.190
        from ultralytics.utils.ops import non_max_suppression

if TYPE_CHECKING:
    from torch import nn

    from fmapviz.observe.forward_record import ForwardRecord

# What `YOLO.predict` takes by default: the lowest score, and the overlap of two boxes of one object.
_LEAST, _OVERLAP, _MOST = 0.25, 0.7, 300
_IS_OLD = not {"end2end", "return_idxs"} <= signature(non_max_suppression).parameters.keys()


def read(record: ForwardRecord, least: float | None) -> list[Boxes]:
    """Return the boxes of each image; see `fmapviz.core.members.Detector`.

    The differentiated value of a box is the logit of its class at its anchor, of RT-DETR that of its query. A box whose
    mask is empty is left out, as ultralytics does.

    Raises:
        RequestError: The installed ultralytics is too old.
    """
    if _IS_OLD:
        hint = "pip install --upgrade 'fmapviz[ultralytics]'"
        raise RequestError(f"boxes need ultralytics 8.3.140 or later, not {version('ultralytics')}", hint=hint)
    network, output = cast(Any, record.network), cast(Any, record.output)  # nested tuples and dicts, by the version
    head = network.model[-1]
    least = _LEAST if least is None else least
    if isinstance(head, RTDETRDecoder):
        return _of_queries(head, output, record.pixels, least)
    found, raw = output
    prototypes = _prototypes(output) if isinstance(head, Segment) else None
    found = found[0] if isinstance(found, tuple) else found
    ends = bool(getattr(head, "end2end", False))
    logits = _logits(raw, head, ends=ends)  # (N, K, A)
    rotated = isinstance(head, OBB)
    with torch.no_grad():
        kept, rows = non_max_suppression(
            found.detach().clone(),
            least,
            _OVERLAP,
            max_det=_MOST,
            nc=head.nc,
            rotated=rotated,
            end2end=ends,
            return_idxs=True,
        )
        table = logits.detach().sigmoid().mT
        highest = [
            highest_among(each[:, 5].long(), each[:, 4], head.nc) if ends else highest_of(scores)
            for each, scores in zip(found.detach(), table, strict=True)
        ]
        anchors = _selected(head, found, table) if ends else None
    boxes = []
    for image, (every, found_at) in enumerate(zip(kept, rows, strict=True)):
        seen = slice(None) if prototypes is None else _has_pixels(every, prototypes[image], record.pixels.shape[2:])
        each, own = every[seen], found_at.long().view(-1)[seen]
        labels = each[:, 5].long()
        if anchors is not None:
            own = anchors[image, own]
        corners = _around(each[:, :4], each[:, -1]) if rotated and not ends else each[:, :4]
        values = logits_at(logits[image].mT, own, labels)
        boxes.append(Boxes(labels, each[:, 4], values, corners, logits=True, least=least, highest=highest[image]))
    return boxes


def feeds(network: nn.Module) -> tuple[str, ...]:
    """Return the paths of the modules whose outputs the head reads, one for each scale."""
    head: Any = network.model[-1]  # type: ignore[index]  # of ultralytics
    sources = head.f if isinstance(head.f, list) else [head.f]
    return tuple(f"model.{source if source >= 0 else head.i + source}" for source in sources)


def _logits(raw: Any, head: Any, *, ends: bool) -> Tensor:  # Any: see `read`
    """Return the logits of all classes at all anchors, `(N, K, A)`."""
    raw = raw["one2one" if ends else "one2many"] if isinstance(raw, dict) and "one2one" in raw else raw
    if isinstance(raw, dict):
        return raw["scores"]  # type: ignore[no-any-return]
    maps = raw[0] if isinstance(raw[0], list) else raw  # before 8.4: distances and logits of each scale
    return torch.cat([each.flatten(2) for each in maps], 2)[:, 4 * head.reg_max :][:, : head.nc]


def _selected(head: Any, found: Tensor, scores: Tensor) -> Tensor:  # Any: see `read`
    """Return the anchor of each row that a head without non-maximum suppression has selected, int64 `(N, R)`; -1 if unknown.

    The head selects again, with the number of each anchor in place of its box: scores alone may be equal at several.

    Args:
        head: The head.
        found: Its output, `(N, R, 6 + E)`.
        scores: Of all anchors for all classes, `(N, A, K)`.
    """
    numbers = torch.arange(scores.shape[1], dtype=torch.float32, device=scores.device)  # exact below 2 ** 24
    extras = scores.new_zeros(*scores.shape[:2], found.shape[2] - 6)
    numbered = torch.cat([numbers[:, None].expand(*scores.shape[:2], 4), scores, extras], 2)
    settings = (head.max_det, head.nc)[: len(signature(head.postprocess).parameters) - 1]  # before 8.4
    return _numbers(head.postprocess(numbered, *settings), found)


def _numbers(again: Tensor, found: Tensor) -> Tensor:
    """Return the numbers that stand in place of boxes in a second selection; -1 where it is not the first one."""
    return again[..., 0].long().where((again[..., 4:6] == found[..., 4:6]).all(-1), -1)


def _prototypes(output: Any) -> Tensor:  # Any: see `read`
    """Return the maps that masks are weighted sums of, `(N, M, H, W)`."""
    found, raw = output
    prototypes = found[1] if isinstance(found, tuple) else raw[-1]  # before 8.4
    return prototypes.detach()  # type: ignore[no-any-return]


def _has_pixels(rows: Tensor, prototypes: Tensor, size: torch.Size) -> Tensor:
    """Return for each box whether a pixel of its mask lies in it, `(B)`; `size` is height and width of the input."""
    masks = process_mask(prototypes, rows[:, 6:], rows[:, :4], size, upsample=True) if len(rows) else rows
    return cast("Tensor", masks.flatten(1).amax(1) > 0)


def _of_queries(head: Any, output: Any, pixels: Tensor, least: float) -> list[Boxes]:  # Any: see `read`
    found, raw = output
    found, logits = found.detach(), raw[1][-1]  # (N, Q, K) of the last layer of the decoder
    scores = logits.detach().sigmoid()
    queries = torch.arange(scores.shape[1], device=found.device).expand(scores.shape[:2])
    if hasattr(head, "postprocess"):  # the head has selected pairs of a query and a class
        queries = _numbers(head.postprocess(queries[..., None].expand(-1, -1, 4).float(), scores), found)
    else:  # older heads return all queries
        best, classes = found[..., 4:].max(-1, keepdim=True)
        found = torch.cat([found[..., :4], best, classes], -1)
    height, width = pixels.shape[-2:]
    size = found.new_tensor([width, height, width, height])
    boxes = []
    for each, own, rows in zip(found, logits, queries, strict=True):
        kept = each[:, 4] > least
        corners, labels = box_convert(each[kept, :4], "cxcywh", "xyxy") * size, each[kept, 5].long()
        values, highest = logits_at(own, rows[kept], labels), highest_among(each[:, 5].long(), each[:, 4], own.shape[1])
        chosen = Boxes(labels, each[kept, 4], values, corners, logits=True, least=least, highest=highest)
        boxes.append(chosen.sorted())
    return boxes


def _around(boxes: Tensor, angles: Tensor) -> Tensor:
    """Return the upright rectangles around turned ones, given by centre, width, height and angle in radians."""
    cosine, sine = angles.cos().abs(), angles.sin().abs()
    width, height = boxes[:, 2], boxes[:, 3]
    half = torch.stack([width * cosine + height * sine, width * sine + height * cosine], 1) / 2
    return torch.cat([boxes[:, :2] - half, boxes[:, :2] + half], 1)
