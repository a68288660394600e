"""The data that packages exchange: inputs, networks, and the results of one image. `fmapviz.types` makes them public."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from operator import call
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from fmapviz.core.drawings import Grid, HeatMap, Histogram
from fmapviz.core.file_names import picture_file
from fmapviz.core.members import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from enum import Enum
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as PillowImage
    from torch import Tensor, nn

    from fmapviz.config import RunInfo, Style
    from fmapviz.core.bands import Bands
    from fmapviz.core.centres import Centres
    from fmapviz.core.channel_table import ChannelTable
    from fmapviz.core.drawings import Rendered, Tiles
    from fmapviz.core.layout import Layout
    from fmapviz.core.placement import Placement
    from fmapviz.core.samples import Samples

    Input = str | Path | PillowImage.Image | NDArray[Any] | Tensor  # a tensor may be a batch
    Inputs = Input | Iterable[Input]
    UserLayouts = Mapping[str, str] | Callable[[str, tuple[int, ...]], str | None]
    Weights = str | Enum | Mapping[str, Any]  # a name, a member of torchvision's enumerations, or a state dict


_NOTHING: Mapping[str, Any] = MappingProxyType({})
Of = str  # kind of a layer's values: output, input, gradient, input gradient, weights, or the kind that an observer records


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A listed input, not yet read.

    Attributes:
        path: Absolute path or address; of an image in memory its name and a digest of its content.
        unit: Name of its output directory, relative to the run directory, with `/`.
        version: Values that change with the content, from its source: `size` (bytes) and `mtime_ns` (nanoseconds) of a
            file, `size` and `etag` of a remote file, `sha256` of an image in memory. A frame has the version of its film.
        content: The image itself, if it was given in memory; see `fmapviz.images.memory`.
    """

    path: str
    unit: str
    version: Mapping[str, str | int] = field(default_factory=dict, hash=False)
    content: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an input failed.

    Attributes:
        path: As listed; not escaped for the terminal.
        code: A stable code for scripts, such as `E_DECODE`.
        message: One sentence.
        hint: What to do next, or None.
        report: Traceback of user code that failed; else None.
    """

    path: str
    code: str
    message: str
    hint: str | None = None
    report: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A module of a network and its dotted name.

    Attributes:
        name: Its first path in `named_modules()`.
        type: Name of its class.
        aliases: Other paths to the same module.
    """

    name: str
    type: str
    module: nn.Module
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One row of `fmapviz layers`.

    Attributes:
        index: Position of its first call in the order of execution; None if it did not run.
        shape: Shape of its first output, without the axis of images, if it has one; None if it did not run.
        parameters: Number of parameters, with those of its children.
        calls: Number of calls in one forward pass.
        aliases: Other paths to the same module.
        layout: The axes of its first output, such as `N 1+H*W C`, see the page *layouts* of the guide; empty if unknown.
        macs: Multiply-accumulate operations of its calls in the forward pass of one image, with those of its children; None
            if it did not run, or if an operator has no known formula.
        parameter_bytes: Size of its parameters, with those of its children.
        output_bytes: Size of its first output for one image; None if it did not run.
    """

    index: int | None
    name: str
    type: str
    shape: tuple[int, ...] | None
    parameters: int
    calls: int
    aliases: tuple[str, ...] = ()
    layout: str = ""
    macs: int | None = None
    parameter_bytes: int = 0
    output_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """The output of one call of one layer.

    Attributes:
        layer: The layer.
        name: The layer's name, with `#2` for its second call, and the path to this tensor in a tuple or dict output: `[0]`,
            `['out']`.
        call: Call of the layer within the forward pass, from 1.
        index: Position in the order of execution among the hooked layers, from 0.
        values: The tensor the layer returned, `(N, C, H, W)` for a convolution, any range, on the model's device.
        passed_on: Whether `values` may have gone into other layers already: it is the layer's input, a view of it, or one of
            several tensors.
        gradient: Gradient of a score with respect to `values`, of the same shape; None if not requested, or if the score
            does not depend on them.
        layout: Which axes of `values` are images, channels, rows and columns; None if only the layer's type is known.
    """

    layer: Layer
    name: str
    call: int
    index: int
    values: Tensor
    passed_on: bool = False
    gradient: Tensor | None = None
    layout: Layout | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `values`; empty of a nested tensor, which has none."""
        return () if self.values.is_nested else tuple(self.values.shape)

    def show(self, style: Style | None = None) -> PillowImage.Image:
        """Draw the channels as one grid for each image, below each other, or as bars if they have no rows and columns.

        Args:
            style: How the grid looks, as for `fmapviz.tile`, which returns the same as a tensor.

        Returns:
            A Pillow picture, which shows itself in a notebook.

        Raises:
            RequestError: The values are neither maps of an image nor a vector, or have none of the chosen channels.

        Example:
            >>> import torch
            >>> layer = Layer("0", "Conv2d", torch.nn.Conv2d(3, 4, 3))
            >>> FeatureMap(layer, "0", 1, 0, torch.rand(1, 4, 8, 8)).show().size
            (22, 22)
        """
        picture: PillowImage.Image = load("fmapviz.views.maps:show")(self, style)
        return picture

    def statistics(self) -> ChannelTable:
        """Return the statistics of each channel over all images, as `stats.csv` of a run has them.

        Returns:
            A list with a dictionary for each channel: `min`, `max`, `mean`, `std`, the share of `zeros`, the number of
            `nonfinite` values, whether it is `dead`, and its layer. It prints itself as a table; `to_frame()` converts it to
            a DataFrame of pandas.

        Raises:
            RequestError: The values are neither maps of an image nor a vector.

        Example:
            >>> import torch
            >>> layer = Layer("0", "Conv2d", torch.nn.Conv2d(3, 2, 3))
            >>> maps = torch.tensor([[[[0.0, 1.0, 2.0]], [[0.0, 0.0, 0.0]]]])
            >>> FeatureMap(layer, "0", 1, 0, maps).statistics()
            0  Conv2d
            channel  min  max  mean     std   zeros  nonfinite  dead
                  0    0    2     1  0.8165  0.3333          0    no
                  1    0    0     0       0       1          0   yes
        """
        table: ChannelTable = load("fmapviz.formats.stats:tabulate")(self)
        return table

    def __repr__(self) -> str:
        """Return one line: name, class of the layer, shape, dtype, device, finite range."""
        dtype = str(self.values.dtype).removeprefix("torch.")
        facts = [repr(self.name), self.layer.type, str(self.shape), dtype, str(self.values.device), _range_of(self.values)]
        return f"FeatureMap({', '.join(filter(None, facts))})"


def _range_of(values: Tensor) -> str:
    """Return the smallest and the largest finite value as text; empty if there are none."""
    kind = str(values.layout), values.is_quantized, values.is_nested, values.is_meta, values.is_complex()
    if kind != ("torch.strided", False, False, False, False):
        return ""
    finite = values.detach()[values.detach().isfinite()]
    return f"{finite.min().item():.4g}..{finite.max().item():.4g}" if finite.numel() else ""


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """The preprocessing of a network's inputs.

    Attributes:
        apply: Converts a picture of C channels to a float32 tensor `(C, H, W)`; a clip to `(C, T, H, W)` or `(T, C, H, W)`.
        mean: Subtracted from values in 0..1: one number per channel or one for all; empty if unknown.
        std: Divisor, in the same form.
        description: One line for `run.json` and for people; equal lines mean equal preprocessing.
        channels: C, the number of channels that the network takes.
        frames: T, the number of frames of the clips that the network takes; 1 if it takes pictures.
        frame: Converts one frame of a clip to a float32 tensor `(C, H, W)`; None if the network takes pictures.
        volume: Whether the network takes volumes `(C, D, H, W)`, which an array may hold.
        own: Whether it is a function of the user, which may make channels that a file does not have.
        time_first: Whether the clips that the network takes are `(T, C, H, W)`.
        place: Returns where an input lies in an upright picture, by the picture's width and height; None: it is measured.
    """

    apply: Callable[[PillowImage.Image | Bands | Samples], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    description: str
    channels: int = 3
    frames: int = 1
    frame: Callable[[PillowImage.Image | Bands | Samples], Tensor] | None = None
    volume: bool = False
    own: bool = False
    time_first: bool = False
    place: Callable[[tuple[int, int]], Placement] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded network.

    Attributes:
        name: As the user wrote it.
        module: In training or evaluation mode; capturing does not change it.
        weights: Source of its weights: `IMAGENET1K_V1`, `random, seed 0`, the name of a file.
        sha256: Checksum of the weights file; None for random weights.
        preparation: The preprocessing that the weights were trained with.
        forward: Calls the module with a batch `(N, ...)` of preprocessed images in the form that it expects.
        batches: Whether one forward pass may take several images.
        straight: Whether no convolution is known to run more than once in a forward pass.
        classes: Names of its outputs; empty if unknown.
        scores: Kind of its outputs, as `--scores` takes it: `softmax`, `sigmoid`, `ordinal`, `value` or `value:UNIT`; empty
            if unknown. User code has precedence over the last operation of the network, and that over a configuration.
        layout: The axes of layers as the user names them, by globs of layers, or as a function of a feature map's name and
            shape; None: they are derived.
        own: Whether it is user code, whose traceback is shown.
        notices: Remarks on its loading, for the user.
        assumption: The assumption about its preprocessing, for the user; empty if that is known.
    """

    name: str
    module: nn.Module
    weights: str
    sha256: str | None
    preparation: Preparation
    forward: Callable[[nn.Module, Tensor], object] = call
    batches: bool = True
    straight: bool = False
    classes: tuple[str, ...] = ()
    scores: str = ""
    layout: UserLayouts | None = None
    own: bool = False
    notices: tuple[str, ...] = ()
    assumption: str = ""

    @property
    def label(self) -> str:
        """Name and weights, for people."""
        return f"{self.name} ({self.weights})"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A class that a network predicts for an image.

    Attributes:
        index: Index of the class.
        name: Its name; `class 3` if that is unknown, and `output 3` of a value.
        score: The number that is shown: the probability, 0..1; of a segmentation the share of pixels; of a detector the
            score of the box; of a network that returns no probabilities the value.
        of: Reference of the score, for people: `of the pixels`; empty for a probability.
        probability: Of the class, 0..1; None if the network has none.
        logit: Of the class, before a softmax or sigmoid; None if the network has none.
        kind: How the classes relate: `softmax`, one of them is right; `sigmoid`, each by itself; `ordinal`, they are in
            order; `value`, quantities and no classes; `boxes`, of a detector.
        unit: Of a value.
        box: Left, top, right and bottom of what was detected, in pixels of the upright picture, or of the input that was
            given as a prepared tensor; None unless it is a detector whose boxes are known.
    """

    index: int
    name: str
    score: float
    of: str = ""
    probability: float | None = None
    logit: float | None = None
    kind: str = "softmax"
    unit: str = ""
    box: tuple[float, float, float, float] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The form in `unit.json` and `--json`."""
        return {
            "index": self.index,
            "class": self.name,
            "score": _finite(self.score),
            "probability": _finite(self.probability),
            "logit": _finite(self.logit),
            "scores": self.kind,
            **({"unit": self.unit} if self.unit else {}),
            **({"box": [round(side, 1) for side in self.box]} if self.box else {}),
        }

    def __str__(self) -> str:
        """Return the class and its score as text.

        Example:
            >>> str(Prediction(3, "star", 0.9871)), str(Prediction(0, "sky", 0.25, "of the pixels"))
            ('star 98.7 %', 'sky 25.0 % of the pixels')
            >>> str(Prediction(0, "age", 37.25, kind="value", unit="years"))
            'age 37.25 years'
            >>> str(Prediction(0, "dog", 0.9, kind="boxes", box=(12, 30, 96, 128)))
            'dog 90.0 % at 12,30,96,128'
        """
        if self.kind == "value":
            return f"{self.name} {self.score:.4g}{self.unit and ' '}{self.unit}"
        box = f" at {','.join(f'{side:.0f}' for side in self.box)}" if self.box else ""
        return f"{self.name} {percent(self.score)}{self.of and ' '}{self.of}{box}"


@dataclass(frozen=True, slots=True)
class Target:
    """The class whose score is differentiated for one image.

    Attributes:
        label: As the user requested it, the same for all images: `top1`, `class3`, `star`.
        index: Index of the class.
        name: Its name; empty if unknown.
        score: The output of the network for the class: a logit, a probability or a value; of the first of two names of a
            single output its negative or complement; of a segmentation the mean over the pixels predicted as the class; of a
            detector the score of the best box.
        logit: The differentiated number, before a softmax or sigmoid at the end of the network; None if there is none, and
            the score itself is differentiated. Of a segmentation the mean over the pixels whose sum is differentiated.
        probability: Of the class, 0..1; None if the network has none, and of pixels.
        share: Share of the pixels that are predicted as the class; None unless it is a segmentation.
        kind: See `Prediction`; empty if unknown.
        unit: Of a value.
    """

    label: str
    index: int
    name: str
    score: float
    logit: float | None = None
    probability: float | None = None
    share: float | None = None
    kind: str = ""
    unit: str = ""

    @property
    def title(self) -> str:
        """The name of the class, for people."""
        return self.name or f"{'output' if self.kind == 'value' else 'class'} {self.index}"

    @property
    def full_title(self) -> str:
        """The title, with the user's own form of the target unless it says the same: boxes may be of one class.

        Example:
            >>> Target("box2", 3, "star", 2.5).full_title, Target("star", 3, "star", 2.5).full_title
            ('star, box2', 'star')
        """
        return f"{self.title}{self._rank}"

    @property
    def numbers(self) -> str:
        """Score, logit and probability, in words."""
        pixels = self.share is not None
        mean = "mean " if pixels else ""
        words = [f"{percent(self.share)} of the pixels"] if self.share is not None else []
        if self.probability is not None:
            words.append(f"probability {percent(self.probability)}")
        if self.logit is not None:
            words.append(f"{mean}logit {self.logit:.4g}")
        elif self.kind == "value":
            words.append(f"{mean}value {self.score:.4g}{self.unit and ' '}{self.unit}")
        elif self.probability is None or pixels:
            words.append(f"{mean}score {self.score:.4g}")
        return ", ".join(words)

    @property
    def caption(self) -> str:
        """Class, rank and numbers in a line, for a picture.

        Example:
            >>> Target("top1", 3, "star", 2.5, logit=2.5, probability=0.987).caption
            'star, top1: 98.7 %, logit 2.5'
        """
        return f"{self.full_title}: {self.short}"

    @property
    def short(self) -> str:
        """Score, logit and probability, in few words."""
        return self.numbers.removeprefix("probability ").removeprefix("value ")

    @property
    def _rank(self) -> str:
        return "" if self.label.casefold() in {self.name.casefold(), f"class{self.index}"} else f", {self.label}"

    @property
    def record(self) -> dict[str, Any]:
        """The form in `unit.json`."""
        return {
            "target": self.label,
            "class": self.index,
            "class_name": self.name or None,
            "score": _finite(self.score, digits=None),
            "logit": _finite(self.logit, digits=None),
            "probability": _finite(self.probability, digits=None),
            **({} if self.share is None else {"share": self.share}),
            **({"scores": self.kind} if self.kind else {}),
            **({"unit": self.unit} if self.unit else {}),
        }

    def __str__(self) -> str:
        """Return the class and its score as text.

        Example:
            >>> str(Target("top1", 3, "star", 2.5))
            'star (number 3), top1, score 2.5'
        """
        number = f" (number {self.index})" if self.name else ""
        return f"{self.title}{number}{self._rank}, {self.numbers}"


def percent(share: float) -> str:
    """Return a share as text, rounded from the four digits that are recorded: what is read again has the same text.

    Example:
        >>> percent(0.9871)
        '98.7 %'
    """
    return f"{round(share, 4):.1%}".replace("%", " %")


def _finite(number: float | None, *, digits: int | None = 4) -> float | None:
    """Return a number as a JSON value: None if it is not finite."""
    if number is None or not isfinite(number):
        return None
    return number if digits is None else round(number, digits)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one feature map of one image, before scaling.

    Attributes:
        minimum: Smallest finite value; None if no value is finite.
        maximum: Largest finite value, likewise.
        mean: Mean of the finite values, likewise.
        constant: Dead channels, whose values are all equal; empty for maps of a single pixel.
        nonfinite: Number of values that are NaN or infinite.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    constant: tuple[int, ...]
    nonfinite: int


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Statistics of each channel of one feature map of one image, over all its samples.

    Attributes:
        values: Number of values per channel.
        low: Smallest finite value of each channel, float32 `(C)`; NaN if no value is finite.
        high: Largest finite value, likewise.
        mean: Mean of the finite values, likewise.
        std: Their population standard deviation, likewise.
        zeros: Number of values that are exactly zero, int64 `(C)`.
        nonfinite: Number of values that are NaN or infinite, int64 `(C)`.
        rest: Part of the mean that float32 lost, float32 `(C)`; None if it is negligible beside the deviation.
    """

    values: int
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    zeros: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    rest: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """How the values of a layer differ between two networks, A and B, for one image.

    Positions at which either value is NaN or infinite take no part, except in `nonfinite` and `differing`. NaN differs from
    everything, also from NaN, which may stand for any value.

    Attributes:
        means: Of A and of B, the mean over the positions of each channel, float64 `(C)`; None where the layer is missing.
        channels: The numbers of each channel, float64 `(C, 8)`, in the order of `DIFFERENCES`; None if one network lacks it.
        whole: The same numbers of all channels together, float64 `(8)`.
        powers: Sum of the squares of A, and of B - A, over all channels.
        indices: Positions of the layer in the order of execution of A and of B; None where it is missing.
    """

    means: tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]
    channels: NDArray[np.float64] | None = None
    whole: NDArray[np.float64] | None = None
    powers: tuple[float, float] = (0.0, 0.0)
    indices: tuple[int | None, int | None] = (None, None)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of all channels together, by their names; empty if one network lacks the layer."""
        return {} if self.whole is None else dict(zip(DIFFERENCES, self.whole.tolist(), strict=True))

    def of_channels(self, name: str) -> NDArray[np.float64]:
        """Return one of the numbers of each channel, float64 `(C)`; both networks have the layer."""
        assert self.channels is not None
        return self.channels[:, DIFFERENCES.index(name)]


# Of B - A: the largest magnitude, the root of the mean square, the norm relative to that of A. Then, of A and B, the cosine,
# Pearson's correlation, the ratio of A's power to that of B - A in dB; the share of positions that differ; the number of
# positions with a value that is NaN or infinite.
DIFFERENCES = ("max_abs", "rms", "relative_l2", "cosine", "pearson", "sqnr", "differing", "nonfinite")


@dataclass(frozen=True, slots=True, eq=False)
class RawValues:
    """The values of one feature map of one image, as the layer returned them.

    Attributes:
        array: float32 or float16, any shape, without the batch axis if there was one.
        dtype: The layer's own type: `float32`, `bfloat16`, ...
        view: The view that requested values other than a layer's output; empty for outputs.
        overflows: Number of finite values too large for float16, now infinite.
    """

    array: NDArray[Any]
    dtype: str
    view: str = ""
    overflows: int = 0


class CustomContent(Protocol):
    """Content of a drawing that renders and describes itself. Its class is a frozen dataclass, and inherits the defaults.

    Its field `pixels`, an array or several, is emptied as soon as the picture is encoded.
    """

    __slots__ = ()

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """The raw values, by suffixes of the name of the map; empty if there is only a picture."""
        return _NOTHING

    @property
    def record(self) -> Mapping[str, Any]:
        """Its fields of the record of its layer."""
        return _NOTHING

    @property
    def total(self) -> int:
        """Number of all channels, if the style chooses some of them; else 0."""
        return 0

    @property
    def why_empty(self) -> str:
        """Why the picture shows nothing; empty if it shows something."""
        return ""

    def render(self, layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """Draw it.

        Args:
            layer: The result it belongs to.
            seen: The input as the network saw it, uint8 `(H, W)` or `(H, W, 3)`.
            style: How pictures look.
        """
        ...

    def describe(self, layer: LayerResult, style: Style, /) -> Mapping[str, str | None]:
        """Return facts in words by their names, `Scaling` among them; None leaves a fact out."""
        ...


Content = Grid | Histogram | HeatMap | CustomContent


@dataclass(slots=True, eq=False)
class Drawing:
    """The drawing of one feature map of one image by one view.

    Attributes:
        view: Name of the view.
        content: None if no requested format shows pictures. Without its pixels as soon as these are encoded.
    """

    view: str
    content: Content | None

    @property
    def custom(self) -> CustomContent | None:
        """The content, if it renders and describes itself."""
        return None if self.content is None or isinstance(self.content, Grid | Histogram | HeatMap) else self.content


@dataclass(frozen=True, slots=True, eq=False)
class LayerResult:
    """The results of one feature map of one image.

    Attributes:
        layer: The feature map's name, `layer1.0.relu#2`; ends in `.t03` for a frame of a clip; empty for a heat map of the
            network's input.
        type: The layer's class.
        call: Call of the layer within the forward pass, from 1.
        index: Position in the order of execution among the hooked layers.
        shape: Shape of the layer's output for one image, without the batch axis.
        of: The captured values of the layer.
        target: Class whose score was differentiated, else None.
        samples: Number of samples for this image, such as regions of a detector; the first is drawn.
        automatic: Whether the layer was chosen automatically.
        query: The query of the attention, in words; empty if it is not attention.
        statistics: Of all channels; None if there are only heat maps. `unit.json` lists it as a layer if there are any.
        measures: Statistics of each channel, all channels included, if requested.
        values: The values themselves, if requested.
        maps: All channels, float32 `(N, C, h, w)` of N samples, if a result of all images is computed from them.
        difference: Of two networks, how the values differ.
        sees: First and last row of the network's input that each row of the map depends on, and the same for columns, int64
            `(2, h)` and `(2, w)`, beyond the input where that is padding; None if not requested, or unknown.
        centres: Positions of the map's values in the network's input; None: they span it, or are unknown.
        frame: Frame of a clip, or slice of a volume, that the map belongs to, from 0; None for a picture, for a map of all
            frames, or if it is unknown.
        drawings: In the order of the views.
    """

    layer: str
    type: str
    call: int
    index: int
    shape: tuple[int, ...]
    of: Of = "output"
    target: Target | None = None
    samples: int = 1
    automatic: bool = False
    query: str = ""
    statistics: Statistics | None = None
    measures: Measures | None = None
    values: RawValues | None = None
    maps: NDArray[np.float32] | None = None
    difference: Difference | None = None
    sees: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    centres: Centres | None = None
    frame: float | None = None
    drawings: tuple[Drawing, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ImageResult:
    """The results of one image.

    Attributes:
        layers: Outputs and inputs in the order of execution, then gradients, then heat maps of classes.
        not_executed: Chosen layers that did not run.
        undrawn: Layers that ran but were not drawn, with the reason.
        predictions: The network's classes for the image, highest score first; empty if not requested.
        notices: Remarks on this image, for its page and record.
        remarks: Remarks on the network, the same for every image.
    """

    layers: tuple[LayerResult, ...]
    not_executed: tuple[str, ...]
    undrawn: Mapping[str, str]
    predictions: tuple[Prediction, ...] = ()
    notices: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def heat_maps(self) -> Iterator[tuple[LayerResult, str, HeatMap]]:
        """Iterate over layer result, view and content of each heat map."""
        for layer in self.layers:
            for drawing in layer.drawings:
                if isinstance(drawing.content, HeatMap):
                    yield layer, drawing.view, drawing.content

    @property
    def valued(self) -> Iterator[tuple[LayerResult, str, Mapping[str, NDArray[Any]]]]:
        """Iterate over layer result, view and values of each drawing that has values."""
        for layer in self.layers:
            for drawing in layer.drawings:
                if drawing.content and not isinstance(drawing.content, Grid | Histogram):
                    yield layer, drawing.view, drawing.content.values

    @property
    def bytes(self) -> int:
        """Memory of all arrays of the drawings and values."""
        contents = (drawing.content for layer in self.layers for drawing in layer.drawings if drawing.content)
        values = (getattr(each, name) for each in contents for name in each.__slots__)
        sizes = [
            getattr(part, "nbytes", 0) for value in values for part in (value if isinstance(value, tuple) else (value,))
        ]
        sizes += [layer.values.array.nbytes for layer in self.layers if layer.values]
        sizes += [layer.maps.nbytes for layer in self.layers if layer.maps is not None]
        return sum(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An encoded picture and its description.

    Attributes:
        group: View that drew it, or `input`.
        name: Index and layer, `00 features.0`; sorts in the order of execution.
        png: The complete file.
        width: Pixels.
        height: Pixels.
        facts: Description: layer, type, shape, range, scaling, model, weights.
        title: Display name, if it differs from `name`.
        layer: The feature map it shows; None for the input and for sheets.
        drawing: One of that feature map's drawings, else None.
        tiles: Position of its tiles, None if it has none.
        page: Its number among several pictures of the same name, from 0.
        report: Further data of it for the report, JSON values by their names.
        area: Width and height of its upper left part, without a caption below; None: all of it.
        svg: The picture as SVG, with its texts as text, if that is requested.
    """

    group: str
    name: str
    png: bytes
    width: int
    height: int
    facts: Mapping[str, str]
    title: str = ""
    layer: LayerResult | None = None
    drawing: Drawing | None = None
    tiles: Tiles | None = None
    page: int = 0
    report: Mapping[str, Any] = field(default_factory=dict)
    area: tuple[int, int] | None = None
    svg: str = ""

    @property
    def tag(self) -> str:
        """Its name in TensorBoard: `maps/00 features.0`."""
        return f"{self.group}/{self.name}"

    @property
    def file_name(self) -> str:
        """Its name as a file: `00_features.0.maps.png`, safe for any layer name.

        Example:
            >>> Picture("maps", "03 ../a b", b"", 1, 1, {}).file_name
            '03_..%2Fa%20b.maps.png'
        """
        return picture_file(self.name, f"{self.group}.{self.page + 1}" if self.page else self.group)

    def _repr_png_(self) -> bytes:
        """Return the PNG file, for notebooks."""
        return self.png


@dataclass(frozen=True, slots=True, eq=False)
class EmptyMaps:
    """A notice about heat maps that show nothing.

    Attributes:
        view: The view that drew them.
        layer: The result that the map belongs to; None for cells of a sheet.
        text: For the user.
    """

    view: str
    layer: LayerResult | None
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class UnitImage:
    """One image of a unit and its results, as a writer receives it.

    Attributes:
        name: Its name in the run; of a unit without an image, the name of the unit.
        path: Its path as it was listed, or the source of such a unit.
        result: The results.
        notices: Remarks about this image for the user.
        info: The run's settings.
        key: Number of the image, unique in the run; 0 if it is alone in its unit.
        input: SHA-256 of the prepared input, hexadecimal, if statistics are requested.
        empty_maps: Those of the notices that concern single pictures.
    """

    name: str
    path: str
    result: ImageResult
    notices: tuple[str, ...]
    info: RunInfo
    key: int = 0
    input: str = ""
    empty_maps: tuple[EmptyMaps, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Position of the bytes of a picture in a file of a unit.

    Attributes:
        file: Name of the file.
        offset: First byte.
    """

    file: str
    offset: int
