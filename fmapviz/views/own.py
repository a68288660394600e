"""Call a view of the user's own, and check what it returns; see `fmapviz.core.own`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fmapviz.core.drawings import Rendered
from fmapviz.core.own import calling
from fmapviz.core.user_code import one_line, place_of
from fmapviz.data import CustomContent
from fmapviz.draw.facts import channel_facts
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.members import View
    from fmapviz.data import LayerResult
    from fmapviz.views.base import LayerMaps

_LONGEST_SIDE = 65_535  # pixels, of a JPEG file that a picture may become


@dataclass(frozen=True, slots=True, eq=False)
class OwnPicture(CustomContent):
    """Content of a drawing: a picture that a view of the user's own has made.

    Attributes:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
    """

    pixels: NDArray[np.uint8]

    def render(self, _layer: LayerResult, _seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(self.pixels.repeat(style.scale, 0).repeat(style.scale, 1))

    def describe(self, layer: LayerResult, _style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        return channel_facts(layer, scaling="as the code of this view has drawn it", nonfinite="drawn as that code does")


class OwnViewError(NotAMapError):
    """The user's code failed, or returned a wrong value."""


class OneImageError(Exception):
    """The user's code failed for some images of a batch, and not for others."""


def reduce(view: View, maps: Tensor) -> Tensor:
    """Reduce all channels to one map; see `fmapviz.views.base`.

    Raises:
        OwnViewError: The user's code failed, or returned something else.
        OneImageError: It failed for some of the images.
    """

    def check(returned: Tensor) -> bool:
        return returned.shape == (len(maps), *maps.shape[2:]) and not returned.is_complex()

    made = _call(view.own, (_copy(maps),), check, "numbers (N, h, w)")
    return made.to(maps.device, torch.float32, copy=True)


def draw(view: View, maps: LayerMaps, style: Style) -> BatchContent:
    """Draw feature maps; see `fmapviz.views.base`.

    Raises:
        OwnViewError: The user's code failed, or returned something else.
        OneImageError: It failed for some of the images.
    """
    count = len(maps.values)

    def check(returned: Tensor) -> bool:
        sides, colours = returned.shape[1:3], returned.shape[3:]
        fits = len(sides) == 2 and min(sides) > 0 and max(sides) <= _LONGEST_SIDE and colours in {(), (3,)}
        return returned.dtype == torch.uint8 and len(returned) == count and fits

    made = _call(view.own.draw, (_copy(maps.values), style), check, "uint8 (N, H, W) or (N, H, W, 3)")
    return BatchContent(OwnPicture, {"pixels": made.clone(memory_format=torch.contiguous_format)})


def _copy(maps: Tensor) -> Tensor:
    """Return a float32 copy, which the user's code may change."""
    return maps.detach().to(torch.float32, copy=True)


# Any: what the user's code takes and returns.
def _call(
    function: Callable[..., Any], arguments: tuple[Any, ...], check: Callable[[Tensor], bool], expected: str
) -> Tensor:
    """Call the user's code, and return its result as a tensor."""
    maps, *more = arguments
    count = len(maps)
    returned, failure = _try(function, maps.clone() if count > 1 else maps, *more)
    if failure and count > 1:
        if is_out_of_memory(failure):
            raise failure  # fewer images at once may fit
        failures = [_try(function, each[None].clone(), *more)[1] for each in maps]
        if None in failures:
            raise OneImageError from failure
        failure = failures[0]  # the message that an image alone has
    if failure:
        raise OwnViewError(f"{one_line(failure)}{_in_brackets(place_of(failure))}") from failure
    try:
        made = torch.as_tensor(returned).detach()
        fits = made.layout is torch.strided and not (made.is_meta or made.is_quantized) and bool(check(made))
    except (TypeError, ValueError, RuntimeError, IndexError):
        fits = False
    if not fits:
        place = _in_brackets(_definition(function))
        raise OwnViewError(f"it must return {expected} for maps (N, C, h, w), not {_describe(returned, maps)}{place}")
    return made


# Any: likewise.
def _try(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    try:
        with calling(), torch.no_grad():
            return function(*arguments), None
    except (Exception, SystemExit) as error:  # noqa: BLE001  of the user
        return None, error


def _in_brackets(place: str) -> str:
    return f" ({place})" if place else ""


def _describe(returned: object, maps: Tensor) -> str:
    """Return the type of a value in words, with its shape if it has one: a letter where a side is that of the maps.

    Example:
        >>> _describe(torch.zeros(2, 8, 5), torch.zeros(2, 8, 7, 7))
        'float32 (N, 8, 5)'
    """
    shape, dtype = getattr(returned, "shape", None), getattr(returned, "dtype", None)
    if shape is None or dtype is None:
        return "None" if returned is None else f"a value of type {type(returned).__name__}"
    letters = {2: "NC", 3: "Nhw", 4: "NChw"}.get(len(shape), "?" * len(shape))
    sides = {**dict(zip("NChw", maps.shape, strict=True)), "?": -1}
    sizes = [letter if side == sides[letter] else str(side) for letter, side in zip(letters, shape, strict=True)]
    kind = "" if getattr(returned, "layout", torch.strided) is torch.strided else "sparse "
    where = " on the meta device" if getattr(returned, "is_meta", False) else ""
    return f"{kind}{str(dtype).removeprefix('torch.')} ({', '.join(sizes)}{',' if len(sizes) == 1 else ''}){where}"


def _definition(function: Callable[..., Any]) -> str:
    """Return the place where a function begins, such as `my_view.py, line 3`; empty if that is unknown."""
    routine = inspect.unwrap(function)
    routine = routine if inspect.isroutine(routine) else vars(type(routine)).get("__call__", routine)
    code = getattr(routine, "__code__", None)
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}" if code else ""
