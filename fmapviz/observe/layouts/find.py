"""Find the layout of a layer's output: from the user, from the layer's type, or by following axes through the network."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from torch import Size, Tensor, nn

from fmapviz.core.layout import SAY_IT, Layout, LayoutError, layout_from
from fmapviz.errors import first_few, quote
from fmapviz.observe.layouts.axes import Axes, coords_of, kinds_of, named, names_of, reason_of
from fmapviz.observe.layouts.derive import describe, layout_of
from fmapviz.observe.layouts.tokens import TokenGrid, grid_as_said, grid_of
from fmapviz.observe.layouts.tracking import AxisTracking
from fmapviz.observe.outputs import OUTPUT, tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fmapviz.data import Layer, UserLayouts
    from fmapviz.observe.layouts.axes import Dim

# What works on (N, C, H, W) and never on the last axis.
CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.GroupNorm,
    nn.Upsample,
)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)
# Of those whose number of axes is fixed.
_SIDES = {"2": "N C H W", "3": "N C T H W"}
_FIXED = re.compile(r"(?:Conv|ConvTranspose|BatchNorm|InstanceNorm|(?:Adaptive)?(?:Max|Avg)Pool)([23])d")
_decided_by_type: dict[tuple[type[nn.Module], int | None], str] = {}  # asked at every layer
_USUAL = {2: "N C", 4: "N C H W", 5: "N C T H W"}


def known_by_type(module: nn.Module, dimensions: int | None = None) -> str:
    """Return the layout of a layer whose type decides it; empty if it does not.

    Example:
        >>> known_by_type(nn.Conv2d(3, 8, 3)), known_by_type(nn.ReLU())
        ('N C H W', '')
    """
    key = type(module), dimensions
    if key not in _decided_by_type:
        bases = (base.__name__ for base in type(module).__mro__ if base.__module__.startswith("torch.nn.modules."))
        text = next((_SIDES[match[1]] for base in bases if (match := _FIXED.fullmatch(base))), "")
        _decided_by_type[key] = text if dimensions in {None, len(text.split())} else ""
    return _decided_by_type[key]


def usual_layout(module: nn.Module, values: Tensor) -> Layout:
    """Return the layout of a tensor by its layer's type: an assumption, unless the type decides it."""
    shape = tuple(values.shape)
    if text := _decided(module, len(shape)):
        return layout_from(text, shape, images=shape[0], picture=None)
    shown = f"({', '.join(map(str, shape))})"
    text = _USUAL.get(len(shape), "")
    if _works_on_last_axis(module) and len(shape) > 3:
        text = "N H W C" if len(shape) == 4 else "N T H W C"
    if len(shape) == 3 and isinstance(module, CHANNELS_FIRST):
        text = "N C W"
    if not text:
        return Layout(refused=f"{shown}: which of its axes are channels, rows and columns is not known; {SAY_IT}")
    return layout_from(text, shape, images=shape[0], picture=None, assumed="" if len(shape) < 4 else text)


def _decided(module: nn.Module, dimensions: int) -> str:
    """Return the layout that a layer's type decides; without N if the layer received no axis of images."""
    text = "N C W" if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) else known_by_type(module)
    alone = text.removeprefix("N ")
    return known_by_type(module, dimensions) or (alone if len(alone.split()) == dimensions else "")


def _works_on_last_axis(module: nn.Module) -> bool:
    if isinstance(module, nn.LayerNorm):
        # torchvision's LayerNorm2d is a LayerNorm that permutes: channels-first outside.
        return len(module.normalized_shape) == 1 and type(module).forward is nn.LayerNorm.forward
    return isinstance(module, nn.Linear)


class MissingLayoutError(Exception):
    """A layer runs that did not run when axes were followed; they must be followed again."""


@dataclass(slots=True, eq=False)
class Found:
    """The layouts found by following axes.

    Attributes:
        layouts: By the names of feature maps.
        grids: Of both sequences of tokens between which weights are computed, by the name of these.
    """

    layouts: dict[str, Layout] = field(default_factory=dict)
    grids: dict[str, tuple[TokenGrid, TokenGrid]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class LayoutCache:
    """The layouts of a network's layers, for all threads.

    Attributes:
        known: Results by the shape of the input and the requested layers.
        by_type: Those that the types of layers decide, by the shapes of outputs.
        broken: Whether the network fails while its axes are followed.
    """

    known: dict[object, Found] = field(default_factory=dict)
    by_type: dict[tuple[str, Size], Layout] = field(default_factory=dict)
    broken: bool = False

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Retry a pass without following axes; if it succeeds, they are not followed again."""
        self.known.clear()
        self.broken = True
        try:
            yield
        except BaseException:
            self.broken = False
            raise


class LayoutFinder:
    """Finds the layouts of the outputs of a network's layers, one forward pass after the other.

    Axes are followed in the first pass with inputs of a shape. The type of a convolution defines channels, rows and columns;
    whether these are the picture's, and which part of it a sample is, must be followed.

    Args:
        network: The network.
        layers: The layers whose outputs are requested.
        cache: Findings of earlier passes.
        given: The user's layouts, by globs of names, or as a function of name and shape.
        tokens: Whether `token_grids` will be called.

    Attributes:
        cache: The results of earlier passes.
        followed: Whether axes were followed in the last pass.
    """

    def __init__(
        self,
        network: nn.Module,
        layers: Iterable[Layer],
        cache: LayoutCache | None = None,
        *,
        given: UserLayouts | None = None,
        tokens: bool = False,
    ) -> None:
        self._noticed: dict[str, Layout] = {}
        self.followed = False
        self._network = network
        self._given = given
        self._tokens = tokens
        self.cache = cache or LayoutCache()
        self._scope = frozenset(layer.name for layer in layers)
        self._found: Found | None = None
        self._tracking: AxisTracking | None = None
        self._derived: dict[int, tuple[Axes, Layout]] = {}  # of the current pass
        self._key: object = None
        self._images, self._picture = 0, (1, 1)

    @contextmanager
    def following(self, pixels: Tensor) -> Iterator[None]:
        """Surround a forward pass over a batch of images `(N, ...)`."""
        self._images = len(pixels)
        self._picture = (pixels.shape[-2], pixels.shape[-1]) if pixels.ndim > 2 else (1, 1)
        self._key = (pixels.shape[1:], len(pixels) > 1, self._scope, self._tokens)
        self._found, self.followed = self.cache.known.get(self._key), False
        if self._found is not None or self.cache.broken:
            yield
            return
        self._found, self._tracking, self.followed = Found(), AxisTracking(pixels, self._network), True
        try:
            with self._tracking:
                yield
        finally:
            self.cache.known[self._key] = self._found
            self._tracking = None
            self._derived.clear()

    def of_scores(self, values: Tensor, key: str | None) -> Layout | None:
        """Return the layout of scores of pixels that the network has returned, within `following`; None if it is unknown.

        Args:
            values: The scores.
            key: The requested part of the output.

        Raises:
            MissingLayoutError: Axes were not followed to them; they will be in the next pass.
        """
        if self.cache.broken:
            return None
        name = f"{OUTPUT}{key or ''}"
        if self._found is None or (self._tracking is None and name not in self._found.layouts):
            raise MissingLayoutError
        if self._tracking is not None:
            axes = self._tracking.axes(values)
            self._found.layouts[name] = Layout() if axes is None else self._layout_of(axes)
        return self._found.layouts[name]

    def paused(self) -> AbstractContextManager[None]:
        """Ignore operators within the block, which are not the network's."""
        return self._tracking.pausing() if self._tracking else nullcontext()

    def of(self, layer: Layer, name: str, values: Tensor, *, entry: bool = False) -> Layout | None:
        """Return the layout of a tensor that a layer has returned, or receives; None if it is no plain array.

        Raises:
            MissingLayoutError: The layer did not run when axes were followed.
        """
        if values.is_nested:
            return None
        if self._given is not None and not entry and (said := self._said(layer, name, values)):
            return said
        shape, name = values.shape, f"{name} <-" if entry else name
        found = self._found.layouts.get(name) if self._found is not None else None
        if found is not None and found.by_type and found.dims[1:] != tuple((length,) for length in shape[1:]):
            found = None  # of another size in this image
        if found is None and self._tracking is not None and self._found is not None:
            found = self._found.layouts[name] = self._derive(layer.module, values)
        if found is None and (text := known_by_type(layer.module, values.ndim)) and shape[0] == self._images:
            found = self._by_type(text, shape)
        if found is None:
            if not self.cache.broken and self._found is not None:
                raise MissingLayoutError
            found = usual_layout(layer.module, values)
        if found.assumed or found.unlike or found.unfollowed:
            self._noticed[name] = found
        return found

    def _by_type(self, text: str, shape: Size) -> Layout:
        found = self.cache.by_type.get((text, shape))
        if found is None:
            found = layout_from(text, shape, images=shape[0], picture=None)
            found = self.cache.by_type[text, shape] = replace(found, by_type=True)
        return found

    def _derive(self, module: nn.Module, values: Tensor) -> Layout:
        assert self._tracking
        axes = self._tracking.axes(values)
        if text := known_by_type(module, values.ndim):
            return (axes and self._beside_type(text, axes, values)) or self._by_type(text, values.shape)
        decided, is_batch = bool(_decided(module, values.ndim)), values.shape[:1] == (self._images,)
        if axes is None and (decided or (values.ndim > 3 and is_batch)):  # a constant, or code of another kind
            return usual_layout(module, values)
        if axes is None:
            shown = f"({', '.join(map(str, values.shape))})"
            return Layout(refused=f"{shown}: not computed from the picture, or by code that cannot be followed; {SAY_IT}")
        found = self._layout_of(axes)
        says_nothing = found.refused and _says_nothing_of_positions(axes)
        says_nothing = says_nothing or not (named(axes) or any(map(reason_of, axes.dims)))
        return usual_layout(module, values) if (decided and found.refused) or (is_batch and says_nothing) else found

    def _beside_type(self, text: str, axes: Axes, values: Tensor) -> Layout | None:
        """Return the layout of a convolution's output where more than its type is known; None if it is not.

        Samples that are parts of the picture, or frames, are put together, as are rows that are made of rows and columns.
        """
        sides = axes.dims[2:]
        is_other = any(kinds_of(dim) & {"C", "N"} or (axes.pair and len(names_of(dim)) != 1) for dim in sides)
        is_mixed = any(sum(np.isfinite(coords_of(dim, each)).any() for each in names_of(dim)) > 1 for dim in sides)
        found = self._layout_of(axes)
        if len(values) == self._images and not is_other and not is_mixed:
            usual = self._by_type(text, values.shape)
            if any(map(_is_lost, sides)):
                return replace(usual, unfollowed=_with_unknown(text, sides))
            if found.refused or found.dims != usual.dims:
                return usual
            if found.order == usual.order and found.places is None:
                return replace(usual, lines=found.lines, frames=found.frames)
            # Mirrored, rolled or exchanged rows and columns are put in order, unless some are missing.
            return found if found.grid and usual.grid and prod(found.grid) == prod(usual.grid) else usual
        are_places = all(
            digit.base is not None and digit.base.kind == "P" for dim in sides for digit in dim if digit.size > 1
        )
        if found.grid and not found.refused and are_places:
            return found
        is_unlike = is_other or (is_mixed and len(values) == self._images)  # samples that overlap are of the picture
        return replace(self._by_type(text, values.shape), unlike=describe(axes)) if is_unlike else None

    def _layout_of(self, axes: Axes) -> Layout:
        """Return the layout of axes, which many tensors of the pass share."""
        if id(axes) not in self._derived:
            self._derived[id(axes)] = (axes, layout_of(axes))
        return self._derived[id(axes)][1]

    def token_grids(
        self, name: str, layer: Layer, tensors: Sequence[Tensor], *, lengths: tuple[int, int]
    ) -> tuple[TokenGrid, TokenGrid] | None:
        """Return where the two sequences of tokens between which a module computes weights are; None if it is not known.

        Args:
            name: Of the weights.
            layer: The module.
            tensors: Both sequences, or the weights `(..., L, S)` alone.
            lengths: L and S.

        Raises:
            MissingLayoutError: They were not computed when axes were followed.
        """
        queries, keys = lengths
        if self._given is not None and (text := self._text(name, layer, (self._images, keys, 1))):
            said = [grid_as_said(text, length, images=self._images, picture=self._picture) for length in (queries, keys)]
            if said[1] is not None:
                return said[0] or TokenGrid(queries, refused="queries that the layout does not fit"), said[1]
        if self._found is not None and name in self._found.grids:
            return self._found.grids[name]
        if self._tracking is None or self._found is None:
            if self._found is not None and not self.cache.broken:
                raise MissingLayoutError
            return None
        first = self._tracking.axes(tensors[0])
        if len(tensors) == 2:
            pair = first, self._tracking.axes(tensors[1])
        else:
            pair = (first.pair if first else None) or (None, None)
        grids = [grid_of(axes, images=self._images) for axes in pair]
        sized = [replace(grid, length=length) for grid, length in zip(grids, lengths, strict=True)]
        self._found.grids[name] = found = sized[0], sized[1]
        return found

    def _said(self, layer: Layer, name: str, values: Tensor) -> Layout | None:
        """Return the user's layout of a layer, None if there is none."""
        shape = tuple(values.shape)
        text = self._text(name, layer, shape)
        if not text:
            return None
        try:
            return layout_from(text, shape, images=self._images, picture=self._picture)
        except LayoutError as reason:
            return Layout(text, refused=str(reason))

    def _text(self, name: str, layer: Layer, shape: tuple[int, ...]) -> str | None:
        given = self._given
        assert given is not None
        if callable(given):
            return given(name, shape)
        names = (name, layer.name)
        return next((own for glob, own in given.items() if any(fnmatchcase(each, glob) for each in names)), None)

    def notices(self, drawn: Collection[str]) -> list[str]:
        """Return notices on assumed layouts, and on those whose rows and columns are not the picture's.

        Args:
            drawn: Names of the feature maps that are drawn, perhaps with those of frames behind them; others do not count.
        """
        noticed = {
            name: each
            for name, each in self._noticed.items()
            if any(own == name or own.startswith(f"{name}.") for own in drawn)
        }
        of = {
            f"axes that could not be followed through the network are assumed: {{}}; {SAY_IT}": "assumed",
            "not rows and columns of the picture: {}": "unlike",
            "rows and columns that could not be followed from the picture: {}": "unfollowed",
        }
        found = {notice: {name: getattr(each, key) for name, each in noticed.items()} for notice, key in of.items()}
        return [notice.format(_by_text(texts)) for notice, texts in found.items() if any(texts.values())]


def _is_lost(dim: Dim) -> bool:
    """Return True if the positions of a dimension are mixed, or only taken to span the picture."""
    return bool(reason_of(dim)) or any(digit.base is not None and digit.base.spread for digit in dim)


def _with_unknown(text: str, sides: Sequence[Dim]) -> str:
    """Return axes in words, with `?` for those that are only taken to span the picture."""
    words = text.split()
    for number, dim in enumerate(sides, 2):
        if _is_lost(dim):
            words[number] = "?"
    return " ".join(words)


def _by_text(layouts: Mapping[str, str]) -> str:
    by_text: dict[str, list[str]] = {}
    for name, text in layouts.items():
        if text:
            by_text.setdefault(text, []).append(name)
    return "; ".join(f"{quote(text)} of {first_few(names)}" for text, names in by_text.items())


def _says_nothing_of_positions(axes: Axes) -> bool:
    """Return True if rows and columns come from a constant, such as ones: nothing contradicts the usual order of axes."""
    kinds = [kinds_of(dim) for dim in axes.dims]
    return (
        len(axes.dims) > 3
        and not axes.pair
        and not any("P" in kind for kind in kinds)
        and not any(map(reason_of, axes.dims))
    )


@contextmanager
def following_calls(network: nn.Module, finder: LayoutFinder) -> Iterator[None]:
    """Follow the axes of each input of a network within a `with` block."""
    passes: list[ExitStack] = []

    def begin(_network: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        inputs = [values for _, values in tensors((args, kwargs)) if values.is_floating_point() and values.ndim > 1]
        stack = ExitStack()
        if inputs and not passes:
            stack.enter_context(finder.following(max(inputs, key=lambda values: min(values.ndim, 4))))
        passes.append(stack)

    def end(_network: nn.Module, _args: object, _output: object) -> None:
        if passes:
            passes.pop().close()

    with ExitStack() as hooks:
        hooks.enter_context(network.register_forward_pre_hook(begin, with_kwargs=True))
        hooks.enter_context(network.register_forward_hook(end, always_call=True))
        yield
