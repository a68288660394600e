"""The nouns of a run: frozen values that travel from room to room."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as PillowImage
    from torch import Tensor, nn

    from fmapviz.core.config import RunInfo


Of = Literal["output", "input", "gradient", "input gradient", "weights"]


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An input as it was found, before anything is read.

    Attributes:
        path: Where it lies, absolute.
        unit: The name of its output directory, relative to the run directory, parts separated by `/`.
        size: Bytes.
        mtime_ns: Time of last modification, nanoseconds.
    """

    path: str
    unit: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """The channels of a picture that is more than 8 bits of grey or RGB.

    Attributes:
        planes: A Pillow image in mode F for each channel, values 0..1, all of one size.
    """

    planes: tuple[PillowImage.Image, ...]

    @property
    def width(self) -> int:
        """Pixels."""
        return self.planes[0].width

    @property
    def height(self) -> int:
        """Pixels."""
        return self.planes[0].height

    def each(self, change: Callable[[PillowImage.Image], PillowImage.Image]) -> Bands:
        """Do the same to every channel."""
        return Bands(tuple(map(change, self.planes)))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A decoded input.

    Attributes:
        pixels: Upright, with as many channels as were asked for: a Pillow image in mode RGB or L, or bands.
        notices: What had to be decided while reading it, for the person to know.
    """

    file: ImageFile
    pixels: PillowImage.Image | Bands
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that gave nothing, and why.

    Attributes:
        path: As found; may hold characters that no terminal should see.
        code: A stable word for scripts: `E_DECODE`, `E_MISSING`, ...
        message: One sentence.
        hint: What to do about it, or None.
        report: Where code of the user's own failed: its traceback; else None.
    """

    path: str
    code: str
    message: str
    hint: str | None = None
    report: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A module of a network under its dotted name.

    Attributes:
        name: The first path that `named_modules()` gives it.
        type: The name of its class.
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
        index: Position of its first call in the order of execution, None if it did not run.
        shape: Of its first output, without the batch; None if it did not run.
        parameters: How many numbers it has learnt, those of its children included.
        calls: How often it ran in one forward pass.
        aliases: Other paths to the same module.
    """

    index: int | None
    name: str
    type: str
    shape: tuple[int, ...] | None
    parameters: int
    calls: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """What one call of one layer returned.

    Attributes:
        layer: Which layer.
        call: Which call of it within the forward pass, from 1.
        index: Position in the order of execution among the hooked layers, from 0.
        part: Which tensor of a tuple or dict output: empty, `[0]`, `['out']`, ...
        values: The tensor the layer returned, `(N, C, H, W)` for a convolution, any range, on the model's device.
        passed_on: Whether that is what the layer was given, or a view of it.
        gradient: Of a score with respect to `values`, of the same shape; None if it was not requested, or the score does not
            depend on them.
    """

    layer: Layer
    call: int
    index: int
    part: str
    values: Tensor
    passed_on: bool = False
    gradient: Tensor | None = None

    @property
    def name(self) -> str:
        """The layer's name, with `#2` for its second call and the part of its output."""
        return f"{self.layer.name}{f'#{self.call}' if self.call > 1 else ''}{self.part}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `values`."""
        return tuple(self.values.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """How a picture becomes what the network is given.

    Attributes:
        apply: Turns a picture of so many channels into a float32 tensor `(C, H, W)`, or `(C, T, H, W)` for a clip.
        mean: What was subtracted, on a 0..1 scale: a number for each channel or one for all; empty if that is not known.
        std: What it was divided by, in the same form.
        description: One line for run.json and for people; equal lines mean equal preparation.
        channels: C, what the network takes.
    """

    apply: Callable[[PillowImage.Image | Bands], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    description: str
    channels: int = 3


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A network, ready to run.

    Attributes:
        name: As the user asked for it.
        module: In any mode; capturing never changes it.
        weights: Where its weights come from: `IMAGENET1K_V1`, `random, seed 0`, a file's name.
        sha256: Of the weights file, None for random weights.
        preparation: What the weights were trained with.
        forward: Feeds the module a batch `(N, ...)` of prepared images in the form it expects.
        batches: Whether several images may go through in one forward pass.
        straight: Whether it is known that no convolution runs more than once in a forward pass.
        classes: Names of its outputs, in order; empty if unknown.
        own: Whether it is code of the user's own, who wants to see where it fails.
        notices: What had to be decided while loading it, for the person to know.
    """

    name: str
    module: nn.Module
    weights: str
    sha256: str | None
    preparation: Preparation
    forward: Callable[[nn.Module, Tensor], object]
    batches: bool = True
    straight: bool = False
    classes: tuple[str, ...] = ()
    own: bool = False
    notices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name and weights in one phrase, for every place where the model is named."""
        return f"{self.name} ({self.weights})"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class that a network sees in an image.

    Attributes:
        index: Its number among the classes.
        name: Its name.
        score: 0..1: its probability; of a segmentation the share of pixels; of a detector the score of its best box.
        of: What the score is, for people: empty for a probability, `of the pixels`, `in 2 boxes`.
    """

    index: int
    name: str
    score: float
    of: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """What `unit.json` and `--json` say of it."""
        return {"index": self.index, "class": self.name, "score": round(self.score, 4)}

    def __str__(self) -> str:
        """Return the class and its score in a few words.

        Example:
            >>> str(Prediction(3, "star", 0.9871)), str(Prediction(0, "sky", 0.25, "of the pixels"))
            ('star 98.7 %', 'sky 25.0 % of the pixels')
        """
        return f"{self.name} {self.score:.1%}".replace("%", " %") + f"{self.of and ' '}{self.of}"


@dataclass(frozen=True, slots=True)
class Target:
    """The class that a gradient or a heat map of one image is about.

    Attributes:
        label: What it was asked for as, the same for all images: `top1`, `class3`, `star`.
        index: Its number among the classes.
        name: Its name, empty if unknown.
        score: What is differentiated, before any softmax: a classifier's logit; of a segmentation the mean of the class's
            logits over the pixels where it wins; of a detector the score of its best box.
    """

    label: str
    index: int
    name: str
    score: float

    @property
    def title(self) -> str:
        """What to call the class in front of people."""
        return self.name or f"class {self.index}"

    @property
    def record(self) -> dict[str, Any]:
        """What `unit.json` says of it."""
        score = self.score if isfinite(self.score) else None
        return {"target": self.label, "class": self.index, "class_name": self.name or None, "score": score}


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the values of one feature map of one image are like, before anything is scaled.

    Attributes:
        minimum: Smallest finite value, None if there is none.
        maximum: Largest finite value, None if there is none.
        mean: Of the finite values, None if there is none.
        constant: Channels whose values are all the same; empty for maps of a single pixel.
        nonfinite: How many values are NaN or infinite.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    constant: tuple[int, ...]
    nonfinite: int


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """What the values of each channel of one feature map of one image are like; of all its samples, if there are several.

    Attributes:
        values: How many there are in each channel.
        low: Smallest finite value of each channel, float32 `(C)`; NaN where there is none.
        high: Largest finite value, likewise.
        mean: Of the finite values, likewise.
        std: Their standard deviation, divided by their number, likewise.
        zeros: How many are exactly zero, integers `(C)`.
        nonfinite: How many are NaN or infinite, integers `(C)`.
    """

    values: int
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    zeros: NDArray[np.int64]
    nonfinite: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RawValues:
    """The values of one feature map of one image, as the layer returned them.

    Attributes:
        array: float32 or float16, any shape, without the batch axis if there was one.
        dtype: The layer's own type: `float32`, `bfloat16`, ...
        view: The view that asked for values other than a layer's output; empty for outputs.
        overflows: Number of finite values too large for float16, now infinite.
    """

    array: NDArray[Any]
    dtype: str
    view: str = ""
    overflows: int = 0


@dataclass(frozen=True, slots=True)
class Tiles:
    """Equal rectangles in rows, all measures in pixels.

    Attributes:
        left: From the picture's left edge to the first tile.
        top: From its upper edge.
        width: Of a tile.
        height: Of a tile.
        across: From one tile's left edge to that of the next in its row.
        down: From one row to the next.
        columns: Tiles in a row; the last row may have fewer.
        count: Tiles in all.

    Example:
        >>> Tiles(left=2, top=2, width=55, height=55, across=57, down=57, columns=8, count=64).corner(9)
        (59, 59)
    """

    left: int
    top: int
    width: int
    height: int
    across: int
    down: int
    columns: int
    count: int

    def corner(self, number: int) -> tuple[int, int]:
        """Return the top left corner of a tile, counted from 0 row by row: x and y."""
        row, column = divmod(number, self.columns)
        return self.left + column * self.across, self.top + row * self.down


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Content of a drawing: one tile per channel.

    Attributes:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        tiles: Position of the tiles; None if each filter is a row of tiles.
        rows: Position of those rows of tiles, else None.
        channels: The channels shown, in the order of the tiles; None for all.
        limits: Values at the ends of the scale; None if each channel has its own, or no value is finite.
    """

    pixels: NDArray[np.uint8]
    tiles: Tiles | None = None
    rows: Tiles | None = None
    channels: tuple[int, ...] | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Content of a drawing: one bar per element of a vector.

    Attributes:
        pixels: uint8 `(H, W)`.
        tiles: Position of the bars.
        channels: The elements shown, in order; None for all.
        limits: Values at the ends of the scale; None if no value is finite.
    """

    pixels: NDArray[np.uint8]
    tiles: Tiles | None = None
    channels: tuple[int, ...] | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Content of a drawing: number of values per bin.

    Attributes:
        counts: int64 `(B,)`, of B equal bins; the last one includes both of its edges.
        low: Smallest finite value; NaN if there is none.
        high: Largest finite value; NaN if there is none.
        nonfinite: Number of values that are NaN or infinite; no bin counts them.
    """

    counts: NDArray[np.int64]
    low: float
    high: float
    nonfinite: int


@dataclass(frozen=True, slots=True, eq=False)
class Rgb:
    """Content of a drawing: all channels projected to red, green and blue.

    Attributes:
        pixels: uint8 `(h, w, 3)` at the layer's resolution.
        nonfinite: Number of positions with a value that is NaN or infinite.
    """

    pixels: NDArray[np.uint8]
    nonfinite: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Content of a drawing: one map, either the evidence for a class or all channels of a layer reduced to one.

    Attributes:
        raw: float32 `(h, w)` at the layer's resolution; signed for a class.
        pixels: uint8 `(H, W)`, 0..255: the positive part of `raw` for a class, all of it for a reduction.
        over: Whether it is drawn over the input.
        colormap: Used unless the style names one.
        limits: Values at the ends of the scale of a reduction, NaN if no value is finite; None for a class.
        nonfinite: Number of values that are NaN or infinite and were left out of a reduction.
    """

    raw: NDArray[np.float32]
    pixels: NDArray[np.uint8]
    over: bool = True
    colormap: str = "turbo"
    limits: tuple[float, float] | None = None
    nonfinite: int = 0

    @property
    def empty(self) -> bool:
        """Whether all pixels are 0: no positive value, or the same value everywhere."""
        return not bool(self.pixels.any())


Content = Grid | Bars | Histogram | Rgb | HeatMap


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """What one view made of one feature map of one image.

    Attributes:
        view: Its name.
        content: None if no requested format shows pictures.
    """

    view: str
    content: Content | None


@dataclass(frozen=True, slots=True, eq=False)
class LayerResult:
    """Everything found out about one feature map of one image.

    Attributes:
        layer: The feature map's name, `layer1.0.relu#2`; ends in `.t03` for a frame of a clip; empty for a heat map of the
            network's input.
        type: The layer's class.
        call: Call of the layer within the forward pass, from 1.
        index: Position in the order of execution among the hooked layers.
        shape: Shape of the layer's output for one image, without the batch axis.
        of: What was captured at the layer.
        target: Class whose score was differentiated, else None.
        samples: Number of samples for this image, such as regions of a detector; the first is drawn.
        automatic: Whether the layer was chosen automatically.
        statistics: None for heat maps of classes.
        measures: Statistics of each channel, all channels included, if requested.
        values: The values themselves, if requested.
        maps: All channels, float32 `(N, C, h, w)` of N samples, if the run's principal components are computed from them.
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
    statistics: Statistics | None = None
    measures: Measures | None = None
    values: RawValues | None = None
    maps: NDArray[np.float32] | None = None
    drawings: tuple[Drawing, ...] = ()

    @property
    def described(self) -> bool:
        """Whether `unit.json` lists it as a layer; a result with heat maps only is listed under `heat_maps`."""
        more = any(not isinstance(drawing.content, HeatMap) for drawing in self.drawings)
        return self.statistics is not None and (more or self.measures is not None or self.maps is not None)


@dataclass(frozen=True, slots=True, eq=False)
class ImageResult:
    """Everything found out about one image.

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
    def bytes(self) -> int:
        """Memory of all arrays of the drawings and values."""
        contents = (drawing.content for layer in self.layers for drawing in layer.drawings if drawing.content)
        sizes = [getattr(getattr(each, name), "nbytes", 0) for each in contents for name in each.__slots__]
        sizes += [layer.values.array.nbytes for layer in self.layers if layer.values]
        sizes += [layer.maps.nbytes for layer in self.layers if layer.maps is not None]
        return sum(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An encoded picture and what it shows.

    Attributes:
        group: The view that drew it, or `input`.
        name: Index and layer, `00 features.0`; sorts in the order of execution.
        png: The complete file.
        width: Pixels.
        height: Pixels.
        facts: What it shows, in words: layer, type, shape, range, scaling, model, weights.
        title: Display name, if it says more than `name`.
        layer: The feature map it shows; None for the input and for sheets.
        drawing: One of that feature map's drawings, else None.
        tiles: Position of its tiles, None if it has none.
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
        number, _, layer = self.name.partition(" ")
        stem = "".join(ch if ch.isascii() and (ch.isalnum() or ch in "._-#[]'") else _percent(ch) for ch in layer)
        if len(stem) > 180:  # file systems allow 255 bytes
            stem = f"{stem[:160]}~{hashlib.sha256(layer.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        return f"{number}_{stem}.{self.group}.png" if stem else f"{number}.png"

    def _repr_png_(self) -> bytes:
        """Show itself in a notebook."""
        return self.png


@dataclass(frozen=True, slots=True, eq=False)
class UnitImage:
    """One image of a unit and its results, as a writer gets it.

    Attributes:
        file: The image; `unit` is its name in the run.
        result: The results.
        notices: Remarks about this image for the user.
        info: The run's settings.
        key: Number of the image, unique in the run; 0 if it is alone in its unit.
    """

    file: ImageFile
    result: ImageResult
    notices: tuple[str, ...]
    info: RunInfo
    key: int = 0


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Position of the bytes of a picture in a file of a unit.

    Attributes:
        file: Name of the file.
        offset: First byte.
    """

    file: str
    offset: int


def _percent(ch: str) -> str:
    return "".join(f"%{byte:02X}" for byte in ch.encode("utf-8", "surrogatepass"))
