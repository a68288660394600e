"""The tensors of a forward pass at which gradients will be computed when it is over."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import nn

from fmapviz.core.words import counted
from fmapviz.errors import quote
from fmapviz.observe.gradients import begin_graph_in_place, edge_of
from fmapviz.observe.reshape import NotAMapError, frames_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from fmapviz.core.layout import Layout
    from fmapviz.core.placement import InFile
    from fmapviz.data import FeatureMap, Layer
    from fmapviz.observe.class_scores import ClassScores, Index
    from fmapviz.observe.endings import Endings
    from fmapviz.observe.places import Places
    from fmapviz.observe.score_kinds import Head


@dataclass(frozen=True, slots=True, eq=False)
class GraphPoint:
    """A tensor that a layer returned or received.

    Attributes:
        feature_map: As the hook received it, part of the graph; a later layer may have overwritten its values.
        edge: Its position in the graph, before it was overwritten; None if it is outside the graph.
        values: Its values outside the graph, or a copy of them; those at the time of the hook if it is intact.
        version: Of `values` at the time of the hook.
    """

    feature_map: FeatureMap
    edge: GradientEdge | None
    values: Tensor
    version: int

    @classmethod
    def of(cls, feature_map: FeatureMap, *, copied: bool) -> GraphPoint:
        """Record a tensor that has not been overwritten yet."""
        values = feature_map.values.detach()
        values = values.clone() if copied else values
        return cls(feature_map, edge_of(feature_map.values), values, _version(values))

    @property
    def name(self) -> str:
        """The feature map's name."""
        return self.feature_map.name

    @property
    def layer(self) -> Layer:
        """The layer that returned or received it."""
        return self.feature_map.layer

    @property
    def intact(self) -> bool:
        """True if no later layer has overwritten the values."""
        return _version(self.values) == self.version

    @property
    def identity(self) -> object:
        """Equal for the same tensor, returned by a module and by those around it."""
        return (id(self.edge.node), self.edge.output_nr) if self.edge else id(self)

    def why_no_gradient(self) -> str:
        """Return why there is no gradient here."""
        values = self.feature_map.values
        if values.is_quantized or not values.is_floating_point():
            return f"no gradient: its values are {'quantized' if values.is_quantized else 'integers'}"
        if self.edge is None:
            return "no gradient: it runs under torch.no_grad(), or what lies before it is not differentiable"
        return "the class score does not depend on it"


@dataclass(slots=True, eq=False)
class ForwardRecord:
    """A forward pass over a batch of images, for its backward passes.

    Attributes:
        network: The network.
        pixels: Its input, `(N, ...)`, at the beginning of the graph.
        late: Whether the graph begins at the first recorded layer, not at the input. Nothing before that layer is then
            recorded by autograd, which saves the memory of its activations.
        names: The feature maps recorded in `kept`, in addition to those of the chosen layers; None for all.
        heads: Whether vectors that may hold the class scores are recorded.
        endings: Records the last operation of the network; None if it is known, or not needed.
        output: The network's output.
        score_layout: The layout of scores of pixels in it; None if there are none, or it is unknown.
        scores: The class scores in its output, once they are read.
        over: Whether the pass has ended: a backward pass may run layers under `torch.utils.checkpoint` again.
        disconnected: Whether the graph could not begin late, so that the pass has to be repeated with an early graph.
        outputs: Outputs of the chosen layers.
        inputs: Inputs of the chosen layers.
        kept: Outputs of layers of certain names, in the order of execution.
        vectors: Copies of the outputs of linear layers, if `heads`: the last may hold the class scores.
        captured: What the modules returned that a detector's boxes are read from, by their paths.
        places: Where the maps of layers lie in the input; None if nothing is drawn over it.
        files: The file of each image, for targets that are given by a place; see `Located`.
        begun: The tensors at which the graph began within the network.
        known: Gradients computed while choosing layers: by the identity of the point, and the class of each image.
    """

    network: nn.Module
    pixels: Tensor
    late: bool = False
    names: Collection[str] | None = ()
    heads: bool = False
    endings: Endings | None = None
    output: object = None
    score_layout: Layout | None = None
    scores: ClassScores | None = None
    over: bool = False
    disconnected: bool = False
    outputs: list[GraphPoint] = field(default_factory=list)
    inputs: list[GraphPoint] = field(default_factory=list)
    kept: list[GraphPoint] = field(default_factory=list)
    vectors: list[FeatureMap] = field(default_factory=list)
    captured: dict[str, Any] = field(default_factory=dict)  # Any: whatever a module returns
    places: Places | None = None
    files: Sequence[InFile | None] = ()
    begun: list[ref[Tensor]] = field(default_factory=list)
    known: dict[tuple[object, tuple[Index | None, ...]], Tensor] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """N."""
        return len(self.pixels)

    def point(self, feature_map: FeatureMap, *, copied: bool) -> GraphPoint:
        """Record a tensor, and begin the graph there if it is outside of one."""
        values = feature_map.values
        if not values.requires_grad and values.is_floating_point() and torch.is_grad_enabled():
            # A graph that begins here would lack what other layers have computed from it before.
            begun = not feature_map.passed_on and begin_graph_in_place(values)
            self.disconnected = self.disconnected or (self.late and not begun)
            if begun:
                self.begun.append(ref(values if values._base is None else values._base))
        return GraphPoint.of(feature_map, copied=copied)

    def keep(self, feature_map: FeatureMap) -> None:
        """Record the output of any layer if it may be needed."""
        if self.names is None or feature_map.name in self.names:
            # Copying every output would take as long as a part of the forward pass.
            self.kept.append(self.point(feature_map, copied=self.names is not None))
        if self.heads and _may_be_head(feature_map):
            self.vectors.append(replace(feature_map, values=feature_map.values.detach().clone()))

    def release(self) -> None:
        """Take the tensors at which the graph began out of it: the network may keep one, such as positions."""
        for each in self.begun:
            if (values := each()) is not None:
                with suppress(RuntimeError):  # one of several views of an operation
                    values.detach_()

    @contextmanager
    def capturing(self, head: Head) -> Iterator[None]:
        """Keep what the modules return that a detector's boxes are read from, of all boxes above the lowest score."""
        if head.detector is None:
            yield
            return
        handles = []
        for path in head.detector.captures:
            with suppress(AttributeError):  # the network has none
                module = self.network.get_submodule(path)
                handles.append(module.register_forward_hook(partial(self._capture, path)))
        try:
            with _lowest_score(self.network, head.detector.thresholds, head.confidence):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _capture(self, path: str, _module: nn.Module, _given: object, returned: object) -> None:
        self.captured[path] = returned

    def keep_only(self, names: Collection[str], points: Iterable[GraphPoint]) -> None:
        """Keep the first of some points under each of these names, and release everything else."""
        self.kept = list(islice((point for point in points if point.name in names), len(names)))

    def maps(self, point: GraphPoint, values: Tensor) -> Tensor:
        """Reshape values to one map for each image, `(N, C, h, w)`, the frames of a clip side by side.

        Raises:
            NotAMapError: They are not maps.
        """
        frames = list(frames_of(point.feature_map, values).values())
        if frames[0].ndim == 2:
            raise NotAMapError("a vector, without rows and columns to lay over the image")
        if len(frames[0]) != self.images:
            raise NotAMapError(f"{len(frames[0])} samples for {counted(self.images, 'image')}, not a map of the image")
        return frames[0] if len(frames) == 1 else torch.cat(frames, -1)

    def why_only_prefix(self) -> str:
        """Return why a layer whose patches no score depends on has no map, and which layer has one."""
        firsts = [name for name, _ in self.network.named_modules() if name.endswith((".ln_1", ".norm1"))]
        hint = f"; choose {quote(firsts[-1])}, the first layer of the last block" if firsts else ""
        return f"the class score depends on the class token here, not on the patches{hint}"


def _version(values: Tensor) -> int:
    return 0 if values.is_inference() else values._version  # inference tensors have no version


def _may_be_head(feature_map: FeatureMap) -> bool:
    shape = feature_map.shape
    vector = len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))
    return vector and isinstance(feature_map.layer.module, nn.Linear | nn.Conv2d)


@contextmanager
def _lowest_score(network: nn.Module, paths: Sequence[str], score: float | None) -> Iterator[None]:
    """Set the lowest score of the boxes that a detector returns, within the block; None: its own."""
    own: list[tuple[nn.Module, str, object]] = []
    for path in paths if score is not None else ():
        owner, _, name = path.rpartition(".")
        with suppress(AttributeError):  # the network has none
            module = network.get_submodule(owner)
            own.append((module, name, getattr(module, name)))
    try:
        for module, name, _ in own:
            setattr(module, name, score)
        yield
    finally:
        for module, name, value in own:
            setattr(module, name, value)
